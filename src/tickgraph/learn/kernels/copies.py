"""`Stacked.refresh` in Triton: copies of the weights in the products' precision, by few programs.

A cycle renews them beside its draw, a chain of small kernels that takes 46 us on an H200. Few programs take as long as
they may and leave that chain room; each weight is read once, where putting all together first reads it twice.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tickgraph.learn.storage import Stacked

PROGRAMS, BLOCK, WARPS = 64, 2048, 8


@triton.jit
def _renew(
    online, target, out, RUNS: tl.constexpr, PARTS: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the copies of weights, given as (start, elements); with PARTS 2 the target's lie behind each."""
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for i in tl.static_range(len(RUNS)):
        for first in range(0, RUNS[i][1], PROGRAMS * BLOCK):
            at = first + own
            known = at < RUNS[i][1]
            place = out + PARTS * RUNS[i][0] + at
            value = tl.load(online + RUNS[i][0] + at, known)
            if PARTS == 2:
                follower = tl.load(target + RUNS[i][0] + at, known)
                tl.store(place + RUNS[i][1], follower.to(out.dtype.element_ty), known)
            tl.store(place, value.to(out.dtype.element_ty), known)


@torch.library.custom_op("tickgraph::copy_weights", mutates_args=("out",))
def copy_weights(online: Tensor, target: Tensor | None, out: Tensor, runs: Sequence[int]) -> None:
    """Write the copies that a `Stacked` keeps in `out`; runs has the start and the elements of each weight."""
    pairs = tuple(zip(runs[::2], runs[1::2], strict=True))
    _renew[(PROGRAMS,)](
        *(online, online if target is None else target, out),
        RUNS=pairs,
        PARTS=1 if target is None else 2,
        PROGRAMS=PROGRAMS,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@copy_weights.register_fake
def _(online: Tensor, target: Tensor | None, out: Tensor, runs: Sequence[int]) -> None:
    return None


def refresh(stacked: Stacked) -> None:
    """Do `Stacked.refresh` in one launch."""
    runs = [number for span in stacked.storage.linear.values() for number in (span.start, span.size)]
    copy_weights(stacked.storage.parameters, stacked.target, stacked.flat, runs)
