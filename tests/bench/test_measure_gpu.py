"""The collector's benchmark on a GPU: its arms, ratios and bars, from figures that can be checked by hand."""

from types import SimpleNamespace

import pytest
import torch

from tickgraph.bench import _measure_gpu as measure
from tickgraph.bench import _replay as replay
from tickgraph.bench import report
from tickgraph.bench._bars import bars
from tickgraph.bench._case import Case, build
from tickgraph.bench._gpu import PhysicsArm, TickArm
from tickgraph.bench._result import new_result, write_result
from tickgraph.core.errors import TickgraphError
from tickgraph.tasks.registry import load


def made_up(arm_ms):
    """Four blocks of five ticks: sums are what the arms took in each block."""
    case = Case("g1_walk_flat", 1024, "mjwarp", "cuda", blocks=4)
    sums = {name: [5 * ms] * 4 for name, ms in arm_ms.items()}
    keys = {"task": case.task, "backend": "mjwarp", "device": "cuda:0", "num_envs": 1024, "scenario": "normal"}
    rows = [
        {
            **keys,
            **dict.fromkeys(("mean_ms", "median_ms", "p90_ms", "p95_ms"), ms),
            **{"arm": name, "ticks": 20, "env_steps_per_s": 1024e3 / ms, "memory_ticks": None},
            **measure._NOT_TRACED,
        }
        for name, ms in arm_ms.items()
    ]
    return case, keys, rows, measure.ratios(sums, rows, case, 1024)


def test_the_first_arm_present_is_the_tick():
    assert measure.check_arms(()) == ("graph", "compile", "eager", "physics", "tick_aa")
    assert measure.check_arms(("physics", "eager", "captured_eager")) == ("captured_eager", "eager", "physics")


@pytest.mark.parametrize(
    ("arms", "named"), [(("graph",), "physics"), (("physics", "tick_aa"), "no ratio"), (("grahp", "physics"), "grahp")]
)
def test_arms_without_a_ratio_are_refused(arms, named):
    with pytest.raises(TickgraphError, match=named):
        measure.check_arms(arms)


def test_ratios_are_those_of_the_blocks():
    _, _, _, ratio = made_up({"graph": 6.0, "eager": 30.0, "physics": 5.0, "tick_aa": 6.06})
    assert ratio["tick_arm"] == "graph" and ratio["tick_over_physics"] == pytest.approx(1.2)
    assert ratio["eager_over_physics"] == pytest.approx(6.0) and ratio["ci95"] == pytest.approx((1.2, 1.2))
    assert ratio["aa"] == pytest.approx(1.01) and ratio["aa_within_2_percent"]
    assert ratio["non_physics_ms"] == pytest.approx(1.0)
    assert (ratio["tick_bar"], ratio["tick_bar_met"]) == (1.12, False)
    assert ratio["env_steps_per_s"] == pytest.approx(170_666.67, rel=1e-6) and ratio["speed_bar_met"]


def test_bars_are_those_that_were_fixed():
    assert bars("g1_walk_flat", "mjwarp", 4096, "normal") == (1.07, 400_000.0)
    assert bars("g1_walk_flat", "mjwarp", 8192, "reset-heavy") == (1.11, None)
    assert bars("g1_walk_flat", "mujoco", 256, "normal") == (1.15, None)
    assert bars("g1_motion_tracking", "mjwarp", 4096, "reset-heavy") == (1.09, 350_000.0)
    assert bars("cartpole_swingup", "mjwarp", 4096, "normal") == (None, None)


def test_the_report_merges_and_draws_results_of_a_gpu(tmp_path, capsys):
    files = []
    for scenario in ("normal", "reset-heavy"):
        _, keys, rows, ratio = made_up({"graph": 5.5, "eager": 30.0, "physics": 5.0, "tick_aa": 5.5})
        rows[0] |= {"host_syncs_per_tick": 0.0, "graph_launches_per_tick": 1.0, "kernel_launches_per_tick": 0.0}
        rows[0] |= {"memory_growth": {"torch_bytes": 0, "device_free_bytes": 0}, "memory_ticks": [100, 1000]}
        proof = {"holds": True, "violations": [], "iterations": 100, "api_calls": {"cudaGraphLaunch": 100}}
        ratio |= {"solver": {"iterations": 10}, "capacities": {"nconmax": 24}, "capture_proof": proof}
        result = new_result("collector", [row | {"scenario": scenario} for row in rows], [{**keys, **ratio}])
        result["ratios"][0]["scenario"] = scenario
        files.append(tmp_path / f"{scenario}.json")
        write_result(files[-1], result)
    assert report.main([*map(str, files), "--plot", str(tmp_path / "both.png")]) == 0
    shown = capsys.readouterr().out
    assert "normal, mjwarp" in shown and "reset-heavy, mjwarp" in shown and "at most 1.12: met" in shown
    assert "0 host synchronisations, 1 graph launches" in shown and "iterations 10" in shown and "nconmax 24" in shown
    assert "capture over 100 ticks holds: cudaGraphLaunch 100" in shown and "torch_bytes +0" in shown
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("enabled", "in_a_graph"), [("graph", True), ("compile", False), ("eager", False)])
def test_ticks_are_recorded_in_a_graph_where_the_first_arm_has_one(monkeypatch, enabled, in_a_graph):
    class Recorder:
        def __init__(self, env, tick, resolution):
            self.made_of, self.played = (env, tick, resolution.enabled), []

        def record(self, ticks):
            self.played.append(ticks)
            return self

    monkeypatch.setattr(measure.replay, "Recorder", Recorder)
    monkeypatch.setattr(measure.replay, "record", lambda env, ticks: (env, ticks))
    arm = SimpleNamespace(resolution=SimpleNamespace(enabled=enabled), tick=SimpleNamespace(play="play"))
    found = measure._recording("env", arm)(7)
    if in_a_graph:
        assert found.made_of == ("env", "play", "graph") and found.played == [3, 7]  # captured ahead of the blocks
    else:
        assert found == ("env", 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_small_case_on_a_gpu_is_one_launch_a_tick_and_grows_by_nothing():
    case = Case(
        "cartpole_swingup", 64, "mjwarp", "cuda", "eager", ("graph", "captured_eager", "eager", "physics", "tick_aa"),
        blocks=3, ticks_per_block=4, settle=20, memory_ticks=1000,
    )  # fmt: skip
    kept = []
    rows, ratio = measure.measure(load(case.task), case, lambda text: None, kept.append)
    assert kept and ratio["tick_arm"] == "graph" and ratio["tick_over_physics"] > 0.9
    assert ratio["capture_proof"]["holds"], ratio["capture_proof"]["violations"]
    assert rows[0]["host_syncs_per_tick"] == 0 and rows[0]["graph_launches_per_tick"] == 1
    assert rows[0]["moved_tensors"] == 0 and not any(rows[0]["memory_growth"].values()), rows[0]["memory_growth"]
    assert rows[0]["graph_nodes"] > 10
    eager = next(row for row in rows if row["arm"] == "eager")
    assert eager["kernel_launches_per_tick"] > 10 and eager["graph_launches_per_tick"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_recording_is_that_of_eager_ticks_and_stays_its_own():
    case = Case("cartpole_swingup", 256, "mjwarp", "cuda", "eager", scenario="reset-heavy")
    collector = build(load(case.task), case)
    env = collector.env
    arm = TickArm(env, "graph", torch.cuda.Stream(env.device))
    arm.play(4)
    recorder = replay.Recorder(env, arm.tick.play, arm.resolution)
    recorder.record(3)
    start = collector.state()
    captured = recorder.record(4)
    report = recorder.graph.report()
    assert (report["enabled"], report["captures"], report["replays"]) == ("graph", 1, 5)
    held = [[tensor.clone() for tensor in tensors_of(tick)] for tick in captured]
    after = collector.state()

    collector.load(start)
    eager = replay.record(env, 4)
    assert sum(tick.rows.size for tick in eager[1:]) > 0
    for ours, theirs in zip(captured, eager, strict=True):
        assert ours.rows.tolist() == theirs.rows.tolist()
        assert [n for n, _ in ours.calls] == [n for n, _ in theirs.calls]
    assert all(torch.equal(value, eager[0].state[name]) for name, value in captured[0].state.items())
    for ours, theirs in zip(tensors_of(captured[0]), tensors_of(eager[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)  # compiled, not eager
    assert not torch.equal(captured[0].calls[0][1], captured[1].calls[0][1])  # each tick has controls of its own

    collector.load(after)
    recorder.record(4)
    for tick, tensors in zip(captured, held, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(tick), tensors, strict=True))
    physics = PhysicsArm(env, arm.stream)
    assert len(physics.play(captured)) == 4 and physics.stray_share < 0.01
    env.close()


def tensors_of(tick):
    return [*tick.state.values(), *(controls for _, controls in tick.calls), tick.qpos, tick.qvel]
