"""`learn/loss_head.py` in Triton: from the trunk's result to the gradient that goes back into it, in one launch.

A program takes a tile of rows through the last norm, the heads of all four members, the loss and back. Heads come in
chunks of columns, the online ones twice; what lies in between stays in registers. What is summed over rows leaves as
one sum a program, which torch adds up in a fixed order.

The projection is not the square of all pairs. Places are evenly spaced, a discount apart, so those that reach an atom
lie behind each other, and a discount near one leaves two or three of them: each atom adds up a window of sources.
Sources beyond the ends of the support go to its ends as two sums, and a row without a discount has one place. A row
with a small discount makes its tile's window longer, up to all sources.
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
"""Columns of the heads that are read at a time, in bfloat16 and in float32."""
STAGES = 3
"""Of loads. All figures here are by arithmetic, none has been timed: a chunk of the four heads is 64 KB, two of which
are in shared memory. Half of that takes twice the rounds, whose instructions count here."""


@triton.jit
def _columns(rows, d, D: tl.constexpr):
    """Return the mask of rows (R, 1), and where columns d do not divide D of these, too."""
    return rows if tl.constexpr(D) % d.shape[0] == 0 else rows & (d < D)[None, :]


@triton.jit
def _rows(h, row, d, inside, D: tl.constexpr):
    """Return columns d of rows of h, (ROWS, columns)."""
    return tl.load(h + row[:, None] * D + d[None, :], _columns(inside[:, None], d, D), 0.0, cache_modifier=".ca")


@triton.jit
def _weight(heads, k, d, D: tl.constexpr, KF: tl.constexpr, CACHE: tl.constexpr):
    """Return columns d of a member's heads, (WIDE, columns)."""
    return tl.load(heads + k[:, None] * D + d[None, :], _columns((k < KF)[:, None], d, D), 0.0, cache_modifier=CACHE)


@triton.jit
def _scale(h, row, inside, D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / rms, (ROWS, 1), of rows of h."""
    x = _rows(h, row, tl.arange(0, WIDTH), inside, D).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 1)[:, None] * (1.0 / D) + EPS)


@triton.jit
def _normed(h, gain, scale, row, d, inside, D: tl.constexpr):
    """Return columns d of a member's features, (ROWS, columns), in the precision of h."""
    x = _rows(h, row, d, inside, D)
    return (x.to(tl.float32) * scale * tl.load(gain + d, d < D, 0.0)[None, :]).to(x.dtype)


@triton.jit
def _softmax(logits, inside):
    """Return logits less their maximum and log-sum, and probabilities, (ROWS, WIDE), both 0 outside."""
    x = logits - tl.max(tl.where(inside, logits, float("-inf")), 1)[:, None]
    e = tl.where(inside, tl.exp(x), 0.0)
    total = tl.sum(e, 1)[:, None]
    return tl.where(inside, x - tl.log(total), 0.0), e * (1.0 / total)


@triton.jit
def _projected(mass, r, d, c, low, high, k, K: tl.constexpr):
    """Return masses (ROWS, WIDE), 0 behind the K atoms, moved to r + d (z - c), each split between the atoms beside.

    In spaces between atoms source i lies at start + d i. Compared, not min and max: a NaN must stay one.
    """
    start = ((r + d * (low - c)) - low) * ((K - 1) / (high - low))
    j = k.to(tl.float32)[None, :]
    place = start[:, None] + d[:, None] * j
    below, above = place <= 0.0, place >= K - 1
    lowest, highest = tl.sum(tl.where(below, mass, 0.0), 1), tl.sum(tl.where(above, mass, 0.0), 1)
    together = d == 0.0
    # Without a discount the first source stands for all, whose masses add up to 1.
    within = tl.where(together[:, None], tl.where(k == 0, 1.0, 0.0)[None, :], mass)
    within = tl.where(below | above, 0.0, within)
    # Sources nearer than 1 to atom j lie between (j - 1 - start) / d and 2 / d behind. One that the quotient's rounding
    # leaves out has a share that is rounding as well. A row that lies beyond an end has no source within.
    end, inverse = start + d * (K - 1), 1.0 / d
    beyond = ((start <= 0.0) & (end <= 0.0)) | ((start >= K - 1) & (end >= K - 1))
    narrow = (2.0 * inverse < K) & (d > 0.0) & (start == start) & (beyond == 0)
    length = tl.where(narrow, tl.ceil(tl.where(narrow, 2.0 * inverse, 0.0)).to(tl.int32), tl.where(together, 1, K))
    count = tl.max(tl.where(beyond, 0, length), 0)
    first = tl.floor((j - 1.0 - start[:, None]) * inverse[:, None]) + 1.0
    first = tl.where(narrow[:, None], first, 0.0).to(tl.int32)
    label, step = tl.zeros_like(mass), 0
    while step < count:
        i = first + step
        known = (i >= 0) & (i < K)
        away = tl.abs(start[:, None] + d[:, None] * i.to(tl.float32) - j)
        share = tl.where(away > 1.0, 0.0, 1.0 - away)
        label += tl.where(known, share * tl.gather(within, tl.where(known, i, 0), 1), 0.0)
        step += 1
    return label + tl.where((k == 0)[None, :], lowest[:, None], tl.where((k == K - 1)[None, :], highest[:, None], 0.0))


@triton.jit
def _back(
    to_logits, weight, h, gain, scale, lean, row, d, inside, to_h, gain_sums, D: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """Write columns d of one member's gradient of h, and of its gain's gradient summed over these rows."""
    above, unit = tl.dot(to_logits, weight, input_precision=DOT), _rows(h, row, d, inside, D).to(tl.float32) * scale
    made = scale * (above * tl.load(gain + d, d < D, 0.0)[None, :] - unit * lean)
    place, write = row[:, None] * D + d[None, :], _columns(inside[:, None], d, D)
    tl.store(to_h + place, made.to(to_h.dtype.element_ty), write)
    tl.store(gain_sums + d, tl.sum(above * unit, 0), d < D)


@triton.jit
def _tail(
    h, gains, heads, targets, biases, reward, discount, cost, atoms, to_h, features, to_logits, figures, gain_sums,
    bias_sums, rows,
    D: tl.constexpr, K: tl.constexpr, KF: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, EPS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Take ROWS rows of both halves of h to figures and to the gradient of h."""
    tile = tl.program_id(0)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside, row = row < rows, row.to(tl.int64)
    k = tl.arange(0, WIDE)
    known = (k < K)[None, :]
    # Members 0 and 1 are online and read the first half of the rows, 2 and 3 are the targets and read the second.
    part, second = tl.cast(rows, tl.int64) * D, tl.cast(rows, tl.int64) * KF
    h1, h2, h3 = h + 2 * part, h + 5 * part, h + 7 * part
    heads1 = heads + KF * D
    made0 = tl.zeros((ROWS, WIDE), tl.float32)
    made1, made2, made3 = made0, made0, made0
    scale0, scale1 = _scale(h, row, inside, D, WIDTH, EPS), _scale(h1, row, inside, D, WIDTH, EPS)
    scale2, scale3 = _scale(h2, row, inside, D, WIDTH, EPS), _scale(h3, row, inside, D, WIDTH, EPS)
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        place, write = row[:, None] * D + d[None, :], _columns(inside[:, None], d, D)
        x = _normed(h, gains, scale0, row, d, inside, D)
        tl.store(features + place, x, write)
        # What the first cache can hold of the online heads is there on the way back.
        made0 = tl.dot(x, tl.trans(_weight(heads, k, d, D, KF, ".ca")), made0, input_precision=DOT)
        x = _normed(h1, gains + D, scale1, row, d, inside, D)
        tl.store(features + part + place, x, write)
        made1 = tl.dot(x, tl.trans(_weight(heads1, k, d, D, KF, ".ca")), made1, input_precision=DOT)
        weight = tl.trans(_weight(targets, k, d, D, KF, ""))
        made2 = tl.dot(_rows(h2, row, d, inside, D), weight, made2, input_precision=DOT)
        weight = tl.trans(_weight(targets + KF * D, k, d, D, KF, ""))
        made3 = tl.dot(_rows(h3, row, d, inside, D), weight, made3, input_precision=DOT)
    made2, made3 = made2 * scale2, made3 * scale3

    z = tl.load(atoms + k, k < K, 0.0)[None, :]
    _, prob2 = _softmax(made2 + tl.load(biases + 2 * KF + k, k < K, 0.0)[None, :], known)
    _, prob3 = _softmax(made3 + tl.load(biases + 3 * KF + k, k < K, 0.0)[None, :], known)
    value2, value3 = tl.sum(prob2 * z, 1), tl.sum(prob3 * z, 1)
    lesser = tl.where((value2 <= value3)[:, None], prob2, prob3)
    value = tl.where(value2 <= value3, value2, value3)
    # Rows behind the last have a discount like any other, so that they make no tile's window longer.
    r, g, c = tl.load(reward + row, inside, 0.0), tl.load(discount + row, inside, 1.0), tl.load(cost + row, inside, 0.0)
    low, high = tl.load(atoms), tl.load(atoms + K - 1)
    label = _projected(lesser, r, g, c, low, high, k, K)
    moved = r + g * (low - c)
    sound = (value == value) & (moved == moved)
    label = tl.where(known, tl.where(sound[:, None], label, float("nan")), 0.0)
    log0, mine0 = _softmax(made0 + tl.load(biases + k, k < K, 0.0)[None, :], known)
    log1, mine1 = _softmax(made1 + tl.load(biases + KF + k, k < K, 0.0)[None, :], known)
    tl.store(figures + row, -0.5 * tl.sum(label * (log0 + log1), 1), inside)
    tl.store(figures + rows + row, 0.5 * tl.sum((mine0 + mine1) * z, 1), inside)
    tl.store(figures + 2 * rows + row, tl.sum(label * z, 1), inside)

    counts, filled, share = known & inside[:, None], (k < KF)[None, :] & inside[:, None], 0.5 / rows
    exact0, exact1 = tl.where(counts, (mine0 - label) * share, 0.0), tl.where(counts, (mine1 - label) * share, 0.0)
    grad0, grad1 = exact0.to(to_logits.dtype.element_ty), exact1.to(to_logits.dtype.element_ty)
    place = row[:, None] * KF + k[None, :]
    tl.store(to_logits + place, grad0, filled)
    tl.store(to_logits + second + place, grad1, filled)
    tl.store(bias_sums + tile * 2 * KF + k, tl.sum(exact0, 0), k < KF)
    tl.store(bias_sums + (tile * 2 + 1) * KF + k, tl.sum(exact1, 0), k < KF)
    # The norm's backward pass takes off the mean over d of its result times its gradient, which is one of logits times
    # theirs, too.
    lean0 = tl.sum(grad0.to(tl.float32) * made0, 1)[:, None] * (1.0 / D)
    lean1 = tl.sum(grad1.to(tl.float32) * made1, 1)[:, None] * (1.0 / D)
    sums = gain_sums + tile * 2 * D
    for begin in range(0, D, CHUNK):
        d = begin + tl.arange(0, CHUNK)
        weight = _weight(heads, k, d, D, KF, ".ca")
        _back(grad0, weight, h, gains, scale0, lean0, row, d, inside, to_h, sums, D, DOT)
        weight = _weight(heads1, k, d, D, KF, ".ca")
        _back(grad1, weight, h1, gains + D, scale1, lean1, row, d, inside, to_h + part, sums + D, D, DOT)


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
    targets: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    cost: Tensor,
    atoms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `loss_head.critic_tail`, but for the sums over programs.

    Args:
        h, gains, biases, reward, discount, cost, atoms: as there.
        heads: (2, K filled up, d) of the online members, in the precision of h.
        targets: those of the targets, times the gain, so that the products read their h as it is.

    Returns:
        As there, and instead of the last two the sums of each of P programs, float32: (P, 2, d) and (P, 2, K filled
        up).
    """
    members, rows, width = h.shape
    if members != 4 or rows < 2 or rows % 2:
        raise ValueError(f"features {tuple(h.shape)}; four members and two halves of rows are needed")
    made = _empty(h, heads)
    inputs = (h, gains, heads, targets, biases, reward, discount, cost, atoms)
    options = tail_options(h.dtype, width, atoms.shape[0], heads.shape[1])
    _tail[(made[-1].shape[0],)](*(value.contiguous() for value in inputs), *made, rows // 2, **options)
    return made


@tail_parts.register_fake
def _(
    h: Tensor,
    gains: Tensor,
    heads: Tensor,
    targets: Tensor,
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
    targets = (heads[2:] * gains[2:].unsqueeze(1)).to(h.dtype)
    *made, to_gain, to_bias = tail_parts(h, gains, heads[:2], targets, biases, reward, discount, cost, atoms)
    to_h, features, to_logits, figures = made
    return to_h, features, to_logits, figures, to_gain.sum(0), to_bias.sum(0)
