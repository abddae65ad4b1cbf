"""The commands as a person types them: what they write, what they say, and one line for each mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
from motion_toys import SKELETON, rows, write

from tickgraph import cli
from tickgraph.motion import CLIP_NAMES
from tickgraph.motion.load import read_motion
from tickgraph.motion.read_npz import BODY_KEYS


def test_convert_writes_what_other_tools_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "a.csv", rows()), tmp_path / "a.npz"
    assert cli.main(["motion", "convert", str(source), str(target)]) == 0
    shown = capsys.readouterr()
    assert "51 frames at 50 fps, 1.00 s" in shown.out and "30 frames per second assumed" in shown.out
    assert shown.err == ""
    arrays = np.load(target, allow_pickle=False)
    assert set(arrays) == {"fps", *BODY_KEYS, "joint_names", "body_names"}
    assert arrays["fps"].tolist() == [50] and arrays["body_quat_w"].shape == (51, 30, 4)
    assert tuple(arrays["joint_names"]) == SKELETON.joint_names
    assert cli.main(["motion", "convert", str(source), str(target), "--fps", "60", "--to-fps", "25"]) == 0
    assert np.load(target)["joint_pos"].shape == (13, 29)  # half a second


def test_ten_minutes_are_converted_whole(tmp_path: Path) -> None:
    table = np.tile(rows()[:30], (600, 1))
    table[:, 0] = np.arange(len(table)) / 30
    source = write(tmp_path / "long.csv", table)
    assert cli.main(["motion", "convert", str(source), str(tmp_path / "long.npz")]) == 0
    assert read_motion(tmp_path / "long.npz").frames == 29_999


def test_info_counts_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = rows()
    table[:, 2] = 1.0  # in the air
    table[10:, 0] += 5.0  # a jump of 5 m
    table[3:5, 7 + SKELETON.joint_names.index("left_ankle_roll_joint")] = 0.5  # its limit is 0.2618
    target = tmp_path / "info.json"
    assert cli.main(["motion", "info", str(write(tmp_path / "a.csv", table)), "--json", str(target)]) == 0
    shown = capsys.readouterr().out
    assert "1 jumps, the first in frame 10 (0.33 s): root at 151 m/s" in shown
    assert "1 joint beyond the limits, left_ankle_roll_joint by up to 0.24 rad in 2 frames" in shown
    assert "no foot comes closer to the ground than 0." in shown
    value = json.loads(target.read_text())
    assert {"commit", "versions", "frames", "joints", "feet", "jumps"} <= set(value)
    assert value["frames"] == 31 and value["limit_violations"] == 1 and value["feet"][0]["contact"] == 0.0


def test_info_sees_a_foot_that_slides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {"fps": 50, "qpos": read_motion(Path(cli.__file__).parent / "motion/clips/sway.npz").clip().qpos.numpy()}
    arrays["qpos"][:, 0] += 0.3 * np.arange(501) / 50  # 0.3 m/s
    np.savez(tmp_path / "slide.npz", **arrays)
    assert cli.main(["motion", "info", str(tmp_path / "slide.npz"), "--json", str(tmp_path / "s.json")]) == 0
    for foot in json.loads((tmp_path / "s.json").read_text())["feet"]:
        assert foot["contact"] == 1.0 and foot["slide_mean"] == pytest.approx(0.3, abs=1e-3)


def test_synth_makes_the_clips_anew(tmp_path: Path) -> None:
    assert cli.main(["motion", "synth", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.npz")} == set(CLIP_NAMES)
    assert set(np.load(tmp_path / "walk.npz")) == {"fps", "qpos", "joint_names"}


def test_synth_makes_no_folders_for_a_typo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["motion", "synth", str(tmp_path / "a" / "b" / "c")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"could not make {tmp_path}/a/b/c: there is no folder {tmp_path}/a; make it" in line
    assert not list(tmp_path.iterdir())


def test_angles_in_degrees_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = rows()
    table[:, 7:] = np.rad2deg(table[:, 7:])
    assert cli.main(["motion", "info", str(write(tmp_path / "a.csv", table))]) == 0
    assert "frames; are these degrees? Radians are expected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "words"),
    [(100.0, "are positions in centimetres"), (1000.0, "are positions in millimetres"), (3.0, "")],
)
def test_positions_in_another_unit_are_told(
    factor: float, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows()
    table[:, :3] *= factor
    assert cli.main(["motion", "info", str(write(tmp_path / "a.csv", table))]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "no foot comes closer" in line]
    assert words in note and ("Metres are expected" in note) == bool(words)


def test_a_motion_far_from_the_origin_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = rows()
    note = "note: the root is up to 1e+09 m from the origin, where float32 goes in steps of 64 m: move the motion"
    for x, said in ((900.0, ""), (1e9, note)):
        table[:, 0] += x
        assert cli.main(["motion", "info", str(write(tmp_path / "a.csv", table))]) == 0
        out = capsys.readouterr().out
        assert said in out and ("from the origin" in out) == bool(said)


def test_a_bar_is_drawn_where_standard_error_is_a_terminal_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", fps=30.0, qpos=np.full((4, 36), np.nan))
    assert cli.main(["motion", "convert", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tickgraph: ") and "qpos is not finite in 4 of 4 frames" in line
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert cli.main(["motion", "convert", str(write(tmp_path / "a.csv", rows())), str(tmp_path / "b.npz")]) == 0
    shown = capsys.readouterr().err
    assert "reading" in shown and "100%" in shown


def test_play_writes_a_film(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.csv", rows()[:10])
    target = tmp_path / "a.mp4"
    code = cli.main(["motion", "play", str(tmp_path / "a.csv"), "--video", str(target)])
    shown = capsys.readouterr()
    if "no pictures can be drawn here" in shown.err:
        pytest.skip("nothing can be drawn here")
    assert "note: the file does not say its rate" in shown.out
    assert code == 0 and target.stat().st_size > 1000 and target.read_bytes()[4:8] == b"ftyp"


def test_a_part_of_a_motion_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "a.csv", rows()), tmp_path / "b.npz"  # 31 frames at 30 fps, 1 m/s along x
    for words, x in (("--from 0.2 --to 0.6", (0.2, 0.6)), ("--from 0.9", (0.9, 1.0)), ("--to 0.1", (0.0, 0.1))):
        assert cli.main(["motion", "convert", str(source), str(target), "--to-fps", "30", *words.split()]) == 0
        with np.load(target) as arrays:
            assert arrays["body_pos_w"][[0, -1], 0, 0] == pytest.approx(x, abs=1e-6)
    assert "a.csv: 4 frames at 30 fps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("info a.csv --from 1.5", "a has no frame from 1.5 s; it goes from 0 to 1 s"),
        ("info a.csv --from 0.5 --to 0.4", "a has no frame from 0.5 to 0.4 s"),
        ("convert a.csv b.npz --from 1", "holds 1 frame from --from to --to; a motion needs at least 2"),
        ("convert a.csv b.npz --from -1", "--from is -1, expected seconds from the first frame, at least 0"),
        ("convert a.csv b.npz --to nan", "--to is nan, expected seconds"),
        ("inf a.csv", "no command `tickgraph motion inf`; did you mean 'info'"),
        ("convert a.csv", "needs FILE OUT"),
        ("info", "needs FILE"),
        ("convert a.csv a.txt", "a name that ends in .npz"),
        ("convert a.csv absent/a.npz", "could not write absent/a.npz: there is no folder absent; make it"),
        ("play a.csv --video absent/a.mp4", "could not write absent/a.mp4: there is no folder absent; make it"),
        ("info a.csv --json absent/a.json", "could not write absent/a.json: there is no folder absent; make it"),
        ("convert d.csv d.npz", "holds 1 frame; a motion needs at least 2"),
        ("convert a.csv b.npz --fps 0", "--fps: fps is 0, expected 0.001 to 1000"),
        ("convert a.csv b.npz --fps 1e-310", "--fps: fps is 1e-310, expected 0.001 to 1000"),
        ("info a.csv --from 1e308", "a has no frame from 1e+308 s; it goes from 0 to 1 s"),
        (f"info {'a' * 300}.csv", "aaa.csv cannot be read: File name too long"),
        (f"convert a.csv {'a' * 300}.npz", "aaa.npz: File name too long"),
        (f"info a.csv --json {'a' * 300}", "aaa: File name too long"),
        ("convert a.csv b.npz --fps x", "--fps is 'x', expected a number"),
        ("info a.csv --quat xwyz", "--quat is 'xwyz', expected xyzw or wxyz"),
        ("info squats", "did you mean 'squat'"),
        ("info .", "is a folder; name one of its"),
        ("play a.csv", "needs --video OUT"),
        ("play a.csv --video a.gif", "ends in .mp4"),
        ("info a.csv --fsp 3", "no option --fsp; did you mean --fps?"),
        ("info a.csv b.csv", "'b.csv' stands where an option was expected"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: str, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", rows())
    write(tmp_path / "d.csv", rows()[:1])
    assert cli.main(["motion", *words.split()]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tickgraph: ")]
    assert len(lines) == 1 and reason in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "d.csv"]


def test_help_names_commands_and_clips(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["motion"]) == cli.main(["motion", "convert", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("motion convert", "motion synth", "arm_wave", "--to-fps N"))
