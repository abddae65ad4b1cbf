"""From what a person names to clips: a shipped clip, a file, or a folder of files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from os.path import expanduser  # unlike Path's, leaves what has no home as it is
from pathlib import Path

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.motion.clip import Clip, Tell
from tickgraph.motion.motion import Motion
from tickgraph.motion.read_csv import read_csv
from tickgraph.motion.read_npz import read_npz
from tickgraph.motion.skeleton import Skeleton, g1_skeleton

_READERS = {".csv": read_csv, ".txt": read_csv, ".npz": read_npz}
_PICKLES = (".pkl", ".pickle", ".pt", ".joblib")
_PACKED = (".gz", ".zip", ".xz", ".bz2", ".zst")


def shipped() -> dict[str, Path]:
    """Return the clips that come with the package, by name."""
    folder = Path(str(resources.files("tickgraph.motion").joinpath("clips")))
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def read_motion(
    path: Path,
    skeleton: Skeleton | None = None,
    fps: float | None = None,
    order: str | None = None,
    tell: Tell | None = None,
) -> Motion:
    """Read a motion file, by its ending; see `read_csv` and `read_npz`.

    Raises:
        TickgraphError: there is no such file, or it is not a motion of this robot; one line.
    """
    ending = path.suffix.lower()
    reader = _READERS.get(ending)
    if reader is None:
        hint = "; pickles can run code and are never loaded" if ending in _PICKLES else ""
        hint = "; unpack it first" if ending in _PACKED else hint
        hint = "; numpy.savez(FILE, fps=..., qpos=...) says what an array is" if ending == ".npy" else hint
        raise TickgraphError(f"{path} is neither a .csv nor an .npz file{hint}")
    try:
        if path.exists() and not path.is_file():
            raise TickgraphError(f"{path} is no ordinary file, expected a motion")
        _check_beginning(path)
        return reader(path, skeleton or g1_skeleton(), fps, order, tell)
    except OSError as error:
        raise TickgraphError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_beginning(path: Path) -> None:
    """Raise TickgraphError for what often lies under a motion's name where a download failed."""
    with open(path, "rb") as file:
        start = file.read(64).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise TickgraphError(f"{path} is a pointer of Git LFS, not the motion itself; fetch it with `git lfs pull`")
    if start.startswith((b"<!doctype html", b"<html")):
        raise TickgraphError(f"{path} is a web page, not a motion; download the file itself")


def find(reference: str) -> list[Path]:
    """Return the files that a reference means: the name of a shipped clip, a file, or a folder of .npz and .csv.

    Raises:
        TickgraphError: there is nothing of that name, or it cannot be looked at.
    """
    own = shipped()
    if reference in own:
        return [own[reference]]
    try:
        return _find(reference, own)
    except OSError as error:
        raise TickgraphError(f"{reference} cannot be read: {error.strerror or error}") from error


def _find(reference: str, own: dict[str, Path]) -> list[Path]:
    if not reference.strip():
        raise TickgraphError(f"{reference!r} names no clip; give a clip's name, a motion file or a folder of them")
    path = Path(expanduser(reference))
    if path.is_dir():
        if files := _motions_in(path):
            return files
        inner = next((folder for folder in sorted(path.iterdir()) if folder.is_dir() and _motions_in(folder)), None)
        hint = f", but {inner} does; a folder's own files are its clips, so name each folder" if inner else ""
        raise TickgraphError(f"the folder {path} holds no .npz and no .csv file{hint}")
    if not path.exists():
        if path.is_absolute() or path.suffix.lower() in _READERS:
            raise TickgraphError(f"there is no motion file {path.absolute()}; put it there, or name another")
        hint = nearby(reference, own) or f"the clips that come with tickgraph are {', '.join(own)}"
        raise TickgraphError(f"there is no clip and no file {reference!r}; {hint}")
    return [path]


def _motions_in(folder: Path) -> list[Path]:
    """Return a folder's motion files. Hidden ones are none: macOS puts a ``._NAME`` beside each file that it copies."""
    files = (file for file in folder.iterdir() if file.suffix.lower() in (".npz", ".csv"))
    return sorted(file for file in files if not file.name.startswith(".") and file.is_file())


def load_clips(references: str | Sequence[str], fps: float, skeleton: Skeleton | None = None) -> list[Clip]:
    """Return the clips of one or several references at `fps` frames per second, for training. Do not write to them.

    An environment is built more than once in a run (to be judged, trained and evaluated): what was read last for the
    G1 is kept until other clips are asked for, or a file changes. Clips of one name get names that tell them apart.

    Raises:
        TickgraphError: as `find` and `read_motion`, or a clip has fewer than two frames.
    """
    files = [path for name in ([references] if isinstance(references, str) else references) for path in find(name)]
    if skeleton is not None:
        return _distinct([_load(path, fps, skeleton) for path in files], files)
    return list(_last(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files), fps))


@functools.lru_cache(maxsize=1)
def _last(files: tuple[tuple[Path, int, int], ...], fps: float) -> tuple[Clip, ...]:
    skeleton = g1_skeleton()
    return tuple(_distinct([_load(path, fps, skeleton) for path, _, _ in files], [path for path, _, _ in files]))


def _distinct(clips: list[Clip], files: list[Path]) -> list[Clip]:
    """Return the clips with names of their own: where several have one name, with ending, folder or a number."""
    names = [clip.name for clip in clips]
    for name in {name for name in names if names.count(name) > 1}:
        those = [i for i, other in enumerate(names) if other == name]
        ways = (
            [files[i].name for i in those],
            [f"{files[i].absolute().parent.name}/{name}" for i in those],
            [name, *(f"{name} ({number})" for number in range(2, len(those) + 1))],
        )
        for i, own in zip(those, next(way for way in ways if len({*way}) == len(way)), strict=True):
            clips[i] = replace(clips[i], name=own)
    return clips


def _load(path: Path, fps: float, skeleton: Skeleton) -> Clip:
    clip = read_motion(path, skeleton).clip(fps)
    if clip.frames < 2:
        raise TickgraphError(f"{path} holds {clip.frames} frame at {fps:g} fps; a clip needs at least 2")
    return clip
