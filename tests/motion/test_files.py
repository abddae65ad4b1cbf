"""Motion files as people have them, and one clear line for each that is none."""

import errno
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from motion_toys import KNEE, LACKING, SKELETON, J, rows, write

from tickgraph.core.errors import TickgraphError
from tickgraph.motion import motion as limits
from tickgraph.motion.figures import figures
from tickgraph.motion.load import find, load_clips, read_motion, shipped
from tickgraph.motion.read_npz import BODY_KEYS

NAMES = list(SKELETON.joint_names)


def refused(path: Path, **options: object) -> str:
    """Return the one line of a file that is no motion."""
    with pytest.raises(TickgraphError) as found:
        read_motion(path, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def bodies() -> dict[str, np.ndarray]:
    """Return what a file with bodies holds, of the squat."""
    (clip,) = load_clips("squat", 50.0)
    return clip.arrays()


def test_a_nameless_csv(tmp_path: Path) -> None:
    motion = read_motion(write(tmp_path / "a.csv", rows()))
    assert any("30 frames per second assumed" in note for note in motion.notes)
    clip = motion.clip(50.0)
    assert (clip.frames, clip.seconds) == (51, 1.0)
    assert torch.allclose(clip.body_lin_vel_w[:, 0].norm(dim=1), torch.ones(51), atol=1e-4)
    assert torch.allclose(clip.body_ang_vel_w[:, 0, 2], torch.full((51,), 0.5), atol=1e-4)
    quat = clip.body_quat_w[25, 0]
    assert torch.allclose(quat * quat[0].sign(), torch.tensor([0.992198, 0.0, 0.0, 0.124675]), atol=1e-6)
    assert float(clip.joint_pos[25, KNEE]) == pytest.approx(0.5, abs=0.002)
    assert float(clip.joint_pos[12, KNEE]) == pytest.approx(0.699, abs=0.002)
    assert read_motion(tmp_path / "a.csv", fps=60.0).clip(50.0).seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    "root",
    [
        ("x", "y", "z", "w", "x", "y", "z"),
        ("x", "y", "z", "qw", "qx", "qy", "qz"),
        ("root_pos_x", "root_pos_y", "root_pos_z", "root_quat_w", "root_quat_x", "root_quat_y", "root_quat_z"),
        ("px", "py", "pz", "w", "x", "y", "z"),
        ("root_translateX", "root_translateY", "root_translateZ", "rootRotateW", "rotateX", "rotateY", "rotateZ"),
    ],
)
def test_named_columns_in_another_order_are_the_same_motion(tmp_path: Path, root: tuple[str, ...]) -> None:
    table = rows()
    plain = read_motion(write(tmp_path / "a.csv", table)).clip(50.0)
    mixed = np.concatenate((table[:, :3], table[:, [6, 3, 4, 5]], table[:, :6:-1]), axis=1)
    named = read_motion(write(tmp_path / "b.csv", mixed, [*root, *reversed(NAMES)])).clip(50.0)
    assert torch.allclose(plain.qpos, named.qpos, atol=1e-6) and torch.allclose(plain.joint_vel, named.joint_vel)


def test_names_may_lack_their_ending_and_a_column_of_times_gives_the_rate(tmp_path: Path) -> None:
    table = np.concatenate((np.arange(31)[:, None] / 60.0, rows()), axis=1)
    names = ["time", "x", "y", "z", "qx", "qy", "qz", "qw", *(name.removesuffix("_joint") for name in NAMES)]
    motion = read_motion(write(tmp_path / "t.csv", table, names))
    assert motion.fps == 60.0 and motion.notes == []
    table[:, 0] *= 1000.0
    with pytest.raises(TickgraphError, match="goes up by 16.6667 .* are these milliseconds"):
        read_motion(write(tmp_path / "ms.csv", table, names))


def test_remarks_and_names_behind_a_hash_are_as_numpy_writes_them(tmp_path: Path) -> None:
    plain = read_motion(write(tmp_path / "a.csv", rows()))
    names = [*(f"root_pos_{letter}" for letter in "xyz"), *(f"root_quat_{letter}" for letter in "xyzw"), *NAMES]
    np.savetxt(tmp_path / "n.csv", rows(), delimiter=",", header=",".join(names))
    np.savetxt(tmp_path / "r.csv", rows(), delimiter=";", header="by hand;a;b;c;d;e;f;g;h\n30 fps", footer="the end")
    for name in ("n.csv", "r.csv"):
        motion = read_motion(tmp_path / name)
        assert np.allclose(motion.joint_pos, plain.joint_pos) and np.allclose(motion.root_quat, plain.root_quat)
    lines = (tmp_path / "a.csv").read_text().replace(",", ";").replace(".", ",")
    (tmp_path / "comma.csv").write_text(lines)
    assert "line 1: '0,000000000' has a decimal comma; write numbers with points" in refused(tmp_path / "comma.csv")


def test_a_csv_of_spreadsheets_and_pandas(tmp_path: Path) -> None:
    plain = read_motion(write(tmp_path / "a.csv", rows()))
    quoted = [",".join(f'"{number:.9f}"' for number in row) for row in rows()]
    (tmp_path / "quoted.csv").write_text("\r\n".join(quoted) + "\r\n\r\n")
    (tmp_path / "numbered.csv").write_text("\n".join([",".join(map(str, range(36))), *quoted]))
    for name in ("quoted.csv", "numbered.csv"):
        assert np.allclose(read_motion(tmp_path / name).joint_pos, plain.joint_pos)
    names = ["x", "y", "z", "qx", "qy", "qz", "qw", *NAMES]
    write(tmp_path / "named.csv", rows(), [f'"{name}"' for name in names])
    assert np.allclose(read_motion(tmp_path / "named.csv").joint_pos, plain.joint_pos)
    lines = [";".join(names), *(line.replace(",", ";").replace(".", ",") for line in quoted)]
    (tmp_path / "comma.csv").write_text("\n".join(lines).replace('"', ""))
    assert "line 2: '0,000000000' has a decimal comma" in refused(tmp_path / "comma.csv")
    (tmp_path / "mac.csv").write_bytes((tmp_path / "a.csv").read_bytes().replace(b"\n", b"\r"))
    assert "lines end in a carriage return alone" in refused(tmp_path / "mac.csv")


@pytest.mark.parametrize(("fps", "digits", "column"), [(30, 2, "time"), (120, 3, "timestamps"), (30, 3, "Time (s)")])
def test_times_that_are_rounded_are_even(tmp_path: Path, fps: int, digits: int, column: str) -> None:
    names = [column, "x", "y", "z", "qx", "qy", "qz", "qw", *NAMES]
    table = np.concatenate((np.round(np.arange(31)[:, None] / fps, digits), rows()), axis=1)
    assert read_motion(write(tmp_path / "a.csv", table, names)).fps == pytest.approx(fps, rel=2e-3)
    for gap in (1, 15, 30):  # a frame is lacking
        dropped = np.delete(table, gap - 1 if gap == 30 else gap, axis=0)
        assert "is not in even steps" in refused(write(tmp_path / "b.csv", dropped, names))


def test_a_single_frame_has_no_velocity_and_is_not_trained_on(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", rows()[:1])
    clip = read_motion(path).clip(50.0)
    value = figures(clip, SKELETON)
    assert value["frames"] == 1 and value["joint_speed_max"] == value["root_speed_max"] == 0.0
    with pytest.raises(TickgraphError, match="holds 1 frame"):
        load_clips(str(path), 50.0)


def test_quaternions_in_the_wrong_place_are_pointed_out(tmp_path: Path) -> None:
    table = rows()
    table[:, 3:7] = table[:, [6, 3, 4, 5]]  # w x y z
    path = write(tmp_path / "w.csv", table)
    assert any("upside down" in note and "--quat wxyz" in note for note in read_motion(path).notes)
    assert not any("upside" in note for note in read_motion(path, order="wxyz").notes)


@pytest.mark.parametrize("heading", [0.0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize(("right", "wrong"), [("wxyz", "xyzw"), ("xyzw", "wxyz")])
def test_the_other_order_is_named_whichever_way_the_robot_walks(
    tmp_path: Path, heading: float, right: str, wrong: str
) -> None:
    motion = read_motion(shipped()["walk"])
    assert motion.notes == []
    turn = np.array([np.cos(heading / 2), np.sin(heading / 2)])
    w, x, y, z = motion.root_quat.T
    quat = np.stack([turn[0] * w - turn[1] * z, turn[0] * x - turn[1] * y, turn[0] * y + turn[1] * x])
    quat = np.concatenate((quat, [turn[0] * z + turn[1] * w])).T
    (c, s), pos = (np.cos(heading), np.sin(heading)), motion.root_pos.copy()
    pos[:, :2] = pos[:, :2] @ np.array([[c, s], [-s, c]])
    if right == "xyzw":
        quat = quat[:, [1, 2, 3, 0]]
    qpos = np.concatenate((pos, quat, motion.joint_pos), axis=1)
    npz, csv = save(tmp_path / "a.npz", fps=50, qpos=qpos), write(tmp_path / "a.csv", qpos)
    for path in (npz, csv):
        assert [note for note in read_motion(path, fps=50.0, order=right).notes if "quat" in note] == []
        (note,) = read_motion(path, fps=50.0, order=wrong).notes
        assert f"--quat {right}" in note and any(w in note for w in ("upside down", "slides at", "leans by")), note


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "holds nothing"),
        (lambda lines: ["a,b,c"], "names but no numbers"),
        (
            lambda lines: [*lines[:4], lines[4].replace("0.780000000", "high")],
            "line 5, column 3: 'high' is not a number",
        ),
        (lambda lines: [*lines[:4], lines[4].replace("0.780000000", "nan")], "line 5, column 3: nan is not finite"),
        (lambda lines: [*lines, "1,2,3"], "line 32: 3 columns, expected 36"),
        (lambda lines: [",".join(line.split(",")[:30]) for line in lines], "has 30 columns, expected 36"),
        (
            lambda lines: [lines[0], lines[1].replace("-1.000", "-1.1").replace("-0.9999", "-1.1")],
            "the quaternion of line 2",
        ),
    ],
)
def test_a_csv_that_is_no_motion(tmp_path: Path, change: object, reason: str) -> None:
    path = write(tmp_path / "bad.csv", rows())
    path.write_text("\n".join(change(path.read_text().splitlines())))
    assert reason in refused(path)


def test_joints_that_are_missing_are_named(tmp_path: Path) -> None:
    keep = [i for i, name in enumerate(NAMES) if name.removesuffix("_joint") not in LACKING]
    table = rows()[:, [*range(7), *(7 + i for i in keep)]]
    line = refused(write(tmp_path / "c.csv", table, ["x", "y", "z", "qx", "qy", "qz", "qw", *(NAMES[i] for i in keep)]))
    assert len(keep) == 23 and all(f"{name}_joint" in line for name in LACKING)
    angles = ["x", "y", "z", "rx", "ry", "rz"]
    line = refused(write(tmp_path / "e.csv", rows()[:, [*range(6), *range(7, 7 + J)]], [*angles, *NAMES]))
    assert "do not tell which is the quaternion's w, x, y and z (three angles are not read)" in line
    odd = ["x", "y", "z", "qx", "qy", "qz", "qw", "left_hip_pich_joint", *NAMES[1:]]
    line = refused(write(tmp_path / "o.csv", rows(), odd))
    assert "lacks left_hip_pitch_joint" in line and "did you mean 'left_hip_pitch_joint'" in line
    other = ["x", "y", "z", "qx", "qy", "qz", "qw", *(f"robot/{name}" for name in NAMES)]
    line = refused(write(tmp_path / "p.csv", rows(), other))
    assert "left_knee_joint" in line and "and 21 more; it has unknown robot/left_hip_pitch_joint" in line
    assert "right_wrist_yaw" not in line


def test_files_of_other_tools(tmp_path: Path) -> None:
    arrays = bodies()
    (clip,) = load_clips("squat", 50.0)
    plain = read_motion(save(tmp_path / "ours.npz", **arrays))
    assert plain.notes == [] and torch.equal(plain.clip().qpos, clip.qpos)
    nameless = {key: value for key, value in arrays.items() if not key.endswith("_names")}
    motion = read_motion(save(tmp_path / "mjlab.npz", **nameless))
    assert "order of the model" in motion.notes[0] and torch.equal(motion.clip().qpos, clip.qpos)
    level = SKELETON.breadth_first()
    joints = [SKELETON.joint_of[body] for body in level if SKELETON.joint_of[body] >= 0]
    other = {
        k: v[:, joints] if k.startswith("joint") else v[:, level] if v.ndim == 3 else v for k, v in nameless.items()
    }
    motion = read_motion(save(tmp_path / "isaac.npz", **other))
    assert "breadth-first" in motion.notes[0] and torch.equal(motion.clip().qpos, clip.qpos)
    other["joint_names"] = np.array([NAMES[joint] for joint in joints])
    other["body_names"] = np.array([SKELETON.body_names[body] for body in level])
    assert torch.equal(read_motion(save(tmp_path / "named.npz", **other)).clip().qpos, clip.qpos)
    qpos = read_motion(save(tmp_path / "qpos.npz", fps=25.0, qpos=clip.qpos.numpy()[::2]))
    assert qpos.clip(50.0).frames == clip.frames
    assert float((qpos.clip(50.0).qpos - clip.qpos).abs().max()) < 0.01


def test_an_order_of_joints_that_the_bodies_do_not_tell_is_said(tmp_path: Path) -> None:
    arrays = bodies()
    alone = {key: value[:, :1] if value.ndim == 3 else value for key, value in arrays.items()}
    alone["body_names"] = arrays["body_names"][:1]
    assert read_motion(save(tmp_path / "named.npz", **alone)).notes == []
    del alone["joint_names"]
    (note,) = read_motion(save(tmp_path / "nameless.npz", **alone)).notes
    assert note == (
        "joints without names: the order of the model is taken, but breadth-first order fits its bodies as well; "
        "joint_names in the file tells which it is"
    )
    still = {**alone, "joint_pos": alone["joint_pos"] * 0, "joint_vel": alone["joint_vel"] * 0}
    (note,) = read_motion(save(tmp_path / "still.npz", **still)).notes
    assert note == "joints without names: the order of the model"  # both orders are the same motion


@pytest.mark.parametrize("key", ["fps", *BODY_KEYS])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    arrays = bodies()
    del arrays[key]
    assert f"lacks {key};" in refused(save(tmp_path / "m.npz", **arrays))


def test_what_an_npz_has_instead_is_named(tmp_path: Path) -> None:
    (clip,) = load_clips("squat", 50.0)
    root, joints = clip.qpos.numpy()[:, :7], clip.qpos.numpy()[:, 7:]
    line = refused(save(tmp_path / "gmr.npz", fps=50, root_pos=root[:, :3], root_rot=root[:, 3:], dof_pos=joints))
    assert f"lacks {', '.join(BODY_KEYS)}; it has fps, root_pos, root_rot, dof_pos; expected fps," in line
    line = refused(save(tmp_path / "many.npz", **{f"key{number}": 0 for number in range(20)}))
    assert "it has key0, key1, key2, key3, key4, key5, key6, key7 and 12 more; expected" in line


def test_bodies_tell_that_quaternions_are_in_the_other_order(tmp_path: Path) -> None:
    arrays = bodies()
    path = save(tmp_path / "a.npz", **{**arrays, "body_quat_w": arrays["body_quat_w"][..., [1, 2, 3, 0]]})
    assert "they are there: give --quat xyzw to `motion convert`" in refused(path)
    (clip,) = load_clips("squat", 50.0)
    assert torch.equal(read_motion(path, order="xyzw").clip().qpos, clip.qpos)
    assert "they are there: give --quat wxyz" in refused(save(tmp_path / "b.npz", **arrays), order="xyzw")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fps": 0}, "fps is 0, expected 0.001 to 1000"),
        ({"fps": 1e-310}, "fps is 1e-310, expected 0.001 to 1000"),
        ({"fps": [50, 50]}, "fps has shape (2,), expected one number"),
        ({"fps": float("nan")}, "fps is nan"),
        (
            {"joint_pos": np.zeros((451, 23))},
            "joint_pos has shape (451, 23), expected (T, 29): the robot has 29 joints",
        ),
        ({"joint_pos": np.zeros((0, 29))}, "joint_pos has shape (0, 29)"),
        ({"body_pos_w": np.zeros((450, 30, 3))}, "body_pos_w has shape (450, 30, 3), expected (451, 30, 3)"),
        ({"joint_pos": np.full((451, 29), np.nan)}, "joint_pos is not finite in 451 of 451 frames, first in frame 0"),
        (
            {"body_quat_w": np.full((451, 30, 4), 0.55)},
            "the quaternion of frame 0 has length 1.1, expected 1 within 0.001",
        ),
        ({"joint_names": np.array(["a"] * 29)}, "it has unknown a, a"),
        ({"joint_names": np.array(["a"], dtype=object)}, "joint_names holds pickled Python objects"),
        ({"joint_pos": np.array([None])}, "joint_pos holds pickled Python objects"),
        ({"joint_pos": np.full((451, 29), "x")}, "joint_pos holds <U1, expected numbers"),
        ({"joint_pos": np.ones((451, 29))}, "bodies lie up to"),
        ({"joint_pos": np.rad2deg(bodies()["joint_pos"])}, "with joint_pos taken for degrees they are there"),
    ],
)
def test_an_npz_that_is_no_motion(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    assert reason in refused(save(tmp_path / "bad.npz", **{**bodies(), **change}))


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path: Path) -> None:
    # 1e200 as a position, 2e38 as one whose speed does not fit, and a line whose sum alone is not finite.
    for column, value, what in ((0, 1e200, "body_pos_w"), (2, 2e38, "body_lin_vel_w"), (7, 1e60, "joint_pos")):
        qpos = np.zeros((5, 7 + J))
        qpos[:, 3] = 1.0
        qpos[2, column] = value
        motion = read_motion(save(tmp_path / "big.npz", fps=50, qpos=qpos))
        with pytest.raises(
            TickgraphError, match=f"big: {what} at 0.0[24] s is beyond 3e\\+38, more than float32 holds"
        ):
            motion.clip(50.0)
    table = rows()
    table[3, [0, 8]] = 1e308
    np.savetxt(tmp_path / "sum.csv", table, delimiter=",")
    with pytest.raises(TickgraphError, match="sum: joint_pos at 0.1 s is beyond"):
        read_motion(tmp_path / "sum.csv").clip(30.0)


def test_quaternions_within_a_thousandth_are_scaled(tmp_path: Path) -> None:
    (clip,) = load_clips("squat", 50.0)
    qpos = clip.qpos.numpy().copy()
    qpos[:, 3:7] *= 1.0009
    motion = read_motion(save(tmp_path / "n.npz", fps=50, qpos=qpos))
    assert np.allclose(np.linalg.norm(motion.root_quat, axis=1), 1.0, atol=1e-12)


class Bomb:
    """Writes a file where a pickle of it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_pickles_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb(mark)))
    save(tmp_path / "c.npz", **{**bodies(), "body_names": np.array([Bomb(mark)], dtype=object)})
    for name, reason in (("a.pkl", "never loaded"), ("b.npz", "a pickle"), ("c.npz", "never loaded")):
        assert reason in refused(tmp_path / name)
    assert not mark.exists()


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for name in ("big.csv", "big.npz"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2 << 30)  # sparse: it takes no place
        line = refused(tmp_path / name)
        assert "holds 2.1 GB, the limit for a motion file is 1.1 GB; cut it into clips" in line
    # A small file whose array says that it is large.
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("fps.npy", _header((1,), "<f8") + b"\0" * 8)
        archive.writestr("qpos.npy", _header((10**8, 36), "<f8"))
    assert "28.8 GB" in refused(tmp_path / "liar.npz")


def _header(shape: tuple[int, ...], kind: str) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def test_too_many_frames_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FRAMES", 40)
    path = write(tmp_path / "a.csv", rows())
    assert read_motion(path).clip(35.0).frames == 36
    with pytest.raises(TickgraphError, match="would have 51 frames at 50 fps; cut it"):
        read_motion(path).clip(50.0)
    monkeypatch.setattr(limits, "MAX_FRAMES", 30)
    assert "31 frames or more" in refused(path)


def test_a_damaged_or_strange_file_is_one_line(tmp_path: Path) -> None:
    whole = save(tmp_path / "w.npz", **bodies()).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in refused(tmp_path / "cut.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    assert "is no npz file" in refused(tmp_path / "empty.npz")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert "is not text" in refused(tmp_path / "binary.csv")
    assert "cannot be read" in refused(tmp_path / "absent.csv")
    assert "neither a .csv nor an .npz" in refused(tmp_path / "a.bvh")
    for name in ("pointer.csv", "pointer.npz"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
        assert refused(tmp_path / name).endswith(
            "is a pointer of Git LFS, not the motion itself; fetch it with `git lfs pull`"
        )
        (tmp_path / name).write_text("\n<!DOCTYPE html>\n<html><head>")
        assert "is a web page" in refused(tmp_path / name)


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: Path) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", closed)  # permissions hold nobody who is root
    with pytest.raises(TickgraphError, match=f"^{tmp_path} cannot be read: Permission denied$"):
        find(str(tmp_path))


def test_references(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows())
    (tmp_path / "notes.md").touch()
    assert [path.name for path in find(str(tmp_path))] == ["a.csv"]
    with pytest.raises(TickgraphError, match="did you mean 'squat'"):
        find("squats")
    assert [clip.name for clip in load_clips(["squat", str(tmp_path)], 50.0)] == ["squat", "a"]
    (tmp_path / "._a.csv").write_bytes(b"\x00\x05\x16\x07")  # of macOS
    assert [path.name for path in find(str(tmp_path))] == ["a.csv"]
    (tmp_path / "all" / "of").mkdir(parents=True)
    write(tmp_path / "all" / "of" / "a.csv", rows())
    with pytest.raises(TickgraphError, match=f"holds no .npz and no .csv file, but {tmp_path}/all/of does"):
        find(f"{tmp_path}/all")
    (tmp_path / "a.csv.gz").touch()
    assert refused(tmp_path / "a.csv.gz").endswith("unpack it first")
    assert J == 29


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "pipe.csv is no ordinary file" in refused(tmp_path / "pipe.csv")
    with pytest.raises(TickgraphError, match="holds no .npz and no .csv file"):
        find(str(tmp_path))
    with pytest.raises(TickgraphError, match=f"there is no motion file {tmp_path}/gone.csv; put it there"):
        find(f"{tmp_path}/gone.csv")
    with pytest.raises(TickgraphError, match=f"there is no motion file {Path.cwd()}/gone.npz; put it there"):
        find("gone.npz")
    (tmp_path / "a.npy").touch()
    assert "numpy.savez(FILE, fps=..., qpos=...)" in refused(tmp_path / "a.npy")


def test_clips_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "walk.csv", rows())
    write(tmp_path / "hop.csv", rows())
    write(tmp_path / "hop.txt", rows())
    files = [str(tmp_path / name) for name in ("left", "right", "hop.csv", "hop.txt")]
    names = ["squat", "left/walk", "right/walk", "hop.csv", "hop.txt", "squat (2)", "march"]
    assert [clip.name for clip in load_clips(["squat", *files, "squat", "march"], 50.0)] == names


def test_clips_are_read_once_until_a_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", rows())
    first = load_clips([str(file)], 50.0)
    assert load_clips([str(file)], 50.0)[0] is first[0]
    assert load_clips([str(file)], 25.0)[0].frames == 26
    assert load_clips(str(file), 50.0)[0] is not first[0]  # only the last is kept
    again = load_clips(str(file), 50.0)[0]
    write(file, rows()[:16])
    os.utime(file, ns=(1, 1))
    assert again.frames == 51 and load_clips(str(file), 50.0)[0].frames == 26


def test_velocities_that_the_positions_do_not_have_are_told(tmp_path: Path) -> None:
    arrays = bodies()
    assert not [note for note in read_motion(save(tmp_path / "own.npz", **arrays)).notes if "root mean square" in note]
    slow = {key: value * 1.3 for key, value in arrays.items() if "vel" in key}
    assert read_motion(save(tmp_path / "near.npz", **(arrays | slow))).notes == []
    for key, what in (
        ("joint_vel", "joint_vel is"),
        ("body_lin_vel_w", "body_lin_vel_w of the root is"),
        ("body_ang_vel_w", "body_ang_vel_w of the root is"),
    ):
        path = save(tmp_path / "a.npz", **(arrays | {key: 50.0 * arrays[key]}))
        (note,) = read_motion(path).notes
        assert note.startswith(what) and "which is used; is the unit or the fps another one?" in note
    assert len(read_motion(save(tmp_path / "b.npz", **(arrays | {"fps": 5.0}))).notes) >= 1
