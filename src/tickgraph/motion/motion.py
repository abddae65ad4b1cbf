"""A motion as a file brings it, checked and in the skeleton's order; and what a file may hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.motion.clip import Clip, Tell, make_clip
from tickgraph.motion.resample import frames_at
from tickgraph.motion.skeleton import Skeleton

MAX_BYTES = 1 << 30
MAX_FRAMES = 500_000  # 2.8 hours at 50 frames per second, 0.8 GB with all bodies
MIN_FPS, MAX_FPS = 1e-3, 1000.0
UNIT_TOLERANCE = 1e-3  # a quaternion's length may differ from 1 by this much; it is scaled to 1
JOINT_SUFFIX = "_joint"
_ROUNDING = 1e-6  # frames
_SHOWN = 8  # names in an error

Floats = NDArray[np.float64]


@dataclass
class Motion:
    """One motion, not yet resampled. float64 arrays: T frames, J joints in the skeleton's order.

    Attributes:
        name: the file's name without its ending.
        fps: frames per second.
        root_pos, root_quat, joint_pos: (T, 3) m, (T, 4) w x y z of length 1, (T, J) rad.
        notes: what was assumed or seems odd, a line each.
    """

    name: str
    skeleton: Skeleton
    fps: float
    root_pos: Floats
    root_quat: Floats
    joint_pos: Floats
    notes: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        """Number of frames, T."""
        return len(self.root_pos)

    def part(self, start: float = 0.0, end: float = math.inf) -> Motion:
        """Return the frames between two times in the motion, s, both included.

        Raises:
            TickgraphError: there are none.
        """
        first = max(0, math.ceil(min(start * self.fps, self.frames) - _ROUNDING))
        last = int(min(self.frames - 1, end * self.fps + _ROUNDING))
        if first > last:
            length, until = (self.frames - 1) / self.fps, f" to {end:g}" if end < math.inf else ""
            raise TickgraphError(f"{self.name} has no frame from {start:g}{until} s; it goes from 0 to {length:g} s")
        pick = slice(first, last + 1)
        parts = {name: getattr(self, name)[pick] for name in ("root_pos", "root_quat", "joint_pos")}
        return replace(self, **parts)

    def clip(self, fps: float | None = None, tell: Tell | None = None) -> Clip:
        """Return the clip at `fps` frames per second, by default its own.

        Raises:
            TickgraphError: the clip would have more than MAX_FRAMES frames, or float32 cannot hold its numbers.
        """
        target = self.fps if fps is None else checked_fps(fps, "the clip")
        count = frames_at(self.frames, self.fps, target)
        if count > MAX_FRAMES:
            raise TickgraphError(f"{self.name} would have {count:,} frames at {target:g} fps; {_cut()}")
        parts = (torch.from_numpy(part) for part in (self.root_pos, self.root_quat, self.joint_pos))
        clip = make_clip(self.name, self.skeleton, *parts, self.fps, target, tell)
        for what in ("joint_pos", "joint_vel", "body_pos_w", "body_lin_vel_w", "body_ang_vel_w"):
            finite = torch.isfinite(getattr(clip, what)).flatten(1).all(dim=1)
            if not finite.all():
                frame = int(finite.int().argmin())
                raise TickgraphError(
                    f"{self.name}: {what} at {frame / target:g} s is beyond {torch.finfo(torch.float32).max:.1g}, "
                    "more than float32 holds"
                )
        return replace(clip, notes=tuple(self.notes))


def check_size(path: Path, size: int) -> None:
    """Raise TickgraphError for what is larger than MAX_BYTES; nothing of it has been read."""
    if size > MAX_BYTES:
        raise TickgraphError(
            f"{path} holds {size / 1e9:.1f} GB, the limit for a motion file is {MAX_BYTES / 1e9:.1f} GB; {_cut()}"
        )


def check_frames(path: Path, count: int) -> None:
    """Raise TickgraphError for more than MAX_FRAMES frames."""
    if count > MAX_FRAMES:
        raise TickgraphError(f"{path} holds {count:,} frames or more; {_cut()}")


def checked_fps(fps: float, where: str | Path) -> float:
    """Return frames per second; raises TickgraphError where they cannot be."""
    if not MIN_FPS <= fps <= MAX_FPS:
        raise TickgraphError(f"{where}: fps is {fps:g}, expected {MIN_FPS:g} to {MAX_FPS:g}")
    return float(fps)


def unit_quaternions(quat: Floats, path: Path, place: Callable[[int], str]) -> Floats:
    """Return quaternions (T, ..., 4) scaled to length 1.

    Args:
        quat: of length 1 within UNIT_TOLERANCE.
        path: for the error.
        place: says where in the file a frame is.

    Raises:
        TickgraphError: one is further off; it is named with its length.
    """
    length = np.linalg.norm(quat, axis=-1)
    off = np.abs(length - 1.0)
    worst = np.unravel_index(int(np.argmax(off)), off.shape)
    if off[worst] > UNIT_TOLERANCE:
        raise TickgraphError(
            f"{path}: the quaternion of {place(int(worst[0]))} has length {length[worst]:.4g}, expected 1 within "
            f"{UNIT_TOLERANCE:g}; are these the quaternion's columns?"
        )
    return quat / length[..., None]


def order_of(names: Sequence[str], wanted: Sequence[str], path: Path, what: str) -> list[int]:
    """Return for each wanted name its place in `names`; joints may lack the ending "_joint".

    Raises:
        TickgraphError: a name is missing, unknown or there twice; the first of them are named.
    """
    full = [name if name in wanted else f"{name}{JOINT_SUFFIX}" for name in names]
    unknown = [name for name, other in zip(names, full, strict=True) if other not in wanted]
    missing = [name for name in wanted if name not in full]
    twice = sorted({name for name in full if full.count(name) > 1 and name in wanted})
    parts = [f"lacks {shown(missing)}"] if missing else []
    parts += [f"has {shown(twice)} twice"] if twice else []
    parts += [f"has unknown {shown(unknown)}{_meant(unknown, wanted)}"] if unknown else []
    if parts:
        raise TickgraphError(f"{path}: of the robot's {len(wanted)} {what}s the file {'; it '.join(parts)}")
    return [full.index(name) for name in wanted]


def shown(names: Sequence[str]) -> str:
    """Return names as words, the first few of many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _meant(unknown: list[str], wanted: Sequence[str]) -> str:
    hint = nearby(unknown[0], wanted)
    return f" ({hint})" if hint else ""


def _cut() -> str:
    return f"cut it into clips of at most {MAX_FRAMES:,} frames"
