"""A pose in the root link's frame that a body shall reach, and how far it is from that, (N,) float32 (Isaac Lab)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Positive
from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import assign_rows
from tickgraph.core.rotation import quat_apply, quat_error_magnitude, quat_from_euler_xyz, quat_mul
from tickgraph.env.config import CommandTermCfg
from tickgraph.env.managers import CommandTerm
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.ranges import Range

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class UniformPoseCommand(CommandTerm):
    """Position (m) and quaternion (w x y z, w >= 0) in the root link's frame, (N, 7), drawn uniformly.

    Attributes:
        ranges: (6, 2) float32, low and high of x, y, z, roll, pitch, yaw; a curriculum may write it.
    """

    cfg: UniformPoseCommandCfg

    def __init__(self, cfg: UniformPoseCommandCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        self.ranges = env.arena.new(f"{path}/ranges", (6, 2), why="low and high of x y z roll pitch yaw")
        self.ranges.copy_(torch.tensor(astuple(cfg.ranges), dtype=torch.float32))
        self._pose = env.arena.new(f"{path}/pose", (env.num_envs, 7), why="pose to reach, in the root link's frame")

    @property
    def command(self) -> Tensor:
        return self._pose

    def resample(self, mask: Tensor) -> None:
        drawn = self.rng.uniform("pose", 6, self.ranges[:, 0], self.ranges[:, 1])
        quat = quat_from_euler_xyz(*drawn[:, 3:].unbind(dim=1))
        quat = torch.where(quat[:, :1] < 0.0, -quat, quat)  # q and -q are one rotation
        assign_rows(self._pose, mask, torch.cat((drawn[:, :3], quat), dim=1))


@dataclass
class PoseRanges:
    """Low and high of x, y, z (m) and of roll, pitch, yaw (rad, about fixed axes) in the root link's frame."""

    pos_x: Range = (0.0, 0.0)
    pos_y: Range = (0.0, 0.0)
    pos_z: Range = (0.0, 0.0)
    roll: Range = (0.0, 0.0)
    pitch: Range = (0.0, 0.0)
    yaw: Range = (0.0, 0.0)


@dataclass
class UniformPoseCommandCfg(CommandTermCfg):
    """A pose command; which body shall reach it is said by the terms that compare."""

    class_type: Callable[..., Any] | None = UniformPoseCommand
    ranges: PoseRanges = field(default_factory=PoseRanges)

    Ranges = PoseRanges


def position_command_error(env: Env, command_name: str, asset_cfg: SceneEntity) -> Tensor:
    """Distance of the one body or site selected from the commanded position, m.

    Args:
        command_name: a command whose first three columns are a position in the root link's frame.
        asset_cfg: one body or one site.
    """
    data = env.scene[asset_cfg.name].data
    wanted = quat_apply(data.root_link_quat_w, env.command_manager.get_command(command_name)[:, :3])
    by_site = not isinstance(asset_cfg.site_ids, slice)
    at = data.site_pos_w[:, asset_cfg.site_ids] if by_site else data.body_link_pos_w[:, asset_cfg.body_ids]
    return torch.linalg.vector_norm(_one(at, asset_cfg) - data.root_link_pos_w - wanted, dim=1)


def position_command_error_tanh(env: Env, std: Positive, command_name: str, asset_cfg: SceneEntity) -> Tensor:
    """1 - tanh(`position_command_error` / ``std``): 1 at the commanded position.

    Args:
        std: m.
    """
    return 1.0 - torch.tanh(position_command_error(env, command_name, asset_cfg) / std)


def orientation_command_error(env: Env, command_name: str, asset_cfg: SceneEntity) -> Tensor:
    """Angle between the one body selected and the commanded orientation, rad, the shorter way.

    Args:
        command_name: a command whose columns 3 to 6 are a quaternion in the root link's frame.
        asset_cfg: one body.
    """
    data = env.scene[asset_cfg.name].data
    wanted = quat_mul(data.root_link_quat_w, env.command_manager.get_command(command_name)[:, 3:7])
    return quat_error_magnitude(_one(data.body_link_quat_w[:, asset_cfg.body_ids], asset_cfg), wanted)


def _one(values: Tensor, asset_cfg: SceneEntity) -> Tensor:
    """Return (N, ...) of (N, 1, ...); refuse a selector of several bodies, or of none."""
    if values.shape[1] != 1:
        raise TickgraphError(
            f"the selector of {asset_cfg.name!r} selects {values.shape[1]} bodies or sites, expected one; say which by "
            "body_names or site_names"
        )
    return values[:, 0]
