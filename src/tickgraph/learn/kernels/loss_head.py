"""`learn/loss_head.py` in Triton: what lies between the products with the heads is one launch.

A program takes a tile of rows from the logits of all four members to figures and to the gradient of the online logits;
a warp has whole rows, so that sums over atoms need no barrier. What is summed over rows leaves as one sum a program,
which torch adds up in a fixed order.

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

ROWS, WARPS = 8, 4
"""Of a program: two rows a warp. On an H200 twice the rows or warps take longer."""


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
def _logits(logits, biases, place, k, inside, KF: tl.constexpr):
    """Return a member's logits of a tile (ROWS, WIDE), bias added, 0 behind the filled ones."""
    return tl.load(logits + place, inside, 0.0) + tl.load(biases + k, k < KF, 0.0)[None, :]


@triton.jit
def _head(
    logits, biases, reward, discount, log_prob, log_alpha, atoms, to_logits, figures, bias_sums, rows,
    K: tl.constexpr, KF: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Take ROWS rows of all members from logits to figures and to the gradient of the online logits."""
    tile = tl.program_id(0)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside, row = row < rows, row.to(tl.int64)
    k = tl.arange(0, WIDE)
    known, filled = (k < K)[None, :], (k < KF)[None, :] & inside[:, None]
    place, member = row[:, None] * KF + k[None, :], tl.cast(rows, tl.int64) * KF
    # All that is read is asked for before anything needs it.
    made0 = _logits(logits, biases, place, k, filled, KF)
    made1 = _logits(logits + member, biases + KF, place, k, filled, KF)
    made2 = _logits(logits + 2 * member, biases + 2 * KF, place, k, filled, KF)
    made3 = _logits(logits + 3 * member, biases + 3 * KF, place, k, filled, KF)
    z = tl.load(atoms + k, k < K, 0.0)[None, :]
    # Rows behind the last have a discount like any other, so that they make no tile's window longer.
    r, g = tl.load(reward + row, inside, 0.0), tl.load(discount + row, inside, 1.0)
    log_pi = tl.load(log_prob + row, inside, 0.0)
    low, high, log_temperature = tl.load(atoms), tl.load(atoms + K - 1), tl.load(log_alpha)
    c = tl.exp(log_temperature) * log_pi

    _, prob2 = _softmax(made2, known)
    _, prob3 = _softmax(made3, known)
    value2, value3 = tl.sum(prob2 * z, 1), tl.sum(prob3 * z, 1)
    lesser = tl.where((value2 <= value3)[:, None], prob2, prob3)
    value = tl.where(value2 <= value3, value2, value3)
    label = _projected(lesser, r, g, c, low, high, k, K)
    moved = r + g * (low - c)
    sound = (value == value) & (moved == moved)
    label = tl.where(known, tl.where(sound[:, None], label, float("nan")), 0.0)
    log0, mine0 = _softmax(made0, known)
    log1, mine1 = _softmax(made1, known)
    tl.store(figures + row, -0.5 * tl.sum(label * (log0 + log1), 1), inside)
    tl.store(figures + rows + row, 0.5 * tl.sum((mine0 + mine1) * z, 1), inside)
    tl.store(figures + 2 * rows + row, tl.sum(label * z, 1), inside)

    counts, share = known & inside[:, None], 0.5 / rows
    grad0, grad1 = tl.where(counts, (mine0 - label) * share, 0.0), tl.where(counts, (mine1 - label) * share, 0.0)
    tl.store(to_logits + place, grad0.to(to_logits.dtype.element_ty), filled)
    tl.store(to_logits + member + place, grad1.to(to_logits.dtype.element_ty), filled)
    tl.store(bias_sums + tile * 2 * KF + k, tl.sum(grad0, 0), k < KF)
    tl.store(bias_sums + (tile * 2 + 1) * KF + k, tl.sum(grad1, 0), k < KF)


def head_options(atoms: int, filled: int) -> dict[str, Any]:
    """Return how `_head` is built for K atoms, `filled` columns of logits."""
    sizes = {"K": atoms, "KF": filled, "WIDE": triton.next_power_of_2(filled)}
    return sizes | {"ROWS": ROWS, "num_warps": WARPS}


@torch.library.custom_op("tickgraph::categorical_head", mutates_args=())
def categorical_head(
    logits: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_prob: Tensor,
    log_alpha: Tensor,
    atoms: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `loss_head.filled_head`; the sums are those of P programs."""
    members, rows, filled = logits.shape
    if members != 4 or not rows:
        raise ValueError(f"logits {tuple(logits.shape)}; four members and at least one row are needed")
    made = _empty(logits, dtype)
    inputs = (logits, biases, reward, discount, log_prob, log_alpha, atoms)
    options = head_options(atoms.shape[0], filled)
    _head[(made[-1].shape[0],)](*(value.contiguous() for value in inputs), *made, rows, **options)
    return made


@categorical_head.register_fake
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(logits, rest[-1])


def _empty(logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `categorical_head` fills."""
    _, rows, filled = logits.shape
    return (
        logits.new_empty((2, rows, filled), dtype=dtype),
        logits.new_empty((3, rows)),
        logits.new_empty((-(-rows // ROWS), 2, filled)),
    )
