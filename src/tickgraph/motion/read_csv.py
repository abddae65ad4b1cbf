"""Motion from text: root position, root quaternion and joints in columns, with names in the first line or without."""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tickgraph.core.errors import TickgraphError
from tickgraph.motion.clip import Tell
from tickgraph.motion.motion import (
    Floats,
    Motion,
    check_frames,
    check_size,
    checked_fps,
    order_of,
    unit_quaternions,
)
from tickgraph.motion.quat_order import OTHER_ORDER, other_order, upside_down
from tickgraph.motion.skeleton import Skeleton

ASSUMED_FPS = 30.0  # of the retargeted LAFAN1 sets
SLOWEST_STEP_S = 1.0  # between two frames; no motion is told so slowly
_TOLD_EVERY = 1000  # lines
# Times are even where no step is off by more than this share, or no time by more than that: files round their times.
_UNEVEN_STEP, _UNEVEN_TIME = 0.05, 0.25
_TIMES = ("time", "t", "timestamp", "timestamps", "time_s", "time (s)", "time [s]")
_COUNTERS = ("", "unnamed: 0", "frame", "frame_id", "frame_index", "index")
_LETTER = re.compile(r"(?:^|.*[_. /\-]|.*(?:pos|quat|rot|translate|rotate|p|q|r|t))([wxyz])$")


@dataclass
class _Layout:
    """Which column holds what."""

    position: list[int]
    quaternion: list[int]  # w x y z
    joints: list[int]
    time: int | None = None


def read_csv(
    path: Path, skeleton: Skeleton, fps: float | None = None, order: str | None = None, tell: Tell | None = None
) -> Motion:
    """Read a text file of one frame a line.

    Without names: x y z, quaternion, joints in the robot's order. With names in the first line: any order of columns,
    joints by their names; a column ``time`` gives the rate. Fields are parted by commas, semicolons or blanks, with
    quotes or without; lines that begin with # are names or remarks, a first line 0, 1, 2, ... counts the columns.

    Args:
        path: the file.
        skeleton: whose joints these are.
        fps: frames per second; by default from a column ``time``, else ASSUMED_FPS, which a note says.
        order: of a nameless quaternion, ``xyzw`` (the default) or ``wxyz``.
        tell: hears of progress.

    Raises:
        TickgraphError: one line that names what is wrong and where.
    """
    size = path.stat().st_size
    check_size(path, size)
    if order is not None and order not in OTHER_ORDER:
        raise TickgraphError(f"the order of quaternions is {order!r}, expected {' or '.join(OTHER_ORDER)}")
    header, table, lines = _read(path, size, tell)
    notes: list[str] = []
    if header is None:
        wanted = 7 + len(skeleton.joint_names)
        if table.shape[1] != wanted:
            raise TickgraphError(
                f"{path} has {table.shape[1]} columns, expected {wanted}: root position 3, quaternion 4, joints "
                f"{len(skeleton.joint_names)}; a first line with the joints' names tells which are there"
            )
        order = order or "xyzw"
        layout = _Layout([0, 1, 2], [3 + order.index(letter) for letter in "wxyz"], list(range(7, wanted)))
    else:
        if order is not None:
            raise TickgraphError(f"{path} names its columns, so that the order of its quaternions is known already")
        layout = _layout(header, skeleton, path)
    if fps is None and layout.time is not None:
        fps = _rate(table[:, layout.time], path)
    if fps is None:
        fps = ASSUMED_FPS
        notes.append(
            f"the file does not say its rate: {ASSUMED_FPS:g} frames per second assumed (--fps of `motion convert`)"
        )
    fps = checked_fps(fps, path)
    quat = unit_quaternions(table[:, layout.quaternion], path, lambda frame: f"line {lines[frame]}")
    position, joints = table[:, layout.position], table[:, layout.joints]
    if order is not None:
        notes += other_order(skeleton, position, quat, joints, fps, order)
    elif upside_down(quat):  # the names tell the order
        notes.append("the robot is upside down in most frames")
    return Motion(path.stem, skeleton, fps, position, quat, joints, notes)


def _read(path: Path, size: int, tell: Tell | None) -> tuple[list[str] | None, Floats, list[int]]:
    """Return the names of the first line or None, the numbers (rows, columns), and each row's line."""
    header: list[str] | None = None
    remark: list[str] = []  # numpy.savetxt writes names behind a #
    numbers = array("d")
    lines: list[int] = []
    width, done = 0, 0
    with open(path, "rb") as file:
        for line, raw in enumerate(file, 1):
            done += len(raw)
            try:
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise TickgraphError(
                    f"{path}, line {line}: this is not text in UTF-8; a motion is a CSV or npz file"
                ) from None
            if not text:
                continue
            if "\r" in text:
                raise TickgraphError(f"{path}, line {line}: lines end in a carriage return alone; expected a line feed")
            fields = _fields(text.lstrip("# "))
            if text.startswith("#"):
                remark = fields
                continue
            if not width:
                width = len(fields)
                if fields == [str(column) for column in range(width)]:  # pandas writes it where columns have no names
                    continue
                if not any(map(_is_number, fields)):
                    _check_comma(fields[0], path, line)
                    header = fields
                    continue
                if len(remark) == width:
                    header = remark
            if len(fields) != width:
                raise TickgraphError(f"{path}, line {line}: {len(fields)} columns, expected {width} as before")
            numbers.extend(_numbers(fields, path, line))
            lines.append(line)
            if line % _TOLD_EVERY == 0:
                check_frames(path, len(lines))
                if tell is not None:
                    tell("reading", done, size)
    if not lines:
        what = "names but no numbers" if header else "nothing"
        raise TickgraphError(f"{path} holds {what}, expected a line of numbers for each frame")
    check_frames(path, len(lines))
    if tell is not None:
        tell("reading", size, size)
    return header, np.frombuffer(numbers, dtype=np.float64).reshape(-1, width), lines


def _fields(text: str) -> list[str]:
    mark = next((mark for mark in (";", ",") if mark in text), None)
    fields = text.removesuffix(mark).split(mark) if mark else text.split()
    return [field.strip().strip("\"'") for field in fields]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(fields: list[str], path: Path, line: int) -> list[float]:
    try:
        numbers = [float(text) for text in fields]
    except ValueError:
        column = next(i for i, text in enumerate(fields) if not _is_number(text))
        _check_comma(fields[column], path, line)
        raise TickgraphError(
            f"{path}, line {line}, column {column + 1}: {fields[column][:40]!r} is not a number"
        ) from None
    if not math.isfinite(sum(numbers)):
        column = next((i for i, number in enumerate(numbers) if not math.isfinite(number)), None)
        if column is not None:
            raise TickgraphError(f"{path}, line {line}, column {column + 1}: {fields[column]} is not finite")
    return numbers


def _check_comma(text: str, path: Path, line: int) -> None:
    """Raise TickgraphError for a number with a decimal comma."""
    if "," in text and _is_number(text.replace(",", ".")):
        raise TickgraphError(f"{path}, line {line}: {text!r} has a decimal comma; write numbers with points")


def _rate(times: Floats, path: Path) -> float | None:
    """Return frames per second of a column of seconds; None for a single frame."""
    if len(times) < 2:
        return None
    step = float(times[-1] - times[0]) / (len(times) - 1)
    steps_off = np.abs(np.diff(times) - step).max()
    times_off = np.abs(times - np.linspace(times[0], times[-1], len(times))).max()
    if not step > 0.0 or (steps_off > _UNEVEN_STEP * step and times_off > _UNEVEN_TIME * step):
        raise TickgraphError(
            f"{path}: the column of times is not in even steps; give --fps to `tickgraph motion convert`, or resample "
            "the file"
        )
    if step >= SLOWEST_STEP_S:
        raise TickgraphError(
            f"{path}: the column of times goes up by {step:g} from line to line, expected seconds, which would be "
            f"{1.0 / step:.2g} frames per second; are these milliseconds? Give them in seconds"
        )
    return float(np.round(1.0 / step, 3))


def _layout(header: list[str], skeleton: Skeleton, path: Path) -> _Layout:
    """Return which column is what, from names."""
    names = [name.lower() for name in header]
    known = {*skeleton.joint_names, *(name.removesuffix("_joint") for name in skeleton.joint_names)}
    time = next((i for i, name in enumerate(names) if name in _TIMES), None)
    left = [i for i, name in enumerate(names) if name not in known and name not in (*_TIMES, *_COUNTERS)]
    letters = {i: match.group(1) for i in left if (match := _LETTER.match(names[i]))}
    quaternion = _quaternion(names, letters)
    if quaternion is None:
        angles = "" if "w" in letters.values() else " (three angles are not read)"
        raise TickgraphError(
            f"{path}: the names of the columns do not tell which is the quaternion's w, x, y and z{angles}; "
            "name them e.g. root_pos_x, root_quat_w"
        )
    rest = [i for i in letters if i not in quaternion]
    if [letters[i] for i in sorted(rest, key=lambda i: letters[i])] != ["x", "y", "z"]:
        raise TickgraphError(f"{path}: expected one x, y and z of the root's position; name them e.g. root_pos_x")
    position = sorted(rest, key=lambda i: letters[i])
    joints = [i for i in range(len(names)) if i not in (*position, *quaternion, time) and names[i] not in _COUNTERS]
    order = order_of([names[i] for i in joints], skeleton.joint_names, path, "joint")
    return _Layout(position, quaternion, [joints[i] for i in order], time)


def _quaternion(names: list[str], letters: dict[int, str]) -> list[int] | None:
    """Return the columns of w, x, y, z: those named alike, else the four around w that stand together."""
    ws = [i for i, letter in letters.items() if letter == "w"]
    if len(ws) != 1:
        return None
    w = ws[0]
    alike = {letters[i]: i for i in letters if names[i][:-1] == names[w][:-1]}
    if len(alike) == 4 and sum(names[i][:-1] == names[w][:-1] for i in letters) == 4:
        return [alike[letter] for letter in "wxyz"]
    for start in (w, w - 3):
        group = {letters.get(i): i for i in range(start, start + 4)}
        others = sorted(letters[i] for i in letters if i not in group.values())
        if set(group) == set("wxyz") and others == ["x", "y", "z"]:
            return [group[letter] for letter in "wxyz"]
    return None
