"""Command terms: a velocity to follow, and the clock of a gait."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, NotNegative, Share
from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import assign_rows
from tickgraph.core.rotation import yaw_of
from tickgraph.env.config import CommandTermCfg
from tickgraph.env.managers import CommandTerm
from tickgraph.mdp.gait import wrap_to_pi
from tickgraph.mdp.ranges import Range

if TYPE_CHECKING:
    from tickgraph.env.env import Env

_LEAST_FORWARD = 0.3  # m/s, as in mjlab


class UniformVelocityCommand(CommandTerm):
    """Forward and lateral velocity (m/s) and yaw rate (rad/s) in the robot's frame, drawn uniformly.

    Some worlds may stand still, some go straight ahead, and some steer to a heading in the world instead of following a
    drawn yaw rate.

    Attributes:
        ranges: (4, 2) float32, low and high of forward, lateral, yaw rate and heading; a curriculum may write it.
    """

    cfg: UniformVelocityCommandCfg

    def __init__(self, cfg: UniformVelocityCommandCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        self._steers = cfg.rel_heading_envs > 0.0
        n, arena = env.num_envs, env.arena
        heading = cfg.ranges.heading or (-math.pi, math.pi)
        rows = (cfg.ranges.lin_vel_x, cfg.ranges.lin_vel_y, cfg.ranges.ang_vel_z, heading)
        self.ranges = arena.new(f"{path}/ranges", (4, 2), why="low and high of each part of the command")
        self.ranges.copy_(torch.tensor(rows, dtype=torch.float32))
        self._value = arena.new(f"{path}/value", (n, 3), why="forward, lateral, yaw rate in the robot's frame")
        if self._steers:
            self._entity = env.scene[cfg.entity_name]
            self._heading = arena.new(f"{path}/heading", (n,), why="heading to steer to, rad in the world")
            self._steering = arena.new(f"{path}/steering", (n,), torch.bool, "the yaw rate follows the heading")

    @property
    def command(self) -> Tensor:
        return self._value

    def resample(self, mask: Tensor) -> None:
        cfg, low, high = self.cfg, self.ranges[:, 0], self.ranges[:, 1]
        value = self.rng.uniform("velocity", 3, low[:3], high[:3])
        if cfg.min_planar_speed > 0.0:
            small = torch.linalg.vector_norm(value[:, :2], dim=1, keepdim=True) <= cfg.min_planar_speed
            value = torch.cat((torch.where(small, 0.0, value[:, :2]), value[:, 2:]), dim=1)
        if cfg.rel_standing_envs > 0.0 or self._steers or cfg.rel_forward_envs > 0.0:
            kind = self.rng.uniform("kind", 3 if cfg.rel_forward_envs > 0.0 else 2)
            standing = kind[:, 0] < cfg.rel_standing_envs
            if cfg.rel_forward_envs > 0.0:
                ahead = value[:, :1].abs().clamp_min(_LEAST_FORWARD)
                ahead = torch.cat((ahead, torch.zeros_like(value[:, 1:])), dim=1)
                value = torch.where(kind[:, 2:] < cfg.rel_forward_envs, ahead, value)
            value = torch.where(standing[:, None], 0.0, value)
            if self._steers:
                assign_rows(self._heading, mask, self.rng.uniform("heading", 1, low[3], high[3])[:, 0])
                assign_rows(self._steering, mask, (kind[:, 1] < cfg.rel_heading_envs) & ~standing)
        assign_rows(self._value, mask, value)

    def update(self) -> None:
        if self._steers:
            self._steer(self._env.all_worlds, self._entity.data.heading_w)

    def reset(self, mask: Tensor) -> None:
        super().reset(mask)
        if self._steers:
            # The new state is only staged as yet, and the first observation must show the command of that state.
            self._steer(mask, yaw_of(self._entity.staged_root_pose()[:, 3:]))

    def _steer(self, mask: Tensor, yaw: Tensor) -> None:
        rate = self.cfg.heading_control_stiffness * wrap_to_pi(self._heading - yaw)
        rate = torch.clamp(rate, self.ranges[2, 0], self.ranges[2, 1])
        assign_rows(self._value[:, 2], mask & self._steering, rate)


class GaitPhase(CommandTerm):
    """A clock for each of F feet: phases in [-pi, pi) that go on at one frequency; each episode starts anywhere.

    The phase that a policy saw is the one that the following rewards see.
    """

    cfg: GaitPhaseCfg

    def __init__(self, cfg: GaitPhaseCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        if not cfg.offsets:
            raise TickgraphError(f"{path}: offsets is empty, expected one phase in rad for each foot")
        shape = (env.num_envs, len(cfg.offsets))
        self.phase = env.arena.new(f"{path}/phase", shape, why="phase of each foot, rad")
        self._offsets = env.arena.constant(
            f"{path}/offsets", list(cfg.offsets), torch.float32, "phase lead of each foot"
        )
        self._step = 2.0 * math.pi * cfg.frequency * env.step_dt

    @property
    def command(self) -> Tensor:
        return self.phase

    def resample(self, mask: Tensor) -> None:
        first = self.rng.uniform("phase", 1, -math.pi, math.pi)
        assign_rows(self.phase, mask, wrap_to_pi(first + self._offsets))

    def update(self) -> None:
        self.phase.copy_(wrap_to_pi(self.phase + self._step))


@dataclass
class VelocityRanges:
    """Low and high of forward and lateral velocity (m/s), yaw rate (rad/s) and heading (rad; None is anywhere)."""

    lin_vel_x: Range = (-1.0, 1.0)
    lin_vel_y: Range = (-1.0, 1.0)
    ang_vel_z: Range = (-1.0, 1.0)
    heading: Range | None = None


@dataclass
class UniformVelocityCommandCfg(CommandTermCfg):
    """A velocity command.

    Args:
        ranges: where it is drawn from.
        min_planar_speed: m/s; a planar velocity of at most this norm becomes 0 (the yaw rate stays).
        rel_standing_envs: share of the draws that are all 0.
        rel_forward_envs: share of the draws that go straight ahead, at the drawn forward speed's magnitude and at least
            0.3 m/s; one that also steers to a heading turns all the same.
        rel_heading_envs: share of the draws that steer to a heading, by yaw rate = stiffness * error, clipped.
        heading_control_stiffness: 1/s.
        entity_name: whose heading.
    """

    class_type: Callable[..., Any] | None = UniformVelocityCommand
    ranges: VelocityRanges = field(default_factory=VelocityRanges)
    min_planar_speed: NotNegative = 0.0
    rel_standing_envs: Share = 0.0
    rel_heading_envs: Share = 0.0
    rel_forward_envs: Share = 0.0
    heading_control_stiffness: Finite = 1.0
    entity_name: str = "robot"

    Ranges = VelocityRanges


@dataclass
class GaitPhaseCfg(CommandTermCfg):
    """A gait clock: ``frequency`` in Hz, ``offsets`` in rad, one for each foot."""

    class_type: Callable[..., Any] | None = GaitPhase
    frequency: NotNegative = 1.5
    offsets: tuple[Finite, ...] = (0.0, math.pi)
