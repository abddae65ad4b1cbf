"""Reward terms: each formula against numbers by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from mdp_toys import fake_env, force_sensor, robot_env

from tickgraph import mdp
from tickgraph.env.config import MetricTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.scene import SceneEntity
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg, SensorCfg

# A ball and a smaller one beside it along y, on a slide, 0.26 m apart and 0.11 m from touching.
CLAPPER = """
<mujoco>
  <option gravity="0 0 0"><flag filterparent="disable"/></option>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom name="base" type="sphere" size="0.1" mass="1"/>
      <body name="hand" pos="0 0.26 0">
        <joint name="hand" type="slide" axis="0 1 0"/>
        <geom name="hand" type="sphere" size="0.05" mass="0.25"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="hand" joint="hand"/></actuator>
</mujoco>
"""


def close(value: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(value, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_base():
    env = fake_env(
        root_link_lin_vel_b=torch.tensor([[1.0, 1.0, -2.0]]),
        root_link_ang_vel_b=torch.tensor([[1.0, -2.0, 5.0]]),
        root_link_pos_w=torch.tensor([[0.0, 0.0, 0.4]]),
        body_link_ang_vel_w=torch.tensor([[[1.0, 2.0, 9.0], [0.0, -3.0, 9.0]]]),
        projected_gravity_b=torch.tensor([[0.6, 0.0, -0.8]]),
    )
    close(mdp.lin_vel_z_l2(env), 4.0)
    close(mdp.ang_vel_xy_l2(env), 5.0)
    close(mdp.body_angular_velocity_penalty(env), 1.0 + 4.0 + 9.0)
    close(mdp.body_angular_velocity_penalty(env, SceneEntity("robot", body_ids=torch.tensor([1]))), 9.0)
    close(mdp.base_height_l2(env, 0.3), 0.01)
    close(mdp.flat_orientation_l2(env), 0.36)
    close(mdp.upright(env, 0.6), math.exp(-1.0))


def test_actions():
    env = SimpleNamespace(
        action_manager=SimpleNamespace(action=torch.tensor([[0.5, -0.5]]), prev_action=torch.tensor([[0.0, 0.5]]))
    )
    close(mdp.action_rate_l2(env), 1.25)
    close(mdp.action_l2(env), 0.5)


def test_joints():
    env = fake_env(
        joint_pos=torch.tensor([[1.2, -0.7]]),
        default_joint_pos=torch.tensor([1.0, -0.2]),
        joint_vel=torch.tensor([[2.0, 1.0]]),
        joint_acc=torch.tensor([[3.0, 0.0]]),
        soft_joint_pos_limits=torch.tensor([[-0.9, 0.9], [-0.5, 0.5]]),
    )
    close(mdp.joint_pos_limits(env), 0.5)
    close(mdp.joint_pos_limits(env, SceneEntity("robot", joint_ids=torch.tensor([1]))), 0.2)
    close(mdp.joint_vel_l1(env), 3.0)
    close(mdp.joint_vel_l2(env), 5.0)
    close(mdp.joint_acc_l2(env), 9.0)


def test_torques_and_power_of_actuators_chosen_by_their_joints():
    knee = {"asset_cfg": SceneEntityCfg("robot", joint_names="a")}
    env = robot_env(
        rewards={
            "torque": RewardTermCfg(mdp.joint_torques_l2, 1.0),
            "torque_a": RewardTermCfg(mdp.joint_torques_l2, 1.0, knee),
            "torque_b": RewardTermCfg(
                mdp.joint_torques_l2, 1.0, {"asset_cfg": SceneEntityCfg("robot", actuator_names="act_b")}
            ),
            "power": RewardTermCfg(mdp.electrical_power_cost, 1.0),
            "power_b": RewardTermCfg(
                mdp.electrical_power_cost, 1.0, {"asset_cfg": SceneEntityCfg("robot", joint_names="b")}
            ),
        }
    )
    data = env.scene["robot"].data
    env.sim.view("qvel")[:, 6:] = torch.tensor([2.0, 1.0])
    data.actuator_force.copy_(torch.tensor([[3.0, 4.0]]).expand(4, 2))  # of b, then of a
    values = {name: env.reward_manager.terms[name]() for name in env.reward_manager.names}
    close(values["torque"][:1], 25.0)
    close(values["torque_a"][:1], 16.0)
    close(values["torque_b"][:1], 9.0)
    close(values["power"][:1], 8.0 + 3.0)  # a: 4 * 2; b: 3 * 1
    close(values["power_b"][:1], 3.0)
    env.sim.view("qvel")[:, 6:] = torch.tensor([2.0, -1.0])
    close(env.reward_manager.terms["power"]()[:1], 8.0)  # b brakes, which counts as 0


def test_action_acceleration_remembers_two_actions_and_forgets_at_a_reset():
    env = robot_env(
        rewards={"acc": RewardTermCfg(mdp.action_acc_l2, 1.0)},
        metrics={"acc": MetricTermCfg(mdp.mean_action_acc)},
        scale_rewards_by_dt=False,
    )
    metric = env.metric_manager.terms["acc"]
    seen = []
    for action in ([1.0, 0.0], [1.0, 2.0], [0.0, 2.0], [1.0, 0.0]):  # an episode has three steps
        env.step(torch.tensor([action]).expand(4, 2))
        seen.append(float(env.reward[0]))
    # 1 0; then 1 - 2, 2 - 0; then 0 - 2 + 1, 2 - 4 + 0; in the new episode as at first.
    assert seen == pytest.approx([1.0, 1.0 + 4.0, 1.0 + 4.0, 1.0])
    torch.testing.assert_close(metric(), torch.full((4,), 0.5))  # |1 - 0 + 0| and |0|: asked twice, it would go on


def test_contacts_and_episode():
    env = fake_env(
        sensors={"knee": force_sensor((0, 0, 2.0), (0, 0, 0)), "hand": force_sensor((0, 5.0, 0), (0, 0, 1.0))}
    )
    close(mdp.undesired_contacts(env, ("knee", "hand"), 1.0), 2.0, 0.0)
    close(mdp.contact_forces(env, 1.5, ("knee", "hand")), 0.5 + 3.5, 0.0)
    env = SimpleNamespace(terminated=torch.tensor([True, False]), reward=torch.zeros(2))
    close(mdp.is_alive(env), 0.0, 1.0)
    close(mdp.is_terminated(env), 1.0, 0.0)
    close(mdp.alive(env), 1.0, 1.0)


def clapper_values(push=0.0, **init):
    """Return (momentum, self) of the clapper after its first step; the hand is pushed by a force, N."""
    env = robot_env(
        1,
        scene=SceneCfg(
            {"robot": EntityCfg(CLAPPER, InitialStateCfg(pos=(0.0, 0.0, 1.0), **init))},
            terrain=None,
            timestep=0.005,
            sensors=(
                SensorCfg("momentum", "subtreeangmom", "base", objtype="body"),
                SensorCfg("self", "contact", "base", objtype="subtree", ref="base", reftype="subtree"),
            ),
        ),
        actions={"hand": mdp.JointEffortActionCfg()},
        rewards={
            "momentum": RewardTermCfg(mdp.angular_momentum_penalty, 1.0, {"sensor_name": "momentum"}),
            "self": RewardTermCfg(mdp.self_collision_cost, 1.0, {"sensor_name": "self"}),
        },
        scale_rewards_by_dt=False,
    )
    env.step(torch.full((1, 1), push))
    return env.reward_manager.values[0].tolist()


def test_self_collisions_count_above_a_force():
    assert clapper_values()[1] == 0.0
    assert clapper_values(push=-40.0, joint_pos={"hand": -0.11})[1] == 1.0  # the hand presses against the base
    env = fake_env(sensors={"self": force_sensor((0, 6.0, 8.1), (0, 6.0, 7.9))})
    close(mdp.self_collision_cost(env, "self"), 1.0, 0.0)
    close(mdp.self_collision_cost(env, "self", 9.0), 1.0, 1.0)


def test_angular_momentum_is_that_of_the_whole_robot():
    # It turns about z as one body: two balls 0.26 m apart, about the point between them that their masses fix. Momentum
    # is kept while the hand begins to slide outwards.
    inertia = 0.4 * 1.0 * 0.1**2 + 0.4 * 0.25 * 0.05**2 + 1.0 * 0.25 / 1.25 * 0.26**2
    assert clapper_values(ang_vel=(0.0, 0.0, 2.0))[0] == pytest.approx((inertia * 2.0) ** 2, rel=0.01)
    assert clapper_values(lin_vel=(3.0, 0.0, 0.0))[0] == pytest.approx(0.0, abs=1e-8)
