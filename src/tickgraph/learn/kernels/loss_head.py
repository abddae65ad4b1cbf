"""`learn/loss_head.py` in Triton: one program a row, everything in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY_ROWS = 1024
"""From here on a row has one warp, which needs no barrier, and below four; other limits have not been timed."""


@triton.jit
def _softmax(logits, place, inside):
    """Return logits less their maximum and log-sum, 0 outside, their probabilities, 0 outside, maximum and sum."""
    z = tl.load(logits + place, inside, 0.0).to(tl.float32)
    top = tl.max(tl.where(inside, z, float("-inf")), 0)
    z = z - top
    e = tl.where(inside, tl.exp(z), 0.0)
    total = tl.sum(e, 0)
    return tl.where(inside, z - tl.log(total), 0.0), e / total, top, total


@triton.jit
def _head(
    online, target, reward, discount, cost, atoms, grad, figures, rows, online_stride, target_stride, grad_stride,
    K: tl.constexpr, WIDTH: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Write one row of the gradient, both members, and of the three figures."""
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < K
    z = tl.load(atoms + k, inside, 0.0)
    first, second = row.to(tl.int64) * target_stride, (row.to(tl.int64) + rows) * target_stride
    _, prob0, top0, total0 = _softmax(target, first + k, inside)
    _, prob1, top1, total1 = _softmax(target, second + k, inside)
    zeroth = tl.sum(prob0 * z, 0) <= tl.sum(prob1 * z, 0)
    lesser = target + tl.where(zeroth, first, second)
    top, total = tl.where(zeroth, top0, top1), tl.where(zeroth, total0, total1)
    low, high = tl.load(atoms), tl.load(atoms + K - 1)
    r, d, c = tl.load(reward + row), tl.load(discount + row), tl.load(cost + row)
    to_spot = (K - 1) / (high - low)
    atom = k.to(tl.float32)[:, None]
    # What each atom (rows) receives from every place (columns), some columns at a time: the whole square of a row takes
    # more registers than there are.
    received = tl.zeros((WIDTH, PIECE), tl.float32)
    for start in range(0, WIDTH, PIECE):
        j = start + tl.arange(0, PIECE)
        known = j < K
        mass = tl.where(known, tl.exp(tl.load(lesser + j, known, 0.0).to(tl.float32) - top) / total, 0.0)
        moved = r + d * (tl.load(atoms + j, known, 0.0) - c)
        # Compared, not min and max: a NaN must stay one, or the guard would not see it.
        moved = tl.where(moved < low, low, tl.where(moved > high, high, moved))
        away = tl.abs(((moved - low) * to_spot)[None, :] - atom)
        received += tl.where(away > 1.0, 0.0, 1.0 - away) * mass[None, :]
    label = tl.where(inside, tl.sum(received, 1), 0.0)
    log0, mine0, _, _ = _softmax(online, row.to(tl.int64) * online_stride + k, inside)
    log1, mine1, _, _ = _softmax(online, (row.to(tl.int64) + rows) * online_stride + k, inside)
    tl.store(figures + row, -0.5 * (tl.sum(label * log0, 0) + tl.sum(label * log1, 0)))
    tl.store(figures + rows + row, 0.5 * (tl.sum(mine0 * z, 0) + tl.sum(mine1 * z, 0)))
    tl.store(figures + 2 * rows + row, tl.sum(label * z, 0))
    size = 2.0 * rows
    # Up to the stride: the columns behind the atoms are zeros that fill up the next product.
    whole = k < grad_stride
    place = grad + row.to(tl.int64) * grad_stride + k
    tl.store(place, tl.where(inside, (mine0 - label) / size, 0.0).to(grad.dtype.element_ty), whole)
    tl.store(
        place + rows * grad_stride,
        tl.where(inside, (mine1 - label) / size, 0.0).to(grad.dtype.element_ty),
        whole,
    )


@torch.library.custom_op("tickgraph::categorical_head", mutates_args=())
def categorical_head(
    online: Tensor, target: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute `loss_head.categorical_head` of logits (2, B, W) whose first K columns count.

    Returns:
        The gradient (2, B, W) in `dtype`, zeros behind the atoms, and the figures (3, B).
    """
    members, rows, width = online.shape
    if members != 2 or not rows:
        raise ValueError(f"logits {tuple(online.shape)}; two members and at least one row are needed")
    online, target = online.contiguous(), target.contiguous()
    grad = online.new_empty((members, rows, width), dtype=dtype)
    figures = online.new_empty((3, rows), dtype=torch.float32)
    warps = 1 if rows >= MANY_ROWS else 4
    _head[(rows,)](
        *(online, target, reward.contiguous(), discount.contiguous(), cost.contiguous(), atoms, grad, figures, rows),
        *(online.shape[-1], target.shape[-1], width),
        K=atoms.shape[0],
        WIDTH=triton.next_power_of_2(max(atoms.shape[0], width)),
        PIECE=8 * warps,
        num_warps=warps,
    )
    return grad, figures


@categorical_head.register_fake
def _(
    online: Tensor, target: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return online.new_empty(online.shape, dtype=dtype), online.new_empty((3, online.shape[1]), dtype=torch.float32)
