"""The gait clock: phases in radians, their share of a cycle, and the foot height that a phase asks for."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def wrap_to_pi(angle: Tensor) -> Tensor:
    """Return angles (...), rad, wrapped into [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


def cycle_fraction(phase: Tensor) -> Tensor:
    """Return the share (...) in [0, 1) of the cycle that phases (...), rad, have gone through since phase 0."""
    return torch.remainder(phase / (2.0 * math.pi), 1.0)


def gait_foot_height(phase: Tensor, swing_height: float) -> Tensor:
    """Return the height (...), m, that a foot should have: 0 at phase -pi, ``swing_height`` at 0, 0 again at pi.

    A smooth step up over the first half of the cycle and down over the second: vertical speed is 0 at both ends.

    Args:
        phase: (...) rad.
        swing_height: m, above the height of the foot when it stands.
    """
    x = torch.remainder(phase + math.pi, 2.0 * math.pi) / (2.0 * math.pi)
    rising = x <= 0.5
    t = torch.where(rising, 2.0 * x, 2.0 * x - 1.0)
    step = t * t * (3.0 - 2.0 * t)
    return swing_height * torch.where(rising, step, 1.0 - step)
