"""The collector's benchmark on a GPU: arms alternate in blocks, events time them, traces count what the host does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tickgraph.bench import _replay as replay
from tickgraph.bench._bars import AA_LIMIT, bars
from tickgraph.bench._blocks import Record, State, play_blocks
from tickgraph.bench._case import Case, Collector, build
from tickgraph.bench._figures import median_with_interval, times
from tickgraph.bench._gpu import ARMS, DEFAULT_ARMS, TICK_ARMS, PhysicsArm, TickArm
from tickgraph.bench._proof import ITERATIONS, device_memory, growth, judge
from tickgraph.bench._replay import TracedTick
from tickgraph.bench._trace import host_syncs, record
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.graph import WARM_UP
from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.run.config import Task

BLOCK_MS = 120.0
EAGER_TRACE_TICKS = 10  # a tick that is not captured makes a thousand calls; ten of them say enough

Say = Callable[[str], None]
Rows = tuple[list[dict[str, Any]], dict[str, Any]]


def measure(task: Task, case: Case, say: Say, keep: Callable[[Rows], None] = lambda rows: None) -> Rows:
    """Measure one case on a GPU; see `tickgraph.bench.collector.measure`.

    Args:
        task, case, say: what to measure, and who is told.
        keep: is given what is there before the traces are taken, so that a profiler that fails costs no times.
    """
    names = check_arms(case.arms)
    primary = names[0]
    say(f"{case.task}, {counted(case.num_envs, 'world')}, {case.scenario}: building {', '.join(names)}")
    collector = build(task, case)
    env = collector.env
    stream = torch.cuda.Stream(env.device)
    ticks_of = {name: TickArm(env, name, stream) for name in names if name in TICK_ARMS}
    for name, arm in ticks_of.items():
        say(f"  {name}: compiling and capturing")
        arm.play(4)
    physics = PhysicsArm(env, stream)
    physics.play(replay.record(env, 4))
    memory = _memory(ticks_of[primary], collector, case)
    recording = _recording(env, ticks_of[primary])
    tick_ms = times(ticks_of[primary].play(4)[1:])["median_ms"]
    ticks = case.ticks_per_block or max(4, min(32, round(BLOCK_MS / tick_ms)))
    blocks = f"{counted(case.blocks, 'block')} of {counted(ticks, 'tick')}"
    say(f"  {blocks} of about {tick_ms:.2f} ms, {counted(len(names), 'arm')} and a recording each")
    strays = 0.0

    def play(name: str, trace: list[TracedTick], start: State, end: State) -> list[float]:
        nonlocal strays
        if name == "physics":
            durations = physics.play(trace)
            strays = max(strays, physics.stray_share)
            return durations
        collector.load(start)
        return ticks_of.get(name, ticks_of[primary]).play(len(trace))

    played = play_blocks(collector, names, case.blocks, ticks, recording, play)
    case_keys = {
        "task": case.task,
        "backend": env.backend_name,
        "device": str(env.device),
        "num_envs": env.num_envs,
        "scenario": case.scenario,
    }
    facts = {
        "ticks": case.blocks * ticks,
        "blocks": case.blocks,
        "resets_per_tick": played.resets / (case.blocks * ticks),
        "seed": case.seed,
        "clock": "device events",
    }
    rows = []
    for name in names:
        figures = times(played.samples[name])
        row = {**case_keys, "arm": name, **figures, **facts, **_NOT_TRACED}
        rows.append(row | {"env_steps_per_s": env.num_envs * 1e3 / figures["mean_ms"], "memory_ticks": None})
    rows[0] |= memory
    ratio = {
        **case_keys,
        **ratios(played.sums, rows, case, env.num_envs),
        "physics_stray_share": strays,
        "solver": _solver(env),
        "capacities": _plain(env.sim.diagnostics()),
    }
    keep((rows, ratio))
    say("  tracing what the host asks of the driver")
    for row in rows:
        if row["arm"] in ticks_of:
            row |= _traced(ticks_of[row["arm"]])
        elif row["arm"] == "physics":
            row["graph_nodes"] = physics.graph.report()["nodes"]
    ratio["capture_proof"] = rows[0].pop("capture_proof", None)
    env.close()
    return rows, ratio


_NOT_TRACED: dict[str, Any] = {
    "host_syncs_per_tick": None,
    "graph_launches_per_tick": None,
    "kernel_launches_per_tick": None,
    "api_calls": None,
    "graph_nodes": None,
    "allocated_bytes_delta": None,
}


def check_arms(arms: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arms in their order; the first is the tick that ratios are of.

    Raises:
        TickgraphError: an arm is unknown, or one that the ratios need is missing.
    """
    for name in arms:
        if name not in ARMS:
            hint = nearby(name, ARMS) or f"the arms on a GPU are {', '.join(ARMS)}"
            raise TickgraphError(f"there is no arm {name!r}; {hint}")
    chosen = tuple(name for name in ARMS if name in (arms or DEFAULT_ARMS))
    if "physics" not in chosen or chosen[0] not in TICK_ARMS:
        raise TickgraphError(
            f"the arms {', '.join(arms)} have no ratio: give physics and one of {', '.join(TICK_ARMS)}"
        )
    return chosen


def ratios(sums: dict[str, list[float]], rows: list[dict[str, Any]], case: Case, num_envs: int) -> dict[str, Any]:
    """Return each arm's block ratios over the physics as median and interval, and which bars are met."""
    found: dict[str, Any] = {}

    def ratio(over: str, under: str) -> tuple[float, tuple[float, float]]:
        return median_with_interval([a / b for a, b in zip(sums[over], sums[under], strict=True)])

    primary = rows[0]
    for arm in (name for name in sums if name in TICK_ARMS):
        found[f"{arm}_over_physics"], found[f"{arm}_ci95"] = ratio(arm, "physics")
    found["tick_over_physics"], found["ci95"] = ratio(primary["arm"], "physics")
    if "tick_aa" in sums:
        found["aa"], found["aa_ci95"] = ratio("tick_aa", primary["arm"])
        found["aa_within_2_percent"] = abs(found["aa"] - 1.0) <= AA_LIMIT
    found["tick_arm"] = primary["arm"]
    per_tick = case.blocks / primary["ticks"]
    beside = [(a - b) * per_tick for a, b in zip(sums[primary["arm"]], sums["physics"], strict=True)]
    found["non_physics_ms"], found["non_physics_ci95"] = median_with_interval(beside)
    found["env_steps_per_s"] = primary["env_steps_per_s"]
    tick_bar, speed_bar = bars(case.task, primary["backend"], num_envs, case.scenario)
    found |= {
        "tick_bar": tick_bar,
        "tick_bar_met": None if tick_bar is None else found["ci95"][1] <= tick_bar,
        "speed_bar": speed_bar,
        "speed_bar_met": None if speed_bar is None else found["env_steps_per_s"] >= speed_bar,
    }
    return found


def _recording(env: Env, arm: TickArm) -> Record:
    """Return what records ticks: in a graph where the arm is one, as eager launches take many times as long."""
    if arm.resolution.enabled != "graph":
        return functools.partial(replay.record, env)
    recorder = replay.Recorder(env, arm.tick.play, arm.resolution)
    recorder.record(WARM_UP + 1)  # what cannot be captured stops the benchmark before its blocks
    return recorder.record


def _memory(arm: TickArm, collector: Collector, case: Case) -> dict[str, Any]:
    """Play from tick `settle` to tick `memory_ticks`; returns by how much memory grew, and what moved."""
    arm.play(case.settle)
    if case.memory_ticks <= case.settle:
        return {}
    addresses, before = collector.addresses(), device_memory()
    for _ in range(case.memory_ticks - case.settle):
        arm()
    after = device_memory()
    moved = sum(address != addresses[name] for name, address in collector.addresses().items())
    found = growth(before, after)
    return {
        "allocated_bytes_delta": found["growth"]["torch_bytes"],
        "memory_growth": found["growth"],
        "memory": after,
        "memory_ticks": [case.settle, case.memory_ticks],
        "moved_tensors": moved,
    }


def _traced(arm: TickArm) -> dict[str, Any]:
    """Return what one arm asks of the driver, per tick, from a trace of its own."""
    graph = arm.graph.report()
    captured = graph["enabled"] == "graph"
    ticks = ITERATIONS if captured else EAGER_TRACE_TICKS

    def play() -> None:
        for _ in range(ticks):
            arm()

    trace = record(play)
    kinds = trace.kinds()
    found = {
        "host_syncs_per_tick": host_syncs(kinds) / ticks,
        "graph_launches_per_tick": kinds.get("graph launch", 0) / ticks,
        "kernel_launches_per_tick": kinds.get("kernel launch", 0) / ticks,
        "device_kernels_per_tick": sum(work.category == "kernel" for work in trace.work) / ticks,
        "api_calls": trace.names(),
        "api_call_ticks": ticks,
        "graph_nodes": graph["nodes"],
    }
    return found | {"capture_proof": judge(trace, 1, ticks)} if captured else found


def _solver(env: Env) -> dict[str, Any]:
    """Return the options of the model that decide what a physics step costs."""
    option = env.sim.scene.mjmodel.opt
    names = ("timestep", "integrator", "solver", "cone", "jacobian", "iterations", "ls_iterations", "tolerance")
    return {name: _plain(getattr(option, name)) for name in names} | {"decimation": env.cfg.decimation}


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.item() if hasattr(value, "item") else str(value)
