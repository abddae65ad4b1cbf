"""The folder of a run: its name, its exclusive creation, its lock, and how to find it again."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import time
from dataclasses import dataclass
from itertools import count
from os.path import expanduser  # unlike Path's, leaves what has no home as it is
from pathlib import Path

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.run.files import files_below, remove_leftovers, write_error

MAX_NAME_BYTES = 200  # file systems take 255; a temporary name or a copy's suffix must still fit


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run's folder."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, from which eval, play and resume rebuild the task."""
        return self.path / "config.yaml"

    @property
    def manifest(self) -> Path:
        """What ran, where, with which versions."""
        return self.path / "run_manifest.json"

    @property
    def summary(self) -> Path:
        """How it ended."""
        return self.path / "run_summary.json"

    @property
    def metrics(self) -> Path:
        """One JSON row a log interval."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Checkpoint files."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Recorded episodes."""
        return self.path / "videos"

    @property
    def plots(self) -> Path:
        """Learning curves."""
        return self.path / "plots"


def check_name(name: str) -> str:
    """Return `name` if it can be one folder's name inside the runs' root.

    Raises:
        TickgraphError: it is empty or blank, has a separator or control character, begins with "-", is "." or "..",
            or is longer than 200 bytes.
    """
    shown = name if len(name) <= 40 else name[:37] + "..."
    if not name.strip():
        reason = "is empty"
    elif "/" in name or "\\" in name:
        reason = "has a path separator; a run is one folder under the runs' root"
    elif name in (".", ".."):
        reason = "would leave the runs' root"
    elif name.startswith("-"):
        reason = "begins with '-', which reads as an option"
    elif any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        reason = "has a control character"
    elif any(0xD800 <= ord(letter) <= 0xDFFF for letter in name):
        reason = "is not valid UTF-8"
    elif (size := len(name.encode("utf-8"))) > MAX_NAME_BYTES:
        reason = f"takes {size} bytes, at most {MAX_NAME_BYTES} fit"
    else:
        return name
    raise TickgraphError(f"run name {shown!r} {reason}; give another --run-name")


def create(root: Path, task: str, name: str | None = None) -> RunFolder:
    """Make a new folder `root/task/name`, or `root/task/<timestamp>[-n]`, that no other process can have made.

    Raises:
        TickgraphError: the name is no folder name, the folder exists, or it cannot be written.
    """
    if name is not None:
        check_name(name)
    parent = root / _task_part(task)
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    candidates = iter([name]) if name is not None else (stamp if n == 0 else f"{stamp}-{n}" for n in count())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for candidate in candidates:
            path = parent / candidate
            try:
                path.mkdir()  # exclusive: of two processes, one gets the name
            except FileExistsError:
                continue
            return RunFolder(path)
    except OSError as error:
        raise write_error(parent, error) from error
    taken = parent / str(name)
    go_on = f"--resume {shlex.quote(str(taken))}"
    raise TickgraphError(f"run folder {taken} exists; give another --run-name, or go on with it: {go_on}")


def find(reference: str, root: Path = Path("runs")) -> RunFolder:
    """Return the run that `reference` names: its folder, or its path below the runs' root.

    Raises:
        TickgraphError: there is no such folder, or it is no run's folder.
    """
    for path in (Path(expanduser(reference)), root / reference):
        with files_below(path):
            if path.is_file():
                raise TickgraphError(f"{path} is a file; give the run's folder, its newest whole checkpoint is used")
            if path.is_dir():
                return _checked(RunFolder(path))
    known = [str(path.parent) for path in root.glob("*/*/config.yaml")]
    named = [path for path in known if Path(path).name == reference][:3]  # --run-name alone
    hint = f"did you mean {' or '.join(map(repr, named))}?" if named else nearby(reference, known)
    hint = hint or _newest_hint(root).removeprefix("; ") or f"no run is under {root.resolve()}"
    raise TickgraphError(f"there is no run {reference!r}; {hint}")


def _checked(run: RunFolder) -> RunFolder:
    """Return the run whose folder this is.

    Raises:
        TickgraphError: it is no run's, or lacks what says what was trained.
    """
    path = run.path
    if run.config.is_file():
        return run
    if run.manifest.is_file() or run.checkpoints.is_dir():
        raise TickgraphError(
            f"{path} is a run's folder whose {run.config.name} is gone, which says what was trained: put it back; "
            "nothing else in the folder is lost"
        )
    if run.summary.is_file():
        raise TickgraphError(f"the run in {path} ended before it began; start it anew under another name")
    raise TickgraphError(f"{path} is no run's folder: it has no {run.config.name}{_newest_hint(path)}")


def lock(run: RunFolder) -> int:
    """Hold the run for this process; returns the descriptor that holds it until it is closed or the process ends.

    Also clears temporary files that a killed process left behind.

    Raises:
        TickgraphError: another process trains in this folder.
    """
    descriptor = os.open(run.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    _take(run, descriptor)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    clean(run)
    return descriptor


def check_free(run: RunFolder) -> None:
    """Refuse a run that another process trains; a quick look that holds nothing, before anything is loaded.

    Raises:
        TickgraphError: another process trains in this folder.
    """
    try:
        descriptor = os.open(run.path / ".lock", os.O_RDWR)
    except OSError:
        return  # never trained, or not to be read: `lock` says what is wrong
    _take(run, descriptor, fcntl.LOCK_SH)  # shared: two that look do not refuse each other
    os.close(descriptor)


def _take(run: RunFolder, descriptor: int, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise TickgraphError(f"{run.path} is being trained by process {holder}; wait for it or stop it") from None


def clean(run: RunFolder) -> None:
    """Delete the temporary files in a run that this process holds."""
    for folder in (run.path, run.checkpoints, run.videos, run.plots):
        remove_leftovers(folder)


def discard(run: RunFolder) -> None:
    """Delete a folder that this process made and in which nothing ran, and its parents where they are empty."""
    shutil.rmtree(run.path, ignore_errors=True)
    for parent in run.path.parents[:2]:
        try:
            parent.rmdir()
        except OSError:
            return  # other runs live there


def _task_part(task: str) -> str:
    """Return the task's name as a folder name; the names of tasks in files may hold anything but a separator."""
    part = task.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore").lstrip("-.")
    return part or "task"


def _newest_hint(root: Path) -> str:
    runs = sorted(root.glob("**/config.yaml"), key=lambda path: path.stat().st_mtime)[-1:] if root.is_dir() else []
    return f"; the newest run there is {runs[0].parent}" if runs else ""
