"""Benchmark of the learner: whole update cycles, run in every way, against the floor that the machine sets."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tickgraph.bench import _learner_floor as floor
from tickgraph.bench._bars import learner_bars
from tickgraph.bench._case import RING_BYTES
from tickgraph.bench._figures import median_with_interval, times
from tickgraph.bench._gpu import device_times
from tickgraph.bench._learner_paths import PATHS, PRECISIONS, BenchPath, check_precision, chosen
from tickgraph.bench._learner_rig import LearnerRig, LearnerSpec, made_up, spec_of, with_algo
from tickgraph.bench._options import MOST_BATCH, MOST_BLOCKS, Parser, count, picture, say, sizes, target, value_name
from tickgraph.bench._result import new_result, write_result
from tickgraph.bench.report import plot, show
from tickgraph.core.words import counted
from tickgraph.run.precision import set_precision
from tickgraph.sim.platform import resolve_platform
from tickgraph.tasks.registry import load

BLOCK_MS = 150.0
BLOCKS = {"cpu": "6", "cuda": "30"}
BATCHES = {"cpu": "256", "cuda": "256,2048,8192"}
SLOTS = 256  # of the replay, at most: it is filled tick by tick
OVER = "_time_over_eager"

Say = Callable[[str], None]
Rows = tuple[list[dict[str, Any]], dict[str, Any]]


@dataclass
class LearnerCase:
    """One measurement: a number of updates and a batch size, on every path."""

    task: str
    algo: str
    spec: LearnerSpec
    device: torch.device
    paths: Sequence[BenchPath]
    precision: str = "fp32"
    blocks: int = 6
    cycles: int | None = None
    """Timed cycles of each path in a block; by default as many as take 150 ms."""


@dataclass(frozen=True)
class Rates:
    """What the machine does at most, as measured in this run."""

    matmul: float
    """Operations per second."""
    copy: float
    """Bytes per second, read and written."""


class LearnerArm:
    """A learner on one path, compiled and captured, with clocks around its cycles."""

    def __init__(self, case: LearnerCase, path: BenchPath) -> None:
        self.path, self.rig = path, LearnerRig(case.spec, case.device, path)
        self.rig.write(made_up(case.spec, case.spec.slots, case.device))
        self.rig.capture()

    def play(self, cycles: int) -> list[float]:
        """Run cycles; returns the milliseconds of each, on a GPU between their ends on the device's clock."""
        rig = self.rig
        if rig.stream is None:
            found = []
            for _ in range(cycles):
                start = time.perf_counter_ns()
                rig.run()
                found.append((time.perf_counter_ns() - start) / 1e6)
            return found
        return device_times(rig.run, cycles, rig.stream)

    def nodes(self) -> int | None:
        """Return the nodes of the cycle's graph, of its largest one where cycles are not all alike."""
        found = [graph.report()["nodes"] for graph in self.rig.graphs.values()]
        return max((int(str(nodes)) for nodes in found if nodes is not None), default=None)

    def counters(self) -> tuple[int, ...]:
        """Return the updates so far of critic, actor and temperature."""
        self.rig.wait()
        names = ("critic_adam/steps", "actor_adam/steps", "alpha_adam/steps")
        return tuple(int(self.rig.arena[f"learner/{name}"]) for name in names)


def measure(case: LearnerCase, rates: Rates, say: Say) -> Rows:
    """Measure one case.

    Args:
        case: what to measure.
        rates: of the machine.
        say: told of progress.

    Returns:
        One row a path, and the case's ratios.
    """
    spec = case.spec
    updates, batch = spec.updates, spec.algo.batch_size
    arms = {}
    for path in case.paths:
        say(f"{case.task}, {counted(updates, 'update')} of batch {batch}: building {path.name}")
        arms[path.name] = LearnerArm(case, path)
    trial = max(times(arm.play(3)[1:])["median_ms"] for arm in arms.values())
    cycles = case.cycles or max(4, min(64, round(BLOCK_MS / trial)))
    say(f"  {counted(case.blocks, 'block')} of {counted(cycles, 'cycle')} of at most about {trial:.1f} ms")
    samples: dict[str, list[float]] = {name: [] for name in arms}
    sums: dict[str, list[float]] = {name: [] for name in arms}
    before = {name: arm.counters() for name, arm in arms.items()}
    for block in range(case.blocks):
        for name in arms if block % 2 == 0 else reversed(arms):
            durations = arms[name].play(1 + cycles)[1:]  # the first one leads in
            samples[name] += durations
            sums[name].append(sum(durations))
    least = floor.cycle(next(iter(arms.values())).rig.learner, updates, batch)
    flops_ms, bytes_ms = floor.floor_ms(least, rates.matmul, rates.copy)
    keys = {
        "task": case.task,
        "backend": "none",  # there is no physics in it
        "device": str(next(iter(arms.values())).rig.device),
        "num_envs": spec.num_envs,
        "scenario": f"{case.algo} {case.precision}, {counted(updates, 'update')} of batch {batch}",
    }
    facts = {
        "algo": case.algo, "updates": updates, "batch_size": batch, "policy_period": spec.algo.policy_period,
        "precision": case.precision, "ticks": case.blocks * cycles, "blocks": case.blocks,
        "floor_ms": max(flops_ms, bytes_ms),
        **dict.fromkeys(("host_syncs_per_tick", "graph_launches_per_tick", "allocated_bytes_delta")),
    }  # fmt: skip
    rows = []
    total = case.blocks * (1 + cycles)
    for name, arm in arms.items():
        figures = times(samples[name])
        done = (after - earlier for after, earlier in zip(arm.counters(), before[name], strict=True))
        made = dict(zip(("critic_updates", "actor_updates", "temperature_updates"), done, strict=True))
        rows.append(
            {**keys, "arm": name, **figures, **facts, **{key: value / total for key, value in made.items()},
             "graph_nodes": arm.nodes(), "over_floor": figures["median_ms"] / facts["floor_ms"],
             "programs": arm.rig.cycle.report()}
        )  # fmt: skip
    ratio = {
        **keys,
        **ratios(sums, rows, case),
        "floor_ms": facts["floor_ms"], "floor_flops_ms": flops_ms, "floor_bytes_ms": bytes_ms,
        "gflop": least.flops / 1e9, "gbyte": least.bytes / 1e9,
        "matmul_tflops": rates.matmul / 1e12, "copy_gb_per_s": rates.copy / 1e9,
    }  # fmt: skip
    return rows, ratio


def ratios(sums: dict[str, list[float]], rows: Sequence[dict[str, Any]], case: LearnerCase) -> dict[str, Any]:
    """Return each path's time over the eager one's by blocks, the fastest path over the floor, and the bars."""
    found: dict[str, Any] = {}
    best = min(rows, key=lambda row: row["median_ms"])
    for name in sums:
        if name != "eager" and "eager" in sums:
            blocks = [a / b for a, b in zip(sums[name], sums["eager"], strict=True)]
            found[f"{name}{OVER}"], found[f"{name}{OVER}_ci95"] = median_with_interval(blocks)
    found |= {"fastest": best["arm"], "fastest_ms": best["median_ms"], "over_floor": best["over_floor"]}
    required, aim = learner_bars(case.task, case.algo, case.device.type, best["updates"], best["batch_size"])
    found |= {"learner_bar": required, "learner_aim": aim}
    found["learner_bar_met"] = None if required is None else best["median_ms"] <= required
    found["learner_aim_met"] = None if aim is None else best["median_ms"] <= aim
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tickgraph bench learner` with the words after it; returns the exit code.

    Raises:
        TickgraphError: an argument is wrong, or a path cannot be had.
    """
    options = _parser().parse_args(argv)
    device = torch.device(resolve_platform(options.device, "auto").device)
    task = load(options.task)
    if options.algo is not None:
        task.use(options.algo)
    own = "bf16" if task.train.algo.in_bf16(device) else "fp32"
    if own == "fp32" and device.type == "cuda" and task.train.matmul_precision == "high":
        own = "tf32"
    precision = check_precision(options.precision or own, device)
    spec = spec_of(task)
    slot = 4 * spec.num_envs * (sum(spec.dims.values()) + spec.actions)
    spec = replace(spec, slots=max(spec.algo.n_step + 2, min(spec.slots, SLOTS, RING_BYTES // 4 // slot)))
    updates, batches = (
        sizes("--updates", options.updates),
        sizes("--batch-size", options.batch_size or BATCHES[device.type], least=2, most=MOST_BATCH),
    )
    period, paths = count("--policy-period", options.policy_period), chosen(options.paths, device, task.algo)
    blocks = count("--blocks", options.blocks or BLOCKS[device.type], most=MOST_BLOCKS)
    cycles = None if options.cycles is None else count("--cycles", options.cycles)
    if device.type == "cpu":
        torch.set_num_threads(task.train.update_threads or torch.get_num_threads())
    set_precision("high" if precision == "tf32" else "highest", device)
    say(f"how fast {device} multiplies and copies")
    rates = Rates(
        floor.matmul_rate(device, torch.bfloat16 if precision == "bf16" else torch.float32), floor.copy_rate(device)
    )
    done: list[Rows] = []
    for batch in batches:
        for number in updates:
            made = with_algo(
                replace(spec, updates=number), batch_size=batch, policy_period=period, bf16=precision == "bf16"
            )
            case = LearnerCase(task.name, task.algo, made, device, paths, precision, blocks, cycles)
            done.append(measure(case, rates, say))
            gc.collect()  # the rings of this case make room for the next one's
            if options.json is not None:
                write_result(options.json, _result(done), whole=False)
    whole = _result(done)
    if options.json is not None:
        write_result(options.json, whole)
    if options.plot is not None:
        plot([whole], options.plot)
    show([whole])
    return 0


def _result(done: Sequence[Rows]) -> dict[str, Any]:
    return new_result("learner", [row for rows, _ in done for row in rows], [ratio for _, ratio in done])


def _parser() -> Parser:
    parser = Parser(
        prog="tickgraph bench learner",
        description="Time whole update cycles in every way of running them, block by block in turn, against the floor "
        "that the networks' sizes and the machine's own rates set.",
    )
    parser.add_argument("task", metavar="TASK", nargs="?", default="g1_walk_flat", help="default: g1_walk_flat")
    for name, default, text in (
        ("algo", None, "flashsac or sac, with the task's settings for it (default: the task's)"),
        ("updates", "2,8", "critic updates in a cycle, separated by commas (default: 2,8)"),
        ("batch-size", None, "transitions in an update, separated by commas (default: 256,2048,8192; on a CPU 256)"),
        ("policy-period", "2", "critic updates to one of the actor (default: 2)"),
        ("paths", None, f"of {','.join(PATHS)} or all (default: those that can be had, without graph's parts)"),
        ("blocks", None, "alternating blocks (default: 30 on a GPU, 6 on a CPU)"),
        ("cycles", None, "timed cycles of each path in a block (default: what takes 150 ms)"),
        ("precision", None, f"of the products, one of {', '.join(PRECISIONS)} (default: the task's)"),
        ("device", "auto", "cpu, cuda or auto (a GPU where one can be used)"),
    ):
        shown = "NAME" if name == "precision" else value_name(name)  # one alone
        parser.add_argument(f"--{name}", default=default, metavar=shown, help=text)
    parser.add_argument("--json", type=target, metavar="FILE", help="write the result; - is standard output")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw it (png, svg or pdf)")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    return parser
