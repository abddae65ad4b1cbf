"""Leg joints that put the feet where they should be, for all frames at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tickgraph.core.rotation import quat_box_minus
from tickgraph.motion.skeleton import Skeleton

_ITERATIONS = 60
_DAMPING = 1e-6
_STEP = 0.4  # rad, largest change of a joint in one iteration
_TOLERANCE = 1e-7  # m and rad


def solve_legs(
    skeleton: Skeleton, root_pos: Tensor, root_quat: Tensor, joint_pos: Tensor, foot_pos: Tensor, foot_quat: Tensor
) -> Tensor:
    """Return joints (T, J) whose legs put the feet at given poses; all other joints stay as they are.

    Newton's method on position and rotation of each foot, from the legs of `joint_pos`.

    Args:
        skeleton: of F feet, each at the end of a chain of six joints.
        root_pos, root_quat: (T, 3), (T, 4).
        joint_pos: (T, J) rad; the legs are where the search begins, so that knees bend as they do there.
        foot_pos, foot_quat: (T, F, 3), (T, F, 4) of the feet's bodies in the world.

    Raises:
        ValueError: a foot is out of reach in some frame.
    """
    joint_pos = joint_pos.clone()
    chains = [skeleton.chain(foot) for foot in skeleton.feet]
    for _ in range(_ITERATIONS):
        body_pos, body_quat = skeleton.forward(root_pos, root_quat, joint_pos)
        worst = 0.0
        for i, (foot, chain) in enumerate(zip(skeleton.feet, chains, strict=True)):
            turn = quat_box_minus(foot_quat[:, i], body_quat[:, foot])
            error = torch.cat((foot_pos[:, i] - body_pos[:, foot], turn), dim=1)
            worst = max(worst, float(error.abs().max()))
            axes = skeleton.axes(body_quat, chain)
            arms = body_pos[:, foot, None] - body_pos[:, chain]
            jacobian = torch.cat((torch.linalg.cross(axes, arms), axes), dim=-1).transpose(1, 2)
            square = jacobian @ jacobian.transpose(1, 2) + _DAMPING * torch.eye(6, dtype=error.dtype)
            change = (jacobian.transpose(1, 2) @ torch.linalg.solve(square, error)[..., None])[..., 0]
            joints = [skeleton.joint_of[body] for body in chain]
            joint_pos[:, joints] += change.clamp(-_STEP, _STEP)
        if worst < _TOLERANCE:
            return joint_pos
    raise ValueError(f"a foot is {worst:.3g} m or rad from where it should be; is it out of reach?")
