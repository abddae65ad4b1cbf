"""Rewards of motion tracking: (N,) float32 of N worlds, 1 where the new state is the frame that the policy saw.

The form is exp(-e / std^2), e the squared error, a mean over bodies or joints (BeyondMimic, arXiv 2508.08241).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.bounds import Finite, Names, Positive
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.motion_terms import body_index, motion_of
from tickgraph.mdp.observations import ROBOT

if TYPE_CHECKING:
    from tickgraph.env.env import Env
    from tickgraph.mdp.motion_command import MotionCommand


def motion_global_anchor_position_error_exp(env: Env, command_name: str, std: Positive) -> Tensor:
    """The anchor's position; ``std`` in m."""
    motion = motion_of(env, command_name)
    error = torch.square(motion.anchor_pos_w - motion.robot_anchor_pos_w).sum(dim=-1)
    return torch.exp(-error / std**2)


def motion_global_anchor_orientation_error_exp(env: Env, command_name: str, std: Positive) -> Tensor:
    """The anchor's orientation; ``std`` in rad."""
    motion = motion_of(env, command_name)
    error = rotation.quat_error_magnitude(motion.anchor_quat_w, motion.robot_anchor_quat_w)
    return torch.exp(-torch.square(error) / std**2)


class _BodyReward:
    """A squared error of each tracked body, averaged over some of them, in a bell curve.

    Params:
        command_name: a motion command.
        std: width of the bell, in the error's unit.
        body_names: some of the tracked bodies; by default all.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._columns = body_index(env, cfg, path)

    def __call__(self, env: Env, command_name: str, std: Positive, body_names: Names | None = None) -> Tensor:
        error = self.squared_error(motion_of(env, command_name))[:, self._columns]
        return torch.exp(-error.mean(dim=-1) / std**2)

    def squared_error(self, motion: MotionCommand) -> Tensor:
        """Return (N, B)."""
        raise NotImplementedError


class motion_relative_body_position_error_exp(_BodyReward):
    """Positions of the bodies against the re-anchored reference; ``std`` in m."""

    def squared_error(self, motion: MotionCommand) -> Tensor:
        return torch.square(motion.body_pos_relative_w - motion.robot_body_pos_w).sum(dim=-1)


class motion_relative_body_orientation_error_exp(_BodyReward):
    """Orientations of the bodies against the re-anchored reference; ``std`` in rad."""

    def squared_error(self, motion: MotionCommand) -> Tensor:
        return torch.square(rotation.quat_error_magnitude(motion.body_quat_relative_w, motion.robot_body_quat_w))


class motion_global_body_linear_velocity_error_exp(_BodyReward):
    """Velocities of the bodies' origins in the world; ``std`` in m/s."""

    def squared_error(self, motion: MotionCommand) -> Tensor:
        return torch.square(motion.reference.body_lin_vel_w - motion.robot_body_lin_vel_w).sum(dim=-1)


class motion_global_body_angular_velocity_error_exp(_BodyReward):
    """Angular velocities of the bodies in the world; ``std`` in rad/s."""

    def squared_error(self, motion: MotionCommand) -> Tensor:
        return torch.square(motion.reference.body_ang_vel_w - motion.robot_body_ang_vel_w).sum(dim=-1)


def motion_joint_position_error_exp(env: Env, command_name: str, std: Positive) -> Tensor:
    """Joint positions, the mean over joints; ``std`` in rad."""
    motion = motion_of(env, command_name)
    error = torch.square(motion.reference.joint_pos - motion.robot_joint_pos)
    return torch.exp(-error.mean(dim=-1) / std**2)


def motion_joint_velocity_error_exp(env: Env, command_name: str, std: Positive) -> Tensor:
    """Joint velocities, the mean over joints; ``std`` in rad/s."""
    motion = motion_of(env, command_name)
    error = torch.square(motion.reference.joint_vel - motion.robot_joint_vel)
    return torch.exp(-error.mean(dim=-1) / std**2)


# What keeps the motion sane -----------------------------------------------------------------------------------------


def joint_pos_hard_limits_l2(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """How far the selected joints are beyond their hard ranges, squared and summed, rad or m."""
    data = env.scene[asset_cfg.name].data
    low, high = data.joint_pos_limits.unbind(dim=1)
    beyond = (low - data.joint_pos).clamp_min(0.0) + (data.joint_pos - high).clamp_min(0.0)
    return torch.sum(torch.square(beyond[:, asset_cfg.joint_ids]), dim=1)


def bodies_below_height(env: Env, height: Finite, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Number of the selected bodies whose origin is lower than ``height``, m: undesired contacts on flat ground."""
    low = env.scene[asset_cfg.name].data.body_link_pos_w[:, asset_cfg.body_ids, 2] < height
    return torch.sum(low, dim=1, dtype=torch.float32)
