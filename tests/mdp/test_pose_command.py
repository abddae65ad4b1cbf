"""A commanded pose and the distance from it, by hand and on a robot that runs."""

import math

import pytest
import torch
from mdp_toys import fake_env, robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rotation import quat_from_euler_xyz, quat_mul
from tickgraph.env.config import EventTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.scene import SceneEntity

QUARTER = (math.cos(math.pi / 4), 0.0, 0.0, math.sin(math.pi / 4))  # a quarter turn about z
BODY = SceneEntity("robot", body_ids=torch.tensor([1]))
SITE = SceneEntity("robot", site_ids=torch.tensor([0]))


def pose_env():
    """The root is at (1, 0, 0.5) and looks along y; the command is 0.2 ahead and 0.1 up, turned by a quarter again."""
    half_turn = (0.0, 0.0, 0.0, 1.0)
    return fake_env(
        commands={"pose": torch.tensor([[0.2, 0.0, 0.1, *QUARTER]])},
        root_link_pos_w=torch.tensor([[1.0, 0.0, 0.5]]),
        root_link_quat_w=torch.tensor([QUARTER]),
        # The commanded position is (1, 0.2, 0.6) in the world, the orientation half a turn about z.
        body_link_pos_w=torch.tensor([[[9.0, 9.0, 9.0], [1.0, 0.5, 1.0]]]),
        body_link_quat_w=torch.tensor([[half_turn, QUARTER]]),
        site_pos_w=torch.tensor([[[1.0, 0.2, 0.65]]]),
    )


def test_errors_by_hand():
    env = pose_env()
    assert mdp.position_command_error(env, "pose", BODY).tolist() == pytest.approx([0.5])  # 0.3 and 0.4
    assert mdp.position_command_error(env, "pose", SITE).tolist() == pytest.approx([0.05])
    assert mdp.position_command_error_tanh(env, 0.25, "pose", BODY).tolist() == pytest.approx([1.0 - math.tanh(2.0)])
    assert mdp.orientation_command_error(env, "pose", BODY).tolist() == pytest.approx([math.pi / 2])
    first = SceneEntity("robot", body_ids=torch.tensor([0]))
    assert mdp.orientation_command_error(env, "pose", first).tolist() == pytest.approx([0.0], abs=1e-3)


def test_several_bodies_are_refused():
    for asset_cfg in (SceneEntity("robot"), SceneEntity("robot", body_ids=torch.tensor([0, 1]))):
        for term in (mdp.position_command_error, mdp.orientation_command_error):
            with pytest.raises(TickgraphError, match="selects 2 bodies or sites, expected one; say which"):
                term(pose_env(), "pose", asset_cfg)


def test_poses_are_drawn_in_their_ranges_and_only_where_they_are_due():
    ranges = mdp.PoseRanges(pos_x=(0.1, 0.3), pos_y=(-0.2, 0.0), pos_z=(0.5, 0.5), yaw=(-math.pi, math.pi))
    env = robot_env(
        512,
        commands={"pose": mdp.UniformPoseCommandCfg(ranges=ranges)},
        rewards={
            "near": RewardTermCfg(
                mdp.position_command_error,
                params={"command_name": "pose", "asset_cfg": SceneEntityCfg("robot", site_names="b_tip")},
            )
        },
        events={"root": EventTermCfg(mdp.reset_root_state_uniform, params={"pose_range": {"yaw": (-3.0, 3.0)}})},
    )
    term = env.command_manager.term("pose")
    pose = term.command.clone()
    low, high = torch.tensor([0.1, -0.2, 0.5]), torch.tensor([0.3, 0.0, 0.5])
    assert (pose[:, :3] >= low).all() and (pose[:, :3] <= high).all()
    assert (pose[:, :2].std(dim=0) > 0.04).all()  # 0.2 / sqrt(12) = 0.058
    # Turned about z alone, the one of q and -q with w >= 0.
    assert (pose[:, 3] >= 0.0).all() and (pose[:, 4:6].abs() < 1e-7).all()
    torch.testing.assert_close(pose[:, 3:].norm(dim=1), torch.ones(512))
    yaw = 2.0 * torch.atan2(pose[:, 6], pose[:, 3])
    assert 1.6 < yaw.std() < 2.0  # 2 pi / sqrt(12) = 1.81
    env.rng.advance()
    mask = torch.arange(512) % 2 == 0
    term.resample(mask)
    assert torch.equal((term.command != pose).any(dim=1), mask)


def test_roll_pitch_and_yaw_are_about_fixed_axes():
    ranges = mdp.PoseRanges(roll=(0.3, 0.3), pitch=(-0.2, -0.2), yaw=(1.0, 1.0))
    env = robot_env(1, commands={"pose": mdp.UniformPoseCommandCfg(ranges=ranges)})
    turns = [quat_from_euler_xyz(*(torch.tensor(v) for v in one)) for one in ((0.3, 0, 0), (0, -0.2, 0), (0, 0, 1.0))]
    expected = quat_mul(turns[2], quat_mul(turns[1], turns[0]))
    torch.testing.assert_close(env.command_manager.get_command("pose")[0, 3:], expected)
