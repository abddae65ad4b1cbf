"""A clip: one motion of one robot at one rate, with the pose and velocity of every body in every frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickgraph.motion.resample import angular_rates, rates, resample
from tickgraph.motion.skeleton import Skeleton

_CHUNK = 4096  # frames whose bodies are computed at once; bounds memory and lets progress be told
Tell = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class Clip:
    """One motion. float32 tensors on the CPU: T frames, J joints, B bodies, the first of which is the root.

    Attributes:
        name: short name for tables.
        fps: frames per second.
        joint_names, body_names: in the order of the skeleton.
        joint_pos, joint_vel: (T, J) rad, rad/s.
        body_pos_w, body_quat_w: (T, B, 3) m, (T, B, 4) w x y z, in the world.
        body_lin_vel_w, body_ang_vel_w: (T, B, 3) m/s of the body frame's origin, rad/s, in the world.
        notes: what was assumed of its file or seems odd there, a line each.
    """

    name: str
    fps: float
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    joint_pos: Tensor
    joint_vel: Tensor
    body_pos_w: Tensor
    body_quat_w: Tensor
    body_lin_vel_w: Tensor
    body_ang_vel_w: Tensor
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Number of frames, T."""
        return int(self.joint_pos.shape[0])

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last."""
        return (self.frames - 1) / self.fps

    @property
    def qpos(self) -> Tensor:
        """(T, 7 + J): root position, root quaternion w x y z, joints."""
        return torch.cat((self.body_pos_w[:, 0], self.body_quat_w[:, 0], self.joint_pos), dim=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a motion file holds: float32 arrays under the usual keys, and the names."""
        keys = ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
        return {
            "fps": _fps_array(self.fps),
            **{key: getattr(self, key).numpy() for key in keys},
            "joint_names": np.array(self.joint_names),
            "body_names": np.array(self.body_names),
        }

    def short_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the short form, from which everything else follows: positions alone, and the joints' names."""
        return {
            "fps": _fps_array(self.fps),
            "qpos": self.qpos.numpy(),
            "joint_names": np.array(self.joint_names),
        }


def make_clip(
    name: str,
    skeleton: Skeleton,
    root_pos: Tensor,
    root_quat: Tensor,
    joint_pos: Tensor,
    fps: float,
    target: float | None = None,
    tell: Tell | None = None,
) -> Clip:
    """Return the clip of a motion: resampled to `target` frames per second, with velocities and all bodies.

    Args:
        name: short name.
        skeleton: whose joints these are.
        root_pos: (T, 3) m.
        root_quat: (T, 4) w x y z, of length 1, of either sign.
        joint_pos: (T, J) rad, in the skeleton's order.
        fps: frames per second.
        target: frames per second of the clip, by default `fps`.
        tell: hears of progress.
    """
    rate = fps if target is None else target
    root_pos, root_quat, joint_pos = resample(root_pos, root_quat, joint_pos, fps, rate)
    motion = (root_pos, root_quat, joint_pos, rates(root_pos, rate), angular_rates(root_quat, rate))
    motion = (*motion, rates(joint_pos, rate))
    frames, bodies = len(root_pos), len(skeleton.body_names)
    out = [torch.empty(frames, bodies, width) for width in (3, 4, 3, 3)]
    for start in range(0, frames, _CHUNK):
        pos, quat, joints, *velocity = (part[start : start + _CHUNK] for part in motion)
        pose = skeleton.forward(pos, quat, joints)
        for tensor, part in zip(out, (*pose, *skeleton.velocities(*pose, *velocity)), strict=True):
            tensor[start : start + _CHUNK] = part
        if tell is not None:
            tell("bodies", min(start + _CHUNK, frames), frames)
    return Clip(name, rate, skeleton.joint_names, skeleton.body_names, joint_pos.float(), motion[5].float(), *out)


def _fps_array(fps: float) -> NDArray[Any]:
    return np.array([int(fps)] if float(fps).is_integer() else [fps])
