"""All clips in one table on the device, one row a frame, and the gather that a tick makes from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.words import counted
from tickgraph.motion.clip import Clip


@dataclass(frozen=True)
class Frames:
    """The reference of N worlds, float32 views of one gathered row a world. J joints, B bodies; all in the world frame.

    Attributes:
        joint_pos, joint_vel: (N, J) rad, rad/s.
        root_pos, root_quat, root_lin_vel, root_ang_vel: (N, 3) m, (N, 4) w x y z, (N, 3) m/s, (N, 3) rad/s.
        body_pos_w, body_quat_w, body_lin_vel_w, body_ang_vel_w: (N, B, 3), (N, B, 4), (N, B, 3), (N, B, 3), same units.
    """

    joint_pos: Tensor
    joint_vel: Tensor
    root_pos: Tensor
    root_quat: Tensor
    root_lin_vel: Tensor
    root_ang_vel: Tensor
    body_pos_w: Tensor
    body_quat_w: Tensor
    body_lin_vel_w: Tensor
    body_ang_vel_w: Tensor


class MotionLibrary:
    """Clips of one robot at one rate. F frames in all, C clips.

    Args:
        clips: at least one, each of at least two frames, all with the same rate and joints.
        arena: takes the table as constants.
        path: folder of their names, e.g. "commands/motion".
        joint_names: the joints, in the order that is wanted; by default those of the clips.
        body_names: the bodies, in the order that is wanted; by default those of the clips.

    Attributes:
        start, length: (C,) int64, each clip's first row and number of frames.
        clip_names, joint_names, body_names: names.
        lengths: the lengths as plain numbers.

    Raises:
        TickgraphError: there is no clip, one is too short, or they do not fit together or the names.
    """

    def __init__(
        self,
        clips: Sequence[Clip],
        arena: Arena,
        path: str,
        joint_names: Sequence[str] | None = None,
        body_names: Sequence[str] | None = None,
    ) -> None:
        if not clips:
            raise TickgraphError("a motion library needs at least one clip")
        first = clips[0]
        for clip in clips:
            if clip.frames < 2:
                raise TickgraphError(f"clip {clip.name!r} holds {clip.frames} frame; a clip needs at least 2")
            if clip.fps != first.fps or clip.joint_names != first.joint_names or clip.body_names != first.body_names:
                raise TickgraphError(
                    f"clips {first.name!r} and {clip.name!r} differ in fps, joints or bodies; load them at one rate"
                )
        self.fps = first.fps
        self.clip_names = tuple(clip.name for clip in clips)
        self.joint_names = tuple(first.joint_names if joint_names is None else joint_names)
        self.body_names = tuple(first.body_names if body_names is None else body_names)
        joints = [_find(name, first.joint_names, "joint") for name in self.joint_names]
        bodies = [_find(name, first.body_names, "body") for name in self.body_names]
        self.lengths = tuple(clip.frames for clip in clips)
        self.table = arena.constant(
            f"{path}/table",
            torch.cat([_rows(clip, joints, bodies) for clip in clips]),
            why=f"{counted(len(clips), 'clip')}, a row for each of {sum(self.lengths)} frames",
        )
        length = torch.tensor(self.lengths)
        start = torch.cumsum(length, dim=0) - length
        self.start = arena.constant(f"{path}/start", start, torch.int64, "first row of each clip")
        self.length = arena.constant(f"{path}/length", length, torch.int64, "frames of each clip")
        self._last = len(clips) - 1

    def frame(self, clip: Tensor, index: Tensor) -> Frames:
        """Return the reference of each world; past a clip's ends it stays at its first or last frame.

        Args:
            clip: (N,) int64 in [0, C).
            index: (N,) int64, frame of that clip.
        """
        return self.split(self.rows(clip, index))

    def rows(self, clip: Tensor, index: Tensor) -> Tensor:
        """Return (N, width) float32 rows of the table, one gather; arguments as for `frame`."""
        clip = clip.clamp(0, self._last)
        index = torch.minimum(index.clamp(min=0), self.length[clip] - 1)
        return torch.index_select(self.table, 0, self.start[clip] + index)

    def split(self, rows: Tensor) -> Frames:
        """Return the parts of (N, width) rows, as views."""
        joints, bodies = len(self.joint_names), len(self.body_names)
        widths = (joints, joints, 3, 4, 3, 3, 3 * bodies, 4 * bodies, 3 * bodies, 3 * bodies)
        *small, pos, quat, linear, angular = torch.split(rows, widths, dim=1)
        return Frames(
            *small,
            body_pos_w=pos.unflatten(1, (bodies, 3)),
            body_quat_w=quat.unflatten(1, (bodies, 4)),
            body_lin_vel_w=linear.unflatten(1, (bodies, 3)),
            body_ang_vel_w=angular.unflatten(1, (bodies, 3)),
        )

    def ended(self, clip: Tensor, index: Tensor) -> Tensor:
        """Return (N,) bool: no frame follows; arguments as for `frame`."""
        return index >= self.length[clip.clamp(0, self._last)] - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.table.numel() * self.table.element_size()

    def summary(self) -> str:
        """Return one line: clips, frames, time and memory."""
        frames = sum(self.lengths)
        return (
            f"{counted(len(self.lengths), 'clip')}, {frames:,} frames at {self.fps:g} fps "
            f"({frames / self.fps:.1f} s), {len(self.body_names)} bodies: {self.nbytes / 2**20:.1f} MiB on "
            f"{self.table.device}"
        )


def _rows(clip: Clip, joints: list[int], bodies: list[int]) -> Tensor:
    """Return (T, width): a row holds everything of a frame, so that one gather fetches it."""
    parts = [clip.joint_pos[:, joints], clip.joint_vel[:, joints]]
    whole = (clip.body_pos_w, clip.body_quat_w, clip.body_lin_vel_w, clip.body_ang_vel_w)
    parts += [values[:, 0] for values in whole]
    parts += [values[:, bodies].flatten(1) for values in whole]
    return torch.cat(parts, dim=1)


def _find(name: str, names: tuple[str, ...], what: str) -> int:
    if name not in names:
        raise TickgraphError(f"the clips have no {what} {name!r}; {nearby(name, names) or f'they have {len(names)}'}")
    return names.index(name)
