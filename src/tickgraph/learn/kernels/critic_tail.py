"""`learn/loss_head.py` in Triton: from the trunk's result to the gradient that goes back into it, in one launch.

A program takes a tile of rows through the last norm, the heads of all four members, the loss and back. It reads the
heads in chunks of columns, and the online ones twice; what lies in between stays in registers. What is summed over rows
leaves as one sum a program, which torch adds up in a fixed order.

The projection is not the square of all pairs. Places are evenly spaced, a discount apart, so those that reach an atom
lie behind each other, and a discount near one leaves about two of them: each atom adds up a window of sources. Sources
beyond the ends of the support go to its ends as two sums, and those of a row without a discount to their one place. A
row with a small discount makes its tile's window longer, up to all sources.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.networks import UnitRMSNorm

ROWS = 16
"""Of a program: what matrix units take at least. 2,048 rows are then 128 programs, and an H200 has 132 processors."""
WARPS = 8
"""Two for each of a processor's schedulers."""
CHUNK, CHUNK_FULL = 64, 32
"""Columns of the heads that are read at a time, in bfloat16 and in float32. By arithmetic, like all figures here: all
four heads are 64 KB a stage, and three stages are under way."""
STAGES = 3
FARTHEST = tl.constexpr(1e4)
"""From 0, up to which a place is computed well enough to find a window by it."""


@triton.jit
def _scale(h, row, inside, D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / rms of each row of h (ROWS, D)."""
    d = tl.arange(0, WIDTH)
    x = tl.load(h + row[:, None] * D + d[None, :], inside[:, None] & (d < D)[None, :], 0.0).to(tl.float32)
    return 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / D + EPS)


@triton.jit
def _normed(h, gain, scale, row, d, inside, D: tl.constexpr):
    """Return the features of columns d (ROWS, CHUNK), in the precision of h."""
    known = d < D
    x = tl.load(h + row[:, None] * D + d[None, :], inside[:, None] & known[None, :], 0.0)
    return (x.to(tl.float32) * scale[:, None] * tl.load(gain + d, known, 0.0)[None, :]).to(x.dtype)


@triton.jit
def _turned(heads, k, d, D: tl.constexpr, KF: tl.constexpr):
    """Return columns d of a member's heads, transposed, (CHUNK, WIDE)."""
    return tl.load(heads + k[None, :] * D + d[:, None], (k < KF)[None, :] & (d < D)[:, None], 0.0)


@triton.jit
def _softmax(logits, inside):
    """Return logits less their maximum and log-sum, and probabilities, (ROWS, WIDE), both 0 outside."""
    x = logits - tl.max(tl.where(inside, logits, float("-inf")), 1)[:, None]
    e = tl.where(inside, tl.exp(x), 0.0)
    total = tl.sum(e, 1)[:, None]
    return tl.where(inside, x - tl.log(total), 0.0), e / total


@triton.jit
def _projected(mass, r, d, c, low, high, k, K: tl.constexpr, WIDE: tl.constexpr):
    """Return masses (ROWS, WIDE), 0 behind the K atoms, moved to r + d (z - c), each split between the atoms beside.

    In spaces between atoms source i lies at start + d i. Compared, not min and max: a NaN must stay one.
    """
    start = ((r + d * (low - c)) - low) * ((K - 1) / (high - low))
    place = start[:, None] + d[:, None] * k[None, :].to(tl.float32)
    below, above = place <= 0.0, place >= K - 1
    total, lowest = tl.sum(mass, 1), tl.sum(tl.where(below, mass, 0.0), 1)
    highest = tl.sum(tl.where(above, mass, 0.0), 1)
    within = tl.where(below | above, 0.0, mass)
    together = d == 0.0
    joined = tl.where((k == 0)[None, :], tl.sum(within, 1)[:, None], 0.0)
    within = tl.where(together[:, None], joined, within)
    label = tl.where((k == 0)[None, :], lowest[:, None], tl.where((k == K - 1)[None, :], highest[:, None], 0.0))
    # Sources nearer than 1 to atom j lie between (j - 1 - start) / d and 2 / d behind; one more on either side, as the
    # quotient is rounded.
    length = 2.0 / d
    narrow = (length < K) & (d > 0.0) & (tl.abs(start) < FARTHEST)
    count = tl.where(narrow, tl.ceil(tl.where(narrow, length, 0.0)).to(tl.int32) + 3, K)
    count = tl.max(tl.where(together, 1, count), 0)
    first = tl.floor((k.to(tl.float32)[None, :] - 1.0 - start[:, None]) / d[:, None])
    # In front of the first source and behind the last there is nothing.
    first = tl.where(first < -4.0, -4.0, tl.where(first > K, K, first))
    first = tl.where(narrow[:, None], first, 0.0).to(tl.int32)
    step = 0
    while step < count:
        i = first + step
        known = (i >= 0) & (i < K)
        i = tl.where(known, i, 0)
        away = tl.abs(start[:, None] + d[:, None] * i.to(tl.float32) - k[None, :].to(tl.float32))
        share = tl.where(away > 1.0, 0.0, 1.0 - away)
        label += tl.where(known, share * tl.gather(within, i, 1), 0.0)
        step += 1
    sound = (total == total) & (start == start)
    return tl.where((k < K)[None, :], tl.where(sound[:, None], label, float("nan")), 0.0)


@triton.jit
def _back(
    to_logits, heads, h, gain, scale, lean, row, d, inside, to_h, gain_sums, D: tl.constexpr, KF: tl.constexpr,
    WIDE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Write columns d of one member's gradient of h, and of its gain's gradient summed over these rows."""
    k, known = tl.arange(0, WIDE), d < D
    weight = tl.load(heads + k[:, None] * D + d[None, :], (k < KF)[:, None] & known[None, :], 0.0)
    above = tl.dot(to_logits, weight, input_precision=DOT)
    place = row[:, None] * D + d[None, :]
    x = tl.load(h + place, inside[:, None] & known[None, :], 0.0).to(tl.float32)
    unit = x * scale[:, None]
    inner = above * tl.load(gain + d, known, 0.0)[None, :]
    made = scale[:, None] * (inner - unit * lean[:, None])
    tl.store(to_h + place, made.to(to_h.dtype.element_ty), inside[:, None] & known[None, :])
    tl.store(gain_sums + d, tl.sum(above * unit, 0), known)


@triton.jit
def _tail(
    h, gains, heads, biases, reward, discount, cost, atoms, to_h, features, to_logits, figures, gain_sums, bias_sums,
    rows,
    D: tl.constexpr, K: tl.constexpr, KF: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, EPS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Take ROWS rows of both halves of h from features to the gradient of h."""
    tile = tl.program_id(0)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside, row = row < rows, row.to(tl.int64)
    k = tl.arange(0, WIDE)
    known = (k < K)[None, :]
    # Members 0 and 1 are online and read the first half of the rows, 2 and 3 are the targets and read the second.
    part = tl.cast(rows, tl.int64) * D
    h0, h1, h2, h3 = h, h + 2 * part, h + 5 * part, h + 7 * part
    scale0, scale1 = _scale(h0, row, inside, D, WIDTH, EPS), _scale(h1, row, inside, D, WIDTH, EPS)
    scale2, scale3 = _scale(h2, row, inside, D, WIDTH, EPS), _scale(h3, row, inside, D, WIDTH, EPS)
    made0 = tl.zeros((ROWS, WIDE), tl.float32)
    made1, made2, made3 = made0, made0, made0
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        place, write = row[:, None] * D + d[None, :], inside[:, None] & (d < D)[None, :]
        x = _normed(h0, gains, scale0, row, d, inside, D)
        tl.store(features + place, x, write)
        made0 = tl.dot(x, _turned(heads, k, d, D, KF), made0, input_precision=DOT)
        x = _normed(h1, gains + D, scale1, row, d, inside, D)
        tl.store(features + part + place, x, write)
        made1 = tl.dot(x, _turned(heads + KF * D, k, d, D, KF), made1, input_precision=DOT)
        x = _normed(h2, gains + 2 * D, scale2, row, d, inside, D)
        made2 = tl.dot(x, _turned(heads + 2 * KF * D, k, d, D, KF), made2, input_precision=DOT)
        x = _normed(h3, gains + 3 * D, scale3, row, d, inside, D)
        made3 = tl.dot(x, _turned(heads + 3 * KF * D, k, d, D, KF), made3, input_precision=DOT)

    z = tl.load(atoms + k, k < K, 0.0)[None, :]
    _, prob2 = _softmax(made2 + tl.load(biases + 2 * KF + k, k < K, 0.0)[None, :], known)
    _, prob3 = _softmax(made3 + tl.load(biases + 3 * KF + k, k < K, 0.0)[None, :], known)
    lesser = tl.where((tl.sum(prob2 * z, 1) <= tl.sum(prob3 * z, 1))[:, None], prob2, prob3)
    # Rows behind the last have a discount like any other, so that they make no tile's window longer.
    r, c = tl.load(reward + row, inside, 0.0), tl.load(cost + row, inside, 0.0)
    label = _projected(
        lesser, r, tl.load(discount + row, inside, 1.0), c, tl.load(atoms), tl.load(atoms + K - 1), k, K, WIDE
    )
    log0, mine0 = _softmax(made0 + tl.load(biases + k, k < K, 0.0)[None, :], known)
    log1, mine1 = _softmax(made1 + tl.load(biases + KF + k, k < K, 0.0)[None, :], known)
    tl.store(figures + row, -0.5 * tl.sum(label * (log0 + log1), 1), inside)
    tl.store(figures + rows + row, 0.5 * tl.sum((mine0 + mine1) * z, 1), inside)
    tl.store(figures + 2 * rows + row, tl.sum(label * z, 1), inside)

    counts, filled = known & inside[:, None], (k < KF)[None, :] & inside[:, None]
    full0 = tl.where(counts, (mine0 - label) / (2.0 * rows), 0.0)
    full1 = tl.where(counts, (mine1 - label) / (2.0 * rows), 0.0)
    grad0, grad1 = full0.to(to_logits.dtype.element_ty), full1.to(to_logits.dtype.element_ty)
    place = row[:, None] * KF + k[None, :]
    tl.store(to_logits + place, grad0, filled)
    tl.store(to_logits + tl.cast(rows, tl.int64) * KF + place, grad1, filled)
    tl.store(bias_sums + tile * 2 * KF + k, tl.sum(full0, 0), k < KF)
    tl.store(bias_sums + (tile * 2 + 1) * KF + k, tl.sum(full1, 0), k < KF)
    # The mean over d of unit * inner that the norm's backward pass takes off is one of gradient times product, too.
    lean0, lean1 = tl.sum(grad0.to(tl.float32) * made0, 1) / D, tl.sum(grad1.to(tl.float32) * made1, 1) / D
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        sums = gain_sums + tile * 2 * D
        _back(grad0, heads, h0, gains, scale0, lean0, row, d, inside, to_h, sums, D, KF, WIDE, DOT)
        _back(
            grad1, heads + KF * D, h1, gains + D, scale1, lean1, row, d, inside, to_h + part, sums + D, D, KF, WIDE, DOT
        )


def tail_options(dtype: torch.dtype, width: int, atoms: int, filled: int) -> dict[str, Any]:
    """Return how `_tail` is built: sizes, columns of a chunk, warps, and stages of loads.

    Args:
        dtype: of the products.
        width: d of the features.
        atoms: K.
        filled: K filled up.
    """
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "D": width,
        "K": atoms,
        "KF": filled,
        "WIDTH": triton.next_power_of_2(width),
        "WIDE": max(16, triton.next_power_of_2(filled)),
        "ROWS": ROWS,
        "CHUNK": CHUNK if dtype == torch.bfloat16 else CHUNK_FULL,
        "EPS": UnitRMSNorm.eps,
        "DOT": "ieee" if exact and dtype == torch.float32 else "tf32",
        "num_warps": WARPS,
        "num_stages": STAGES,
    }


@torch.library.custom_op("tickgraph::critic_tail", mutates_args=())
def tail_parts(
    h: Tensor,
    gains: Tensor,
    heads: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    cost: Tensor,
    atoms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `loss_head.critic_tail`, but for the sums over programs.

    Returns:
        As there, and instead of the last two the sums of each of P programs, float32: (P, 2, d) and (P, 2, K filled
        up).
    """
    members, rows, width = h.shape
    if members != 4 or rows < 2 or rows % 2:
        raise ValueError(f"features {tuple(h.shape)}; four members and two halves of rows are needed")
    made = _empty(h, heads)
    inputs = (h, gains, heads, biases, reward, discount, cost, atoms)
    options = tail_options(h.dtype, width, atoms.shape[0], heads.shape[1])
    _tail[(made[-1].shape[0],)](*(value.contiguous() for value in inputs), *made, rows // 2, **options)
    return made


@tail_parts.register_fake
def _(
    h: Tensor,
    gains: Tensor,
    heads: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    cost: Tensor,
    atoms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty(h, heads)


def _empty(h: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what `tail_parts` fills."""
    rows, width, filled = h.shape[1] // 2, h.shape[2], heads.shape[1]
    programs = -(-rows // ROWS)
    return (
        h.new_empty((2, rows, width)),
        h.new_empty((2, rows, width)),
        h.new_empty((2, rows, filled)),
        h.new_empty((3, rows), dtype=torch.float32),
        h.new_empty((programs, 2, width), dtype=torch.float32),
        h.new_empty((programs, 2, filled), dtype=torch.float32),
    )


def critic_tail(
    h: Tensor,
    gains: Tensor,
    heads: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    cost: Tensor,
    atoms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `loss_head.critic_tail`."""
    *made, to_gain, to_bias = tail_parts(h, gains, heads, biases, reward, discount, cost, atoms)
    to_h, features, to_logits, figures = made
    return to_h, features, to_logits, figures, to_gain.sum(0), to_bias.sum(0)
