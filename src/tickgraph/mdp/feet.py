"""Reward terms about feet, (N,) float32 of N worlds: gait clock, swing height, orientation, slip, time in the air."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Names, NotNegative, Positive, Share
from tickgraph.core.masked import fill_rows
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.gait import cycle_fraction, foot_height
from tickgraph.mdp.observations import contacts

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def feet_phase(env: Env, command_name: str, swing_height: Finite, sigma: Positive, asset_cfg: SceneEntity) -> Tensor:
    """exp(-sum over feet of (height - foot_height(phase))^2 / sigma), for flat ground.

    Args:
        command_name: a gait command of F phases, rad.
        swing_height: m, highest point of a swing.
        sigma: m^2.
        asset_cfg: F sites at the soles, in the order of the phases (``preserve_order=True``).
    """
    phase = env.command_manager.get_command(command_name)
    height = env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2]
    error = height - foot_height(phase, swing_height)
    return torch.exp(-torch.sum(error * error, dim=1) / sigma)


def swing_foot_height(
    env: Env, command_name: str, target_height: Finite, sigma: Positive, stance_fraction: Share, asset_cfg: SceneEntity
) -> Tensor:
    """Mean over feet of exp(-(height - target)^2 / sigma), counted only for feet whose clock says swing.

    Args:
        command_name: a gait command of F phases, rad.
        target_height: m in the world: for flat ground.
        sigma: m^2.
        stance_fraction: a foot swings once its cycle has gone this far, 0 to 1.
        asset_cfg: F sites at the feet, in the order of the phases (``preserve_order=True``).
    """
    swing = cycle_fraction(env.command_manager.get_command(command_name)) >= stance_fraction
    error = env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2] - target_height
    return torch.where(swing, torch.exp(-error * error / sigma), 0.0).mean(dim=1)


def swing_foot_arc(
    env: Env,
    command_name: str,
    stance_height: Finite,
    target_height: Finite,
    sigma: Positive,
    stance_fraction: Share,
    asset_cfg: SceneEntity,
) -> Tensor:
    """exp(-sum over feet of (height - arc)^2 / sigma): the arc is half a sine over the swing, flat in stance.

    All feet have to follow at once, so that dragging one of them costs as much as dragging all.

    Args:
        command_name: a gait command of F phases, rad.
        stance_height, target_height: m in the world, lowest and highest point of the arc: for flat ground.
        sigma: m^2.
        stance_fraction: a foot swings once its cycle has gone this far, 0 to 1.
        asset_cfg: F sites at the feet, in the order of the phases (``preserve_order=True``).
    """
    cycle = cycle_fraction(env.command_manager.get_command(command_name))
    swing = ((cycle - stance_fraction) / (1.0 - stance_fraction)).clamp(min=0.0)
    arc = stance_height + (target_height - stance_height) * torch.sin(math.pi * swing)
    error = env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2] - arc
    return torch.exp(-torch.sum(error * error, dim=1) / sigma)


def gait_contact(
    env: Env, command_name: str, stance_fraction: Share, sensor_names: Names, force_threshold: NotNegative = 0.1
) -> Tensor:
    """Share of the feet that touch the ground exactly when their clock says stance.

    Args:
        command_name: a gait command of F phases, rad.
        stance_fraction: a foot stands during this first part of its cycle, 0 to 1.
        sensor_names: F contact sensors, in the order of the phases.
        force_threshold: N, above which a foot touches.
    """
    stance = cycle_fraction(env.command_manager.get_command(command_name)) < stance_fraction
    return (contacts(env, sensor_names, force_threshold) == stance).to(torch.float32).mean(dim=1)


def feet_orientation_l2(env: Env, asset_cfg: SceneEntity) -> Tensor:
    """Sum over the selected bodies of q_x^2 + q_y^2 of their orientation: sin^2 of half the tilt, whatever the yaw."""
    quat = env.scene[asset_cfg.name].data.body_link_quat_w[:, asset_cfg.body_ids]
    return torch.sum(torch.square(quat[..., 1:3]), dim=(1, 2))


def feet_slide(env: Env, sensor_names: Names, asset_cfg: SceneEntity, force_threshold: NotNegative = 1.0) -> Tensor:
    """Sum over feet in contact of their horizontal speed, m/s.

    Args:
        sensor_names: F contact sensors.
        asset_cfg: F bodies in the same order (``preserve_order=True``).
        force_threshold: N, above which a foot touches.
    """
    speed = torch.linalg.vector_norm(
        env.scene[asset_cfg.name].data.body_link_lin_vel_w[:, asset_cfg.body_ids, :2], dim=-1
    )
    return torch.sum(torch.where(contacts(env, sensor_names, force_threshold), speed, 0.0), dim=1)


class feet_air_time:
    """Sum over feet that touch down in this tick of (time in the air - threshold), s; 0 while the command is small.

    Params:
        sensor_names: F contact sensors.
        threshold: s, a shorter step is punished.
        command_name: a command whose norm must exceed ``command_threshold``.
        force_threshold: N, above which a foot touches.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        shape = (env.num_envs, len(cfg.params["sensor_names"]))
        self.air_time = env.arena.new(f"{path}/air_time", shape, why="seconds since each foot left the ground")

    def __call__(
        self,
        env: Env,
        sensor_names: Names,
        threshold: Finite,
        command_name: str,
        command_threshold: float = 0.1,
        force_threshold: NotNegative = 1.0,
    ) -> Tensor:
        contact = contacts(env, sensor_names, force_threshold)
        landed = contact & (self.air_time > 0.0)
        reward = torch.sum(torch.where(landed, self.air_time - threshold, 0.0), dim=1)
        self.air_time.copy_(torch.where(contact, 0.0, self.air_time + env.step_dt))
        moving = torch.linalg.vector_norm(env.command_manager.get_command(command_name), dim=1) > command_threshold
        return torch.where(moving, reward, 0.0)

    def reset(self, mask: Tensor) -> None:
        fill_rows(self.air_time, mask, 0.0)
