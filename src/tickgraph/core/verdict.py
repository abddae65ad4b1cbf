"""Checks that stay on the device: latched there, polled at log points, named when they fail."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.sums import world_sum


class Verdict:
    """One named check. `count` () int64 adds up the flagged rows, `first_tick` () int64 is -1 until the first one."""

    def __init__(self, name: str, why: str, count: Tensor, first_tick: Tensor, tick: Tensor) -> None:
        self.name = name
        self.why = why
        self.count = count
        self.first_tick = first_tick
        self._tick = tick

    def flag(self, mask: Tensor) -> Tensor:
        """Add the True rows of mask (N,) bool to the count and latch the tick of the first; returns how many there are,
        () int64, which nothing reads back."""
        found = world_sum(mask)
        self.first_tick.copy_(torch.where((self.first_tick < 0) & (found > 0), self._tick, self.first_tick))
        self.count.add_(found)
        return found


class Verdicts:
    """All checks of one arena.

    Args:
        arena: owner of "verdict/<name>/count" and "verdict/<name>/first_tick".
        tick: () int64 that says when; by default the arena's "rng/tick".
    """

    def __init__(self, arena: Arena, tick: Tensor | None = None) -> None:
        self._arena = arena
        self._tick = arena["rng/tick"] if tick is None else tick
        self._verdicts: dict[str, Verdict] = {}

    def declare(self, name: str, why: str) -> Verdict:
        """Declare a check while building.

        Args:
            name: unique name, such as "non_finite/reward".
            why: what a reader of the report should think or do when it fails.

        Raises:
            TickgraphError: the name is taken or the arena is sealed.
        """
        if name in self._verdicts:
            raise TickgraphError(f"check {name!r} is declared already; give each check its own name")
        count = self._arena.new(f"verdict/{name}/count", (), torch.int64, f"rows flagged: {why}")
        first = self._arena.new(f"verdict/{name}/first_tick", (), torch.int64, "tick of the first flagged row", -1)
        self._verdicts[name] = verdict = Verdict(name, why, count, first, self._tick)
        return verdict

    def packed(self) -> Tensor:
        """Return counts, then first ticks of all checks as one float64 vector, for `failed` to read."""
        verdicts = self._verdicts.values()
        parts = [*(v.count for v in verdicts), *(v.first_tick for v in verdicts)]
        return torch.stack(parts).to(torch.float64) if parts else self._tick.new_empty(0, dtype=torch.float64)

    def failed(self, values: Sequence[float]) -> list[dict[str, object]]:
        """Return {name, count, first_tick, why} of each check that a packed vector says has failed."""
        size = len(self._verdicts)
        return [
            {"name": v.name, "count": int(count), "first_tick": int(tick), "why": v.why}
            for v, count, tick in zip(self._verdicts.values(), values[:size], values[size:], strict=True)
            if count > 0
        ]

    def poll(self, clear: bool = False) -> list[dict[str, object]]:
        """Return {name, count, first_tick, why} of each check that failed; one read from the device.

        Args:
            clear: start again from nothing flagged.
        """
        values = self.packed().tolist()
        if clear:
            self.clear()
        return self.failed(values)

    def clear(self) -> None:
        """Forget every flag, in place."""
        for verdict in self._verdicts.values():
            verdict.count.fill_(0)
            verdict.first_tick.fill_(-1)
