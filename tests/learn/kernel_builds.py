"""Compile every kernel of the learner for a GPU, which takes Triton but no GPU; prints their sizes as JSON."""

import json
import sys
from collections.abc import Sequence

import torch
import triton
from torch.nn import Linear, Module
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tickgraph.core.arena import Arena
from tickgraph.learn.kernels import batch_norm, loss_head, row_step
from tickgraph.learn.networks import Actor, Critic
from tickgraph.learn.row_step import row_table
from tickgraph.learn.storage import Stacked, declare

HOPPER = GPUTarget("cuda", 90, 32)
LAYERS = ((4, 4096, 1024), (1, 4096, 128), (4, 512, 1024))
"""(members, rows, columns): the widest and the narrowest layer at a usual batch size, and one at a small batch size."""
POINTERS = {"table": "*i32", "steps": "*i64", "taken": "*i8"}
NUMBERS = dict.fromkeys(("eps", "momentum", "tau", "max_norm"), "fp32") | dict.fromkeys(
    (
        "rows",
        "cols",
        "grad_rows",
        "width",
        "size",
        "stats_size",
        "parts",
        "online_stride",
        "target_stride",
        "grad_stride",
    ),
    "i32",
)
STEP = {"BETA1": 0.9, "BETA2": 0.999, "EPS": 1e-8, "PARTS": 512}
SUMS = {"PROGRAMS": 272, "STEPS": 1, "STATS_STEPS": 2, "BLOCK": row_step.MAX_BLOCK}


def build(kernel, constants: dict, warps: int = 4, maxnreg: int | None = None, **pointers: str) -> int:
    """Return the bytes of machine code of a kernel; pointers are to float32 unless said otherwise."""
    kinds = POINTERS | NUMBERS | pointers
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    options = {"num_warps": warps, "maxnreg": maxnreg}
    return len(triton.compile(source, target=HOPPER, options=options).asm["cubin"])


def build_rows(network: Module, kind: str, copies: bool, target: bool, decay: bool, clip: bool) -> int:
    """Build the optimiser's step for the tiles of a network."""
    arena = Arena("cpu")
    storage = declare(network, arena, "net", "a build")
    stacked = Stacked(storage, storage.parameters if target else None, torch.float32, arena, "copies")
    options = row_step.tile_options([figure for each in row_table(storage, stacked)[1] for figure in each])
    warps, maxnreg = options.pop("num_warps"), options.pop("maxnreg")
    flags = {"STACKED": copies, "TARGET": target, "DECAY": decay, "CLIP": clip}
    return build(row_step._rows, STEP | flags | options, warps, maxnreg, stacked=kind)


def build_aligned(kernel, constants: dict, numbers: Sequence[str], **pointers: str) -> int:
    """Build for addresses and `numbers` that are multiples of 16, where several values are loaded at a time."""
    kinds = NUMBERS | pointers
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    even = [i for i, (name, kind) in enumerate(signature.items()) if name in numbers or kind.startswith("*")]
    source = ASTSource(kernel, signature, places, {(i,): [["tt.divisibility", 16]] for i in even})
    return len(triton.compile(source, target=HOPPER, options={"num_warps": batch_norm.WARPS}).asm["cubin"])


def norm_builds(kind: str) -> dict[str, int]:
    """Build batch norm for `LAYERS`, and the whitening of an input of 130 columns."""
    found, even = {}, ("rows", "cols", "grad_rows")
    for members, rows, cols in LAYERS:
        how, name = batch_norm.plan(members, rows, cols, rows), f"{kind} {rows} {cols}"
        last = how.last() | {"CHUNK_ROWS": how.steps * batch_norm.ROWS}
        if how.chunks:
            found[f"moments {name}"] = build_aligned(batch_norm._moments, how.sums(), even, x=kind)
            found[f"grad sums {name}"] = build_aligned(batch_norm._grad_sums, how.sums(), even, x=kind, grad=kind)
        for residual in (False, True):
            flags, given = last | {"RESIDUAL": residual}, {"x": kind, "residual": kind, "y": kind}
            found[f"norm {name} {residual}"] = build_aligned(batch_norm._norm, flags, even, **given)
        found[f"grad {name}"] = build_aligned(batch_norm._grad, how.last(), even, x=kind, grad=kind, out=kind)
    for rows in (4096, 512):
        how = batch_norm.plan(1, rows, 130, rows)
        last = how.last() | {"CHUNK_ROWS": how.steps * batch_norm.ROWS}
        if how.chunks:
            found[f"moments of {rows}"] = build_aligned(batch_norm._moments, how.sums(), ("rows",))
        found[f"whiten {kind} {rows}"] = build_aligned(batch_norm._whiten, last, ("rows",), out=kind)
    return found


def builds() -> dict[str, int]:
    """Build each kernel in the forms that a run launches, in float32 and bfloat16."""
    found, seed = {}, torch.Generator().manual_seed(0)
    # A G1's, and rows of SAC, which nothing ties together.
    critic, actor, plain = Critic(101, 29, 256, 2, 101, seed), Actor(98, 29, 128, 2, seed), Linear(98, 515)
    for kind in ("*fp32", "*bf16"):
        found |= norm_builds(kind)
        for warps in (1, 4):
            sizes = {"K": 101, "WIDTH": 128, "PIECE": 8 * warps}
            found[f"head {kind} {warps}"] = build(loss_head._head, sizes, warps, grad=kind)
        for extras in (False, True):
            found[f"rows {kind} {extras}"] = build_rows(critic, kind, True, True, extras, extras)
        found[f"rows {kind}, actor"] = build_rows(actor, kind, True, False, False, False)
    found["square sums"] = build(row_step._square_sums, SUMS, row_step.WARPS)
    found["square sums, no statistics"] = build(row_step._square_sums, SUMS | {"STATS_STEPS": 0}, row_step.WARPS)
    for target in (False, True):  # SAC's actor and critics
        found[f"rows, no copies {target}"] = build_rows(plain, "*fp32", False, target, True, False)
    return found


if __name__ == "__main__":
    json.dump(builds(), sys.stdout)
