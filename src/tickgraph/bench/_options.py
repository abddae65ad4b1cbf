"""The command line of a benchmark: argparse whose errors are one line, like all others."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from tickgraph.core.errors import TickgraphError
from tickgraph.run.panel import tell


class Parser(argparse.ArgumentParser):
    """A parser that raises TickgraphError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise TickgraphError(f"{self.prog}: {message}; see `{self.prog} --help`")


def say(text: str) -> None:
    """Tell of progress, on stderr: what is printed on stdout is the result."""
    tell(text, sys.stderr)


def count(option: str, text: str, least: int = 1) -> int:
    """Return the whole number that an option was given.

    Raises:
        TickgraphError: it is none, or less than `least`.
    """
    if not text.strip().isdecimal() or int(text) < least:
        raise TickgraphError(f"{option} is {text!r}, expected a whole number of at least {least}")
    return int(text)


def counts(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers, separated by commas, that an option was given."""
    return tuple(count(option, part) for part in text.split(","))
