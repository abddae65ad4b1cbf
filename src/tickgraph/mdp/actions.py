"""Action terms: raw actions become joint position, velocity or effort targets, in the order of the joints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Limits, Patterns
from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import fill_rows
from tickgraph.env.config import ActionTermCfg
from tickgraph.env.managers import ActionTerm
from tickgraph.mdp.matching import match_values

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class JointAction(ActionTerm):
    """``target = offset + scale * raw``, clipped, written to the controls of actuators that drive one joint each.

    The columns of the raw action follow the entity's joints, whatever the order of its actuators, so that they line up
    with ``joint_pos`` and ``joint_vel``; with ``preserve_order`` they follow the expressions instead. Outside an
    episode, and where nothing was sent yet, the target is the clipped offset.

    Attributes:
        actuator_names, actuator_kinds, joint_names: in the order of the columns.
        scale, offset: (dim,) float32, units of the target.
        processed_actions: (N, dim) float32, the last targets.
    """

    kinds: tuple[str, ...] = ("position", "velocity", "motor", "other")

    def __init__(self, cfg: JointActionCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        index = self.entity.index
        chosen = index.find("actuator", cfg.actuator_names or ".*", preserve_order=cfg.preserve_order)
        idle = [index.actuator_names[a] for a in chosen if index.actuator_joint[a] < 0]
        if idle:
            raise TickgraphError(f"{path}: actuator {idle[0]!r} drives no joint; leave it out of actuator_names")
        if not cfg.preserve_order:
            chosen = sorted(chosen, key=lambda a: int(index.actuator_joint[a]))
        for a in chosen:
            if index.actuator_kind[a] not in self.kinds:
                raise TickgraphError(
                    f"{path}: {type(self).__name__} drives actuators of kind {' or '.join(self.kinds)}, but "
                    f"{index.actuator_names[a]!r} is of kind {index.actuator_kind[a]!r}; choose another action term"
                )
        self.actuator_names = tuple(index.actuator_names[a] for a in chosen)
        self.actuator_kinds = tuple(index.actuator_kind[a] for a in chosen)
        joints = [int(index.actuator_joint[a]) for a in chosen]
        self.joint_names = tuple(index.joint_names[j] for j in joints)
        self._dim = len(chosen)
        constant, names = env.arena.constant, self.joint_names
        scale = match_values(cfg.scale, names, f"{path}: scale by joint", default=1.0)
        self.scale = constant(f"{path}/scale", scale, torch.float32, "target per unit of raw action")
        self.offset = constant(f"{path}/offset", self._offsets(cfg, joints), torch.float32, "target of raw action 0")
        self._limits: tuple[Tensor, Tensor] | None = None
        if cfg.clip is not None:
            clip = match_values(cfg.clip, names, f"{path}: clip by joint", default=(-float("inf"), float("inf")))
            low, high = ([pair[i] for pair in clip] for i in (0, 1))
            self._limits = (
                constant(f"{path}/clip_low", low, torch.float32, "smallest target"),
                constant(f"{path}/clip_high", high, torch.float32, "largest target"),
            )
        self._columns = constant(
            f"{path}/ctrl_ids", [int(index.actuator_ids[a]) for a in chosen], torch.int64, "columns of ctrl, by joint"
        )
        shape = (env.num_envs, self._dim)
        self.processed_actions = env.arena.new(f"{path}/target", shape, why="targets of the joints, clipped")

    @property
    def dim(self) -> int:
        return self._dim

    def process(self, raw: Tensor) -> None:
        self.processed_actions.copy_(self._clip(self.offset + self.scale * raw))

    def apply(self) -> None:
        self._env.sim.ctrl.index_copy_(1, self._columns, self.processed_actions)

    def facts(self) -> dict[str, Any]:
        """Return by column joint, actuator and its kind, scale, offset, and limits of the target (None: no limits)."""
        return {
            "joint_names": list(self.joint_names),
            "actuator_names": list(self.actuator_names),
            "actuator_kinds": list(self.actuator_kinds),
            "scale": self.scale.tolist(),
            "offset": self.offset.tolist(),
            "clip": None if self._limits is None else torch.stack(self._limits, dim=1).tolist(),
        }

    def reset(self, mask: Tensor) -> None:
        fill_rows(self.processed_actions, mask, self._clip(self.offset))

    def _clip(self, target: Tensor) -> Tensor:
        return target if self._limits is None else torch.clamp(target, *self._limits)

    def _offsets(self, cfg: JointActionCfg, joints: list[int]) -> list[float]:
        return match_values(cfg.offset, self.joint_names, f"{self.path}: offset by joint", default=0.0)


class JointPositionAction(JointAction):
    """Targets of position actuators, rad or m; by default around the joints' initial positions."""

    kinds = ("position",)

    def _offsets(self, cfg: JointPositionActionCfg, joints: list[int]) -> list[float]:
        given = super()._offsets(cfg, joints)
        if not cfg.use_default_offset:
            return given
        default = self.entity.index.default_joint_pos
        return [float(default[j]) + value for j, value in zip(joints, given, strict=True)]


class JointVelocityAction(JointAction):
    """Targets of velocity actuators, rad/s or m/s."""

    kinds = ("velocity",)


class JointEffortAction(JointAction):
    """Efforts of motors, N m or N before the actuator's own gear and limits."""

    kinds = ("motor",)


@dataclass
class JointActionCfg(ActionTermCfg):
    """Base of joint actions.

    Args:
        actuator_names: regular expressions of actuator names; None is all.
        scale: of the raw action, for all joints or by regular expression of joint names (1 where none matches).
        offset: added to it, likewise (0 where none matches).
        clip: smallest and largest target, likewise (unlimited where none matches).
        preserve_order: columns follow ``actuator_names`` instead of the joints.
    """

    actuator_names: Patterns = (".*",)
    scale: Finite | dict[str, Finite] = 1.0
    offset: Finite | dict[str, Finite] = 0.0
    clip: Limits | dict[str, Limits] | None = None
    preserve_order: bool = False


@dataclass
class JointPositionActionCfg(JointActionCfg):
    """``use_default_offset`` adds the joints' initial positions to the offset."""

    class_type: Callable[..., Any] | None = JointPositionAction
    use_default_offset: bool = True


@dataclass
class JointVelocityActionCfg(JointActionCfg):
    """Velocity targets."""

    class_type: Callable[..., Any] | None = JointVelocityAction


@dataclass
class JointEffortActionCfg(JointActionCfg):
    """Efforts."""

    class_type: Callable[..., Any] | None = JointEffortAction
