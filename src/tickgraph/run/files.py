"""Files that a kill cannot spoil: written under a temporary name, synced, then renamed; strict JSON throughout."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.output import descriptor_of, is_stream, write_stream

TEMPORARY = ".tmp-"
# Of what another program or library writes, which does not say why it failed.
NO_ROOM = "is the disk full, or is there a limit on the size of files (`ulimit -f`)?"


def plain(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: NaN and infinities become None, tuples lists, unknown objects text."""
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # a tensor or an array of any library
        return plain(value.tolist())
    return str(value)


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Create or replace `path` with what `write` puts into the file it is given; a kill leaves the old file or the new.

    Raises:
        TickgraphError: the disk is full, a size limit was hit or the folder cannot be written; `path` is as it was.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # what cannot be written may not be deleted either, even where nothing is there
            temporary.unlink()
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise


def check_target(path: Path) -> Path:
    """Return `path` where it can be written; for results of long work, asked before it.

    Raises:
        TickgraphError: its folder does not exist or cannot be written, or `path` is no ordinary file.
    """
    if descriptor_of(path) is not None:
        raise TickgraphError(f"could not write {path}: a stream takes only results (--json); name a file")
    try:
        if path.is_dir():
            raise TickgraphError(f"could not write {path}: it is a folder; name a file")
        if path.exists() and not path.is_file():
            raise TickgraphError(
                f"could not write {path}: it is no ordinary file, which is what is replaced; name another"
            )
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise write_error(path, error) from error
    return path


def check_result(path: Path) -> Path:
    """Return `path` where a result can be written, as `check_target`; `-` and /dev/stdout are standard output.

    Raises:
        TickgraphError: as `check_target`, or it is a descriptor that is not open.
    """
    number = descriptor_of(path)
    if number is not None:
        try:
            os.fstat(number)
        except OSError as error:
            raise write_error(path, error) from error
    return path if is_stream(path) else check_target(path)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as strict, indented JSON in UTF-8: a file atomically, a stream (`-`, a pipe) as it is."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if is_stream(path):
        try:
            write_stream(path, text)
        except BrokenPipeError:
            raise  # the reader has gone: no fault of anybody's
        except OSError as error:
            raise write_error(path, error) from error
        return
    write_atomically(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; `what` names the file's purpose in the error.

    Raises:
        TickgraphError: the file is missing or does not hold one JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TickgraphError(f"{path.parent} has no {path.name} ({what}); is it the folder of a run?") from None
    except (OSError, ValueError) as error:
        raise TickgraphError(f"{path} ({what}) is not readable: {error}") from error
    if not isinstance(value, dict):
        raise TickgraphError(f"{path} ({what}) holds {type(value).__name__}, expected a JSON object")
    return value


def write_error(path: Path, error: OSError) -> TickgraphError:
    """Return the one line that says why `path` could not be written and what to do."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space",
        errno.EDQUOT: "the disk quota is used up; free some space",
        errno.EFBIG: "the file would exceed the size limit (see `ulimit -f`); raise it",
        errno.EACCES: "permission denied; choose a folder that you may write",
        errno.EROFS: "the file system is read-only; choose another folder",
        errno.EISDIR: "it is a folder, where a file belongs; move it away",
        errno.EEXIST: "it is a file, where a folder belongs; move it away",  # of making a folder
        errno.ENOTDIR: "it is a file, where a folder belongs; move it away",
    }
    reason = reasons.get(error.errno or 0) or f"{error.strerror or error}"
    missing = _missing_folder(path) if error.errno == errno.ENOENT else None
    if missing is not None:
        reason = f"there is no folder {missing}; make it, or name another"
    name = {1: "to standard output", 2: "to standard error"}.get(descriptor_of(path) or 0, path)
    return TickgraphError(f"could not write {name}: {reason}")


def _missing_folder(path: Path) -> Path | None:
    """Return the outermost folder above a file that is not there, or None."""
    return next((folder for folder in reversed(path.parents) if not folder.exists()), None)


@contextmanager
def files_below(folder: Path) -> Iterator[None]:
    """Raise what the system has against a file or folder in `folder`, or itself, as the one line that says so."""
    try:
        yield
    except OSError as error:
        name = error.filename
        path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
        if path is None or not path.is_relative_to(folder):
            raise
        why = {errno.EACCES: "permission denied", errno.EROFS: "the file system is read-only"}.get(error.errno or 0)
        if why is None:
            raise write_error(path, error) from error
        raise TickgraphError(f"could not use {path}: {why}; change that, or work on a copy of {folder}") from error


def make_folder(folder: Path, parents: bool = True) -> None:
    """Make a folder where it is not there, and those above it.

    Args:
        folder: the folder.
        parents: False for one that a person has named, where a folder above it that is not there is a typo.

    Raises:
        TickgraphError: it cannot be made.
    """
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except FileNotFoundError:
        missing = _missing_folder(folder)
        if missing is None:  # as /proc says it
            raise TickgraphError(f"could not make {folder}: no folder can be made there; choose another") from None
        raise TickgraphError(f"could not make {folder}: there is no folder {missing}; make it first") from None
    except OSError as error:
        raise write_error(folder, error) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot sync a folder; the rename itself is done
    finally:
        os.close(descriptor)


def keep_film(temporary: Path, path: Path) -> None:
    """Give a film that ffmpeg has written its name.

    Raises:
        TickgraphError: it is empty or cut short (no room, a size limit); ffmpeg has then said why on stderr, if at
            all, and told its caller nothing.
    """
    size = temporary.stat().st_size
    if size == 0:
        raise TickgraphError(f"could not write {path}: ffmpeg wrote nothing; what it says stands above")
    if not _is_whole_mp4(temporary):
        raise TickgraphError(f"could not write {path}: the film was cut short after {size} bytes; {NO_ROOM}")
    temporary.replace(path)


def _is_whole_mp4(path: Path) -> bool:
    """Tell whether a film is complete: boxes (ISO 14496-12: u32 size, type) to its last byte, with the index `moov`.

    ffmpeg writes the index last, and the size of the box before it only then.
    """
    end, at, kinds = path.stat().st_size, 0, set()
    with path.open("rb") as file:
        while at + 8 <= end:
            file.seek(at)
            size, kind = int.from_bytes(file.read(4)), file.read(4)
            if size == 1:  # a 64-bit size follows
                size = int.from_bytes(file.read(8))
            if size < 8:
                return False
            kinds.add(kind)
            at += size
    return at == end and b"moov" in kinds


def remove_leftovers(folder: Path) -> int:
    """Delete temporary files that a killed process left in `folder`; returns how many there were."""
    leftovers = list(folder.glob(f"{TEMPORARY}*"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)
