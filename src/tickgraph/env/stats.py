"""What the log says of episodes: sums kept on the device, read once an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core.masked import fill_rows
from tickgraph.core.sums import world_sum

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class EpisodeStats:
    """Sums over the episodes that ended and over all ticks since the last ``drain``.

    A reward term's figure is its sum over the episode, weight and step length in it, and the mean over the episodes
    that ended in the interval: so the terms add up to the return. A metric's figure is its mean over the worlds and
    ticks in which it was finite. An episode's length counts the steps that were played, also where training began in
    the middle of one.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        n = env.num_envs
        self.reward_terms = env.reward_manager.names
        self.termination_terms = env.termination_manager.names
        self.metric_terms = env.metric_manager.names
        self.causes = env.causes
        arena = env.arena
        self.term_sums = arena.new("stats/term_sums", (n, len(self.reward_terms)), torch.float64, "reward terms so far")
        self.start_length = arena.new(
            "stats/start_length", (n,), torch.int64, "episode_length at the first step played"
        )
        self._names = [
            "episodes",
            "length",
            "return",
            "terminated",
            "truncated",
            "invalid",
            *[f"reward/{name}" for name in self.reward_terms],
            *[f"ended_by/{name}" for name in self.termination_terms],
            *[f"invalid/{name}" for name in self.causes],
            *[f"metric/{name}" for name in self.metric_terms],
            *[f"finite/{name}" for name in self.metric_terms],
        ]
        self.sums = arena.new("stats/sums", (len(self._names),), torch.float64, "sums since the last log row")

    def record(self, metrics: list[Tensor], cause_counts: Tensor) -> None:
        """Add this tick. ``metrics`` are (N,) tensors, ``cause_counts`` (C,) counts of non-finite worlds by cause."""
        env = self._env
        values = torch.where(env.invalid[:, None], 0.0, env.reward_manager.values.to(torch.float64))
        self.term_sums += values
        done = env.done
        closed = torch.where(done[:, None], self.term_sums, 0.0).sum(dim=0)
        length = world_sum(torch.where(done, env.episode_length - self.start_length, 0))
        head = [world_sum(done), length, closed.sum()]
        head += [world_sum(env.terminated), world_sum(env.truncated), world_sum(env.invalid)]
        ended = (env.termination_manager.dones & done[:, None]).sum(dim=0)
        parts = [torch.stack([h.to(torch.float64) for h in head]), closed, ended.to(torch.float64)]
        parts.append(cause_counts.to(torch.float64))
        if metrics:
            stacked = torch.stack(metrics).to(torch.float64)
            finite = torch.isfinite(stacked)
            parts += [torch.where(finite, stacked, 0.0).sum(dim=1), finite.sum(dim=1).to(torch.float64)]
        self.sums += torch.cat(parts)

    def reset(self, mask: Tensor) -> None:
        """Begin new episodes in the worlds of a mask."""
        fill_rows(self.term_sums, mask, 0.0)
        fill_rows(self.start_length, mask, 0)

    def packed(self) -> Tensor:
        """Return the sums and the curricula's values as one float64 vector, for `figures` to read; nothing changes."""
        return torch.cat((self.sums, self._env.curriculum_manager.values.to(torch.float64)))

    def clear(self) -> None:
        """Start the next interval; episodes that are under way go on."""
        self.sums.zero_()

    def drain(self) -> dict[str, float | int | None]:
        """Return the interval's figures and start the next; reads the device once."""
        row = self.figures(self.packed().tolist())
        self.clear()
        return row

    def figures(self, packed: Sequence[float]) -> dict[str, float | int | None]:
        """Return the figures of a packed vector by the log's keys; means over no episode are None."""
        values = dict(zip(self._names, packed[: len(self._names)], strict=True))
        episodes = int(values["episodes"])
        row: dict[str, float | int | None] = {"episodes": episodes}

        def mean(name: str, count: int) -> float | None:
            return values[name] / count if count and math.isfinite(values[name]) else None

        row["episode_length"] = mean("length", episodes)
        row["episode_return"] = mean("return", episodes)
        for name in ("terminated", "truncated", "invalid"):
            row[name] = int(values[name])
        for name in self.reward_terms:
            row[f"reward/{name}"] = mean(f"reward/{name}", episodes)
        for name in self.termination_terms:
            row[f"ended_by/{name}"] = int(values[f"ended_by/{name}"])
        for name in self.causes:
            row[f"invalid/{name}"] = int(values[f"invalid/{name}"])
        for name in self.metric_terms:
            row[f"metric/{name}"] = mean(f"metric/{name}", int(values[f"finite/{name}"]))
        curricula = self._env.curriculum_manager
        for name, value in zip(curricula.names, packed[len(self._names) :], strict=True):
            row[f"curriculum/{name}"] = value if math.isfinite(value) else None
        return row
