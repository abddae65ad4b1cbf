"""Joint actions: order of the joints, offset, scale, clip, the columns of ctrl, and what a reset leaves."""

import pytest
import torch
from mdp_toys import robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError


def test_columns_follow_joints_and_reach_the_right_actuators():
    env = robot_env(actions={"joint_pos": mdp.JointPositionActionCfg(scale={"a": 0.5, "b": 2.0})})
    term = env.action_manager.term("joint_pos")
    assert term.joint_names == ("a", "b") and term.actuator_names == ("act_a", "act_b")
    env.step(torch.tensor([[1.0, 0.25]]).expand(4, 2))
    # a: 0.1 + 0.5 * 1, b: -0.2 + 2 * 0.25; the actuators come b, a.
    torch.testing.assert_close(term.processed_actions, torch.tensor([[0.6, 0.3]]).expand(4, 2))
    torch.testing.assert_close(env.sim.ctrl, torch.tensor([[0.3, 0.6]]).expand(4, 2))


def test_clip_bounds_the_target_and_offset_may_stand_alone():
    cfg = mdp.JointPositionActionCfg(use_default_offset=False, offset={"a": 0.3}, clip={"b": (-0.5, 0.5)})
    env = robot_env(actions={"joint_pos": cfg})
    env.step(torch.tensor([[3.0, -3.0]]).expand(4, 2))
    target = env.action_manager.term("joint_pos").processed_actions
    torch.testing.assert_close(target, torch.tensor([[3.3, -0.5]]).expand(4, 2))


def test_a_reset_leaves_the_neutral_target():
    env = robot_env()
    for _ in range(3):
        env.step(torch.ones(4, 2))
    assert env.done.all()
    target = env.action_manager.term("joint_pos").processed_actions
    torch.testing.assert_close(target, torch.tensor([[0.1, -0.2]]).expand(4, 2))


def test_some_actuators_in_the_order_given():
    env = robot_env(actions={"x": mdp.JointPositionActionCfg(actuator_names=("act_b", "act_a"), preserve_order=True)})
    assert env.action_manager.term("x").joint_names == ("b", "a")


def test_effort_on_a_position_actuator_is_refused():
    with pytest.raises(TickgraphError, match="kind motor.*'act_a' is of kind 'position'"):
        robot_env(actions={"effort": mdp.JointEffortActionCfg(actuator_names="act_a")})
