"""Observations, terminations and metrics of motion tracking, of N worlds, B tracked bodies, J joints; SI units.

Terminations compare the new state with the frame that the policy saw. ``_b`` is the frame of the robot's anchor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.bounds import Names, NotNegative
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.env.scene import Index
from tickgraph.mdp.motion_command import ERRORS, MotionCommand

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def motion_of(env: Env, command_name: str) -> MotionCommand:
    """Return a motion command by name; raises TickgraphError where there is none, or it is another command."""
    term = env.command_manager.term(command_name)
    if not isinstance(term, MotionCommand):
        raise TickgraphError(f"command {command_name!r} is a {type(term).__name__}, expected a MotionCommand")
    return term


def body_index(env: Env, cfg: Any, path: str) -> Index:
    """Return where a term's ``body_names`` stand among the tracked bodies of its ``command_name``; all by default."""
    names = cfg.params.get("body_names")
    if names is None:
        return slice(None)
    columns = motion_of(env, cfg.params["command_name"]).body_columns(names)
    return env.arena.constant(f"{path}/columns", columns, torch.int64, "the term's bodies among the tracked ones")


# Observations -----------------------------------------------------------------------------------------------------


def motion_anchor_pos_b(env: Env, command_name: str) -> Tensor:
    """(N, 3) m, from the robot's anchor to the reference's."""
    motion = motion_of(env, command_name)
    return rotation.quat_apply_inverse(motion.robot_anchor_quat_w, motion.anchor_pos_w - motion.robot_anchor_pos_w)


def motion_anchor_ori_b(env: Env, command_name: str) -> Tensor:
    """(N, 6) first two columns of the matrix of the reference's anchor, row after row."""
    motion = motion_of(env, command_name)
    turn = rotation.quat_mul(rotation.quat_conjugate(motion.robot_anchor_quat_w), motion.anchor_quat_w)
    return rotation.matrix_to_rot6(rotation.quat_to_matrix(turn))


def robot_body_pos_b(env: Env, command_name: str) -> Tensor:
    """(N, 3 B) m, the robot's tracked bodies."""
    motion = motion_of(env, command_name)
    offset = motion.robot_body_pos_w - motion.robot_anchor_pos_w[:, None]
    return rotation.quat_apply_inverse(motion.robot_anchor_quat_w[:, None], offset).flatten(1)


def robot_body_ori_b(env: Env, command_name: str) -> Tensor:
    """(N, 6 B) first two columns of the matrices of the robot's tracked bodies, row after row."""
    motion = motion_of(env, command_name)
    turn = rotation.quat_mul(rotation.quat_conjugate(motion.robot_anchor_quat_w)[:, None], motion.robot_body_quat_w)
    return rotation.matrix_to_rot6(rotation.quat_to_matrix(turn)).flatten(1)


# Terminations -----------------------------------------------------------------------------------------------------


def bad_anchor_pos_z_only(env: Env, command_name: str, threshold: NotNegative) -> Tensor:
    """The anchor's height is off by more than ``threshold``, m."""
    motion = motion_of(env, command_name)
    return (motion.anchor_pos_w[:, 2] - motion.robot_anchor_pos_w[:, 2]).abs() > threshold


def bad_anchor_ori(env: Env, command_name: str, threshold: NotNegative) -> Tensor:
    """z of gravity's direction in the anchor's frame is off by more than ``threshold``; from upright, 0.8 is 78 deg."""
    motion = motion_of(env, command_name)
    return (_vertical(motion.anchor_quat_w) - _vertical(motion.robot_anchor_quat_w)).abs() > threshold


class bad_motion_body_pos_z_only:
    """The height of any of the bodies is off by more than ``threshold``, m, from the re-anchored reference.

    Params:
        command_name: a motion command.
        threshold: m.
        body_names: some of the tracked bodies; by default all.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self._columns = body_index(env, cfg, path)

    def __call__(self, env: Env, command_name: str, threshold: NotNegative, body_names: Names | None = None) -> Tensor:
        motion = motion_of(env, command_name)
        error = (motion.body_pos_relative_w - motion.robot_body_pos_w)[:, self._columns, 2]
        return (error.abs() > threshold).any(dim=1)


def motion_clip_end(env: Env, command_name: str) -> Tensor:
    """The step was the one to the clip's last frame; never where the command wraps instead."""
    motion = motion_of(env, command_name)
    return motion.clip_end if motion.cfg.truncate_on_clip_end else torch.zeros_like(env.terminated)


motion_clip_end.is_time_out = True


def _vertical(quat: Tensor) -> Tensor:
    """Return (N,): z of gravity's direction in the frame; -1 upright."""
    return 2.0 * (quat[:, 1] ** 2 + quat[:, 2] ** 2) - 1.0


# Metrics ----------------------------------------------------------------------------------------------------------


def motion_error(env: Env, command_name: str, name: str) -> Tensor:
    """(N,) one of ``ERRORS`` of the tick's new state, under the frame that it was judged by: m, rad, m/s or rad/s."""
    if name not in ERRORS:
        hint = nearby(name, ERRORS) or f"there are {', '.join(ERRORS)}"
        raise TickgraphError(f"a motion has no error {name!r}; {hint}")
    return motion_of(env, command_name).errors[:, ERRORS.index(name)]


# Signals for evaluation, under the frame that the tick's new state was judged by -------------------------------------


def motion_clip(env: Env, command_name: str) -> Tensor:
    """(N, 2) int64: each world's clip, and how many frames that has."""
    motion = motion_of(env, command_name)
    return torch.stack((motion.clip, motion.library.length[motion.clip]), dim=1)


def motion_joint_error(env: Env, command_name: str) -> Tensor:
    """(N, J) rad, magnitude of each joint's error."""
    motion = motion_of(env, command_name)
    return (motion.judged_frame().joint_pos - motion.robot_joint_pos).abs()


def motion_body_error(env: Env, command_name: str) -> Tensor:
    """(N, B) m, how far each tracked body is from its reference in the world."""
    motion = motion_of(env, command_name)
    return torch.linalg.vector_norm(motion.judged_frame().body_pos_w - motion.robot_body_pos_w, dim=-1)


def motion_body_error_from_root(env: Env, command_name: str) -> Tensor:
    """(N, B) m, the same once the roots are put together; the roots' orientations stay as they are."""
    motion = motion_of(env, command_name)
    frame = motion.judged_frame()
    between = motion.robot_root_pos_w - frame.root_pos
    return torch.linalg.vector_norm(frame.body_pos_w + between[:, None] - motion.robot_body_pos_w, dim=-1)


def motion_anchor_error(env: Env, command_name: str) -> Tensor:
    """(N, 3) m, from the reference's anchor to the robot's, in the world."""
    motion = motion_of(env, command_name)
    return motion.robot_anchor_pos_w - motion.judged_frame().body_pos_w[:, motion.anchor]
