"""Benchmark of collection: a whole tick (policy and replay write in it) against the bare physics of the same states."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.bench import _measure_gpu
from tickgraph.bench import _replay as replay
from tickgraph.bench._bars import AA_LIMIT, ADVANCE_BAR, bars
from tickgraph.bench._blocks import State, play_blocks
from tickgraph.bench._case import SCENARIOS, Case, Collector, build
from tickgraph.bench._figures import median_with_interval, resident_bytes, times
from tickgraph.bench._options import (
    MOST_BLOCKS,
    MOST_SEED,
    MOST_WORLDS,
    Parser,
    count,
    names,
    picture,
    say,
    sizes,
    target,
    value_name,
)
from tickgraph.bench._parts import take_apart
from tickgraph.bench._replay import TracedTick
from tickgraph.bench._result import new_result, write_result
from tickgraph.bench.report import plot, show
from tickgraph.core.bounds import MOST_REPEATS, MOST_THREADS
from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.run.neighbours import warn_of_threads
from tickgraph.sim.platform import resolve_platform
from tickgraph.tasks.registry import load

if TYPE_CHECKING:
    from tickgraph.run.config import Task

ARMS = ("tick", "physics", "advance", "tick_aa")
BLOCK_MS = 250.0  # short: the machine's speed drifts, and only neighbours compare
BLOCKS = {"cpu": 60, "cuda": 30}
WIDTHS = {"cpu": "256", "cuda": "1024,4096,8192"}
PART_BLOCKS = 4  # blocks' worth of ticks that are taken apart, after all arms

Say = Callable[[str], None]
Rows = tuple[list[dict[str, Any]], dict[str, Any]]


def measure(task: Task, case: Case, say: Say = lambda text: None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure one case.

    Args:
        task: changed in place where the scenario asks for it.
        case: what to measure.
        say: told of progress, one line at a time.

    Returns:
        One row an arm with the keys of `tickgraph.bench._result.ROW`, and the case's ratios.

    Raises:
        TickgraphError: the configuration is wrong, or an arm left the recorded trace.
    """
    say(f"{case.task}, {counted(case.num_envs, 'world')}, {case.scenario}: building, compiling, settling")
    torch.set_num_threads(case.torch_threads or task.train.tick_threads)
    collector = build(task, case)
    env = collector.env
    memory = _memory(collector, case)
    trial = replay.record(env, 4)
    tick_ms = times(replay.play_backend(env, trial)[1:])["median_ms"]
    bare = replay.choose(env, trial)
    collector.load(collector.state())
    ticks = case.ticks_per_block or max(4, min(64, round(BLOCK_MS / tick_ms)))
    blocks = f"{counted(case.blocks, 'block')} of {counted(ticks, 'tick')}"
    say(f"{blocks} of about {tick_ms:.1f} ms, {len(ARMS)} arms and a recording each")

    def play(arm: str, trace: list[TracedTick], start: State, end: State) -> list[float]:
        if arm == "physics":
            return bare.play(trace)
        if arm == "advance":
            return replay.play_backend(env, trace)
        collector.load(start)
        return _play_ticks(env, len(trace), end)

    played = play_blocks(collector, ARMS, case.blocks, ticks, functools.partial(replay.record, env), play)
    case_keys = {
        "task": case.task,
        "backend": case.backend,
        "device": str(env.device),
        "num_envs": env.num_envs,
        "scenario": case.scenario,
    }
    facts = {
        "ticks": case.blocks * ticks,
        # A CPU has neither: the host is the device. Null says that nothing was measured.
        "host_syncs_per_tick": None,
        "graph_launches_per_tick": None,
        "allocated_bytes_delta": None,
        "memory_ticks": None,
        "moved_tensors": None,
        "parts": None,
        "blocks": case.blocks,
        "resets_per_tick": played.resets / (case.blocks * ticks),
        "physics_threads": bare.threads,
        "torch_threads": torch.get_num_threads(),
        "execution": sorted({str(report["enabled"]) for report in env.execution_report().values()}),
        "seed": case.seed,
    }
    rows = []
    for arm in ARMS:
        figures = times(played.samples[arm])
        rows.append(
            {**case_keys, "arm": arm, **figures, **facts, "env_steps_per_s": env.num_envs * 1e3 / figures["mean_ms"]}
        )
    rows[0] |= memory
    rows[0]["parts"] = take_apart(env, PART_BLOCKS * ticks)
    env.close()
    return rows, {**case_keys, **_ratios(played.sums, case), "physics_persistent": bare.persistent}


def _memory(collector: Collector, case: Case) -> dict[str, Any]:
    """Play the first ticks; returns by how many bytes resident memory grew after tick `settle`, and what moved."""
    env = collector.env
    for _ in range(case.settle):
        env.tick()
    if case.memory_ticks <= case.settle:
        return {}
    addresses, before = collector.addresses(), resident_bytes()
    for _ in range(case.memory_ticks - case.settle):
        env.tick()
    after = resident_bytes()
    moved = sum(address != addresses[name] for name, address in collector.addresses().items())
    delta = None if before is None or after is None else after - before
    return {"allocated_bytes_delta": delta, "memory_ticks": [case.settle, case.memory_ticks], "moved_tensors": moved}


def _play_ticks(env: Env, ticks: int, end: dict[str, Tensor]) -> list[float]:
    """Return the milliseconds of each whole tick; raises TickgraphError where they do not end in the state `end`."""
    durations = []
    for _ in range(ticks):
        start = time.perf_counter_ns()
        env.tick()
        durations.append((time.perf_counter_ns() - start) / 1e6)
    for name, value in env.sim.state_dict().items():
        if not torch.equal(torch.nan_to_num(value), torch.nan_to_num(end[f"sim/{name}"])):
            raise TickgraphError(
                f"played twice from one state, the ticks end in different states ({name}); "
                "a term has state outside the arena: see `tickgraph check`"
            )
    return durations


def _ratios(sums: dict[str, list[float]], case: Case) -> dict[str, Any]:
    """Return medians of block ratios with their intervals, and which bars they meet: by the interval's upper end."""

    def ratio(over: str, under: str) -> tuple[float, tuple[float, float]]:
        return median_with_interval([a / b for a, b in zip(sums[over], sums[under], strict=True)])

    tick, tick_interval = ratio("tick", "physics")
    advance, advance_interval = ratio("advance", "physics")
    aa, aa_interval = ratio("tick_aa", "tick")
    bar, _ = bars(case.task, case.backend, case.num_envs, case.scenario)
    return {
        "tick_over_physics": tick,
        "ci95": tick_interval,
        "advance_over_physics": advance,
        "advance_ci95": advance_interval,
        "aa": aa,
        "aa_ci95": aa_interval,
        "aa_within_2_percent": abs(aa - 1.0) <= AA_LIMIT,
        "tick_bar": bar,
        "tick_bar_met": None if bar is None else tick_interval[1] <= bar,
        "advance_bar": ADVANCE_BAR,
        "advance_bar_met": advance_interval[1] <= ADVANCE_BAR,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tickgraph bench collector` with the words after it; returns the exit code.

    Raises:
        TickgraphError: an argument is wrong, or the benchmark cannot be run.
    """
    options = _parser().parse_args(argv)
    place = resolve_platform(options.device, options.backend)
    if place.note is not None:
        say(place.note)
    if place.bridged:
        raise TickgraphError(
            f"bench collector measures worlds and policy on one device, not {place.worlds} beside {place.device}; "
            f"use --device {place.worlds}, or `tickgraph bench train` for both"
        )
    on_gpu = place.device.startswith("cuda")
    if on_gpu and options.execution != "auto":
        raise TickgraphError(f"--execution is {options.execution!r}; on a GPU the arms are modes: choose with --arms")
    for name in ("physics_threads", "torch_threads"):
        if on_gpu and getattr(options, name) != "auto":
            raise TickgraphError(
                f"--{name.replace('_', '-')} is of a CPU, and {place.device} is measured; leave it out"
            )
    arms = _measure_gpu.DEFAULT_ARMS if on_gpu else ()
    if options.arms is not None:
        arms = names(options.arms)
        if not on_gpu and sorted(arms) != sorted(ARMS):
            raise TickgraphError(
                f"--arms is {options.arms!r}, but on a CPU the arms are {', '.join(ARMS)}, all of them; leave it out"
            )
    blocks = _optional("--blocks", options.blocks, most=MOST_BLOCKS) or BLOCKS["cuda" if on_gpu else "cpu"]
    memory_ticks = _optional("--memory-ticks", options.memory_ticks, Case.settle + 1) or (1000 if on_gpu else 200)
    threads = {
        name: _optional(f"--{name.replace('_', '-')}", getattr(options, name), most=MOST_THREADS)
        for name in ("physics_threads", "torch_threads")
    }
    warn_of_threads(*threads.values())
    given = WIDTHS["cuda" if on_gpu else "cpu"] if options.num_envs == "auto" else options.num_envs
    widths = sizes("--num-envs", given, most=MOST_WORLDS)
    done: list[Rows] = []

    def result(rows: Sequence[Rows]) -> dict[str, Any]:
        return new_result("collector", [row for found, _ in rows for row in found], [ratio for _, ratio in rows])

    def keep(rows: Rows) -> None:
        if options.json is not None:
            write_result(options.json, result([*done, rows]), whole=False)

    for width in widths:
        case = Case(
            task=options.task,
            num_envs=width,
            backend=place.backend,
            device=place.device,
            execution="eager" if on_gpu else options.execution,
            arms=arms,
            scenario=options.scenario,
            blocks=blocks,
            ticks_per_block=_optional("--ticks-per-block", options.ticks_per_block),
            memory_ticks=memory_ticks,
            **threads,
            seed=count("--seed", options.seed, least=0, most=MOST_SEED),
        )
        task = load(options.task)
        rows = _measure_gpu.measure(task, case, say, keep) if on_gpu else measure(task, case, say)
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
        prog="tickgraph bench collector",
        description="Time a whole control step, policy and replay write in it, against the bare physics of the same "
        "states. Block by block the arms play one recorded trace; see docs/decisions/benchmark-method.md.",
    )
    parser.add_argument("task", metavar="TASK", help="a name of `tickgraph list`, or path/to/task.py:FUNCTION")
    for name, default, text in (
        ("backend", "auto", "mujoco or mjwarp; auto: mjwarp where there is a GPU for it, else mujoco"),
        ("device", "auto", "cpu or cuda; auto: what the backend runs on"),
        ("execution", "auto", "on a CPU: auto, eager or compile"),
        ("num-envs", "auto", "numbers of worlds, separated by commas; auto: 256, on a GPU 1024,4096,8192"),
        ("blocks", "auto", "alternating blocks, 60 on a CPU and 30 on a GPU; bars need at least 30"),
        ("ticks-per-block", "auto", "timed ticks of each arm in a block"),
        ("memory-ticks", "auto", "growth of memory is measured from tick 100 to this one, 200 on a CPU, 1000 on a GPU"),
        ("physics-threads", "auto", "auto: the processors that the process may use"),
        ("torch-threads", "auto", "auto: those that the task's ticks have in training"),
        ("seed", "0", "seed of every random draw"),
    ):
        parser.add_argument(f"--{name}", default=default, metavar=value_name(name), help=f"{text} (default: {default})")
    known, default = ", ".join(_measure_gpu.ARMS), ",".join(_measure_gpu.DEFAULT_ARMS)
    parser.add_argument("--arms", metavar="NAMES", help=f"on a GPU, of {known} (default: {default})")
    parser.add_argument("--scenario", default="normal", choices=SCENARIOS, help="reset-heavy ends 5%% of worlds a tick")
    parser.add_argument("--json", type=target, metavar="FILE", help="write the result; - is standard output")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw it (png, svg or pdf)")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    return parser


def _optional(option: str, text: str, least: int = 1, most: int = MOST_REPEATS) -> int | None:
    return None if text == "auto" else count(option, text, least, most)
