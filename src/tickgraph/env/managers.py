"""The managers of a tick, by name: what they compute, and what of it the log shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import assign_rows
from tickgraph.env import config
from tickgraph.env.actions import ActionManager, ActionTerm
from tickgraph.env.commands import CommandManager, CommandTerm
from tickgraph.env.term import Manager, Term, calling, check_value, described, plain

__all__ = [
    "ActionManager",
    "ActionTerm",
    "CommandManager",
    "CommandTerm",
    "CurriculumManager",
    "EventManager",
    "MetricManager",
    "RecorderManager",
    "RewardManager",
    "SubstepManager",
    "TerminationManager",
]

if TYPE_CHECKING:
    from tickgraph.env.env import Env

_VERY_LONG = 10**9  # control steps; no episode lasts so long


class RewardManager(Manager):
    """Weighted sum of reward terms. ``weights`` (T,) float32 lives on the device, so that curricula may change it."""

    name = "rewards"
    tells = True

    def __init__(self, env: Env, cfgs: dict[str, config.RewardTermCfg]) -> None:
        super().__init__(env, cfgs)
        count = len(self.terms)
        self.weights = env.arena.new("rewards/weights", (count,), why="weight of each reward term")
        self.weights.copy_(torch.tensor([float(cfgs[n].weight) for n in self.terms], dtype=torch.float32))
        self.values = env.arena.new("rewards/values", (env.num_envs, count), why="weighted terms of this tick")
        self._scale = env.step_dt if env.cfg.scale_rewards_by_dt else 1.0

    def compute(self, out: Tensor) -> None:
        """Write each weighted term to ``values`` and their sum to ``out`` (N,)."""
        if not self.terms:
            out.zero_()
            return
        columns = []
        for term in self.terms.values():
            value = term()
            check_value(term.path, value, self._env, "float")
            columns.append(value.to(torch.float32))
        # A weight of 0 leaves a term out, whatever it returns: 0 times infinity would end the world.
        weighted = torch.stack(columns, dim=1) * (self.weights * self._scale)
        self.values.copy_(torch.where(self.weights == 0.0, 0.0, weighted))
        out.copy_(self.values.sum(dim=1))

    def not_finite(self) -> list[str]:
        """Return the terms that were not finite in some world of the newest tick; reads the device."""
        finite = torch.isfinite(self.values).all(dim=0).tolist()
        return [name for name, whole in zip(self.terms, finite, strict=True) if not whole]

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "weight": float(self.cfgs[row["name"]].weight)} for row in super().describe()]


class TerminationManager(Manager):
    """Falls and time-outs. ``dones`` (N, T) bool says which terms fired."""

    name = "terminations"
    tells = True

    def __init__(self, env: Env, cfgs: dict[str, config.TerminationTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.dones = env.arena.new(
            "terminations/dones", (env.num_envs, len(self.terms)), torch.bool, "terms that fired"
        )
        self.is_time_out = {
            name: getattr(term.user_function, "is_time_out", False)
            if cfgs[name].time_out is None
            else cfgs[name].time_out
            for name, term in self.terms.items()
        }

    def rehearse(self) -> None:
        """Refuse a time limit that does not say that it is one: every expiry would be learnt as a failure."""
        length = self._env.episode_length
        for name, term in self.terms.items():
            if self.cfgs[name].time_out is None and not self.is_time_out[name]:
                ended = []
                for steps in (0, _VERY_LONG):
                    length.fill_(steps)
                    with calling(term.path):
                        value = term()
                    check_value(term.path, value, self._env, "bool")
                    ended.append(value.to(torch.bool))
                if bool(~ended[0].any() & ended[1].all()):
                    raise TickgraphError(
                        f"term {term.path} fires by the length of the episode alone; say time_out=True if it is a time "
                        "limit, whose end is no failure, or time_out=False"
                    )
        length.zero_()

    def compute(self, terminated: Tensor, truncated: Tensor) -> None:
        """Write (N,) bool flags; a fall and a time-out together are a fall."""
        terminated.zero_()
        truncated.zero_()
        for column, (name, term) in enumerate(self.terms.items()):
            value = term()
            check_value(term.path, value, self._env, "bool")
            value = value.to(torch.bool)
            self.dones[:, column].copy_(value)
            (truncated if self.is_time_out[name] else terminated).logical_or_(value)
        truncated.logical_and_(~terminated)

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "time_out": self.is_time_out[row["name"]]} for row in super().describe()]


class EventManager(Manager):
    """Events by mode, each for the worlds of a mask."""

    name = "events"
    call_arguments = ("mask",)
    modes = ("startup", "reset", "interval", "step")

    def __init__(self, env: Env, cfgs: dict[str, config.EventTermCfg]) -> None:
        super().__init__(env, cfgs)
        self._by_mode = {m: [t for n, t in self.terms.items() if cfgs[n].mode == m] for m in self.modes}
        self._timers = {
            t.name: env.arena.new(f"events/{t.name}/time_left", (env.num_envs,), why="seconds until the event")
            for t in self._by_mode["interval"]
        }
        self._streams = {name: env.rng.stream(f"events/{name}/time_left") for name in self._timers}

    def apply(self, mode: str, mask: Tensor) -> None:
        """Run every term of a mode for the worlds of a mask."""
        for term in self._by_mode[mode]:
            term(mask)

    def step(self) -> None:
        """Run the step events, and the interval events of worlds whose time is over."""
        self.apply("step", self._env.all_worlds)
        for term in self._by_mode["interval"]:
            timer = self._timers[term.name]
            timer -= self._env.step_dt
            due = timer <= 0.5 * self._env.step_dt
            term(due)
            self._restart_clock(term, due)

    def reset(self, mask: Tensor) -> None:
        super().reset(mask)
        for term in self._by_mode["interval"]:
            self._restart_clock(term, mask)

    def _restart_clock(self, term: Term, mask: Tensor) -> None:
        low, high = term.cfg.interval_range_s
        assign_rows(self._timers[term.name], mask, self._streams[term.name].uniform("", 1, low, high)[:, 0])

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "mode": self.cfgs[row["name"]].mode} for row in super().describe()]


class CurriculumManager(Manager):
    """Rules that change the task as training goes on; ``values`` (T,) float32 holds what each returned last."""

    name = "curriculum"
    call_arguments = ("mask",)

    def __init__(self, env: Env, cfgs: dict[str, config.CurriculumTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.values = env.arena.new(
            "curriculum/values", (len(self.terms),), why="last value of each curriculum, logged"
        )

    def compute(self, mask: Tensor) -> None:
        for column, term in enumerate(self.terms.values()):
            value = term(mask)
            if value is not None:
                if not plain(value):
                    raise TickgraphError(f"term {term.path} returned {described(value)}, expected a tensor, or nothing")
                self.values[column].copy_(value.to(torch.float32).mean())


class MetricManager(Manager):
    """Values that are logged as means over worlds and ticks."""

    name = "metrics"
    tells = True

    def compute(self) -> list[Tensor]:
        """Return one (N,) float32 tensor a term."""
        values = []
        for term in self.terms.values():
            value = term()
            check_value(term.path, value, self._env, "float")
            values.append(value.to(torch.float32))
        return values


class RecorderManager(Manager):
    """Signals kept each tick before any reset. ``manager[name]`` is (N, ...), the tick that just ended."""

    name = "recorders"
    tells = True

    def __init__(self, env: Env, cfgs: dict[str, config.RecorderTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.buffers: dict[str, Tensor] = {}

    def rehearse(self) -> None:
        for name, value in self.signals().items():
            self.buffers[name] = self._env.arena.new(
                f"recorders/{name}", tuple(value.shape), value.dtype, "recorded signal of the tick that just ended"
            )

    def signals(self) -> dict[str, Tensor]:
        """Return what each term gives, (N, ...).

        Raises:
            TickgraphError: one gives something else.
        """
        found = {}
        for name, term in self.terms.items():
            with calling(term.path):
                value = term()
            if not plain(value) or value.dim() == 0 or value.shape[0] != self._env.num_envs:
                got = described(value)
                raise TickgraphError(f"term {term.path} returned {got}, expected a tensor ({self._env.num_envs}, ...)")
            found[name] = value
        return found

    def record(self) -> None:
        for name, term in self.terms.items():
            self.buffers[name].copy_(term())

    def __getitem__(self, name: str) -> Tensor:
        self.term(name)
        return self.buffers[name]


class SubstepManager(Manager):
    """Terms that run before each physics substep."""

    name = "substeps"
    call_arguments = ("substep",)

    def apply(self, substep: int) -> None:
        for term in self.terms.values():
            term(substep)
