"""The layers of `learn/running.py` in Triton: a product and all that is done to it, in one launch.

A program holds a tile of the product in registers, applies what follows to it and writes only the results. Each sum is
one program's, in a fixed order, so that a run repeats bit for bit.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.running import Gate

# Measured on an H200 for a G1's layers, in bfloat16: the largest tile that still gives some 128 programs, nearly one a
# processor, is the fastest or within some percent of it, as it reads its rows and columns over all of K. With what
# follows it a product takes up to a fifth longer than cuBLAS takes without.
TILES = ((128, 128, 8, 3), (64, 128, 4, 4), (64, 64, 4, 4), (64, 32, 4, 4))
"""Rows, columns, warps and stages of loads, the largest first; a matrix unit takes 64 rows. Of the first two 96 KB are
in shared memory, so that a processor holds two programs."""
PROGRAMS = 128
"""That a tile must give, or the last is taken."""
DEPTH = 128
"""Bytes of a row of x that are read at a time, which is the widest that shared memory is laid out for."""
EXACT_DEPTH = 16
"""Columns of x that are read at a time where float32 is multiplied exactly, by code for each of them."""


@triton.jit
def _product(
    a, weight, member, r, n, rows,
    N: tl.constexpr, K: tl.constexpr, ALONG_N: tl.constexpr, ALONG_K: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Return rows r and columns n of a (M, R, K) times a weight, one step in it along N and K being as far as said.

    Rows behind the last read the last: they are not stored.
    """
    k = tl.arange(0, BK)
    a_at = a + (member * rows + tl.minimum(r, rows - 1)[:, None]) * K + k[None, :]
    w_at = weight + member * (N * K) + n[None, :] * ALONG_N + k[:, None] * ALONG_K
    known = (n < N)[None, :]
    made = tl.zeros((r.shape[0], n.shape[0]), tl.float32)
    for start in range(0, K, BK):
        if tl.constexpr(K) % BK == 0:
            x = tl.load(a_at + start)
        else:
            x = tl.load(a_at + start, (start + k < K)[None, :], 0.0)
        if tl.constexpr(K) % BK == 0 and tl.constexpr(N) % n.shape[0] == 0:
            w = tl.load(w_at + start * ALONG_K)
        else:
            w = tl.load(w_at + start * ALONG_K, known & (start + k < K)[:, None], 0.0)
        made = tl.dot(x, w, made, input_precision=DOT)
    return made


@triton.jit
def _forward(
    x, weight, scale, shift, residual, y, total, rows,
    N: tl.constexpr, K: tl.constexpr, RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Write relu(x W^T scale + shift) to y, of weight (M, N, K), and with RESIDUAL its sum to total."""
    member = tl.program_id(2).to(tl.int64)
    r, n = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (r < rows)[:, None] & (n < N)[None, :]
    factor, offset = tl.load(scale + member * N + n, n < N, 0.0), tl.load(shift + member * N + n, n < N, 0.0)
    made = _product(x, weight, member, r, n, rows, N, K, K, 1, BK, DOT).to(y.dtype.element_ty)
    value = made.to(tl.float32) * factor[None, :] + offset[None, :]
    value = tl.where(value < 0.0, 0.0, value).to(y.dtype.element_ty)  # a NaN stays one
    place = (member * rows + r[:, None]) * N + n[None, :]
    tl.store(y + place, value, inside)
    if RESIDUAL:
        both = tl.load(residual + place, inside, 0.0).to(tl.float32) + value.to(tl.float32)
        tl.store(total + place, both.to(y.dtype.element_ty), inside)


@triton.jit
def _backward(
    above, weight, residual, output, scale, total, gated, rows,
    N: tl.constexpr, K: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Write above W, of weight (M, K, N): with RESIDUAL its sum to total, with GATE (that) (output > 0) scale to gated.

    K is what is summed over, here the layer's outputs.
    """
    member = tl.program_id(2).to(tl.int64)
    r, n = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (r < rows)[:, None] & (n < N)[None, :]
    made = _product(above, weight, member, r, n, rows, N, K, 1, N, BK, DOT).to(above.dtype.element_ty)
    place = (member * rows + r[:, None]) * N + n[None, :]
    if RESIDUAL:
        both = tl.load(residual + place, inside, 0.0).to(tl.float32) + made.to(tl.float32)
        made = both.to(above.dtype.element_ty)
        tl.store(total + place, made, inside)
    if GATE:
        # Loaded before the product, the factor costs so many registers that a processor holds one program, not two.
        factor = tl.load(scale + member * N + n, n < N, 0.0)
        on = (tl.load(output + place, inside, 0.0).to(tl.float32) > 0.0).to(tl.float32)
        value = made.to(tl.float32) * on * factor[None, :]  # a product: a NaN stays one
        tl.store(gated + place, value.to(above.dtype.element_ty), inside)


class Plan(NamedTuple):
    """How a product (members, rows, cols) is cut into programs."""

    rows: int
    cols: int
    depth: int
    """Of a tile; depth is what it goes on by along K."""
    warps: int
    stages: int
    dot: str
    """How Triton multiplies float32."""

    def grid(self, members: int, rows: int, cols: int) -> tuple[int, int, int]:
        """Return the programs."""
        return triton.cdiv(cols, self.cols), triton.cdiv(rows, self.rows), members

    def options(self, cols: int, depth: int) -> dict[str, int | str]:
        """Return what both kernels are built with, for a sum over `depth`."""
        tile = {"BM": self.rows, "BN": self.cols, "BK": self.depth}
        return {"N": cols, "K": depth, "DOT": self.dot, "num_warps": self.warps, "num_stages": self.stages} | tile


def plan(members: int, rows: int, cols: int, dtype: torch.dtype) -> Plan:
    """Return how to compute a product (members, rows, cols) of this precision."""
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    depth = EXACT_DEPTH if exact else DEPTH // dtype.itemsize
    for tile_rows, tile_cols, warps, stages in TILES:
        found = Plan(tile_rows, tile_cols, depth, warps, stages, "ieee" if exact else "tf32")
        across, down, deep = found.grid(members, rows, cols)
        if across * down * deep >= PROGRAMS:
            break
    return found


@torch.library.custom_op("tickgraph::affine_relu", mutates_args=())
def forward_parts(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None) -> list[Tensor]:
    """Compute `running.affine_relu`; the second result is there with a residual alone."""
    x, weight, scale, shift = (value.contiguous() for value in (x, weight, scale, shift))
    (members, rows, depth), cols = x.shape, weight.shape[1]
    how = plan(members, rows, cols, x.dtype)
    made = _like(x, cols, residual is not None, True)
    extra = x if residual is None else residual.contiguous()
    _forward[how.grid(members, rows, cols)](
        *(x, weight, scale, shift, extra, made[0], made[-1], rows),
        RESIDUAL=residual is not None,
        **how.options(cols, depth),
    )
    return made


@forward_parts.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None) -> list[Tensor]:
    return _like(x, weight.shape[1], residual is not None, True)


@torch.library.custom_op("tickgraph::affine_backward", mutates_args=())
def backward_parts(
    above: Tensor, weight: Tensor, output: Tensor | None, scale: Tensor | None, residual: Tensor | None
) -> list[Tensor]:
    """Compute `running.affine_backward`; the first result is there with a residual alone, the last with a gate."""
    above, weight = above.contiguous(), weight.contiguous()
    (members, rows, depth), cols = above.shape, weight.shape[2]
    how = plan(members, rows, cols, above.dtype)
    made = _like(above, cols, residual is not None, output is not None)
    given = (above if value is None else value.contiguous() for value in (residual, output, scale))
    _backward[how.grid(members, rows, cols)](
        *(above, weight, *given, made[0], made[-1], rows),
        RESIDUAL=residual is not None,
        GATE=output is not None,
        **how.options(cols, depth),
    )
    return made


@backward_parts.register_fake
def _(
    above: Tensor, weight: Tensor, output: Tensor | None, scale: Tensor | None, residual: Tensor | None
) -> list[Tensor]:
    return _like(above, weight.shape[2], residual is not None, output is not None)


def _like(x: Tensor, cols: int, *wanted: bool) -> list[Tensor]:
    """Return as many results (M, R, cols) to fill as are wanted."""
    return [x.new_empty((*x.shape[:2], cols)) for _ in range(sum(wanted))]


def affine_relu(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `running.affine_relu`."""
    made = forward_parts(x, weight, scale, shift, residual)
    return made[0], made[-1]


def affine_backward(
    above: Tensor, weight: Tensor, gate: Gate | None, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `running.affine_backward`; there must be a gate or a residual."""
    output, scale = (None, None) if gate is None else gate
    if output is None and residual is None:
        raise ValueError("a product without a gate and without a residual; take torch.bmm")
    made = backward_parts(above, weight, output, scale, residual)
    return made[0], made[-1]
