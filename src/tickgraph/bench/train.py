"""Benchmark of training: whole iterations, ticks and updates, in each mode; arms alternate in blocks in one process."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tickgraph.bench._apart import measure_apart
from tickgraph.bench._bars import ENQUEUE_MS, GRAPH_OVER_EAGER, iteration_bars
from tickgraph.bench._figures import median_with_interval, summary, times
from tickgraph.bench._options import (
    MOST_BATCH,
    MOST_BLOCKS,
    MOST_WORLDS,
    Parser,
    count,
    picture,
    say,
    sizes,
    target,
    value_name,
)
from tickgraph.bench._proof import ITERATIONS, capture_proof, memory_proof
from tickgraph.bench._result import new_result, write_result
from tickgraph.bench._train_arm import COUNTERS, MODES, TrainArm
from tickgraph.bench.report import plot, show
from tickgraph.core.bounds import MOST_REPEATS
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.words import counted
from tickgraph.learn.path import KERNELS
from tickgraph.run.config import Task
from tickgraph.run.settings import recheck
from tickgraph.sim.platform import Platform, resolve_platform
from tickgraph.tasks.registry import load

ARMS = ("graph", "compile", "eager")
"""Those that run where none is named."""
PARTS = ("learner_train_ms", "collector_cycle_ms", "iter_ms")
MEMORY_ITERATIONS = (10, 1000)
ENQUEUE_BURSTS = 10

Say = Callable[[str], None]
Rows = tuple[list[dict[str, Any]], dict[str, Any]]


@dataclass
class TrainCase:
    """One measurement: a task with one number of worlds and of updates, by mode.

    ``tail`` iterations, the last ones of each block, count for `tail_env_steps_per_sec` and for the figures of `PARTS`.
    """

    task: str
    num_envs: int
    place: Platform
    arms: tuple[str, ...]
    blocks: int = 3
    iterations: int = 100
    tail: int = 100
    updates: int | None = None
    batch_size: int | None = None
    overlap: bool | None = None
    proofs: bool = True
    algo: str | None = None
    policy_frequency: int | None = None
    """Critic updates to one of the actor."""
    replay_n: int | None = None
    """Ticks that the replay holds, each of all worlds."""
    learning_starts: int | None = None
    learner_kernels: str | None = None
    """Of all arms but compile-loss, which has autograd."""


def configure(task: Task, case: TrainCase) -> Task:
    """Write a case's settings into its task; returns it."""
    if case.algo is not None:
        task.use(case.algo)
    train = task.train
    train.num_envs, train.device, train.backend = case.num_envs, case.place.device, case.place.backend
    train.overlap = case.overlap
    train.learning_starts = min(train.learning_starts, 50)  # enough to sample from; more would only be waited for
    if case.learning_starts is not None:
        train.learning_starts = case.learning_starts
    if case.replay_n is not None:
        train.replay_slots = case.replay_n
    if case.learner_kernels is not None:
        train.learner_kernels = case.learner_kernels
    if case.policy_frequency is not None:
        train.algo.policy_period = case.policy_frequency
    if case.updates is not None:
        train.updates_per_iteration = case.updates
    if case.batch_size is not None:
        train.algo.batch_size = case.batch_size
    recheck(task)
    return task


@dataclass
class Played:
    """What an arm has played so far."""

    arm: TrainArm
    rows: list[dict[str, Any]] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    """Updates by kind, as the device counted them."""
    crossings: dict[str, float] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)
    """Env steps per second of the last iterations of each block."""
    halves: list[tuple[float, float]] = field(default_factory=list)
    """Milliseconds of ticks and updates alone, after each block."""
    enqueued: list[float] = field(default_factory=list)

    def play(self, block: int, case: TrainCase) -> None:
        """Play a block, and what is timed behind it."""
        arm = self.arm
        before, crossed = arm.counters(), arm.crossings()
        found = arm.play_rows(case.iterations)
        ticks = arm.iteration.ticks * (case.iterations + 1)
        self.crossings = {f"{k}_per_tick": (n - crossed[k]) / ticks for k, n in arm.crossings().items()}
        self.made.update({name: total - before[name] for name, total in arm.counters().items()})
        self.rows += [{"block": block, "iteration": i + 1, **row} for i, row in enumerate(found)]
        tail = [row["iter_ms"] for row in found[-case.tail :]]
        self.speeds.append(arm.steps * len(tail) * 1e3 / sum(tail))
        self.halves.append((arm.collector_ms(), arm.learner_ms()))
        self.enqueued += arm.enqueue(ENQUEUE_BURSTS)

    def row(self, case: TrainCase, keys: dict[str, Any]) -> dict[str, Any]:
        """Return the arm's row of the result, which begins with some keys."""
        arm = self.arm
        collector, learner = (float(value) for value in np.median(np.asarray(self.halves), axis=0))
        last = [row for row in self.rows if row["iteration"] > case.iterations - case.tail]
        blocks = len(self.speeds)
        updates = {name: self.made[name] / (blocks * (case.iterations + 1)) for name in COUNTERS}  # one leads in
        row = {**keys, "arm": arm.mode, **times([row["iter_ms"] for row in self.rows]), **arm.facts()}
        return row | {
            "ticks": len(self.rows),
            **{name: summary([row[name] for row in last]) for name in PARTS},
            "training_config": {**updates, "blocks": blocks, **training_config(arm, case)},
            "tail_env_steps_per_sec": float(np.median(self.speeds)),
            "tail_env_steps_per_sec_blocks": self.speeds,
            "env_steps_per_s": float(np.median(self.speeds)),
            "steps_per_iteration": arm.steps,
            "collector_ms": collector,
            "learner_ms": learner,
            "overlap_share": overlap_share(collector, learner, row["median_ms"]) if arm.iteration.overlap else None,
            # Where the host plays the ticks, it does more than enqueue.
            "enqueue_ms": float(np.median(self.enqueued)) if arm.cuda and not self.crossings else None,
            **self.crossings,
            **dict.fromkeys(("host_syncs_per_tick", "graph_launches_per_tick", "allocated_bytes_delta")),
            "rows_all": self.rows,
            "rows": last,
        }


def measure(case: TrainCase, say: Say, keep: Callable[[Rows], None] = lambda rows: None) -> Rows:
    """Measure one case.

    Args:
        case: what to measure.
        say: told of progress.
        keep: is given the figures so far whenever an arm has played a block, so that whoever stops a long measurement,
            or a profiler that fails, costs no more than what was under way.

    Returns:
        One row an arm, and the case's ratios.
    """
    played = list[Played]()
    for mode in case.arms:
        note = ", always with train.learner_kernels autograd" if mode == "compile-loss" else ""
        say(f"{case.task}, {counted(case.num_envs, 'world')}: building and compiling arm {mode}{note}")
        played.append(Played(TrainArm(configure(load(case.task), case), mode)))
    for block in range(case.blocks):
        for one in played if block % 2 == 0 else reversed(played):
            say(f"  block {block + 1} of {case.blocks}: {counted(case.iterations, 'iteration')} of arm {one.arm.mode}")
            one.play(block, case)
            rows, ratio = figures(case, played)
            keep((rows, ratio))
    for row, one in zip(rows, played, strict=True):
        arm = one.arm
        if arm.mode == "graph" and case.proofs and not arm.crossings():
            say("  proofs: a trace of iterations, and memory over many")
            proof = capture_proof(arm.iteration.run, arm.graphs)
            arm.iteration.drain()
            memory = memory_proof(arm.iteration.run, *MEMORY_ITERATIONS)
            row |= {
                "host_syncs_per_tick": proof["host_syncs"] / ITERATIONS / arm.iteration.ticks,
                "graph_launches_per_tick": proof["graph_launches"] / ITERATIONS / arm.iteration.ticks,
                "allocated_bytes_delta": memory["growth"]["torch_bytes"],
            }
            ratio |= {"capture_proof": proof, "memory_proof": memory}
    for one in played:
        one.arm.close()
    return rows, ratio


def figures(case: TrainCase, played: Sequence[Played]) -> Rows:
    """Return a row for each arm that has played a block, and the case's ratios of the blocks that all of these have."""
    begun = [one for one in played if one.speeds]
    iteration, train = begun[0].arm.iteration, begun[0].arm.trainer.task.train
    keys = {"task": case.task, "backend": case.place.backend, "device": str(iteration.device)}
    keys |= {"num_envs": case.num_envs, "scenario": f"training, {counted(train.updates_per_iteration, 'update')}"}
    rows = [one.row(case, keys) for one in begun]
    shared = min(len(one.speeds) for one in begun)
    speeds = {one.arm.mode: one.speeds[:shared] for one in begun}
    return rows, {**keys, **ratios(speeds, rows), **learner_ratios(rows)}


def training_config(arm: TrainArm, case: TrainCase) -> dict[str, Any]:
    """Return an arm's settings, and whether its gradients were written out or autograd's."""
    train = arm.trainer.task.train
    return {
        "updates": train.updates_per_iteration,
        "policy_frequency": train.algo.policy_period,
        "batch_size": train.algo.batch_size,
        "replay_n": train.replay_slots,
        "learning_starts": train.learning_starts,
        "num_envs": arm.trainer.env.num_envs,
        "ticks_per_iteration": train.ticks_per_iteration,
        "iterations": case.iterations,
        "summary_last": case.tail,
        "seed": train.seed,
        "algo": arm.trainer.task.algo,
        "execution": train.execution,
        "compile_scope": train.compile_scope,
        "learner_kernels": train.learner_kernels,
        "gradients": "written" if arm.trainer.learner.switches.manual else "autograd",
    }


def learner_ratios(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return each arm's time of the updates over the eager arm's, and the bars on it and on a whole iteration."""
    by_arm = {row["arm"]: row for row in rows}
    found: dict[str, Any] = {}
    for arm, row in by_arm.items():
        if arm != "eager" and "eager" in by_arm:
            eager = by_arm["eager"]["learner_train_ms"]["mean"]
            found[f"{arm}_learner_over_eager"] = row["learner_train_ms"]["mean"] / eager
    first = rows[0]
    config = first["training_config"]
    share, mean, p95 = iteration_bars(
        *(first["task"], first["backend"], first["device"], first["num_envs"]),
        *(config["batch_size"], config["updates"]),
    )
    if share is not None and "compile_learner_over_eager" in found:
        compiled = found["compile_learner_over_eager"]
        found |= {"compile_learner_bar": share, "compile_learner_met": compiled <= share}
        if "graph" in by_arm:
            found["graph_learner_met"] = found["graph_learner_over_eager"] <= compiled
    best = min(rows, key=lambda row: row["iter_ms"]["mean"])
    for name, bar in (("mean", mean), ("p95", p95)):
        if bar is not None:
            found |= {f"iter_{name}_bar": bar, f"iter_{name}_met": best["iter_ms"][name] <= bar}
    return found


def overlap_share(collector: float, learner: float, iteration: float) -> float:
    """Return how much of the shorter half ran beside the longer one: 0 in turn, 1 wholly hidden; ms each."""
    return (collector + learner - iteration) / min(collector, learner)


def ratios(speeds: dict[str, list[float]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first arm's speed over each other arm's, block by block, as median and interval, and the bars."""
    found: dict[str, Any] = {}

    def ratio(over: str, under: str) -> tuple[float, tuple[float, float]]:
        return median_with_interval([a / b for a, b in zip(speeds[over], speeds[under], strict=True)])

    fastest = rows[0]["arm"]
    for mode in speeds:
        if mode != fastest:
            found[f"{fastest}_over_{mode}"], found[f"{fastest}_over_{mode}_ci95"] = ratio(fastest, mode)
    if "graph_over_eager" in found:
        found["graph_over_eager_bar"] = GRAPH_OVER_EAGER
        # Three blocks have no interval worth the name, so the middle one decides.
        found["graph_over_eager_met"] = found["graph_over_eager"] >= GRAPH_OVER_EAGER
    if rows[0].get("enqueue_ms") is not None and fastest == "graph":
        found |= {"enqueue_bar": ENQUEUE_MS, "enqueue_met": rows[0]["enqueue_ms"] <= ENQUEUE_MS}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tickgraph bench train` with the words after it; returns the exit code.

    Raises:
        TickgraphError: an argument is wrong, or an arm cannot be had.
    """
    options = _parser().parse_args(argv)
    place = resolve_platform(options.device, options.backend)
    if place.note is not None:
        say(place.note)
    default = ARMS if place.device.startswith("cuda") else ARMS[1:]
    given = default if options.arms is None else tuple(name.strip() for name in options.arms.split(","))
    for name in given:
        if name not in MODES:
            raise TickgraphError(f"--arms has {name!r}; {nearby(name, MODES) or 'the arms are ' + ', '.join(MODES)}")
    arms = tuple(mode for mode in MODES if mode in given)
    if options.overlap and "graph" not in arms:
        raise TickgraphError(f"--overlap takes CUDA graphs, and the arms are {', '.join(arms)}; leave it out")
    kernels = options.learner_kernels
    if kernels is not None and kernels not in KERNELS:
        hint = nearby(kernels, KERNELS) or f"use one of {', '.join(KERNELS)}"
        raise TickgraphError(f"--learner-kernels is {kernels!r}; {hint}")
    task = load(options.task)
    if options.algo is not None:
        task.use(options.algo)
    widths = str(task.num_envs) if options.num_envs is None else options.num_envs
    done: list[Rows] = []

    def result(rows: Sequence[Rows]) -> dict[str, Any]:
        return new_result("train", [row for found, _ in rows for row in found], [ratio for _, ratio in rows])

    def keep(rows: Rows) -> None:
        if options.json is not None:
            write_result(options.json, result([*done, rows]), whole=False)

    def optional(name: str, least: int = 1, most: int = MOST_REPEATS) -> int | None:
        text = getattr(options, name)
        return None if text is None else count(f"--{name.replace('_', '-')}", text, least, most)

    iterations = count("--iterations", options.iterations)
    numbers = (None,) if options.updates is None else sizes("--updates", options.updates)
    cases = list(itertools.product(sizes("--num-envs", widths, most=MOST_WORLDS), numbers))
    for width, updates in cases:
        case = TrainCase(
            task=options.task,
            num_envs=width,
            place=place,
            arms=arms,
            blocks=count("--blocks", options.blocks, most=MOST_BLOCKS),
            iterations=iterations,
            tail=min(count("--summary-last", options.summary_last), iterations),
            updates=updates,
            batch_size=optional("batch_size", most=MOST_BATCH),
            overlap=options.overlap,
            proofs=not options.no_proofs,
            algo=options.algo,
            policy_frequency=optional("policy_frequency"),
            replay_n=optional("replay_n"),
            learning_starts=optional("learning_starts", least=0),
            learner_kernels=kernels,
        )
        apart = len(cases) > 1 and place.device.startswith("cuda")
        rows = measure_apart(measure, case, say, keep) if apart else measure(case, say, keep)
        keep(rows)
        done.append(rows)
    whole = result(done)
    if options.json is not None:
        write_result(options.json, whole)
    if options.plot is not None:
        plot([whole], options.plot)
    show([whole])
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="tickgraph bench train",
        description="Time whole training iterations, ticks and updates, in each mode; arms alternate in blocks. "
        "Each runs what `tickgraph train --execution MODE` computes; compile-loss, which compiles the losses alone, "
        "always runs the plain learner (train.learner_kernels autograd).",
    )
    parser.add_argument("task", metavar="TASK", help="a name of `tickgraph list`, or path/to/task.py:FUNCTION")
    for name, default, text in (
        ("arms", None, "of graph,compile,compile-loss,eager (default: graph, where there is a GPU, compile and eager)"),
        ("blocks", "3", "alternating blocks (default: 3)"),
        ("num-envs", None, "numbers of worlds, separated by commas (default: the task's)"),
        ("iterations", "100", "iterations of each arm in a block (default: 100)"),
        ("summary-last", "100", "how many of a block's last count for the figures of its parts (default: 100)"),
        ("algo", None, "flashsac or sac, with the task's settings for it (default: the task's)"),
        ("updates", None, "critic updates in an iteration, separated by commas (default: the task's)"),
        ("policy-frequency", None, "critic updates to one of the actor (default: the task's)"),
        ("replay-n", None, "ticks that the replay holds (default: the task's)"),
        ("learning-starts", None, "ticks of random actions before the first update (default: the task's, at most 50)"),
        ("batch-size", None, "transitions in an update (default: the task's)"),
        ("learner-kernels", None, f"of {','.join(KERNELS)}, for all arms but compile-loss (default: the task's)"),
        ("backend", "auto", "mujoco, mjwarp or auto (the one for the device)"),
        ("device", "auto", "cpu, cuda or auto (a GPU where one can be used)"),
    ):
        parser.add_argument(f"--{name}", default=default, metavar=value_name(name), help=text)
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--overlap", dest="overlap", action="store_true", default=None, help="updates beside the ticks, in arm graph"
    )
    either.add_argument("--no-overlap", dest="overlap", action="store_false", help="updates after the ticks")
    parser.add_argument("--no-proofs", action="store_true", help="leave out the trace and the memory over iterations")
    parser.add_argument("--json", type=target, metavar="FILE", help="write the result; - is standard output")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw it (png, svg or pdf)")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    return parser
