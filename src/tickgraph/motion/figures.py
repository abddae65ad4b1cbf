"""What a clip is like, in numbers: length, ranges, foot contact and slide, jumps, violations of joint limits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tickgraph.core.rotation import quat_error_magnitude
from tickgraph.motion.clip import Clip
from tickgraph.motion.skeleton import Skeleton

CONTACT_HEIGHT = 0.02  # m, of a sole's lowest point: lower counts as contact
JUMP_JOINT_SPEED = 30.0  # rad/s; more from one frame to the next is a jump, as are the two below
JUMP_ROOT_SPEED = 8.0  # m/s
JUMP_ROOT_TURN = 20.0  # rad/s
_LIMIT_SLACK = 1e-4  # rad, for rounding
_SHOWN_JUMPS = 20


def figures(clip: Clip, skeleton: Skeleton) -> dict[str, Any]:
    """Return plain data: general figures, and tables under ``joints``, ``feet`` and ``jumps``."""
    joints, feet, jumps = _joints(clip, skeleton), [_foot(clip, skeleton, i) for i in (0, 1)], _jumps(clip)
    root = clip.body_pos_w[:, 0].double()
    return {
        "name": clip.name,
        "frames": clip.frames,
        "fps": clip.fps,
        "seconds": clip.seconds,
        "root_min": root.amin(dim=0).tolist(),
        "root_max": root.amax(dim=0).tolist(),
        "root_path": float((root[1:, :2] - root[:-1, :2]).norm(dim=1).sum()),
        "root_speed_max": float(clip.body_lin_vel_w[:, 0].norm(dim=1).max()),
        "root_turn_max": float(clip.body_ang_vel_w[:, 0].norm(dim=1).max()),
        "joint_speed_max": float(clip.joint_vel.abs().max()),
        "limit_violations": sum(1 for joint in joints if joint["frames_outside"]),
        "jump_count": len(jumps),
        "lowest_sole": min(foot["lowest"] for foot in feet),
        "joints": joints,
        "feet": feet,
        "jumps": jumps[:_SHOWN_JUMPS],
    }


def _joints(clip: Clip, skeleton: Skeleton) -> list[dict[str, Any]]:
    limits = skeleton.joint_range
    position = clip.joint_pos.double()
    excess = torch.maximum(limits[:, 0] - position, position - limits[:, 1]).clamp(min=0.0)
    outside = excess > _LIMIT_SLACK
    return [
        {
            "joint": name,
            "min": float(position[:, i].min()),
            "max": float(position[:, i].max()),
            "limits": limits[i].tolist(),
            "speed_max": float(clip.joint_vel[:, i].abs().max()),
            "frames_outside": int(outside[:, i].sum()),
            "worst_excess": float(excess[:, i].max()),
        }
        for i, name in enumerate(clip.joint_names)
    ]


def _foot(clip: Clip, skeleton: Skeleton, foot: int) -> dict[str, Any]:
    points = skeleton.sole_points(clip.body_pos_w.double(), clip.body_quat_w.double(), foot)
    height = points[..., 2]
    low = height < CONTACT_HEIGHT
    speed, both = slide_speeds(points, clip.fps)
    sliding = both.any(dim=1)
    return {
        "foot": clip.body_names[skeleton.feet[foot]],
        "contact": float(low.any(dim=1).double().mean()),
        "contacts": int((low.any(dim=1)[1:] & ~low.any(dim=1)[:-1]).sum()) + int(low[0].any()),
        "lowest": float(height.min()),
        "highest": float(height.amin(dim=1).max()),
        "slide_mean": float(speed[sliding].mean()) if bool(sliding.any()) else 0.0,
        "slide_max": float(speed.max()) if len(speed) else 0.0,
    }


def slide_speeds(points: Tensor, fps: float) -> tuple[Tensor, Tensor]:
    """Return how fast a sole slides, (T - 1,) m/s, and which points touch, (T - 1, P) bool.

    A point touches between two frames if it is lower than CONTACT_HEIGHT in both; the speed is the mean over those.

    Args:
        points: (T, P, 3) m, of one sole.
        fps: frames per second.
    """
    low = points[..., 2] < CONTACT_HEIGHT
    both = low[1:] & low[:-1]
    speed = (points[1:, :, :2] - points[:-1, :, :2]).norm(dim=-1) * fps
    return (speed * both).sum(dim=1) / both.sum(dim=1).clamp(min=1), both


def _jumps(clip: Clip) -> list[dict[str, Any]]:
    """Return what moves further from one frame to the next than a robot can."""
    if clip.frames < 2:
        return []
    joints = (clip.joint_pos[1:] - clip.joint_pos[:-1]).abs().amax(dim=1) * clip.fps
    root = (clip.body_pos_w[1:, 0] - clip.body_pos_w[:-1, 0]).norm(dim=1) * clip.fps
    quat = clip.body_quat_w[:, 0].double()
    turn = quat_error_magnitude(quat[1:], quat[:-1]) * clip.fps
    kinds = (
        ("joint", joints, JUMP_JOINT_SPEED, "rad/s"),
        ("root", root, JUMP_ROOT_SPEED, "m/s"),
        ("root rotation", turn, JUMP_ROOT_TURN, "rad/s"),
    )
    found = [
        {"frame": i + 1, "seconds": (i + 1) / clip.fps, "what": what, "speed": float(speed[i]), "unit": unit}
        for what, speed, limit, unit in kinds
        for i in torch.nonzero(speed > limit)[:, 0].tolist()
    ]
    return sorted(found, key=lambda jump: jump["frame"])
