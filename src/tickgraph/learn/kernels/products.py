"""The products that make gradients of weights in Triton: all large ones in one launch, all small ones in another.

A gradient of a weight is a product over the rows of a batch and small itself, so that one alone leaves a GPU idle or
takes small tiles, and a backward pass puts off some ten of them. Side by side large ones fill a GPU with large tiles.
Small ones, beside those, are split along the rows as well, into parts that a second launch adds up in their order, so
that a run repeats bit for bit; it makes the embedding's gradients too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.gradients import Embedding
from tickgraph.learn.put_off import Job, Product, Work, by_torch, is_small


class Tile(NamedTuple):
    """What a program computes, and how it loads."""

    rows: int
    cols: int
    depth: int
    """Rows of the batch that are read at a time."""
    stages: int
    warps: int

    @property
    def memory(self) -> int:
        """Bytes of shared memory that it takes, of bfloat16."""
        return 2 * self.stages * self.depth * (self.rows + self.cols)


# Measured on an H200 for a G1's networks in bfloat16, in whole cycles of updates; see docs/performance.md. A large tile
# takes 128 KB of shared memory: a processor gets one, while none is without, and has room for a small one beside it.
LARGE = Tile(128, 128, 64, 4, 4)
SMALL = Tile(128, 128, 64, 3, 4)
ALIGN = 8
"""Elements that are loaded at a time, which divides all sizes and strides: loads one by one do not run ahead of the
products, and take so many registers that a thread keeps kilobytes of them in memory."""
PROGRAMS = 80
"""Into as many the small products are split at most, if they are not more by themselves."""
MOST_PARTS = 16
BLOCK = 2048
"""Elements that a program adds up."""
UNFOLD_ROWS, UNFOLD_COLUMNS = 256, 16
"""Of a tile of the embedding's gradients; those of a G1's critics take 18 programs."""
WARPS = 8


@triton.jit
def _products(
    lefts, rights, out,
    GROUPS: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write left^T right (M, N) of each member and each of PARTS parts of the K rows, (PARTS, members, M, N) a product.

    GROUPS has (first program, M, N, K, members, strides of a member and a row of left, the same of right, place in out)
    of each product. With EVEN all sizes are multiples of the tile's. ALIGN divides sizes and strides of all products.
    """
    program = tl.program_id(0)
    zero = tl.zeros((), tl.int32)
    left, right = lefts[0], rights[0]
    first, height, width, depth = zero, zero + GROUPS[0][1], zero + GROUPS[0][2], zero + GROUPS[0][3]
    members, place = zero + GROUPS[0][4], zero + GROUPS[0][9]
    by_left, along_left = zero + GROUPS[0][5], zero + GROUPS[0][6]
    by_right, along_right = zero + GROUPS[0][7], zero + GROUPS[0][8]
    for i in tl.static_range(1, len(GROUPS)):
        here = program >= GROUPS[i][0]
        if here:
            left = lefts[i]
            right = rights[i]
        first = tl.where(here, GROUPS[i][0], first)
        height, width = tl.where(here, GROUPS[i][1], height), tl.where(here, GROUPS[i][2], width)
        depth, members = tl.where(here, GROUPS[i][3], depth), tl.where(here, GROUPS[i][4], members)
        by_left, along_left = tl.where(here, GROUPS[i][5], by_left), tl.where(here, GROUPS[i][6], along_left)
        by_right, along_right = tl.where(here, GROUPS[i][7], by_right), tl.where(here, GROUPS[i][8], along_right)
        place = tl.where(here, GROUPS[i][9], place)
    # What is chosen is not known to be aligned, and would be loaded element by element.
    left, right = tl.multiple_of(left, 2 * ALIGN), tl.multiple_of(right, 2 * ALIGN)
    height, width = tl.multiple_of(height, ALIGN), tl.multiple_of(width, ALIGN)
    by_left, along_left = tl.multiple_of(by_left, ALIGN), tl.multiple_of(along_left, ALIGN)
    by_right, along_right = tl.multiple_of(by_right, ALIGN), tl.multiple_of(along_right, ALIGN)
    across = tl.cdiv(width, COLS)
    tiles = across * tl.cdiv(height, ROWS)
    tile, copy = (program - first) % tiles, ((program - first) // tiles).to(tl.int64)
    member, part = copy % members, (copy // members).to(tl.int32)
    m = tl.multiple_of(tile // across * ROWS, ROWS) + tl.arange(0, ROWS)
    n = tl.multiple_of(tile % across * COLS, COLS) + tl.arange(0, COLS)
    steps = tl.cdiv(tl.cdiv(depth, DEPTH), PARTS)
    begin, end = part * steps * DEPTH, tl.minimum((part + 1) * steps * DEPTH, depth)
    k = tl.arange(0, DEPTH)
    at_left = left + member * by_left + (begin + k)[:, None] * along_left + m[None, :]
    at_right = right + member * by_right + (begin + k)[:, None] * along_right + n[None, :]
    made = tl.zeros((ROWS, COLS), tl.float32)
    for start in tl.range(begin, end, DEPTH, num_stages=STAGES):
        if EVEN:
            above, source = tl.load(at_left), tl.load(at_right)
        else:
            known = (start + k < end)[:, None]
            above = tl.load(at_left, known & (m < height)[None, :], 0.0)
            source = tl.load(at_right, known & (n < width)[None, :], 0.0)
        made = tl.dot(tl.trans(above), source, made)
        at_left += DEPTH * along_left
        at_right += DEPTH * along_right
    at = out + place + copy * height * width + m[:, None] * width + n[None, :]
    if EVEN:
        tl.store(at, made)
    else:
        tl.store(at, made, (m < height)[:, None] & (n < width)[None, :])


@triton.jit
def _add_up(parts, out, program, SIZE: tl.constexpr, APART: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sums of BLOCK elements of each part, which are APART from each other."""
    at = program * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(parts + at, at < SIZE, 0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * APART + at, at < SIZE, 0.0)
    tl.store(out + at, total, at < SIZE)


@triton.jit
def _unfold(
    folded, weight, gain, offset, to_weight, to_gain, to_offset, program,
    D: tl.constexpr, IN: tl.constexpr, F: tl.constexpr, BY: tl.constexpr, APART: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write `Embedding.gradients` of COLUMNS columns of a member.

    BY has the strides of weight (M, D, IN), of gain and of offset (M, IN); folded (M, D, F) is the sum of parts, each
    in one piece.
    """
    TILES: tl.constexpr = (IN + COLUMNS - 1) // COLUMNS
    member, col, row = program // TILES, program % TILES * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    known = col < IN
    factor = tl.load(gain + member * BY[3] + col * BY[4], known, 0.0)[None, :]
    shift = tl.load(offset + member * BY[5] + col * BY[6], known, 0.0)[None, :]
    gains, offsets = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, D, ROWS):
        own = row + first
        inside = (own < D)[:, None] & known[None, :]
        begin = folded + (member * D + own) * F
        above, bias = tl.load(begin[:, None] + col[None, :], inside, 0.0), tl.load(begin + IN, own < D, 0.0)
        for part in tl.static_range(1, PARTS):
            above += tl.load(begin[:, None] + part * APART + col[None, :], inside, 0.0)
            bias += tl.load(begin + part * APART + IN, own < D, 0.0)
        read = tl.load(weight + member * BY[0] + own[:, None] * BY[1] + col[None, :] * BY[2], inside, 0.0)
        to = to_weight + (member * D + own[:, None]) * IN + col[None, :]
        tl.store(to, above * factor + bias[:, None] * shift, inside)
        gains += above * read
        offsets += bias[:, None] * read
    tl.store(to_gain + member * IN + col, tl.sum(gains, 0), known)
    tl.store(to_offset + member * IN + col, tl.sum(offsets, 0), known)


@triton.jit
def _collect(
    made, folded, flat, weight, gain, offset,
    SUMS: tl.constexpr, BEGIN: tl.constexpr, STARTS: tl.constexpr, D: tl.constexpr, IN: tl.constexpr, F: tl.constexpr,
    BY: tl.constexpr, APART: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the weights whose products were made in parts, and those of the embedding.

    SUMS has (begin, end, SIZE, APART, place in made, place in flat) of the programs of a member of a weight. Programs
    from BEGIN on do `_unfold`; STARTS are the places of what it writes.
    """
    program = tl.program_id(0)
    for i in tl.static_range(len(SUMS)):
        if (program >= SUMS[i][0]) & (program < SUMS[i][1]):
            source, to = made + SUMS[i][4], flat + SUMS[i][5]
            _add_up(source, to, program - SUMS[i][0], SUMS[i][2], SUMS[i][3], PARTS, BLOCK)
    if program >= BEGIN:
        _unfold(
            folded, weight, gain, offset, flat + STARTS[0], flat + STARTS[1], flat + STARTS[2], program - BEGIN,
            D, IN, F, BY, APART, PARTS, ROWS, COLUMNS,
        )  # fmt: skip


class Factors(NamedTuple):
    """Of a product: left (M, K, height) and right (M, K, width), whose rows lie in one piece, in loads of `ALIGN`."""

    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> "Factors":
        """Return both, copied where they do not lie so; `ALIGN` must divide height and width."""
        piece = torch.contiguous_format
        return cls(*(value if _in_loads(value) else value.clone(memory_format=piece) for value in (left, right)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the product."""
        return self.left.shape[0], self.left.shape[2], self.right.shape[2]

    @property
    def size(self) -> int:
        """Elements of the product."""
        members, height, width = self.shape
        return members * height * width

    def tiles(self, tile: Tile) -> int:
        """Return the tiles of all members."""
        members, height, width = self.shape
        return members * triton.cdiv(height, tile.rows) * triton.cdiv(width, tile.cols)


def _in_loads(value: Tensor) -> bool:
    """Return whether rows lie in one piece and begin where a load does."""
    begins = (*value.stride()[:2], value.data_ptr() // value.element_size())
    return value.stride(2) == 1 and all(begin % ALIGN == 0 for begin in begins)


def options(factors: Sequence[Factors], places: Sequence[int], tile: Tile, parts: int) -> tuple[int, dict[str, Any]]:
    """Return programs and constants of `_products`."""
    groups, begin = list[tuple[int, ...]](), 0
    for each, place in zip(factors, places, strict=True):
        (members, height, width), depth = each.shape, each.left.shape[1]
        by = (*each.left.stride()[:2], *each.right.stride()[:2])
        groups.append((begin, height, width, depth, members, *by, place))
        begin += parts * each.tiles(tile)
    even = all(
        height % tile.rows == 0 and width % tile.cols == 0 and depth % (parts * tile.depth) == 0
        for _, height, width, depth, *_ in groups
    )
    constants = {"GROUPS": tuple(groups), "PARTS": parts, "EVEN": even, "ALIGN": ALIGN}
    constants |= {"ROWS": tile.rows, "COLS": tile.cols, "DEPTH": tile.depth, "STAGES": tile.stages}
    return begin, constants


def multiply(out: Tensor, factors: Sequence[Factors], places: Sequence[int], tile: Tile, parts: int = 1) -> None:
    """Write products to their places in a line, each (parts, M, height, width)."""
    programs, constants = options(factors, places, tile, parts)
    lefts, rights = (tuple(each[side] for each in factors) for side in (0, 1))
    _products[(programs,)](lefts, rights, out, **constants, num_warps=tile.warps)


def collect_options(
    sums: Iterable[tuple[int, int, int, int]], apart: int, folded: Tensor, starts: Sequence[int], given: Embedding
) -> tuple[int, dict[str, Any]]:
    """Return programs and constants of `_collect`, less PARTS.

    Args:
        sums: (elements, elements from one part to the next, place in parts, place in flat) of each member of a weight.
        apart: elements from one part of `folded` to the next.
        folded: the first part of the embedding's product, (M, d, I filled up).
        starts: places of the gradients of weight, gain and offset.
        given: what they come from.
    """
    (members, depth, width), begin, programs = given.weight.shape, 0, list[tuple[int, ...]]()
    for size, *rest in sums:
        end = begin + triton.cdiv(size, BLOCK)
        programs.append((begin, end, size, *rest))
        begin = end
    by = (*given.weight.stride(), *given.gain.stride(), *given.offset.stride())
    constants: dict[str, Any] = {"SUMS": tuple(programs), "BEGIN": begin, "STARTS": tuple(starts), "D": depth}
    constants |= {"IN": width, "F": folded.shape[-1], "BY": by, "APART": apart, "BLOCK": BLOCK}
    constants |= {"ROWS": min(UNFOLD_ROWS, triton.next_power_of_2(depth)), "COLUMNS": UNFOLD_COLUMNS}
    return begin + members * triton.cdiv(width, UNFOLD_COLUMNS), constants


def unfold(flat: Tensor, starts: Sequence[int], folded: Tensor, given: Embedding) -> None:
    """Write `Embedding.gradients` to their places in one launch."""
    programs, constants = collect_options((), 0, folded, starts, given)
    own = (given.weight, given.gain, given.offset)
    _collect[(programs,)](folded, folded, flat, *own, PARTS=1, **constants, num_warps=WARPS)


def large_tile(device: torch.device) -> Tile:
    """Return the tile of large products: the small ones' where a GPU's processor has no room for theirs."""
    if device.type != "cuda":
        return LARGE
    # Of a processor's shared memory the driver keeps a kilobyte for each program.
    room = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024
    return LARGE if LARGE.memory <= room else SMALL


def products(flat: Tensor, given: Sequence[Product], embeddings: Sequence[tuple[list[int], Embedding]]) -> Work:
    """Do `put_off.Form.products`: in two launches and one that adds up, or, where float32 is multiplied, columns are
    no multiple of `ALIGN` or there is not one embedding, as torch does."""
    read = [value for each in given for value in (each.above, each.source)]
    read += [value for _, each in embeddings for value in (each.above, each.x)]
    fit = all(value.dtype == torch.bfloat16 and value.shape[2] % ALIGN == 0 for value in read)
    if len(embeddings) != 1 or not fit:
        return by_torch(flat, given, embeddings, unfold)
    large = [each for each in given if not is_small(each) and each.whole]
    small = [each for each in given if is_small(each) or not each.whole]
    return Work([_large(flat, large)] if large else [], [], [_small(flat, small, *embeddings[0])], beside=True)


def _large(flat: Tensor, given: Sequence[Product]) -> Job:
    factors = [Factors.of(each.above, each.source) for each in given]
    multiply(flat, factors, [each.places[0][0] for each in given], large_tile(flat.device))
    yield


def _small(flat: Tensor, given: Sequence[Product], starts: Sequence[int], embedding: Embedding) -> Job:
    factors = [Factors.of(embedding.above, embedding.x), *(Factors.of(each.above, each.source) for each in given)]
    tiles = sum(each.tiles(SMALL) for each in factors)
    parts = min(MOST_PARTS, 1 << max(0, (PROGRAMS // tiles).bit_length() - 1))
    places, total = list[int](), 0
    for each in factors:
        places.append(total)
        total += parts * each.size
    made = flat.new_empty(total)
    multiply(made, factors, places, SMALL, parts)
    yield
    sums = list[tuple[int, int, int, int]]()
    for each, own, place in zip(given, factors[1:], places[1:], strict=True):
        (members, height, width), first = own.shape, 0
        for start, rows in each.places:
            for member in range(members):
                source = place + (member * height + first) * width
                sums.append((rows * width, own.size, source, start + member * rows * width))
            first += rows
    folded = made[: factors[0].size].view(factors[0].shape)
    programs, constants = collect_options(sums, factors[0].size, folded, starts, embedding)
    own = (embedding.weight, embedding.gain, embedding.offset)
    _collect[(programs,)](made, made, flat, *own, PARTS=parts, **constants, num_warps=WARPS)
