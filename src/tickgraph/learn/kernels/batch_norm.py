"""`learn/batch_norm.py` in Triton: partial statistics of row chunks, then one pass that combines and applies them.

No sum depends on the order in which programs run, so a run repeats bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.batch_norm import EPS

ROWS, COLS = 64, 64
"""A program's tile."""
PROGRAMS = 264
"""Programs of a reduction that keep an H200 busy, two for each of its processors."""
MAX_CHUNKS = 16


@triton.jit
def _moments(x, partial, rows, cols, STEPS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Write mean and summed squared deviation of each chunk of STEPS tiles to partial (M, CHUNKS, 2, C)."""
    member, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    mean = tl.zeros((COLS,), tl.float32)
    spread = tl.zeros((COLS,), tl.float32)
    for step in range(STEPS):
        first = (part * STEPS + step) * ROWS
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (col < cols)[None, :]
        tile = tl.load(x + (member * rows + row[:, None]) * cols + col[None, :], inside, 0.0).to(tl.float32)
        # The rows of this tile, and what they are of all so far; the tiles before it are full.
        new = tl.minimum(tl.maximum(rows - first, 0), ROWS) * 1.0
        share = new / (step * ROWS + tl.maximum(new, 1.0))
        new_mean = tl.sum(tile, 0) / tl.maximum(new, 1.0)
        centred = tl.where(inside, tile - new_mean[None, :], 0.0)
        delta = new_mean - mean
        mean += delta * share
        spread += tl.sum(centred * centred, 0) + delta * delta * (share * (step * ROWS))
    place = partial + ((member * CHUNKS + part) * 2) * cols + col
    tl.store(place, mean, col < cols)
    tl.store(place + cols, spread, col < cols)


@triton.jit
def _apply(
    x, residual, partial, gain, offset, y, mean_out, scale_out, rows, cols, eps,
    RESIDUAL: tl.constexpr, STEPS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Combine the chunks' statistics and write y, mean and scale."""
    member = tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    part = tl.arange(0, CHUNKS)
    known = (col < cols)[None, :]
    place = partial + ((member * CHUNKS + part[:, None]) * 2) * cols + col[None, :]
    means, spreads = tl.load(place, known, 0.0), tl.load(place + cols, known, 0.0)
    counts = tl.minimum(tl.maximum(rows - part * (STEPS * ROWS), 0), STEPS * ROWS).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / rows
    delta = means - mean[None, :]
    variance = tl.sum(spreads + delta * delta * counts, 0) / rows
    scale = 1.0 / tl.sqrt_rn(variance + eps)
    spot = member * cols + col
    if tl.program_id(1) == 0:
        tl.store(mean_out + spot, mean, col < cols)
        tl.store(scale_out + spot, scale, col < cols)
    factor = scale * tl.load(gain + spot, col < cols, 0.0)
    shift = tl.load(offset + spot, col < cols, 0.0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known
    place = (member * rows + row[:, None]) * cols + col[None, :]
    value = (tl.load(x + place, inside, 0.0).to(tl.float32) - mean[None, :]) * factor[None, :] + shift[None, :]
    value = tl.where(value < 0.0, 0.0, value)  # a NaN stays one
    if RESIDUAL:
        value += tl.load(residual + place, inside, 0.0).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), inside)


@triton.jit
def _grad_sums(
    grad, x, mean, scale, gain, offset, partial, rows, grad_rows, cols,
    STEPS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the sums of g and g xhat over each chunk of rows to partial (M, CHUNKS, 2, C), g behind the ReLU."""
    member, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    spot = member * cols + col
    mu, s = tl.load(mean + spot, col < cols, 0.0), tl.load(scale + spot, col < cols, 0.0)
    factor = s * tl.load(gain + spot, col < cols, 0.0)
    shift = tl.load(offset + spot, col < cols, 0.0)
    to_offset = tl.zeros((COLS,), tl.float32)
    to_gain = tl.zeros((COLS,), tl.float32)
    for step in range(STEPS):
        row = (part * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < grad_rows)[:, None] & (col < cols)[None, :]
        centred = tl.load(x + (member * rows + row[:, None]) * cols + col[None, :], inside, 0.0).to(tl.float32)
        centred = centred - mu[None, :]
        g = tl.load(grad + (member * grad_rows + row[:, None]) * cols + col[None, :], inside, 0.0).to(tl.float32)
        g *= (centred * factor[None, :] + shift[None, :] > 0.0).to(tl.float32)
        to_offset += tl.sum(g, 0)
        to_gain += tl.sum(g * (centred * s[None, :]), 0)
    place = partial + ((member * CHUNKS + part) * 2) * cols + col
    tl.store(place, to_offset, col < cols)
    tl.store(place + cols, to_gain, col < cols)


@triton.jit
def _grad_apply(
    grad, x, mean, scale, gain, offset, partial, out, to_gain_out, to_offset_out, rows, grad_rows, cols,
    CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Combine the chunks' sums and write the gradients of x, gain and offset."""
    member = tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = (col < cols)[None, :]
    spot = member * cols + col
    place = partial + ((member * CHUNKS + tl.arange(0, CHUNKS)[:, None]) * 2) * cols + col[None, :]
    to_offset = tl.sum(tl.load(place, known, 0.0), 0)
    to_gain = tl.sum(tl.load(place + cols, known, 0.0), 0)
    if tl.program_id(1) == 0:
        tl.store(to_gain_out + spot, to_gain, col < cols)
        tl.store(to_offset_out + spot, to_offset, col < cols)
    mu, s = tl.load(mean + spot, col < cols, 0.0), tl.load(scale + spot, col < cols, 0.0)
    factor = s * tl.load(gain + spot, col < cols, 0.0)
    shift = tl.load(offset + spot, col < cols, 0.0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known
    place = (member * rows + row[:, None]) * cols + col[None, :]
    centred = tl.load(x + place, inside, 0.0).to(tl.float32) - mu[None, :]
    given = (row < grad_rows)[:, None] & known
    g = tl.load(grad + (member * grad_rows + row[:, None]) * cols + col[None, :], given, 0.0).to(tl.float32)
    g *= (centred * factor[None, :] + shift[None, :] > 0.0).to(tl.float32)
    common = (to_offset[None, :] + centred * s[None, :] * to_gain[None, :]) / rows
    tl.store(out + place, ((g - common) * factor[None, :]).to(out.dtype.element_ty), inside)


def _chunks(members: int, rows: int, cols: int) -> tuple[int, int]:
    """Return how many chunks a reduction over rows takes, a power of two, and the tiles of one."""
    columns = members * triton.cdiv(cols, COLS)
    wanted = min(MAX_CHUNKS, triton.cdiv(PROGRAMS, columns), triton.cdiv(rows, ROWS))
    chunks = triton.next_power_of_2(wanted)
    return chunks, triton.cdiv(rows, chunks * ROWS)


@torch.library.custom_op("tickgraph::norm_relu", mutates_args=())
def norm_relu(x: Tensor, gain: Tensor, offset: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `batch_norm.norm_relu`."""
    x, gain, offset = x.contiguous(), gain.contiguous(), offset.contiguous()
    residual = None if residual is None else residual.contiguous()
    members, rows, cols = x.shape
    chunks, steps = _chunks(members, rows, cols)
    partial = x.new_empty((members, chunks, 2, cols), dtype=torch.float32)
    y, mean, scale = torch.empty_like(x), torch.empty_like(gain), torch.empty_like(gain)
    sizes = {"STEPS": steps, "CHUNKS": chunks, "ROWS": ROWS, "COLS": COLS}
    across = triton.cdiv(cols, COLS)
    _moments[(across, chunks, members)](x, partial, rows, cols, **sizes)
    _apply[(across, triton.cdiv(rows, ROWS), members)](
        *(x, x if residual is None else residual, partial, gain, offset, y, mean, scale, rows, cols, EPS),
        RESIDUAL=residual is not None,
        **sizes,
    )
    return y, mean, scale


@norm_relu.register_fake
def _(x: Tensor, gain: Tensor, offset: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), gain.new_empty(gain.shape), gain.new_empty(gain.shape)


@torch.library.custom_op("tickgraph::norm_relu_backward", mutates_args=())
def norm_relu_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `batch_norm.norm_relu_backward`."""
    grad, x, gain, offset = grad.contiguous(), x.contiguous(), gain.contiguous(), offset.contiguous()
    mean, scale = mean.contiguous(), scale.contiguous()
    members, rows, cols = x.shape
    grad_rows = grad.shape[1]
    chunks, steps = _chunks(members, grad_rows, cols)
    partial = x.new_empty((members, chunks, 2, cols), dtype=torch.float32)
    out, to_gain, to_offset = torch.empty_like(x), torch.empty_like(gain), torch.empty_like(gain)
    sizes = {"CHUNKS": chunks, "ROWS": ROWS, "COLS": COLS}
    across = triton.cdiv(cols, COLS)
    inputs = (grad, x, mean, scale, gain, offset, partial)
    _grad_sums[(across, chunks, members)](*inputs, rows, grad_rows, cols, STEPS=steps, **sizes)
    _grad_apply[(across, triton.cdiv(rows, ROWS), members)](
        *inputs, out, to_gain, to_offset, rows, grad_rows, cols, **sizes
    )
    return out, to_gain, to_offset


@norm_relu_backward.register_fake
def _(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), gain.new_empty(gain.shape), gain.new_empty(gain.shape)
