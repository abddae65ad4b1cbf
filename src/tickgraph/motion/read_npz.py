"""Motion from npz files: bodies as mjlab, UniLab and BeyondMimic write them, or generalized positions alone."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.motion.clip import Tell
from tickgraph.motion.motion import (
    Floats,
    Motion,
    check_frames,
    check_size,
    checked_fps,
    order_of,
    shown,
    unit_quaternions,
)
from tickgraph.motion.quat_order import OTHER_ORDER, other_order, upside_down
from tickgraph.motion.resample import angular_rates, rates
from tickgraph.motion.skeleton import Skeleton

BODY_KEYS = ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
_NAMES = ("joint_names", "body_names")
_WIDTHS = {"body_pos_w": 3, "body_quat_w": 4, "body_lin_vel_w": 3, "body_ang_vel_w": 3}
_WXYZ = {"wxyz": [0, 1, 2, 3], "xyzw": [3, 0, 1, 2]}  # where w x y z stand in a file's order
# Bodies may differ from our robot's by this much, m: descriptions of one robot do, the joints' order does far more.
_BODY_TOLERANCE = 0.1
_COMPARED = 500  # frames, spread over the file
# Velocities may differ from the differences of the positions by half of these and this much, root mean squares: tools
# filter, shift by half a frame, and take bodies at their centre of mass; a wrong unit or rate does far more.
_VELOCITY_SHARE, _VELOCITY_SLACK = 0.5, 0.2  # rad/s or m/s


def read_npz(
    path: Path, skeleton: Skeleton, fps: float | None = None, order: str | None = None, tell: Tell | None = None
) -> Motion:
    """Read an npz file; only plain arrays are ever loaded, never pickled objects.

    Either fps and BODY_KEYS, or fps and qpos (T, 7 + J); joint_names and body_names may be there. Without joint_names
    the joints of the first form are in the robot's order or in breadth-first order, whichever puts the bodies where the
    file has them. Velocities are checked, not used: they are computed anew, and a note says where those of joints and
    root are others.

    Args:
        path: the file.
        skeleton: whose joints these are.
        fps: frames per second, in place of the file's own.
        order: of the quaternions, ``wxyz`` (the default) or ``xyzw``.
        tell: hears of progress.

    Raises:
        TickgraphError: one line that names what is wrong and where.
    """
    check_size(path, path.stat().st_size)
    arrays, others = _load(path, tell)
    missing = [key for key in BODY_KEYS if key not in arrays]
    if missing and "qpos" not in arrays:
        raise TickgraphError(
            f"{path} lacks {', '.join(missing)}; it has {shown([*arrays, *others]) or 'nothing'}; "
            f"expected fps, {', '.join(BODY_KEYS)}, or fps and qpos: root position 3, quaternion w x y z, joints"
        )
    if fps is None:
        if "fps" not in arrays:
            raise TickgraphError(f"{path} lacks fps; give --fps to `tickgraph motion convert`, and take what it makes")
        fps = _scalar(arrays["fps"], path)
    fps = checked_fps(fps, path)
    order = order or "wxyz"
    notes: list[str] = []
    if "qpos" in arrays:
        root_pos, root_quat, joints = _positions(arrays, skeleton, path, order)
        notes += other_order(skeleton, root_pos, root_quat, joints, fps, order)
    else:
        root_pos, root_quat, joints = _bodies(arrays, skeleton, path, order, fps, notes)
        if upside_down(root_quat):  # the bodies tell the order
            notes.append("the robot is upside down in most frames")
    return Motion(path.stem, skeleton, fps, root_pos, root_quat, joints, notes)


def _load(path: Path, tell: Tell | None) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the arrays that matter, checked for kind and size before any of them is read, and the others' names."""
    with open(path, "rb") as file:
        start = file.read(2)
    if start != b"PK":
        pickled = " but a pickle, which can run code and is never loaded" if start[:1] == b"\x80" else ""
        raise TickgraphError(f"{path} is no npz file{pickled}; save the arrays with numpy.savez")
    wanted = ("fps", "qpos", *BODY_KEYS, *_NAMES)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = {key: members[key] for key in wanted if key in members}
            check_size(path, sum(info.file_size for info in found.values()))
            for done, (key, info) in enumerate(found.items()):
                with archive.open(info) as member:
                    _check_header(member, key, path)
                with archive.open(info) as member:
                    arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
                if tell is not None:
                    tell("reading", done + 1, len(found))
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, TickgraphError):
            raise
        raise TickgraphError(f"{path} is damaged: {' '.join(str(error).split())[:150]}") from error
    return arrays, [key for key in members if key not in arrays]


def _check_header(member: IO[bytes], key: str, path: Path) -> None:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    if dtype.hasobject:
        raise TickgraphError(
            f"{path}: {key} holds pickled Python objects, which can run code and are never loaded; save it as a plain "
            "array" + (" of text, numpy.array(names, dtype=str)" if key in _NAMES else " of numbers")
        )
    check_size(path, int(np.prod(shape, dtype=object)) * dtype.itemsize)
    if key not in ("fps", *_NAMES) and shape:
        check_frames(path, int(shape[0]))
    if (key in _NAMES) != (dtype.kind in "US") or (key not in _NAMES and dtype.kind not in "fiu"):
        raise TickgraphError(f"{path}: {key} holds {dtype}, expected {'text' if key in _NAMES else 'numbers'}")


def _scalar(value: NDArray[Any], path: Path) -> float:
    if value.size != 1:
        raise TickgraphError(f"{path}: fps has shape {value.shape}, expected one number")
    return float(value.reshape(()))


def _finite(arrays: dict[str, NDArray[Any]], key: str, shape: tuple[int | None, ...], path: Path, why: str) -> Floats:
    """Return an array as float64; raises TickgraphError where its shape or a value is not as expected."""
    value = arrays[key]
    fits = value.ndim == len(shape) and all(b is None or a == b for a, b in zip(value.shape, shape, strict=False))
    if not fits or not value.shape[0]:
        wanted = ", ".join("T" if size is None else str(size) for size in shape)
        raise TickgraphError(f"{path}: {key} has shape {value.shape}, expected ({wanted}){why}")
    bad = ~np.isfinite(value.reshape(len(value), -1)).all(axis=1)
    if bad.any():
        raise TickgraphError(
            f"{path}: {key} is not finite in {int(bad.sum())} of {len(bad)} frames, first in frame {int(bad.argmax())}"
        )
    return value.astype(np.float64)


def _names(arrays: dict[str, NDArray[Any]], key: str) -> list[str] | None:
    if key not in arrays:
        return None
    names = arrays[key].reshape(-1).tolist()
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]


def _joint_order(arrays: dict[str, NDArray[Any]], skeleton: Skeleton, path: Path) -> list[int] | None:
    names = _names(arrays, "joint_names")
    return None if names is None else order_of(names, skeleton.joint_names, path, "joint")


def _positions(
    arrays: dict[str, NDArray[Any]], skeleton: Skeleton, path: Path, quat_order: str
) -> tuple[Floats, Floats, Floats]:
    order = _joint_order(arrays, skeleton, path)
    count = len(skeleton.joint_names)
    why = f": root position 3, quaternion 4, joints {count}"
    qpos = _finite(arrays, "qpos", (None, 7 + count), path, why)
    quat = unit_quaternions(qpos[:, 3:7][:, _WXYZ[quat_order]], path, _frame)
    joints = qpos[:, 7:]
    return qpos[:, :3], quat, joints if order is None else joints[:, order]


def _bodies(
    arrays: dict[str, NDArray[Any]],
    skeleton: Skeleton,
    path: Path,
    quat_order: str,
    fps: float,
    notes: list[str],
) -> tuple[Floats, Floats, Floats]:
    order, names = _joint_order(arrays, skeleton, path), _names(arrays, "body_names")
    count, bodies = len(skeleton.joint_names), len(skeleton.body_names)
    joint_pos = _finite(arrays, "joint_pos", (None, count), path, f": the robot has {count} joints")
    frames = len(joint_pos)
    listed = bodies if names is None else len(names)
    nameless = f"the robot's {bodies} bodies; body_names tells where there are others"
    why = f": {frames} frames, {nameless if names is None else f'{listed} body_names'}"
    values = {key: _finite(arrays, key, (frames, listed, width), path, why) for key, width in _WIDTHS.items()}
    joint_vel = _finite(arrays, "joint_vel", (frames, count), path, why)
    pos, quat = values["body_pos_w"], unit_quaternions(values["body_quat_w"][..., _WXYZ[quat_order]], path, _frame)
    root_name = skeleton.body_names[0]
    if names is not None and root_name not in names:
        raise TickgraphError(f"{path}: body_names has no {root_name!r}, the root")
    root = 0 if names is None else names.index(root_name)
    joint_order, how = _match(skeleton, pos, quat, joint_pos, root, order, names, quat_order, path)
    root_pos, root_quat = torch.from_numpy(pos[:, root]), torch.from_numpy(quat[:, root])
    notes += how
    notes += _other_velocities("joint_vel", joint_vel, rates(torch.from_numpy(joint_pos), fps), "rad/s")
    for key, moved, unit in (
        ("body_lin_vel_w", rates(root_pos, fps), "m/s"),
        ("body_ang_vel_w", angular_rates(root_quat, fps), "rad/s"),
    ):
        notes += _other_velocities(f"{key} of the root", values[key][:, root], moved, unit)
    return pos[:, root], quat[:, root], joint_pos[:, joint_order]


def _other_velocities(what: str, given: Floats, differences: Tensor, unit: str) -> list[str]:
    """Return a note where a file's velocities (T, ...) are not what its positions change by, else nothing."""
    ours = differences.numpy()
    if len(ours) < 2:
        return []
    error, size, said = (float(np.sqrt(np.mean(part**2))) for part in (given - ours, ours, given))
    if error <= _VELOCITY_SHARE * size + _VELOCITY_SLACK:
        return []
    return [
        f"{what} is {said:.3g} {unit} (root mean square), and the positions change by {size:.3g} {unit}, which is used"
        "; is the unit or the fps another one?"
    ]


def _match(
    skeleton: Skeleton,
    pos: Floats,
    quat: Floats,
    joint_pos: Floats,
    root: int,
    order: list[int] | None,
    names: list[str] | None,
    quat_order: str,
    path: Path,
) -> tuple[list[int], list[str]]:
    """Return the order of the joints under which the bodies are where the file has them, and what to say of it.

    Args:
        quat_order: in which `quat` was read.
    """
    level = skeleton.breadth_first()
    levels = [skeleton.joint_of[body] for body in level if skeleton.joint_of[body] >= 0]
    in_order = list(range(len(skeleton.joint_names)))
    by_level = [levels.index(joint) for joint in in_order]
    body_orders: list[list[tuple[int, int]]]  # pairs: a body of ours, its place in the file
    if names is not None:
        body_orders = [[(skeleton.body_names.index(n), i) for i, n in enumerate(names) if n in skeleton.body_names]]
    else:
        body_orders = [[(i, i) for i in range(len(level))], [(body, i) for i, body in enumerate(level)]]
    picked = np.unique(np.linspace(0, len(pos) - 1, min(len(pos), _COMPARED)).astype(int))

    def nearest(root_quat: Floats, unit: float = 1.0) -> tuple[float, list[int], dict[bool, float]]:
        best, found = np.inf, in_order
        errors: dict[bool, float] = {}  # by whether the joints are in the model's order
        for joints in [order] if order is not None else [in_order, by_level]:
            ours, _ = skeleton.forward(
                *(torch.from_numpy(part[picked]) for part in (pos[:, root], root_quat, unit * joint_pos[:, joints]))
            )
            for pairs in body_orders:
                mine, theirs = zip(*pairs, strict=True)
                error = float(np.linalg.norm(ours.numpy()[:, mine] - pos[picked][:, theirs], axis=-1).max())
                errors[joints is in_order] = min(error, errors.get(joints is in_order, np.inf))
                if error < best - 1e-9:
                    best, found = error, joints
        return best, found, errors

    best, found, errors = nearest(quat[:, root])
    if best > _BODY_TOLERANCE:
        other, columns = OTHER_ORDER[quat_order]
        if nearest(quat[:, root][:, columns])[0] < _BODY_TOLERANCE:
            hint = f"with the quaternions read as {other} they are there: give --quat {other} to `motion convert`"
        elif nearest(quat[:, root], math.pi / 180.0)[0] < _BODY_TOLERANCE:
            hint = "with joint_pos taken for degrees they are there: save it in radians"
        else:
            hint = "is it another robot, or another order of joints? joint_names and body_names tell the order"
        raise TickgraphError(
            f"{path}: bodies lie up to {best:.2g} m from where the joints put those of our robot; {hint}"
        )
    notes = []
    if order is None:
        taken, other = "the order of the model", "breadth-first order"
        if found is not in_order:
            taken, other = other, taken
        note = f"joints without names: {taken}"
        moved = not np.array_equal(joint_pos[:, in_order], joint_pos[:, by_level])
        if moved and abs(errors[True] - errors[False]) < 1e-6:  # the file's bodies hang on no joint
            note += f" is taken, but {other} fits its bodies as well; joint_names in the file tells which it is"
        notes.append(note)
    if best > 1e-3:
        notes.append(f"bodies differ by up to {best:.2g} m from our robot's, which are used")
    return found, notes


def _frame(index: int) -> str:
    return f"frame {index}"
