"""Curricula: rules that change the task as training goes on, run for the worlds whose episode just ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, Positive, Range, Share, Whole
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import check_value
from tickgraph.core.sums import world_sum

if TYPE_CHECKING:
    from tickgraph.env.env import Env

Stages = Sequence[Mapping[str, Any]]
"""Of a rule by ticks: ({"step": tick, ...}, ...), in any order."""


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
        weight_stages: ({"step": tick, "weight": weight}, ...); ticks count from the environment's reset, and before the
            first one the configured weight holds.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        stages = _stages(f"{path}: weight_stages", cfg.params["weight_stages"], {"weight": Finite})
        lacking = next((stage for stage in stages if "weight" not in stage), None)
        if lacking is not None:
            raise TickgraphError(f"{path}: weight_stages names no weight from step {lacking['step']} on; add it")
        self._column = env.reward_manager.term_index(cfg.params["reward_name"])
        weights = [env.cfg.rewards[cfg.params["reward_name"]].weight, *(stage["weight"] for stage in stages)]
        constant = env.arena.constant
        self._ticks = constant(f"{path}/ticks", [s["step"] for s in stages], torch.int64, "when a stage begins")
        self._weights = constant(f"{path}/weights", weights, torch.float32, "weight by stage")

    def __call__(self, env: Env, mask: Tensor, reward_name: str, weight_stages: Stages) -> Tensor:
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
        kinds = dict.fromkeys(self.names, Range)
        stages = _stages(f"{path}: velocity_stages", cfg.params["velocity_stages"], kinds)
        self._command = env.command_manager.term(cfg.params["command_name"])
        first = self._command.cfg.ranges
        row = [getattr(first, name) or (-torch.pi, torch.pi) for name in self.names]
        rows = [row]
        for stage in stages:
            row = [stage.get(name, old) for name, old in zip(self.names, row, strict=True)]
            rows.append(row)
        constant = env.arena.constant
        self._ticks = constant(f"{path}/ticks", [s["step"] for s in stages], torch.int64, "when a stage begins")
        self._rows = constant(f"{path}/ranges", rows, torch.float32, "ranges by stage")

    def __call__(self, env: Env, mask: Tensor, command_name: str, velocity_stages: Stages) -> Tensor:
        stage = (env.rng.tick >= self._ticks).sum()
        self._command.ranges.copy_(self._rows.index_select(0, stage.reshape(1))[0])
        return stage.to(torch.float32)


def _stages(what: str, given: Stages, kinds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return stages in the order of their steps, without what is None in them.

    Args:
        what: whose they are, for errors.
        given: dictionaries of "step" and some of ``kinds``.
        kinds: type of each value that a stage may have.

    Raises:
        TickgraphError: a stage is no dictionary, has no step, an unknown name or a value of another type.
    """
    stages = []
    for number, stage in enumerate(given):
        where = f"{what}[{number}]"
        if not isinstance(stage, Mapping):
            raise TickgraphError(f"{where} is {stage!r}, expected a dictionary of step, {', '.join(kinds)}")
        stage = {name: value for name, value in stage.items() if value is not None}
        for name, value in stage.items():
            if name not in kinds and name != "step":
                raise TickgraphError(f"{where} names {name!r}; expected step, {', '.join(kinds)}")
            check_value(value, Whole if name == "step" else kinds[name], f"{where}: {name}")
        if "step" not in stage:
            raise TickgraphError(f"{where} names no step; say from which tick on it holds")
        stages.append(stage)
    return sorted(stages, key=lambda stage: stage["step"])
