"""The optimiser's step of a network, row by row: one kernel where `NetworkStep` takes a dozen.

A row is what is projected together: a row of a linear layer, the gain of an RMS norm, gain and offset of a batch norm.
One program takes it through Adam, projection, the target's average and the copies for the next products; whether the
step is taken at all is decided by a kernel before.
"""

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.optimizer import NetworkStep
from tickgraph.learn.storage import Stacked, Storage

ROW, SPHERE, FREE, STATISTICS = range(4)
"""Kinds of a row: norm 1; norm `sqrt(length)`; not projected; running statistics."""
FREE_WIDTH = 1024
"""Elements of a row that nothing ties together."""


def row_table(storage: Storage, stacked: Stacked | None = None) -> tuple[Tensor, int]:
    """Return the rows of a network, (T, 6) int32, and the length of the longest.

    Columns: place in the flat parameters (of statistics: in the flat running statistics), place of a second part of the
    same length or -1, length, kind, and the places of the row and of its target in the flat copies, or -1.
    """
    rows: list[tuple[int, ...]] = []
    for group in storage.groups:
        if group.name == "pairs":
            layers, _, members, width = group.shape
            starts = [
                group.start + (2 * layer * members + member) * width
                for layer in range(layers)
                for member in range(members)
            ]
            rows += [(start, start + members * width, width, SPHERE, -1, -1) for start in starts]
        elif group.name == "gains":
            count, width = group.shape
            rows += [(group.start + i * width, -1, width, SPHERE, -1, -1) for i in range(count)]
    for span in storage.spans:
        if span.name in storage.linear:
            width = span.shape[-1]
            for start in range(span.start, span.start + span.size, width):
                copies = stacked.places(span, start) if stacked is not None else (-1, -1)
                rows.append((start, -1, width, ROW, *copies))
    covered = sum(row[2] * (1 + (row[1] >= 0)) for row in rows)
    rows += _cut(covered, storage.parameters.numel(), FREE)
    if storage.statistics.device.type != "meta":
        rows += _cut(0, storage.statistics.numel(), STATISTICS)
    return torch.tensor(rows, dtype=torch.int32), max(row[2] for row in rows)


def _cut(start: int, end: int, kind: int) -> list[tuple[int, ...]]:
    """Return rows of at most `FREE_WIDTH` that cover [start, end)."""
    return [(first, -1, min(FREE_WIDTH, end - first), kind, -1, -1) for first in range(start, end, FREE_WIDTH)]


class RowStep(NetworkStep):
    """`NetworkStep` by the kernels of `kernels/row_step.py`; the same state under the same names.

    Args:
        step: what it takes the place of; its tensors are used.
        arena: owner of the table; not sealed yet.
        prefix: folder of the table.
    """

    def __init__(self, step: NetworkStep, arena: Arena, prefix: str) -> None:
        from tickgraph.learn.kernels import row_step

        self.storage, self.momentum, self.target, self.tau = step.storage, step.momentum, step.target, step.tau
        self.adam, self.max_norm, self.stacked = step.adam, step.max_norm, step.stacked
        table, self._longest = row_table(step.storage, step.stacked)
        self._table = arena.constant(f"{prefix}/rows", table, torch.int32, "rows of the optimiser's step")
        self._kernel = row_step.row_step

    def apply(self, loss: Tensor, grad: Tensor, statistics: Tensor | None, factors: Tensor) -> Tensor:
        """Compute `NetworkStep.apply`."""
        adam = self.adam
        return self._kernel(
            *(self.storage.parameters, adam.moment1, adam.moment2, adam.steps),
            None if statistics is None else self.storage.statistics,
            *(self.target, None if self.stacked is None else self.stacked.flat),
            *(loss, grad, statistics, factors, self._table, self._longest, self.momentum, self.tau),
            *(*adam.betas, self.max_norm),
        )
