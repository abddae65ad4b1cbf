"""`tickgraph motion convert | info | play | synth`: motion files made, judged and filmed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.run.arguments import Command, Option, Parsed, parse, table, usage
from tickgraph.run.motion_report import findings, lines

if TYPE_CHECKING:
    from tickgraph.motion.clip import Clip, Tell
    from tickgraph.motion.motion import Motion

TARGET_FPS = 50.0  # the rate of our tasks' control steps
FILM_FPS = 30
FILM_SIZE = (640, 480)
_FPS = Option("fps", "N", "frames per second of FILE (default: its own; 30 for a CSV that does not say)")
_QUAT = Option("quat", "ORDER", "xyzw or wxyz: order of FILE's quaternions, where columns have no names")
_PART = (
    Option("from", "S", "take FILE from this time on, seconds from its first frame"),
    Option("to", "S", "take FILE up to this time"),
)
_JSON = Option("json", "FILE", "also write the result to FILE as JSON; - is standard output")
_DEBUG = Option("debug", "", "show a traceback when something fails")
_FORMATS = """\
FILE is a CSV (root position, root quaternion x y z w, 29 joints; or with the columns' names in the first line), an npz
with fps, joint_pos, joint_vel, body_pos_w, body_quat_w, body_lin_vel_w, body_ang_vel_w, or one with fps and qpos."""

COMMANDS = {
    command.name.partition(" ")[2]: command
    for command in (
        Command(
            "motion convert",
            "FILE OUT",
            "make a motion file for training from what retargeting tools write",
            f"Resample FILE, compute velocities and the G1's bodies, and write OUT, an npz.\n{_FORMATS}",
            (_FPS, Option("to-fps", "N", "frames per second of OUT (default: 50)"), *_PART, _QUAT, _DEBUG),
        ),
        Command(
            "motion info",
            "FILE",
            "show a motion's length, ranges, foot contact and slide, jumps and limit violations",
            f"Judge a motion. FILE may also be a clip's name: see `tickgraph motion --help`.\n{_FORMATS}",
            (_FPS, *_PART, _QUAT, _JSON, _DEBUG),
        ),
        Command(
            "motion play",
            "FILE",
            "film a motion",
            f"Draw the G1 in the poses of a motion, without physics, and write an mp4; needs no display.\n{_FORMATS}",
            (Option("video", "OUT", "the mp4 to write"), _FPS, *_PART, _QUAT, _DEBUG),
        ),
        Command(
            "motion synth",
            "FOLDER",
            "make the clips that come with tickgraph anew",
            "Write the clips of our own making into FOLDER: fps, qpos and joint_names, from which all else follows.",
            (_DEBUG,),
        ),
    )
}


def main(words: Sequence[str]) -> int:
    """Run one of the commands; returns the exit code.

    Raises:
        TickgraphError: one line that says what is wrong and where.
    """
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    name, rest = words[0], list(words[1:])
    command = COMMANDS.get(name)
    if command is None:
        hint = nearby(name, COMMANDS) or "see `tickgraph motion --help`"
        raise TickgraphError(f"there is no command `tickgraph motion {name}`; {hint}")
    places = _leading(rest)[: len(command.subject.split())]
    parsed = parse(command, [*places[:1], *rest[len(places) :]])
    if parsed.help:
        print(usage(command))
        return 0
    if len(places) < len(command.subject.split()):
        raise TickgraphError(
            f"`tickgraph {command.name}` needs {command.subject}; see `tickgraph {command.name} --help`"
        )
    if name == "convert":
        return _convert(parsed, Path(places[1]))
    return {"info": _info, "play": _play, "synth": _synth}[name](parsed)


def _leading(words: list[str]) -> list[str]:
    """Return the words before the first option."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:first]


def _overview() -> str:
    from tickgraph.motion import CLIP_NAMES

    rows = [(command.name, command.subject, command.summary) for command in COMMANDS.values()]
    clips = ", ".join(CLIP_NAMES)
    return "\n".join(["usage: tickgraph motion COMMAND ...", "", *table(rows), "", f"clips that come along: {clips}"])


def _convert(parsed: Parsed, target: Path) -> int:
    import numpy as np

    from tickgraph.motion.figures import figures
    from tickgraph.run.files import check_target, write_atomically

    if target.suffix.lower() != ".npz":
        raise TickgraphError(f"the motion is to be written to {str(target)!r}; give a name that ends in .npz")
    check_target(target)
    began = time.monotonic()
    with _progress() as tell:
        motion, source = _read(parsed, tell)
        if target.exists() and target.samefile(source):
            raise TickgraphError(f"{target} is the file to be converted; give another name")
        if motion.frames < 2:
            there = " from --from to --to" if parsed.get("from") or parsed.get("to") else ""
            raise TickgraphError(f"{source} holds {motion.frames} frame{there}; a motion needs at least 2")
        clip = motion.clip(_fps(parsed, "to-fps") or TARGET_FPS, tell)
    if clip.frames < 2:
        raise TickgraphError(f"{source} is shorter than two frames at {clip.fps:g} fps")
    write_atomically(target, lambda file: np.savez(file, **clip.arrays()))
    print(f"{source}: {motion.frames:,} frames at {motion.fps:g} fps")
    size, wall = target.stat().st_size / 1e6, time.monotonic() - began
    length = f"{clip.frames:,} frames at {clip.fps:g} fps, {clip.seconds:.2f} s"
    print(f"{target}: {length}, {size:.1f} MB, made in {wall:.1f} s")
    for note in [*motion.notes, *findings(figures(clip, motion.skeleton))]:
        print(f"note: {note}")
    return 0


def _info(parsed: Parsed) -> int:
    from tickgraph.motion.figures import figures
    from tickgraph.run.files import check_result, write_json
    from tickgraph.run.manifest import result_header

    if parsed.get("json") is not None:
        check_result(Path(str(parsed.get("json"))))
    motion, source = _read(parsed)
    value = {"file": str(source), **figures(motion.clip(), motion.skeleton)}
    value["notes"] = [*motion.notes, *findings(value)]
    if parsed.get("json") is not None:
        write_json(Path(str(parsed.get("json"))), {**result_header(), **value})
    print("\n".join(lines(value)))
    return 0


def _play(parsed: Parsed) -> int:
    from tickgraph.run.files import check_target

    if parsed.get("video") is None:
        raise TickgraphError("`tickgraph motion play` needs --video OUT, the mp4 to write")
    target = Path(str(parsed.get("video")))
    if target.suffix.lower() != ".mp4":
        raise TickgraphError(f"the video is to be written to {str(target)!r}; give a name that ends in .mp4")
    check_target(target)
    motion, source = _read(parsed)
    film_clip(motion.clip(), target)
    print(f"{target}: {source}")
    for note in motion.notes:
        print(f"note: {note}")
    return 0


def film_clip(clip: Clip, path: Path) -> None:
    """Write an mp4 of the G1 in the poses of a clip.

    Raises:
        TickgraphError: nothing can be drawn here (`RenderingUnavailable` says why), or the file cannot be written.
    """
    from tickgraph.robots.g1 import g1_robot
    from tickgraph.run.film import film
    from tickgraph.sim.model import build_scene
    from tickgraph.sim.render import Renderer
    from tickgraph.sim.scene import SceneCfg

    scene = build_scene(SceneCfg(entities={"robot": g1_robot()}))
    qpos = clip.qpos.numpy()
    with Renderer(scene, *FILM_SIZE) as renderer, film(path, FILM_SIZE, FILM_FPS) as add, _progress() as tell:
        pictures = int(clip.seconds * FILM_FPS) + 1
        for picture in range(pictures):
            frame = min(round(picture / FILM_FPS * clip.fps), clip.frames - 1)
            add(renderer.render(qpos[frame]))
            tell("drawing", picture + 1, pictures)


def _synth(parsed: Parsed) -> int:
    import numpy as np

    from tickgraph.motion.synth import CLIPS, synthesize
    from tickgraph.run.files import make_folder, write_atomically

    folder = Path(str(parsed.subject))
    make_folder(folder, parents=False)
    for name in CLIPS:
        clip = synthesize(name)
        arrays = clip.short_arrays()
        path = folder / f"{name}.npz"
        write_atomically(path, lambda file, arrays=arrays: np.savez_compressed(file, **arrays))
        print(f"{path}: {clip.seconds:.1f} s")
    return 0


def _read(parsed: Parsed, tell: Tell | None = None) -> tuple[Motion, Path]:
    """Return the motion that the command names, and its file."""
    from tickgraph.motion.load import find, read_motion

    files = find(str(parsed.subject))
    if len(files) > 1 or Path(str(parsed.subject)).is_dir():
        raise TickgraphError(f"{parsed.subject} is a folder; name one of its {len(files)} files")
    order = parsed.get("quat")
    if order not in (None, "xyzw", "wxyz"):
        raise TickgraphError(f"--quat is {order!r}, expected xyzw or wxyz")
    start, end = _seconds(parsed, "from", 0.0), _seconds(parsed, "to", math.inf)
    motion = read_motion(files[0], fps=_fps(parsed, "fps"), order=order, tell=tell)
    return motion.part(start, end), files[0]


def _fps(parsed: Parsed, name: str) -> float | None:
    from tickgraph.motion.motion import checked_fps

    value = _number(parsed, name)
    return None if value is None else checked_fps(value, f"--{name}")


def _seconds(parsed: Parsed, name: str, default: float) -> float:
    value = _number(parsed, name)
    if value is not None and not (math.isfinite(value) and value >= 0.0):
        raise TickgraphError(f"--{name} is {value:g}, expected seconds from the first frame, at least 0")
    return default if value is None else value


def _number(parsed: Parsed, name: str) -> float | None:
    text = parsed.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise TickgraphError(f"--{name} is {text!r}, expected a number") from None


@contextmanager
def _progress() -> Iterator[Tell]:
    """Give a function that draws a bar for each kind of work, on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)

        yield tell
