"""The rows of a run's log: the device's figures of an interval, written and shown; what they say is wrong is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.learn.metrics import skipped
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.iteration import Iteration
from tickgraph.run.log import MetricsLog
from tickgraph.run.panel import Panel, Progress, warn
from tickgraph.run.readout import Reading, Readout
from tickgraph.run.schedule import Ending

_RENAMED = {"loss/critic_lr": "lr/critic", "loss/actor_lr": "lr/actor"}  # rates are no losses


class Rows:
    """Takes figures behind an iteration and writes their row when they have arrived.

    Args:
        env, cycle: whose figures they are.
        iteration: when they are taken, and when they have arrived.
        ending: where the run stands.
        progress: of an iteration and its seconds, for the panel.
        wall_s: seconds that training has taken.
    """

    def __init__(
        self,
        env: Env,
        cycle: UpdateCycle,
        iteration: Iteration,
        ending: Ending,
        progress: Callable[[int, float], Progress],
        wall_s: Callable[[], float],
    ) -> None:
        self._env, self._cycle, self._iteration, self._ending = env, cycle, iteration, ending
        self._progress, self._wall_s = progress, wall_s
        self._told: set[str] = set()
        self._capacities = list(env.sim.overflow())
        self._readout = Readout(
            iteration.device,
            {
                "episodes": env.stats.packed,
                "learner": cycle.metrics.packed,
                "checks": env.verdicts.packed,
                "overflow": env.sim.overflow_counts,
            },
        )

    def begin(self, log: MetricsLog, panel: Panel) -> None:
        """Write to a log and show on a panel from here on."""
        self._log, self._panel = log, panel
        self.start()

    def start(self) -> None:
        """Let times and speeds count from here."""
        with self._iteration.between():
            self._readout.start()
        self._wall_at_row, self._steps_at_row = self._wall_s(), self._ending.env_steps

    def take(self) -> None:
        """Have the device's figures read behind this iteration, and begin the next interval."""
        with torch.no_grad(), self._iteration.between():
            self._readout.take(self._iteration.count, (self._ending.iteration, self._ending.env_steps))
            self._env.stats.clear()
            self._cycle.metrics.clear()

    def write(self, drain: bool = False) -> None:
        """Write the rows that have arrived: on a GPU some iterations late, or all of them after waiting for it."""
        if drain:
            self._iteration.drain()
        for reading in self._readout.ready(self._iteration.over, drained=drain):
            self._write(reading)

    def _write(self, reading: Reading) -> None:
        iteration, env_steps = reading.tag
        self._wall_at_row += reading.seconds
        steps = env_steps - self._steps_at_row  # none where speeds are true only from this iteration on
        speed = steps / reading.seconds if steps and reading.seconds > 0 else None
        self._steps_at_row = env_steps
        values = reading.values
        checks = self._env.verdicts.failed(values["checks"])
        overflow = {name: int(count) for name, count in zip(self._capacities, values["overflow"], strict=True)}
        row: dict[str, Any] = {
            "iteration": iteration,
            "env_steps": env_steps,
            "time": time.time() - max(0.0, self._wall_s() - self._wall_at_row),
            "wall_s": self._wall_at_row,
            "env_steps_per_s": speed,
            **self._env.stats.figures(values["episodes"]),
            **{_RENAMED.get(key, key): value for key, value in self._cycle.metrics.figures(values["learner"]).items()},
            **{f"check/{check['name']}": check["count"] for check in checks},
            **{f"overflow/{name}": count for name, count in overflow.items()},
        }
        self._log.write(row)
        self._ending.overflow = {name: count for name, count in overflow.items() if count}
        for check in checks:
            self._warn_of(check, iteration)
        for name, text in skipped(row):
            self._warn_once(iteration, name, text)
        if new := [name for name in self._ending.overflow if name not in self._told]:
            # Asks the device, which is worth it: this comes once a capacity.
            advice = {line.partition(":")[0]: line.partition(": ")[2] for line in self._env.sim.overflow_advice()}
            for name in new:
                text = f"the simulation exceeded {name} {counted(overflow[name], 'time')}"
                self._warn_once(iteration, name, advice.get(name, text))
        self._panel.update(row, self._progress(iteration, self._wall_at_row))

    def _warn_of(self, check: dict[str, Any], iteration: int) -> None:
        name, text = str(check["name"]), f"{counted(check['count'], 'world')} so far: {check['why']}"
        if name == "non_finite/reward" and name not in self._told and (terms := self._env.reward_manager.not_finite()):
            text += f"; not finite in the newest step: {', '.join(terms)}"
        self._warn_once(iteration, name, text)

    def _warn_once(self, iteration: int, name: str, text: str) -> None:
        if name not in self._told:
            self._told.add(name)
            warn(f"iteration {iteration}: {name}: {text} (counted in metrics.jsonl from here on)")
