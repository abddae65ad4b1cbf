"""The learner's benchmark: its floor against figures counted by hand, and cycles that really run."""

import json
from dataclasses import replace

import pytest
import torch

from tickgraph.bench import _learner_floor as floor
from tickgraph.bench import learner, report
from tickgraph.bench._bars import learner_bars
from tickgraph.bench._learner_paths import PATHS
from tickgraph.bench._learner_rig import LearnerRig, LearnerSpec, made_up, spec_of, with_algo
from tickgraph.bench._result import read_result
from tickgraph.core.errors import TickgraphError
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.tasks.registry import load

SMALL = FlashSacCfg(actor_width=4, actor_blocks=1, critic_width=4, critic_blocks=1, batch_size=8, atoms=5)
WORDS = "cartpole_swingup --paths eager --updates 1,2 --batch-size 16 --blocks 2 --cycles 3"


def rig(algo=SMALL, updates=2, **values):
    return LearnerRig(with_algo(LearnerSpec(algo, {"actor": 3, "critic": 4}, 2, 8, 16, updates), **values), "cpu")


@pytest.mark.parametrize(("batch", "gflop"), [(256, 86.3), (2048, 690.3), (8192, 2761.3)])
def test_operations_of_a_g1_cycle_are_those_counted_by_hand(batch, gflop):
    spec = with_algo(replace(spec_of(load("g1_walk_flat")), num_envs=4, slots=4), batch_size=batch)
    made = LearnerRig(spec, "cpu").learner
    assert floor.sizes(made.critic).macs == 1_107_712 and floor.sizes(made.actor).macs == 282_112
    assert floor.critic_update(made, batch).flops / batch == pytest.approx(36.01e6, rel=1e-3)
    assert floor.actor_update(made, batch).flops / batch == pytest.approx(12.25e6, rel=1e-3)
    assert floor.cycle(made, 8, batch).flops == pytest.approx(gflop * 1e9, rel=1e-3)
    assert floor.sizes(made.critic).step(target=True, copies=True).bytes == pytest.approx(89.1e6, rel=1e-3)


def test_bytes_of_a_small_network_are_those_counted_by_hand():
    # 3 -> 4, 4 -> 16, 16 -> 4, and two heads 4 -> 2; norms of 3, 16, 4 and 4.
    sizes = floor.sizes(rig().learner.actor)
    assert (sizes.macs, sizes.ends, sizes.norms, sizes.members) == (12 + 64 + 64 + 16, 7 + 20 + 20 + 12, 27, 1)
    assert sizes.parameters == 156 + 2 * 3 + 2 * 16 + 2 * 4 + 4 + 4
    assert sizes.forward(10, 4).bytes == 4 * (10 * (59 + 2 * 27) + 156)
    assert sizes.backward(10, 4).bytes == 4 * (10 * (2 * 59 + 3 * 27) + 2 * 156)
    assert sizes.backward(10, 4, to_weights=False).flops == 2 * 156 * 10
    assert sizes.step(target=False, copies=False).bytes == 28 * sizes.parameters


def test_layer_norm_needs_no_rows_of_the_successor():
    made = rig(SacCfg(actor_width=8, critic_width=8, batch_size=8, atoms=5)).learner
    actor, critic = floor.sizes(made.actor), floor.sizes(made.critic)
    # Actor forward; target forward; online forward and backward; two members each.
    assert floor.critic_update(made, 8).flops == 2 * 8 * (actor.macs + 2 * (1 + 3) * critic.macs)
    assert floor.actor_update(made, 8).flops == 2 * 8 * (3 * actor.macs + 2 * 2 * critic.macs)


def test_the_floor_is_what_takes_longer():
    assert floor.floor_ms(floor.Work(2e9, 1e6), 1e12, 1e9) == (2.0, 1.0)
    assert floor.copy_rate(torch.device("cpu")) > 1e6
    assert floor.matmul_rate(torch.device("cpu"), torch.float32) > 1e6


def test_made_up_transitions_repeat_and_end_in_both_ways():
    spec = LearnerSpec(SMALL, {"actor": 3, "critic": 4}, 2, 64, 16, 2)
    first, second = list(made_up(spec, 8)), list(made_up(spec, 8))
    assert all(torch.equal(a.obs["actor"], b.obs["actor"]) for a, b in zip(first, second, strict=True))
    assert any(tick.terminated.any() for tick in first) and any(tick.truncated.any() for tick in first)
    assert not any((tick.terminated & tick.truncated).any() for tick in first)


def test_a_capture_leaves_everything_as_it_was():
    made = rig()
    made.write(made_up(made.spec, 8))
    before = made.arena.snapshot()
    made.capture()
    after = made.arena.snapshot()
    assert all(torch.equal(torch.nan_to_num(before[name]), torch.nan_to_num(after[name])) for name in before)


def test_the_command_writes_a_result_that_the_report_reads_and_draws(tmp_path, capsys):
    file, image = tmp_path / "learner.json", tmp_path / "learner.png"
    assert learner.main([*WORDS.split(), "--json", str(file), "--plot", str(image)]) == 0
    value = read_result(file)
    assert [(row["arm"], row["updates"], row["ticks"]) for row in value["results"]] == [
        ("eager", 1, 6),
        ("eager", 2, 6),
    ]
    first, second = value["results"]
    assert (first["critic_updates"], first["actor_updates"], first["temperature_updates"]) == (1.0, 0.5, 0.5)
    assert (second["critic_updates"], second["actor_updates"], second["batch_size"]) == (2.0, 1.0, 16)
    assert second["graph_nodes"] is None and second["over_floor"] > 0
    for row, ratio in zip(value["results"], value["ratios"], strict=True):
        assert ratio["floor_ms"] == max(ratio["floor_flops_ms"], ratio["floor_bytes_ms"]) == row["floor_ms"]
        assert row["over_floor"] == pytest.approx(row["median_ms"] / row["floor_ms"])
    assert value["ratios"][1]["gflop"] == pytest.approx(2 * value["ratios"][0]["gflop"])
    shown = capsys.readouterr().out
    assert "2 updates of batch 16" in shown and "times the floor" in shown and image.read_bytes().startswith(b"\x89PNG")
    assert report.main([str(file)]) == 0
    del value["ratios"][0]["over_floor"]
    file.write_text(json.dumps(value))
    with pytest.raises(TickgraphError, match=r"ratios\[0\] lacks over_floor"):
        report.main([str(file)])


def test_results_of_different_benchmarks_are_not_drawn_together(tmp_path):
    results = [{"benchmark": kind, "results": [], "ratios": []} for kind in ("learner", "train")]
    with pytest.raises(TickgraphError, match="`bench learner` and of `bench train` are different"):
        report.plot(results, tmp_path / "both.png")


def test_ratios_are_of_times_block_by_block_and_bars_are_met_by_the_fastest():
    spec = LearnerSpec(FlashSacCfg(batch_size=2048), {}, 1, 1, 1, 8)
    case = learner.LearnerCase("g1_walk_flat", "flashsac", spec, torch.device("cuda"), [])
    rows = [
        {"arm": name, "median_ms": ms, "over_floor": ms / 2, "updates": 8, "batch_size": 2048}
        for name, ms in (("eager", 40.0), ("graph", 4.0))
    ]
    found = learner.ratios({"eager": [40.0, 44.0, 36.0], "graph": [4.0, 4.4, 3.6]}, rows, case)
    assert found["graph_time_over_eager"] == pytest.approx(0.1) and found["fastest"] == "graph"
    assert found["learner_bar_met"] and not found["learner_aim_met"] and found["over_floor"] == 2.0


def test_bars_are_those_that_were_fixed():
    assert learner_bars("g1_walk_flat", "flashsac", "cuda", 8, 256) == (3.3, 1.9)
    assert learner_bars("g1_walk_flat", "flashsac", "cuda", 2, 2048) == (1.1, None)
    assert learner_bars("g1_walk_flat", "flashsac", "cpu", 8, 256) == (None, None)
    assert learner_bars("g1_walk_flat", "sac", "cuda", 8, 256) == (None, None)


@pytest.mark.parametrize(
    ("words", "named"),
    [("--updates 2,x", "--updates"), ("--paths quick", "paths"), ("--precision tf32 --device cpu", "fp32 or bf16")],
)
def test_wrong_arguments_are_one_line(words, named):
    with pytest.raises(TickgraphError, match=named) as caught:
        learner.main(["cartpole_swingup", *words.split()])
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_paths_on_a_gpu_are_timed_by_its_own_clock():
    device = torch.device("cuda")
    spec = LearnerSpec(SMALL, {"actor": 3, "critic": 4}, 2, 8, 16, 2)
    paths = [PATHS[name] for name in ("eager", "captured-eager", "graph")]
    case = learner.LearnerCase("toy", "flashsac", spec, device, paths, blocks=2, cycles=8)
    rows, ratio = learner.measure(case, learner.Rates(1e14, 1e12), lambda text: None)
    assert [row["arm"] for row in rows] == ["eager", "captured-eager", "graph"]
    assert rows[0]["graph_nodes"] is None and rows[1]["graph_nodes"] > rows[2]["graph_nodes"] > 10
    assert all(row["mean_ms"] > 0 and row["critic_updates"] == 2.0 for row in rows)
    assert ratio["graph_time_over_eager"] > 0
