"""What in a tick costs a GPU dear, by kind and place: waits, transfers, allocations, breaks of the captured region."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tickgraph.env.env import Env
from tickgraph.env.tick import Tick

KINDS = ("synchronisation", "transfer", "device allocation", "graph break", "allocation")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = (
    sysconfig.get_paths()["stdlib"],
    sysconfig.get_paths()["purelib"],
    os.path.dirname(os.path.abspath(torch.__file__)),
    os.path.join(_PACKAGE, "core"),
    os.path.join(_PACKAGE, "bench"),
    "<",
)
_WAITS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass
class Site:
    """One place of one kind. ``inside`` says that it lies in what mode graph captures; ``bytes`` are of all counts."""

    kind: str
    place: str
    what: str
    inside: bool
    count: int = 0
    bytes: int = 0


class Watch(TorchDispatchMode):
    """Notes every operation that waits, moves or allocates while it is entered.

    A value that is read on the host is a synchronisation on a GPU, so it is one here whatever the device. An
    allocation is a new tensor: in a captured graph it costs nothing, in an eager tick it is the caching allocator's
    work. A device allocation is one that this allocator could not serve.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = True
        self.sites: dict[tuple[str, str, str, bool], Site] = {}

    def note(self, kind: str, place: str, what: str, size: int = 0) -> None:
        """Count one occurrence."""
        key = (kind, place, what, self.inside)
        site = self.sites.setdefault(key, Site(kind, place, what, self.inside))
        site.count += 1
        site.bytes += size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = _device_allocations()
        out = func(*args, **(kwargs or {}))
        given = [value for value in _flat((args, kwargs)) if isinstance(value, Tensor)]
        made = [value for value in _flat(out) if isinstance(value, Tensor)]
        name = str(func).removeprefix("aten.")
        place = where(sys._getframe(1))
        if any(tag in func.tags for tag in _WAITS) and not _static_index(func, args):
            self.note("synchronisation", place, name)
        if len({value.device.type for value in (*given, *made)}) > 1:
            self.note("transfer", place, name, sum(value.nbytes for value in made))
        old = {value.untyped_storage()._cdata for value in given}
        fresh = [value for value in made if value.untyped_storage()._cdata not in old]
        if fresh:
            self.note("allocation", place, "", sum(value.nbytes for value in fresh))
        if _device_allocations() != before:
            self.note("device allocation", place, name)
        return out

    def table(self, ticks: int) -> list[dict[str, Any]]:
        """Return a row a site, those that hurt most first: kind, place, what, inside, and count and bytes a tick."""
        order = {kind: number for number, kind in enumerate(KINDS)}
        rows = sorted(self.sites.values(), key=lambda site: (order[site.kind], -site.bytes, -site.count))
        return [
            {
                **{"kind": site.kind, "place": site.place, "what": site.what, "inside": site.inside},
                **{"per_tick": site.count / ticks, "bytes_per_tick": site.bytes / ticks},
            }
            for site in rows
        ]


class HostReads(TorchFunctionMode):
    """Notes `tolist`, which reads a CPU's memory without an operation that `Watch` would see."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            self.watch.note("synchronisation", where(sys._getframe(1)), "tolist")
        return func(*args, **(kwargs or {}))


@contextmanager
def waits_reported(watch: Watch) -> Iterator[None]:
    """Note what torch finds to wait for the device, through CUDA's sync debug mode; nothing without CUDA."""
    if not torch.cuda.is_initialized():
        yield
        return

    def note(message: Warning | str, *rest: object, **more: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            watch.note("synchronisation", where(sys._getframe(1)), "found by CUDA's sync debug mode")
        else:
            show(message, *rest, **more)  # type: ignore[arg-type]

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
        show, warnings.showwarning = warnings.showwarning, note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def note_breaks(watch: Watch, env: Env) -> None:
    """Note where the tick leaves torch, unless the backend can be captured with it, and terms that are not static."""
    if "graph" not in env.sim.capabilities:
        lines, first = inspect.getsourcelines(Tick.play)
        file = inspect.getsourcefile(Tick) or "env/tick.py"
        calls: dict[str, int] = {}
        for number, line in enumerate(lines):
            call = line.strip().split("(")[0]
            if call.startswith("sim.") and not (call in calls and env.substep_manager.terms):
                calls[call] = first + number  # of two branches the one that this task takes
        for call, number in calls.items():
            watch.note("graph break", f"{short(file)}:{number}", f"{call} of backend {env.backend_name!r}")
    for blocker in env.blockers(host_state_too=False):
        what = f"{blocker.manager}/{blocker.term}: {blocker.reason}"
        watch.note("graph break", f"{short(blocker.file)}:{blocker.line}", what)


def where(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame that is neither a library's nor of tickgraph's core."""
    outermost = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
        outermost, frame = frame, frame.f_back
    return f"{short(outermost.f_code.co_filename)}:{outermost.f_lineno}" if outermost is not None else "unknown"


def short(file: str) -> str:
    """Return a file's path from the package on, or as it is."""
    return file.removeprefix(os.path.dirname(_PACKAGE) + os.sep)


def _static_index(func: Any, args: Any) -> bool:
    """Return whether this is an index by whole numbers, whose result has a shape known before."""
    if func.overloadpacket not in (torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put):
        return False
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])


def _device_allocations() -> int:
    return torch.cuda.memory_stats()["num_device_alloc"] if torch.cuda.is_initialized() else 0


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value
