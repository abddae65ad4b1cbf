"""Sums over worlds, in the steps that a GPU takes, against the plain ones."""

import pytest
import torch

from tickgraph.core.sums import (
    ROW,
    running_count,
    running_count_by_rows,
    world_least,
    world_least_by_rows,
    world_sum,
    world_sum_by_rows,
)


@pytest.mark.parametrize("worlds", [1, ROW - 1, ROW, ROW + 1, 5 * ROW, 1000])
def test_rows_first_gives_the_same_sums(worlds):
    torch.manual_seed(worlds)
    mask = torch.rand(worlds) < 0.3
    assert torch.equal(running_count_by_rows(mask), torch.cumsum(mask.to(torch.int64), 0))
    assert torch.equal(running_count(mask), running_count_by_rows(mask))
    for x in (mask, torch.randint(-9, 9, (worlds,)), torch.randint(-9, 9, (worlds, 3)), mask[:, None] & mask[:, None]):
        found = world_sum_by_rows(x)
        assert torch.equal(found, x.sum(0)) and found.dtype == x.sum(0).dtype
        assert torch.equal(world_sum(x), found)
        assert torch.equal(world_least_by_rows(x), x.amin(0)) and torch.equal(world_least(x), x.amin(0))
    wide = torch.randn(worlds, 2, dtype=torch.float64)
    torch.testing.assert_close(world_sum_by_rows(wide), wide.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_rows_first():
    mask = torch.arange(1000, device="cuda") % 3 == 0
    assert torch.equal(running_count(mask).cpu(), torch.cumsum(mask.cpu().to(torch.int64), 0))
    assert world_sum(mask).item() == 334
    assert world_least(torch.arange(1000, 0, -1, device="cuda")).item() == 1
