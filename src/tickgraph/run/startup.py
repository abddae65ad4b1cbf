"""What happens before the first iteration counts: its phases, said while they last, and the seconds that each took."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Objects made and still there before Python looks for garbage among them, then rounds until it looks among older ones.
RARELY = (100_000, 50, 1000)
FIRST_TICK = "first_tick_s"


class StartUp:
    """Seconds of each phase, and of milestones since the command began.

    Args:
        say: takes a line as a phase begins.
        began: when the command began, on the clock of `time.monotonic`; by default now.
        then: called once, when the first tick is over.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        began: float | None = None,
        then: Callable[[], object] | None = None,
    ) -> None:
        self.say = say
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic() if began is None else began
        self._then = then

    @contextmanager
    def phase(self, name: str, text: str | None = None) -> Iterator[None]:
        """Time what is inside, as a part called `name`; `text` is said first, with the seconds so far."""
        start = time.monotonic()
        if text is not None:
            self.say(f"[{start - self._began:5.1f} s] {text}")
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def reached(self, name: str) -> None:
        """Note the seconds from the command's beginning to now, once."""
        if name in self.seconds:
            return
        self.seconds[name] = time.monotonic() - self._began
        if name == FIRST_TICK and self._then is not None:
            self._then()


@contextmanager
def rare_collections() -> Iterator[Callable[[], None]]:
    """Look for garbage in cycles rarely, until what this gives is called, or the end: then as often as before.

    Imports and the compiler's tracer make very many objects, nearly all of which stay; by Python's defaults they are
    gone through again and again. A process that collects as rarely already, or never, is left alone.
    """
    before = gc.get_threshold()
    if 0 < before[0] < RARELY[0]:
        gc.set_threshold(*RARELY)

    def as_before() -> None:
        if gc.get_threshold()[0] == RARELY[0]:  # else somebody has chosen since
            gc.set_threshold(*before)

    try:
        yield as_before
    finally:
        as_before()


def process_began() -> float:
    """Return when this process was started, on the clock of `time.monotonic`: before Python and its imports.

    Where the system does not tell, it is now.
    """
    now = time.monotonic()
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        age = float(Path("/proc/uptime").read_text().split()[0]) - started
    except (OSError, ValueError, IndexError):
        return now
    return now - max(age, 0.0)
