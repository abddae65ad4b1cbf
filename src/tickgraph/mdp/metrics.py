"""Metric terms: (N,) float32 of N worlds, logged as means; none of them enters the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Names, NotNegative
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.action_change import ActionChange
from tickgraph.mdp.observations import ROBOT, contacts

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def lin_vel_error(env: Env, command_name: str, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """|v_xy - command_xy|, m/s, in the root link's frame."""
    error = env.command_manager.get_command(command_name)[:, :2]
    error = error - env.scene[asset_cfg.name].data.root_link_lin_vel_b[:, :2]
    return torch.linalg.vector_norm(error, dim=1)


def yaw_rate_error(env: Env, command_name: str, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """|w_z - command_z|, rad/s, in the root link's frame."""
    command = env.command_manager.get_command(command_name)[:, 2]
    return (env.scene[asset_cfg.name].data.root_link_ang_vel_b[:, 2] - command).abs()


def action_saturation(env: Env, threshold: Finite = 0.95) -> Tensor:
    """Share of the raw actions whose magnitude exceeds a threshold."""
    return (env.action_manager.action.abs() > threshold).to(torch.float32).mean(dim=1)


def air_share(env: Env, sensor_names: Names, force_threshold: NotNegative = 1.0) -> Tensor:
    """Share of these contact sensors that touch nothing."""
    return 1.0 - contacts(env, sensor_names, force_threshold).to(torch.float32).mean(dim=1)


class mean_action_acc:
    """Mean over the raw actions of the magnitude of their second difference, a - 2 a_prev + a_prevprev (mjlab)."""

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._change = ActionChange(env, path)

    def __call__(self, env: Env) -> Tensor:
        return self._change.second_difference(env).abs().mean(dim=1)

    def reset(self, mask: Tensor) -> None:
        self._change.reset(mask)
