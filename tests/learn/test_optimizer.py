"""The optimiser step against torch's own Adam, the schedule by hand, and what a bad gradient may touch."""

import math

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.networks import Critic
from tickgraph.learn.optimizer import Adam, NetworkStep, factor_table, learning_rate
from tickgraph.learn.storage import Storage, declare

K = 10_000


def rate(count: int, warmup: int = 0, horizon: int = K) -> float:
    return learning_rate(torch.tensor(count), torch.tensor(horizon), 3e-4, 1.5e-4, warmup).item()


def test_learning_rate_follows_the_cosine():
    assert rate(0) == pytest.approx(3.0e-4, rel=1e-6)
    assert rate(K // 4) == pytest.approx(2.7803e-4, abs=5e-9)
    assert rate(K // 2) == pytest.approx(2.25e-4, rel=1e-6)
    assert rate(K) == pytest.approx(1.5e-4, rel=1e-6)
    assert rate(3 * K) == pytest.approx(1.5e-4, rel=1e-6)
    for k in range(0, K, 777):
        assert rate(k) == pytest.approx(1.5e-4 + 0.75e-4 * (1 + math.cos(math.pi * k / K)), rel=1e-6)


def test_learning_rate_warms_up_linearly():
    assert rate(0, 100) == pytest.approx(1e-6, rel=1e-5)
    assert rate(50, 100) == pytest.approx((1e-6 + 3e-4) / 2, rel=1e-5)
    assert rate(100, 100) == pytest.approx(3e-4, rel=1e-6)
    assert rate(100 + (K - 100) // 2, 100) == pytest.approx(2.25e-4, rel=1e-6)


def test_adam_is_torchs_adam():
    torch.manual_seed(0)
    start, yes = torch.randn(50), torch.tensor(True)
    theirs = start.clone().requires_grad_()
    reference = torch.optim.Adam([theirs])
    mine = start.clone()
    adam = Adam(mine, Arena("cpu"), "adam")
    for k in range(20):
        lr = 1e-3 / (k + 1)
        grad = torch.randn(50)
        reference.param_groups[0]["lr"] = lr
        theirs.grad = grad
        reference.step()
        mine.copy_(adam.proposal(grad, adam.factors(torch.tensor(lr)), yes))
    torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-7)
    assert adam.steps.item() == 20


def test_adamw_is_torchs_adamw_with_its_clipped_gradient():
    torch.manual_seed(0)
    network = Critic(5, 2, 4, 1, 7, torch.Generator().manual_seed(0))
    storage = declare(network, Arena("cpu"), "critic", "a test")
    bare = Storage(storage.parameters, storage.statistics, storage.spans, ())  # nothing is projected
    step = NetworkStep(bare, Arena("cpu"), "adam", 0.01, betas=(0.9, 0.95), decay=0.1, max_norm=2.0)
    theirs = bare.parameters.clone().requires_grad_()
    reference = torch.optim.AdamW([theirs], betas=(0.9, 0.95), weight_decay=0.1)
    for k in range(12):
        lr, grad = 1e-2 / (k + 1), torch.randn(theirs.numel()) * 0.3 ** (k % 3)
        reference.param_groups[0]["lr"] = lr
        theirs.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 2.0)
        reference.step()
        assert step.apply(torch.tensor(1.0), grad, None, step.adam.factors(torch.tensor(lr)))
    torch.testing.assert_close(bare.parameters, theirs.detach(), rtol=1e-5, atol=1e-7)


def step_of_a_critic() -> tuple[NetworkStep, torch.Tensor]:
    arena = Arena("cpu")
    storage = declare(Critic(5, 2, 4, 1, 7, torch.Generator().manual_seed(0)), arena, "critic", "a test")
    storage.parameters.copy_(storage.projection(storage.parameters))
    target = storage.parameters.clone()
    return NetworkStep(storage, arena, "adam", 0.01, target, 0.25), target


def test_step_projects_then_averages():
    step, target = step_of_a_critic()
    before = target.clone()
    size, statistics = target.numel(), torch.full_like(step.storage.statistics, 5.0)
    grad = torch.linspace(-1.0, 1.0, size)
    ok = step.apply(torch.tensor(1.0), grad, statistics, step.adam.factors(torch.tensor(0.1)))
    assert ok
    # Adam's first step is the sign of the gradient times the rate.
    expected = step.storage.projection(before - 0.1 * torch.sign(grad))
    torch.testing.assert_close(step.storage.parameters, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target, before + 0.25 * (step.storage.parameters - before))
    torch.testing.assert_close(step.storage.statistics[0], torch.full_like(statistics[0], 0.05))
    torch.testing.assert_close(step.storage.statistics[1], torch.full_like(statistics[1], 1.04))


@pytest.mark.parametrize("bad", ["loss", "gradient", "overflow", "mean", "variance"])
def test_a_bad_step_touches_nothing(bad):
    step, target = step_of_a_critic()
    size, statistics = target.numel(), torch.full_like(step.storage.statistics, 2.0)
    statistics[0, 3] = math.nan if bad == "mean" else 2.0
    statistics[1, 3] = math.inf if bad == "variance" else 2.0
    factors = step.adam.factors(torch.tensor(0.1))
    loss, grad = torch.tensor(math.nan if bad == "loss" else 1.0), torch.ones(size)
    if bad == "gradient":
        grad[3] = math.inf
    if bad == "overflow":
        grad[3] = 1e30
    storage, adam = step.storage, step.adam
    state = (storage.parameters, storage.statistics, target, adam.moment1, adam.moment2, adam.steps)
    before = [value.clone() for value in state]
    assert not step.apply(loss, grad, statistics, factors)
    assert all(torch.equal(old, new) for old, new in zip(before, state, strict=True))


@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_factors_in_one_table_are_those_of_one_number_at_a_time(decay):
    """To the bit: Adam's formula of scalars, at steps of which some optimisers have skipped more than others."""
    arena = Arena("cpu")
    adams = [Adam(torch.zeros(4), arena, name, (0.9, 0.95), decay) for name in ("critic", "actor")]
    adams.append(Adam(torch.zeros(()), arena, "alpha", (0.9, 0.95)))
    for trial in range(40):
        counts = (torch.tensor(trial * 37), torch.tensor(trial * 11), torch.tensor(trial * 7))
        for adam, steps in zip(adams, (trial, 3 * trial, 1000 * trial), strict=True):
            adam.steps.fill_(steps)
        rates = learning_rate(torch.stack(counts), torch.tensor(1000), 3e-4, 1.5e-4, 20)
        table = factor_table(adams, rates)
        assert table.shape == (3, 4)
        for row, count, adam in zip(table, counts, adams, strict=True):
            rate = learning_rate(count, torch.tensor(1000), 3e-4, 1.5e-4, 20)
            step = (adam.steps + 1).to(torch.float32)
            size = -rate / torch.expm1(step * math.log(0.9))
            spread = torch.rsqrt(-torch.expm1(step * math.log(0.95)))
            wanted = torch.stack((size, spread, 1.0 - rate * decay, rate))
            assert torch.equal(row, wanted)
            assert torch.equal(adam.factors(rate), row[: 3 if adam.decay else 2])
