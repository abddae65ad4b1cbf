"""Actions: terms that turn the policy's raw action into controls, and the delay lines that hold it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall
from tickgraph.core.masked import assign_rows, fill_rows
from tickgraph.env.term import Call, Manager, build_instance

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class ActionTerm:
    """Base of action terms: ``dim`` columns of the raw action; ``process`` stores targets, ``apply`` writes ctrl."""

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self.cfg, self.path, self._env = cfg, path, env
        self.entity = env.scene[cfg.entity_name]

    @property
    def dim(self) -> int:
        raise NotImplementedError

    def process(self, raw: Tensor) -> None:
        """Turn raw actions (N, dim), delayed where the term asks for it, into targets."""
        raise NotImplementedError

    def apply(self) -> None:
        """Write the term's columns of ``env.sim.ctrl``."""
        raise NotImplementedError

    def reset(self, mask: Tensor) -> None:
        """Forget the last episode of the worlds of a mask."""

    def facts(self) -> dict[str, Any]:
        """Return as plain data what a controller on the robot must know to obey the term, for `tickgraph export`.

        A "scale" is a list of one number a column. Names, columns and entity are said already.
        """
        return {}


class DelayLine:
    """The last frames of a vector in every world, read ``lag`` ticks back; each world draws its lag at a reset.

    Args:
        env: owner of the arena and of the random words.
        path: name in the arena and of the random stream.
        dim: length D of the vector.
        lags: smallest and largest lag, whole ticks.
    """

    def __init__(self, env: Env, path: str, dim: int, lags: tuple[int, int]) -> None:
        low, high = lags
        if not 0 <= low <= high:
            raise TickgraphError(f"{path}: lags {lags} given, expected 0 <= min <= max in whole ticks")
        self._low, self._high = low, high
        shape = (env.num_envs, high + 1, dim)
        why, advice = "frames of a delay line, oldest first", "make its delay_max_lag smaller, or use fewer worlds"
        self.frames = env.arena.new(f"{path}/delay", shape, why=why, advice=advice)
        self.lag = env.arena.new(f"{path}/lag", (env.num_envs,), torch.int64, "delay of each world, ticks", fill=low)
        self._rng = env.rng.stream(f"{path}/lag")

    def draw(self, mask: Tensor) -> None:
        """Draw new lags for the worlds of a mask."""
        assign_rows(self.lag, mask, self._rng.integers("", 1, self._low, self._high + 1)[:, 0])

    def read(self, frames: Tensor) -> Tensor:
        """Return (N, D), the frame that is due in each world, from frames (N, H, D)."""
        index = (self._high - self.lag)[:, None, None].expand(-1, 1, frames.shape[2])
        return frames.gather(1, index)[:, 0]

    def pushed(self, frame: Tensor) -> Tensor:
        """Return the frames with one more at the end and the oldest gone, (N, H, D); nothing is stored."""
        return torch.cat((self.frames[:, 1:], frame[:, None]), dim=1)


class ActionManager(Manager):
    """Splits the raw action among its terms. ``action`` and ``prev_action`` (N, A) float32 are raw, undelayed."""

    name = "actions"

    def __init__(self, env: Env, cfgs: dict[str, Any]) -> None:
        super().__init__(env, cfgs)
        self.dims = {name: term.dim for name, term in self.terms.items()}
        self.total_dim = sum(self.dims.values())
        if not self.terms:
            raise TickgraphError("the task declares no action; add a term to EnvCfg.actions")
        shape = (env.num_envs, self.total_dim)
        self.action = env.arena.new("actions/action", shape, why="raw action of this tick; 0 in a new episode")
        self.prev_action = env.arena.new("actions/prev_action", shape, why="raw action of the tick before")
        self._delays = {
            name: DelayLine(env, f"actions/{name}", self.dims[name], (cfg.delay_min_lag, cfg.delay_max_lag))
            for name, cfg in cfgs.items()
            if cfg is not None and (cfg.delay_min_lag, cfg.delay_max_lag) != (0, 0)
        }

    def _build(self, name: str, cfg: Any) -> Any:
        if cfg.class_type is None:
            raise TickgraphError(
                f"action {name!r}: class_type is not set; use a configuration such as JointPositionActionCfg"
            )
        return build_instance(cfg.class_type, cfg, self._env, f"actions/{name}")

    def process(self, action: Tensor) -> None:
        """Store the raw action (N, A) and write every term's controls."""
        self.prev_action.copy_(self.action)
        self.action.copy_(action)
        start = 0
        for name, term in self.terms.items():
            raw = self.action[:, start : start + self.dims[name]]
            start += self.dims[name]
            if name in self._delays:
                line = self._delays[name]
                line.frames.copy_(line.pushed(raw))
                raw = line.read(line.frames)
            term.process(raw)
            term.apply()

    def reset(self, mask: Tensor) -> None:
        fill_rows(self.action, mask, 0.0)
        fill_rows(self.prev_action, mask, 0.0)
        for line in self._delays.values():
            fill_rows(line.frames, mask, 0.0)
            line.draw(mask)
        super().reset(mask)

    def calls(self) -> Iterator[JudgedCall]:
        env, start = self._env, 0
        for name, term in self.terms.items():
            raw = self.action[:, start : start + self.dims[name]]
            start += self.dims[name]
            for step in (Call(term.process, (raw,)), Call(term.apply, ()), Call(term.reset, (env.no_worlds,))):
                yield JudgedCall(self.name, name, step, type(term), (env, term), env.arena)

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "dim": self.dims[row["name"]]} for row in super().describe()]
