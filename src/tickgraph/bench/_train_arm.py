"""One way of running training iterations: a whole trainer without log and checkpoints, and clocks around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.run.config import Task, TrainCfg
from tickgraph.run.folder import RunFolder
from tickgraph.run.signals import Interrupts
from tickgraph.run.trainer import Ending, Trainer

BURST = 3  # iterations enqueued after a wait; fewer than the host may run ahead, so that it never waits in between
ALONE = 10  # iterations of which only one half is played, for the times of collector and learner


MODES = ("graph", "compile", "compile-loss", "eager")
COUNTERS = {
    "critic_updates": "learner/updates",
    "actor_updates": "learner/actor_updates",
    "temperature_updates": "learner/alpha_adam/steps",
}


def set_mode(train: TrainCfg, mode: str) -> None:
    """Write the settings of a mode: those of `tickgraph train --execution MODE`.

    compile-loss is compile with another scope, for which there is the plain learner alone.
    """
    train.execution = mode.removesuffix("-loss")
    train.compile_scope = "loss" if mode == "compile-loss" else "objective"
    if mode == "compile-loss":
        train.learner_kernels = "autograd"
    if mode != "graph":
        train.overlap = None  # takes graphs of both sides; elsewhere the trainer decides


class TrainArm:
    """A trainer in one mode, past its warm-up, with everything compiled and captured.

    Args:
        task: what is trained, changed in place.
        mode: how: graph, compile or eager, with the task's own `learner_kernels`; or compile-loss, where of the
            objectives only the losses are compiled, with the gradients by autograd and no kernels.

    Raises:
        TickgraphError: the mode cannot be had, or the settings do not fit.
    """

    def __init__(self, task: Task, mode: str) -> None:
        self.mode = mode
        set_mode(task.train, mode)
        self.trainer = Trainer(task, RunFolder(Path("not-written")), Interrupts(), Ending())
        self.iteration = self.trainer.iteration
        self.cuda = self.iteration.device.type == "cuda"
        self.steps = self.iteration.ticks * self.trainer.env.num_envs
        if task.train.stagger:
            self.trainer.env.stagger()
        self.iteration.drain()
        self.trainer.prepare()
        self.iteration.connect()
        for _ in range(self.trainer.schedule.warmup):
            self.iteration.run(learns=False)
        self.iteration.drain()
        self.trainer.explorer.set_warmup(False)
        self.iteration.drain()  # what was written here is there for the iterations' own streams
        for _ in range(5):  # graphs are captured at the third call
            self.iteration.run()
        self.iteration.drain()
        if mode == "graph" and not self.iteration.captured:
            raise TickgraphError(f"the iteration was not captured: {self.iteration.report()}")

    @property
    def graphs(self) -> int:
        """Graph launches that belong to an iteration."""
        return 2 + (self.iteration.head_graph is not None)

    def play_rows(self, iterations: int) -> list[dict[str, float]]:
        """Run iterations with clocks in them; returns for each the milliseconds of its parts.

        Returns:
            iter_ms between the ends of two iterations, collector_cycle_ms of its ticks, learner_train_ms of its
            updates; with overlap these run side by side. On a GPU by the device's clock; where the host plays the ticks
            beside a learner on a GPU, these by the host's.
        """
        with self._clocks(iterations + 1) as (collects, updates):
            spans = self.play(iterations)
        ticks = np.reshape(collects.durations(), (iterations + 1, -1)).sum(axis=1).tolist()
        parts = zip(spans, ticks[1:], updates.durations()[1:], strict=True)
        names = ("iter_ms", "collector_cycle_ms", "learner_train_ms")
        return [dict(zip(names, values, strict=True)) for values in parts]

    @contextmanager
    def _clocks(self, calls: int) -> Iterator[tuple[Clock, Clock]]:
        """Time what ticks and updates enqueue, in their graphs' place, or each tick that the host plays."""
        work, bridge = self.iteration, self.iteration.bridge
        collect, update = work.collect_graph, work.update_graphs
        collects, updates = Clock(calls, self.cuda and bridge is None), Clock(calls, self.cuda)
        work.collect_graph = collects.around(collect)
        work.update_graphs = {phase: updates.around(graph) for phase, graph in update.items()}
        if bridge is not None:
            bridge.tick = collects.around(bridge.tick)  # type: ignore[method-assign]
        try:
            yield collects, updates
        finally:
            work.collect_graph, work.update_graphs = collect, update
            if bridge is not None:
                del bridge.tick  # the class's own shows again

    def crossings(self) -> dict[str, int]:
        """Return how often the host has waited for the device and copied within ticks that it plays itself."""
        bridge = self.iteration.bridge
        return {} if bridge is None else {"waits": bridge.waits, "copies": bridge.copies}

    def counters(self) -> dict[str, int]:
        """Return how many updates of each kind were made so far."""
        self.iteration.drain()
        return {name: int(self.trainer.arena[path]) for name, path in COUNTERS.items()}

    def play(self, iterations: int) -> list[float]:
        """Run iterations; returns the milliseconds between their ends, on a GPU by the device's clock."""
        work, first = self.iteration, self.iteration.count + 1
        work.run()  # leads in: its end is where the first interval begins
        found: list[float] = []
        for _ in range(iterations):
            work.run()
            self._take(found, first)  # ends are remembered for a while only
        work.drain()
        self._take(found, first)
        return found

    def _take(self, found: list[float], first: int) -> None:
        """Append the intervals that are over by now; reading them waits for nothing."""
        while first + len(found) + 1 <= self.iteration.over:
            found.append(1e3 * self.iteration.seconds(first + len(found), first + len(found) + 1))

    def enqueue(self, bursts: int) -> list[float]:
        """Return the host's milliseconds for each of some iterations, none of which has to wait for the device."""
        found = []
        for _ in range(bursts):
            self.iteration.drain()
            for _ in range(BURST):
                start = time.perf_counter_ns()
                self.iteration.run()
                found.append((time.perf_counter_ns() - start) / 1e6)
        self.iteration.drain()
        return found

    def collector_ms(self) -> float:
        """Return the mean milliseconds of the ticks alone, published as training does."""
        return self._alone(self.iteration.collect)

    def learner_ms(self) -> float:
        """Return the mean milliseconds of the updates alone."""
        return self._alone(self.iteration.update)

    def _alone(self, half: Callable[[], None]) -> float:
        half()
        self.iteration.drain()
        streams = self.iteration.streams
        if streams is None:
            start = time.perf_counter()
            for _ in range(ALONE):
                half()
            return (time.perf_counter() - start) * 1e3 / ALONE
        # Both halves end on the first stream: it waits for the updates.
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(streams[0])
        streams[1].wait_stream(streams[0])
        for _ in range(ALONE):
            half()
        after.record(streams[0])
        after.synchronize()
        self.iteration.drain()
        return before.elapsed_time(after) / ALONE

    def facts(self) -> dict[str, Any]:
        """Return what ran, for the result."""
        train = self.trainer.task.train
        return {
            "ticks_per_iteration": self.iteration.ticks,
            "updates_per_iteration": train.updates_per_iteration,
            "algo": self.trainer.task.algo,
            "batch_size": train.algo.batch_size,
            "overlap": self.iteration.overlap,
            "programs": sorted({str(row["enabled"]) for row in self.trainer.env.execution_report().values()}),
            "graphs": self.iteration.report(),
            "learner_programs": self.trainer.cycle.report(),
        }

    def close(self) -> None:
        """Give the worlds back."""
        self.iteration.drain()
        self.trainer.env.close()


class Clock:
    """Begin and end of what a graph enqueues, call by call; events are made before the first of them."""

    def __init__(self, calls: int, cuda: bool) -> None:
        self._events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(calls * cuda)]
        self._times: list[tuple[int, int]] = []
        self._calls = 0

    def around(self, work: Callable[[], None]) -> Any:
        """Return a graph, or another piece of work, with this clock around its calls; everything else of it stays."""
        return _Timed(work, self)

    def time(self, work: Callable[[], None]) -> None:
        """Call something on the stream that is current, and remember how long what it enqueues takes."""
        if not self._events:
            start = time.perf_counter_ns()
            work()
            self._times.append((start, time.perf_counter_ns()))
            return
        before, after = self._events[self._calls]
        self._calls += 1
        before.record()
        work()
        after.record()

    def durations(self) -> list[float]:
        """Return the milliseconds of each call; the device must be done with them."""
        if self._events:
            return [before.elapsed_time(after) for before, after in self._events[: self._calls]]
        return [(end - start) / 1e6 for start, end in self._times]


class _Timed:
    """A piece of work whose calls are timed."""

    def __init__(self, work: Callable[[], None], clock: Clock) -> None:
        self._work, self._clock = work, clock

    def __call__(self) -> None:
        self._clock.time(self._work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
