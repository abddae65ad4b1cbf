"""Batch norm, ReLU and residual sum as one step, forward and backward: the torch form.

Statistics are those of the batch, in float32 whatever the activations are. `kernels/batch_norm.py` computes the same in
two launches each way, or one where rows are few.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.learn.networks import UnitBatchNorm

EPS = UnitBatchNorm.eps


def wide(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def norm_relu(
    x: Tensor, gain: Tensor, offset: Tensor, residual: Tensor | None = None, first: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relu(gain (x - mean) scale + offset) + residual, and mean and scale.

    Args:
        x: (M, R, C), float32 or bfloat16.
        gain, offset: (M, C) float32.
        residual: (M, R, C) like x, added behind the ReLU.
        first: members whose result is that of `halves`, R being even; None: all rows.

    Returns:
        The result (M, R, C) or (M, R/2, C) like x; mean over all rows (M, C) and scale = 1 / sqrt(biased variance +
        1e-5) (M, C), in float32.
    """
    full = wide(x)
    mean = full.mean(1)
    centred = full - mean.unsqueeze(1)
    scale = torch.rsqrt(centred.square().mean(1) + EPS)
    y = torch.relu(centred * (scale * gain).unsqueeze(1) + offset.unsqueeze(1))
    if residual is not None:
        y = y + wide(residual)
    y = y.to(x.dtype)
    return y if first is None else halves(y, first), mean, scale


def halves(x: Tensor, first: int) -> Tensor:
    """Return (M, R/2, C) of x (M, R, C): of the `first` members the first half of the rows, of others the second."""
    size = x.shape[1] // 2
    if first >= x.shape[0]:
        return x[:, :size].contiguous()
    return torch.cat((x[:first, :size], x[first:, size:]))


def norm_relu_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, gain: Tensor, offset: Tensor, extra: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `norm_relu` for x (M, R, C), gain and offset (M, C); the residual's is the result's.

    Args:
        grad: (M, G, C) of the first G rows; that of the others is 0.
        x, gain, offset: what went in.
        mean, scale: what came out.
        extra: (M, E, C) with E <= G, what is added to the first E rows of `grad`, in float32.
    """
    rows = x.shape[1]
    centred = wide(x) - mean.unsqueeze(1)
    taken = centred * (scale * gain).unsqueeze(1) + offset.unsqueeze(1) > 0
    parts = [F.pad(wide(part), (0, 0, 0, rows - part.shape[1])) for part in (grad, extra) if part is not None]
    grad = sum(parts[1:], parts[0]) * taken
    xhat = centred * scale.unsqueeze(1)
    to_offset, to_gain = grad.sum(1), (grad * xhat).sum(1)
    common = (to_offset.unsqueeze(1) + xhat * to_gain.unsqueeze(1)) / rows
    return ((grad - common) * (scale * gain).unsqueeze(1)).to(x.dtype), to_gain, to_offset
