"""Sums and least values over all worlds, or rows of a batch. On a GPU they are taken of rows first, and of these then.

A compiler that may not choose the order of a sum by timing it, so that a run repeats, gives a whole sum to one of a
GPU's many processors, and with it whatever it finds to fuse. Rows keep all of them busy.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ROW = 64
"""Worlds in a row."""


def world_sum(x: Tensor) -> Tensor:
    """Return the sum over the first axis of x (N, ...), as `x.sum(0)`; of bool and integers int64."""
    return world_sum_by_rows(x) if x.is_cuda else x.sum(0)


def world_least(x: Tensor) -> Tensor:
    """Return the least of the first axis of x (N, ...), as `x.amin(0)`."""
    return world_least_by_rows(x) if x.is_cuda else x.amin(0)


def running_count(mask: Tensor) -> Tensor:
    """Return how many are set in mask (N,) bool up to each place and with it, (N,) int64."""
    return running_count_by_rows(mask) if mask.is_cuda else torch.cumsum(mask.to(torch.int64), dim=0)


def world_sum_by_rows(x: Tensor) -> Tensor:
    """Compute `world_sum` in two steps."""
    return _rows(x).sum(1).sum(0)


def world_least_by_rows(x: Tensor) -> Tensor:
    """Compute `world_least` in two steps."""
    missing = -x.shape[0] % ROW
    if missing:
        x = torch.cat((x, x[:1].expand(missing, *x.shape[1:])))
    return _rows(x).amin(1).amin(0)


def running_count_by_rows(mask: Tensor) -> Tensor:
    """Compute `running_count` within rows first."""
    within = _rows(mask.to(torch.int64)).cumsum(1)
    ends = within[:, -1]
    before = ends.cumsum(0) - ends
    return (within + before[:, None]).view(-1)[: mask.shape[0]]


def _rows(x: Tensor) -> Tensor:
    """Return x (N, ...) as rows (R, ROW, ...), filled up with zeros."""
    missing = -x.shape[0] % ROW
    if missing:
        x = F.pad(x, (*[0, 0] * (x.dim() - 1), 0, missing))
    return x.reshape(-1, ROW, *x.shape[1:])
