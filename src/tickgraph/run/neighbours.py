"""How much of this process's processors other processes take, which makes threads that wait for one another slow."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from tickgraph.core.words import counted
from tickgraph.run.manifest import processors
from tickgraph.run.panel import warn

MANY = 4  # threads a processor, beyond which they are more than somebody tries out
WINDOW_S = 10.0  # between two looks; the kernel counts in hundredths of a second
STAT = Path("/proc/stat")


class Neighbours:
    """Processors that others took, measured from when it was made, a window at a time.

    Args:
        window_s: seconds between two looks.
        clock, own, busy: wall seconds, this process's own seconds of processor time, and those of everybody on the
            processors that this process may use; None where the system does not tell.
    """

    def __init__(
        self,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.process_time,
        busy: Callable[[], float | None] | None = None,
    ) -> None:
        self._window_s, self._clock, self._own = window_s, clock, own
        self._busy = busy_seconds if busy is None else busy
        self._first = self._last = self._now()

    def look(self) -> float | None:
        """Return the mean number of processors that others took since the last look; None before a window is over."""
        if self._clock() - self._last[0] < self._window_s:
            return None
        now = self._now()
        taken, self._last = _taken(self._last, now), now
        return taken

    def mean(self) -> float | None:
        """Return the same for all the time since it was made; None where that is no window long."""
        now = self._now()
        return _taken(self._first, now) if now[0] - self._first[0] >= self._window_s else None

    def _now(self) -> tuple[float, float | None]:
        """Return wall seconds and others' seconds of processor time."""
        busy = self._busy()
        return self._clock(), None if busy is None else busy - self._own()


def _taken(before: tuple[float, float | None], after: tuple[float, float | None]) -> float | None:
    if before[1] is None or after[1] is None:
        return None
    return max(0.0, (after[1] - before[1]) / (after[0] - before[0]))


def busy_seconds(stat: Path = STAT) -> float | None:
    """Return the seconds in which the processors that this process may use were busy; None where nothing tells."""
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        # user, nice, system, idle, iowait, irq, softirq, steal; the rest is in these already
        ticks = [[int(field) for field in row[1:9]] for row in rows if row[0] in mine]
        total = sum(sum(row) - row[3] - row[4] for row in ticks)
        return total / os.sysconf("SC_CLK_TCK") if total else None  # some sandboxes show zeros
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def advice(taken: float, update_threads: int, own: int | None = None) -> str | None:
    """Return the line for a person whose training shares its processors; None where others take little.

    Args:
        taken: processors that others take.
        update_threads: threads of an update.
        own: processors that this process may use; by default those of this machine.
    """
    own = processors() if own is None else own
    if taken < max(0.4, 0.1 * own):
        return None
    helps = "; --train.update-threads 1 suffers less from it" if update_threads > 1 else ""
    return (
        f"other processes keep {taken:.1f} of the {own} processors busy that this run may use: training may be several "
        f"times slower{helps}"
    )


def warn_of_threads(*threads: int | None) -> None:
    """Warn of numbers of threads far above the processors that this process may use, once of each."""
    most, own = max((number or 0 for number in threads), default=0), processors()
    if most > MANY * own:
        _warn_once(f"{most} threads on {counted(own, 'processor')}: they wait for one another; use fewer")


@functools.cache
def _warn_once(text: str) -> None:
    warn(text)
