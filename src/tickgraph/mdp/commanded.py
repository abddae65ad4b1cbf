"""How fast a velocity command wants the robot to go, for terms that act only where it shall move, or shall stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def planar_speed(env: Env, command_name: str) -> Tensor:
    """Return |v_xy| (N,), m/s, of a velocity command; turning does not count, as in Isaac Lab's terms."""
    return torch.linalg.vector_norm(env.command_manager.get_command(command_name)[:, :2], dim=1)


def commanded_speed(env: Env, command_name: str) -> Tensor:
    """Return |v_xy| + |w_z| (N,), m/s + rad/s, of a velocity command, as mjlab's terms have it."""
    return planar_speed(env, command_name) + env.command_manager.get_command(command_name)[:, 2].abs()


def where_moving(env: Env, value: Tensor, command_name: str | None, threshold: float) -> Tensor:
    """Return (N,) ``value`` where the command's |v_xy| + |w_z| exceeds ``threshold``, else 0; as it is for None."""
    if command_name is None:
        return value
    return torch.where(commanded_speed(env, command_name) > threshold, value, 0.0)
