"""The optimiser's step in Triton: whether it is taken, then every row; see `learn/row_step.py`."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.optimizer import EPS
from tickgraph.learn.row_step import ROW, SPHERE, STATISTICS, TILE, TileClass

MAX_PARTS = 383
"""Programs that sum squares, at most; one more looks at loss and statistics."""
MIN_BLOCK, MAX_BLOCK = 1024, 8192
"""Elements that such a program reads at once: a large network's gradient is on its way as a whole."""
WARPS = 8
REGISTERS = 64
"""Of a thread of `_rows`, so that four programs share a processor: all that it needs for eight elements of each tensor,
but not for more, and not with weight decay or clipping."""


@triton.jit
def _square_sums(
    grad, statistics, loss, partial, size, stats_size,
    PROGRAMS: tl.constexpr, STEPS: tl.constexpr, STATS_STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write sums of squares of the gradient; NaN with the last of them where loss or statistics are not finite."""
    program = tl.program_id(0)
    whole = size // 4 * 4  # four are read at once; the last program takes the rest
    total = tl.zeros((BLOCK,), tl.float32)
    if program < PROGRAMS:
        for step in range(STEPS):
            place = (step * PROGRAMS + program) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(grad + place, place < whole, 0.0)
            total += value * value
        tl.store(partial + program, tl.sum(total, 0))
    else:
        # Names of their own: Triton wants one type for a name that both branches set.
        for stats_step in range(STATS_STEPS):
            spot = stats_step * BLOCK + tl.arange(0, BLOCK)
            figure = tl.load(statistics + spot, spot < stats_size, 0.0)
            total += figure - figure
        rest = whole + tl.arange(0, 4)
        remaining = tl.load(grad + rest, rest < size, 0.0)
        last = tl.load(loss)
        tl.store(partial + program, tl.sum(total, 0) + (last - last) + tl.sum(remaining * remaining, 0))


@triton.jit
def _tile(
    parameters, moment1, moment2, running, target, stacked, grad, statistics, factors, entry, sums,
    momentum, tau, max_norm,
    DECAY: tl.constexpr, CLIP: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    TARGET: tl.constexpr, STACKED: tl.constexpr, ROW: tl.constexpr, SPHERE: tl.constexpr, STATISTICS: tl.constexpr,
    KIND: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Take a tile of rows (ROWS, WIDTH) through the whole step.

    All that it reads is asked for before `sums` decide whether it writes, so that it waits for memory once.
    """
    first = tl.multiple_of(tl.load(entry), ALIGN)
    length = tl.multiple_of(tl.load(entry + 2), ALIGN)
    r, k = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    offset = r * tl.multiple_of(tl.load(entry + 1), ALIGN) + k
    place = first + offset
    inside = (r < tl.load(entry + 3)) & (k < length)
    if KIND == STATISTICS:
        old = tl.load(running + place, inside, 0.0)
        figure = tl.load(statistics + place, inside, 0.0)
        seen = tl.sum(sums, 0)
        write = inside & (k < tl.where(seen - seen == 0.0, length, 0))
        tl.store(running + place, old + momentum * (figure - old), write)
    else:
        g = tl.load(grad + place, inside, 0.0)
        m = tl.load(moment1 + place, inside, 0.0)
        v = tl.load(moment2 + place, inside, 0.0)
        p = tl.load(parameters + place, inside, 0.0)
        if TARGET:
            average = tl.load(target + place, inside, 0.0)
        size, spread = tl.load(factors), tl.load(factors + 1)
        if DECAY:
            p *= tl.load(factors + 2)
        total = tl.sum(sums, 0)
        write = inside & (k < tl.where(total - total == 0.0, length, 0))
        if CLIP:
            g *= tl.minimum(max_norm / (tl.sqrt_rn(total) + 1e-6), 1.0)
        m += (1.0 - BETA1) * (g - m)
        v += (1.0 - BETA2) * (g * g - v)
        tl.store(moment1 + place, m, write)
        tl.store(moment2 + place, v, write)
        new = p - tl.where(inside, size * m / (tl.sqrt_rn(v) * spread + EPS), 0.0)
        # Norm 1 for a row, sqrt(length) for gains, with the guards of `unit_rows` and `unit_pairs`.
        if KIND == ROW:
            new *= (1.0 / tl.maximum(tl.sqrt_rn(tl.sum(new * new, 1)), 1e-8))[:, None]
        if KIND == SPHERE:
            new *= tl.sqrt_rn(length * 1.0) / tl.sqrt_rn(tl.sum(tl.sum(new * new, 1), 0) + 1e-8)
        tl.store(parameters + place, new, write)
        if TARGET:
            average += tau * (new - average)
            tl.store(target + place, average, write)
        if STACKED and KIND == ROW:
            dtype = stacked.dtype.element_ty
            mine = tl.multiple_of(tl.load(entry + 4), ALIGN)
            tl.store(stacked + (mine + offset), new.to(dtype), write)
            if TARGET:
                theirs = tl.multiple_of(tl.load(entry + 5), ALIGN)
                tl.store(stacked + (theirs + offset), average.to(dtype), write)


@triton.jit
def _rows(
    parameters, moment1, moment2, steps, running, target, stacked, grad, statistics, factors, table, partial, taken,
    momentum, tau, max_norm, parts,
    DECAY: tl.constexpr, CLIP: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    TARGET: tl.constexpr, STACKED: tl.constexpr, PARTS: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
    ROW: tl.constexpr, SPHERE: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """Take one tile through the whole step, by the branch of its class; program 0 also counts the step."""
    program = tl.program_id(0)
    part = tl.arange(0, PARTS)
    sums = tl.load(partial + part, part < parts, 0.0)
    for i in tl.static_range(COUNT):  # six figures each, of `TileClass`
        if (program >= CLASSES[6 * i]) & (program < CLASSES[6 * i + 1]):
            _tile(
                parameters, moment1, moment2, running, target, stacked, grad, statistics, factors,
                table + program * 6, sums, momentum, tau, max_norm,
                DECAY, CLIP, BETA1, BETA2, EPS, TARGET, STACKED, ROW, SPHERE, STATISTICS,
                CLASSES[6 * i + 2], CLASSES[6 * i + 3], CLASSES[6 * i + 4], CLASSES[6 * i + 5],
            )  # fmt: skip
    if program == 0:
        total = tl.sum(sums, 0)
        ok = total - total == 0.0
        tl.store(taken, ok.to(tl.int8))
        tl.store(steps, tl.load(steps) + ok.to(tl.int64))


def tile_options(classes: Sequence[int], decay: bool, clip: bool) -> dict[str, object]:
    """Return how `_rows` is built for the classes of a table, figure after figure."""
    figures = len(TileClass._fields)
    tiles = [TileClass(*classes[i : i + figures]) for i in range(0, len(classes), figures)]
    fits = not (decay or clip) and all(each.rows * each.width <= TILE for each in tiles)
    return {
        "DECAY": decay,
        "CLIP": clip,
        "CLASSES": tuple(classes),
        "COUNT": len(tiles),
        "ROW": ROW,
        "SPHERE": SPHERE,
        "STATISTICS": STATISTICS,
        "num_warps": WARPS,
        "maxnreg": REGISTERS if fits else None,
    }


@torch.library.custom_op(
    "tickgraph::row_step",
    mutates_args=("parameters", "moment1", "moment2", "steps", "running", "target", "stacked"),
)
def row_step(
    parameters: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    steps: Tensor,
    running: Tensor | None,
    target: Tensor | None,
    stacked: Tensor | None,
    loss: Tensor,
    grad: Tensor,
    statistics: Tensor | None,
    factors: Tensor,
    table: Tensor,
    classes: Sequence[int],
    momentum: float,
    tau: float,
    beta1: float,
    beta2: float,
    max_norm: float,
) -> Tensor:
    """Take the step and return () bool, whether it was taken; arguments as in `RowStep.apply`."""
    grad = grad.contiguous()
    statistics = grad if statistics is None else statistics.contiguous()
    size, stats_size = grad.numel(), 0 if running is None else statistics.numel()
    block = min(MAX_BLOCK, max(MIN_BLOCK, triton.next_power_of_2(triton.cdiv(size, MAX_PARTS))))
    summing_steps = triton.cdiv(size, block * MAX_PARTS)
    programs = triton.cdiv(size, block * summing_steps)
    partial = grad.new_empty((programs + 1,))
    taken = torch.empty((), dtype=torch.int8, device=grad.device)
    _square_sums[(programs + 1,)](
        *(grad, statistics, loss, partial, size, stats_size),
        PROGRAMS=programs,
        STEPS=summing_steps,
        STATS_STEPS=triton.cdiv(stats_size, block),
        BLOCK=block,
        num_warps=WARPS,
    )
    _rows[(table.shape[0],)](
        *(parameters, moment1, moment2, steps, parameters if running is None else running),
        *(parameters if target is None else target, parameters if stacked is None else stacked),
        *(grad, statistics, factors, table, partial, taken),
        *(momentum, tau, max_norm, programs + 1),
        BETA1=beta1,
        BETA2=beta2,
        EPS=EPS,
        TARGET=target is not None,
        STACKED=stacked is not None,
        PARTS=triton.next_power_of_2(programs + 1),
        **tile_options(classes, decay=factors.numel() == 3, clip=max_norm > 0.0),
    )
    return taken.view(torch.bool)


@row_step.register_fake
def _(
    parameters: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    steps: Tensor,
    running: Tensor | None,
    target: Tensor | None,
    stacked: Tensor | None,
    loss: Tensor,
    grad: Tensor,
    statistics: Tensor | None,
    factors: Tensor,
    table: Tensor,
    classes: Sequence[int],
    momentum: float,
    tau: float,
    beta1: float,
    beta2: float,
    max_norm: float,
) -> Tensor:
    return torch.empty((), dtype=torch.bool, device=grad.device)
