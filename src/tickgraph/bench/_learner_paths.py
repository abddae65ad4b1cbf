"""The ways in which an update cycle can run, by the names that the learner's benchmark and its verifier know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tickgraph.core.errors import ExecutionError, TickgraphError, nearby
from tickgraph.core.program import Resolution, resolve_execution
from tickgraph.learn.path import BY_HOST, KERNEL_SWITCHES, ON_A_GPU, Switches

PRECISIONS = ("fp32", "tf32", "bf16")
AUTOGRAD = Switches()
WRITTEN = Switches(manual=True)
IN_LINE = replace(ON_A_GPU, beside=False)


@dataclass(frozen=True)
class BenchPath:
    """One way of running a cycle."""

    name: str
    execution: str
    """eager, compile or graph."""
    kernels: str | Switches = AUTOGRAD
    """How the objectives and steps are computed, as `UpdateCycle` takes it."""
    scope: str = "objective"
    """What is compiled: whole objectives, or their tails alone."""
    inner: str | None = None
    """What the programs inside a graph run as, where that is not compiled."""
    default: bool = True
    """Among those that run where none is named; the others take one step of the way apart."""

    def resolution(self, device: torch.device) -> Resolution:
        """Return how its programs run; raises ExecutionError where that cannot be had on the device."""
        found = resolve_execution(self.execution, device)
        return found if self.inner is None else replace(found, inner=self.inner)


EAGER = BenchPath("eager", "eager")
PATHS = {
    path.name: path
    for path in (
        EAGER,
        BenchPath("eager-written", "eager", ON_A_GPU),
        BenchPath("compile-loss", "compile", scope="loss"),
        BenchPath("compile-written", "compile", BY_HOST),
        BenchPath("compile", "compile"),
        BenchPath("captured-eager", "graph", inner="eager"),
        BenchPath("graph-autograd", "graph"),
        BenchPath("graph-written", "graph", WRITTEN, default=False),
        BenchPath("graph-copies", "graph", replace(WRITTEN, copies=True), default=False),
        BenchPath("graph-shared-actions", "graph", replace(IN_LINE, joined=False), default=False),
        BenchPath("graph-joined", "graph", IN_LINE, default=False),
        BenchPath("graph-torch", "graph", ON_A_GPU, default=False),
        *(
            BenchPath(f"graph-{name.replace('_', '-')}", "graph", replace(ON_A_GPU, **{name: "triton"}), default=False)
            for name in KERNEL_SWITCHES
        ),
        BenchPath(
            "graph-in-line", "graph", replace(IN_LINE, **dict.fromkeys(KERNEL_SWITCHES, "triton")), default=False
        ),
        BenchPath("graph", "graph", "auto"),
    )
}


def available(device: torch.device | str, algo: str) -> list[BenchPath]:
    """Return the paths that run where none is named, in the order of the table; the last one is the fastest.

    Args:
        device: where they must be had.
        algo: name of the algorithm; only FlashSAC has gradients written out.
    """
    device = torch.device(device)
    return [path for path in PATHS.values() if path.default and _refusal(path, device, algo) is None]


def chosen(names: str | None, device: torch.device | str, algo: str) -> list[BenchPath]:
    """Return the paths named, separated by commas, or those of `available`, in the order of the table.

    `all` names every one that can be had.

    Raises:
        TickgraphError: a name is unknown, or a path cannot be had.
    """
    if names is None:
        return available(device, algo)
    if names == "all":
        return [path for path in PATHS.values() if _refusal(path, torch.device(device), algo) is None]
    given = [name.strip() for name in names.split(",")]
    for name in given:
        if name not in PATHS:
            hint = nearby(name, PATHS) or f"the paths are {', '.join(PATHS)}"
            raise TickgraphError(f"--paths has {name!r}; {hint}")
        refusal = _refusal(PATHS[name], torch.device(device), algo)
        if refusal is not None:
            raise TickgraphError(f"path {name!r} cannot be had: {refusal}")
    return [path for path in PATHS.values() if path.name in given]


def fastest(paths: Sequence[BenchPath]) -> BenchPath:
    """Return the one among some paths that training would take."""
    return paths[-1]


def check_precision(name: str, device: torch.device) -> str:
    """Return the name of a precision of the matrix products.

    Raises:
        TickgraphError: it is unknown, or the device does not compute in it.
    """
    if name not in PRECISIONS:
        hint = nearby(name, PRECISIONS) or f"give one of {', '.join(PRECISIONS)}"
        raise TickgraphError(f"--precision has {name!r}; {hint}")
    if name == "tf32" and device.type != "cuda":
        raise TickgraphError("--precision has 'tf32', which a CPU does not compute in; choose fp32 or bf16")
    return name


def _refusal(path: BenchPath, device: torch.device, algo: str) -> str | None:
    if isinstance(path.kernels, Switches) and path.kernels.manual and algo != "flashsac":
        return f"{algo} has one form of its objectives, which the other paths run"
    try:
        path.resolution(device)
    except ExecutionError as error:
        return str(error)
    return None
