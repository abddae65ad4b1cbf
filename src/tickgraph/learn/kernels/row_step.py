"""The optimiser's step in Triton: whether it is taken, then every row; see `learn/row_step.py`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.optimizer import EPS
from tickgraph.learn.row_step import FREE, ROW, STATISTICS

BLOCK = 1024
MAX_PROGRAMS = 255
"""Programs that sum squares, at most; one more looks at loss and statistics."""


@triton.jit
def _square_sums(
    grad, statistics, loss, partial, size, stats_size,
    PROGRAMS: tl.constexpr, STEPS: tl.constexpr, STATS_STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write sums of squares of the gradient, and a number: 0 where loss and statistics are finite, else NaN."""
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    if program < PROGRAMS:
        for step in range(STEPS):
            place = (program * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(grad + place, place < size, 0.0)
            total += value * value
    else:
        # Names of their own: Triton wants one type for a name that both branches set.
        for stats_step in range(STATS_STEPS):
            spot = stats_step * BLOCK + tl.arange(0, BLOCK)
            figure = tl.load(statistics + spot, spot < stats_size, 0.0)
            total += figure - figure
        last = tl.load(loss)
        total += last - last
    tl.store(partial + program, tl.sum(total, 0))


@triton.jit
def _adam(
    place, inside, parameters, moment1, moment2, grad, shorten, size, spread, keep,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Return what the parameters would become and store the moments."""
    g = tl.load(grad + place, inside, 0.0) * shorten
    m = tl.load(moment1 + place, inside, 0.0)
    v = tl.load(moment2 + place, inside, 0.0)
    m += (1.0 - BETA1) * (g - m)
    v += (1.0 - BETA2) * (g * g - v)
    tl.store(moment1 + place, m, inside)
    tl.store(moment2 + place, v, inside)
    step = tl.where(inside, size * m / (tl.sqrt_rn(v) * spread + EPS), 0.0)
    return tl.load(parameters + place, inside, 0.0) * keep - step


@triton.jit
def _put(place, inside, new, parameters, target, tau, TARGET: tl.constexpr):
    """Store new parameters, and return their average, stored too."""
    tl.store(parameters + place, new, inside)
    average = new
    if TARGET:
        old = tl.load(target + place, inside, 0.0)
        average = old + tau * (new - old)
        tl.store(target + place, average, inside)
    return average


@triton.jit
def _rows(
    parameters, moment1, moment2, steps, running, target, stacked, grad, statistics, factors, table, partial, taken,
    momentum, tau, max_norm, parts,
    DECAY: tl.constexpr, CLIP: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    TARGET: tl.constexpr, STACKED: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr,
    ROW: tl.constexpr, FREE: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """Take one row through the whole step; program 0 also counts it."""
    program = tl.program_id(0)
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(partial + part, part < parts, 0.0), 0)
    ok = total - total == 0.0
    if program == 0:
        tl.store(taken, ok.to(tl.int8))
        tl.store(steps, tl.load(steps) + ok.to(tl.int64))
    entry = table + program * 6
    first, second, length, kind = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    k = tl.arange(0, WIDTH)
    inside = k < tl.where(ok, length, 0)  # a step that is not taken reads and writes nothing
    if kind == STATISTICS:
        old = tl.load(running + first + k, inside, 0.0)
        new = tl.load(statistics + first + k, inside, 0.0)
        tl.store(running + first + k, old + momentum * (new - old), inside)
    else:
        size, spread = tl.load(factors), tl.load(factors + 1)
        keep = 1.0
        shorten = 1.0
        if DECAY:
            keep = tl.load(factors + 2)
        if CLIP:
            shorten = tl.minimum(max_norm / (tl.sqrt_rn(total) + 1e-6), 1.0)
        here, also = first + k, second + k
        paired = inside & (second >= 0)
        one = _adam(here, inside, parameters, moment1, moment2, grad, shorten, size, spread, keep, BETA1, BETA2, EPS)
        two = _adam(also, paired, parameters, moment1, moment2, grad, shorten, size, spread, keep, BETA1, BETA2, EPS)
        square = tl.sum(one * one, 0) + tl.sum(two * two, 0)
        # Norm 1 for a row, sqrt(length) for gains, with the guards of `unit_rows` and `unit_pairs`.
        unit = 1.0 / tl.maximum(tl.sqrt_rn(square), 1e-8)
        sphere = tl.sqrt_rn(length * 1.0) / tl.sqrt_rn(square + 1e-8)
        scale = tl.where(kind == ROW, unit, tl.where(kind == FREE, 1.0, sphere))
        average = _put(here, inside, one * scale, parameters, target, tau, TARGET)
        _put(also, paired, two * scale, parameters, target, tau, TARGET)
        if STACKED:
            mine, theirs = tl.load(entry + 4), tl.load(entry + 5)
            dtype = stacked.dtype.element_ty
            tl.store(stacked + mine + k, (one * scale).to(dtype), inside & (mine >= 0))
            if TARGET:
                tl.store(stacked + theirs + k, average.to(dtype), inside & (theirs >= 0))


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
    longest: int,
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
    programs = min(MAX_PROGRAMS, triton.cdiv(size, BLOCK))
    partial = grad.new_empty((programs + 1,))
    taken = torch.empty((), dtype=torch.int8, device=grad.device)
    _square_sums[(programs + 1,)](
        *(grad, statistics, loss, partial, size, stats_size),
        PROGRAMS=programs,
        STEPS=triton.cdiv(size, programs * BLOCK),
        STATS_STEPS=triton.cdiv(stats_size, BLOCK),
        BLOCK=BLOCK,
    )
    _rows[(table.shape[0],)](
        *(parameters, moment1, moment2, steps, parameters if running is None else running),
        *(parameters if target is None else target, parameters if stacked is None else stacked),
        *(grad, statistics, factors, table, partial, taken),
        *(momentum, tau, max_norm, programs + 1),
        DECAY=factors.numel() == 3,
        CLIP=max_norm > 0.0,
        BETA1=beta1,
        BETA2=beta2,
        EPS=EPS,
        TARGET=target is not None,
        STACKED=stacked is not None,
        PARTS=triton.next_power_of_2(programs + 1),
        WIDTH=triton.next_power_of_2(longest),
        ROW=ROW,
        FREE=FREE,
        STATISTICS=STATISTICS,
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
    longest: int,
    momentum: float,
    tau: float,
    beta1: float,
    beta2: float,
    max_norm: float,
) -> Tensor:
    return torch.empty((), dtype=torch.bool, device=grad.device)
