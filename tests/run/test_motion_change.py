"""A run whose motion files have changed since it began, or whose config.yaml names others, is not silently another."""

import json
from pathlib import Path

import numpy as np
import pytest

from tickgraph import cli
from tickgraph.motion.load import load_clips
from tickgraph.run import manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.motion_change import changed_motions, motion_sums
from tickgraph.tasks.registry import load

TASK = "g1_motion_tracking"


def put(name: str, path: Path, frames: slice = slice(None), lift: float = 0.0) -> Path:
    """Write some frames of a shipped clip as a file of positions."""
    (clip,) = load_clips(name, 50.0)
    qpos = clip.qpos.numpy()[frames].copy()
    qpos[:, 2] += lift
    np.savez(path, fps=50, qpos=qpos)
    return path


def test_each_change_of_the_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    files = [put("squat", tmp_path / "a.npz"), put("walk", tmp_path / "folder" / "b.npz").parent]
    task = load(TASK)
    task.env.commands["motion"].clips = tuple(map(str, files))
    began = motion_sums(task.env)
    assert set(began["motion"]["sums"]) == {"a", "b"} and changed_motions(began, motion_sums(task.env)) == []
    head = "the clips of commands/motion are not those that the run began with"
    put("squat", files[0], lift=0.01)
    assert changed_motions(began, motion_sums(task.env)) == [f"{head}: a has other frames"]
    put("squat", files[0], slice(0, 300))
    (files[1] / "b.npz").rename(files[1] / "c.npz")
    now = motion_sums(task.env)
    assert changed_motions(began, now) == [f"{head}: a has other frames, c is new, b is gone"]
    task.env.decimation = 6  # so is another rate
    assert changed_motions(began, motion_sums(task.env)) == []
    task.env.decimation, task.env.commands["motion"].clips = 3, ("march",)  # an edit, which is told as one
    assert changed_motions(began, motion_sums(task.env)) == []
    assert changed_motions({}, now) == [] and motion_sums(load("cartpole_swingup").env) == {}


def test_a_run_says_so_wherever_it_goes_on_or_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    clip = put("squat", tmp_path / "a.npz", slice(0, 60))
    words = "--device cpu --execution eager --num-envs 2 --train.replay-slots 16 --iterations 9 --evaluation.episodes 1"
    words += " --train.checkpoint-replay True --stop-after 1 --run-name one"
    assert cli.main(["train", TASK, "--env.commands.motion.clips", str(clip), *words.split()]) == 0
    run = RunFolder(Path("runs") / TASK / "one")
    resumed = ["train", "--resume", str(run.path), "--stop-after"]
    assert cli.main([*resumed, "2"]) == 0 and cli.main(["eval", str(run.path)]) == 0
    assert "began with" not in "".join(capsys.readouterr())
    assert manifest.read_manifest(run)["exact_resume"] is True
    put("walk", clip, slice(0, 60))
    said = "the clips of commands/motion are not those that the run began with: a has other frames"
    assert cli.main(["eval", str(run.path)]) == 0
    assert f"{said}; what is judged is another task" in capsys.readouterr().err
    put("walk", clip, slice(0, 60), lift=1.0)
    for iterations in ("3", "4"):  # and it stays so
        assert cli.main([*resumed, iterations]) == 0
        shown = capsys.readouterr()
        assert f"{said}; what is resumed is another task" in shown.err
        assert ("note: motion a: no foot comes closer to the ground than 1.0" in shown.out) == (iterations == "3")
        assert manifest.read_manifest(run)["exact_resume"] is False
    put("squat", clip, slice(0, 60))
    plot = (run.plots / "tracking.png").stat().st_mtime_ns
    words = ["--env.commands.motion.clips", "march", "walk", "--episodes", "2", "--json", "other.json"]
    assert cli.main(["eval", str(run.path), *words]) == 0
    shown = capsys.readouterr()
    assert "note: judged with another env.commands.motion.clips than the run's; no plot is drawn" in shown.out
    result = json.loads(Path("other.json").read_text())
    assert [clip["clip"] for clip in result["evaluation"]["report"]["clips"]] == ["march", "walk"]
    assert result["changed"] == [*words[:3], "--evaluation.episodes", "2"] and not shown.err
    assert (run.plots / "tracking.png").stat().st_mtime_ns == plot
    clip.rename("moved.npz")  # and as the run's own is gone, another can be named
    assert cli.main(["eval", str(run.path), "--episodes", "1"]) == cli.main(["eval", str(run.path)]) == 2
    said_twice = capsys.readouterr().err.splitlines()
    assert len(said_twice) == 2 and all(f"there is no motion file {clip}; put it there" in line for line in said_twice)
    assert f"{run.config}: there is no" in said_twice[1]
    capsys.readouterr()
    put("squat", tmp_path / "high.npz", lift=1.0)
    words[1:] = ["high.npz", "moved.npz", "--episodes", "1"]
    assert cli.main(["eval", str(run.path), *words]) == 0
    assert capsys.readouterr().out.startswith("note: motion high: no foot comes closer to the ground than 1.0")
    Path("moved.npz").rename(clip)
    capsys.readouterr()
    assert cli.main(["eval", str(run.path), "--env.commands.motion.clip", "march"]) == 2
    assert "did you mean 'clips'" in capsys.readouterr().err
    text = run.config.read_text()
    run.config.write_text(text.replace(str(clip), "march"))
    assert cli.main(["eval", str(run.path)]) == 0
    err = capsys.readouterr().err
    assert "config.yaml has been edited since it was trained: env.commands.motion.clips is ['march'], was" in err
    assert "began with" not in err
    run.manifest.write_text("half a manif")
    assert cli.main(["eval", str(run.path), "--episodes", "1"]) == 0
    assert f"not known: whether {run.config} has been edited (" in capsys.readouterr().err
