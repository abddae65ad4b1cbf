"""Masked writes change the selected rows and no other byte."""

import pytest
import torch

from tickgraph.core.masked import assign_rows, fill_rows, or_rows

MASK = torch.tensor([True, False, True, False])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_rows_are_written_in_place(shape):
    dst = torch.full(shape, float("nan"))
    pointer = dst.data_ptr()
    fill_rows(dst, MASK, 2.0)
    assert dst[MASK].eq(2.0).all() and dst[~MASK].isnan().all()
    src = torch.arange(dst.numel(), dtype=torch.float64).reshape(shape)
    assign_rows(dst, MASK, src)
    assert torch.equal(dst[MASK], src[MASK].float()) and dst[~MASK].isnan().all()
    assert dst.data_ptr() == pointer and dst.dtype == torch.float32


def test_a_row_broadcasts():
    dst = torch.zeros(4, 3)
    fill_rows(dst, MASK, torch.tensor([1.0, 2.0, 3.0]))
    assert dst.tolist() == [[1, 2, 3], [0, 0, 0], [1, 2, 3], [0, 0, 0]]


def test_or_rows():
    dst = torch.tensor([False, True, False, False])
    or_rows(dst, MASK)
    assert dst.tolist() == [True, True, True, False]
    wide = torch.zeros(4, 2, dtype=torch.bool)
    or_rows(wide, MASK)
    assert wide.tolist() == [[True] * 2, [False] * 2] * 2
