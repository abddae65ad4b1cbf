"""Observation terms: (N, D) float32 of N worlds; SI units, radians; _w world frame, _b the root link's frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.bounds import Names, NotNegative
from tickgraph.core.errors import TickgraphError
from tickgraph.env.scene import SceneEntity

if TYPE_CHECKING:
    from tickgraph.env.env import Env

ROBOT = SceneEntity("robot")


# Root link ------------------------------------------------------------------------------------------------------


def base_lin_vel(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) m/s, linear velocity of the root link's origin in its own frame."""
    return env.scene[asset_cfg.name].data.root_link_lin_vel_b


def base_ang_vel(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) rad/s, angular velocity of the root link in its own frame."""
    return env.scene[asset_cfg.name].data.root_link_ang_vel_b


def root_lin_vel_w(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) m/s, linear velocity of the root link's origin in the world."""
    return env.scene[asset_cfg.name].data.root_link_lin_vel_w


def root_ang_vel_w(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) rad/s, angular velocity of the root link in the world."""
    return env.scene[asset_cfg.name].data.root_link_ang_vel_w


def base_pos_z(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 1) m, height of the root link in the world."""
    return env.scene[asset_cfg.name].data.root_link_pos_w[:, 2:]


def root_pos_w(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) m, position of the root link."""
    return env.scene[asset_cfg.name].data.root_link_pos_w


def root_quat_w(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 4) w x y z, orientation of the root link, with w >= 0 (q and -q are one rotation)."""
    quat = env.scene[asset_cfg.name].data.root_link_quat_w
    return torch.where(quat[:, :1] < 0.0, -quat, quat)


def projected_gravity(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) direction of gravity in the frame of the root link, or of the one body selected; (0, 0, -1) upright."""
    return -up_vector(env, asset_cfg)


def up_vector(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3) direction against gravity in the frame of the root link or of the one body selected; upright (0, 0, 1)."""
    data = env.scene[asset_cfg.name].data
    if isinstance(asset_cfg.body_ids, slice):
        return -data.projected_gravity_b
    if asset_cfg.body_ids.shape[0] != 1:
        raise TickgraphError(
            f"the selector of {asset_cfg.name!r} names {asset_cfg.body_ids.shape[0]} bodies, expected one"
        )
    w, x, y, z = data.body_link_quat_w[:, asset_cfg.body_ids][:, 0].unbind(-1)
    # The third row of the body's rotation matrix is the world's z axis in the body's frame.
    return torch.stack((2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)), dim=-1)


# Joints ---------------------------------------------------------------------------------------------------------


def joint_pos(env: Env, asset_cfg: SceneEntity = ROBOT, biased: bool = False) -> Tensor:
    """(N, J) rad or m, positions of the selected joints; biased: as their encoders read them."""
    data = env.scene[asset_cfg.name].data
    return (data.joint_pos_biased if biased else data.joint_pos)[:, asset_cfg.joint_ids]


def joint_vel(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, J) rad/s or m/s, velocities of the selected joints."""
    return env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids]


def joint_pos_rel(env: Env, asset_cfg: SceneEntity = ROBOT, biased: bool = False) -> Tensor:
    """(N, J) rad or m, positions of the selected joints less their initial ones; biased: as encoders read them."""
    data = env.scene[asset_cfg.name].data
    position = data.joint_pos_biased if biased else data.joint_pos
    return (position - data.default_joint_pos)[:, asset_cfg.joint_ids]


def joint_pos_limit_normalized(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, J) positions of the selected joints in their soft ranges, -1 at the low end to 1 (Isaac Lab)."""
    data = env.scene[asset_cfg.name].data
    low, high = data.soft_joint_pos_limits.unbind(dim=1)
    return (2.0 * (data.joint_pos - (low + high) / 2.0) / (high - low))[:, asset_cfg.joint_ids]


def joint_vel_rel(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, J) rad/s or m/s, velocities of the selected joints less their initial velocities."""
    data = env.scene[asset_cfg.name].data
    return (data.joint_vel - data.default_joint_vel)[:, asset_cfg.joint_ids]


def joint_pos_sin_cos(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 2 J) cosines, then sines of the selected joints: an angle without a jump at pi."""
    angle = joint_pos(env, asset_cfg)
    return torch.cat((torch.cos(angle), torch.sin(angle)), dim=1)


# Actions, commands, sensors -------------------------------------------------------------------------------------


def last_action(env: Env, action_name: str | None = None) -> Tensor:
    """(N, A) raw action of the tick that ended, of one action term or of all; 0 at the start of an episode."""
    manager = env.action_manager
    if action_name is None:
        return manager.action
    manager.term(action_name)
    start = 0
    for name, dim in manager.dims.items():
        if name == action_name:
            break
        start += dim
    return manager.action[:, start : start + dim]


def generated_commands(env: Env, command_name: str) -> Tensor:
    """(N, C) the command."""
    return env.command_manager.get_command(command_name)


def gait_phase(env: Env, command_name: str) -> Tensor:
    """(N, F) rad in [-pi, pi), phase of each foot."""
    return env.command_manager.get_command(command_name)


def gait_clock(env: Env, command_name: str) -> Tensor:
    """(N, 2) sine and cosine of the first foot's phase: unlike an angle it does not jump where a cycle begins anew."""
    phase = env.command_manager.get_command(command_name)[:, :1]
    return torch.cat((torch.sin(phase), torch.cos(phase)), dim=1)


def builtin_sensor(env: Env, sensor_name: str) -> Tensor:
    """(N, D) values of a MuJoCo sensor of the scene, in its own units and frame."""
    return env.scene[sensor_name].data


# Bodies and feet ------------------------------------------------------------------------------------------------


def body_pos_b(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, 3 B) m, origins of the selected bodies in the frame of the root link."""
    data = env.scene[asset_cfg.name].data
    offset = data.body_link_pos_w[:, asset_cfg.body_ids] - data.root_link_pos_w[:, None]
    return rotation.quat_apply_inverse(data.root_link_quat_w[:, None], offset).flatten(1)


def site_height(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """(N, S) m, height of the selected sites in the world."""
    return env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2]


def contact_found(env: Env, sensor_names: Names, force_threshold: NotNegative = 0.0) -> Tensor:
    """(N, K) 1 where a contact sensor's net force exceeds a threshold (N), else 0; of the last substep.

    Right after a reset, before anything has moved, no contact is known and the value is 0.
    """
    return contacts(env, sensor_names, force_threshold).to(torch.float32)


def contacts(env: Env, sensor_names: Names, force_threshold: NotNegative = 0.0) -> Tensor:
    """Return (N, K) bool: each contact sensor's net force exceeds a threshold, N."""
    force = torch.stack([env.scene[name].force for name in sensor_names], dim=1)
    return torch.linalg.vector_norm(force, dim=-1) > force_threshold


def touched(env: Env, sensor_names: Names, force_threshold: float) -> Tensor:
    """Return (N, K) bool: the same, of sensors with ``every_substep`` in any substep of the control step."""
    norms = (torch.linalg.vector_norm(env.scene[name].forces, dim=-1) for name in sensor_names)
    return torch.stack([(norm > force_threshold).any(dim=1) for norm in norms], dim=1)


def foot_air_time(env: Env, sensor_names: Names) -> Tensor:
    """(N, K) s, time in the air so far of contact sensors with ``track_air_time``; 0 in contact (mjlab)."""
    return sensor_times(env, sensor_names, "current_air_time")


def foot_contact_forces(env: Env, sensor_names: Names) -> Tensor:
    """(N, 3 K) sign(f) log(1 + |f|) of contact sensors' net forces, N in the world, of the last substep (mjlab)."""
    force = torch.cat([env.scene[name].force for name in sensor_names], dim=1)
    return torch.sign(force) * torch.log1p(force.abs())


def sensor_times(env: Env, sensor_names: Names, which: str) -> Tensor:
    """Return (N, K) s: one of the times of contact sensors with ``track_air_time``, such as ``last_air_time``."""
    return torch.stack([getattr(env.scene[name], which) for name in sensor_names], dim=1)


def first_contacts(env: Env, sensor_names: Names) -> Tensor:
    """Return (N, K) bool: each of these contact sensors touched down in this step."""
    return torch.stack([env.scene[name].first_contact for name in sensor_names], dim=1)
