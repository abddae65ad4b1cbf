"""Code that is called to be judged, and not for what it does: nothing that it says is seen, and it stops for nobody."""

from __future__ import annotations

import builtins
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_OWN_LOGGER = "tickgraph"


@contextmanager
def unheard(on_stop: Callable[[str], object] = lambda name: None) -> Iterator[None]:
    """Hide what code prints, warns and logs, and call back where it would wait for a person.

    Args:
        on_stop: called with "breakpoint" or "input"; without one, these return at once.
    """

    def breaks(*args: object, **kwargs: object) -> None:
        on_stop("breakpoint")

    def asks(*args: object, **kwargs: object) -> str:
        on_stop("input")
        return ""

    def is_own(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] == _OWN_LOGGER

    before, handlers = (sys.breakpointhook, builtins.input), list(logging.getLogger().handlers)
    sys.breakpointhook, builtins.input = breaks, asks
    for handler in handlers:  # they hold the stream itself
        handler.addFilter(is_own)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        sys.breakpointhook, builtins.input = before
        for handler in handlers:
            handler.removeFilter(is_own)
