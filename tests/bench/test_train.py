"""The benchmark of training: real iterations in each mode, and ratios from figures that can be checked by hand."""

import pytest
import torch

from tickgraph.bench import report, train
from tickgraph.bench._result import read_result
from tickgraph.bench._train_arm import TrainArm
from tickgraph.core.errors import TickgraphError
from tickgraph.sim.platform import Platform
from tickgraph.tasks.registry import load

SMALL = "cartpole_swingup --num-envs 8 --updates 1 --batch-size 32 --backend mujoco --blocks 2 --iterations 4"
MUJOCO = Platform("cpu", "mujoco")


def test_a_share_of_overlap_is_what_the_shorter_half_hides():
    assert train.overlap_share(10.0, 6.0, 16.0) == 0.0
    assert train.overlap_share(10.0, 6.0, 10.0) == 1.0
    assert train.overlap_share(6.0, 10.0, 13.0) == pytest.approx(0.5)


def test_ratios_are_of_speeds_block_by_block():
    speeds = {"graph": [200.0, 220.0, 210.0], "compile": [100.0, 110.0, 105.0], "eager": [80.0, 110.0, 70.0]}
    found = train.ratios(speeds, [{"arm": "graph", "enqueue_ms": 0.2}])
    assert found["graph_over_compile"] == pytest.approx(2.0) and found["graph_over_compile_ci95"] == (2.0, 2.0)
    assert found["graph_over_eager"] == pytest.approx(2.5) and found["graph_over_eager_met"]
    assert found["enqueue_met"] and not train.ratios(speeds, [{"arm": "graph", "enqueue_ms": 0.31}])["enqueue_met"]


def test_a_case_changes_the_task_and_nothing_else():
    task = load("cartpole_swingup")
    period = task.train.algo.policy_period
    case = train.TrainCase("cartpole_swingup", 12, MUJOCO, ("eager",), updates=3, batch_size=77)
    made = train.configure(task, case).train
    assert (made.num_envs, made.updates_per_iteration, made.algo.batch_size) == (12, 3, 77)
    assert (made.device, made.backend, made.algo.policy_period) == ("cpu", "mujoco", period)


def test_an_arm_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = train.TrainCase("cartpole_swingup", 8, MUJOCO, ("eager",), updates=1, batch_size=32)
    arm = TrainArm(train.configure(load(case.task), case), "eager")
    updates, parameters = int(arm.trainer.learner.updates), arm.trainer.learner.actor_storage.parameters.clone()
    tick = int(arm.trainer.env.rng.tick)
    found = arm.play(5)
    assert len(found) == 5 and min(found) > 0
    assert int(arm.trainer.learner.updates) == updates + 6  # one leads in
    assert int(arm.trainer.env.rng.tick) == tick + 6 * arm.iteration.ticks
    assert not torch.equal(parameters, arm.trainer.learner.actor_storage.parameters)
    assert arm.collector_ms() > 0 and int(arm.trainer.learner.updates) == updates + 6
    assert arm.learner_ms() > 0 and int(arm.trainer.learner.updates) > updates + 6
    assert list(tmp_path.iterdir()) == [], "a benchmark leaves no run behind"
    arm.close()


def test_the_command_writes_a_result_that_the_report_reads(tmp_path, capsys):
    file, image = tmp_path / "train.json", tmp_path / "train.png"
    words = [*SMALL.split(), "--arms", "eager", "--summary-last", "3", "--json", str(file)]
    assert train.main(words) == 0
    value = read_result(file)
    (row,) = value["results"]
    assert (row["arm"], row["num_envs"], row["ticks"], row["enqueue_ms"]) == ("eager", 8, 8, None)
    assert len(row["tail_env_steps_per_sec_blocks"]) == 2 and row["updates_per_iteration"] == 1
    assert row["steps_per_iteration"] == 8 * row["ticks_per_iteration"] and row["batch_size"] == 32
    assert report.main([str(file), "--plot", str(image)]) == 0
    assert "8 worlds, training" in capsys.readouterr().out and image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # compiles ticks and updates
def test_compiled_training_stands_beside_eager_training(tmp_path):
    file = tmp_path / "train.json"
    assert train.main([*SMALL.split(), "--arms", "eager,compile", "--json", str(file)]) == 0
    value = read_result(file)
    assert [row["arm"] for row in value["results"]] == ["compile", "eager"]
    assert value["results"][0]["programs"] == ["compile"] and value["ratios"][0]["compile_over_eager"] > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [("--arms fast", "fast"), ("--blocks 0", "--blocks"), ("--num-envs x", "--num-envs"), ("--updates 0", "--updates")],
)
def test_wrong_arguments_are_one_line(words, named):
    with pytest.raises(TickgraphError, match=named) as caught:
        train.main(["cartpole_swingup", *words.split()])
    assert "\n" not in str(caught.value)


def test_a_graph_cannot_be_had_on_a_cpu():
    case = train.TrainCase("cartpole_swingup", 4, MUJOCO, ("graph",))
    with pytest.raises(TickgraphError, match="CUDA"):
        train.measure(case, lambda text: None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("overlap", [False, True])
def test_iterations_on_a_gpu_are_graph_launches_and_events_and_memory_stands_still(overlap):
    case = train.TrainCase(
        "cartpole_swingup", 64, Platform("cuda", "mjwarp"), ("graph",), blocks=1, iterations=150, overlap=overlap
    )
    rows, ratio = train.measure(case, lambda text: None)
    assert ratio["capture_proof"]["holds"], ratio["capture_proof"]["violations"]
    assert ratio["capture_proof"]["host_syncs"] <= 100 and ratio["capture_proof"]["kernel_launches"] == 0
    assert ratio["memory_proof"]["holds"], ratio["memory_proof"]["growth"]
    assert rows[0]["enqueue_ms"] > 0 and len(rows[0]["tail_env_steps_per_sec_blocks"]) == 1
