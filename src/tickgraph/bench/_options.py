"""The command line of a benchmark: argparse whose errors are one line, like all others."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tickgraph.core.errors import TickgraphError


class Parser(argparse.ArgumentParser):
    """A parser that raises TickgraphError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise TickgraphError(f"{self.prog}: {message}; see `{self.prog} --help`")
