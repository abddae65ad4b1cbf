"""Reward terms for any robot: (N,) float32 of N worlds; weights, signs and the step length come from the task.

What follows a command is in `tracking`, poses are in `posture`, feet in `feet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Names, NotNegative, Positive
from tickgraph.env.config import SceneEntityCfg
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.action_change import ActionChange
from tickgraph.mdp.matching import find_actuators
from tickgraph.mdp.observations import ROBOT, touched, up_vector

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


# Root link ------------------------------------------------------------------------------------------------------


def lin_vel_z_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Vertical velocity in the root link's frame, squared, (m/s)^2."""
    return torch.square(env.scene[asset_cfg.name].data.root_link_lin_vel_b[:, 2])


def ang_vel_xy_l2(env: Env, asset_cfg: SceneEntity = ROBOT, sensor_name: str | None = None) -> Tensor:
    """Roll and pitch rate of the root link, or of a gyro, squared and summed, (rad/s)^2."""
    velocity = env.scene[asset_cfg.name].data.root_link_ang_vel_b if sensor_name is None else _read(env, sensor_name)
    return torch.sum(torch.square(velocity[:, :2]), dim=1)


def body_angular_velocity_penalty(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Roll and pitch rate of the selected bodies, world frame, squared and summed, (rad/s)^2 (mjlab)."""
    rate = env.scene[asset_cfg.name].data.body_link_ang_vel_w[:, asset_cfg.body_ids, :2]
    return torch.sum(torch.square(rate), dim=(1, 2))


def angular_momentum_penalty(env: Env, sensor_name: str) -> Tensor:
    """Squared angular momentum about the robot's centre of mass, (kg m^2/s)^2 (mjlab).

    Args:
        sensor_name: a sensor of kind ``subtreeangmom`` of the root body.
    """
    return torch.sum(torch.square(_read(env, sensor_name)), dim=1)


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


class action_acc_l2:
    """Squared second difference of the raw action, a - 2 a_prev + a_prevprev, summed; 0 before an episode."""

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._change = ActionChange(env, path)

    def __call__(self, env: Env) -> Tensor:
        return torch.sum(torch.square(self._change.second_difference(env)), dim=1)

    def reset(self, mask: Tensor) -> None:
        self._change.reset(mask)


def action_l2(env: Env) -> Tensor:
    """Raw action, squared and summed."""
    return torch.sum(torch.square(env.action_manager.action), dim=1)


# Joints ---------------------------------------------------------------------------------------------------------


def joint_pos_limits(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """How far the selected joints are beyond their soft ranges, summed, rad or m."""
    data = env.scene[asset_cfg.name].data
    low, high = data.soft_joint_pos_limits.unbind(dim=1)
    beyond = (low - data.joint_pos).clamp_min(0.0) + (data.joint_pos - high).clamp_min(0.0)
    return torch.sum(beyond[:, asset_cfg.joint_ids], dim=1)


def joint_vel_l1(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Magnitudes of joint velocities, summed, rad/s or m/s."""
    return torch.sum(_joints(env, asset_cfg, "joint_vel").abs(), dim=1)


def joint_vel_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Joint velocities, squared and summed."""
    return torch.sum(torch.square(_joints(env, asset_cfg, "joint_vel")), dim=1)


def joint_acc_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Joint accelerations of the last substep, squared and summed."""
    return torch.sum(torch.square(_joints(env, asset_cfg, "joint_acc")), dim=1)


class joint_torques_l2:
    """Forces of the selected actuators in the last substep, squared and summed, (N m)^2.

    Params:
        asset_cfg: actuators by their own names, or by those of the joints that they drive; by default all.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        asset_cfg = cfg.params.get("asset_cfg", SceneEntityCfg())
        chosen = find_actuators(env.scene[asset_cfg.name].index, asset_cfg)
        self._actuators = env.arena.constant(f"{path}/actuators", chosen, torch.int64, "actuators that count")

    def __call__(self, env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
        return torch.sum(torch.square(env.scene[asset_cfg.name].data.actuator_force[:, self._actuators]), dim=1)


class electrical_power_cost:
    """Positive mechanical power of the selected actuators that drive a joint, summed, W; the last substep's forces.

    Params:
        asset_cfg: actuators by their own names, or by those of the joints that they drive; by default all.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        asset_cfg = cfg.params.get("asset_cfg", SceneEntityCfg())
        entity = env.scene[asset_cfg.name]
        pairs = [(a, int(entity.index.actuator_joint[a])) for a in find_actuators(entity.index, asset_cfg)]
        pairs = [(a, j) for a, j in pairs if j >= 0]
        self._data = entity.data
        constant = env.arena.constant
        self._actuators = constant(f"{path}/actuators", [a for a, _ in pairs], torch.int64, "those that drive a joint")
        self._joints = constant(f"{path}/joints", [j for _, j in pairs], torch.int64, "the joint of each of them")

    def __call__(self, env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
        power = self._data.actuator_force[:, self._actuators] * self._data.joint_vel[:, self._joints]
        return torch.sum(power.clamp_min(0.0), dim=1)


# Contacts -------------------------------------------------------------------------------------------------------


def undesired_contacts(env: Env, sensor_names: Names, force_threshold: NotNegative = 1.0) -> Tensor:
    """Number of these contact sensors whose net force exceeds ``force_threshold``, N.

    Of sensors that look at every substep in any of the control step's.
    """
    return torch.sum(touched(env, sensor_names, force_threshold), dim=1, dtype=torch.float32)


def contact_forces(env: Env, threshold: NotNegative, sensor_names: Names) -> Tensor:
    """By how much the net forces of these contact sensors exceed ``threshold``, N, summed (Isaac Lab).

    Of sensors that look at every substep the largest of the control step counts.
    """
    peaks = [torch.linalg.vector_norm(env.scene[name].forces, dim=-1).amax(dim=1) for name in sensor_names]
    return torch.sum((torch.stack(peaks, dim=1) - threshold).clamp_min(0.0), dim=1)


def self_collision_cost(env: Env, sensor_name: str, force_threshold: NotNegative = 10.0) -> Tensor:
    """Number of substeps in which the net force of the robot on itself exceeds ``force_threshold``, N (mjlab).

    Without ``every_substep`` of the sensor the last substep alone counts, 0 or 1: a weight from mjlab then stands for
    one substep.

    Args:
        sensor_name: ``SensorCfg(name, "contact", ROOT, objtype="subtree", ref=ROOT, reftype="subtree",
            every_substep=True)``.
    """
    norm = torch.linalg.vector_norm(env.scene[sensor_name].forces, dim=-1)
    return torch.sum(norm > force_threshold, dim=1, dtype=torch.float32)
