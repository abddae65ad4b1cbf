"""Reward terms for following a velocity command, (N,) float32 of N worlds: 1 where it is followed exactly.

The terms of Isaac Lab (``..._exp``) look at the commanded axes alone; those of mjlab (``track_..._velocity``) also hold
the others to 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core.bounds import Positive
from tickgraph.core.rotation import quat_apply_inverse, yaw_quat
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.observations import ROBOT

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def track_lin_vel_xy_exp(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-|v_xy - command_xy|^2 / std^2), in the root link's frame (Isaac Lab).

    Args:
        std: m/s.
        command_name: a command whose first two columns are forward and lateral velocity in the robot's frame.
        sensor_name: a velocimeter to read in place of the root link's own velocity.
    """
    error = _command(env, command_name)[:, :2] - _lin_vel(env, asset_cfg, sensor_name)[:, :2]
    return torch.exp(-torch.sum(error * error, dim=1) / std**2)


def track_ang_vel_z_exp(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-(w_z - command_z)^2 / std^2), in the root link's frame (Isaac Lab).

    Args:
        std: rad/s.
        command_name: a command whose third column is the yaw rate.
        sensor_name: a gyro to read in place of the root link's own angular velocity.
    """
    error = _command(env, command_name)[:, 2] - _ang_vel(env, asset_cfg, sensor_name)[:, 2]
    return torch.exp(-error * error / std**2)


def track_lin_vel_xy_yaw_frame_exp(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT
) -> Tensor:
    """exp(-|v_xy - command_xy|^2 / std^2), v in the upright frame of the robot's heading (Isaac Lab)."""
    data = env.scene[asset_cfg.name].data
    velocity = quat_apply_inverse(yaw_quat(data.root_link_quat_w), data.root_link_lin_vel_w)
    error = _command(env, command_name)[:, :2] - velocity[:, :2]
    return torch.exp(-torch.sum(error * error, dim=1) / std**2)


def track_ang_vel_z_world_exp(env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """exp(-(w_z - command_z)^2 / std^2), w about the world's vertical (Isaac Lab)."""
    error = _command(env, command_name)[:, 2] - env.scene[asset_cfg.name].data.root_link_ang_vel_w[:, 2]
    return torch.exp(-error * error / std**2)


def track_linear_velocity(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-(|v_xy - command_xy|^2 + v_z^2) / std^2), in the root link's frame (mjlab).

    Args: as of `track_lin_vel_xy_exp`.
    """
    velocity = _lin_vel(env, asset_cfg, sensor_name)
    error = _command(env, command_name)[:, :2] - velocity[:, :2]
    return torch.exp(-(torch.sum(error * error, dim=1) + torch.square(velocity[:, 2])) / std**2)


def track_angular_velocity(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-((w_z - command_z)^2 + |w_xy|^2) / std^2), in the root link's frame (mjlab).

    Args: as of `track_ang_vel_z_exp`.
    """
    velocity = _ang_vel(env, asset_cfg, sensor_name)
    error = _command(env, command_name)[:, 2] - velocity[:, 2]
    return torch.exp(-(error * error + torch.sum(torch.square(velocity[:, :2]), dim=1)) / std**2)


def _command(env: Env, name: str) -> Tensor:
    return env.command_manager.get_command(name)


def _lin_vel(env: Env, asset_cfg: SceneEntity, sensor_name: str | None) -> Tensor:
    return env.scene[asset_cfg.name].data.root_link_lin_vel_b if sensor_name is None else env.scene[sensor_name].data


def _ang_vel(env: Env, asset_cfg: SceneEntity, sensor_name: str | None) -> Tensor:
    return env.scene[asset_cfg.name].data.root_link_ang_vel_b if sensor_name is None else env.scene[sensor_name].data
