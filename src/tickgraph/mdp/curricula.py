"""Curricula: rules that change the task as training goes on, run for the worlds whose episode just ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Positive, Share, Whole
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import check_value
from tickgraph.core.sums import world_sum
from tickgraph.mdp.ranges import check_range

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class penalty_scale:
    """Grow or shrink all negative reward weights together with the length of the episodes.

    Each tick on which an episode ended: the mean length of those that ended enters a moving average, each episode with
    weight 1 / ``window``; then ``scale`` is multiplied by 1 - ``degree`` if the average is below ``level_down``, by
    1 + ``degree`` if it is above ``level_up``, and kept within ``low`` and ``high``. Every weight that is negative in
    the task's configuration is that weight times ``scale``; the others stay. Returns the scale, which is logged.

    Lengths are steps that were played, also of a first episode that training began in the middle.

    Params:
        initial, low, high: scale at first, and its limits.
        level_down, level_up: steps.
        degree: relative change a tick.
        window: episodes; by default 1000 for each 4096 worlds.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        params = cfg.params
        if not params["low"] <= params["initial"] <= params["high"]:
            raise TickgraphError(
                f"{path}: initial {params['initial']} is not between low {params['low']} and high {params['high']}"
            )
        base = [float(term.weight) for term in env.cfg.rewards.values() if term is not None]
        constant = env.arena.constant
        self._base = constant(f"{path}/base", base, torch.float32, "reward weights as configured")
        self._penalty = constant(f"{path}/penalty", [w < 0.0 for w in base], torch.bool, "which of them are penalties")
        self._window = params.get("window") or max(1.0, 1000.0 * env.num_envs / 4096.0)
        self.scale = env.arena.new(f"{path}/scale", (), why="factor of all penalties", fill=params["initial"])
        self.average = env.arena.new(f"{path}/average_length", (), why="moving average of episode lengths, steps")

    def __call__(
        self,
        env: Env,
        mask: Tensor,
        initial: Finite,
        low: Finite,
        high: Finite,
        level_down: Finite,
        level_up: Finite,
        degree: Share,
        window: Positive | None = None,
    ) -> Tensor:
        played = env.episode_length - env.stats.start_length
        ended = mask & (played > 0)
        count = world_sum(ended)
        any_ended = count > 0
        mean = world_sum(torch.where(ended, played, 0)) / count.clamp_min(1)
        share = (count / self._window).clamp_max(1.0)
        self.average.copy_(torch.where(any_ended, self.average + share * (mean - self.average), self.average))
        factor = torch.where(
            self.average < level_down, 1.0 - degree, torch.where(self.average > level_up, 1.0 + degree, 1.0)
        )
        self.scale.copy_(torch.where(any_ended, self.scale * factor, self.scale).clamp(low, high))
        env.reward_manager.weights.copy_(torch.where(self._penalty, self._base * self.scale, self._base))
        return self.scale


class reward_weight:
    """Change the weight of one reward term at given ticks.

    Params:
        reward_name: the term.
        weight_stages: ((tick, weight), ...) in ascending order of ticks since the environment's reset; before the first
            one the configured weight holds.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        stages = sorted(cfg.params["weight_stages"])
        self._column = env.reward_manager.term_index(cfg.params["reward_name"])
        first = env.cfg.rewards[cfg.params["reward_name"]].weight
        constant = env.arena.constant
        self._ticks = constant(f"{path}/ticks", [int(t) for t, _ in stages], torch.int64, "when a stage begins")
        self._weights = constant(f"{path}/weights", [first, *(w for _, w in stages)], torch.float32, "weight by stage")

    def __call__(
        self, env: Env, mask: Tensor, reward_name: str, weight_stages: tuple[tuple[Whole, Finite], ...]
    ) -> Tensor:
        weight = self._weights.gather(0, (env.rng.tick >= self._ticks).sum().reshape(1))
        env.reward_manager.weights[self._column].copy_(weight[0])
        return weight


class commands_vel:
    """Change the ranges of a velocity command at given ticks (mjlab). Returns the number of the stage, which is logged.

    Params:
        command_name: a ``UniformVelocityCommand``.
        velocity_stages: ({"step": tick, "lin_vel_x": (low, high), ...}, ...); ticks count from the environment's reset,
            and what a stage does not name stays as it was in the stage before.
    """

    names = ("lin_vel_x", "lin_vel_y", "ang_vel_z", "heading")

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        stages = cfg.params["velocity_stages"]
        for number, stage in enumerate(stages):
            where = f"{path}: velocity_stages[{number}]"
            unknown = [name for name in stage if name not in (*self.names, "step")]
            if unknown:
                raise TickgraphError(f"{where} names {unknown[0]!r}; expected step, {', '.join(self.names)}")
            if "step" not in stage:
                raise TickgraphError(f"{where} names no step; say from which tick on it holds")
            check_value(stage["step"], Whole, f"{where}: step")
            for name in self.names:
                if name in stage:
                    check_range(stage[name], f"{where}: {name}")
        stages = sorted(stages, key=lambda stage: stage["step"])
        self._command = env.command_manager.term(cfg.params["command_name"])
        first = self._command.cfg.ranges
        row = [getattr(first, name) or (-torch.pi, torch.pi) for name in self.names]
        rows = [row]
        for stage in stages:
            row = [stage.get(name, old) for name, old in zip(self.names, row, strict=True)]
            rows.append(row)
        constant = env.arena.constant
        ticks = [int(stage["step"]) for stage in stages]
        self._ticks = constant(f"{path}/ticks", ticks, torch.int64, "when a stage begins")
        self._rows = constant(f"{path}/ranges", rows, torch.float32, "ranges by stage")

    def __call__(
        self, env: Env, mask: Tensor, command_name: str, velocity_stages: Sequence[Mapping[str, Any]]
    ) -> Tensor:
        stage = (env.rng.tick >= self._ticks).sum()
        self._command.ranges.copy_(self._rows.index_select(0, stage.reshape(1))[0])
        return stage.to(torch.float32)
