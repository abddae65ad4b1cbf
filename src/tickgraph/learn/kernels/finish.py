"""`put_off.finish` in Triton: its products, of bfloat16 factors, in `products.py`, and all else in one launch.

A program sums a few columns, or copies a few KB. Where everything lies, and in which strides, is built into the
kernels, so that views are read where they are and no load waits for another. An element of a result is one program's,
and a sum is taken in a fixed order, so a run repeats bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.gradients import EPS
from tickgraph.learn.kernels.products import products
from tickgraph.learn.put_off import Form, Job, Rest, carry_out, outputs_of

ROWS, COLUMNS = 1024, 8
"""Of a tile of a sum over rows: 32 bytes of a row are the least that a GPU reads. The gradient of the last gain of a
G1's critics at batch 2048 takes 64 programs of two steps."""
BLOCK = 2048
"""Elements of a copy, and of a step of a mean."""
WARPS = 8


@triton.jit
def _total(
    values, out, program,
    R: tl.constexpr, C: tl.constexpr, BY_MEMBER: tl.constexpr, BY_ROW: tl.constexpr, BY_COL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the sums over R rows of COLUMNS columns of a member, each ROWS rows apart first."""
    TILES: tl.constexpr = (C + COLUMNS - 1) // COLUMNS
    member, col, row = program // TILES, program % TILES * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    at = values + member * BY_MEMBER + row[:, None] * BY_ROW + col[None, :] * BY_COL
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, R, ROWS):
        sums += tl.load(at + first * BY_ROW, (row + first < R)[:, None] & (col < C)[None, :], 0.0)
    tl.store(out + member * C + col, tl.sum(sums, 0), col < C)


@triton.jit
def _mean(values, out, R: tl.constexpr, BY_COL: tl.constexpr, BLOCK: tl.constexpr):
    """Write the mean of R values."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, R, BLOCK):
        sums += tl.load(values + (at + first) * BY_COL, at + first < R, 0.0)
    tl.store(out, tl.sum(sums, 0) / R)


@triton.jit
def _copy(
    values, out, program,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, IS_SCALE: tl.constexpr, RATIO: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write BLOCK of SIZE values; of a norm's scales the unbiased variances, as `Moments.packed` has them."""
    at = program * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + at * STRIDE, at < SIZE, 1.0)
    if IS_SCALE:
        value = (1.0 / (value * value) - EPS) * RATIO
    tl.store(out + at, value, at < SIZE)


@triton.jit
def _rest(
    flat, means, statistics, figures, totals, copies,
    TOTALS: tl.constexpr, COPIES: tl.constexpr, BEGIN: tl.constexpr, FIGURES: tl.constexpr, R: tl.constexpr,
    BY_FIGURE: tl.constexpr, BY_COL: tl.constexpr, RATIO: tl.constexpr, EPS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write all of a `put_off.Rest`.

    TOTALS has (begin, end, R, C, strides of member, row and column, ROWS, place in flat) of the programs of a sum,
    COPIES (begin, end, SIZE, STRIDE, whether it goes to statistics, whether it is a scale, place there) of those of a
    copy. Those of the figures are from BEGIN on.
    """
    program = tl.program_id(0)
    for i in tl.static_range(len(TOTALS)):
        if (program >= TOTALS[i][0]) & (program < TOTALS[i][1]):
            _total(
                totals[i], flat + TOTALS[i][8], program - TOTALS[i][0], TOTALS[i][2], TOTALS[i][3], TOTALS[i][4],
                TOTALS[i][5], TOTALS[i][6], TOTALS[i][7], COLUMNS,
            )  # fmt: skip
    if (program >= BEGIN) & (program < BEGIN + FIGURES):
        _mean(figures + (program - BEGIN) * BY_FIGURE, means + program - BEGIN, R, BY_COL, BLOCK)
    for i in tl.static_range(len(COPIES)):
        if (program >= COPIES[i][0]) & (program < COPIES[i][1]):
            _copy(
                copies[i], (statistics if COPIES[i][4] else flat) + COPIES[i][6], program - COPIES[i][0],
                COPIES[i][2], COPIES[i][3], COPIES[i][5], RATIO, EPS, BLOCK,
            )  # fmt: skip


def rest_options(rest: Rest) -> tuple[int, list[Tensor], dict[str, Any]]:
    """Return programs, the tensors that are copied, each in one dimension, and constants of `_rest`."""
    moments, begin, place = rest.moments, 0, 0
    totals, copies, lines = list[tuple[int, ...]](), list[tuple[int, ...]](), list[Tensor]()
    for start, width, values in rest.totals:
        members, rows, _ = values.shape
        end, tile = begin + members * triton.cdiv(width, COLUMNS), min(ROWS, triton.next_power_of_2(rows))
        totals.append((begin, end, rows, width, *values.stride(), tile, start))
        begin = end
    (figures, rows), (by_figure, by_col) = rest.figures.shape, rest.figures.stride()
    constants: dict[str, Any] = {"BEGIN": begin, "FIGURES": figures, "R": rows, "BY_FIGURE": by_figure}
    begin += figures
    # Both rows of the statistics lie behind each other, as do their parts.
    parts = [(part, False, False, start) for start, part in rest.parts]
    for values in (*moments.means, *moments.variances, *moments.scales):
        parts.append((values, True, len(parts) >= len(rest.parts) + len(moments.means + moments.variances), place))
        place += values.numel()
    for values, to_statistics, is_scale, start in parts:
        line = values.reshape(-1)  # a view: a norm leaves its statistics in one piece, and the others are lines
        end = begin + triton.cdiv(line.numel(), BLOCK)
        copies.append((begin, end, line.numel(), line.stride(0), int(to_statistics), int(is_scale), start))
        lines.append(line)
        begin = end
    constants |= {"TOTALS": tuple(totals), "COPIES": tuple(copies), "BY_COL": by_col, "EPS": EPS}
    constants |= {"RATIO": moments.rows / (moments.rows - 1), "COLUMNS": COLUMNS, "BLOCK": BLOCK}
    return begin, lines, constants


def rest(outputs: Sequence[Tensor], what: Rest) -> list[list[Job]]:
    """Do `put_off.Form.rest` in one launch, ahead of the large products: beside one it would take its processors."""
    return [[_launch(outputs, what)]]


def _launch(outputs: Sequence[Tensor], what: Rest) -> Job:
    programs, lines, constants = rest_options(what)
    totals = tuple(values for _, _, values in what.totals) or (what.figures,)  # a tuple of none cannot be passed
    _rest[(programs,)](*outputs, what.figures, totals, tuple(lines), **constants, num_warps=WARPS)
    yield


@torch.library.custom_op("tickgraph::finish_gradients_by_kernels", mutates_args=())
def finish(tensors: Sequence[Tensor], plan: Sequence[int]) -> list[Tensor]:
    """Return what `put_off.finish` does."""
    return carry_out(tensors, plan, Form(products, rest))


finish.register_fake(outputs_of)
