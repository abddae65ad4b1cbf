"""Going on with a run: what is refused before anything is touched, and what a person is told."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from run_toys import TASK, TINY, heard, resume, rows, start, train

from tickgraph import cli
from tickgraph.run import checkpoint, manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.schedule import Ending


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(run: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def drop_checkpoints(run: RunFolder) -> None:
    for path in checkpoint.files(run):
        path.unlink()
    run.checkpoints.rmdir()


@pytest.mark.parametrize("iterations", [6, 12], ids=["nothing would be left", "some would be left"])
@pytest.mark.parametrize("told_by", ["run_summary.json", "metrics.jsonl"])
def test_a_run_whose_checkpoints_are_gone_is_left_as_it_is(
    iterations: int, told_by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("one", "--iterations", "6")
    drop_checkpoints(run)
    if told_by == "metrics.jsonl":
        run.summary.unlink()
    before = contents(run)
    capsys.readouterr()
    resume(run, "--iterations", str(iterations), code=2)
    assert f"has 6 iterations behind it ({told_by}), but no checkpoint is in" in told(capsys)
    assert contents(run) == before


def test_a_run_that_had_not_saved_yet_starts_over_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "6")
    drop_checkpoints(run)
    for path in (run.summary, run.manifest, run.metrics):
        path.unlink()
    capsys.readouterr()
    resume(run)
    assert "has no checkpoint yet; it starts from the first iteration" in capsys.readouterr().out
    assert [row["iteration"] for row in rows(run)] == list(range(1, 7))


def test_what_a_resumed_run_counts_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "20", "--stop-after", "9")
    (run.checkpoints / "iteration_000000009.safetensors").unlink()
    capsys.readouterr()
    for number in ("3", "5"):
        before = manifest.read_summary(run)
        resume(run, "--stop-after", number, code=2)
        assert f"--stop-after is {number}, but {run.path} has 5 iterations behind it" in told(capsys)
        assert manifest.read_summary(run) == before
    resume(run, "--stop-after", "6", "--time-budget", "900")
    said = capsys.readouterr().out
    assert "at iteration 5; run_summary.json tells of iteration 9: what came after 5 is trained again" in said
    assert "the time budget of 900 s counts the whole run: " in said


def test_of_a_run_with_nothing_left_nothing_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "6")
    before = contents(run)
    capsys.readouterr()
    resume(run, "--train.lr-iterations", "7", "--train.update-threads", "2", "--json", "again.json")
    shown = capsys.readouterr()
    assert shown.out == f"{run.path}: nothing is left, all 6 iterations are done; --iterations N goes on\n"
    assert shown.err == "" and contents(run) == before
    assert json.loads(Path("again.json").read_text())["status"] == "completed"


def test_threads_may_change_and_what_that_means_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "12", "--stop-after", "6")
    capsys.readouterr()
    resume(run, "--train.update-threads", "1", "--train.physics-threads", "1", "--stop-after", "8")
    said = capsys.readouterr().out
    assert "other train.update_threads: sums may round otherwise, so the run goes on, not bit for bit" in said
    assert {"physics": 1, "tick": 1, "update": 1} == manifest.read_manifest(run)["threads"]
    resume(run, "--train.physics-threads", "2")
    assert "bit for bit" not in capsys.readouterr().out


def edit(run: RunFolder, *changes: tuple[str, str]) -> None:
    """Change lines of config.yaml, each of which stands there once."""
    text = run.config.read_text()
    for old, new in changes:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    run.config.write_text(text)


def test_an_edited_configuration_is_no_silent_change_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "12", "--stop-after", "6")
    resume(run, "--stop-after", "7")
    assert "edited" not in "".join(capsys.readouterr())
    whole = run.config.read_text()
    gamma = next(line for line in whole.splitlines() if line.strip().startswith("gamma:"))
    edit(run, (gamma, gamma.partition(":")[0] + ": 0.5"), ("\n  seed: 0\n", "\n  seed: 5\n"))
    before = contents(run)
    resume(run, code=2)
    was = gamma.partition(": ")[2]
    assert told(capsys) == (
        f"tickgraph: {run.config} has been edited since iteration 7: train.algo.gamma is 0.5, was {was}; "
        "train.seed is 5, was 0; put them back, or start a new run"
    )
    assert contents(run) == before
    run.config.write_text(whole.replace("seed: 0", "seed: 0.0e+0"))  # the same in other words
    resume(run, "--stop-after", "8")
    assert "edited" not in "".join(capsys.readouterr())


def test_what_may_change_is_taken_over_from_an_edited_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "12", "--stop-after", "6")
    edit(run, ("\n  log_interval: 1\n", "\n  log_interval: 3\n"), ("\n  iterations: 12\n", "\n  iterations: 20\n"))
    edit(run, ("tick_threads: 1", "tick_threads: 2"))
    capsys.readouterr()
    resume(run)
    said = capsys.readouterr().out
    assert (
        f"{run.config} has been edited since iteration 6: train.iterations is 20, was 12; train.log_interval is 3, "
        "was 1; train.tick_threads is 2, was 1; the run goes on with that\n"
    ) in said
    assert "other train.tick_threads: sums may round otherwise" in said
    assert "20 iterations instead of 12: the learning rate keeps its horizon of 12 iterations" in said
    assert [row["iteration"] for row in rows(run)] == [*range(1, 7), 9, 12, 15, 18, 20]
    assert rows(run)[-1]["lr/critic"] == pytest.approx(1.5e-4)


def test_a_run_from_before_says_that_edits_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "12", "--stop-after", "6")
    run.manifest.write_text(json.dumps({k: v for k, v in manifest.read_manifest(run).items() if k != "config"}))
    for words, known in ((("--stop-after", "8"), False), ((), True)):
        capsys.readouterr()
        resume(run, *words)
        assert (f"not known: whether {run.config} has been edited" in capsys.readouterr().out) != known


def keep_rows(run: RunFolder, *kept: int) -> None:
    """Leave the rows of some iterations in the log."""
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(line for line in lines if json.loads(line)["iteration"] in kept))


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        (None, "2 to 12"),
        ((), "2 to 12"),
        ((2, 4), "6 to 12"),
        ((4, 6, 12), "2, 9"),
        ((4, 6, 9, 12), "2"),
        ((2, 4, 6, 9, 12), None),
    ],
)
def test_rows_that_the_log_has_lost_are_said_once(
    kept: tuple[int, ...] | None, lost: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two parts, with a row every two and every three iterations.
    run = train("one", "--iterations", "20", "--stop-after", "7", "--train.log-interval", "2")
    edit(run, ("log_interval: 2", "log_interval: 3"))
    resume(run, "--stop-after", "13")
    assert [row["iteration"] for row in rows(run)] == [2, 4, 6, 9, 12]
    if kept is None:
        run.metrics.unlink()
    else:
        keep_rows(run, *kept)
    capsys.readouterr()
    resume(run)
    expected = f"warning: {run.metrics} has lost its rows of iterations {lost}: the run goes on without them\n"
    assert capsys.readouterr().err == (expected if lost else "")


def test_rows_that_a_later_part_dropped_are_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "20", "--stop-after", "9")
    (run.checkpoints / "iteration_000000009.safetensors").unlink()
    resume(run, "--stop-after", "12")
    (run.checkpoints / "iteration_000000012.safetensors").unlink()
    capsys.readouterr()
    resume(run)
    assert "lost" not in "".join(capsys.readouterr())
    assert [row["iteration"] for row in rows(run)] == list(range(1, 21))


def test_a_folder_without_its_configuration_is_named_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "6")
    run.config.unlink()
    for words in (["train", "--resume"], ["eval"]):
        capsys.readouterr()
        assert cli.main([*words, str(run.path)]) == 2
        assert "is a run's folder whose config.yaml is gone" in told(capsys)


def test_a_damaged_manifest_is_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    run = train("one", "--iterations", "9", "--stop-after", "6")
    whole = json.loads(run.manifest.read_text())
    for damaged, said in (
        ({}, "run_manifest.json lacks"),
        ({**whole, "sessions": 5}, "run_manifest.json: sessions is 5, expected a list; put the file back as it was"),
    ):
        run.manifest.write_text(json.dumps(damaged))
        before = {name: data for name, data in contents(run).items() if ".lock" not in name}
        capsys.readouterr()
        resume(run, code=2)
        assert said in told(capsys)
        assert {name: data for name, data in contents(run).items() if ".lock" not in name} == before


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        (".lock", "train --resume", "it is a folder, where a file belongs; move it away"),
        ("metrics.jsonl", "train --resume", "it is a folder, where a file belongs; move it away"),
        ("metrics.jsonl", "plot", "it is a folder, where a file belongs; move it away"),
        ("run_summary.json", "train --resume", "it is a folder, where a file belongs; move it away"),
        ("plots", "plot", "it is a file, where a folder belongs; move it away"),
        ("tensorboard", "train --resume", "it is a file, where a folder belongs; move it away"),
    ],
)
def test_what_the_system_has_against_a_file_of_the_run_is_one_line(
    name: str, words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("one", "--iterations", "9", "--stop-after", "6")
    path = run.path / name
    if name in ("plots", "tensorboard"):
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    capsys.readouterr()
    assert cli.main([*words.split(), str(run.path)]) == 2
    assert told(capsys) == f"tickgraph: could not write {path}: {reason}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two people")
def test_a_run_that_another_person_may_only_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("one", "--iterations", "9", "--stop-after", "6")
    tmp_path.chmod(0o755)
    for words, path in (("train --resume", run.path / ".lock"), ("plot", run.plots)):
        assert cli.main(["plot", str(run.path)]) == 0  # loads what the other cannot
        shutil.rmtree(run.plots)
        capsys.readouterr()
        os.seteuid(65534)
        try:
            assert cli.main([*words.split(), str(run.path)]) == 2
        finally:
            os.seteuid(0)
        assert told(capsys).startswith(
            (
                f"tickgraph: could not use {path}: permission denied; change that, or work on a",
                f"tickgraph: could not write {path}: permission denied; choose a folder",
            )
        )


def test_a_second_interrupt_says_what_it_cost() -> None:
    process = start("one", "--ticks", "100", "--train.checkpoint-interval", "1000")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    first = next(filter(heard, process.stderr))
    process.send_signal(signal.SIGINT)
    _, second = process.communicate(timeout=60)
    run = RunFolder(Path("runs") / TASK / "one")
    cost = "which loses what came after iteration 0"
    assert process.returncode == 130
    assert first == f"SIGINT: finishing the iteration and saving; again to end at once, {cost}\n"
    assert heard(second) == f"interrupted by SIGINT, {cost}; the run is in {run.path}\n"
    summary = manifest.read_summary(run)
    assert (summary["status"], summary["saved_iteration"]) == ("interrupted", 0)
    assert summary["reason"] == f"SIGINT again after {summary['iteration']} iterations"


@pytest.mark.parametrize(
    ("milestone", "said", "iteration"),
    [
        ("loaded_s", "interrupted by SIGINT, which loses nothing, as no iteration is over; ", 0),
        ("first_tick_s", "SIGINT: finishing the iteration and saving; again to end at once, ", 1),
    ],
)
def test_as_soon_as_an_iteration_is_over_the_first_signal_saves_it(milestone: str, said: str, iteration: int) -> None:
    program = str(Path(__file__).with_name("interrupted_after.py"))
    words = ["train", TASK, "--run-name", "one", *TINY, "--iterations", "9"]
    done = subprocess.run([sys.executable, program, milestone, *words], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    summary = manifest.read_summary(RunFolder(Path("runs") / TASK / "one"))
    assert summary["iteration"] == (summary["saved_iteration"] or 0) == iteration


def test_on_a_terminal_what_the_first_signal_says_is_printed_above_the_panel() -> None:
    program = str(Path(__file__).with_name("interrupted_after.py"))
    words = ["first_tick_s", "train", TASK, "--run-name", "one", *TINY, "--iterations", "9"]
    ours, theirs = pty.openpty()
    terminal = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs, "env": {**os.environ, "TERM": "xterm"}}
    process = subprocess.Popen([sys.executable, program, *words], **terminal)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 4096):
            shown += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 130
    # The panel follows with no move of the cursor between them; the next one begins with such a move.
    assert re.search(r"SIGINT: finishing the iteration [^\x1b]*building and compiling", shown.decode())


@pytest.mark.parametrize(
    ("iteration", "saved", "words"),
    [
        (0, None, "loses nothing, as no iteration is over"),
        (9, 0, "loses what came after iteration 0"),
        (9, 5, "loses what came after iteration 5"),
        (9, 9, "loses nothing of its 9 iterations"),
    ],
)
def test_what_ending_at_once_costs(iteration: int, saved: int | None, words: str) -> None:
    assert Ending(iteration=iteration, saved_iteration=saved).lost() == words


def test_an_interrupt_before_a_run_goes_on_leaves_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    from tickgraph.run import session
    from tickgraph.run.signals import Interrupts

    run = train("one", "--iterations", "6")
    before = contents(run)
    interrupts, left = Interrupts(), []
    monkeypatch.setattr(session, "run_training", lambda *a, **k: left.append(interrupts.at_exit("SIGINT")) or 130)
    assert cli.main(["train", "--resume", str(run.path), "--iterations", "9"], interrupts) == 130
    assert left and contents(run) == before
