"""The ways in which an update cycle can run, by the names that the learner's benchmark and its verifier know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tickgraph.core.errors import ExecutionError, TickgraphError, nearby
from tickgraph.core.program import Resolution, resolve_execution


@dataclass(frozen=True)
class BenchPath:
    """One way of running a cycle."""

    name: str
    execution: str
    """eager, compile or graph."""
    scope: str = "objective"
    """What is compiled: whole objectives, or their tails alone."""
    inner: str | None = None
    """What the programs inside a graph run as, where that is not compiled."""
    says: str = ""

    def resolution(self, device: torch.device) -> Resolution:
        """Return how its programs run; raises ExecutionError where that cannot be had on the device."""
        found = resolve_execution(self.execution, device)
        return found if self.inner is None else replace(found, inner=self.inner)


EAGER = BenchPath("eager", "eager", says="nothing compiled")
PATHS = {
    path.name: path
    for path in (
        EAGER,
        BenchPath("compile-loss", "compile", scope="loss", says="losses compiled, networks eager"),
        BenchPath("compile", "compile", says="whole objectives compiled"),
        BenchPath("captured-eager", "graph", inner="eager", says="a CUDA graph of eager work"),
        BenchPath("graph", "graph", says="a CUDA graph of compiled work"),
    )
}


def available(device: torch.device | str) -> list[BenchPath]:
    """Return the paths that can be had on a device, in the order of the table; the last one is the fastest."""
    return [path for path in PATHS.values() if _refusal(path, torch.device(device)) is None]


def chosen(names: str | None, device: torch.device | str) -> list[BenchPath]:
    """Return the paths named, separated by commas, or all that can be had, in the order of the table.

    Raises:
        TickgraphError: a name is unknown, or a path cannot be had on the device.
    """
    if names is None:
        return available(device)
    given = [name.strip() for name in names.split(",")]
    for name in given:
        if name not in PATHS:
            hint = nearby(name, PATHS) or f"the paths are {', '.join(PATHS)}"
            raise TickgraphError(f"--paths has {name!r}; {hint}")
        refusal = _refusal(PATHS[name], torch.device(device))
        if refusal is not None:
            raise TickgraphError(f"path {name!r} cannot be had: {refusal}")
    return [path for path in PATHS.values() if path.name in given]


def fastest(paths: Sequence[BenchPath]) -> BenchPath:
    """Return the one among some paths that training would take."""
    return paths[-1]


def _refusal(path: BenchPath, device: torch.device) -> str | None:
    try:
        path.resolution(device)
    except ExecutionError as error:
        return str(error)
    return None
