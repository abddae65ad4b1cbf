"""`learn/loss_head.py` in Triton: one program a row, everything in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _softmax(logits, place, inside):
    """Return logits less their maximum and log-sum, 0 outside, and their probabilities, 0 outside."""
    z = tl.load(logits + place, inside, 0.0).to(tl.float32)
    z = z - tl.max(tl.where(inside, z, float("-inf")), 0)
    e = tl.where(inside, tl.exp(z), 0.0)
    total = tl.sum(e, 0)
    return tl.where(inside, z - tl.log(total), 0.0), e / total


@triton.jit
def _head(
    online, target, reward, discount, cost, atoms, grad, figures, rows, online_stride, target_stride, grad_stride,
    K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write one row of the gradient, both members, and of the three figures."""
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < K
    z = tl.load(atoms + k, inside, 0.0)
    _, first = _softmax(target, row.to(tl.int64) * target_stride + k, inside)
    _, second = _softmax(target, (row.to(tl.int64) + rows) * target_stride + k, inside)
    lesser = tl.where(tl.sum(first * z, 0) <= tl.sum(second * z, 0), first, second)
    low, high = tl.load(atoms), tl.load(atoms + K - 1)
    r, d, c = tl.load(reward + row), tl.load(discount + row), tl.load(cost + row)
    moved = r + d * (z - c)
    # Compared, not min and max: a NaN must stay one, or the guard would not see it.
    moved = tl.where(moved < low, low, tl.where(moved > high, high, moved))
    spot = (moved - low) * ((K - 1) / (high - low))
    # What each atom (rows of the square) receives from every place (columns).
    away = tl.abs(spot[None, :] - k.to(tl.float32)[:, None])
    share = tl.where(away > 1.0, 0.0, 1.0 - away)
    label = tl.where(inside, tl.sum(share * lesser[None, :], 1), 0.0)
    log0, prob0 = _softmax(online, row.to(tl.int64) * online_stride + k, inside)
    log1, prob1 = _softmax(online, (row.to(tl.int64) + rows) * online_stride + k, inside)
    tl.store(figures + row, -0.5 * (tl.sum(label * log0, 0) + tl.sum(label * log1, 0)))
    tl.store(figures + rows + row, 0.5 * (tl.sum(prob0 * z, 0) + tl.sum(prob1 * z, 0)))
    tl.store(figures + 2 * rows + row, tl.sum(label * z, 0))
    size = 2.0 * rows
    # Up to the stride: the columns behind the atoms are zeros that fill up the next product.
    whole = k < grad_stride
    place = grad + row.to(tl.int64) * grad_stride + k
    tl.store(place, tl.where(inside, (prob0 - label) / size, 0.0).to(grad.dtype.element_ty), whole)
    tl.store(
        place + rows * grad_stride,
        tl.where(inside, (prob1 - label) / size, 0.0).to(grad.dtype.element_ty),
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
    _head[(rows,)](
        *(online, target, reward.contiguous(), discount.contiguous(), cost.contiguous(), atoms, grad, figures, rows),
        *(online.shape[-1], target.shape[-1], width),
        K=atoms.shape[0],
        WIDTH=triton.next_power_of_2(max(atoms.shape[0], width)),
        num_warps=8,
    )
    return grad, figures


@categorical_head.register_fake
def _(
    online: Tensor, target: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return online.new_empty(online.shape, dtype=dtype), online.new_empty((3, online.shape[1]), dtype=torch.float32)
