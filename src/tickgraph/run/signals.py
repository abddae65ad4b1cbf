"""Ctrl-C, SIGTERM, a closed terminal: training ends its iteration and saves; a second, or one before, ends at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tickgraph.run.output import say_at_once

EXIT_INTERRUPTED = 130  # of every run that a signal ended, whichever signal it was


class Interrupts:
    """What this process does on SIGINT, SIGTERM and SIGHUP; the last is left alone where it was ignored (`nohup`).

    Until `defer` is called, a signal runs `at_exit` and ends the process with code 130: nothing is under way that could
    be saved. Afterwards the first signal only says what `at_first` returns and sets `requested`, for the training loop
    to see between two iterations, and the second one ends the process as before. Whatever is on the disk is whole at
    any moment, so ending at once costs no more than the work since the last checkpoint.

    It imports nothing slow, so that it can be installed before anything else is.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.requested_twice = False
        self.at_exit: Callable[[str], object] = _before_anything
        self.at_first: Callable[[str], str] | None = None
        self.say: Callable[[str], object] = say_at_once
        """Takes what `at_first` returns."""
        self._deferred = False
        self._breaks = False
        self._before: dict[int, Any] = {}

    def install(self) -> Interrupts:
        """Take over the signals; returns itself."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def ignore(self) -> None:
        """Turn a deaf ear from here on: everything is done, and leaving the interpreter is not to be disturbed."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def defer(self, on: bool = True) -> None:
        """From here on the first signal waits until somebody reads `requested`."""
        self._deferred = on

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Inside, the first signal raises KeyboardInterrupt with its name, for what is half written to be removed."""
        self._breaks = True
        try:
            yield
        finally:
            self._breaks = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        first = self.requested is None
        self.requested, self.requested_twice = self.requested or name, not first
        if self._deferred and first:
            if self.at_first is not None:
                self.say(self.at_first(name))
            return
        if self._breaks and first:
            raise KeyboardInterrupt(name)
        self.ignore()
        try:
            self.at_exit(name)
            if os.isatty(1):
                os.write(1, b"\x1b[?25h\n")  # a live panel hides the cursor
        finally:
            os._exit(EXIT_INTERRUPTED)


def _before_anything(name: str) -> None:
    say_at_once(f"{name} before the run began; nothing was written")


_raised: list[int] = []  # signals that became a KeyboardInterrupt


def note_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt where Python's own handler would, and be remembered for `interrupted`."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def end_as_by_interrupt() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, so that what is half written is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)


def interrupted() -> bool:
    """Tell whether a signal has ended what was under way: of one that is loading, a library makes its own error."""
    return bool(_raised)


def _raise(number: int, frame: FrameType | None) -> None:
    _raised.append(number)
    raise KeyboardInterrupt
