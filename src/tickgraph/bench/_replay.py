"""Records what a tick does to the physics, and plays it again: through the backend, and through a bare batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.graph import Graph
from tickgraph.core.program import Resolution
from tickgraph.env.env import Env


@dataclass
class TracedTick:
    """One tick's physics.

    ``state`` is the backend's whole state before the tick, and ``rows`` (W,) the worlds that were written (reset,
    pushed) since the tick before. ``calls`` are (number of substeps, controls (N, nu) float32); ``qpos`` and ``qvel``
    (N, ...) float32 the state after them, before anything is written.
    """

    state: dict[str, Tensor]
    rows: NDArray[np.int32]
    calls: list[tuple[int, Tensor]] = field(default_factory=list)
    qpos: Tensor | None = None
    qvel: Tensor | None = None


def record(env: Env, ticks: int) -> list[TracedTick]:
    """Play ticks and return what each did to the physics; the ticks themselves are not changed by it."""
    trace: list[TracedTick] = []

    def before(n: int) -> None:
        trace[-1].calls.append((n, env.sim.ctrl.clone()))

    def after() -> None:
        trace[-1].qpos, trace[-1].qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()

    with _listening(env, before, after):
        for _ in range(ticks):
            trace.append(TracedTick(env.sim.state_dict(), _written(env)))
            env.tick()
    return trace


class Recorder:
    """Records as `record` does, by ticks that run in a way of their own: on a GPU as one graph, not by eager launches.

    The graph holds the copies of controls and of what they lead to. They go to memory that the next tick writes again,
    so each tick's are cloned behind it.

    Args:
        env: the environment that goes on by the recorded ticks.
        tick: enqueues one of its ticks, as `Tick.play` does.
        resolution: how the tick and the copies run.
    """

    def __init__(self, env: Env, tick: Callable[[], None], resolution: Resolution) -> None:
        self._env, self._tick = env, tick
        advances = env.cfg.decimation if env.substep_manager.terms else 1
        substeps = env.cfg.decimation // advances
        self._calls = [(substeps, torch.empty_like(env.sim.ctrl)) for _ in range(advances)]
        self._qpos, self._qvel = (torch.empty_like(env.sim.view(name)) for name in ("qpos", "qvel"))
        # On a stream of its own, which waits for ours and ours for it: what is cloned here lies between two launches.
        scopes = (env.sim.capture_scope,)
        self.graph = Graph("bench/recording", self._play, resolution, scopes=scopes, watch=env.pointers)

    def record(self, ticks: int) -> list[TracedTick]:
        """Play ticks and return what each did to the physics; the first three ever played warm up and capture."""
        trace = []
        for _ in range(ticks):
            state, rows = self._env.sim.state_dict(), _written(self._env)
            self.graph()
            calls = [(n, controls.clone()) for n, controls in self._calls]
            trace.append(TracedTick(state, rows, calls, self._qpos.clone(), self._qvel.clone()))
        return trace

    def _play(self) -> None:
        sim, places = self._env.sim, iter(self._calls)

        def before(n: int) -> None:
            next(places)[1].copy_(sim.ctrl)

        def after() -> None:
            self._qpos.copy_(sim.view("qpos"))
            self._qvel.copy_(sim.view("qvel"))

        with _listening(self._env, before, after):
            self._tick()


def _written(env: Env) -> NDArray[np.int32]:
    """Return the worlds that were written since the last tick began."""
    return np.flatnonzero(env.written.cpu().numpy()).astype(np.int32)


def record_bytes(env: Env, ticks: int) -> int:
    """Return the bytes of a recording: state, controls and what they lead to, of each tick and each world."""
    state = sum(value.numel() * value.element_size() for value in env.sim.state_dict().values())
    moves = (env.sim.ctrl, env.sim.view("qpos"), env.sim.view("qvel"))
    return ticks * (state + sum(value.numel() * value.element_size() for value in moves))


@contextmanager
def _listening(env: Env, before: Any, after: Any) -> Iterator[None]:
    """Call `before(n)` and `after()` around every advance of the environment's backend."""
    advance = env.sim.advance_and_refresh

    def advance_and_tell(n: int) -> None:
        before(n)
        advance(n)
        after()

    env.sim.advance_and_refresh = advance_and_tell  # type: ignore[method-assign]
    try:
        yield
    finally:
        del env.sim.advance_and_refresh  # the class's own method shows again


def play_backend(env: Env, trace: list[TracedTick]) -> list[float]:
    """Play a trace through the backend's own `advance_and_refresh`; returns the milliseconds of each tick.

    Writing states and controls is not part of the times.

    Raises:
        TickgraphError: the states differ from the recorded ones.
    """
    sim, durations = env.sim, []
    for number, tick in enumerate(trace):
        if number == 0 or tick.rows.size:
            sim.load_state_dict(tick.state)
        elapsed = 0
        for n, controls in tick.calls:
            sim.ctrl.copy_(controls)
            start = time.perf_counter_ns()
            sim.advance_and_refresh(n)
            elapsed += time.perf_counter_ns() - start
        durations.append(elapsed / 1e6)
        _check(sim.view("qpos"), sim.view("qvel"), tick, number, "advance")
    return durations


class BareBatch:
    """``mujoco.batch.Batch`` of a backend's model, with nothing bound but the state: what the physics alone costs.

    It runs as many threads as the backend. Whether it keeps an MjData per world is chosen by `choose`: what is faster.

    Args:
        env: the environment whose physics is replayed.
        persistent: keep one MjData per world.
    """

    def __init__(self, env: Env, persistent: bool) -> None:
        import mujoco
        from mujoco import batch

        self.persistent = persistent
        self.threads = int(env.sim.diagnostics()["threads"])
        self._mujoco = mujoco
        self._batch = batch.Batch(env.sim.scene.mjmodel, env.num_envs, self.threads, persistent=persistent)
        self._qpos, self._qvel, self._ctrl = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self._fields: dict[str, NDArray] = {}
        self._derive = False

    def play(self, trace: list[TracedTick]) -> list[float]:
        """Play a trace; returns the milliseconds of each tick's steps, writes of states and controls left out.

        Raises:
            TickgraphError: the states differ from the recorded ones.
        """
        durations = []
        every = np.arange(self._batch.nsim, dtype=np.int32)
        for number, tick in enumerate(trace):
            self._write(tick.state, every if number == 0 else tick.rows)
            elapsed = 0
            for n, controls in tick.calls:
                self._ctrl[...] = controls.numpy()
                start = time.perf_counter_ns()
                self._batch.step(nstep=n)
                elapsed += time.perf_counter_ns() - start
            durations.append(elapsed / 1e6)
            qpos, qvel = (torch.from_numpy(a.astype(np.float32)) for a in (self._qpos, self._qvel))
            _check(qpos, qvel, tick, number, "physics")
        return durations

    def _write(self, state: dict[str, Tensor], rows: NDArray[np.int32]) -> None:
        if not rows.size:
            return
        for key, value in state.items():
            if key == "state":
                self._batch.state[rows] = value.numpy()[rows]
                continue
            name = key.removeprefix("field/")
            if name not in self._fields:
                self._fields[name] = self._batch.expand(name)
                inputs = self._mujoco.MjModel._setconst_inputs
                self._derive = self._derive or name in inputs or name.startswith("opt.")
            self._fields[name][rows] = value.numpy()[rows]
        if self._derive:
            self._batch.set_const(rows)


def choose(env: Env, trace: list[TracedTick], rounds: int = 3) -> BareBatch:
    """Return the faster of the two kinds of bare batch, so that no benchmark flatters itself with the slower one."""
    batches = [BareBatch(env, persistent=True), BareBatch(env, persistent=False)]
    totals = {id(batch): [] for batch in batches}
    for round_ in range(rounds):
        for batch in batches if round_ % 2 else reversed(batches):
            totals[id(batch)].append(sum(batch.play(trace)))
    return min(batches, key=lambda batch: np.median(totals[id(batch)]))


def _check(qpos: Tensor, qvel: Tensor, tick: TracedTick, number: int, arm: str) -> None:
    assert tick.qpos is not None and tick.qvel is not None
    same = torch.eq(qpos, tick.qpos).all() & torch.eq(qvel, tick.qvel).all()
    if not bool(same) and not bool(torch.isnan(tick.qvel).any()):
        worlds = int((qpos != tick.qpos).any(dim=1).sum())
        raise TickgraphError(
            f"the {arm} arm's state left the recorded trace at tick {number} in {worlds} worlds, so that its times "
            "would be those of other physics; run with terms that change the physics only through controls, resets "
            "and model fields"
        )
