"""Event terms: write the state of the worlds of a mask, at a reset, after an interval or each tick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.rng import Stream
from tickgraph.env.scene import Index, SceneEntity
from tickgraph.mdp.observations import ROBOT
from tickgraph.mdp.ranges import Range, check_range

if TYPE_CHECKING:
    from tickgraph.env.env import Env

AXES = ("x", "y", "z", "roll", "pitch", "yaw")


def reset_scene_to_default(env: Env, mask: Tensor) -> None:
    """Stage the initial state of every entity. A reset begins with this anyway; other events may want it too."""
    env.scene.reset(mask)


class SixRanges:
    """Ranges of x y z (m or m/s) and roll pitch yaw (rad or rad/s) as tensors; an axis that is not named stays 0."""

    def __init__(self, env: Env, path: str, what: str, ranges: Mapping[str, Range] | None) -> None:
        ranges = ranges or {}
        for axis, pair in ranges.items():
            if axis not in AXES:
                raise TickgraphError(
                    f"{path}: {what} has no axis {axis!r}; {nearby(axis, AXES) or 'it has ' + ', '.join(AXES)}"
                )
            check_range(pair, f"{path}: {what} of {axis}")
        self.name = what
        self._rng = env.rng.stream(path)
        low, high = ([float(ranges.get(axis, (0.0, 0.0))[i]) for axis in AXES] for i in (0, 1))
        self.low = env.arena.constant(f"{path}/{what}_low", low, torch.float32, "x y z roll pitch yaw")
        self.high = env.arena.constant(f"{path}/{what}_high", high, torch.float32, "x y z roll pitch yaw")

    def draw(self) -> Tensor:
        """Return (N, 6)."""
        return self._rng.uniform(self.name, 6, self.low, self.high)


class reset_root_state_uniform:
    """Move the staged root pose and velocity by uniform draws.

    Params:
        pose_range: {axis: (low, high)} of x y z, m, in the world, and roll pitch yaw, rad, about the root's own axes.
        velocity_range: {axis: (low, high)}, m/s and rad/s, in the world.
        asset_cfg: the entity; it must have a floating base.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._pose = SixRanges(env, path, "pose_range", cfg.params.get("pose_range"))
        self._velocity = SixRanges(env, path, "velocity_range", cfg.params.get("velocity_range"))

    def __call__(
        self,
        env: Env,
        mask: Tensor,
        pose_range: Mapping[str, Range] | None = None,
        velocity_range: Mapping[str, Range] | None = None,
        asset_cfg: SceneEntity = ROBOT,
    ) -> None:
        entity = env.scene[asset_cfg.name]
        pose, velocity = entity.staged_root_pose(), entity.staged_root_velocity()
        move = self._pose.draw()
        turn = rotation.quat_from_euler_xyz(move[:, 3], move[:, 4], move[:, 5])
        quat = rotation.quat_mul(pose[:, 3:], turn)
        entity.write_root_link_pose_to_sim(torch.cat((pose[:, :3] + move[:, :3], quat), dim=1), mask)
        entity.write_root_link_velocity_to_sim(velocity + self._velocity.draw(), mask)


class push_by_setting_velocity:
    """Add a uniform draw to the root's velocity, as a sudden push does. Meant for mode ``interval``.

    Params:
        velocity_range: {axis: (low, high)}, m/s and rad/s, in the world.
        asset_cfg: the entity; it must have a floating base.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._velocity = SixRanges(env, path, "velocity_range", cfg.params.get("velocity_range"))

    def __call__(
        self, env: Env, mask: Tensor, velocity_range: Mapping[str, Range], asset_cfg: SceneEntity = ROBOT
    ) -> None:
        entity = env.scene[asset_cfg.name]
        entity.write_root_link_velocity_to_sim(entity.staged_root_velocity() + self._velocity.draw(), mask)


def reset_joints_by_offset(
    env: Env,
    mask: Tensor,
    position_range: Range,
    velocity_range: Range = (0.0, 0.0),
    asset_cfg: SceneEntity = ROBOT,
    *,
    rng: Stream,
) -> None:
    """Add uniform draws to the staged positions (then kept within the soft range) and velocities of joints.

    Args:
        position_range: rad or m.
        velocity_range: rad/s or m/s.
        asset_cfg: the joints.
    """
    _write_joints(env, mask, position_range, velocity_range, asset_cfg, rng, scale=False)


def reset_joints_by_scale(
    env: Env,
    mask: Tensor,
    position_range: Range,
    velocity_range: Range = (1.0, 1.0),
    asset_cfg: SceneEntity = ROBOT,
    *,
    rng: Stream,
) -> None:
    """Multiply the staged positions (then kept within the soft range) and velocities of joints by uniform draws."""
    _write_joints(env, mask, position_range, velocity_range, asset_cfg, rng, scale=True)


def _write_joints(
    env: Env, mask: Tensor, position: Range, velocity: Range, asset_cfg: SceneEntity, rng: Stream, scale: bool
) -> None:
    entity = env.scene[asset_cfg.name]
    old_pos, old_vel = entity.staged_joint_pos(), entity.staged_joint_vel()
    count = old_pos.shape[1]
    by_pos, by_vel = rng.uniform("position", count, *position), rng.uniform("velocity", count, *velocity)
    pos, vel = (old_pos * by_pos, old_vel * by_vel) if scale else (old_pos + by_pos, old_vel + by_vel)
    pos = torch.clamp(pos, *entity.data.soft_joint_pos_limits.unbind(dim=1))
    entity.write_joint_state_to_sim(_only(pos, old_pos, asset_cfg), _only(vel, old_vel, asset_cfg), mask)


def _only(new: Tensor, old: Tensor, asset_cfg: SceneEntity) -> Tensor:
    """Return new in the selected joints, old in the others, (N, J)."""
    ids: Index = asset_cfg.joint_ids
    return new if isinstance(ids, slice) else old.index_copy(1, ids, new[:, ids])
