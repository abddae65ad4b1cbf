"""What the host asked of the driver and what the device ran, read from a trace of torch's profiler (CUPTI)."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import NO_ROOM, TEMPORARY, write_error

WINDOW = "bench/window"
_HOST = ("cuda_runtime", "cuda_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
KINDS = (
    "graph launch",
    "kernel launch",
    "synchronisation",
    "event synchronisation",
    "event",
    "blocking copy",
    "copy",
    "allocation",
    "capture",
    "other",
)


@dataclass(frozen=True)
class Event:
    """One event of a trace; times in microseconds on the trace's clock."""

    name: str
    category: str
    start: float
    duration: float
    correlation: int = -1

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass
class Trace:
    """The host's calls of the CUDA API, the device's work, and the ranges that were marked, each in order of time."""

    calls: list[Event] = field(default_factory=list)
    work: list[Event] = field(default_factory=list)
    ranges: list[Event] = field(default_factory=list)

    def during(self, span: Event) -> Trace:
        """Return the calls that began in a range, and the device's work that they launched."""
        calls = [call for call in self.calls if span.start <= call.start < span.end]
        launched = {call.correlation for call in calls}
        ranges = [r for r in self.ranges if span.start <= r.start < span.end and r is not span]
        return Trace(calls, [work for work in self.work if work.correlation in launched], ranges)

    def range(self, name: str) -> Event:
        """Return the first range of a name; raises KeyError without one."""
        for span in self.ranges:
            if span.name == name:
                return span
        raise KeyError(name)

    def names(self) -> dict[str, int]:
        """Return {API call: how often}, the most frequent first."""
        return dict(Counter(call.name for call in self.calls).most_common())

    def kinds(self) -> dict[str, int]:
        """Return {kind of `KINDS`: number of calls}, kinds that do not occur left out."""
        counts = Counter(kind(call.name) for call in self.calls)
        return {name: counts[name] for name in KINDS if counts[name]}


def kind(name: str) -> str:
    """Return what an API call does to the host, one of `KINDS`: "cudaMemcpyAsync" is a "copy"."""
    low = name.lower()
    low = low.removeprefix("cuda") if low.startswith("cuda") else low.removeprefix("cu")
    if low.startswith("graphlaunch"):
        return "graph launch"
    if low.startswith(("launch", "kernellaunch")):
        return "kernel launch"
    if low.startswith("eventsynchronize"):
        return "event synchronisation"
    if "synchronize" in low:
        return "synchronisation"
    if low.startswith(("eventrecord", "streamwaitevent", "eventquery")):
        return "event"
    if low.startswith(("memcpy", "memset")):
        return "copy" if "async" in low or low.startswith("memset") else "blocking copy"
    if low.startswith(("malloc", "free", "hostalloc", "hostregister", "mem")) and not low.startswith("memgetinfo"):
        return "allocation"
    if "capture" in low or low.startswith("graph"):
        return "capture"
    return "other"


def host_syncs(kinds: dict[str, int]) -> int:
    """Return how many calls made the host wait for the device."""
    return sum(kinds.get(name, 0) for name in ("synchronisation", "event synchronisation", "blocking copy"))


def record(work: Callable[[], object], keep: Path | None = None, cuda: bool = True, stacks: bool = False) -> Trace:
    """Run a function under torch's profiler and return what was recorded while it ran.

    What the profiler itself does, and the waiting for the device at the end, are left out.

    Args:
        work: enqueues what is looked at.
        keep: where to leave the trace (json), which opens in Perfetto; by default nowhere.
        cuda: record the CUDA API and the device.
        stacks: record Python's frames too.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it prints its own comings and goings
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    wait()
    gc.collect()
    gc.disable()  # a collection in the window would free device memory there
    try:
        with profile(activities=activities, with_stack=stacks) as profiler:
            with record_function(WINDOW):
                work()
            wait()
    finally:
        gc.enable()
    with tempfile.TemporaryDirectory() as folder:
        trace = _exported(profiler, keep if keep is not None else Path(folder) / "trace.json")
    return trace.during(trace.range(WINDOW))


def _exported(profiler: Any, path: Path) -> Trace:
    """Write a profiler's trace and return it; torch does not say where it could not write, or not all of it."""
    made = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        profiler.export_chrome_trace(str(made))
        try:
            trace = read(made)
        except (OSError, ValueError) as error:
            raise TickgraphError(f"could not write {path}: the profiler's trace is not whole; {NO_ROOM}") from error
        try:
            made.replace(path)
        except OSError as error:
            raise write_error(path, error) from error
    finally:
        for left in (made, made.with_name(f"{made.name}.tmp")):  # the second is torch's own way to write the first
            left.unlink(missing_ok=True)
    return trace


def read(path: Path) -> Trace:
    """Read a trace in Chrome's format, as torch's profiler writes it."""
    return parse(json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"])


def parse(events: Sequence[dict[str, Any]]) -> Trace:
    """Sort the events of a trace in Chrome's format into a `Trace`."""
    trace = Trace()
    for event in _whole(events):
        target = {**dict.fromkeys(_HOST, trace.calls), **dict.fromkeys(_DEVICE, trace.work)}.get(event.category)
        if event.category == "user_annotation":
            target = trace.ranges
        if target is not None:
            target.append(event)
    for part in (trace.calls, trace.work, trace.ranges):
        part.sort(key=lambda event: event.start)
    return trace


def _whole(events: Sequence[dict[str, Any]]) -> Iterator[Event]:
    for event in events:
        if event.get("ph") != "X":
            continue
        correlation = event.get("args", {}).get("correlation", -1)
        yield Event(event["name"], event.get("cat", ""), float(event["ts"]), float(event["dur"]), int(correlation))
