"""Rewards about joints' distance from their initial positions, against numbers by hand."""

import math

import pytest
import torch
from mdp_toys import fake_env, robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import RewardTermCfg, SceneEntityCfg

A, B = (SceneEntityCfg("robot", joint_names=name) for name in "ab")


def values(**rewards):
    """Return each term's value in one world of the robot, 0.1 and -0.3 rad from the initial 0.1 and -0.2."""
    commands = {"twist": mdp.UniformVelocityCommandCfg()}
    env = robot_env(1, rewards={name: RewardTermCfg(*given) for name, given in rewards.items()}, commands=commands)
    env.sim.view("qpos")[:, 7:] = torch.tensor([0.2, -0.5])
    return env, lambda: {name: float(env.reward_manager.terms[name]()) for name in rewards}


def test_weighted_deviation_and_posture():
    _, look = values(
        l1=(mdp.joint_deviation_l1, 1.0),
        l2=(mdp.joint_deviation_l2, 1.0, {"weights": {"a": 3.0}}),
        l2_b=(mdp.joint_deviation_l2, 1.0, {"asset_cfg": B}),
        posture=(mdp.posture, 1.0, {"std": {"a": 0.1, "b": 0.2}}),
        posture_a=(mdp.posture, 1.0, {"std": 0.2, "asset_cfg": A}),
        posture_one=(mdp.posture, 1.0, {"std": {"a": 0.1}}),
    )
    assert look() == pytest.approx(
        {
            "l1": 0.4,
            "l2": 3.0 * 0.01,
            "l2_b": 0.09,
            "posture": math.exp(-(1.0 + 2.25) / 2),
            "posture_a": math.exp(-0.25),
            "posture_one": math.exp(-1.0),  # b has no std, and counts in no mean
        },
        rel=1e-5,
    )


def test_posture_by_commanded_speed():
    params = {
        "std_standing": 0.1,
        "std_walking": {"a": 0.1, "b": 0.3},
        "std_running": {".*": 0.5},
        "command_name": "twist",
        "walking_threshold": 0.5,
        "running_threshold": 1.5,
    }
    env, look = values(pose=(mdp.variable_posture, 1.0, params))
    command = env.command_manager.get_command("twist")
    standing, walking, running = (math.exp(-x) for x in ((1.0 + 9.0) / 2, (1.0 + 1.0) / 2, (0.04 + 0.36) / 2))
    for told, expected in (
        ([0.2, 0.0, 0.2], standing),
        ([0.3, 0.4, 0.0], walking),  # 0.5 m/s: from the threshold on
        ([0.0, 0.0, -0.6], walking),  # turning counts
        ([0.6, 0.8, 0.4], walking),
        ([0.6, 0.8, -0.6], running),
    ):
        command.copy_(torch.tensor([told]))
        assert look()["pose"] == pytest.approx(expected, rel=1e-4), told


def test_a_posture_names_joints_that_are_there():
    with pytest.raises(TickgraphError, match="std_running by joint: no name matches 'knee'"):
        params = {"std_standing": 0.1, "std_walking": 0.1, "std_running": {"knee": 0.1}, "command_name": "twist"}
        values(pose=(mdp.variable_posture, 1.0, params))


def test_standing_still():
    env = fake_env(
        commands={"twist": torch.tensor([[0.05, 0.0, 1.0], [0.0, 0.07, 0.0]])},
        joint_pos=torch.tensor([[1.2, -0.7], [1.2, -0.7]]),
        default_joint_pos=torch.tensor([1.0, -0.2]),
    )
    assert mdp.stand_still_joint_deviation_l1(env, "twist").tolist() == pytest.approx([0.7, 0.0])
