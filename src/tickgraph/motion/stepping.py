"""Where feet and centre of mass are while a robot steps: swings that leave the ground first, weight over the foot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GRAVITY = 9.81
_WARP = 0.15  # share of a swing at either end in which a foot only rises or sinks
_REST = 0.6  # s at both ends of a clip in which the centre of mass is led to and from rest


@dataclass(frozen=True)
class Step:
    """One foot goes to a place: the weight moves off it, then it swings.

    Args:
        foot: 0 left, 1 right.
        to: x, y (m) and yaw (rad) of the foot's body.
        shift: s in which the weight moves over to the other foot.
        swing: s in the air.
        lift: m, highest point.
    """

    foot: int
    to: tuple[float, float, float]
    shift: float = 0.2
    swing: float = 0.4
    lift: float = 0.06


def ease(x: Tensor) -> Tensor:
    """Return 0 to 1 as x goes from 0 to 1, with velocity and acceleration 0 at both ends."""
    x = x.clamp(0.0, 1.0)
    return x * x * x * (10.0 - 15.0 * x + 6.0 * x * x)


def rise_and_fall(time: Tensor, start: float, end: float, ramp: float) -> Tensor:
    """Return 0, then 1 from start + ramp to end - ramp, then 0 again; smooth. Times in s."""
    return ease((time - start) / ramp) * ease((end - time) / ramp)


def steps_from(
    time: Tensor, places: Sequence[tuple[float, float, float]], steps: Sequence[Step], start: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the feet's places (T, 2, 3) (x, y, yaw), heights (T, 2) and each one's share of the weight (T, 2).

    Args:
        time: (T,) s.
        places: x, y, yaw of the left and the right foot at first.
        steps: one after another, without a pause.
        start: s, when the first begins.
    """
    place = torch.tensor(places, dtype=time.dtype).expand(len(time), 2, 3).clone()
    height, share = torch.zeros(len(time), 2, dtype=time.dtype), torch.full((len(time), 2), 0.5, dtype=time.dtype)
    for step in steps:
        weight = torch.zeros(2, dtype=time.dtype)
        weight[1 - step.foot] = 1.0
        share = torch.lerp(share, weight.expand_as(share), ease((time - start) / step.shift)[:, None])
        progress = ((time - start - step.shift) / step.swing).clamp(0.0, 1.0)
        there = torch.tensor(step.to, dtype=time.dtype)
        forward = ease((progress - _WARP) / (1.0 - 2.0 * _WARP))[:, None]
        place[:, step.foot] = torch.lerp(place[:, step.foot], there.expand(len(time), 3), forward)
        height[:, step.foot] += step.lift * torch.sin(torch.pi * progress) ** 2
        start += step.shift + step.swing
    share = torch.lerp(share, torch.full_like(share, 0.5), ease((time - start) / 0.3)[:, None])
    return place, height, share


def balanced(pressure: Tensor, fps: float, height: float) -> Tensor:
    """Return the path (T, ...) of a centre of mass whose weight presses on the ground at `pressure` (T, ...), m.

    The linear inverted pendulum of constant height (m): y - (height / g) y'' = pressure, at rest at both ends.
    """
    count = len(pressure)
    stiffness = height / GRAVITY * fps * fps
    matrix = torch.eye(count, dtype=pressure.dtype)
    inner = torch.arange(1, count - 1)
    matrix[inner, inner] += 2.0 * stiffness
    matrix[inner, inner - 1] = matrix[inner, inner + 1] = -stiffness
    path = torch.linalg.solve(matrix, pressure.reshape(count, -1)).reshape(pressure.shape)
    time = torch.arange(count, dtype=pressure.dtype) / fps
    settle = ease(time / _REST) * ease((time[-1] - time) / _REST)
    return torch.lerp(pressure, path, settle.reshape(-1, *[1] * (pressure.dim() - 1)))
