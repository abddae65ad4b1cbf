"""Whole runs of a tiny cart-pole: exact resume, stops, budgets, evaluation, and what a full disk or a kill leaves."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_toys import TASK, TINY, equal, heard, resume, rows, start, state, train

from tickgraph import cli
from tickgraph.core.words import counted
from tickgraph.run import checkpoint, manifest, session
from tickgraph.run.evaluate import evaluation_seed
from tickgraph.run.folder import RunFolder
from tickgraph.run.schedule import Ending
from tickgraph.run.signals import Interrupts
from tickgraph.sim.platform import Platform
from tickgraph.tasks.registry import load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_leaves_everything_that_its_folder_promises() -> None:
    run = train("one", "--iterations", "20")
    summary, facts = manifest.read_summary(run), manifest.read_manifest(run)
    assert summary["status"] == "completed"
    assert (summary["iteration"], summary["env_steps"]) == (20, 80)
    assert summary["tail_env_steps_per_sec"] > 0
    assert set(summary["evaluation"]) == {"trained", "untrained"}
    assert {"episodes", "survival", "return", "length", "upright_at_end"} <= set(summary["evaluation"]["trained"])
    assert (facts["device"], facts["backend"]) == ("cpu", "mujoco")  # what auto was here
    assert (facts["precision"]["float32_matmul"], facts["driver"]) == ("highest", None)
    assert facts["precision"]["updates"] == "float32"  # what None was here
    assert facts["policy"] == {"form": "torch", "reasons": []}
    assert facts["ticks_per_iteration"] == 1
    startup = summary["startup_s"]
    assert 0 < startup["loaded_s"] < startup["first_tick_s"] < startup["wall_command_s"]
    assert 0 < startup["building"] < startup["first_tick_s"]
    assert summary["overflow"] == {}
    assert (facts["overlap"], facts["policy_lag"]) == (False, 0)
    assert facts["seeds"] == {"train": 0, "evaluation": evaluation_seed(0)}
    assert {report["enabled"] for report in facts["programs"].values()} == {"eager"}
    assert [row["iteration"] for row in rows(run)] == list(range(1, 21))
    assert [path.stem for path in checkpoint.files(run)] == ["iteration_000000015", "iteration_000000020"]
    assert (run.plots / "learning_curve.png").is_file()
    assert list(run.tensorboard.glob("events.*"))


@pytest.mark.parametrize(
    ("words", "figure", "noun", "text"),
    [
        ("--train.algo.v-max 3e38", "skipped_updates", "update", "left out, as loss or gradient was not finite"),
        ("--env.rewards.upright.weight 1e30", "skipped_rewards", "reward", "counted as 0 in the scale that rewards"),
        (
            "--algo sac --train.algo.target-entropy-ratio 1e38",
            "skipped_temperature_steps",
            "step",
            "of the temperature left out, as its loss was not finite",
        ),
        ("--algo sac --train.algo.v-max 3e38", "skipped_updates", "update", "left out, as loss or gradient was not"),
    ],
)
def test_what_the_learner_leaves_out_is_told_once(
    words: str, figure: str, noun: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(train("one", "--iterations", "12", "--evaluation.episodes", "1", *words.split()))
    counts = [row[f"loss/{figure}"] for row in found]
    assert counts[-1] > 0
    told = [line for line in capsys.readouterr().err.splitlines() if f"loss/{figure}" in line]
    first = next(i for i, count in enumerate(counts) if count)
    assert len(told) == 1
    assert f"iteration {first + 1}: loss/{figure}: {counted(counts[first], noun)} {text}" in told[0]


def test_the_term_of_a_reward_that_is_not_finite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from tickgraph.tasks.cartpole import cartpole_swingup\n"
        "from tickgraph.env.config import RewardTermCfg\n"
        "def root(env):\n    return (env.reward - 2.0).sqrt()\n"
        "def make():\n    task = cartpole_swingup()\n"
        "    task.env.rewards['root'] = RewardTermCfg(root)\n    return task\n"
    )
    train("one", "--iterations", "3", "--evaluation.untrained", "False", task="mine.py:make")
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "non_finite/reward" in line]
    assert "a world's reward was not finite; the world was reset; not finite in the newest step: root (" in told


def test_a_task_without_a_time_limit_says_so_when_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from tickgraph.tasks.cartpole import cartpole_swingup\n"
        "def make():\n    task = cartpole_swingup()\n    task.env.terminations = {}\n    return task\n"
    )
    run = train("one", "--iterations", "2", "--stop-after", "1", task="mine.py:make")
    assert "note: no termination is a time limit, so an episode lasts until" in capsys.readouterr().out
    resume(run)
    train("two", "--iterations", "1", "--stop-after", "1")
    assert "time limit" not in capsys.readouterr().out


def test_no_interval_without_an_episode_shows_a_number_for_it() -> None:
    found = rows(train("one", "--iterations", "20"))
    for row in found:
        ended = row["episodes"] > 0
        assert (row["episode_return"] is not None) == ended
        assert (row["reward/upright"] is not None) == ended
        if ended:
            terms = [value for key, value in row.items() if key.startswith("reward/")]
            assert sum(terms) == pytest.approx(row["episode_return"])
    assert {row["episodes"] > 0 for row in found} == {True, False}


def test_a_stopped_and_resumed_run_ends_with_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    whole = train("whole", "--iterations", "20")
    parts = train("parts", "--iterations", "20", "--stop-after", "9")
    assert manifest.read_summary(parts)["status"] == "interrupted"
    assert "--stop-after" in manifest.read_summary(parts)["reason"]
    resume(parts)
    assert equal(state(whole), state(parts)) == []
    assert rows(whole) == rows(parts)
    assert manifest.read_summary(whole)["evaluation"] == manifest.read_summary(parts)["evaluation"]
    assert [part["from_iteration"] for part in manifest.read_manifest(parts)["sessions"]] == [0, 9]
    capsys.readouterr()
    resume(parts)
    assert "nothing is left" in capsys.readouterr().out


def test_the_learning_rate_falls_over_all_updates_of_the_run() -> None:
    found = rows(train("one", "--iterations", "25", "--updates", "1"))
    assert found[4]["lr/critic"] is None  # iterations 1 to 5 only collect
    for index in (5, 10, 15, 20, 24):
        update = index - 5  # of 20
        expected = 1.5e-4 + 0.75e-4 * (1 + torch.cos(torch.tensor(torch.pi * update / 20, dtype=torch.float64)).item())
        assert found[index]["lr/critic"] == pytest.approx(expected, abs=1e-9)


def test_more_iterations_keep_the_horizon_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "10")
    capsys.readouterr()
    resume(run, "--iterations", "14")
    assert "the learning rate keeps its horizon of 10 iterations" in capsys.readouterr().out
    assert [row["iteration"] for row in rows(run)] == list(range(1, 15))
    assert [row["lr/critic"] for row in rows(run)[10:]] == pytest.approx([1.5e-4] * 4)
    assert rows(run)[-1]["env_steps"] == 14 * 4


def test_only_what_leaves_the_run_itself_alone_can_change_on_resume(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "12", "--stop-after", "6")
    before = manifest.read_summary(run)
    for words, reason in (
        (("--seed", "3"), "train.seed cannot change"),
        (("--env.rewards.upright.weight", "3"), "weight cannot change"),
        (("--run-name", "two"), "names a new run"),
    ):
        capsys.readouterr()
        resume(run, *words, code=2)
        assert reason in capsys.readouterr().err
    assert cli.main(["train", "go2_walk_flat", "--resume", str(run.path)]) == 2
    assert manifest.read_summary(run) == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--backend mujco", "backend 'mujco' is unknown; did you mean 'mujoco'"),
        ("--device gpu", "device 'gpu' is unknown; did you mean 'cuda'?"),
        ("--device cuda", "cannot be had"),
        ("--execution compiled", "did you mean 'compile'"),
        ("--execution graph", "CUDA graphs need a CUDA device"),
        ("--overlap", "overlap cannot be had: backend cannot: it takes CUDA graphs, and on cpu ticks run as 'eager'"),
        ("--train.matmul-precision hgh", "did you mean 'high'"),
        ("--train.replay-slots 1", "holds no window"),
    ],
)
def test_what_this_machine_cannot_do_is_one_line_and_leaves_no_folder(
    words: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, and can do more")
    assert cli.main(["train", TASK, *TINY, *words.split()]) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1
    assert not list(folder.iterdir())


def test_without_its_replay_a_run_collects_before_it_learns_again() -> None:
    run = train("one", "--iterations", "20", "--stop-after", "10", "--train.no-checkpoint-replay")
    assert not any("ring/" in name for name in state(run))
    resume(run)
    assert [row["loss/critic_loss"] is not None for row in rows(run)[10:]] == [False] * 5 + [True] * 5


def test_a_start_has_no_replay_to_save_and_resumes_from_it_all_the_same() -> None:
    whole = train("whole", "--iterations", "10")
    start = train("start", "--iterations", "10", "--train.keep-checkpoints", "9")
    for path in checkpoint.files(start)[1:]:
        path.unlink()
    found = checkpoint.load_newest(start, TASK)[0]
    assert found is not None and found.iteration == 0
    assert not any(name.startswith("ring/") for name in found.state["learn"])
    start.summary.unlink()
    resume(start)
    assert equal(state(whole), state(start)) == []
    assert rows(whole) == rows(start)


def test_several_ticks_and_updates_an_iteration_by_their_short_names() -> None:
    run = train("one", "--iterations", "8", "--ticks", "3", "--updates", "4", "--no-overlap")
    facts = manifest.read_manifest(run)
    assert (facts["ticks_per_iteration"], facts["updates_per_iteration"], facts["overlap"]) == (3, 4, False)
    assert rows(run)[-1]["env_steps"] == 8 * 3 * 4


def test_what_a_capacity_lacked_is_said_once_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tickgraph.sim.mujoco_cpu import MujocoBackend

    advice = ["contacts: a world needed 9 and has 8; set scene.capacity.nconmax to 12"]
    monkeypatch.setattr(MujocoBackend, "overflow", lambda self: {"contacts": 5, "constraints": 0})
    monkeypatch.setattr(MujocoBackend, "overflow_advice", lambda self: advice)
    run = train("one", "--iterations", "6")
    warned = [line for line in capsys.readouterr().err.splitlines() if "contacts" in line]
    assert len(warned) == 1 and "needed 9 and has 8; set scene.capacity.nconmax to 12" in warned[0]
    assert [(row["overflow/contacts"], row["overflow/constraints"]) for row in rows(run)] == [(5, 0)] * 6
    assert manifest.read_summary(run)["overflow"] == {"contacts": 5}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("words", ["", "--no-overlap --ticks 2 --updates 2"])
def test_a_run_on_a_gpu_is_captured_stops_and_goes_on(words: str) -> None:
    given = [word for word in TINY if word not in ("--device", "cpu", "--execution", "eager")]
    command = ["train", TASK, "--run-name", "gpu", *given, *words.split(), "--iterations", "24"]
    assert cli.main([*command, "--stop-after", "11"]) == 0
    run = RunFolder(next(Path("runs").glob("*/gpu")))
    facts = manifest.read_manifest(run)
    assert (facts["device"], facts["overlap"], facts["policy_lag"]) == ("cuda", not words, int(not words))
    assert facts["exact_resume"] == "up to the physics engine"
    assert facts["programs"]["collect"]["captures"] == 1
    assert all(row["enabled"] == "graph" for name, row in facts["programs"].items() if "/" not in name)
    resume(run)
    summary = manifest.read_summary(run)
    assert (summary["status"], summary["iteration"]) == ("completed", 24)
    assert [row["iteration"] for row in rows(run)] == list(range(1, 25))
    assert summary["tail_env_steps_per_sec"] > 0
    assert summary["evaluation"]["trained"]["episodes"] == 2


def test_a_time_budget_ends_a_run_as_completed(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "1000000", "--time-budget", "2")
    summary = manifest.read_summary(run)
    assert summary["status"] == "completed"
    assert "time budget of 2 s" in summary["reason"]
    assert 2 <= summary["wall_s"] < 10
    capsys.readouterr()
    resume(run)
    assert "nothing is left of the time budget" in capsys.readouterr().out


def test_eval_in_another_process_gives_the_figures_of_the_summary(tmp_path: Path) -> None:
    run = train("one", "--iterations", "10")
    target = tmp_path / "eval.json"
    command = [sys.executable, "-m", "tickgraph", "eval", str(run.path), "--json", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads(target.read_text())
    assert result["evaluation"] == manifest.read_summary(run)["evaluation"]["trained"]
    assert result["iteration"] == 10
    assert {"machine", "versions", "commit", "dirty"} <= set(result)


def test_video_and_evaluation_leave_the_training_alone() -> None:
    plain = train("plain", "--iterations", "10")
    options = "--iterations 10 --train.video --video.seconds 0.4 --video.worlds 2 --evaluation.episodes 3".split()
    filmed = train("filmed", *options)
    assert equal(state(plain), state(filmed)) == []
    assert rows(plain) == rows(filmed)
    for film in filmed.videos.glob("*.mp4"):  # there is none where nothing can be drawn
        import imageio_ffmpeg  # no machine that makes films is without it

        assert imageio_ffmpeg.count_frames_and_secs(str(film))[0] == 2 * 10, "ten pictures of each world"


def test_a_machine_that_cannot_draw_trains_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    run = train("one", "--iterations", "6", "--train.video")
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "no video" in warnings[0]
    assert manifest.read_summary(run)["status"] == "completed"
    assert os.environ["MUJOCO_GL"] == "disabled"


def test_damaged_checkpoints_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "20", "--stop-after", "10")
    newest = checkpoint.files(run)[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    resume(run)
    assert "truncated" in capsys.readouterr().err
    assert [row["iteration"] for row in rows(run)] == list(range(1, 21))
    for path in checkpoint.files(run):
        path.write_bytes(b"")
    assert cli.main(["eval", str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_that_was_killed_while_it_was_drawn_says_how_to_draw_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("it's $one", "--iterations", "3")
    summary = json.loads(run.summary.read_text())
    del summary["files"]  # they are written when all is drawn
    run.summary.write_text(json.dumps(summary))
    capsys.readouterr()
    resume(run)
    nothing, drawn = capsys.readouterr().out.splitlines()
    assert "nothing is left" in nothing and drawn.startswith("it was killed before its pictures were drawn: `tickgraph")
    command = shlex.split(drawn.partition("`")[2].partition("`")[0])
    assert command == ["tickgraph", "plot", str(run.path)] and cli.main(command[1:]) == 0


FIGURES = "def fault(trace):\n    raise RuntimeError('no figures today')\n"
LATE = (
    "from tickgraph.env.config import RecorderTermCfg\ncalls = []\n"
    "def late(env):\n    calls.append(0)\n    return env.reward * (1 if len(calls) < 6 else {}['late'])\n"
)
ENDS = LATE.replace("{}['late']", "exit(0)")


@pytest.mark.parametrize(
    ("text", "setting", "traced", "reason"),
    [
        (FIGURES, "figures = fault", False, "evaluation.figures: RuntimeError: no figures today at fault ("),
        (LATE, "recorders['late'] = RecorderTermCfg(late)", True, "term recorders/late: KeyError: 'late' at late ("),
        (
            ENDS,
            "recorders['late'] = RecorderTermCfg(late)",
            True,
            "term recorders/late: SystemExit: it ends",
        ),
    ],
    ids=["figures", "late", "ends"],
)
def test_a_fault_in_the_task_leaves_a_run_that_says_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, setting: str, traced: bool, reason: str
) -> None:
    file = tmp_path / "tâche.py"
    file.write_text(
        f"from tickgraph.tasks.cartpole import cartpole_swingup\n{text}"
        f"def make():\n    task = cartpole_swingup()\n    task.evaluation.{setting}\n    return task\n",
        encoding="utf-8",
    )
    run = train("étude №1 🤖", "--iterations", "6", task=f"{file}:make", code=2)
    summary = manifest.read_summary(run)
    assert summary["status"] == "failed" and summary["reason"].startswith(reason)
    trace = run.path / "traceback.txt"
    assert trace.exists() == traced  # what failed in the midst of a run leaves its trace
    assert not traced or "in late" in trace.read_text(encoding="utf-8")
    *before, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"tickgraph: {reason}")
    assert len(before) == (0 if traced else 1)  # figures are tried before the training: this may be due to the zeros
    assert checkpoint.files(run)  # the training itself is not lost


def test_a_size_limit_is_one_line_and_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    run = train("one", "--iterations", "20", "--stop-after", "5")
    kept = checkpoint.files(run)[-1]
    before = hashlib.sha256(kept.read_bytes()).hexdigest()
    limit = kept.stat().st_size // 1024 // 2
    script = f"ulimit -f {limit}; exec {sys.executable} -m tickgraph train --resume '{run.path}'"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "size limit" in done.stderr
    assert done.stderr.count("\n") == 1
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == before
    assert manifest.read_summary(run)["status"] == "failed"
    resume(run)
    assert manifest.read_summary(run)["status"] == "completed"


def test_an_interrupt_with_the_last_iteration_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    run, interrupts, said = RunFolder(tmp_path), Interrupts(), []
    interrupts.requested = "SIGINT"
    assert session._close(load(TASK), run, Ending(finished=True), interrupts, {}, said.append) == 130
    summary = manifest.read_summary(run)
    assert (summary["status"], summary["reason"]) == (
        *("interrupted", "SIGINT after the last iteration, before the evaluation"),
    )
    assert said == [f"{summary['reason']}; go on with: tickgraph train --resume {tmp_path}"]


def test_an_interrupt_while_filming_leaves_a_complete_run_whose_figures_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts, shown = Interrupts(), []

    def filming(*_: object) -> Path:
        shown.append(capsys.readouterr().out)
        interrupts._handle(signal.SIGHUP, None)
        raise AssertionError("the film goes on")

    monkeypatch.setattr(session, "record_video", filming)
    command = ["train", TASK, "--run-name", "one", *TINY, "--iterations", "6", "--train.video", "--json", "out.json"]
    assert cli.main(command, interrupts) == 130
    run = RunFolder(Path("runs") / TASK / "one")
    assert "upright_at_end" in shown[0]
    told = f"SIGHUP: the run is complete but for what was not drawn yet; `tickgraph plot {run.path}` draws the curve, "
    assert told + f"`tickgraph play {run.path} --video FILE` makes the film\n" in capsys.readouterr().out
    summary = manifest.read_summary(run)
    assert (summary["status"], summary["files"]) == ("completed", {"plot": "plots/learning_curve.png"})
    assert json.loads(Path("out.json").read_text())["status"] == "completed"


def test_an_interrupt_saves_and_the_run_goes_on_from_there() -> None:
    process = start("one")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    run = RunFolder(Path("runs") / TASK / "one")
    summary = manifest.read_summary(run)
    assert process.returncode == 130
    assert heard(err).startswith("SIGINT: finishing the iteration and saving; again to end at once, which loses ")
    assert heard(err).count("\n") == 1
    assert summary["status"] == "interrupted"
    assert summary["saved_iteration"] == summary["iteration"]
    assert "SIGINT" in summary["reason"]
    assert checkpoint.files(run)[-1].stem == f"iteration_{summary['iteration']:09d}"
    assert "--resume" in out
    last = summary["iteration"] + 3
    resume(run, "--iterations", str(last))
    assert [row["iteration"] for row in rows(run)] == list(range(1, last + 1))


def test_a_kill_costs_no_more_than_the_work_since_the_last_checkpoint() -> None:
    process = start("one")
    process.kill()
    process.communicate()
    run = RunFolder(Path("runs") / TASK / "one")
    assert not run.summary.exists()  # nothing says that it completed
    logged = sum(1 for line in run.metrics.read_bytes().split(b"\n") if line.endswith(b"}"))
    saved = checkpoint.load_newest(run, TASK)[0]
    assert saved is not None
    assert logged - 5 <= saved.iteration <= logged
    resume(run, "--iterations", str(logged + 2))
    assert [row["iteration"] for row in rows(run)] == list(range(1, logged + 3))
    assert not list(run.checkpoints.glob(".tmp-*"))


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    words = " ".join([TASK, "--run-name", "one", *TINY, "--iterations", "20"])
    script = f"{sys.executable} -m tickgraph train {words} | head -n 2"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert manifest.read_summary(RunFolder(Path("runs") / TASK / "one"))["status"] == "completed"


def test_a_bridged_run_is_the_direct_one_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = train("direct", "--iterations", "20")
    # On this machine both sides are the CPU; what crosses between them is the same.
    monkeypatch.setattr(Platform, "bridged", True)
    whole = train("bridged", "--iterations", "20")
    assert "bridge/act" in manifest.read_manifest(whole)["programs"]
    assert not equal(state(direct), state(whole))
    assert rows(direct) == rows(whole)
    parts = train("parts", "--iterations", "20", "--stop-after", "10")
    resume(parts)
    assert not equal(state(whole), state(parts))
