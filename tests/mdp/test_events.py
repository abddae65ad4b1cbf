"""Events: ranges, frames and masks of what they write."""

import math

import pytest
import torch
from mdp_toys import JOINT_POS, robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rotation import quat_from_yaw, yaw_of
from tickgraph.env.config import EventTermCfg, SceneEntityCfg

HALF = (-0.5, 0.5)


def reset_event(func, **params):
    return {"event": EventTermCfg(func, "reset", params)}


def test_root_state_is_the_initial_state_moved_and_turned():
    velocity = {axis: HALF for axis in ("x", "y", "z", "roll", "pitch", "yaw")}
    pose = {"x": HALF, "y": HALF, "yaw": (-math.pi, math.pi)}
    env = robot_env(512, events=reset_event(mdp.reset_root_state_uniform, pose_range=pose, velocity_range=velocity))
    qpos, qvel = env.sim.view("qpos"), env.sim.view("qvel")
    assert (qpos[:, :2].abs() <= 0.5).all() and (qpos[:, :2].std(dim=0) - 1 / math.sqrt(12) < 0.03).all()
    assert (qpos[:, 2] == 1.0).all()
    yaw = yaw_of(qpos[:, 3:7])
    torch.testing.assert_close(qpos[:, 3:7] * qpos[:, 3:4].sign(), quat_from_yaw(yaw), atol=1e-6, rtol=0)
    assert yaw.min() < -3.0 and yaw.max() > 3.0
    assert (qvel[:, :3].abs() <= 0.5).all() and qvel[:, 3:6].norm(dim=1).max() <= math.sqrt(0.75) + 1e-5
    torch.testing.assert_close(qpos[:, 7:], torch.tensor([list(JOINT_POS.values())]).expand(512, 2))


def test_a_fixed_range_is_exact_and_the_velocity_is_the_worlds():
    pose = {"x": (0.25, 0.25), "yaw": (math.pi / 2, math.pi / 2)}
    velocity = {"x": (1.0, 1.0), "roll": (2.0, 2.0)}
    env = robot_env(2, events=reset_event(mdp.reset_root_state_uniform, pose_range=pose, velocity_range=velocity))
    torch.testing.assert_close(env.sim.view("qpos")[0, :3], torch.tensor([0.25, 0.0, 1.0]))
    # A roll about the world's x axis is, for a body turned by 90 degrees, one about its own -y axis.
    expected = torch.tensor([1.0, 0.0, 0.0, 0.0, -2.0, 0.0])
    torch.testing.assert_close(env.sim.view("qvel")[0, :6], expected, atol=1e-6, rtol=0)


def test_joints_by_offset_stay_in_range_and_others_stay_put():
    only_a = SceneEntityCfg("robot", joint_names="a")
    env = robot_env(
        256,
        events=reset_event(
            mdp.reset_joints_by_offset, position_range=(-2.0, 2.0), velocity_range=(1.0, 1.0), asset_cfg=only_a
        ),
    )
    qpos, qvel = env.sim.view("qpos")[:, 7:], env.sim.view("qvel")[:, 6:]
    # The range of a is -1 to 1, of which 90% are used.
    assert qpos[:, 0].min() == pytest.approx(-0.9) and qpos[:, 0].max() == pytest.approx(0.9)
    torch.testing.assert_close(qpos[:, 1], torch.full((256,), -0.2))
    assert (qvel[:, 0] == 1.0).all() and (qvel[:, 1] == 0.0).all()


def test_joints_by_scale():
    env = robot_env(4, events=reset_event(mdp.reset_joints_by_scale, position_range=(3.0, 3.0)))
    torch.testing.assert_close(env.sim.view("qpos")[0, 7:], torch.tensor([0.3, -0.6]))


def test_a_push_adds_to_the_velocity_after_its_interval():
    push = EventTermCfg(
        mdp.push_by_setting_velocity, "interval", {"velocity_range": {"y": (0.5, 0.5)}}, interval_range_s=(0.04, 0.04)
    )
    env = robot_env(4, events={"push": push})
    action = torch.zeros(4, 2)
    env.step(action)
    before = env.sim.view("qvel")[:, 1].clone()
    env.step(action)
    torch.testing.assert_close(env.sim.view("qvel")[:, 1], before + 0.5, atol=1e-3, rtol=0)


def test_an_unknown_axis_is_named():
    with pytest.raises(TickgraphError, match="no axis 'yav'; did you mean 'yaw'"):
        robot_env(events=reset_event(mdp.reset_root_state_uniform, pose_range={"yav": HALF}))
