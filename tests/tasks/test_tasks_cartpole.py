"""The cart-pole task: layout, rewards by hand, its start, and the figures of an evaluation."""

import math

import pytest
import torch

from tickgraph.env.env import Env
from tickgraph.run.evaluate import EvalTrace
from tickgraph.tasks.cartpole import cartpole_swingup, swingup_figures


def small_env(worlds=4):
    return Env(cartpole_swingup().env, worlds, execution="eager", seed=5)


def test_layout_and_start():
    env = small_env(64)
    assert env.observation_manager.dims == {"actor": 5, "critic": 5} and env.action_manager.total_dim == 1
    assert env.step_dt == pytest.approx(0.02) and env.max_episode_length == 500
    x, cos, sin, x_dot, theta_dot = env.obs["actor"].unbind(1)
    for value in (x, sin, x_dot, theta_dot):
        assert 0.05 < value.abs().max() <= 0.1 + 1e-6
    assert (cos < -0.99).all()  # the pole hangs


def test_rewards_by_hand():
    env = small_env(2)
    env.sim.view("qpos").copy_(torch.tensor([[0.5, 0.0], [0.0, math.pi / 2]]))
    env.sim.view("qvel").copy_(torch.tensor([[0.0, 3.0], [0.0, 0.0]]))
    env.action_manager.action.fill_(0.5)
    env.reward_manager.compute(env.reward)
    expected = torch.tensor([1.0 - 0.1 * 0.25 - 0.002 * 9.0 - 0.02 * 0.25, 0.5 - 0.02 * 0.25]) * 0.02
    torch.testing.assert_close(env.reward, expected)


def test_the_force_pushes_the_cart_and_its_rail_ends_no_episode():
    env = small_env()
    for _ in range(150):
        env.step(torch.ones(4, 1))
    assert (env.obs["actor"][:, 0] > 1.5).all()
    assert not env.terminated.any() and (env.episode_length == 150).all()


def test_a_classical_controller_swings_it_up_and_is_paid_for_it():
    # Pump energy with the cart's acceleration until the pole is near the top, then balance by state feedback.
    env = small_env(8)
    rewards, is_up = [], []
    for _ in range(200):
        x, cos, sin, x_dot, theta_dot = env.obs["actor"].unbind(1)
        energy = 0.5 * (0.1 / 3) * theta_dot**2 + 0.1 * 9.81 * 0.5 * (cos - 1.0)  # 0 at the top at rest
        swing = (40.0 * energy * theta_dot * cos).clamp(-8.0, 8.0) - 2.0 * x - x_dot
        balance = 40.0 * torch.atan2(sin, cos) + 8.0 * theta_dot + 2.0 * x + 3.0 * x_dot
        force = 1.1 * torch.where(cos > 0.85, balance, swing)
        env.step((force / 10.0).clamp(-1.0, 1.0)[:, None])
        rewards.append(env.reward.clone())
        is_up.append(env.obs["actor"][:, 1] > math.cos(0.2))
    assert torch.stack(is_up)[-50:].all()
    reward = torch.stack(rewards) / env.step_dt
    assert reward[-50:].mean() > 0.95 and reward[:10].mean() < 0.05


def test_nothing_blocks_compilation():
    assert small_env(2).blockers() == []


def test_figures():
    # Upright to the end; fallen in the last step; upright until the middle.
    angle = torch.zeros(100, 3, 1)
    angle[-1, 1], angle[50:, 2] = 3.0, 3.0
    signals = {"pole_angle": angle + 4 * math.pi, "cart_pos": torch.full((100, 3, 1), -0.25)}
    none = torch.zeros(3)
    counted = torch.ones(100, 3, dtype=torch.bool)
    trace = EvalTrace(0.02, counted, none.bool(), none.bool(), none, none.long(), signals)
    assert swingup_figures(trace) == pytest.approx(
        {"upright_at_end": 1 / 3, "upright_share": 249 / 300, "cart_offset_at_end": 0.25}
    )
    # A diverged world is reset, upright or not: what it does then is no longer its episode.
    counted[30:, 0] = False
    signals["cart_pos"][30:, 0] = 0.0
    assert swingup_figures(trace) == pytest.approx(
        {"upright_at_end": 0.0, "upright_share": 179 / 230, "cart_offset_at_end": 0.25}
    )
