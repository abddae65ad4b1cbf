"""Where text and results go: readers that have gone, closed streams, and results on standard output."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO

# What a stream says that takes nothing more; what is written to files says the file's name with it.
UNPRINTED = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAMED = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


def open_closed_streams() -> None:
    """Give standard input, output and error that the caller closed (`>&-`) a null device.

    Otherwise the next file that is opened would get the descriptor, and what other libraries print. That may have
    happened before: a shell that was started so has its script there, for reading alone.
    """
    for number in range(3):
        try:
            access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, this one
            continue
        if number > 0 and access == os.O_RDONLY:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.close(null)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for the process's life)


def silence(stream: IO[str]) -> None:
    """Send what is still written to a stream nowhere: nobody reads it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def audience(stream: IO[str]) -> Iterator[None]:
    """Write to `stream` inside; one that takes nothing any more (pipe or terminal closed, disk full) stops no run."""
    try:
        yield
    except OSError:
        silence(stream)


def say_at_once(text: str) -> None:
    """Write a line to standard error from a signal's handler, which may have interrupted any other writing."""
    with suppress(OSError):
        ahead = "\n" if os.isatty(2) else ""  # behind the ^C that a terminal shows
        os.write(2, f"{ahead}{text}\n".encode("utf-8", "backslashreplace"))


def descriptor_of(target: str | Path) -> int | None:
    """Return the open descriptor that a result's file stands for: 1 for `-` and /dev/stdout; None for other files."""
    text = str(target)
    numbered = _NUMBERED.fullmatch(text)
    return int(numbered[1]) if numbered else _NAMED.get(text)


def is_stream(target: str | Path) -> bool:
    """Return whether a result's file is written to rather than replaced: a descriptor, a pipe or a device."""
    exists, other = os.path.exists(target), os.path.isfile(target) or os.path.isdir(target)
    return descriptor_of(target) is not None or (exists and not other)


def write_stream(target: str | Path, text: str) -> None:
    """Write a result to what `is_stream` says yes to.

    Raises:
        OSError: it takes nothing.
    """
    data = text.encode("utf-8", "backslashreplace")
    number = descriptor_of(target)
    if number == 1 and sys.stdout is not None:
        sys.stdout.flush()
    with os.fdopen(os.dup(number), "wb") if number is not None else open(target, "wb") as file:
        file.write(data)


@contextmanager
def words_beside_result(words: Sequence[str]) -> Iterator[None]:
    """Print on standard error inside where `--json` of a command's words is standard output: that is the result's."""
    given = [after for word, after in pairwise(words) if word == "--json"]
    given += [word.partition("=")[2] for word in words if word.startswith("--json=")]
    if any(descriptor_of(target) == 1 for target in given):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
