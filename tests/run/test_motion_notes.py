"""What is said of a motion file before a run trains on it, and kept in its manifest."""

from pathlib import Path

import numpy as np
import pytest

from tickgraph import cli
from tickgraph.motion.load import read_motion, shipped
from tickgraph.run import manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.motion_notes import SHOWN, motion_notes, note_lines
from tickgraph.tasks.registry import load

TASK = "g1_motion_tracking"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A squat upside down, in degrees, 79 m above the ground, that does not say its rate."""
    motion = read_motion(shipped()["squat"])
    w, x, y, z = motion.root_quat.T
    turned = np.stack([w, z, -y, -x], axis=1)  # half a turn about x behind the root's own, as x y z w
    table = np.concatenate((motion.root_pos + (0.0, 0.0, 79.0), turned, np.rad2deg(motion.joint_pos)), axis=1)
    path = tmp_path / "odd.csv"
    np.savetxt(path, table, delimiter=",")
    return path


def test_sound_clips_have_no_notes() -> None:
    task = load(TASK)
    task.env.commands["motion"].clips = tuple(shipped())
    assert motion_notes(task, 0.02) == {}
    assert motion_notes(load("cartpole_swingup"), 0.02) == {}


def test_a_run_says_what_convert_would_and_keeps_it(
    odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["motion", "convert", str(odd), "odd.npz"]) == 0
    converted = [line.removeprefix("note: ") for line in capsys.readouterr().out.splitlines() if "note: " in line]
    for words in ("upside down", "30 frames per second assumed", "these degrees", "79."):
        assert any(words in line for line in converted), converted
    words = "--device cpu --execution eager --num-envs 2 --train.replay-slots 16 --iterations 9 --stop-after 1"
    command = ["train", TASK, "--env.commands.motion.clips", str(odd), *words.split(), "--run-name", "one"]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("note: motion odd: ") for line in shown if line.startswith("note: ")] == converted
    run = RunFolder(Path("runs") / TASK / "one")
    assert manifest.read_manifest(run)["motion_notes"] == {"odd": converted}
    assert cli.main(["train", "--resume", str(run.path), "--stop-after", "2"]) == 0
    assert "note: " not in capsys.readouterr().out  # said once
    assert manifest.read_manifest(run)["motion_notes"] == {"odd": converted}


def test_a_folder_full_of_odd_motions_does_not_fill_the_screen() -> None:
    lines = note_lines({f"clip{number}": ["odd", "very odd"] for number in range(10)})
    assert len(lines) == SHOWN + 1
    assert lines[-1] == f"note: {20 - SHOWN} more on motions are in run_manifest.json"
    assert note_lines({"a": ["odd"] * 9}, "are elsewhere")[-1] == "note: 1 more on motions are elsewhere"
    assert note_lines({"a": ["odd"]}) == ["note: motion a: odd"]
    assert note_lines({}) == []
