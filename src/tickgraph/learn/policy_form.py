"""FlashSAC's policy as one pass of our own, on a GPU: how `kernels/policy.py` lays its weights out and finds them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.learn.storage import Storage

EMBED, HEAD, NORMED = range(3)
"""Kinds of a row of weights: behind the input's norm, of a head, or with a norm behind it."""
PIECE = 64
"""Columns of the observations, and of a block's wide layer, that are multiplied at a time."""
WIDEST = 128
"""Width of a trunk that fits: with it a program takes up to 160 of an H200's 227 KiB of shared memory, with twice the
width 320."""
COLUMNS = 9


def _padded(count: int, least: int = 16) -> int:
    """Return the power of two, and at least what matrix units take, that holds `count`."""
    return max(least, 1 << (count - 1).bit_length())


@dataclass(frozen=True)
class Layout:
    """Places in the flat tensor of laid-out weights, all of them multiples of 16; a weight has its outputs as rows.

    Embedding (width, inputs) and what is added (width), for each block up (4 width, width), what is added, down
    (width, 4 width), what is added, then both heads (2 actions, width) and what is added: all sizes filled up.

    Args:
        inputs, width, blocks, actions: sizes of the actor.
    """

    inputs: int
    width: int
    blocks: int
    actions: int

    @property
    def row(self) -> int:
        """Length of an embedding's row."""
        return -(-self.inputs // PIECE) * PIECE

    @property
    def narrow(self) -> int:
        """Width of the trunk."""
        return _padded(self.width)

    @property
    def wide(self) -> int:
        """Width within a block."""
        return 4 * self.narrow

    @property
    def head(self) -> int:
        """Outputs of one head."""
        return _padded(self.actions)

    @property
    def first_block(self) -> int:
        """Place of the first block."""
        return self.narrow * self.row + self.narrow

    @property
    def block(self) -> int:
        """Elements of a block."""
        return 2 * self.wide * self.narrow + self.wide + self.narrow

    @property
    def heads(self) -> int:
        """Place of the heads."""
        return self.first_block + self.blocks * self.block

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.heads + 2 * self.head * (self.narrow + 1)

    def table(self, storage: Storage) -> Tensor:
        """Return what each laid-out row is made of, (rows, 9) int32.

        Columns: kind, place, length, place of what is added, place of the source in the parameters, its length (0: a
        row of zeros), and of a head the bias, of a row with a norm the gain, the offset and the running mean.

        Args:
            storage: of the actor.
        """
        spans = {span.name: span.start for span in storage.spans}
        rows: list[tuple[int, ...]] = []

        def add(
            kind: int, place: int, shift: int, shape: tuple[int, int], source: int, real: tuple[int, int], *ends: int
        ) -> None:
            """Add a weight's rows, laid out in `shape`, of which the source has `real`."""
            for i in range(shape[0]):
                count = real[1] if i < real[0] else 0
                more = [end + i if count else 0 for end in ends] + [0] * (3 - len(ends))
                rows.append((kind, place + i * shape[1], shape[1], shift + i, source + i * real[1], count, *more))

        n, w = self.narrow, self.wide
        embedding = spans["trunk.embed.weight"]
        add(EMBED, 0, n * self.row, (n, self.row), embedding, (self.width, self.inputs))
        place, mean = self.first_block, self.inputs
        for block in range(self.blocks):
            for layer, shape, real in (
                ("up", (w, n), (4 * self.width, self.width)),
                ("down", (n, w), (self.width, 4 * self.width)),
            ):
                path = f"trunk.blocks.{block}.{layer}"
                ends = (spans[f"{path}_norm.gain"], spans[f"{path}_norm.offset"], mean)
                add(NORMED, place, place + n * w, shape, spans[f"{path}.weight"], real, *ends)
                place, mean = place + n * w + shape[0], mean + real[0]
        for i, name in enumerate(("mean", "raw")):  # one weight behind the other, then what is added to both
            place, shift = self.heads + i * self.head * n, self.heads + 2 * self.head * n + i * self.head
            real = (self.actions, self.width)
            add(HEAD, place, shift, (self.head, n), spans[f"{name}.weight"], real, spans[f"{name}_bias"])
        return torch.tensor(rows, dtype=torch.int32)


class PolicyForm:
    """Mean and raw deviation of an actor on running statistics, by the kernels of `kernels/policy.py`.

    Args:
        storage: of the actor.
        layout: its sizes.
        arena, prefix: owner and folder of the table; the arena is not sealed yet.

    Raises:
        TickgraphError: the kernel cannot hold the trunk.
    """

    def __init__(self, storage: Storage, layout: Layout, arena: Arena, prefix: str) -> None:
        if layout.width > WIDEST:
            raise TickgraphError(f"actor_width is {layout.width}, and it holds {WIDEST} at most")
        from tickgraph.learn.kernels import policy

        self.storage, self._kernel = storage, policy.policy
        self._table = arena.constant(
            f"{prefix}/rows", layout.table(storage), torch.int32, "rows of the policy's weights"
        )
        self._sizes = [layout.inputs, layout.width, layout.blocks, layout.actions]
        spans = {span.name: span.start for span in storage.spans}
        names = ("trunk.input_norm.gain", "trunk.input_norm.offset", "trunk.norm.gain")
        self._places = [spans[name] for name in names]

    def __call__(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and raw deviation, (N, A) float32 each, for raw observations (N, O)."""
        storage = self.storage
        out = self._kernel(obs, storage.parameters, storage.statistics, self._table, self._sizes, self._places)
        mean, raw = out.chunk(2, dim=-1)
        return mean, raw
