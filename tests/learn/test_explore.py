"""Exploration: how long noise is held and by whom, uniform warm-up, and the greedy policy."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.explore import Explorer, GreedyPolicy
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg


def learner(**options) -> FlashSac:
    cfg = FlashSacCfg(actor_width=8, actor_blocks=1, critic_width=8, critic_blocks=1, batch_size=4, **options)
    made = FlashSac(cfg, {"actor": 3, "critic": 3}, 2, 4, Arena("cpu"), seed=0, total_updates=10)
    made.policy_storage.statistics[0].fill_(0.5)
    return made


def run(explorer: Explorer, ticks: int, done=None) -> torch.Tensor:
    """Return the noise in each tick, (ticks, N, A)."""
    worlds = explorer.noise.shape[0]
    obs, action = {"actor": torch.ones(worlds, 3)}, torch.zeros(worlds, 2)
    noise = []
    for tick in range(ticks):
        flags = torch.zeros(worlds, dtype=torch.bool) if done is None else done[tick]
        with torch.no_grad():
            explorer.act(obs, action, flags)
        noise.append(explorer.noise.clone())
    return torch.stack(noise)


def test_repeat_lengths_follow_the_power_law():
    explorer = Explorer(learner(), 20_000, seed=1)
    exact = explorer.weights.double() / explorer.weights.sum()
    assert exact[0].item() == pytest.approx(0.631, abs=5e-4)
    assert (exact * torch.arange(1, 17)).sum().item() == pytest.approx(2.134, abs=5e-4)
    assert exact[3].item() == pytest.approx(exact[0].item() / 16, rel=1e-5)
    drawn = explorer.draw.choice("repeat", explorer.weights) + 1
    assert (drawn == 1).double().mean().item() == pytest.approx(0.631, abs=0.012)
    assert drawn.double().mean().item() == pytest.approx(2.134, abs=0.07)
    assert drawn.min() == 1 and drawn.max() <= 16


def test_shared_noise_changes_everywhere_at_once_whatever_ends():
    done = torch.ones(200, 3, dtype=torch.bool)
    noise = run(Explorer(learner(noise_scope="shared"), 3, seed=1), 200, done)
    changed = (noise[1:] != noise[:-1]).any(-1)
    assert torch.equal(changed.any(1), changed.all(1)), "one count for all worlds"
    assert 0.35 < changed[:, 0].float().mean() < 0.6, "held 2.134 steps on average"
    assert not torch.equal(noise[0, 0], noise[0, 1]), "yet each world has its own noise"


def test_noise_per_world_has_a_count_per_world_and_ends_with_the_episode():
    done = torch.zeros(200, 3, dtype=torch.bool)
    done[:, 2] = True
    noise = run(Explorer(learner(noise_scope="per_env"), 3, seed=1), 200, done)
    changed = (noise[1:] != noise[:-1]).any(-1)
    assert not torch.equal(changed[:, 0], changed[:, 1])
    assert changed[:, 2].all()
    assert 0.35 < changed[:, 0].float().mean() < 0.6


def test_noise_is_held_as_long_as_was_drawn():
    explorer = Explorer(learner(), 2, seed=3)
    run(explorer, 1)
    while True:
        left = explorer.left[0].item()
        if left > 0:
            break
        run(explorer, 1)
    held = explorer.noise.clone()
    assert (run(explorer, left) == held).all()
    assert not (run(explorer, 1)[0] == held).any()


def test_action_is_the_squashed_gaussian_of_the_snapshot():
    made = learner()
    explorer = Explorer(made, 2, seed=0)
    explorer.set_warmup(False)
    obs, action, no = {"actor": torch.randn(2, 3)}, torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)
    made.actor_storage.parameters.normal_()  # the trained actor moves on; the snapshot does not
    with torch.no_grad():
        explorer.act(obs, action, no)
        mean, log_std = made.policy(obs["actor"])
        torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * explorer.noise))
        greedy = torch.zeros(2, 2)
        noise = explorer.noise.clone()
        GreedyPolicy(made).act(obs, greedy, no)
        torch.testing.assert_close(greedy, torch.tanh(mean))
        assert torch.equal(noise, explorer.noise), "evaluation leaves the explorer alone"
        made.snapshot_policy()
        made.publish_policy()
        GreedyPolicy(made).act(obs, greedy, no)
        torch.testing.assert_close(greedy, torch.tanh(made.actor(obs["actor"])[0]))


def test_warm_up_is_uniform():
    explorer = Explorer(learner(), 5000, seed=0)
    obs, action = {"actor": torch.ones(5000, 3)}, torch.zeros(5000, 2)
    with torch.no_grad():
        explorer.act(obs, action, torch.zeros(5000, dtype=torch.bool))
    assert action.min() >= -1 and action.max() <= 1
    assert action.mean().abs() < 0.03
    assert action.var().item() == pytest.approx(1 / 3, abs=0.02)
