"""Compile every kernel of the learner for a GPU, which takes Triton but no GPU; prints their sizes as JSON."""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tickgraph.learn.kernels import batch_norm, loss_head, row_step
from tickgraph.learn.row_step import FREE, ROW, STATISTICS

HOPPER = GPUTarget("cuda", 90, 32)
TILE = {"ROWS": batch_norm.ROWS, "COLS": batch_norm.COLS}
POINTERS = {"table": "*i32", "steps": "*i64", "taken": "*i8"}
NUMBERS = dict.fromkeys(("eps", "momentum", "tau", "max_norm"), "fp32") | dict.fromkeys(
    ("rows", "cols", "grad_rows", "size", "stats_size", "parts", "online_stride", "target_stride", "grad_stride"), "i32"
)
STEP = {"BETA1": 0.9, "BETA2": 0.999, "EPS": 1e-8, "ROW": ROW, "FREE": FREE, "STATISTICS": STATISTICS}
SUMS = {"PROGRAMS": 255, "STEPS": 9, "STATS_STEPS": 11, "BLOCK": row_step.BLOCK}


def build(kernel, constants: dict, warps: int = 4, **pointers: str) -> int:
    """Return the bytes of machine code of a kernel; pointers are to float32 unless said otherwise."""
    kinds = POINTERS | NUMBERS | pointers
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    return len(triton.compile(source, target=HOPPER, options={"num_warps": warps}).asm["cubin"])


def builds() -> dict[str, int]:
    """Build each kernel in the forms that a run launches, in float32 and bfloat16."""
    found = {}
    for kind in ("*fp32", "*bf16"):
        for chunks, steps in ((1, 8), (16, 4)):
            sums = TILE | {"CHUNKS": chunks, "STEPS": steps}
            found[f"moments {kind} {chunks}"] = build(batch_norm._moments, sums, x=kind)
            for residual in (False, True):
                given = {"x": kind, "residual": kind, "y": kind}
                name = f"apply {kind} {chunks} {residual}"
                found[name] = build(batch_norm._apply, sums | {"RESIDUAL": residual}, **given)
            found[f"grad sums {kind} {chunks}"] = build(batch_norm._grad_sums, sums, x=kind, grad=kind)
            found[f"grad apply {kind} {chunks}"] = build(
                batch_norm._grad_apply, TILE | {"CHUNKS": chunks}, x=kind, grad=kind, out=kind
            )
        for warps in (1, 4):
            sizes = {"K": 101, "WIDTH": 128, "PIECE": 8 * warps}
            found[f"head {kind} {warps}"] = build(loss_head._head, sizes, warps, grad=kind)
        for extras in (False, True):
            flags = {"TARGET": True, "STACKED": True, "DECAY": extras, "CLIP": extras, "PARTS": 256, "WIDTH": 1024}
            found[f"rows {kind} {extras}"] = build(row_step._rows, STEP | flags, stacked=kind)
    found["square sums"] = build(row_step._square_sums, SUMS)
    found["square sums, no statistics"] = build(row_step._square_sums, SUMS | {"STATS_STEPS": 0})
    flags = {"STACKED": False, "DECAY": True, "CLIP": False, "PARTS": 256, "WIDTH": 1024}
    for target in (False, True):  # SAC's actor and critics
        found[f"rows, no copies {target}"] = build(row_step._rows, STEP | flags | {"TARGET": target})
    return found


if __name__ == "__main__":
    json.dump(builds(), sys.stdout)
