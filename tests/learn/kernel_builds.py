"""Compile every kernel of the learner for a GPU, which takes Triton but no GPU; prints their sizes as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import torch
import triton
from torch.nn import Linear, Module
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tickgraph.core.arena import Arena
from tickgraph.learn.gradients import Gradients
from tickgraph.learn.kernel_check import fill_in
from tickgraph.learn.kernels import (
    affine_product,
    batch_norm,
    finish,
    loss_head,
    policy,
    products,
    row_step,
    stack_weights,
)
from tickgraph.learn.networks import Actor, Critic
from tickgraph.learn.policy_form import COLUMNS, EMBED, HEAD, WIDEST, Layout
from tickgraph.learn.put_off import SMALL as SMALL_SIZE
from tickgraph.learn.put_off import Rest
from tickgraph.learn.row_step import row_table
from tickgraph.learn.storage import Stacked, declare
from tickgraph.learn.trunk import filled

TAKEN = {"params", "specialization", "options"}
HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024
"""Bytes of shared memory that a program has there."""
LAYERS = ((4, 4096, 1024), (1, 4096, 128), (4, 512, 1024))
"""(members, rows, columns): the widest and the narrowest layer at a usual batch size, and one at a small batch size."""
UP, DOWN, SMALL = (256, (2, 2048, 1024)), (1024, (2, 2048, 256)), (20, (2, 70, 80))
AFFINE = (
    (affine_product._forward, {"RESIDUAL": False}, *UP),
    (affine_product._forward, {"RESIDUAL": True}, *DOWN),
    (affine_product._forward, {"RESIDUAL": False}, 128, (1, 4096, 512)),
    (affine_product._forward, {"RESIDUAL": True}, 512, (1, 4096, 128)),
    (affine_product._forward, {"RESIDUAL": True}, *SMALL),
    (affine_product._backward, {"RESIDUAL": False, "GATE": True}, *UP),
    (affine_product._backward, {"RESIDUAL": True, "GATE": True}, *DOWN),
    (affine_product._backward, {"RESIDUAL": True, "GATE": False}, *DOWN),
    (affine_product._backward, {"RESIDUAL": True, "GATE": True}, *SMALL),
)
"""Layers on running statistics, of a G1's critics and actor and of a network that fills no tile: kernel, flags, what is
summed over, and (members, rows, columns) of the product. The critics' alone go back."""
POINTERS = {"table": "*i32", "halves": "*fp16", "steps": "*i64", "taken": "*i8"}
NUMBERS = dict.fromkeys(("eps", "momentum", "tau", "max_norm"), "fp32") | dict.fromkeys(
    (
        "rows",
        "cols",
        "grad_rows",
        "extra_rows",
        "width",
        "own",
        "size",
        "stats_size",
        "parts",
        *"inputs width actions in_gain in_offset last_gain".split(),
    ),
    "i32",
)
STEP = {"BETA1": 0.9, "BETA2": 0.999, "EPS": 1e-8, "PARTS": 512}
SUMS = {"PROGRAMS": 272, "STEPS": 1, "STATS_STEPS": 2, "BLOCK": row_step.MAX_BLOCK}


def machine_code(
    kernel,
    constants: dict,
    warps: int,
    even: Sequence[str] | None,
    maxnreg: int | None = None,
    stages: int = 3,
    **pointers: str | tuple[str, ...],
) -> bytes:
    """Return a kernel as machine code, pointers being to float32 unless said otherwise; a tuple of them is an argument.

    Given `even`, all addresses and these numbers are multiples of 16, so that several values are loaded at a time.
    """
    assert not TAKEN & set(kernel.arg_names), f"{kernel.__name__} cannot be launched: Triton's launcher has these names"
    kinds = POINTERS | NUMBERS | pointers
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    known: list[tuple[int, ...]] = []
    for i, (name, kind) in enumerate(signature.items() if even is not None else ()):
        if isinstance(kind, tuple):
            known += [(i, k) for k in range(len(kind))]
        elif name in even or kind[0] == "*":
            known.append((i,))
    source = ASTSource(kernel, signature, values, {place: [["tt.divisibility", 16]] for place in known})
    options = {"num_warps": warps, "maxnreg": maxnreg, "num_stages": stages}
    made = triton.compile(source, target=HOPPER, options=options)
    assert made.metadata.shared <= SHARED, f"{kernel.__name__} takes {made.metadata.shared} bytes of shared memory"
    return made.asm["cubin"]


def build(kernel, constants: dict, warps: int = 4, **pointers: str) -> int:
    """Return the bytes of machine code of a kernel."""
    return len(machine_code(kernel, constants, warps, None, **pointers))


def stack_bytes(code: bytes) -> int:
    """Return the bytes of memory that a thread of a kernel keeps registers in."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        call = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def build_rows(network: Module, kind: str, copies: bool, target: bool, decay: bool, clip: bool) -> int:
    """Build the optimiser's step for the tiles of a network."""
    arena = Arena("cpu")
    storage = declare(network, arena, "net", "a build")
    stacked = Stacked(storage, storage.parameters if target else None, torch.float32, arena, "copies")
    classes = [figure for each in row_table(storage, stacked)[1] for figure in each]
    options = row_step.tile_options(classes, decay, clip)
    warps, maxnreg = options.pop("num_warps"), options.pop("maxnreg")
    flags = STEP | {"STACKED": copies, "TARGET": target} | options
    code = machine_code(row_step._rows, flags, warps, (), maxnreg, stacked=kind)
    assert not stack_bytes(code), "registers that do not fit are kept in memory"
    return len(code)


def build_aligned(
    kernel, constants: dict, numbers: Sequence[str], warps: int = batch_norm.WARPS, **pointers: str
) -> int:
    """Build for addresses and `numbers` that are multiples of 16, where several values are loaded at a time."""
    code = machine_code(kernel, constants, warps, numbers, **pointers)
    assert not stack_bytes(code), "registers that do not fit are kept in memory"
    return len(code)


def norm_builds(kind: str) -> dict[str, int]:
    """Build batch norm for `LAYERS`, and the whitening of an input of 130 columns, of one and of joined tensors."""
    found, even = {}, ("rows", "cols", "grad_rows", "extra_rows")
    for members, rows, cols in LAYERS:
        how, name = batch_norm.plan(members, rows, cols, rows), f"{kind} {rows} {cols}"
        last = how.last() | {"CHUNK_ROWS": how.steps * batch_norm.ROWS}
        if how.chunks:
            sums = how.sums() | {"JOINED": False}
            found[f"moments {name}"] = build_aligned(batch_norm._moments, sums, even, x=kind)
        for residual, first in ((False, None), (True, None), (True, 2), (True, 1)):
            flags, given = last | {"RESIDUAL": residual, "FIRST": first}, {"x": kind, "residual": kind, "y": kind}
            found[f"norm {name} {residual} {first}"] = build_aligned(batch_norm._norm, flags, even, **given)
        for extra in (False, True):
            flags, given = {"EXTRA": extra}, {"x": kind, "grad": kind, "extra": kind}
            if how.chunks:
                sums = how.sums() | flags
                found[f"grad sums {name} {extra}"] = build_aligned(batch_norm._grad_sums, sums, even, **given)
            grad = torch.empty((0, rows, 0), dtype=torch.bfloat16 if kind == "*bf16" else torch.float32)
            warps = batch_norm.plan_backward(members, rows, cols, grad, extra).warps
            last = how.last() | flags
            found[f"grad {name} {extra}"] = build_aligned(batch_norm._grad, last, even, warps, out=kind, **given)
    for rows in (4096, 512):
        how = batch_norm.plan(1, rows, 130, rows)
        last = how.last() | {"CHUNK_ROWS": how.steps * batch_norm.ROWS}
        for joined in (False, True):
            flags = {"JOINED": joined}
            if how.chunks:
                found[f"moments of {rows} {joined}"] = build_aligned(batch_norm._moments, how.sums() | flags, ("rows",))
            found[f"whiten {kind} {rows} {joined}"] = build_aligned(
                batch_norm._whiten, last | flags, ("rows",), out=kind
            )
    return found


def head_builds(kind: str) -> dict[str, int]:
    """Build the critics' loss head for a G1 and for a small network."""
    found = {}
    for atoms in (101, 51):
        flags = loss_head.head_options(atoms, filled(atoms))
        code = machine_code(loss_head._head, flags, flags.pop("num_warps"), ("rows",), to_logits=kind)
        assert stack_bytes(code) <= 32, "registers that do not fit are kept in memory"
        found[f"head {kind} {atoms}"] = len(code)
    return found


def affine_builds(kind: str) -> dict[str, int]:
    """Build `AFFINE`, in float32 with its products rounded and exact."""
    found, dtype = {}, torch.bfloat16 if kind == "*bf16" else torch.float32
    pointers = dict.fromkeys(("x", "weight", "residual", "y", "total", "above", "output", "gated"), kind)
    usual = torch.get_float32_matmul_precision()
    for precision in ("high",) if kind == "*bf16" else ("high", "highest"):
        for kernel, flags, depth, shape in AFFINE:
            torch.set_float32_matmul_precision(precision)
            options = flags | affine_product.plan(*shape, dtype).options(shape[-1], depth)
            torch.set_float32_matmul_precision(usual)
            warps, stages = options.pop("num_warps"), options.pop("num_stages")
            code = machine_code(kernel, options, warps, ("rows",), stages=stages, **pointers)
            assert not stack_bytes(code), "registers that do not fit are kept in memory"
            found[f"{kernel.__name__} {kind} {precision} {shape} {flags}"] = len(code)
    return found


def small_builds(kind: str, network: Module) -> dict[str, int]:
    """Build what makes the small weights of one network and, of an ensemble, of it and its target."""
    found, form = {}, stack_weights.StackWeights(declare(network, Arena("cpu"), "net", "a build"))
    for parts in range(1, form.layout.members + 1):
        flags = form.layout.options(parts, form.runs if parts == 2 else [])[1]
        code = machine_code(stack_weights._stack, flags, stack_weights.WARPS, (), folded=kind, head=kind)
        assert not stack_bytes(code), "registers that do not fit are kept in memory"
        found[f"small weights {kind} {form.layout} {parts}"] = len(code)
    return found


def finish_builds(network: Module, name: str) -> dict[str, int]:
    """Build what finishes the gradients of a network at a usual batch size."""
    grads, found = Gradients(declare(network, Arena("cpu"), "net", "a build"), None), {}
    figures, moments = fill_in(grads, 2048, torch.float32)
    spans = {span.name: span for span in grads.storage.spans}
    totals = [(spans[name].start, spans[name].shape[-1], values) for name, values in grads.totals.items()]
    parts = [(spans[name].start, part.reshape(-1)) for name, part in grads.named.items()]
    _, lines, flags = finish.rest_options(Rest(totals, parts, figures, moments))
    tuples = {"totals": ("*fp32",) * len(totals), "copies": ("*fp32",) * len(lines)}
    ((_, given),) = grads.embeddings.items()
    folded = given.weight.new_empty((*given.weight.shape[:2], given.x.shape[-1]))
    collected = products.collect_options([(999, 4096, 64, 128)], 4096, folded, (0, 0, 0), given)[1] | {"PARTS": 4}
    for kernel, constants, each in ((finish._rest, flags, tuples), (products._collect, collected, {})):
        code = machine_code(kernel, constants, finish.WARPS, (), **each)
        assert not stack_bytes(code), "registers that do not fit are kept in memory"
        found[f"{kernel.__name__} {name}"] = len(code)
    return found


def product_builds(network: Module, name: str) -> dict[str, int]:
    """Build the products of a network's gradients at a usual batch size, and at one that fills no tile."""
    found = {}
    for rows in (2048, 100):
        grads = Gradients(declare(network, Arena("cpu"), "net", "a build"), None)
        fill_in(grads, rows, torch.bfloat16)
        pairs = [*((given.above, given.x) for given in grads.embeddings.values()), *grads.products.values()]
        factors = [products.Factors.of(*pair) for pair in pairs]
        for tile, parts, chosen in (
            (products.LARGE, 1, [each for each in factors if each.size > SMALL_SIZE]),
            (products.SMALL, 4, [each for each in factors if each.size <= SMALL_SIZE]),
        ):
            if not chosen:
                continue
            _, flags = products.options(chosen, [8] * len(chosen), tile, parts)
            assert flags["EVEN"] == (tile == products.LARGE and rows == 2048)
            kinds = {side: ("*bf16",) * len(chosen) for side in ("lefts", "rights")}
            code = machine_code(products._products, flags, tile.warps, (), stages=tile.stages, **kinds)
            assert not stack_bytes(code), "registers that do not fit are kept in memory"
            found[f"products {name} {rows} {tile.rows}"] = len(code)
    return found


def builds() -> dict[str, int]:
    """Build each kernel in the forms that a run launches, in float32 and bfloat16."""
    found, seed = {}, torch.Generator().manual_seed(0)
    # A G1's, and rows of SAC, which nothing ties together.
    critic, actor, plain = Critic(101, 29, 256, 2, 101, seed), Actor(98, 29, 128, 2, seed), Linear(98, 515)
    found |= finish_builds(critic, "critic") | finish_builds(actor, "actor")
    found |= product_builds(critic, "critic") | product_builds(actor, "actor")
    for kind in ("*fp32", "*bf16"):
        found |= norm_builds(kind)
        found |= affine_builds(kind)
        found |= head_builds(kind)
        for network in (critic, actor):
            found |= small_builds(kind, network)
        for extras in (False, True):
            found[f"rows {kind} {extras}"] = build_rows(critic, kind, True, True, extras, extras)
        found[f"rows {kind}, actor"] = build_rows(actor, kind, True, False, False, False)
    found["square sums"] = build(row_step._square_sums, SUMS, row_step.WARPS)
    found["square sums, no statistics"] = build(row_step._square_sums, SUMS | {"STATS_STEPS": 0}, row_step.WARPS)
    layout = Layout(98, 128, 2, 29)
    pack = {"EPS": 1e-5, "LONGEST": 512, "COLUMNS": COLUMNS, "EMBED": EMBED, "HEAD": HEAD}
    found["policy, weights"] = build(policy._pack, pack, 1)
    for sizes in (layout, Layout(300, 24, 1, 3), Layout(500, WIDEST, 3, 60)):
        for rows in (70, 4096, 16384):
            flags = policy.layers_options(sizes, rows)
            warps, stages = flags.pop("num_warps"), flags.pop("num_stages")
            code = machine_code(policy._layers, flags, warps, (), stages=stages)
            assert not stack_bytes(code), "registers that do not fit are kept in memory"
            found[f"policy {sizes.width} {sizes.inputs} {rows}"] = len(code)
    for target in (False, True):  # SAC's actor and critics
        found[f"rows, no copies {target}"] = build_rows(plain, "*fp32", False, target, True, False)
    return found


if __name__ == "__main__":
    json.dump(builds(), sys.stdout)
