"""Reward terms about feet, (N,) float32 of N worlds: gait clock, swing height, orientation, slip, time in the air."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Names, NotNegative, Positive, Share
from tickgraph.core.masked import fill_rows
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.commanded import planar_speed, where_moving
from tickgraph.mdp.gait import cycle_fraction, gait_foot_height
from tickgraph.mdp.observations import contacts, first_contacts, sensor_times, touched

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def feet_phase(env: Env, command_name: str, swing_height: Finite, sigma: Positive, asset_cfg: SceneEntity) -> Tensor:
    """exp(-sum over feet of (height - gait_foot_height(phase))^2 / sigma), for flat ground.

    Args:
        command_name: a gait command of F phases, rad.
        swing_height: m, highest point of a swing.
        sigma: m^2.
        asset_cfg: F sites at the soles, in the order of the phases (``preserve_order=True``).
    """
    phase = env.command_manager.get_command(command_name)
    height = env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2]
    error = height - gait_foot_height(phase, swing_height)
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
    """Sum over feet in contact of their horizontal speed, m/s (Isaac Lab).

    Args:
        sensor_names: F contact sensors.
        asset_cfg: F bodies in the same order (``preserve_order=True``).
        force_threshold: N, above which a foot touches, in any substep of sensors with ``every_substep``.
    """
    speed = torch.linalg.vector_norm(
        env.scene[asset_cfg.name].data.body_link_lin_vel_w[:, asset_cfg.body_ids, :2], dim=-1
    )
    return torch.sum(torch.where(touched(env, sensor_names, force_threshold), speed, 0.0), dim=1)


def feet_air_time(
    env: Env, sensor_names: Names, threshold: Finite, command_name: str, command_threshold: NotNegative = 0.1
) -> Tensor:
    """Sum over feet that touch down in this step of (time in the air - threshold), s (Isaac Lab).

    0 while the commanded planar velocity is at most ``command_threshold``, m/s.

    Args:
        sensor_names: F contact sensors with ``track_air_time``.
        threshold: s, a shorter step is punished.
        command_name: a velocity command.
    """
    landed, flight = first_contacts(env, sensor_names), sensor_times(env, sensor_names, "last_air_time")
    reward = torch.sum(torch.where(landed, flight - threshold, 0.0), dim=1)
    return torch.where(planar_speed(env, command_name) > command_threshold, reward, 0.0)


def feet_air_time_positive_biped(
    env: Env, sensor_names: Names, threshold: Positive, command_name: str, command_threshold: NotNegative = 0.1
) -> Tensor:
    """While one foot alone stands: how long both feet have been in their phases, s, at most ``threshold``.

    Isaac Lab's term for bipeds. 0 while the commanded planar velocity is at most ``command_threshold``, m/s.

    Args:
        sensor_names: two contact sensors with ``track_air_time``.
        threshold: s.
        command_name: a velocity command.
    """
    touch = sensor_times(env, sensor_names, "current_contact_time")
    stands = touch > 0.0
    phase = torch.where(stands, touch, sensor_times(env, sensor_names, "current_air_time")).amin(dim=1)
    reward = torch.where(stands.sum(dim=1) == 1, phase.clamp_max(threshold), 0.0)
    return torch.where(planar_speed(env, command_name) > command_threshold, reward, 0.0)


def feet_air_time_in_range(
    env: Env,
    sensor_names: Names,
    threshold_min: NotNegative = 0.05,
    threshold_max: Positive = 0.5,
    command_name: str | None = None,
    command_threshold: NotNegative = 0.5,
) -> Tensor:
    """Number of feet whose time in the air so far is between two limits, s (``feet_air_time`` of mjlab).

    Args:
        sensor_names: F contact sensors with ``track_air_time``.
        command_name: a velocity command whose |v_xy| + |w_z| must exceed ``command_threshold``; None: always.
    """
    flight = sensor_times(env, sensor_names, "current_air_time")
    count = ((flight > threshold_min) & (flight < threshold_max)).sum(dim=1, dtype=torch.float32)
    return where_moving(env, count, command_name, command_threshold)


def feet_clearance(
    env: Env,
    target_height: Finite,
    asset_cfg: SceneEntity,
    command_name: str | None = None,
    command_threshold: NotNegative = 0.01,
) -> Tensor:
    """Sum over feet of |height - target| times horizontal speed, m^2/s (mjlab).

    Args:
        target_height: m in the world: for flat ground.
        asset_cfg: F sites at the feet.
        command_name: a velocity command whose |v_xy| + |w_z| must exceed ``command_threshold``; None: always.
    """
    data = env.scene[asset_cfg.name].data
    speed = torch.linalg.vector_norm(data.site_lin_vel_w[:, asset_cfg.site_ids, :2], dim=-1)
    off = (data.site_pos_w[:, asset_cfg.site_ids, 2] - target_height).abs()
    return where_moving(env, torch.sum(off * speed, dim=1), command_name, command_threshold)


def feet_slip(
    env: Env,
    sensor_names: Names,
    asset_cfg: SceneEntity,
    command_name: str | None = None,
    command_threshold: NotNegative = 0.01,
    force_threshold: NotNegative = 1.0,
) -> Tensor:
    """Sum over feet in contact of their squared horizontal speed, (m/s)^2 (mjlab; `feet_slide` is not squared).

    Args:
        sensor_names: F contact sensors.
        asset_cfg: F sites at the feet, in the same order (``preserve_order=True``).
        command_name: a velocity command whose |v_xy| + |w_z| must exceed ``command_threshold``; None: always.
        force_threshold: N, above which a foot touches.
    """
    velocity = env.scene[asset_cfg.name].data.site_lin_vel_w[:, asset_cfg.site_ids, :2]
    slip = torch.where(contacts(env, sensor_names, force_threshold), torch.sum(velocity * velocity, dim=-1), 0.0)
    return where_moving(env, torch.sum(slip, dim=1), command_name, command_threshold)


def soft_landing(
    env: Env, sensor_names: Names, command_name: str | None = None, command_threshold: NotNegative = 0.05
) -> Tensor:
    """Sum over feet that touch down in this step of their net contact force, N (mjlab).

    Args:
        sensor_names: F contact sensors with ``track_air_time``.
        command_name: a velocity command whose |v_xy| + |w_z| must exceed ``command_threshold``; None: always.
    """
    force = torch.stack([env.scene[name].force for name in sensor_names], dim=1)
    impact = torch.where(first_contacts(env, sensor_names), torch.linalg.vector_norm(force, dim=-1), 0.0)
    return where_moving(env, torch.sum(impact, dim=1), command_name, command_threshold)


class feet_swing_height:
    """Sum over feet that touch down in this step of (highest point of the swing / target - 1)^2 (mjlab).

    Params:
        sensor_names: F contact sensors with ``track_air_time``.
        target_height: m in the world: for flat ground.
        command_name: a velocity command whose |v_xy| + |w_z| must exceed ``command_threshold``.
        asset_cfg: F sites at the feet, in the same order (``preserve_order=True``).
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        shape = (env.num_envs, len(cfg.params["sensor_names"]))
        self._peak = env.arena.new(f"{path}/peak", shape, why="highest point of each foot's swing so far, m")

    def __call__(
        self,
        env: Env,
        sensor_names: Names,
        target_height: Positive,
        command_name: str,
        asset_cfg: SceneEntity,
        command_threshold: NotNegative = 0.05,
    ) -> Tensor:
        height = env.scene[asset_cfg.name].data.site_pos_w[:, asset_cfg.site_ids, 2]
        flies = sensor_times(env, sensor_names, "current_air_time") > 0.0
        self._peak.copy_(torch.where(flies, torch.maximum(self._peak, height), self._peak))
        error = torch.square(self._peak / target_height - 1.0)
        cost = torch.sum(torch.where(first_contacts(env, sensor_names), error, 0.0), dim=1)
        self._peak.copy_(torch.where(flies, self._peak, 0.0))
        return where_moving(env, cost, command_name, command_threshold)

    def reset(self, mask: Tensor) -> None:
        fill_rows(self._peak, mask, 0.0)
