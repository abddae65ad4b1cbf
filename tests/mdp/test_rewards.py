"""Reward terms: each formula against numbers by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from mdp_toys import fake_env, force_sensor, robot_env

from tickgraph import mdp
from tickgraph.env.config import RewardTermCfg
from tickgraph.env.scene import SceneEntity


def close(value: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(value, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_tracking():
    env = fake_env(
        commands={"twist": torch.tensor([[1.0, 0.0, 0.5]])},
        sensors={"velocimeter": SimpleNamespace(data=torch.tensor([[1.0, 0.0, 9.0]]))},
        root_link_lin_vel_b=torch.tensor([[0.7, 0.4, 3.0]]),
        root_link_ang_vel_b=torch.tensor([[9.0, 9.0, 0.0]]),
    )
    close(mdp.track_linear_velocity(env, 0.5, "twist"), math.exp(-(0.09 + 0.16) / 0.25))
    close(mdp.track_linear_velocity(env, 0.5, "twist", sensor_name="velocimeter"), 1.0)
    close(mdp.track_angular_velocity(env, 0.5, "twist"), math.exp(-1.0))


def test_base():
    env = fake_env(
        root_link_lin_vel_b=torch.tensor([[1.0, 1.0, -2.0]]),
        root_link_ang_vel_b=torch.tensor([[1.0, -2.0, 5.0]]),
        root_link_pos_w=torch.tensor([[0.0, 0.0, 0.4]]),
        projected_gravity_b=torch.tensor([[0.6, 0.0, -0.8]]),
    )
    close(mdp.lin_vel_z_l2(env), 4.0)
    close(mdp.ang_vel_xy_l2(env), 5.0)
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
        actuator_force=torch.tensor([[1.0, -2.0]]),
        soft_joint_pos_limits=torch.tensor([[-0.9, 0.9], [-0.5, 0.5]]),
    )
    close(mdp.joint_deviation_l1(env), 0.7)
    close(mdp.joint_pos_limits(env), 0.5)
    close(mdp.joint_pos_limits(env, SceneEntity("robot", joint_ids=torch.tensor([1]))), 0.2)
    close(mdp.joint_vel_l2(env), 5.0)
    close(mdp.joint_acc_l2(env), 9.0)
    close(mdp.joint_torques_l2(env), 5.0)


def test_weighted_deviation_posture_and_power_on_a_robot():
    env = robot_env(
        rewards={
            "deviation": RewardTermCfg(mdp.joint_deviation_l2, 1.0, {"weights": {"a": 3.0}}),
            "posture": RewardTermCfg(mdp.posture, 1.0, {"std": {"a": 0.1, "b": 0.2}}),
            "power": RewardTermCfg(mdp.electrical_power_cost, 1.0),
        }
    )
    data = env.scene["robot"].data
    env.sim.view("qpos")[:, 7:] = torch.tensor([0.2, -0.5])  # 0.1 and -0.3 from the initial 0.1 and -0.2
    env.sim.view("qvel")[:, 6:] = torch.tensor([2.0, -1.0])
    data.actuator_force.copy_(torch.tensor([[3.0, 4.0]]).expand(4, 2))  # of b, then of a
    values = {name: env.reward_manager.terms[name]() for name in env.reward_manager.names}
    close(values["deviation"][:1], 3.0 * 0.01)
    close(values["posture"][:1], math.exp(-(1.0 + 2.25) / 2))
    close(values["power"][:1], 8.0)  # a: 4 * 2; b: 3 * -1 counts as 0


def test_contacts_and_episode():
    env = fake_env(
        sensors={"knee": force_sensor((0, 0, 2.0), (0, 0, 0)), "hand": force_sensor((0, 5.0, 0), (0, 0, 1.0))}
    )
    close(mdp.undesired_contacts(env, ("knee", "hand"), 1.0), 2.0, 0.0)
    env = SimpleNamespace(terminated=torch.tensor([True, False]), reward=torch.zeros(2))
    close(mdp.is_alive(env), 0.0, 1.0)
    close(mdp.is_terminated(env), 1.0, 0.0)
    close(mdp.alive(env), 1.0, 1.0)


def test_feet_phase():
    sites = torch.zeros(1, 2, 3)
    sites[0, :, 2] = torch.tensor([0.09, 0.02])
    env = fake_env(commands={"gait": torch.tensor([[0.0, -math.pi]])}, site_pos_w=sites)
    close(mdp.feet_phase(env, "gait", 0.09, 0.005, SceneEntity("robot")), math.exp(-0.0004 / 0.005))


def test_feet_orientation_is_the_half_tilt_whatever_the_yaw():
    # Tilted by 0.4 rad about x and turned by 1 rad about z: q_x^2 + q_y^2 = sin(0.2)^2.
    tilt = torch.tensor([math.cos(0.2), math.sin(0.2), 0.0, 0.0])
    yaw = torch.tensor([math.cos(0.5), 0.0, 0.0, math.sin(0.5)])
    from tickgraph.core.rotation import quat_mul

    feet = torch.stack((quat_mul(yaw, tilt), yaw))[None]
    env = fake_env(body_link_quat_w=feet)
    close(mdp.feet_orientation_l2(env, SceneEntity("robot")), math.sin(0.2) ** 2)


def test_trot_contact_and_swing():
    # Shares of the cycle 0.25, 0.75, 0.75, 0.25: the first and last stand, the others swing.
    phase = torch.tensor([[math.pi / 2, -math.pi / 2, -math.pi / 2, math.pi / 2]])
    sites = torch.zeros(1, 4, 3)
    sites[0, :, 2] = torch.tensor([0.1, 0.1, 0.2, 0.02])
    names = ("FL", "FR", "RL", "RR")
    sensors = {name: force_sensor((0.0, 0.0, f)) for name, f in zip(names, (5.0, 0.0, 5.0, 0.05), strict=True)}
    env = fake_env(commands={"gait": phase}, sensors=sensors, site_pos_w=sites)
    close(mdp.gait_contact(env, "gait", 0.6, names, 0.1), 0.5)  # FL stands, FR swings; RL touches, RR does not
    swing = mdp.swing_foot_height(env, "gait", 0.1, 0.01, 0.6, SceneEntity("robot"))
    close(swing, (1.0 + math.exp(-1.0)) / 4)
    # Swinging feet are 0.375 through their swing: the arc is at 0.02 + 0.08 sin(0.375 pi) there, at 0.02 in stance.
    arc = mdp.swing_foot_arc(env, "gait", 0.02, 0.1, 0.01, 0.6, SceneEntity("robot"))
    top = 0.02 + 0.08 * math.sin(0.375 * math.pi)
    close(arc, math.exp(-(0.08**2 + (0.1 - top) ** 2 + (0.2 - top) ** 2) / 0.01))


def test_feet_slide():
    velocity = torch.zeros(1, 2, 3)
    velocity[0, :, 0], velocity[0, :, 1], velocity[0, :, 2] = 3.0, 4.0, 9.0
    sensors = {"l": force_sensor((0, 0, 10.0)), "r": force_sensor((0, 0, 0.5))}
    env = fake_env(sensors=sensors, body_link_lin_vel_w=velocity)
    close(mdp.feet_slide(env, ("l", "r"), SceneEntity("robot")), 5.0)


def test_air_time_pays_at_touch_down_only_and_forgets_at_a_reset():
    sensors = {"l": force_sensor((0, 0, 0.0), (0, 0, 0.0))}
    env = fake_env(commands={"twist": torch.tensor([[1.0, 0, 0], [0, 0, 0]])}, sensors=sensors)
    env.num_envs = 2
    env.arena = SimpleNamespace(new=lambda name, shape, why: torch.zeros(shape))
    params = {"sensor_names": ("l",), "threshold": 0.1, "command_name": "twist"}
    term = mdp.feet_air_time(SimpleNamespace(params=params), env, "rewards/air")
    for _ in range(10):
        close(term(env, **params), 0.0, 0.0)
    sensors["l"].force[:, 2] = 20.0
    close(term(env, **params), 0.2 - 0.1, 0.0)  # the second world is told to stand
    close(term(env, **params), 0.0, 0.0)
    sensors["l"].force[:, 2] = 0.0
    term(env, **params)
    term.reset(torch.tensor([True, False]))
    assert term.air_time[:, 0].tolist() == pytest.approx([0.0, 0.02])
