"""Motions that can be checked by hand, and the files of the field's cases."""

import math
from pathlib import Path

import numpy as np
import torch

from tickgraph.motion.clip import Clip, make_clip
from tickgraph.motion.skeleton import g1_skeleton

SKELETON = g1_skeleton()
J = len(SKELETON.joint_names)
KNEE = SKELETON.joint_names.index("left_knee_joint")
LACKING = ("waist_roll", "waist_pitch", *(f"{s}_wrist_{a}" for s in ("left", "right") for a in ("pitch", "yaw")))


def rows() -> np.ndarray:
    """31 frames at 30 fps: 1 m/s along x, 0.5 rad/s of yaw as x y z w with odd rows negated, one knee moving."""
    table = np.zeros((31, 7 + J))
    for i, row in enumerate(table):
        t = i / 30
        row[:3] = (t, 0.0, 0.78)
        row[3:7] = np.array([0.0, 0.0, math.sin(0.25 * t), math.cos(0.25 * t)]) * (-1 if i % 2 else 1)
        row[7 + KNEE] = 0.5 + 0.2 * math.sin(2.0 * math.pi * t)
    return table


def write(path: Path, table: np.ndarray, header: list[str] | None = None) -> Path:
    """Write numbers as a CSV file."""
    lines = [",".join(header)] if header else []
    lines += [",".join(f"{number:.9f}" for number in row) for row in table]
    path.write_text("\n".join(lines) + "\n")
    return path


def still(frames: int, name: str = "still", x: float = 0.0) -> Clip:
    """Return a clip that does not move but for the first joint, which holds the frame's number."""
    root = torch.tensor([[x, 0.0, 0.8]], dtype=torch.float64).expand(frames, 3)
    quat = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64).expand(frames, 4)
    joints = torch.zeros(frames, J, dtype=torch.float64)
    joints[:, 0] = torch.arange(frames)
    return make_clip(name, SKELETON, root, quat, joints, 50.0)
