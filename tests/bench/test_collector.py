"""The collector's benchmark: arms that replay one trace bit for bit, and the rows it writes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tickgraph.bench import _replay as replay
from tickgraph.bench import collector
from tickgraph.bench._blocks import play_blocks
from tickgraph.bench._case import Case, build
from tickgraph.bench._parts import take_apart
from tickgraph.bench._result import RATIO, ROW, read_result
from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Program, resolve_execution
from tickgraph.env.config import EventTermCfg, RewardTermCfg, SubstepTermCfg
from tickgraph.env.tick import Tick
from tickgraph.tasks.registry import load

REACH = str(Path(__file__).parents[2] / "examples" / "reach.py") + ":reach"
SMALL = {"task": REACH, "num_envs": 6, "execution": "eager", "settle": 3, "memory_ticks": 4, "physics_threads": 1}


@pytest.fixture
def task():
    task = load(REACH)
    task.env.episode_length_s = 0.2  # 5 steps, so that resets are part of every trace
    return task


class RandomDamping:
    """Reset event that gives each world its own joint damping, so that model fields belong to the trace."""

    def __init__(self, cfg, env, path):
        self.field = env.sim.field("dof_damping")
        self.default = env.sim.default_field("dof_damping")
        self.rng = env.rng.stream(path)

    def __call__(self, env, mask):
        value = self.default * self.rng.uniform("scale", 1, 0.5, 2.0)
        self.field.copy_(torch.where(mask[:, None], value, self.field))
        env.mark_written(mask)


def test_a_bare_batch_and_the_backend_repeat_the_recorded_ticks(task):
    task.env.events["damping"] = EventTermCfg(RandomDamping, "reset")
    made = build(task, Case(**SMALL))
    start = made.state()
    trace = replay.record(made.env, 12)
    end = made.env.sim.state_dict()
    assert sum(tick.rows.size for tick in trace[1:]) > 0
    assert not torch.equal(trace[0].state["field/dof_damping"], trace[-1].state["field/dof_damping"])
    for persistent in (True, False):
        assert len(replay.BareBatch(made.env, persistent).play(trace)) == 12  # raises where a state differs
    assert len(replay.play_backend(made.env, trace)) == 12
    made.load(start)
    for _ in range(12):
        made.env.tick()
    again = made.env.sim.state_dict()
    assert all(torch.equal(again[name], end[name]) for name in end)
    made.env.close()


def test_recording_changes_nothing_and_leaves_nothing_behind(task):
    made = build(task, Case(**SMALL))
    start = made.state()
    for _ in range(4):
        made.env.tick()
    plain = made.state()
    made.load(start)
    replay.record(made.env, 4)
    recorded = made.state()
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)
    assert "advance_and_refresh" not in vars(made.env.sim)
    made.env.close()


@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
@pytest.mark.parametrize("decimation", [None, 3])
def test_a_recorder_records_what_plain_ticks_do(task, backend, decimation):
    if backend == "mjwarp":
        pytest.importorskip("mujoco_warp")
    if decimation is not None:
        task.env.decimation = decimation
        task.env.substeps = {"fade": SubstepTermCfg(lambda env, substep: env.sim.ctrl.mul_(0.9))}
    made = build(task, Case(**SMALL, backend=backend, scenario="reset-heavy"))
    start = made.state()
    plain = replay.record(made.env, 8)
    end = made.state()
    made.load(start)
    eager = resolve_execution("eager", made.env.device)
    recorder = replay.Recorder(made.env, Tick(made.env, eager).play, eager)
    recorded = recorder.record(5)
    recorded += recorder.record(3)
    assert all(torch.equal(value, end[name]) for name, value in made.state().items())
    assert "advance_and_refresh" not in vars(made.env.sim)
    assert sum(tick.rows.size for tick in recorded[1:]) > 0
    for ours, theirs in zip(recorded, plain, strict=True):
        assert np.array_equal(ours.rows, theirs.rows) and ours.state.keys() == theirs.state.keys()
        assert all(torch.equal(value, theirs.state[name]) for name, value in ours.state.items())
        assert [n for n, _ in ours.calls] == [n for n, _ in theirs.calls] == ([1] * decimation if decimation else [4])
        for (_, controls), (_, others) in zip(ours.calls, theirs.calls, strict=True):
            assert torch.equal(controls, others)
        assert torch.equal(ours.qpos, theirs.qpos) and torch.equal(ours.qvel, theirs.qvel)
    made.env.close()


def test_an_arm_that_leaves_the_trace_stops_the_benchmark(task):
    made = build(task, Case(**SMALL))
    trace = replay.record(made.env, 3)
    trace[1].calls[0] = (trace[1].calls[0][0], trace[1].calls[0][1] + 0.5)
    for play in (replay.BareBatch(made.env, True).play, lambda trace: replay.play_backend(made.env, trace)):
        with pytest.raises(TickgraphError, match="left the recorded trace at tick 1 in 6 worlds"):
            play(trace)
    made.env.close()


def test_a_term_with_state_of_its_own_is_found(task):
    drift = [0.0]

    def drifting(env, mask):
        drift[0] += 0.01
        robot = env.scene["robot"]
        robot.write_joint_state_to_sim(robot.staged_joint_pos() + drift[0], robot.staged_joint_vel(), mask)

    task.env.events["drift"] = EventTermCfg(drifting, "step")
    with pytest.raises(TickgraphError, match="different states"):
        collector.measure(task, Case(**SMALL, blocks=1, ticks_per_block=3))


def test_taking_a_tick_apart_changes_nothing_and_adds_calls_up(task):
    made = build(task, Case(**SMALL))
    start = made.state()
    for _ in range(3):
        made.env.tick()
    plain = made.state()
    made.load(start)
    call = Program.__call__
    parts = take_apart(made.env, 3)
    assert Program.__call__ is call and "refresh" not in vars(made.env.sim)
    assert all(torch.equal(plain[name], value) for name, value in made.state().items())
    assert all(part["p95_ms"] >= part["median_ms"] > 0 for part in parts)
    made.env.close()


def test_reset_heavy_ends_a_twentieth_of_the_worlds_each_tick():
    task = load(REACH)
    made = build(task, Case(**{**SMALL, "num_envs": 400}, scenario="reset-heavy"))
    ends = []
    for _ in range(10):
        made.env.tick()
        ends.append(int(made.env.terminated.sum()))
    # 4000 draws at 5%: 200 expected, standard deviation 13.8.
    assert 145 <= sum(ends) <= 255 and np.min(ends) > 0
    made.env.close()


def test_the_command_writes_a_result_that_the_report_reads(tmp_path, capsys):
    file = tmp_path / "result.json"
    words = "--num-envs 4,8 --blocks 2 --ticks-per-block 2 --execution eager --memory-ticks 102 --physics-threads 1"
    assert collector.main([REACH, *words.split(), "--json", str(file), "--scenario", "reset-heavy"]) == 0
    value = read_result(file)
    assert [(row["num_envs"], row["arm"]) for row in value["results"]] == [
        (n, arm) for n in (4, 8) for arm in ("tick", "physics", "advance", "tick_aa")
    ]
    for row in value["results"]:
        assert set(ROW) <= set(row) and row["ticks"] == 4 and row["scenario"] == "reset-heavy"
        assert 0 < row["median_ms"] <= row["p95_ms"]
    assert [row["num_envs"] for row in value["ratios"]] == [4, 8]
    for row in value["ratios"]:
        assert set(RATIO) <= set(row) and row["ci95"][0] <= row["tick_over_physics"] <= row["ci95"][1]
    assert value["results"][0]["moved_tensors"] == 0
    parts = value["results"][0]["parts"]
    assert [part["part"] for part in parts] == [
        "tick/act_and_apply",
        "sim/advance_and_refresh",
        "tick/judge_to_restart",
        "sim/write_state",
        "sim/refresh",
        "tick/observe",
    ]
    assert sum(part["share"] for part in parts) == pytest.approx(1.0)
    if sys.platform == "linux":
        assert isinstance(value["results"][0]["allocated_bytes_delta"], int)
    json.loads(file.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert "tick_over_physics" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--num-envs 0", "--num-envs"),
        ("--num-envs 8,-2", "--num-envs"),
        ("--num-envs many", "--num-envs"),
        ("--blocks 0", "--blocks"),
        ("--scenario hard", "scenario"),
        ("--ticks-per-block x", "--ticks-per-block"),
        ("--colour", "--colour"),
        ("--backend mujocoo", "mujoco"),
        ("--execution fast", "execution"),
        (
            "--device cpu --arms physics",
            "--arms is 'physics', but on a CPU the arms are tick, physics, ",
        ),
    ],
)
def test_wrong_arguments_are_one_line(words, named):
    with pytest.raises(TickgraphError, match=named) as caught:
        collector.main([REACH, *words.split()])
    assert "\n" not in str(caught.value)


def test_rewards_of_the_task_are_untouched_by_the_scenario():
    task = load(REACH)
    before = dict(task.env.rewards)
    build(task, Case(**SMALL, scenario="reset-heavy")).env.close()
    assert task.env.rewards == before and isinstance(before["near_target"], RewardTermCfg)


def test_a_recording_that_no_machine_can_hold_is_refused(task):
    made = build(task, Case(**SMALL))
    a_tick = replay.record_bytes(made.env, 1)
    trace = replay.record(made.env, 1)[0]
    held = [*trace.state.values(), trace.calls[0][1], trace.qpos, trace.qvel]
    assert a_tick == sum(tensor.numel() * tensor.element_size() for tensor in held)
    with pytest.raises(TickgraphError, match="a recording of 1000000000001 ticks of 6 worlds needs .*ticks-per-block"):
        play_blocks(made, ("tick",), 1, 10**12, lambda ticks: [], lambda *rest: [])
    made.env.close()
