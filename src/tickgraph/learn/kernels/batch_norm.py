"""`learn/batch_norm.py` and the whitening of inputs in Triton.

Many rows take two launches: sums of chunks of rows, then one pass that combines and applies them. Few rows take one,
whose programs hold all rows of their columns in registers. No sum depends on the order in which programs run, so a run
repeats bit for bit. The sums begin with the last rows and the pass behind them with the first: what was written or read
last is still in the second-level cache.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.batch_norm import EPS
from tickgraph.learn.trunk import filled

# Measured on an H200 for the sizes of a G1, 4,096 rows in bfloat16: tiles of 128 rows by 32 columns, 32 values a
# thread, are the fastest or within some percent of it in all passes. Tiles of a chunk are loaded ahead. Chunks are as
# many as give 128 programs, within limits: the last pass reads 8 bytes a chunk and column for each of its tiles, which
# are 256 bytes a column. A program that holds all rows has up to 512 of them by 16 columns, 64 values a thread, and
# reads 32 bytes of a row in bfloat16, the least that memory gives; with 4,096 rows that takes as long as two launches.
ROWS, COLS, WARPS, STAGES = 128, 32, 4, 3
PROGRAMS = 128
MIN_CHUNKS, MAX_CHUNKS = 4, 32
WHOLE_ROWS, WHOLE_COLS, WHOLE_WARPS = 512, 16, 4


@triton.jit
def _folded(tile, KEPT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return sums (KEPT, COLS) of every KEPT-th row, which each thread adds up alone."""
    return tl.sum(tl.reshape(tile, (ROWS // KEPT, KEPT, COLS)), 0)


@triton.jit
def _columns(x, upper, lower, col, rows, cols, own):
    """Return where columns of what `trunk.whiten` joins begin for the first half of its rows, where they would begin
    for the second, and how far rows are apart; the first `own` columns are x's."""
    mine, behind = col < own, cols - own
    over = tl.where(mine, x + col, upper + (col - own))
    under = tl.where(mine, x + col, lower + (col - own - (rows // 2) * behind))
    return over, under, tl.where(mine, own, behind)


@triton.jit
def _places(over, under, stride, row, rows):
    """Return addresses (ROWS, COLS) of rows in such columns.

    Triton takes chosen addresses to lie anywhere and would lay the tile out along its rows, so it is told that columns
    lie together. Between x and what is behind it they do not. That matters to a load of several columns alone, which it
    makes where `cols` and `own` are known to be multiples of 16, and there no load reaches over the edge.
    """
    begin = tl.where((row < rows // 2)[:, None], over[None, :], under[None, :])
    return tl.max_contiguous(begin + row[:, None].to(tl.int64) * stride[None, :], [1, 16])


@triton.jit
def _moments(
    x, partial, rows, cols, upper, lower, own,
    JOINED: tl.constexpr, STEPS: tl.constexpr, CHUNKS: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write mean and summed squared deviation of each chunk of STEPS tiles to partial (M, CHUNKS, 2, C).

    JOINED, there is one member, whose rows are read by `_places`.

    Sums are of differences to the chunk's first row. As that is one of the rows, the square that is taken off at the
    end is at most as many times what is left as the chunk has rows, wherever the mean lies.
    """
    member, part = tl.num_programs(2).to(tl.int64) - 1 - tl.program_id(2), CHUNKS - 1 - tl.program_id(1)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = col < cols
    first = part * (STEPS * ROWS)
    here = x + (member * rows + first) * cols + col
    if JOINED:
        over, under, stride = _columns(x, upper, lower, col, rows, cols, own)
        here = tl.where(first < rows // 2, over, under) + first.to(tl.int64) * stride
    start = tl.load(here, known & (first < rows), 0.0).to(tl.float32)
    total = tl.zeros((KEPT, COLS), tl.float32)
    squares = tl.zeros((KEPT, COLS), tl.float32)
    for step in tl.range(STEPS, num_stages=STAGES):
        row = step * ROWS + tl.arange(0, ROWS)
        inside = (first + row < rows)[:, None] & known[None, :]
        places = here[None, :] + row[:, None] * cols
        if JOINED:
            places = _places(over, under, stride, first + row, rows)
        tile = tl.load(places, inside, 0.0).to(tl.float32)
        apart = tl.where(inside, tile - start[None, :], 0.0)
        total += _folded(apart, KEPT, ROWS, COLS)
        squares += _folded(apart * apart, KEPT, ROWS, COLS)
    count = tl.minimum(tl.maximum(rows - first, 1), STEPS * ROWS) * 1.0
    shift = tl.sum(total, 0)
    spread = tl.sum(squares, 0) - shift * (shift / count)
    place = partial + ((member * CHUNKS + part) * 2) * cols + col
    tl.store(place, start + shift / count, known)
    tl.store(place + cols, tl.where(spread < 0.0, 0.0, spread), known)  # a NaN stays one


@triton.jit
def _parts(partial, member, col, cols, CHUNKS: tl.constexpr):
    """Return both halves (CHUNKS, COLS) of what the first pass wrote."""
    place = partial + ((member * CHUNKS + tl.arange(0, CHUNKS)[:, None]) * 2) * cols + col[None, :]
    known = (col < cols)[None, :]
    return tl.load(place, known, 0.0), tl.load(place + cols, known, 0.0)


@triton.jit
def _combined(means, spreads, rows, CHUNK_ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return mean and variance of all rows from those of the chunks.

    What is left of the mean when it is taken off, by rounding, is added to it.
    """
    part = tl.arange(0, CHUNKS)
    counts = tl.minimum(tl.maximum(rows - part * CHUNK_ROWS, 0), CHUNK_ROWS).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / rows
    delta = means - mean[None, :]
    rest = tl.sum(delta * counts, 0) / rows
    variance = tl.sum(spreads + delta * delta * counts, 0) / rows - rest * rest
    return mean + rest, tl.where(variance < 0.0, 0.0, variance)


@triton.jit
def _exact(tile, inside, rows):
    """Return mean, centred values, 0 outside, and variance of a tile that holds all rows; as in `_combined`."""
    mean = tl.sum(tile, 0) / rows
    centred = tl.where(inside, tile - mean[None, :], 0.0)
    rest = tl.sum(centred, 0) / rows
    variance = tl.sum(centred * centred, 0) / rows - rest * rest
    return mean + rest, tl.where(inside, centred - rest[None, :], 0.0), tl.where(variance < 0.0, 0.0, variance)


@triton.jit
def _norm(
    x, residual, partial, gain, offset, y, mean_out, scale_out, rows, cols, eps,
    RESIDUAL: tl.constexpr, FIRST: tl.constexpr, CHUNK_ROWS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """Write y, mean and scale, on the chunks' statistics, or with CHUNKS 0 on those of the tile, which has all rows.

    Given FIRST, y has the rows of `batch_norm.halves`, and programs of chunks' statistics go through these alone.
    All loads come before what needs one, so that they are under way together. The chunks' come first: of two layouts
    Triton computes in that of the later load, and the tile shall not be the one that is laid out anew.
    """
    member = tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = col < cols
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    end = rows
    if FIRST is not None:
        begin = tl.where(member < FIRST, 0, rows // 2)
        y -= (member * (rows - rows // 2) + begin) * cols
        if CHUNKS > 0:
            row, end = row + begin, begin + rows // 2
    inside = (row < end)[:, None] & known[None, :]
    wanted = inside
    if FIRST is not None and CHUNKS == 0:
        wanted = ((row >= begin) & (row < begin + rows // 2))[:, None] & known[None, :]
    place = (member * rows + row[:, None]) * cols + col[None, :]
    spot = member * cols + col
    if CHUNKS > 0:
        means, spreads = _parts(partial, member, col, cols, CHUNKS)
    tile = tl.load(x + place, inside, 0.0)
    if RESIDUAL:
        extra = tl.load(residual + place, wanted, 0.0)
    factor, shift = tl.load(gain + spot, known, 0.0), tl.load(offset + spot, known, 0.0)
    if CHUNKS > 0:
        mean, variance = _combined(means, spreads, rows, CHUNK_ROWS, CHUNKS)
        centred = tile.to(tl.float32) - mean[None, :]
    else:
        mean, centred, variance = _exact(tile.to(tl.float32), inside, rows)
    scale = 1.0 / tl.sqrt_rn(variance + eps)
    if tl.program_id(1) == 0:
        tl.store(mean_out + spot, mean, known)
        tl.store(scale_out + spot, scale, known)
    value = centred * (scale * factor)[None, :] + shift[None, :]
    value = tl.where(value < 0.0, 0.0, value)  # a NaN stays one
    if RESIDUAL:
        value += extra.to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), wanted)


@triton.jit
def _grad_sums(
    grad, extra, x, mean, scale, gain, offset, partial, rows, grad_rows, extra_rows, cols,
    EXTRA: tl.constexpr, STEPS: tl.constexpr, CHUNKS: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the sums of g and g xhat over each chunk of rows to partial (M, CHUNKS, 2, C), g behind the ReLU: of grad,
    or with EXTRA of grad + extra."""
    member, part = tl.num_programs(2).to(tl.int64) - 1 - tl.program_id(2), CHUNKS - 1 - tl.program_id(1)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = col < cols
    spot = member * cols + col
    first = part * (STEPS * ROWS)
    x_here, grad_here = x + (member * rows + first) * cols + col, grad + (member * grad_rows + first) * cols + col
    extra_here = extra + (member * extra_rows + first) * cols + col
    mu, s = tl.load(mean + spot, known, 0.0), tl.load(scale + spot, known, 0.0)
    factor, shift = s * tl.load(gain + spot, known, 0.0), tl.load(offset + spot, known, 0.0)
    to_offset = tl.zeros((KEPT, COLS), tl.float32)
    to_gain = tl.zeros((KEPT, COLS), tl.float32)
    for step in tl.range(STEPS, num_stages=STAGES):
        row = step * ROWS + tl.arange(0, ROWS)
        inside = (first + row < grad_rows)[:, None] & known[None, :]
        tile = tl.load(x_here[None, :] + row[:, None] * cols, inside, 0.0)
        g = tl.load(grad_here[None, :] + row[:, None] * cols, inside, 0.0).to(tl.float32)
        if EXTRA:
            more = (first + row < extra_rows)[:, None] & known[None, :]
            g += tl.load(extra_here[None, :] + row[:, None] * cols, more, 0.0).to(tl.float32)
        centred = tile.to(tl.float32) - mu[None, :]
        g *= (centred * factor[None, :] + shift[None, :] > 0.0).to(tl.float32)
        to_offset += _folded(g, KEPT, ROWS, COLS)
        to_gain += _folded(g * centred, KEPT, ROWS, COLS)
    place = partial + ((member * CHUNKS + part) * 2) * cols + col
    tl.store(place, tl.sum(to_offset, 0), known)
    tl.store(place + cols, tl.sum(to_gain, 0) * s, known)


@triton.jit
def _grad(
    grad, extra, x, mean, scale, gain, offset, partial, out, to_gain_out, to_offset_out,
    rows, grad_rows, extra_rows, cols,
    EXTRA: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x, gain and offset, on the chunks' sums, or with CHUNKS 0 on those of the tile.

    EXTRA as in `_grad_sums`. Loads are in the order of `_norm`.
    """
    member = tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = col < cols
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside, given = (row < rows)[:, None] & known[None, :], (row < grad_rows)[:, None] & known[None, :]
    place = (member * rows + row[:, None]) * cols + col[None, :]
    spot = member * cols + col
    if CHUNKS > 0:
        offsets, gains = _parts(partial, member, col, cols, CHUNKS)
    tile = tl.load(x + place, inside, 0.0)
    g = tl.load(grad + (member * grad_rows + row[:, None]) * cols + col[None, :], given, 0.0)
    if EXTRA:
        more = (row < extra_rows)[:, None] & known[None, :]
        past = tl.load(extra + (member * extra_rows + row[:, None]) * cols + col[None, :], more, 0.0)
    mu, s = tl.load(mean + spot, known, 0.0), tl.load(scale + spot, known, 0.0)
    factor, shift = s * tl.load(gain + spot, known, 0.0), tl.load(offset + spot, known, 0.0)
    centred = tile.to(tl.float32) - mu[None, :]
    g = g.to(tl.float32)
    if EXTRA:
        g += past.to(tl.float32)
    g *= (centred * factor[None, :] + shift[None, :] > 0.0).to(tl.float32)
    if CHUNKS > 0:
        to_offset, to_gain = tl.sum(offsets, 0), tl.sum(gains, 0)
    else:
        to_offset, to_gain = tl.sum(g, 0), tl.sum(g * centred, 0) * s
    if tl.program_id(1) == 0:
        tl.store(to_gain_out + spot, to_gain, known)
        tl.store(to_offset_out + spot, to_offset, known)
    common = (to_offset / rows)[None, :] + centred * (s * to_gain / rows)[None, :]
    tl.store(out + place, ((g - common) * factor[None, :]).to(out.dtype.element_ty), inside)


@triton.jit
def _whiten(
    x, partial, out, mean_out, var_out, rows, cols, width, eps, upper, lower, own,
    JOINED: tl.constexpr, CHUNK_ROWS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write x hat (R, width), ones and zeros behind its columns, mean and unbiased variance; CHUNKS as in `_norm`,
    JOINED as in `_moments`."""
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = col < cols
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known[None, :]
    at = row[:, None].to(tl.int64)
    if CHUNKS > 0:
        means, spreads = _parts(partial, 0, col, cols, CHUNKS)
    places = x + at * cols + col[None, :]
    if JOINED:
        over, under, stride = _columns(x, upper, lower, col, rows, cols, own)
        places = _places(over, under, stride, row, rows)
    tile = tl.load(places, inside, 0.0)
    if CHUNKS > 0:
        mean, variance = _combined(means, spreads, rows, CHUNK_ROWS, CHUNKS)
        centred = tile - mean[None, :]
    else:
        mean, centred, variance = _exact(tile, inside, rows)
    if tl.program_id(1) == 0:
        tl.store(mean_out + col, mean, known)
        tl.store(var_out + col, variance * (rows / (rows - 1.0)), known)
    behind = (col == cols).to(tl.float32)
    value = tl.where(known[None, :], centred * (1.0 / tl.sqrt_rn(variance + eps))[None, :], behind[None, :])
    whole = (row < rows)[:, None] & (col < width)[None, :]
    tl.store(out + at * width + col[None, :], value.to(out.dtype.element_ty), whole)


class Plan(NamedTuple):
    """How the rows of (members, rows, cols) are gone through."""

    rows: int
    """Of a tile of the last pass."""
    cols: int
    """Of a tile."""
    chunks: int
    """Of the first pass, a power of two; 0: there is none, as a tile holds all rows."""
    steps: int
    """Tiles of a chunk."""
    warps: int

    def sums(self) -> dict[str, int]:
        """Return the constants of the first pass."""
        # 8 sums a thread are what one load of all threads gives in bfloat16.
        kept = {"KEPT": 256 * self.warps // self.cols, "STAGES": STAGES}
        return {"STEPS": self.steps, "CHUNKS": self.chunks, "ROWS": ROWS, "COLS": self.cols} | kept

    def last(self) -> dict[str, int]:
        """Return the constants of the last pass, less CHUNK_ROWS."""
        return {"CHUNKS": self.chunks, "ROWS": self.rows, "COLS": self.cols}


def plan(members: int, rows: int, cols: int, summed: int) -> Plan:
    """Return how to go through (members, rows, cols), of which the first `summed` rows are summed."""
    if rows <= WHOLE_ROWS:
        return Plan(triton.next_power_of_2(rows), WHOLE_COLS, 0, 0, WHOLE_WARPS)
    wanted = min(max(MIN_CHUNKS, triton.cdiv(PROGRAMS, members * triton.cdiv(cols, COLS))), MAX_CHUNKS)
    chunks = triton.next_power_of_2(min(wanted, triton.cdiv(summed, ROWS)))
    return Plan(ROWS, COLS, chunks, triton.cdiv(summed, chunks * ROWS), WARPS)


def plan_backward(members: int, rows: int, cols: int, grad: Tensor, extra: bool) -> Plan:
    """Return `plan` for a backward pass; of three inputs in float32 a tile of all rows is held by twice the threads."""
    how = plan(members, rows, cols, grad.shape[1])
    wide = extra and not how.chunks and grad.dtype == torch.float32
    return how._replace(warps=2 * how.warps) if wide else how


def _partial(x: Tensor, members: int, cols: int, how: Plan) -> Tensor:
    return x.new_empty((members, how.chunks, 2, cols), dtype=torch.float32)


@torch.library.custom_op("tickgraph::norm_relu", mutates_args=())
def norm_relu(
    x: Tensor, gain: Tensor, offset: Tensor, residual: Tensor | None = None, first: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `batch_norm.norm_relu`."""
    x, gain, offset = x.contiguous(), gain.contiguous(), offset.contiguous()
    residual = None if residual is None else residual.contiguous()
    members, rows, cols = x.shape
    how = plan(members, rows, cols, rows)
    partial, across = _partial(x, members, cols, how), triton.cdiv(cols, how.cols)
    kept = rows if first is None else rows // 2
    y, mean, scale = x.new_empty((members, kept, cols)), torch.empty_like(gain), torch.empty_like(gain)
    if how.chunks:
        inputs = (x, partial, rows, cols, x, x, cols)
        _moments[(across, how.chunks, members)](*inputs, JOINED=False, **how.sums(), num_warps=how.warps)
    _norm[(across, triton.cdiv(kept, how.rows) if how.chunks else 1, members)](
        *(x, x if residual is None else residual, partial, gain, offset, y, mean, scale, rows, cols, EPS),
        RESIDUAL=residual is not None,
        FIRST=first,
        CHUNK_ROWS=how.steps * ROWS,
        **how.last(),
        num_warps=how.warps,
    )
    return y, mean, scale


@norm_relu.register_fake
def _(
    x: Tensor, gain: Tensor, offset: Tensor, residual: Tensor | None = None, first: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    members, rows, cols = x.shape
    y = x.new_empty((members, rows if first is None else rows // 2, cols))
    return y, gain.new_empty(gain.shape), gain.new_empty(gain.shape)


@torch.library.custom_op("tickgraph::norm_relu_backward", mutates_args=())
def norm_relu_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, gain: Tensor, offset: Tensor, extra: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `batch_norm.norm_relu_backward`."""
    grad, x, gain, offset = grad.contiguous(), x.contiguous(), gain.contiguous(), offset.contiguous()
    mean, scale = mean.contiguous(), scale.contiguous()
    past = grad if extra is None else extra.contiguous()
    members, rows, cols = x.shape
    sizes, how = (rows, grad.shape[1], past.shape[1], cols), plan_backward(members, rows, cols, grad, extra is not None)
    partial, across = _partial(x, members, cols, how), triton.cdiv(cols, how.cols)
    out, to_gain, to_offset = torch.empty_like(x), torch.empty_like(gain), torch.empty_like(gain)
    inputs, flags = (grad, past, x, mean, scale, gain, offset, partial), {"EXTRA": extra is not None}
    if how.chunks:
        _grad_sums[(across, how.chunks, members)](*inputs, *sizes, **flags, **how.sums(), num_warps=how.warps)
    _grad[(across, triton.cdiv(rows, how.rows), members)](
        *(*inputs, out, to_gain, to_offset, *sizes), **flags, **how.last(), num_warps=how.warps
    )
    return out, to_gain, to_offset


@norm_relu_backward.register_fake
def _(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, gain: Tensor, offset: Tensor, extra: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), gain.new_empty(gain.shape), gain.new_empty(gain.shape)


def _joined_shape(x: Tensor, upper: Tensor | None, lower: Tensor | None) -> tuple[int, int]:
    """Return rows and columns of what `whiten` joins, or raise where it cannot."""
    rows, cols = x.shape
    ends = [end for end in (upper, lower) if end is not None]
    shapes, kinds = [tuple(end.shape) for end in ends], {each.dtype for each in (x, *ends)}
    if rows < 2 or kinds != {torch.float32}:
        raise ValueError(f"an input {tuple(x.shape)} of {kinds}; two rows at least and float32 are needed")
    if not ends:
        return rows, cols
    behind = ends[0].shape[1]
    if rows % 2 or shapes != [(rows // 2, behind)] * 2:
        raise ValueError(f"columns {shapes} behind {rows} rows; both halves of the rows must have as many")
    return rows, cols + behind


@torch.library.custom_op("tickgraph::whiten", mutates_args=())
def whiten(
    x: Tensor, dtype: torch.dtype, upper: Tensor | None = None, lower: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `trunk.whiten` of an input in float32."""
    rows, cols = _joined_shape(x, upper, lower)
    ends = [x if end is None else end.contiguous() for end in (upper, lower)]
    x = x.contiguous()
    how, width = plan(1, rows, cols, rows), filled(cols + 1)
    partial, out = _partial(x, 1, cols, how), x.new_empty((rows, width), dtype=dtype)
    mean, var = x.new_empty((cols,)), x.new_empty((cols,))
    joined = (*ends, x.shape[1], upper is not None)
    if how.chunks:
        _moments[(triton.cdiv(cols, how.cols), how.chunks, 1)](
            x, partial, rows, cols, *joined, **how.sums(), num_warps=how.warps
        )
    _whiten[(triton.cdiv(width, how.cols), triton.cdiv(rows, how.rows), 1)](
        *(x, partial, out, mean, var, rows, cols, width, EPS, *joined),
        CHUNK_ROWS=how.steps * ROWS,
        **how.last(),
        num_warps=how.warps,
    )
    return out, mean, var


@whiten.register_fake
def _(
    x: Tensor, dtype: torch.dtype, upper: Tensor | None = None, lower: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    rows, cols = _joined_shape(x, upper, lower)
    return x.new_empty((rows, filled(cols + 1)), dtype=dtype), x.new_empty((cols,)), x.new_empty((cols,))
