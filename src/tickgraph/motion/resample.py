"""A motion at another rate, and its velocities: quaternions turn the shorter way, whatever their signs."""

from __future__ import annotations

import torch
from torch import Tensor

from tickgraph.core.rotation import normalize, quat_box_minus


def continuous(quat: Tensor) -> Tensor:
    """Return quaternions (T, ..., 4) with signs such that each is the nearer one to its predecessor."""
    dots = (quat[1:] * quat[:-1]).sum(dim=-1, keepdim=True)
    flips = torch.where(dots < 0.0, -1.0, 1.0).to(quat.dtype)
    return quat * torch.cat((torch.ones_like(quat[:1, ..., :1]), torch.cumprod(flips, dim=0)))


def slerp(a: Tensor, b: Tensor, fraction: Tensor) -> Tensor:
    """Return the rotation that is `fraction` (..., 1) of the shorter way from a to b, unit quaternions (..., 4)."""
    b = torch.where((a * b).sum(dim=-1, keepdim=True) < 0.0, -b, b)
    # Half angles from lengths: acos loses half the digits where rotations are close, as frames are.
    angle = 2.0 * torch.atan2((a - b).norm(dim=-1, keepdim=True), (a + b).norm(dim=-1, keepdim=True))
    sine = torch.sin(angle)
    close = sine < 1e-9
    sine = torch.where(close, 1.0, sine)
    left = torch.where(close, 1.0 - fraction, torch.sin((1.0 - fraction) * angle) / sine)
    right = torch.where(close, fraction, torch.sin(fraction * angle) / sine)
    return normalize(left * a + right * b)


def frames_at(frames: int, fps: float, target: float) -> int:
    """Return how many frames at `target` per second fit in the time from the first frame to the last."""
    return int((frames - 1) / fps * target + 1e-6) + 1


def resample(
    root_pos: Tensor, root_quat: Tensor, joint_pos: Tensor, fps: float, target: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the motion at `target` frames per second: straight lines between frames, the shorter way for rotations.

    Args:
        root_pos: (T, 3) m.
        root_quat: (T, 4) w x y z, of length 1.
        joint_pos: (T, J) rad.
        fps: frames per second of these; the first and the last frame are (T - 1) / fps apart.
        target: frames per second of the result, which begins with the same frame and ends at or just before the last.
    """
    root_quat = continuous(root_quat)
    count = root_pos.shape[0]
    if fps == target or count == 1:
        return root_pos, root_quat, joint_pos
    place = torch.arange(frames_at(count, fps, target), dtype=torch.float64) * (fps / target)
    before = (place + 1e-6).floor().long().clamp(max=count - 2)
    fraction = (place - before).clamp(0.0, 1.0)[:, None]
    after = before + 1
    return (
        torch.lerp(root_pos[before], root_pos[after], fraction),
        slerp(root_quat[before], root_quat[after], fraction),
        torch.lerp(joint_pos[before], joint_pos[after], fraction),
    )


def rates(values: Tensor, fps: float) -> Tensor:
    """Return the derivative (T, ...) by central differences, one-sided at both ends, 0 for a single frame."""
    if values.shape[0] == 1:
        return torch.zeros_like(values)
    return torch.gradient(values, spacing=1.0 / fps, dim=0)[0]


def angular_rates(quat: Tensor, fps: float) -> Tensor:
    """Return angular velocities (T, 3), rad/s in the world, of unit quaternions (T, 4); differences as in `rates`."""
    count = quat.shape[0]
    if count == 1:
        return torch.zeros_like(quat[:, :3])
    index = torch.arange(count)
    after, before = (index + 1).clamp(max=count - 1), (index - 1).clamp(min=0)
    return quat_box_minus(quat[after], quat[before]) * (fps / (after - before)[:, None])
