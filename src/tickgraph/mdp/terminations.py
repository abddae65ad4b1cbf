"""Termination terms, (N,) bool of N worlds; a time-out ends an episode without being a fall."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from tickgraph.core.bounds import Finite, Limits, Names, NotNegative, Positive
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.observations import ROBOT, touched, up_vector

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def time_out(env: Env) -> Tensor:
    """The episode has lasted ``episode_length_s``."""
    return env.episode_length >= env.max_episode_length


# Terminations with this mark are time-outs also where the task forgets to say so.
time_out.is_time_out = True


def bad_orientation(env: Env, limit_angle: NotNegative, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """The root link, or the one body selected, is tilted by more than ``limit_angle``, rad."""
    return up_vector(env, asset_cfg)[:, 2] < math.cos(limit_angle)


def root_height_below_minimum(env: Env, minimum_height: Finite, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """The root link is lower than ``minimum_height``, m in the world: for flat ground."""
    return env.scene[asset_cfg.name].data.root_link_pos_w[:, 2] < minimum_height


def joint_pos_out_of_limit(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """A selected joint is beyond its soft range."""
    data = env.scene[asset_cfg.name].data
    outside = (data.joint_pos < data.soft_joint_pos_limits[:, 0]) | (data.joint_pos > data.soft_joint_pos_limits[:, 1])
    return outside[:, asset_cfg.joint_ids].any(dim=1)


def joint_pos_out_of_manual_limit(env: Env, bounds: Limits, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """A selected joint is outside ``bounds``, rad or m."""
    position = env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]
    return ((position < bounds[0]) | (position > bounds[1])).any(dim=1)


def joint_vel_out_of_manual_limit(env: Env, max_velocity: Positive, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """A selected joint is faster than ``max_velocity``, rad/s or m/s."""
    return (env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids].abs() > max_velocity).any(dim=1)


def illegal_contact(env: Env, sensor_names: Names, force_threshold: NotNegative = 1.0) -> Tensor:
    """The net force of one of these contact sensors exceeds ``force_threshold``, N.

    Of sensors that look at every substep in any of the control step's.
    """
    return touched(env, sensor_names, force_threshold).any(dim=1)
