"""`trunk.small_weights` in Triton: what products and norms read of a network's small parameters, in one launch.

A program makes a few rows of the folded embedding, or copies a few KB. Where everything lies is built into the kernel,
so that no load waits for another. An element of a result is one program's, and a sum is taken in a fixed order, so a
run repeats bit for bit.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.storage import Storage
from tickgraph.learn.trunk import SmallWeights, by_name, filled, head_spans

ELEMENTS, WARPS = 1024, 4
"""Of a program, which reads 4 KB. A G1's critics and targets take 382 programs, three for a processor of an H200."""


@triton.jit
def _fold(
    online, target, folded, program,
    MEMBERS: tl.constexpr, D: tl.constexpr, IN: tl.constexpr, F: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, EMBED: tl.constexpr, GAIN: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Write ROWS rows of the embedding times the gain, the bias in column IN, and zeros up to column F."""
    member, col = program // TILES, tl.arange(0, WIDE)[None, :]
    row = (program % TILES * ROWS + tl.arange(0, ROWS))[:, None]
    own, known = member % MEMBERS, col < IN
    flat = tl.where(member < MEMBERS, online, target)
    place = own * IN + col
    gain, offset = tl.load(flat + GAIN + place, known, 0.0), tl.load(flat + OFFSET + place, known, 0.0)
    weight = tl.load(flat + EMBED + (own * D + row) * IN + col, (row < D) & known, 0.0)
    value = tl.where(col == IN, tl.sum(weight * offset, 1)[:, None], weight * gain)
    tl.store(folded + (member * D + row) * F + col, value.to(folded.dtype.element_ty), (row < D) & (col < F))


@triton.jit
def _copy(
    online, target, out, program,
    MEMBERS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, START: tl.constexpr, LENGTH: tl.constexpr,
    FILLED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write BLOCK of SIZE elements: of each parameter the members of all networks, LENGTH each, filled up with zeros.

    Parameters lie behind each other from START on.
    """
    at = program * BLOCK + tl.arange(0, BLOCK)
    piece, inner = at // FILLED, at % FILLED
    first = piece // MEMBERS % PARTS == 0
    place = START + (piece // (MEMBERS * PARTS) * MEMBERS + piece % MEMBERS) * LENGTH + inner
    value = tl.load(tl.where(first, online + place, target + place), (at < SIZE) & (inner < LENGTH), 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), at < SIZE)


@triton.jit
def _stack(
    online, target, folded, head, rest,
    MEMBERS: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, IN: tl.constexpr, F: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, EMBED: tl.constexpr, GAIN: tl.constexpr, OFFSET: tl.constexpr,
    HEAD: tl.constexpr, K: tl.constexpr, KF: tl.constexpr, BLOCK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Write all results; COPIES has (begin, end, START, LENGTH, FILLED, SIZE, place in rest) of the programs that copy
    to rest."""
    program = tl.program_id(0)
    FOLD: tl.constexpr = MEMBERS * PARTS * TILES
    HEADS: tl.constexpr = MEMBERS * PARTS * KF * D
    if program < FOLD:
        _fold(online, target, folded, program, MEMBERS, D, IN, F, WIDE, ROWS, TILES, EMBED, GAIN, OFFSET)
    elif program < FOLD + (HEADS + BLOCK - 1) // BLOCK:
        _copy(online, target, head, program - FOLD, MEMBERS, PARTS, BLOCK, HEAD, K * D, KF * D, HEADS)
    for i in tl.static_range(len(COPIES)):
        if (program >= COPIES[i][0]) & (program < COPIES[i][1]):
            _copy(
                online, target, rest + COPIES[i][6], program - COPIES[i][0], MEMBERS, PARTS, BLOCK,
                COPIES[i][2], COPIES[i][3], COPIES[i][4], COPIES[i][5],
            )  # fmt: skip


class Layout(NamedTuple):
    """Where a network's small parameters lie in its flat tensor."""

    members: int
    width: int
    """d."""
    inputs: int
    outputs: int
    """K, of all heads."""
    embed: int
    gain: int
    offset: int
    """Of the input's norm."""
    head: int
    bias: int

    @classmethod
    def of(cls, storage: Storage) -> "Layout":
        """Return the layout of a network whose heads lie behind each other, as their biases do.

        Raises:
            ValueError: they do not.
        """
        spans = {span.name: span for span in storage.spans}
        embed = spans["trunk.embed.weight"]
        norm = spans["trunk.input_norm.gain"].start, spans["trunk.input_norm.offset"].start
        heads, biases = head_spans(storage)
        members = embed.shape[0] if len(embed.shape) == 3 else 1
        pairs = (*pairwise(heads), *pairwise(biases))
        apart = any(one.start + one.size != other.start for one, other in pairs)
        if apart or (members > 1 and len(heads) > 1) or len(heads) != len(biases):
            names = [span.name for span in (*heads, *biases)]
            raise ValueError(f"heads {names}; one of an ensemble is needed, or some in a row")
        sizes = (members, *embed.shape[-2:], sum(span.size for span in biases) // members)
        return cls(*sizes, embed.start, *norm, heads[0].start, biases[0].start)

    def options(self, parts: int, runs: Sequence[int]) -> tuple[int, dict[str, Any]]:
        """Return programs and constants for so many flat tensors; runs has (start, length, parameters) of those norms
        that are copied, one run after the other, members apart."""
        full, outputs = filled(self.inputs + 1), filled(self.outputs)
        wide, members = triton.next_power_of_2(full), parts * self.members
        rows = min(max(1, ELEMENTS // wide), triton.next_power_of_2(self.width))
        tiles = triton.cdiv(self.width, rows)
        begin, place, copies = members * tiles + triton.cdiv(members * outputs * self.width, ELEMENTS), 0, []
        each = [(*runs[i : i + 2], runs[i + 1], runs[i + 2]) for i in range(0, len(runs), 3)]
        for start, length, full_length, count in (*each, (self.bias, self.outputs, outputs, 1)):
            size = members * full_length * count
            end = begin + triton.cdiv(size, ELEMENTS)
            copies.append((begin, end, start, length, full_length, size, place))
            begin, place = end, place + size
        constants = {"MEMBERS": self.members, "PARTS": parts, "D": self.width, "IN": self.inputs, "F": full}
        constants |= {"WIDE": wide, "ROWS": rows, "TILES": tiles, "EMBED": self.embed, "GAIN": self.gain}
        constants |= {"OFFSET": self.offset, "HEAD": self.head, "K": self.outputs, "KF": outputs, "BLOCK": ELEMENTS}
        return begin, constants | {"COPIES": tuple(copies)}


@torch.library.custom_op("tickgraph::stack_weights", mutates_args=())
def stack_weights(
    online: Tensor, target: Tensor | None, layout: Sequence[int], runs: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return folded embedding (M, d, I + 1 filled up) and head (M, K filled up, d) in a precision, and flat in float32
    the norms of `runs`, see `Layout.options`, and the heads' biases (M, K filled up) behind them."""
    place = Layout(*layout)
    made = _empty(online, target, place, runs, dtype)
    programs, constants = place.options(1 if target is None else 2, runs)
    _stack[(programs,)](online, online if target is None else target, *made, **constants, num_warps=WARPS)
    return made


@stack_weights.register_fake
def _(
    online: Tensor, target: Tensor | None, layout: Sequence[int], runs: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(online, target, Layout(*layout), runs, dtype)


def _empty(
    online: Tensor, target: Tensor | None, layout: Layout, runs: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `stack_weights` fills."""
    members, outputs = layout.members * (1 if target is None else 2), filled(layout.outputs)
    norms = sum(runs[i + 1] * runs[i + 2] for i in range(0, len(runs), 3))
    return (
        online.new_empty((members, layout.width, filled(layout.inputs + 1)), dtype=dtype),
        online.new_empty((members, outputs, layout.width), dtype=dtype),
        online.new_empty((members * (norms + outputs),)),
    )


class StackWeights:
    """Makes the `SmallWeights` of a network, or of an ensemble and its target.

    Args:
        storage: the network's layout.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage, self.layout = storage, Layout.of(storage)
        inner = [span for span in storage.spans if span.name.endswith(("gain", "offset"))]
        self.norms = [span for span in inner if not span.name.startswith("trunk.input_norm.")]
        # Those of one width lie behind each other, and are one run of programs.
        self.runs: list[int] = []
        for span in self.norms:
            start, length, count = self.runs[-3:] or (-1, 0, 0)
            each = span.size // self.layout.members
            if length == each and start + count * span.size == span.start:
                self.runs[-1] += 1
            else:
                self.runs += [span.start, each, 1]

    def __call__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> SmallWeights:
        """Return those of one flat tensor or, of an ensemble, of two, in the precision of the products.

        Raises:
            ValueError: there are more.
        """
        if len(parameters) > 2 or (len(parameters) == 2 and self.layout.members == 1):
            raise ValueError(f"{len(parameters)} flat tensors; one is needed, or those of an ensemble and its target")
        online, target = parameters[0], parameters[1] if len(parameters) == 2 else None
        norms, runs = ([], []) if target is None else (self.norms, self.runs)
        folded, head, rest = stack_weights(online, target, list(self.layout), runs, dtype)
        named, start = by_name(self.storage, [online]), 0
        for span in norms:
            named[span.name] = rest[start : start + 2 * span.size].view(-1, span.shape[-1])
            start += 2 * span.size
        return SmallWeights(folded, head, rest[start:].view(head.shape[0], 1, head.shape[1]), named)
