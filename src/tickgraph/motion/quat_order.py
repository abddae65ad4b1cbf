"""Whether a motion's quaternions are likely in the other order: the robot would stand upright and its feet still."""

from __future__ import annotations

import numpy as np
import torch

from tickgraph.motion.motion import Floats
from tickgraph.motion.skeleton import Skeleton

# Of an order: the other one, and where w x y z of a quaternion stand that should have been read in that one.
OTHER_ORDER = {"xyzw": ("wxyz", [1, 2, 3, 0]), "wxyz": ("xyzw", [3, 0, 1, 2])}
_COMPARED = 500  # frames, spread over the motion
# The other order has to explain the motion much better: people lean and feet slide in sound motions too.
_UPRIGHT, _LEANS_MORE = 30.0, 15.0  # degrees
_SLIDES, _SHARE = 0.1, 0.4  # m/s; of the slide as read


def other_order(
    skeleton: Skeleton, root_pos: Floats, root_quat: Floats, joint_pos: Floats, fps: float, order: str
) -> list[str]:
    """Return a note where the quaternions make more sense in the other order, else nothing.

    A robot that hangs upside down, leans or walks backwards on sliding feet does none of it in the other order, if that
    is the right one. In many headings only the feet tell: read in the wrong order, w = 1 is half a turn about z or x.

    Args:
        skeleton: whose motion this is.
        root_pos, root_quat, joint_pos: (T, 3) m, (T, 4) w x y z as read in `order`, (T, J) rad.
        fps: frames per second.
        order: ``xyzw`` or ``wxyz``.
    """
    other, columns = OTHER_ORDER[order]
    turned = root_quat[:, columns]
    if upside_down(root_quat):
        return [f"the robot is upside down in most frames; if it is not, try --quat {other}"]
    (leans, slides), (would_lean, would_slide) = (
        (_lean(quat), _slide(skeleton, root_pos, quat, joint_pos, fps)) for quat in (root_quat, turned)
    )
    if would_lean < _UPRIGHT and leans > would_lean + _LEANS_MORE:
        better = f"the root leans by {leans:.0f} degrees, and by {would_lean:.0f}"
    elif would_lean < _UPRIGHT and slides > _SLIDES and would_slide < _SHARE * slides:
        better = f"the foot on the ground slides at {slides:.2f} m/s, and at {would_slide:.2f}"
    else:
        return []
    return [f"{better} with the quaternions read as {other}; if that is their order, give --quat {other}"]


def upside_down(quat: Floats) -> bool:
    """Tell whether the root hangs upside down in most frames, as it does where w stands in the wrong place."""
    return bool(np.mean(_up(quat) < -0.5) > 0.5)


def _up(quat: Floats) -> Floats:
    """Return (T,): z of the root's z axis, 1 upright."""
    return 1.0 - 2.0 * (quat[:, 1] ** 2 + quat[:, 2] ** 2)


def _lean(quat: Floats) -> float:
    """Return the median angle between the root's z axis and the vertical, degrees."""
    return float(np.median(np.rad2deg(np.arccos(np.clip(_up(quat), -1.0, 1.0)))))


def _slide(skeleton: Skeleton, pos: Floats, quat: Floats, joints: Floats, fps: float) -> float:
    """Return how fast the lowest point of the soles moves on the average, m/s along the ground."""
    if len(pos) < 2:
        return 0.0
    first = np.unique(np.linspace(0, len(pos) - 2, min(len(pos) - 1, _COMPARED)).astype(int))
    body_pos, body_quat = skeleton.forward(
        *(torch.from_numpy(np.concatenate((part[first], part[first + 1]))) for part in (pos, quat, joints))
    )
    soles = torch.cat([skeleton.sole_points(body_pos, body_quat, foot) for foot in (0, 1)], dim=1)
    before, after = soles.chunk(2)
    lowest = before[..., 2].argmin(dim=1)
    moved = (after - before)[torch.arange(len(first)), lowest, :2]
    return float(moved.norm(dim=1).mean()) * fps
