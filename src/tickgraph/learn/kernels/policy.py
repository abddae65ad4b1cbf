"""FlashSAC's actor on running statistics in Triton: two launches, where a compiler makes dozens.

Each of a policy's products is too short to fill a GPU, and what lies between them is shorter still. Here a first launch
lays the weights out for matrix units, norms multiplied in, and a second one takes rows through all layers in registers.
What it waits for is weights, which every program reads whole: behind the embedding they are float16, whose mantissa has
as many bits as TF32's, in half the bytes. An observation may be too large for that, so the embedding's stay float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.networks import UnitBatchNorm, UnitRMSNorm
from tickgraph.learn.policy_form import COLUMNS, EMBED, HEAD, PIECE, Layout

PROGRAMS = 128
"""Aimed at, as an H200 has 132 processors."""
LEAST_ROWS, MOST_ROWS = 16, 64
"""Of a program: what matrix units take at least, and what registers hold."""
LARGEST = tl.constexpr(65504.0)
"""That float16 holds."""


@triton.jit
def _half(x):
    """Return x in float16, a number that is too large as the largest; a NaN stays one."""
    x = tl.where(x > LARGEST, LARGEST, x)
    return tl.where(x < -LARGEST, -LARGEST, x).to(tl.float16)


@triton.jit
def _pack(
    weights, stats, table, packed, halves, size, in_gain, in_offset, last_gain,
    EPS: tl.constexpr, LONGEST: tl.constexpr, COLUMNS: tl.constexpr, EMBED: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Write one row of a weight with what is multiplied into it, zeros behind it, and what is added to its product.

    A place in `halves` is the one in `packed`.
    """
    entry = table + tl.program_id(0) * COLUMNS
    kind, place, length, shift = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    source, count = tl.load(entry + 4), tl.load(entry + 5)
    k = tl.arange(0, LONGEST)
    known = k < count
    weight = tl.load(weights + source + k, known, 0.0)
    inside = k < length
    if kind == EMBED:
        spread = tl.sqrt_rn(tl.load(stats + size + k, known, 1.0) + EPS)
        factor = tl.load(weights + in_gain + k, known, 0.0) / spread
        added = tl.load(weights + in_offset + k, known, 0.0) - tl.load(stats + k, known, 0.0) * factor
        tl.store(packed + place + k, weight * factor, inside)
        tl.store(packed + shift, tl.sum(weight * added, 0))
    elif kind == HEAD:
        gain = tl.load(weights + last_gain + k, known, 0.0)
        tl.store(halves + place + k, _half(weight * gain), inside)
        tl.store(packed + shift, tl.load(weights + tl.load(entry + 6), count > 0, 0.0))
    else:
        mean = stats + tl.load(entry + 8)
        scale = tl.load(weights + tl.load(entry + 6), count > 0, 0.0) / tl.sqrt_rn(
            tl.load(mean + size, count > 0, 1.0) + EPS
        )
        tl.store(halves + place + k, _half(weight * scale), inside)
        offset = tl.load(weights + tl.load(entry + 7), count > 0, 0.0)
        tl.store(packed + shift, offset - tl.load(mean, count > 0, 0.0) * scale)


@triton.jit
def _relu(x):
    return tl.where(x < 0.0, 0.0, x)  # a NaN stays one


@triton.jit
def _layers(
    obs, packed, halves, output, rows, inputs, width, actions,
    ROWS: tl.constexpr, ROW: tl.constexpr, NARROW: tl.constexpr, WIDE: tl.constexpr, HEAD: tl.constexpr,
    PIECE: tl.constexpr, SPAN: tl.constexpr, BLOCKS: tl.constexpr, EPS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Write mean and raw deviation of ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    col, piece = tl.arange(0, NARROW), tl.arange(0, PIECE)
    h = tl.zeros((ROWS, NARROW), tl.float32)
    for start in range(0, ROW, PIECE):
        k = start + piece
        x = tl.load(obs + row[:, None].to(tl.int64) * inputs + k[None, :], inside & (k < inputs)[None, :], 0.0)
        h = tl.dot(x, tl.load(packed + col[None, :] * ROW + k[:, None]), h, input_precision=DOT)
    h += tl.load(packed + NARROW * ROW + col)[None, :]
    up = NARROW * ROW + NARROW
    for _ in range(BLOCKS):
        down = up + WIDE * NARROW + WIDE
        below = tl.zeros((ROWS, NARROW), tl.float32)
        source = _half(h)
        for start in range(0, WIDE, SPAN):
            j = start + tl.arange(0, SPAN)
            u = tl.dot(source, tl.load(halves + up + j[None, :] * NARROW + col[:, None]))
            u = _half(_relu(u + tl.load(packed + up + WIDE * NARROW + j)[None, :]))
            below = tl.dot(u, tl.load(halves + down + col[None, :] * WIDE + j[:, None]), below)
        h += _relu(below + tl.load(packed + down + NARROW * WIDE + col)[None, :])
        up = down + NARROW * WIDE + NARROW
    scale = 1.0 / tl.sqrt_rn(tl.sum(h * h, 1) / width + EPS)
    a = tl.arange(0, 2 * HEAD)
    value = tl.dot(_half(h * scale[:, None]), tl.load(halves + up + a[None, :] * NARROW + col[:, None]))
    value += tl.load(packed + up + 2 * HEAD * NARROW + a)[None, :]
    # The heads lie filled up behind each other here, and close behind each other in the result.
    second = a >= HEAD
    place = tl.where(second, a - HEAD + actions, a)
    known = tl.where(second, a - HEAD, a) < actions
    tl.store(output + row[:, None].to(tl.int64) * (2 * actions) + place[None, :], value, inside & known[None, :])


def layers_options(layout: Layout, rows: int) -> dict[str, Any]:
    """Return how `_layers` is built for `rows` rows: a program's share of them, sizes, warps, and stages of loads."""
    each = min(MOST_ROWS, max(LEAST_ROWS, triton.next_power_of_2(triton.cdiv(rows, PROGRAMS))))
    # Spans, warps and stages by times on an H200, where the embedding went in the same spans as the blocks.
    return {
        "ROWS": each,
        "ROW": layout.row,
        "NARROW": layout.narrow,
        "WIDE": layout.wide,
        "HEAD": layout.head,
        "PIECE": PIECE,
        "SPAN": min(layout.wide, PIECE if each == MOST_ROWS else 2 * PIECE),
        "BLOCKS": layout.blocks,
        "EPS": UnitRMSNorm.eps,
        "DOT": "tf32",
        "num_warps": 8 if LEAST_ROWS < each < MOST_ROWS else 4,
        "num_stages": 3,
    }


@torch.library.custom_op("tickgraph::policy", mutates_args=())
def policy(
    obs: Tensor,
    parameters: Tensor,
    statistics: Tensor,
    table: Tensor,
    sizes: list[int],
    places: list[int],
) -> Tensor:
    """Return mean and raw deviation, (N, 2A) float32, of an actor; its products round to ten bits, as TF32's do.

    Args:
        obs: (N, O) float32.
        parameters, statistics: the actor's flat tensors.
        table: of `Layout.table`.
        sizes: the layout's inputs, width, blocks and actions.
        places: in the parameters, of the input norm's gain and offset and of the last norm's gain.
    """
    layout = Layout(*sizes)
    obs = obs.contiguous()
    rows, inputs = obs.shape
    packed, halves = obs.new_empty(layout.size), obs.new_empty(layout.size, dtype=torch.float16)
    output = obs.new_empty((rows, 2 * layout.actions))
    longest = triton.next_power_of_2(max(layout.row, layout.wide))
    _pack[(table.shape[0],)](
        *(parameters, statistics, table, packed, halves, statistics.shape[1], *places),
        EPS=UnitBatchNorm.eps,
        LONGEST=longest,
        COLUMNS=COLUMNS,
        EMBED=EMBED,
        HEAD=HEAD,
        num_warps=1,
    )
    options = layers_options(layout, rows)
    _layers[(triton.cdiv(rows, options["ROWS"]),)](
        *(obs, packed, halves, output, rows, inputs, layout.width, layout.actions), **options
    )
    return output


@policy.register_fake
def _(
    obs: Tensor,
    parameters: Tensor,
    statistics: Tensor,
    table: Tensor,
    sizes: list[int],
    places: list[int],
) -> Tensor:
    return obs.new_empty((obs.shape[0], 2 * sizes[3]))
