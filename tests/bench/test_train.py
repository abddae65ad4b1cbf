"""The benchmark of training: real iterations in each mode, and ratios from figures that can be checked by hand."""

import os
from types import SimpleNamespace

import pytest
import torch

from tickgraph.bench import report, train
from tickgraph.bench._apart import measure_apart
from tickgraph.bench._options import say
from tickgraph.bench._result import read_result
from tickgraph.bench._train_arm import MODES, TrainArm, set_mode
from tickgraph.core.errors import TickgraphError
from tickgraph.learn import flashsac
from tickgraph.learn.path import ON_A_GPU, Switches
from tickgraph.run.settings import apply_overrides, dump
from tickgraph.sim.platform import Platform
from tickgraph.tasks.registry import load

SMALL = "cartpole_swingup --num-envs 8 --updates 1 --batch-size 32 --backend mujoco --blocks 2 --iterations 4"
MUJOCO = Platform("cpu", "mujoco")


class TwoParts(Exception):
    """An error that cannot be made anew from its text."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def counted(case: object, say: object, keep: object) -> object:
    """A measurement that keeps a result on the way, or fails in the way that its case names."""
    if case == "error":
        raise TickgraphError("no such arm; use 'graph'")
    if case == "odd":
        raise TwoParts("first", "second")
    if case == "gone":
        os._exit(3)
    say(f"measuring {case}")
    keep({"half": case})
    return {"whole": case, "process": os.getpid()}


def test_a_measurement_apart_is_the_same_in_another_process(capfd):
    kept: list[object] = []
    found = measure_apart(counted, 4, say, kept.append)
    assert found["whole"] == 4 and found["process"] != os.getpid() and kept == [{"half": 4}]
    assert "measuring 4" in "".join(capfd.readouterr())
    with pytest.raises(TickgraphError, match="no such arm; use 'graph'") as caught:
        measure_apart(counted, "error", say, kept.append)
    assert "in counted" in caught.value.__notes__[0], "its traceback comes along"
    with pytest.raises(RuntimeError, match="TwoParts: first and second"):
        measure_apart(counted, "odd", say, kept.append)
    with pytest.raises(TickgraphError, match="ended by itself, with exit code 3"):
        measure_apart(counted, "gone", say, kept.append)


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
    assert (made.learning_starts, made.replay_slots) == (min(50, made.learning_starts), 2000)
    assert (made.num_envs, made.updates_per_iteration, made.algo.batch_size) == (12, 3, 77)
    assert (made.device, made.backend, made.algo.policy_period) == ("cpu", "mujoco", period)


def test_a_case_has_the_options_of_the_report():
    task = load("cartpole_swingup")
    case = train.TrainCase(
        *("cartpole_swingup", 12, MUJOCO, ("eager",)),
        **{"policy_frequency": 4, "replay_n": 32, "learning_starts": 8, "learner_kernels": "torch"},
    )
    made = train.configure(task, case).train
    assert (made.algo.policy_period, made.replay_slots, made.learning_starts) == (4, 32, 8)
    assert made.learner_kernels == "torch"


@pytest.mark.parametrize("kernels", ["auto", "torch", "autograd"])
def test_an_arm_has_the_settings_of_a_run_in_its_mode(kernels):
    for mode in (mode for mode in MODES if mode != "compile-loss"):
        run, arm = load("cartpole_swingup"), load("cartpole_swingup")
        apply_overrides(run, ["--train.execution", mode, "--train.learner-kernels", kernels])
        arm.train.learner_kernels = kernels
        set_mode(arm.train, mode)
        assert dump(arm) == dump(run) and arm.train.execution == mode and arm.train.learner_kernels == kernels


def test_the_arm_whose_losses_alone_are_compiled_has_autograd():
    made = load("cartpole_swingup").train
    made.learner_kernels = "torch"
    set_mode(made, "compile-loss")
    assert (made.execution, made.compile_scope, made.learner_kernels) == ("compile", "loss", "autograd")


def test_the_eager_arm_computes_as_the_setting_says_on_its_device(monkeypatch):
    # What a GPU does without kernels; a CPU has autograd for every setting.
    def as_on_a_gpu(kernels, resolution, checks):
        return Switches() if kernels == "autograd" else ON_A_GPU

    monkeypatch.setattr(flashsac, "resolve_switches", as_on_a_gpu)
    for kernels, gradients in ((None, "written"), ("torch", "written"), ("autograd", "autograd")):
        case = train.TrainCase(
            *("cartpole_swingup", 8, MUJOCO, ("eager",)), updates=2, batch_size=32, learner_kernels=kernels
        )
        arm = TrainArm(train.configure(load(case.task), case), "eager")
        before = int(arm.trainer.learner.updates)
        arm.play(2)
        assert int(arm.trainer.learner.updates) == before + 6
        config = train.training_config(arm, case)
        assert (config["learner_kernels"], config["gradients"]) == (kernels or "auto", gradients)
        arm.close()


def part(mean, p95=None):
    return {"mean": mean, "median": mean, "p90": mean, "p95": mean if p95 is None else p95}


def test_learner_ratios_and_bars_are_of_the_parts_of_an_iteration():
    keys = {"task": "g1_walk_flat", "backend": "mujoco", "device": "cuda:0", "num_envs": 256}
    config = {"batch_size": 256, "updates": 8}
    rows = [
        {**keys, "arm": arm, "learner_train_ms": part(ms), "iter_ms": part(ms + 2.0, p95), "training_config": config}
        for arm, ms, p95 in (("graph", 3.0, 16.0), ("compile", 3.5, 17.0), ("eager", 10.0, 20.0))
    ]
    found = train.learner_ratios(rows)
    assert found["graph_learner_over_eager"] == 0.3 and found["compile_learner_over_eager"] == 0.35
    assert found["compile_learner_bar"] == 0.36 and found["compile_learner_met"] and found["graph_learner_met"]
    assert found["iter_mean_bar"] == 14.2 and found["iter_mean_met"]
    assert found["iter_p95_bar"] == 15.9 and not found["iter_p95_met"]
    other = [{**row, "num_envs": 512} for row in rows]
    assert not [name for name in train.learner_ratios(other) if name.endswith("_bar")]


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
    for row in (rows := arm.play_rows(3)):
        assert 0 < row["collector_cycle_ms"] + row["learner_train_ms"] <= row["iter_ms"] * 1.001
    assert len(rows) == 3 and int(arm.trainer.learner.updates) == updates + 10
    assert type(arm.iteration.collect_graph).__name__ == "Graph", "the clocks are gone"
    arm.iteration.drain()
    updates += 4
    assert arm.collector_ms() > 0 and int(arm.trainer.learner.updates) == updates + 6
    assert arm.learner_ms() > 0 and int(arm.trainer.learner.updates) > updates + 6
    assert list(tmp_path.iterdir()) == [], "a benchmark leaves no run behind"
    arm.close()


def test_the_command_writes_a_result_that_the_report_reads(tmp_path, capsys):
    file, image = tmp_path / "train.json", tmp_path / "train.png"
    words = [*SMALL.split(), "--arms", "eager", "--summary-last", "3", "--json", str(file)]
    words += ["--updates", "1,2", "--policy-frequency", "2", "--replay-n", "16", "--learning-starts", "4"]
    assert train.main(words) == 0
    value = read_result(file)
    assert [row["scenario"] for row in value["results"]] == ["training, 1 update", "training, 2 updates"]
    for updates, row in enumerate(value["results"], 1):
        assert (row["arm"], row["num_envs"], row["ticks"], row["enqueue_ms"]) == ("eager", 8, 8, None)
        assert len(row["tail_env_steps_per_sec_blocks"]) == 2 and row["updates_per_iteration"] == updates
        assert row["steps_per_iteration"] == 8 * row["ticks_per_iteration"] and row["batch_size"] == 32
        config = row["training_config"]
        assert config["critic_updates"] == updates
        # Of the five iterations of a block, one by one, two or three have the actor's turn.
        assert config["actor_updates"] == pytest.approx(updates / 2, abs=0.0 if updates == 2 else 0.11)
        assert config["temperature_updates"] == config["actor_updates"], "FlashSAC steps it with the actor"
        assert (config["replay_n"], config["learning_starts"], config["policy_frequency"]) == (16, 4, 2)
        assert len(row["rows_all"]) == 8 and [(r["block"], r["iteration"]) for r in row["rows"]] == [
            *((block, iteration) for block in (0, 1) for iteration in (2, 3, 4)),
        ]
        for name in ("learner_train_ms", "collector_cycle_ms", "iter_ms"):
            assert set(row[name]) == {"mean", "median", "p90", "p95"}
            assert row[name]["mean"] == pytest.approx(sum(r[name] for r in row["rows"]) / 6)
    assert report.main([str(file), "--plot", str(image)]) == 0
    shown = capsys.readouterr().out
    assert "learner_kernels auto; gradients autograd" in " ".join(shown.split())
    assert "8 worlds, training, 2 updates" in shown and image.read_bytes().startswith(b"\x89PNG")
    assert "2 critic, 1 actor, 1 temperature updates" in " ".join(shown.split())


def test_who_stops_a_measurement_keeps_what_was_played(tmp_path, monkeypatch):
    """The file is written whenever an arm has played a block."""

    def stop(text):
        if "block 2" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(train, "say", stop)
    file = tmp_path / "train.json"
    with pytest.raises(KeyboardInterrupt):
        train.main([*SMALL.split(), "--arms", "eager", "--json", str(file)])
    (row,) = read_result(file)["results"]
    assert row["ticks"] == len(row["rows_all"]) == 4 and row["training_config"]["blocks"] == 1
    assert row["training_config"]["critic_updates"] == 1.0
    assert report.main([str(file)]) == 0


def test_figures_are_of_the_arms_that_have_begun_and_the_blocks_that_they_share(monkeypatch):
    monkeypatch.setattr(train.Played, "row", lambda one, case, keys: {**keys, "arm": one.arm.mode})
    monkeypatch.setattr(train, "learner_ratios", lambda rows: {})
    settings = SimpleNamespace(task=SimpleNamespace(train=SimpleNamespace(updates_per_iteration=2)))
    case = train.TrainCase("cartpole_swingup", 8, MUJOCO, ("graph", "compile", "eager"))
    played = [
        train.Played(
            SimpleNamespace(mode=mode, iteration=SimpleNamespace(device="cpu"), trainer=settings), speeds=speeds
        )
        for mode, speeds in (("graph", [4.0, 9.0]), ("compile", [2.0]), ("eager", []))
    ]
    rows, ratio = train.figures(case, played)
    assert [row["arm"] for row in rows] == ["graph", "compile"] and rows[0]["scenario"] == "training, 2 updates"
    assert ratio["graph_over_compile"] == 2.0 and "graph_over_eager" not in ratio


def test_the_setting_of_all_arms_is_an_option_and_the_report_shows_it(tmp_path, capsys):
    file = tmp_path / "train.json"
    words = [*SMALL.split(), "--arms", "eager", "--learner-kernels", "torch", "--json", str(file)]
    assert train.main(words) == 0
    assert "learner_kernels torch; gradients autograd" in " ".join(capsys.readouterr().out.split())
    (row,) = read_result(file)["results"]
    assert row["training_config"]["learner_kernels"] == "torch"


@pytest.mark.long  # compiles ticks and updates
def test_compiled_training_stands_beside_eager_training(tmp_path, capsys):
    file = tmp_path / "train.json"
    assert train.main([*SMALL.split(), "--arms", "eager,compile-loss,compile", "--json", str(file)]) == 0
    value = read_result(file)
    assert [row["arm"] for row in value["results"]] == ["compile", "compile-loss", "eager"]
    scopes = [row["training_config"]["compile_scope"] for row in value["results"]]
    assert scopes == ["objective", "loss", "objective"]
    kernels = [row["training_config"]["learner_kernels"] for row in value["results"]]
    assert kernels == ["auto", "autograd", "auto"]
    said = capsys.readouterr()
    assert "arm compile-loss, always with train.learner_kernels autograd" in " ".join(said.err.split())
    assert " ".join(said.out.split()).count("learner_kernels autograd") == 1
    assert value["results"][0]["programs"] == ["compile"] and value["ratios"][0]["compile_over_eager"] > 0
    assert value["ratios"][0]["compile-loss_learner_over_eager"] > 0


def test_ticks_that_the_host_plays_are_timed_by_the_host_and_belong_to_their_iteration(monkeypatch):
    case = train.TrainCase("cartpole_swingup", 8, MUJOCO, ("eager",), updates=1, batch_size=32)
    arm = TrainArm(train.configure(load(case.task), case), "eager")
    config = train.training_config(arm, case)
    assert (config["execution"], config["learner_kernels"]) == ("eager", "auto")

    class Bridge:
        waits = copies = 0

        def tick(self):
            self.waits += 1
            self.copies += 2

    def play(iterations):
        for _ in range(iterations + 1):
            for _ in range(3):
                arm.iteration.bridge.tick()
            arm.iteration.update()
        return [100.0] * iterations

    monkeypatch.setattr(arm.iteration, "bridge", Bridge())
    monkeypatch.setattr(arm, "play", play)
    rows = arm.play_rows(4)
    assert len(rows) == 4 and all(row["collector_cycle_ms"] > 0 and row["learner_train_ms"] > 0 for row in rows)
    assert arm.crossings() == {"waits": 15, "copies": 30} and "tick" not in vars(arm.iteration.bridge)
    arm.close()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--arms fast", "fast"),
        ("--blocks 0", "--blocks"),
        ("--num-envs x", "--num-envs"),
        ("--updates 0", "--updates"),
        ("--learning-starts -1", "--learning-starts is '-1', expected a whole number of at least 0"),
        ("--device cpu --overlap", "--overlap takes CUDA graphs, and the arms are compile, eager"),
        ("--replay-n none", "--replay-n"),
        ("--learner-kernels tritn", "--learner-kernels is 'tritn'; did you mean 'triton'"),
        ("--learner-kernels plain", "use one of auto, triton, torch, autograd"),
        ("--device cpu --arms eager --num-envs 4 --learner-kernels triton", "need a CUDA device, not cpu; use 'auto'"),
    ],
)
def test_wrong_arguments_are_one_line(words, named):
    with pytest.raises(TickgraphError, match=named) as caught:
        train.main(["cartpole_swingup", *words.split()])
    assert "\n" not in str(caught.value)


def test_random_actions_may_be_left_out_as_in_training(monkeypatch):
    seen = []

    class Seen(Exception):
        pass

    def measure(case, *rest):
        seen.append(case)
        raise Seen

    monkeypatch.setattr(train, "measure", measure)
    words = "--device cpu --arms eager --learning-starts 0 --iterations 7"
    with pytest.raises(Seen):
        train.main(["cartpole_swingup", *words.split()])
    assert (seen[0].learning_starts, seen[0].iterations, seen[0].tail) == (0, 7, 7)
    assert train.configure(load("cartpole_swingup"), seen[0]).train.learning_starts == 0


def test_a_graph_cannot_be_had_on_a_cpu():
    case = train.TrainCase("cartpole_swingup", 4, MUJOCO, ("graph",))
    with pytest.raises(TickgraphError, match="CUDA"):
        train.measure(case, lambda text: None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_eager_arm_on_a_gpu_writes_its_gradients_out_unless_told_otherwise():
    for kernels, gradients in ((None, "written"), ("autograd", "autograd")):
        case = train.TrainCase(
            *("cartpole_swingup", 8, Platform("cuda", "mjwarp"), ("eager",)),
            **{"updates": 2, "batch_size": 32, "learner_kernels": kernels},
        )
        arm = TrainArm(train.configure(load(case.task), case), "eager")
        assert train.training_config(arm, case)["gradients"] == gradients
        assert all(ms > 0 for ms in arm.play(2))
        arm.close()


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
    assert len(rows[0]["rows"]) == 100 and all(row["learner_train_ms"] > 0 for row in rows[0]["rows_all"])
    beside = rows[0]["collector_cycle_ms"]["mean"] + rows[0]["learner_train_ms"]["mean"]
    assert overlap or beside <= 1.05 * rows[0]["iter_ms"]["mean"]
    assert rows[0]["enqueue_ms"] > 0 and len(rows[0]["tail_env_steps_per_sec_blocks"]) == 1
