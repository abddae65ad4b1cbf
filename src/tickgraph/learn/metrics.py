"""The learner's figures: added up on the device, one small tensor for the critic and one for the actor."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.words import counted
from tickgraph.learn.storage import flatten

_SKIPPED = {
    "skipped_updates": (
        "update",
        "left out, as loss or gradient was not finite: nothing is learned from that; look at how large rewards, "
        "observations and the values of train.algo are",
    ),
    "skipped_rewards": (
        "reward",
        "counted as 0 in the scale that rewards are divided by, as a square is beyond float32: make them smaller",
    ),
    "skipped_temperature_steps": (
        "step",
        "of the temperature left out, as its loss was not finite: look at how large the values of train.algo are",
    ),
}


def skipped(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each figure that counts what an update left out, and what to tell of it, where there was any.

    Args:
        figures: of `Metrics.figures`.
    """
    for name, (noun, text) in _SKIPPED.items():
        if figures.get(f"loss/{name}"):
            yield f"loss/{name}", f"{counted(figures[f'loss/{name}'], noun)} {text}"


class Metrics:
    """Figures of the learner, added up on the device and drained at log points.

    Row 0 belongs to the critic, row 1 to the actor. `means` are figures whose mean is taken over the updates since the
    last drain that were not skipped, `last` those whose newest value is kept; `skipped_updates`, totals and counters
    count since the last drain.

    Each row is one tensor: sums of the means, updates taken, updates tried, totals, and the newest values behind them.

    Args:
        arena: owner of the accumulators.
        means, last, totals: names of the figures in each row, as the learner has them.
        counters: {name: (1,) int64} that others add to, drained with the rest.
        flat: lays numbers () out flat, as `flatten` does.
    """

    def __init__(
        self,
        arena: Arena,
        means: tuple[tuple[str, ...], ...],
        last: tuple[tuple[str, ...], ...],
        totals: tuple[tuple[str, ...], ...],
        counters: Mapping[str, Tensor],
        flat: Callable[[Sequence[Tensor]], Tensor] = flatten,
    ) -> None:
        self.names, self._counters, self._flat = (means, totals, last), dict(counters), flat
        self._rows, self._always, self._summed = [], [], []
        for row, name in enumerate(("critic", "actor")):
            counts = 2 + len(totals[row])
            summed = torch.tensor([True] * (len(means[row]) + counts) + [False] * len(last[row]))
            always = torch.tensor([False] * (len(means[row]) + 1) + [True] * (counts - 1 + len(last[row])))
            sums = arena.new(f"learner/metrics/{name}", tuple(summed.shape), why=f"figures of the {name}'s updates")
            sums.copy_(torch.where(summed, 0.0, math.nan))
            self._rows.append(sums)
            why = "figures that are added up"
            self._summed.append(arena.constant(f"metrics/{name}/summed", summed, torch.bool, why))
            why = "figures that a skipped update has too"
            self._always.append(arena.constant(f"metrics/{name}/always", always, torch.bool, why))
        self._one = arena.constant("metrics/one", 1.0, why="one update")

    def add(
        self, row: int, means: Sequence[Tensor], last: Sequence[Tensor], ok: Tensor, totals: Sequence[Tensor]
    ) -> None:
        """Add one update of the critic (row 0) or the actor (row 1); a skipped one counts as that only.

        Args:
            row: whose update.
            means, last: figures, () each.
            ok: () bool, the update was taken.
            totals: () each, added whether it was taken or not.
        """
        values = self._flat([value.float() for value in (*means, self._one, self._one, *totals, *last)])
        values = torch.where(ok | self._always[row], values, 0.0)
        self._rows[row].copy_(torch.where(self._summed[row], self._rows[row] + values, values))

    def packed(self) -> Tensor:
        """Return every accumulator as one vector float64, for `figures` to read; nothing is changed."""
        return torch.cat([part.to(torch.float64) for part in (*self._rows, *self._counters.values())])

    def clear(self) -> None:
        """Start anew; the newest values stay."""
        for sums, summed in zip(self._rows, self._summed, strict=True):
            sums.masked_fill_(summed, 0.0)
        for counter in self._counters.values():
            counter.zero_()

    def figures(self, values: Sequence[float]) -> dict[str, float | int | None]:
        """Return {"loss/name": figure} of a packed vector; a mean over no update, a value before the first, is None."""
        figures: dict[str, float | int | None] = {}
        rest, skipped, counted = iter(values), 0, dict[str, int]()
        for means, totals, last in zip(*self.names, strict=True):
            sums = {name: next(rest) for name in means}
            taken, tried = next(rest), next(rest)
            skipped += int(tried - taken)
            counted |= {name: counted.get(name, 0) + int(next(rest)) for name in totals}
            figures |= {name: total / taken if taken else None for name, total in sums.items()}
            newest = {name: next(rest) for name in last}
            figures |= {name: None if math.isnan(value) else value for name, value in newest.items()}
        counted = {"skipped_updates": skipped} | counted | {name: int(next(rest)) for name in self._counters}
        return {f"loss/{name}": value for name, value in (figures | counted).items()}
