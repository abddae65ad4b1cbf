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
