"""Masked writes: the rows that a bool mask selects are written in place, all others keep every byte."""

import torch
from torch import Tensor


def _rows(mask: Tensor, dst: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (dst.dim() - mask.dim()))


def fill_rows(dst: Tensor, mask: Tensor, value: float | int | bool | Tensor) -> None:
    """Write one value into the selected rows: dst[mask] = value, without an index list.

    Args:
        dst: (N, ...) written in place.
        mask: (N,) bool.
        value: a number, or a tensor that broadcasts to dst (such as one row of it).
    """
    if isinstance(value, Tensor):
        assign_rows(dst, mask, value)
    else:
        dst.masked_fill_(_rows(mask, dst), value)


def assign_rows(dst: Tensor, mask: Tensor, src: Tensor) -> None:
    """Copy the selected rows of src: dst[mask] = src[mask], without an index list.

    Args:
        dst: (N, ...) written in place.
        mask: (N,) bool.
        src: broadcasts to dst; converted to its dtype.
    """
    dst.copy_(torch.where(_rows(mask, dst), src.to(dst.dtype), dst))


def or_rows(dst: Tensor, mask: Tensor) -> None:
    """Set the selected rows of a bool tensor: dst[mask] = True.

    Args:
        dst: (N, ...) bool, written in place.
        mask: (N,) bool.
    """
    dst.logical_or_(_rows(mask, dst))
