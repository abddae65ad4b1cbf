"""Where a tick's time goes: played eager, part by part, each timed by the device's clock (on a CPU by the host's)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tickgraph.bench._case import Case, build
from tickgraph.bench._figures import times
from tickgraph.bench._sites import HostReads, Watch, note_breaks, waits_reported
from tickgraph.bench._stages import mujoco_stages, stage_of
from tickgraph.bench._trace import Event, Trace, record
from tickgraph.core.rng import Rng, Stream
from tickgraph.core.words import counted
from tickgraph.env import tick as transition
from tickgraph.env.env import Env
from tickgraph.run.config import Task

# What `Tick.play` runs, in its order; "/" names what lies within a part.
PARTS = (
    *("act", "act/words", "apply", "substeps", "physics", "judge", "command", "terminal_observation"),
    *("store", "record", "restart", "restart/sampling", "restart/draws", "restart/values", "restart/write"),
    *("refresh", "observe"),
)
SETTLE = 30
TRACED, WATCHED = 5, 2
_DRAWS = {"choice": "sampling", "integers": "sampling", "uniform": "draws", "normal": "draws", "words": "draws"}

Mark = Callable[[str], AbstractContextManager[None]]


@dataclass
class Marks:
    """Times of marked stretches; a stretch within another is not part of it."""

    cuda: bool
    inner: Mark | None = None
    """Entered within each mark: how a profiler learns of it."""
    _open: list[int] = field(default_factory=list)
    _spans: list[tuple[str, int | None, Any, Any]] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        parent = self._open[-1] if self._open else None
        number = len(self._spans)
        self._spans.append((name, parent, self._now(), None))
        self._open.append(number)
        try:
            with self.inner(name) if self.inner is not None else nullcontext():
                yield
        finally:
            self._open.pop()
            self._spans[number] = (*self._spans[number][:3], self._now())

    def take(self) -> dict[str, float]:
        """Return {name: milliseconds of its own} of everything since the last call; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        length = [a.elapsed_time(b) if self.cuda else (b - a) / 1e6 for _, _, a, b in self._spans]
        own = list(length)
        for number, (_, parent, _, _) in enumerate(self._spans):
            if parent is not None:
                own[parent] -= length[number]
        found: dict[str, float] = {}
        for (name, *_), value in zip(self._spans, own, strict=True):
            found[name] = found.get(name, 0.0) + value
        self._spans.clear()
        return found

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@torch.inference_mode(False)
@torch.no_grad()
def play(env: Env, mark: Mark) -> None:
    """Play one tick eager, each of its parts marked; what it does is what `Tick.play` does."""
    sim = env.sim
    for part in transition.PARTS[:2]:
        with mark(part.__name__):
            part(env)
    if env.substep_manager.terms:
        for substep in range(env.cfg.decimation):
            with mark("substeps"):
                env.substep_manager.apply(substep)
            with mark("physics"):
                sim.advance_and_refresh(1)
    else:
        with mark("physics"):
            sim.advance_and_refresh(env.cfg.decimation)
    for part in transition.PARTS[2:-1]:
        with mark("restart/values" if part is transition.restart else part.__name__):
            part(env)
    with mark("restart/write"):
        sim.write_state(env.written, env.restarted)
    with mark("refresh"):
        sim.refresh(env.written)
    with mark(transition.PARTS[-1].__name__):
        transition.PARTS[-1](env)


@contextmanager
def draws_marked(mark: Mark, now: Callable[[], str | None]) -> Iterator[None]:
    """Mark the table of random words within act, and sampling and draws within restart, while this is entered.

    Args:
        mark: takes the marks.
        now: returns the part that is being played.
    """
    depth = [0]

    def wrapped(function: Callable[..., Any], name: str, part: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            current = now()
            if depth[0] or current is None or current.split("/")[0] != part:
                return function(*args, **kwargs)
            depth[0] += 1
            try:
                with mark(f"{part}/{name}"):
                    return function(*args, **kwargs)
            finally:
                depth[0] -= 1

        return run

    before = {name: getattr(Stream, name) for name in _DRAWS}
    refresh = Rng.refresh
    for name, phase in _DRAWS.items():
        setattr(Stream, name, wrapped(before[name], phase, "restart"))
    Rng.refresh = wrapped(refresh, "words", "act")  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(Stream, name, function)
        Rng.refresh = refresh  # type: ignore[method-assign]


class Player:
    """Plays ticks of one environment with marks."""

    def __init__(self, env: Env, marks: Marks) -> None:
        self.env, self.marks = env, marks
        self._part: str | None = None

    def __call__(self) -> None:
        with self._scope(), draws_marked(self.marks, lambda: self._part):
            play(self.env, self._mark)

    @contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        self._part = name
        try:
            with self.marks(name):
                yield
        finally:
            self._part = None

    def _scope(self) -> AbstractContextManager[None]:
        if not self.marks.cuda:
            return nullcontext()
        return self.env.sim.capture_scope(torch.cuda.current_stream(self.env.device))


def profile(task: Task, case: Case, ticks: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Profile a task's tick.

    Args:
        task, case: what is played, and with how many worlds, where.
        ticks: ticks that are timed.
        folder: takes trace.json, which opens in Perfetto.
        say: told of progress.

    Returns:
        The case's facts and
        `parts`: a row a part, the dearest first: part, mean_ms, median_ms, p90_ms, p95_ms, share; on a GPU also
        device_ms (its kernels alone, without waiting for the host), kernels, and the host's calls by kind, per tick;
        `stages`: the physics by stage, {stage, ms, share};
        `sites`: what `Watch.table` returns; those that are not `inside` belong to the log point after the tick.
    """
    say(f"{case.task}, {counted(case.num_envs, 'world')}: building, settling")
    env = build(task, case).env
    cuda = env.device.type == "cuda"
    for _ in range(SETTLE):
        env.tick()
    marks = Marks(cuda)
    player = Player(env, marks)
    player()
    marks.take()
    say(f"{counted(ticks, 'tick')}, part by part")
    samples: dict[str, list[float]] = {}
    for tick in range(ticks):
        player()
        for name, value in marks.take().items():
            samples.setdefault(name, [0.0] * tick).append(value)
        for values in samples.values():
            values += [0.0] * (tick + 1 - len(values))
    whole = float(sum(np.mean(values) for values in samples.values()))
    rows = [{"part": name, **times(values)} for name, values in samples.items()]
    for row in rows:
        row["share"] = row["mean_ms"] / whole
    say(f"{TRACED} ticks under the profiler")
    trace = _trace(player, folder / "trace.json", cuda)
    stages = _stages(env, trace, rows, cuda)
    if cuda:
        _add_device(rows, trace)
    say(f"{WATCHED} ticks watched operation by operation")
    result = {
        **{"task": case.task, "backend": env.backend_name, "device": str(env.device), "num_envs": env.num_envs},
        **{"ticks": ticks, "mode": "eager", "clock": "device events" if cuda else "host", "tick_ms": whole},
        "parts": sorted(rows, key=lambda row: -row["mean_ms"]),
        "stages": stages,
        "sites": sites(env, player),
        "trace": "trace.json",
    }
    env.close()
    return result


def sites(env: Env, player: Player) -> list[dict[str, Any]]:
    """Return where a tick, and the log point after it, waits, moves, allocates or leaves what can be captured."""
    watch = Watch()
    with waits_reported(watch):
        for _ in range(WATCHED):
            watch.inside = True
            with HostReads(watch), watch:
                player()
            watch.inside = False
            with HostReads(watch), watch:
                env.stats.drain()
                env.verdicts.poll()
                env.sim.overflow()
    player.marks.take()
    watch.inside = True
    before = set(watch.sites)
    note_breaks(watch, env)
    for key, site in watch.sites.items():
        if key not in before:  # these are of every tick, and were looked up once
            site.count *= WATCHED
    return watch.table(WATCHED)


def _trace(player: Player, path: Path, cuda: bool) -> Trace:
    marks = player.marks
    marks.inner = torch.profiler.record_function

    def work() -> None:
        for _ in range(TRACED):
            player()

    try:
        return record(work, path, cuda)
    finally:
        marks.inner = None
        marks.take()


def by_part(trace: Trace) -> dict[str, Trace]:
    """Return the calls of each part, and the device's work that they launched; a part within another is not its."""
    found: dict[str, Trace] = {}
    owner: dict[int, str] = {}
    known = [span for span in trace.ranges if span.name in PARTS]
    for call in trace.calls:
        around = [span for span in known if span.start <= call.start < span.end]
        if around:
            name = min(around, key=lambda span: span.duration).name
            found.setdefault(name, Trace()).calls.append(call)
            owner[call.correlation] = name
    for work in trace.work:
        if work.correlation in owner:
            found[owner[work.correlation]].work.append(work)
    return found


def _add_device(rows: list[dict[str, Any]], trace: Trace) -> None:
    parts = by_part(trace)
    for row in rows:
        part = parts.get(row["part"], Trace())
        row["device_ms"] = _milliseconds(part.work)
        row["kernels"] = sum(work.category == "kernel" for work in part.work) / TRACED
        row["calls"] = {name: count / TRACED for name, count in part.kinds().items()}


def _stages(env: Env, trace: Trace, rows: list[dict[str, Any]], cuda: bool) -> list[dict[str, Any]]:
    """Return the physics by stage, the dearest first; empty where the backend cannot be looked into."""
    if cuda:
        kernels: dict[str, list[Event]] = {}
        for work in by_part(trace).get("physics", Trace()).work:
            kernels.setdefault(stage_of(work.name) if work.category == "kernel" else "copies", []).append(work)
        found = {stage: _milliseconds(work) for stage, work in kernels.items()}
    else:
        physics = sum(row["mean_ms"] for row in rows if row["part"] == "physics")
        # The timers are MuJoCo's own; another engine on a CPU is one stage.
        shares = mujoco_stages(env) if "threads" in env.sim.diagnostics() else {}
        found = {stage: share * physics for stage, share in shares.items()}
    total = sum(found.values()) or 1.0
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [{"stage": stage, "ms": value, "share": value / total} for stage, value in ranked]


def _milliseconds(work: list[Event]) -> float:
    return sum(event.duration for event in work) / 1e3 / TRACED
