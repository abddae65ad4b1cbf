"""One way of running training iterations: a whole trainer without log and checkpoints, and clocks around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.run.config import Task
from tickgraph.run.folder import RunFolder
from tickgraph.run.signals import Interrupts
from tickgraph.run.trainer import Ending, Trainer

BURST = 3  # iterations enqueued after a wait; fewer than the host may run ahead, so that it never waits in between
ALONE = 10  # iterations of which only one half is played, for the times of collector and learner


class TrainArm:
    """A trainer in one mode, past its warm-up, with everything compiled and captured.

    Raises:
        TickgraphError: the mode cannot be had, or the settings do not fit.
    """

    def __init__(self, task: Task, mode: str) -> None:
        self.mode = mode
        task.train.execution = mode
        if mode != "graph":
            task.train.overlap = None  # takes graphs of both sides; elsewhere the trainer decides
        self.trainer = Trainer(task, RunFolder(Path("not-written")), Interrupts(), Ending())
        self.iteration = self.trainer.iteration
        self.cuda = self.trainer.env.device.type == "cuda"
        self.steps = self.iteration.ticks * self.trainer.env.num_envs
        if task.train.stagger:
            self.trainer.env.stagger()
        self.iteration.drain()
        self.trainer.prepare()
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
        }

    def close(self) -> None:
        """Give the worlds back."""
        self.iteration.drain()
        self.trainer.env.close()
