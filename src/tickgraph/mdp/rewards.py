"""Reward terms for any robot: (N,) float32 of N worlds; weights, signs and the step length come from the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Names, NotNegative, Positive
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.matching import match_values
from tickgraph.mdp.observations import ROBOT, contacts, up_vector

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def _joints(env: Env, asset_cfg: SceneEntity, what: str) -> Tensor:
    return getattr(env.scene[asset_cfg.name].data, what)[:, asset_cfg.joint_ids]


def _read(env: Env, sensor_name: str) -> Tensor:
    return env.scene[sensor_name].data


# Episode --------------------------------------------------------------------------------------------------------


def alive(env: Env) -> Tensor:
    """1 on every step, the last one included."""
    return torch.ones_like(env.reward)


def is_alive(env: Env) -> Tensor:
    """1 on every step on which the episode did not end by a fall."""
    return (~env.terminated).to(torch.float32)


def is_terminated(env: Env) -> Tensor:
    """1 on the step on which the episode ended by a fall; 0 on a time-out."""
    return env.terminated.to(torch.float32)


# Following a command --------------------------------------------------------------------------------------------


def track_linear_velocity(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-|v_xy - command_xy|^2 / std^2), m/s.

    Args:
        std: m/s.
        command_name: a command whose first two columns are forward and lateral velocity in the robot's frame.
        sensor_name: a velocimeter to read in place of the root link's own velocity.
    """
    velocity = env.scene[asset_cfg.name].data.root_link_lin_vel_b if sensor_name is None else _read(env, sensor_name)
    error = env.command_manager.get_command(command_name)[:, :2] - velocity[:, :2]
    return torch.exp(-torch.sum(error * error, dim=1) / std**2)


def track_angular_velocity(
    env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None
) -> Tensor:
    """exp(-(w_z - command_z)^2 / std^2), rad/s.

    Args:
        std: rad/s.
        command_name: a command whose third column is the yaw rate.
        sensor_name: a gyro to read in place of the root link's own angular velocity.
    """
    velocity = env.scene[asset_cfg.name].data.root_link_ang_vel_b if sensor_name is None else _read(env, sensor_name)
    error = env.command_manager.get_command(command_name)[:, 2] - velocity[:, 2]
    return torch.exp(-error * error / std**2)


# Root link ------------------------------------------------------------------------------------------------------


def lin_vel_z_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Vertical velocity in the root link's frame, squared, (m/s)^2."""
    return torch.square(env.scene[asset_cfg.name].data.root_link_lin_vel_b[:, 2])


def ang_vel_xy_l2(env: Env, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None) -> Tensor:
    """Roll and pitch rate of the root link, or of a gyro, squared and summed, (rad/s)^2."""
    velocity = env.scene[asset_cfg.name].data.root_link_ang_vel_b if sensor_name is None else _read(env, sensor_name)
    return torch.sum(torch.square(velocity[:, :2]), dim=1)


def flat_orientation_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Squared sine of the tilt of the root link, or of the one body selected."""
    return torch.sum(torch.square(up_vector(env, asset_cfg)[:, :2]), dim=1)


def upright(env: Env, std: Positive, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """exp(-sin(tilt)^2 / std^2) of the root link, or of the one body selected."""
    return torch.exp(-flat_orientation_l2(env, asset_cfg) / std**2)


def base_height_l2(env: Env, target_height: Finite, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Squared distance of the root link from a height in the world, m^2: for flat ground."""
    return torch.square(env.scene[asset_cfg.name].data.root_link_pos_w[:, 2] - target_height)


# Actions --------------------------------------------------------------------------------------------------------


def action_rate_l2(env: Env) -> Tensor:
    """Squared change of the raw action since the last tick, summed; an episode starts from action 0."""
    manager = env.action_manager
    return torch.sum(torch.square(manager.action - manager.prev_action), dim=1)


def action_l2(env: Env) -> Tensor:
    """Raw action, squared and summed."""
    return torch.sum(torch.square(env.action_manager.action), dim=1)


# Joints ---------------------------------------------------------------------------------------------------------


def joint_deviation_l1(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Absolute distance of the selected joints from their initial positions, summed, rad or m."""
    data = env.scene[asset_cfg.name].data
    return torch.sum((data.joint_pos - data.default_joint_pos).abs()[:, asset_cfg.joint_ids], dim=1)


class joint_deviation_l2:
    """Sum of ``weights * (joint_pos - default)^2`` over all joints of an entity.

    Params:
        weights: by regular expression of joint names (0 where none matches), or one for all.
        entity_name: whose joints.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        entity = env.scene[cfg.params.get("entity_name", "robot")]
        values = match_values(
            cfg.params.get("weights", 1.0), entity.index.joint_names, f"{path}: weights by joint", default=0.0
        )
        self._data = entity.data
        self._weights = env.arena.constant(f"{path}/weights", values, torch.float32, "weight of each joint's deviation")

    def __call__(self, env: Env, weights: Finite | dict[str, Finite] = 1.0, entity_name: str = "robot") -> Tensor:
        deviation = self._data.joint_pos - self._data.default_joint_pos
        return torch.sum(self._weights * deviation * deviation, dim=1)


class posture:
    """exp(-mean of ((joint_pos - default) / std)^2) over all joints of an entity that have a std.

    Params:
        std: rad or m, by regular expression of joint names, or one for all.
        entity_name: whose joints.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        entity = env.scene[cfg.params.get("entity_name", "robot")]
        std = match_values(cfg.params["std"], entity.index.joint_names, f"{path}: std by joint", default=float("inf"))
        count = sum(value != float("inf") for value in std)
        weights = [1.0 / (count * value * value) if value != float("inf") else 0.0 for value in std]
        self._data = entity.data
        self._weights = env.arena.constant(f"{path}/weights", weights, torch.float32, "1 / (joints * std^2)")

    def __call__(self, env: Env, std: Positive | dict[str, Positive], entity_name: str = "robot") -> Tensor:
        deviation = self._data.joint_pos - self._data.default_joint_pos
        return torch.exp(-torch.sum(self._weights * deviation * deviation, dim=1))


def joint_pos_limits(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """How far the selected joints are beyond their soft ranges, summed, rad or m."""
    data = env.scene[asset_cfg.name].data
    low, high = data.soft_joint_pos_limits.unbind(dim=1)
    beyond = (low - data.joint_pos).clamp_min(0.0) + (data.joint_pos - high).clamp_min(0.0)
    return torch.sum(beyond[:, asset_cfg.joint_ids], dim=1)


def joint_vel_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Joint velocities, squared and summed."""
    return torch.sum(torch.square(_joints(env, asset_cfg, "joint_vel")), dim=1)


def joint_acc_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Joint accelerations of the last substep, squared and summed."""
    return torch.sum(torch.square(_joints(env, asset_cfg, "joint_acc")), dim=1)


def joint_torques_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Forces of the selected actuators in the last substep, squared and summed, (N m)^2."""
    return torch.sum(torch.square(env.scene[asset_cfg.name].data.actuator_force[:, asset_cfg.actuator_ids]), dim=1)


class electrical_power_cost:
    """Positive mechanical power of an entity's joint actuators, summed, W; from the last substep's forces.

    Params:
        entity_name: whose actuators.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        entity = env.scene[cfg.params.get("entity_name", "robot")]
        pairs = [(a, int(j)) for a, j in enumerate(entity.index.actuator_joint) if j >= 0]
        self._data = entity.data
        constant = env.arena.constant
        self._actuators = constant(f"{path}/actuators", [a for a, _ in pairs], torch.int64, "those that drive a joint")
        self._joints = constant(f"{path}/joints", [j for _, j in pairs], torch.int64, "the joint of each of them")

    def __call__(self, env: Env, entity_name: str = "robot") -> Tensor:
        power = self._data.actuator_force[:, self._actuators] * self._data.joint_vel[:, self._joints]
        return torch.sum(power.clamp_min(0.0), dim=1)


# Contacts -------------------------------------------------------------------------------------------------------


def undesired_contacts(env: Env, sensor_names: Names, force_threshold: NotNegative = 1.0) -> Tensor:
    """Number of these contact sensors whose net force exceeds ``force_threshold``, N."""
    return torch.sum(contacts(env, sensor_names, force_threshold), dim=1, dtype=torch.float32)
