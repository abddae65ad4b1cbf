"""The reward normaliser, tick by tick and by hand."""

import math

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.normalizer import RewardNormalizer


def test_two_ticks_by_hand():
    norm = RewardNormalizer(Arena("cpu"), 2, gamma=0.5, g_max=5.0)
    norm.update(torch.tensor([1.0, 3.0]), torch.tensor([False, False]))
    # G = 1, 3. World 0 ends in the second tick: its history goes before the reward is added.
    assert norm.returns.tolist() == [1.0, 3.0]
    norm.update(torch.tensor([2.0, -9.0]), torch.tensor([True, False]))
    assert norm.returns.tolist() == [2.0, -7.5]
    assert norm.largest.item() == 7.5
    samples = torch.tensor([1.0, 3.0, 2.0, -7.5], dtype=torch.float64)
    assert norm.count.item() == pytest.approx(4.0001)
    assert norm.mean.item() == pytest.approx(samples.mean().item(), abs=1e-4)
    assert norm.var.item() == pytest.approx(samples.var(unbiased=False).item(), rel=1e-3)
    assert norm.scale.item() == 1.0, "not published yet"
    norm.publish()
    assert norm.scale.item() == pytest.approx(math.sqrt(norm.var.item() + 1e-8), rel=1e-6)


def test_the_largest_return_sets_the_scale_when_it_is_rare():
    norm = RewardNormalizer(Arena("cpu"), 100, gamma=0.9, g_max=5.0)
    reward = torch.zeros(100)
    reward[0] = -50.0
    norm.update(reward, torch.ones(100, dtype=torch.bool))
    norm.publish()
    assert norm.scale.item() == 10.0
    for _ in range(50):
        norm.update(torch.zeros(100), torch.ones(100, dtype=torch.bool))
    norm.publish()
    assert norm.scale.item() == 10.0, "the largest return never decays"


def test_a_reward_that_is_not_finite_counts_as_zero():
    norm = RewardNormalizer(Arena("cpu"), 2, gamma=0.5, g_max=5.0)
    norm.update(torch.tensor([math.nan, math.inf]), torch.tensor([False, False]))
    norm.publish()
    assert norm.returns.tolist() == [0.0, 0.0]
    assert math.isfinite(norm.scale.item())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("worlds", [256, 100])
def test_a_gpu_finds_the_same_statistics(worlds):
    norms = [RewardNormalizer(Arena(device), worlds, gamma=0.9, g_max=5.0) for device in ("cpu", "cuda")]
    torch.manual_seed(0)
    for _ in range(20):
        reward, done = torch.randn(worlds), torch.rand(worlds) < 0.1
        for norm in norms:
            norm.update(reward.to(norm.returns.device), done.to(norm.returns.device))
    for name in ("largest", "mean", "var", "count"):
        torch.testing.assert_close(getattr(norms[1], name).cpu(), getattr(norms[0], name), rtol=1e-6, atol=1e-7)
