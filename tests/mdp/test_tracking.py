"""Rewards for following a velocity command, against numbers by hand."""

import math
from types import SimpleNamespace

import torch
from mdp_toys import fake_env

from tickgraph import mdp


def close(value: torch.Tensor, expected: float) -> None:
    torch.testing.assert_close(value, torch.tensor([expected]), atol=1e-6, rtol=1e-5)


def test_commanded_axes_alone_or_the_others_too():
    env = fake_env(
        commands={"twist": torch.tensor([[1.0, 0.0, 0.5]])},
        sensors={
            "velocimeter": SimpleNamespace(data=torch.tensor([[1.0, 0.0, 0.5]])),
            "gyro": SimpleNamespace(data=torch.tensor([[0.0, 0.5, 0.5]])),
        },
        root_link_lin_vel_b=torch.tensor([[0.7, 0.4, 0.2]]),
        root_link_ang_vel_b=torch.tensor([[0.3, 0.4, 0.0]]),
    )
    close(mdp.track_lin_vel_xy_exp(env, 0.5, "twist"), math.exp(-(0.09 + 0.16) / 0.25))
    close(mdp.track_lin_vel_xy_exp(env, 0.5, "twist", sensor_name="velocimeter"), 1.0)
    close(mdp.track_linear_velocity(env, 0.5, "twist"), math.exp(-(0.09 + 0.16 + 0.04) / 0.25))
    close(mdp.track_linear_velocity(env, 0.5, "twist", sensor_name="velocimeter"), math.exp(-1.0))
    close(mdp.track_ang_vel_z_exp(env, 0.5, "twist"), math.exp(-1.0))
    close(mdp.track_ang_vel_z_exp(env, 0.5, "twist", sensor_name="gyro"), 1.0)
    close(mdp.track_angular_velocity(env, 0.5, "twist"), math.exp(-(0.25 + 0.09 + 0.16) / 0.25))
    close(mdp.track_angular_velocity(env, 0.5, "twist", sensor_name="gyro"), math.exp(-1.0))


def test_a_robot_that_leans_is_judged_in_the_upright_frame_of_its_heading():
    # Turned by 90 degrees about z and then pitched: the world's y is forward.
    half = math.pi / 4
    yaw = torch.tensor([[math.cos(half), 0.0, 0.0, math.sin(half)]])
    pitch = torch.tensor([[math.cos(0.3), 0.0, math.sin(0.3), 0.0]])
    from tickgraph.core.rotation import quat_mul

    env = fake_env(
        commands={"twist": torch.tensor([[1.0, 0.5, 0.25]])},
        root_link_quat_w=quat_mul(yaw, pitch),
        root_link_lin_vel_w=torch.tensor([[-0.5, 1.0, 3.0]]),  # 1 forward, 0.5 to the left
        root_link_ang_vel_w=torch.tensor([[9.0, 9.0, 0.75]]),
    )
    close(mdp.track_lin_vel_xy_yaw_frame_exp(env, 0.5, "twist"), 1.0)
    close(mdp.track_ang_vel_z_world_exp(env, 0.5, "twist"), math.exp(-1.0))
