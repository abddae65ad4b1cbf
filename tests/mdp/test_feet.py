"""Rewards about feet, against numbers by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from mdp_toys import fake_env, force_sensor

from tickgraph import mdp
from tickgraph.env.scene import SceneEntity


def close(value: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(value, torch.tensor(expected), atol=1e-6, rtol=1e-5)


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


def times(**given):
    """Return a stand-in for a contact sensor with times in each world, s, and a force, N."""
    return SimpleNamespace(**{name: torch.tensor(value) for name, value in given.items()})


def test_air_time_pays_at_touch_down_only_and_where_the_robot_shall_go():
    sensors = {
        "l": times(first_contact=[True, True, False], last_air_time=[0.3, 0.3, 0.3]),
        "r": times(first_contact=[True, False, False], last_air_time=[0.05, 0.3, 0.3]),
    }
    env = fake_env(commands={"twist": torch.tensor([[1.0, 0, 0], [0.05, 0, 1.0], [1.0, 0, 0]])}, sensors=sensors)
    close(mdp.feet_air_time(env, ("l", "r"), 0.1, "twist"), 0.2 - 0.05, 0.0, 0.0)
    close(mdp.feet_air_time(env, ("l", "r"), 0.1, "twist", 0.01), 0.2 - 0.05, 0.2, 0.0)


def test_air_time_of_a_biped_counts_the_shorter_phase_of_single_stance():
    sensors = {
        "l": times(current_contact_time=[0.3, 0.3, 0.0, 0.9], current_air_time=[0.0, 0.0, 0.2, 0.0]),
        "r": times(current_contact_time=[0.0, 0.1, 0.0, 0.0], current_air_time=[0.2, 0.0, 0.2, 0.8]),
    }
    env = fake_env(commands={"twist": torch.tensor([[1.0, 0, 0]]).expand(4, 3)}, sensors=sensors)
    # Single stance; both stand; both fly; longer than the threshold.
    close(mdp.feet_air_time_positive_biped(env, ("l", "r"), 0.4, "twist"), 0.2, 0.0, 0.0, 0.4)


def test_air_time_in_a_range():
    sensors = {"l": times(current_air_time=[0.2, 0.2, 0.6]), "r": times(current_air_time=[0.3, 0.0, 0.04])}
    env = fake_env(commands={"twist": torch.tensor([[0.3, 0.4, 0.1], [0.5, 0.0, 0.0], [1.0, 0, 0]])}, sensors=sensors)
    close(mdp.feet_air_time_in_range(env, ("l", "r")), 2.0, 1.0, 0.0)
    close(mdp.feet_air_time_in_range(env, ("l", "r"), command_name="twist"), 2.0, 0.0, 0.0)  # 0.6, 0.5, 1.0


def feet_env(**sensors):
    """Two feet at 0.08 and 0.13 m that move at 0.5 and 2 m/s over the ground; the second world is told to stand."""
    pos, vel = torch.zeros(2, 2, 3), torch.zeros(2, 2, 3)
    pos[:, :, 2] = torch.tensor([0.08, 0.13])
    vel[:, 0] = torch.tensor([0.3, -0.4, 9.0])
    vel[:, 1] = torch.tensor([0.0, 2.0, 9.0])
    commands = {"twist": torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.04]])}
    return fake_env(commands=commands, sensors=sensors, site_pos_w=pos, site_lin_vel_w=vel)


def test_clearance_is_the_distance_from_the_target_times_speed():
    env, feet = feet_env(), SceneEntity("robot")
    close(mdp.feet_clearance(env, 0.1, feet), 0.02 * 0.5 + 0.03 * 2.0, 0.02 * 0.5 + 0.03 * 2.0)
    close(mdp.feet_clearance(env, 0.1, feet, "twist", 0.05), 0.02 * 0.5 + 0.03 * 2.0, 0.0)


def test_slip_is_the_squared_speed_of_feet_in_contact():
    env = feet_env(l=force_sensor((0, 0, 5.0), (0, 0, 5.0)), r=force_sensor((0, 0, 0.5), (0, 0, 0.5)))
    feet = SceneEntity("robot")
    close(mdp.feet_slip(env, ("l", "r"), feet), 0.25, 0.25)
    close(mdp.feet_slip(env, ("l", "r"), feet, "twist", 0.05, force_threshold=0.1), 0.25 + 4.0, 0.0)


def test_soft_landing_counts_the_force_of_feet_that_touch_down():
    env = feet_env(
        l=times(force=[[0.0, 3.0, 4.0]] * 2, first_contact=[True, True]),
        r=times(force=[[0.0, 0.0, 7.0]] * 2, first_contact=[False, False]),
    )
    close(mdp.soft_landing(env, ("l", "r")), 5.0, 5.0)
    close(mdp.soft_landing(env, ("l", "r"), "twist"), 5.0, 0.0)


def test_swing_height_is_judged_when_a_foot_lands_and_forgotten_then():
    foot = times(current_air_time=[0.0, 0.0], first_contact=[False, False])
    env = feet_env(foot=foot)
    env.num_envs = 2
    env.arena = SimpleNamespace(new=lambda name, shape, why: torch.zeros(shape))
    params = {"sensor_names": ("foot",), "target_height": 0.1, "command_name": "twist"}
    term = mdp.feet_swing_height(SimpleNamespace(params=params), env, "rewards/swing")
    site = SceneEntity("robot", site_ids=torch.tensor([0]))
    height = env.scene["robot"].data.site_pos_w[:, 0, 2]

    def step(air, landed, at):
        foot.current_air_time[:], foot.first_contact[:] = air, landed
        height[:] = at
        return term(env, **params, asset_cfg=site)

    close(step(0.0, False, 0.5), 0.0, 0.0)  # in contact: no swing yet
    close(step(0.02, False, 0.06), 0.0, 0.0)
    close(step(0.04, False, 0.08), 0.0, 0.0)
    close(step(0.06, False, 0.03), 0.0, 0.0)
    close(step(0.0, True, 0.0), (0.8 - 1.0) ** 2, 0.0)  # the second world is told to stand
    step(0.02, False, 0.12)
    close(step(0.0, True, 0.0), (1.2 - 1.0) ** 2, 0.0)
    step(0.02, False, 0.12)
    term.reset(torch.tensor([True, False]))
    assert term._peak[:, 0].tolist() == pytest.approx([0.0, 0.12])
