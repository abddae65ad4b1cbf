"""A training run from its first iteration to its last: ticks, updates, log, checkpoints, and how it ends."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.program import resolve_execution
from tickgraph.env.env import Env
from tickgraph.learn.explore import Explorer
from tickgraph.learn.flashsac import FlashSac
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import UpdateCycle
from tickgraph.run import checkpoint, manifest
from tickgraph.run.config import Task, TrainCfg
from tickgraph.run.evaluate import POLICY, evaluation_seed
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import MetricsLog
from tickgraph.run.panel import Panel, Progress, warn
from tickgraph.run.signals import Interrupts

PENDING = "learner/pending/"  # the same tensors as the policy's
TAIL = 100  # iterations that tail_env_steps_per_sec looks back over
DEVICES = ("auto", "cpu", "cuda")
_RENAMED = {"loss/critic_lr": "lr/critic", "loss/actor_lr": "lr/actor"}  # rates are no losses


def resolve_device(requested: str) -> str:
    """Return the torch device that a run uses.

    Raises:
        TickgraphError: there is no such device, or not on this machine.
    """
    if requested == "auto":
        return "cpu"
    if requested == "cpu":
        return requested
    kind, _, index = requested.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        hint = nearby(requested, DEVICES) or f"use one of {', '.join(DEVICES)}"
        raise TickgraphError(f"device {requested!r} is unknown; {hint}")
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise TickgraphError(f"device {requested!r} cannot be had: {why}; use --device cpu, or see `tickgraph doctor`")
    if int(index or 0) >= torch.cuda.device_count():
        raise TickgraphError(f"device {requested!r} cannot be had: this machine has {torch.cuda.device_count()} GPUs")
    return requested


@dataclass
class Ending:
    """Where a run stands, and how it ended once it has."""

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    tail_env_steps_per_sec: float | None = None
    status: str = "interrupted"
    reason: str | None = None
    begun: bool = False
    """Something of this session has been written into the run's folder."""
    finished: bool = False
    """All iterations, or the whole time budget, are behind it."""

    def facts(self) -> dict[str, Any]:
        """Return what the summary says of it."""
        return {
            "status": self.status,
            "reason": self.reason,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_s": self.wall_s,
            "tail_env_steps_per_sec": self.tail_env_steps_per_sec,
        }


@dataclass
class Schedule:
    """Which iteration does what."""

    train: TrainCfg
    min_ticks: int
    resumed_blind_at: int | None = None
    """Iteration of a checkpoint without its replay: learning waits until the replay has filled again."""
    warmup: int = field(init=False)

    def __post_init__(self) -> None:
        # The random actions of the warm-up fill the replay at least as far as one sample needs.
        ticks = max(self.train.learning_starts, self.min_ticks)
        self.warmup = math.ceil(ticks / self.train.ticks_per_iteration)

    @property
    def total_updates(self) -> int:
        """Critic updates over which the learning rate falls."""
        horizon = self.train.lr_iterations or self.train.iterations
        return max(1, (horizon - self.warmup) * self.train.updates_per_iteration)

    def learns(self, iteration: int) -> bool:
        """Return whether this iteration updates the networks."""
        return iteration > (self.resumed_blind_at or 0) + self.warmup


class Trainer:
    """Everything that one training run holds in memory.

    Args:
        task: what is trained, with all its settings.
        run: where everything is written.
        interrupts: tells when to stop early.
        ending: is kept up to date with where the run stands.

    Raises:
        TickgraphError: the task's settings cannot be had on this machine.
    """

    def __init__(self, task: Task, run: RunFolder, interrupts: Interrupts, ending: Ending) -> None:
        self._began = time.monotonic()
        self.task, self.run, self.ending = task, run, ending
        self._interrupts = interrupts
        train = task.train
        self.device = resolve_device(train.device)
        self._update_threads = train.update_threads or manifest.processors()
        torch.set_num_threads(train.tick_threads)
        self.env = Env(
            task.env,
            task.num_envs,
            self.device,
            train.backend,
            train.execution,
            seed=train.seed,
            threads=train.physics_threads,
        )
        self.arena = Arena(self.env.device)
        dims, actions = dict(self.env.observation_manager.dims), self.env.action_manager.total_dim
        self.learner = FlashSac(train.algo, dims, actions, task.num_envs, self.arena, train.seed, total_updates=1)
        self.ring = Ring(
            self.arena,
            train.replay_slots,
            task.num_envs,
            dims,
            actions,
            train.algo.n_step,
            train.algo.gamma,
            train.algo.discount,
            normalizer=self.learner.normalizer,
        )
        self.explorer = Explorer(self.learner, task.num_envs, train.seed)
        resolution = resolve_execution(train.execution, self.env.device)
        self.cycle = UpdateCycle(self.learner, self.ring, train.updates_per_iteration, resolution)
        self.arena.seal()
        self.env.attach(self.explorer, self.ring)
        self.schedule = Schedule(train, self.ring.min_ticks)
        self.learner.set_horizon(self.schedule.total_updates)
        self._versions = manifest.versions()
        self._spent_before = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=TAIL + 1)
        self._seen_checks: set[str] = set()

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a new run: spread the worlds, and leave a checkpoint to come back to."""
        if self.task.train.stagger:
            self.env.stagger()
        self.save()

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint.

        Raises:
            TickgraphError: it does not fit the task's sizes.
        """
        try:
            self.env.load_state_dict(saved.state["env"])
            learn = dict(saved.state["learn"])
            learn |= {name: learn[name.replace(PENDING, POLICY)] for name in self.arena if name.startswith(PENDING)}
            if not saved.extra["replay"]:
                # Names and shapes are still checked; what the ring holds is forgotten right after.
                learn |= {name: value for name, value in self.arena.snapshot().items() if name.startswith("ring/")}
            self.arena.restore(learn)
        except (KeyError, TickgraphError) as error:
            raise TickgraphError(f"{saved.path} does not fit the run's configuration: {error}") from error
        then = {**self._versions, **saved.extra["versions"]}
        changed = [f"{name} {then[name]}, now {now}" for name, now in self._versions.items() if then[name] != now]
        if changed:
            warn(
                f"the checkpoint was saved with other versions ({'; '.join(changed)}): the run goes on, not bit for bit"
            )
        if not saved.extra["replay"]:
            self.ring.clear()
            self.schedule.resumed_blind_at = saved.iteration
        self.learner.set_horizon(self.schedule.total_updates)
        self.ending.iteration, self.ending.env_steps = saved.iteration, saved.extra["env_steps"]
        self._spent_before = self.ending.wall_s = saved.extra["wall_s"]

    def save(self) -> None:
        """Write a checkpoint of everything that the next iteration reads."""
        train = self.task.train
        self.learner.publish_policy()  # as the next iteration would begin; so the snapshot need not be saved twice
        learn = {name: value for name, value in self.arena.snapshot().items() if not name.startswith(PENDING)}
        if not train.checkpoint_replay:
            learn = {name: value for name, value in learn.items() if not name.startswith("ring/")}
        extra = {
            "env_steps": self.ending.env_steps,
            "wall_s": self.wall_s(),
            "replay": train.checkpoint_replay,
            "versions": self._versions,
        }
        state = {"env": self.env.state_dict(), "learn": learn}
        checkpoint.save(self.run, self.task.name, self.ending.iteration, state, extra, train.keep_checkpoints)

    def policy(self) -> dict[str, Tensor]:
        """Return the policy's tensors by name, for evaluation."""
        self.learner.publish_policy()
        return {name: value for name, value in self.arena.snapshot().items() if name.startswith(POLICY)}

    # The loop ------------------------------------------------------------------------------------------------------

    def wall_s(self) -> float:
        """Return the seconds that training has taken, in earlier processes too."""
        return self._spent_before + time.monotonic() - self._began

    def train(self, log: MetricsLog, panel: Panel, stop_after: int | None = None) -> None:
        """Run iterations until the last one, the end of the time budget, `stop_after`, or an interrupt.

        Whichever it was stands in `ending`; the state it ended in is saved.

        Args:
            log: takes the rows.
            panel: shows them.
            stop_after: iterations of the whole run after which to stop, keeping the schedule of all of them.
        """
        train, ending = self.task.train, self.ending
        last = train.iterations if stop_after is None else min(train.iterations, stop_after)
        if ending.iteration < last:
            self._compile_updates()
        row_began, row_steps = time.monotonic(), ending.env_steps
        saved_at, compiled = ending.iteration, False
        while ending.iteration < last and not self._interrupts.requested and not self._out_of_time():
            ending.iteration += 1
            self._iterate(ending.iteration)
            ending.env_steps += train.ticks_per_iteration * self.task.num_envs
            now = time.monotonic()
            if not compiled:
                # Only now is everything compiled: waiting for the end of an iteration is short, and speeds are true.
                compiled = True
                self._interrupts.defer()
                row_began, row_steps = now, ending.env_steps
            self._recent.append((now, ending.env_steps))
            ending.wall_s = self.wall_s()
            if ending.iteration % train.log_interval == 0 or ending.iteration == train.iterations:
                speed = (ending.env_steps - row_steps) / (now - row_began) if now > row_began else None
                self._write_row(log, panel, speed)
                row_began, row_steps = now, ending.env_steps
            if ending.iteration % train.checkpoint_interval == 0:
                log.sync()
                self.save()
                saved_at = ending.iteration
        ending.wall_s = self.wall_s()
        ending.tail_env_steps_per_sec = self._tail_speed()
        self._name_ending(last)
        if saved_at != ending.iteration:
            log.sync()
            self.save()

    def _iterate(self, iteration: int) -> None:
        learns = self.schedule.learns(iteration)
        if iteration == self.schedule.warmup + 1:
            self.explorer.set_warmup(False)
        torch.set_num_threads(self.task.train.tick_threads)
        self.learner.publish_policy()
        for _ in range(self.task.train.ticks_per_iteration):
            self.env.tick()
        self.ring.publish()
        if learns:
            torch.set_num_threads(self._update_threads)
            self.cycle()

    @torch.no_grad()
    def _compile_updates(self) -> None:
        """Run one cycle and put every tensor back, so that no compilation comes in the middle of the run."""
        before = {name: value for name, value in self.arena.snapshot().items() if not name.startswith("ring/")}
        torch.set_num_threads(self._update_threads)
        self.learner.updates.zero_()  # the first update of a run has every part in it
        self.cycle()
        for name, value in before.items():
            self.arena[name].copy_(value)

    def _write_row(self, log: MetricsLog, panel: Panel, speed: float | None) -> None:
        ending = self.ending
        row: dict[str, Any] = {
            "iteration": ending.iteration,
            "env_steps": ending.env_steps,
            "time": time.time(),
            "wall_s": ending.wall_s,
            "env_steps_per_s": speed,
            **self.env.stats.drain(),
            **{_RENAMED.get(key, key): value for key, value in self.cycle.metrics.drain().items()},
        }
        checks = self.env.verdicts.poll()
        row |= {f"check/{check['name']}": check["count"] for check in checks}
        overflow = self.env.sim.overflow()
        row |= {f"overflow/{name}": count for name, count in overflow.items()}
        log.write(row)
        for name, text in (
            *((str(check["name"]), f"{check['count']} worlds so far: {check['why']}") for check in checks),
            *((name, f"the simulation exceeded {name} {count} times") for name, count in overflow.items() if count),
        ):
            if name not in self._seen_checks:
                self._seen_checks.add(name)
                warn(f"iteration {ending.iteration}: {name}: {text} (counted in metrics.jsonl from here on)")
        panel.update(row, Progress(ending.iteration, self.task.train.iterations, ending.wall_s, self._left_s()))

    # Time ----------------------------------------------------------------------------------------------------------

    def _out_of_time(self) -> bool:
        budget = self.task.train.time_budget_s
        return budget is not None and self.wall_s() >= budget

    def _left_s(self) -> float | None:
        if not self._recent:
            return None
        (first, _), (last, _) = self._recent[0], self._recent[-1]
        steps = len(self._recent) - 1
        left = (self.task.train.iterations - self.ending.iteration) * (last - first) / steps if steps else None
        budget = self.task.train.time_budget_s
        if budget is not None:
            rest = max(0.0, budget - self.ending.wall_s)
            left = rest if left is None else min(left, rest)
        return left

    def _tail_speed(self) -> float | None:
        if not self._recent:
            return None
        (first, start), (last, end) = self._recent[0], self._recent[-1]
        return (end - start) / (last - first) if last > first else None

    def _name_ending(self, last: int) -> None:
        train, ending = self.task.train, self.ending
        where = f"{ending.iteration} of {train.iterations} iterations"
        if ending.iteration >= train.iterations:
            ending.finished, ending.reason = True, None
        elif self._interrupts.requested:
            ending.reason = f"{self._interrupts.requested} after {where}"
        elif ending.iteration >= last:
            ending.reason = f"stopped after {where}, as --stop-after asked"
        else:
            ending.finished, ending.reason = True, f"the time budget of {train.time_budget_s:g} s ended after {where}"

    # Facts ---------------------------------------------------------------------------------------------------------

    def manifest_facts(self) -> dict[str, Any]:
        """Return what the manifest says of this run beside the machine."""
        task, train = self.task, self.task.train
        return {
            "task": task.name,
            "reference": task.reference,
            "num_envs": task.num_envs,
            "device": self.device,
            "backend": train.backend,
            "execution": train.execution,
            "seeds": {"train": train.seed, "evaluation": evaluation_seed(train.seed)},
            "ticks_per_iteration": train.ticks_per_iteration,
            "updates_per_iteration": train.updates_per_iteration,
            "total_updates": self.schedule.total_updates,
            "policy_lag": 0,
            "overlap": False,
            "threads": {
                "physics": train.physics_threads or manifest.processors(),
                "tick": train.tick_threads,
                "update": self._update_threads,
            },
            "exact_resume": "exact_resume" in self.env.sim.capabilities and train.checkpoint_replay,
            "simulation": self.env.sim.diagnostics(),
            "programs": {**self.env.execution_report(), **self.cycle.report()},
        }

    def close(self) -> None:
        """Give the physics' threads and memory back."""
        self.env.close()
