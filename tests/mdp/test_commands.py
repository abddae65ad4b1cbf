"""Commands: ranges, standing, small speeds, headings, resampling by mask, and the gait clock."""

import math

import pytest
import torch
from mdp_toys import STEPS, robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rotation import yaw_of
from tickgraph.env.config import EventTermCfg, ObservationGroupCfg, ObservationTermCfg
from tickgraph.mdp.gait import wrap_to_pi

RANGES = mdp.VelocityRanges(lin_vel_x=(-0.6, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_z=(-0.8, 0.8))


def twist_env(num_envs=512, **cfg):
    return robot_env(
        num_envs,
        observations={
            "actor": ObservationGroupCfg(
                {
                    "twist": ObservationTermCfg(mdp.generated_commands, {"command_name": "twist"}),
                    "quat": ObservationTermCfg(mdp.root_quat_w),
                }
            )
        },
        commands={"twist": mdp.UniformVelocityCommandCfg(ranges=RANGES, **cfg)},
        events={
            "root": EventTermCfg(mdp.reset_root_state_uniform, params={"pose_range": {"yaw": (-math.pi, math.pi)}})
        },
    )


def test_velocity_is_uniform_in_its_ranges():
    value = twist_env(1024).command_manager.get_command("twist")
    low, high = torch.tensor([-0.6, -0.4, -0.8]), torch.tensor([1.0, 0.4, 0.8])
    assert (value >= low).all() and (value <= high).all()
    # Of 1024 uniform draws the mean is within 5 standard errors of the middle.
    assert ((value.mean(dim=0) - (low + high) / 2).abs() < 5 * (high - low) / math.sqrt(12 * 1024)).all()


def test_small_planar_speeds_become_zero_and_turning_stays():
    value = twist_env(min_planar_speed=0.2).command_manager.get_command("twist")
    speed = torch.linalg.vector_norm(value[:, :2], dim=1)
    assert ((speed == 0.0) | (speed > 0.2)).all()
    # The disc of radius 0.2 takes pi 0.04 of the area 1.6 * 0.8: 9.8%.
    assert 0.05 < (speed == 0.0).float().mean() < 0.15
    assert (value[:, 2] != 0.0).all()


def test_standing_share():
    value = twist_env(rel_standing_envs=0.25).command_manager.get_command("twist")
    assert 0.17 < (value == 0.0).all(dim=1).float().mean() < 0.33


def test_some_go_straight_ahead():
    both = twist_env(rel_forward_envs=0.25, rel_standing_envs=0.2).command_manager.get_command("twist")
    ahead = (both[:, 0] > 0.0) & (both[:, 1:] == 0.0).all(dim=1)
    # A fourth of the four fifths that do not stand; 512 draws are within 0.09 of that.
    assert 0.11 < ahead.float().mean() < 0.29
    # Of -0.6 to 1 m/s: what is slower than 0.3 goes at 0.3, backwards becomes forwards.
    assert both[ahead, 0].min() == pytest.approx(0.3) and both[ahead, 0].max() <= 1.0
    # The others are what they would have been.
    plain = twist_env(rel_standing_envs=0.2).command_manager.get_command("twist")
    assert torch.equal(both[~ahead], plain[~ahead])


def test_heading_is_steered_to_from_the_first_observation_on():
    env = twist_env(rel_heading_envs=1.0, heading_control_stiffness=0.5)
    term = env.command_manager.term("twist")

    def expected():
        quat = env.obs["actor"][:, 3:]
        return (0.5 * wrap_to_pi(term._heading - yaw_of(quat))).clamp(-0.8, 0.8)

    torch.testing.assert_close(env.obs["actor"][:, 2], expected(), atol=1e-5, rtol=0)
    for _ in range(STEPS):  # through a reset
        env.step(torch.zeros(512, 2))
    assert env.done.all()
    torch.testing.assert_close(env.obs["actor"][:, 2], expected(), atol=1e-5, rtol=0)


def test_resampling_takes_its_time_and_only_the_worlds_that_are_due():
    env = twist_env(num_envs=8, resampling_time_range=(0.04, 0.04))
    term = env.command_manager.term("twist")
    values = [term.command.clone()]
    for _ in range(2):
        env.step(torch.zeros(8, 2))
        values.append(term.command.clone())
    assert torch.equal(values[0], values[1])
    assert (values[2] != values[1]).any(dim=1).all()
    mask = torch.tensor([True, False] * 4)
    env.rng.advance()
    term.reset(mask)
    assert torch.equal((term.command != values[2]).any(dim=1), mask)


def test_bad_ranges_are_refused():
    with pytest.raises(TickgraphError, match="rel_standing_envs is 2.0"):
        twist_env(4, rel_standing_envs=2.0)


def test_gait_clock_keeps_its_offsets_and_frequency():
    env = robot_env(64, commands={"gait": mdp.GaitPhaseCfg(frequency=1.5, offsets=(0.0, math.pi))})
    phase = env.command_manager.get_command("gait")
    first = phase.clone()
    assert (phase >= -math.pi).all() and (phase <= math.pi).all()
    assert first[:, 0].unique().numel() == 64
    env.step(torch.zeros(64, 2))
    step = 2 * math.pi * 1.5 * 0.02
    torch.testing.assert_close(wrap_to_pi(phase - first - step), torch.zeros(64, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        wrap_to_pi(phase[:, 1] - phase[:, 0]).abs(), torch.full((64,), math.pi), atol=1e-5, rtol=0
    )
