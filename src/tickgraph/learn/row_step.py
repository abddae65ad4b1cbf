"""The optimiser's step of a network, row by row: one kernel where `NetworkStep` takes a dozen.

A row is what is projected together: a row of a linear layer, the gain of an RMS norm, gain and offset of a batch norm.
One program takes a tile of rows through Adam, projection, the target's average and the copies for the next products;
whether the step is taken at all is decided by a kernel before.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.optimizer import NetworkStep
from tickgraph.learn.storage import Stacked, Storage

ROW, SPHERE, FREE, STATISTICS = range(4)
"""Kinds of a row: norm 1; norm `sqrt(length)`; not projected; running statistics."""
TILE = 2048
"""Elements of a tile, where four can be read at once: a thread reads twice from each tensor, and so it does where only
two or one can. A tile is larger where one row is."""
NARROWEST = 64
"""Columns of a tile, at least."""
CUT = 512
"""Elements of a row that nothing ties together."""


class TileClass(NamedTuple):
    """Tiles that one branch of the kernel takes; they lie together in the table."""

    begin: int
    end: int
    kind: int
    rows: int
    width: int
    """Columns, a power of two; a row may be shorter."""
    align: int
    """Divides every place and length, 1, 2 or 4: so many elements are read at once."""


class Block(NamedTuple):
    """Rows at one distance from each other, which is the same in the copies."""

    first: int
    distance: int
    length: int
    rows: int
    mine: int
    theirs: int

    def part(self, start: int, rows: int) -> "Block":
        """Return rows from `start` on, at most so many."""
        first, mine, theirs = (
            -1 if at < 0 else at + start * self.distance for at in (self.first, self.mine, self.theirs)
        )
        return Block(first, self.distance, self.length, min(rows, self.rows - start), mine, theirs)


def row_table(storage: Storage, stacked: Stacked | None = None) -> tuple[Tensor, list[TileClass]]:
    """Return the tiles of a network's rows, (T, 6) int32, and their classes.

    Columns: place of the first row in the flat parameters (of statistics: in the flat running statistics), distance
    from one row to the next, length of a row, rows, and the places of the first row and of its target in the flat
    copies, or -1. A tile of kind `SPHERE` is one sphere, its rows are gain and offset.
    """
    tiles: dict[tuple[int, int, int, int], list[Block]] = {}
    for kind, blocks in _blocks(storage, stacked).items():
        for block in blocks:
            width = max(NARROWEST, 1 << (block.length - 1).bit_length())
            align = math.gcd(4, *(value for name, value in block._asdict().items() if name != "rows" and value >= 0))
            rows = 2 if kind == SPHERE else max(1, TILE * align // (4 * width))
            parts = [block.part(start, rows) for start in range(0, block.rows, rows)]
            tiles.setdefault((kind, width, rows, align), []).extend(parts)
    classes, table = [], []
    for kind, width, rows, align in sorted(tiles, reverse=True):
        begin = len(table)
        table += tiles[kind, width, rows, align]
        classes.append(TileClass(begin, len(table), kind, rows, width, align))
    return torch.tensor(table, dtype=torch.int32), classes


def _blocks(storage: Storage, stacked: Stacked | None) -> dict[int, list[Block]]:
    """Return the rows of each kind."""
    linear, spheres = [], []
    for span in storage.spans:
        if span.name in storage.linear:
            width = span.shape[-1]
            copies = stacked.places(span, span.start) if stacked is not None else (-1, -1)
            linear.append(Block(span.start, width, width, span.size // width, *copies))
    for group in storage.groups:
        if group.name == "pairs":
            layers, _, members, width = group.shape
            for layer in range(layers):
                for member in range(members):
                    start = group.start + (2 * layer * members + member) * width
                    spheres.append(Block(start, members * width, width, 2, -1, -1))
        elif group.name == "gains":
            count, width = group.shape
            spheres += [Block(group.start + i * width, width, width, 1, -1, -1) for i in range(count)]
    covered = sum(block.rows * block.length for block in linear + spheres)
    statistics = 0 if storage.statistics.device.type == "meta" else storage.statistics.numel()
    free = _cut(covered, storage.parameters.numel())
    return {ROW: linear, SPHERE: spheres, FREE: free, STATISTICS: _cut(0, statistics)}


def _cut(start: int, end: int) -> list[Block]:
    """Return rows of `CUT` that cover [start, end), the last of them shorter."""
    full, rest = divmod(end - start, CUT)
    blocks = [Block(start, CUT, CUT, full, -1, -1), Block(end - rest, rest, rest, 1, -1, -1)]
    return [block for block in blocks if block.rows * block.length]


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
        table, classes = row_table(step.storage, step.stacked)
        self._classes = [figure for each in classes for figure in each]
        self._table = arena.constant(f"{prefix}/rows", table, torch.int32, "tiles of the optimiser's step")
        self._kernel = row_step.row_step

    def apply(self, loss: Tensor, grad: Tensor, statistics: Tensor | None, factors: Tensor) -> Tensor:
        """Compute `NetworkStep.apply`."""
        adam = self.adam
        return self._kernel(
            *(self.storage.parameters, adam.moment1, adam.moment2, adam.steps),
            None if statistics is None else self.storage.statistics,
            *(self.target, None if self.stacked is None else self.stacked.flat),
            *(loss, grad, statistics, factors, self._table, self._classes, self.momentum, self.tau),
            *(*adam.betas, self.max_norm),
        )
