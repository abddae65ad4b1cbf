"""A training run from its first iteration to its last: ticks, updates, log, checkpoints, and how it ends."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.memory import memory_for
from tickgraph.core.program import BACKEND_CANNOT, ILLEGAL, resolve_execution
from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.explore import Explorer
from tickgraph.learn.learner import FORMER
from tickgraph.learn.update import UpdateCycle
from tickgraph.run import checkpoint, manifest
from tickgraph.run.config import Task
from tickgraph.run.describe import check_gpu
from tickgraph.run.evaluate import POLICY, evaluation_seed
from tickgraph.run.folder import RunFolder
from tickgraph.run.iteration import Iteration
from tickgraph.run.judged import built_alike, exact_resume, held, judge_run, same_held
from tickgraph.run.log import MetricsLog
from tickgraph.run.neighbours import Neighbours, advice, warn_of_threads
from tickgraph.run.panel import Panel, Progress, tell, warn
from tickgraph.run.precision import set_precision
from tickgraph.run.rows import Rows
from tickgraph.run.schedule import Ending, Schedule
from tickgraph.run.signals import Interrupts
from tickgraph.run.startup import FIRST_TICK, StartUp
from tickgraph.sim.platform import resolve_platform

PENDING = "learner/pending/"  # the same tensors as the policy's
TAIL = 100  # iterations that tail_env_steps_per_sec looks back over


class Trainer:
    """Everything that one training run holds in memory.

    Args:
        task: what is trained, with all its settings.
        run: where everything is written.
        interrupts: tells when to stop early.
        ending: is kept up to date with where the run stands.
        startup: times the phases before the first iteration, and says them.

    Raises:
        TickgraphError: the task's settings cannot be had on this machine.
    """

    def __init__(
        self, task: Task, run: RunFolder, interrupts: Interrupts, ending: Ending, startup: StartUp | None = None
    ) -> None:
        self._began = time.monotonic()
        self.task, self.run, self.ending = task, run, ending
        self._interrupts = interrupts
        self.startup = startup or StartUp(tell)
        train = task.train
        platform = resolve_platform(train.device, train.backend)
        self.device, self.backend, self.bridged = platform.device, platform.backend, platform.bridged
        self._on_cuda = torch.device(self.device).type == "cuda"
        self._precision = set_precision(train.matmul_precision, self.device)
        self._update_threads = train.update_threads or manifest.processors()
        warn_of_threads(train.physics_threads, train.tick_threads, train.update_threads)
        torch.set_num_threads(train.tick_threads)
        check_gpu(task, platform)
        # On the CPU this takes a second or two, and is not worth a line.
        with self.startup.phase("building", "building the worlds" if self._on_cuda else None):
            # A graph is for the learner's device; worlds beside it run compiled.
            execution = "compile" if self.bridged and train.execution == "graph" else train.execution
            self.env = Env(
                *(task.env, task.num_envs, platform.worlds, self.backend, execution),
                seed=train.seed,
                threads=train.physics_threads,
            )
            self._held = held(self.env, task)
            self._same_held = built_alike(self.env, self._held)
            self.blockers = judge_run(self.env)
            self._build()
        self.schedule = Schedule(train, self.ring.min_ticks)
        self.learner.set_horizon(self.schedule.total_updates)
        self._versions = manifest.versions()
        self._spent_before = 0.0
        self._recent: deque[float] = deque(maxlen=TAIL + 1)
        self._steady_from = 1
        self._neighbours: Neighbours | None = None
        self._told_of_neighbours = False
        self._rows = Rows(self.env, self.cycle, self.iteration, self.ending, self._progress, self.wall_s)

    def _build(self) -> None:
        """Build the learner, the replay and the iteration around the worlds."""
        task, train, env = self.task, self.task.train, self.env
        self.arena = Arena(torch.device(self.device))
        dims, actions = dict(env.observation_manager.dims), env.action_manager.total_dim
        # Worlds on the same device have told what stands against a mode there.
        execution = resolve_execution(train.execution, self.arena.device, told=not self.bridged)
        self.overlap = self._may_overlap(execution.enabled)
        with memory_for(f"the learner and a replay of {train.replay_slots} slots"):
            self.learner = make_learner(train.algo, dims, actions, task.num_envs, self.arena, train.seed)
            self.learner.choose_policy(train.learner_kernels)
            ahead = train.ticks_per_iteration if self.overlap else 0
            self.ring = make_ring(self.learner, train.replay_slots, task.num_envs, ahead)
            self.explorer = Explorer(self.learner, task.num_envs, train.seed)
            updates, scope = train.updates_per_iteration, train.compile_scope
            kernels = train.learner_kernels
            self.cycle = UpdateCycle(self.learner, self.ring, updates, execution, scope, kernels)
        self.arena.seal()
        if not self.bridged:
            env.attach(self.explorer, self.ring)
        self.iteration = Iteration(
            *(env, self.learner, self.ring, self.cycle, train.ticks_per_iteration, self.overlap, execution),
            threads=(train.tick_threads, self._update_threads),
            explorer=self.explorer if self.bridged else None,
        )

    def _may_overlap(self, updates: str) -> bool:
        """Return whether updates run beside ticks, which takes graphs of both.

        Raises:
            TickgraphError: it was asked for, and cannot be had.
        """
        ticks = {} if self.bridged else {"ticks": self.env.resolution.enabled}
        modes = {**ticks, "updates": updates}
        lacking = [f"{name} run as {mode!r}" for name, mode in modes.items() if mode != "graph"]
        wanted = self.task.train.overlap
        if wanted and lacking:
            kind = ILLEGAL if self._on_cuda else BACKEND_CANNOT
            raise TickgraphError(
                f"overlap cannot be had: {kind}: it takes CUDA graphs, and on {self.device} {' and '.join(lacking)}; "
                "leave --overlap out"
            )
        return not lacking if wanted is None else wanted

    def prepare(self) -> None:
        """Compile what the iterations run, before the state of a run is made or restored."""
        modes = {str(report["enabled"]) for report in self.cycle.report().values()}
        text = None
        if self._on_cuda:
            text = "loading the physics' kernels, compiling ticks and updates"
        elif "compile" in modes:
            text = "compiling the updates"
        # After each program the compiler would look for garbage: 2 s of a start (docs/performance.md).
        with self.startup.phase("compiling", text), torch._dynamo.config.patch(run_gc_after_compile=False):
            self.iteration.rehearse()

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
        before = saved.extra.get("held")
        self._same_held &= same_held(before, self._held, "what is resumed")
        self._held = before or self._held
        try:
            self.env.load_state_dict(saved.state["env"])
            learn = {name: value for name, value in saved.state["learn"].items() if name not in FORMER}
            acting = {name: name.replace(PENDING, POLICY) for name in self.arena if name.startswith(PENDING)}
            learn |= {name: learn[other] for name, other in acting.items() if other in learn}
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
        self.ending.saved_iteration = saved.iteration

    def save(self) -> None:
        """Write a checkpoint of everything that the next iteration reads."""
        train = self.task.train
        self._settle()  # so the policy that acts next is the policy, and need not be saved twice
        replay = train.checkpoint_replay and self.ending.iteration > 0  # at first there is nothing in it
        learn = {name: value for name, value in self.arena.snapshot().items() if not name.startswith(PENDING)}
        if not replay:
            learn = {name: value for name, value in learn.items() if not name.startswith("ring/")}
        extra = {
            "env_steps": self.ending.env_steps,
            "wall_s": self.wall_s(),
            "replay": replay,
            "versions": self._versions,
            "held": self._held,
        }
        state = {"env": self.env.state_dict(), "learn": learn}
        checkpoint.save(self.run, self.task.name, self.ending.iteration, state, extra, train.keep_checkpoints)
        self.ending.saved_iteration = self.ending.iteration

    def policy(self) -> dict[str, Tensor]:
        """Return the policy's tensors by name, for evaluation."""
        self._settle()
        return {name: value for name, value in self.arena.snapshot().items() if name.startswith(POLICY)}

    @torch.no_grad()
    def _settle(self) -> None:
        """Wait for the device, and let the newest policy act, as the next iteration would."""
        self.iteration.drain()
        self.learner.publish_policy()
        self.iteration.drain()

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
        self.iteration.drain()  # what was made or restored before is there for its streams
        self.iteration.connect()
        self._rows.begin(log, panel)
        steady = False
        while ending.iteration < last and not self._interrupts.requested and not self._out_of_time():
            iteration = ending.iteration + 1
            self._iterate(iteration, steady)
            self._interrupts.defer()  # from the first iteration on there is something to save
            ending.iteration = iteration
            ending.env_steps += train.ticks_per_iteration * self.task.num_envs
            if not steady:
                steady = self._become_steady()
            self._recent.append(time.monotonic())
            ending.wall_s = self.wall_s()
            self._look_around()
            if ending.iteration % train.log_interval == 0 or ending.iteration == train.iterations:
                self._rows.take()
            self._rows.write()
            if ending.iteration % train.checkpoint_interval == 0:
                self._rows.write(drain=True)
                log.sync()
                self.save()
        self._rows.write(drain=True)
        ending.wall_s = self.wall_s()
        ending.tail_env_steps_per_sec = self._tail_speed()
        ending.other_processes = self._neighbours.mean() if self._neighbours is not None else None
        self._name_ending(last)
        if ending.saved_iteration != ending.iteration:
            log.sync()
            self.save()

    def _iterate(self, iteration: int, steady: bool) -> None:
        if iteration == self.schedule.warmup + 1:
            with self.iteration.between():
                self.explorer.set_warmup(False)
        if steady:
            self.iteration.run(self.schedule.learns(iteration))
            return
        graph = self.env.resolution.enabled == "graph"
        phase, text = ("ticks", None) if self.iteration.count == 0 else ("capturing", None)
        if graph and self.iteration.count == 0:
            text = "the first ticks"
        with self.startup.phase(phase, text):
            self.iteration.run(self.schedule.learns(iteration))
            self.iteration.drain()

    def _become_steady(self) -> bool:
        """Return whether everything is compiled and captured now; from then on speeds are true."""
        self.startup.reached(FIRST_TICK)
        if not self.iteration.captured:
            return False
        self._rows.write(drain=True)
        self._steady_from = self.iteration.count
        self._neighbours = Neighbours()
        self._rows.start()
        return True

    def _look_around(self) -> None:
        """Tell once where other processes take processors that training counts on."""
        taken = self._neighbours.look() if self._neighbours is not None else None
        if taken is None or (self._on_cuda and not self.bridged):
            return
        text = advice(taken, self._update_threads)
        if text is not None and not self._told_of_neighbours:
            self._told_of_neighbours = True
            warn(text)

    # Time ----------------------------------------------------------------------------------------------------------

    def _out_of_time(self) -> bool:
        budget = self.task.train.time_budget_s
        return budget is not None and self.wall_s() >= budget

    def _progress(self, iteration: int, wall_s: float) -> Progress:
        return Progress(iteration, self.task.train.iterations, wall_s, self._left_s())

    def _left_s(self) -> float | None:
        steps, left = len(self._recent) - 1, None
        if steps > 0:
            rest = self.task.train.iterations - self.ending.iteration
            left = rest * (self._recent[-1] - self._recent[0]) / steps
        budget = self.task.train.time_budget_s
        if budget is not None and self._recent:
            rest_of_budget = max(0.0, budget - self.ending.wall_s)
            left = rest_of_budget if left is None else min(left, rest_of_budget)
        return left

    def _tail_speed(self) -> float | None:
        """Return env steps/s of the last iterations, by the times at which they were over, on a GPU its own."""
        last = self.iteration.count
        first = max(last - TAIL, self._steady_from)
        if first >= last:
            return None
        seconds = self.iteration.seconds(first, last)
        steps = (last - first) * self.task.train.ticks_per_iteration * self.task.num_envs
        return steps / seconds if seconds > 0 else None

    def _name_ending(self, last: int) -> None:
        train, ending = self.task.train, self.ending
        where = f"{ending.iteration} of {counted(train.iterations, 'iteration')}"
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
        bridge = self.iteration.bridge.report() if self.iteration.bridge is not None else {}
        return {
            "task": task.name,
            "reference": task.reference,
            "algo": task.algo,
            "num_envs": task.num_envs,
            "policy": self.learner.policy_report,
            "device": self.device,
            "device_name": manifest.device_name(self.arena.device),
            "driver": manifest.driver_version() if self._on_cuda else None,
            "precision": self._precision | {"updates": "bfloat16" if self.learner.cfg.bf16 else "float32"},
            "backend": self.backend,
            "worlds_on": str(self.env.device),
            "execution": train.execution,
            "seeds": {"train": train.seed, "evaluation": evaluation_seed(train.seed)},
            "ticks_per_iteration": train.ticks_per_iteration,
            "updates_per_iteration": train.updates_per_iteration,
            "total_updates": self.schedule.total_updates,
            "policy_lag": int(self.overlap),
            "overlap": self.overlap,
            "threads": {
                "physics": train.physics_threads or manifest.processors(),
                "tick": train.tick_threads,
                "update": self._update_threads,
            },
            "exact_resume": self._same_held and exact_resume(self.env, self.blockers, train.checkpoint_replay),
            "blockers": None if self.blockers is None else [asdict(blocker) for blocker in self.blockers],
            "simulation": self.env.sim.diagnostics(),
            "programs": {**self.iteration.report(), **self.env.execution_report(), **self.cycle.report(), **bridge},
        }

    def close(self) -> None:
        """Give the physics' threads and memory back."""
        self.env.close()
