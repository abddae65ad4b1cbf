"""The command line of a benchmark: argparse whose errors are one line, like all others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tickgraph.core.bounds import MOST_REPEATS, MOST_ROWS
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import shown
from tickgraph.run.arguments import dashed
from tickgraph.run.files import check_result, check_target
from tickgraph.run.panel import tell

_NAMES = {
    **dict.fromkeys(("algo", "backend", "device", "execution", "learner-kernels"), "NAME"),
    **dict.fromkeys(("arms", "paths", "precision"), "NAMES"),
}
MOST_WORLDS = MOST_ROWS
MOST_BATCH = 2**31
MOST_SEED = 2**64 - 1
MOST_BLOCKS = 10_000
_DIGITS = 30  # of a number, beyond which it is too large for anything
PICTURES = (".png", ".svg", ".pdf")


class Parser(argparse.ArgumentParser):
    """A parser that raises TickgraphError instead of printing its usage; "_" in an option's name is "-"."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Read the words; argparse's other entry points call this one."""
        return super().parse_known_args([dashed(word) for word in (sys.argv[1:] if args is None else args)], namespace)

    def error(self, message: str) -> NoReturn:
        raise TickgraphError(f"{self.prog}: {message}; see `{self.prog} --help`")


def run_script(call: Callable[[], int]) -> int:
    """Return a script's exit code, with what the user has to mend as one line."""
    try:
        return call()
    except TickgraphError as error:
        say(f"error: {error}")
        return 2


def say(text: str) -> None:
    """Tell of progress, on stderr: what is printed on stdout is the result."""
    tell(text, sys.stderr)


def value_name(option: str) -> str:
    """Return what the help calls an option's value; most take a number, or several."""
    return _NAMES.get(option, "N")


def target(text: str) -> Path:
    """Return the file of --json; an argparse type, so that nothing is measured whose result cannot be kept."""
    return _writable(text, check_result)


def _writable(text: str, check: Callable[[Path], Path]) -> Path:
    try:
        return check(Path(text))
    except TickgraphError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def picture(text: str) -> Path:
    """Return the file of --plot, as `target` does; a picture goes to no stream."""
    if Path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(
            f"the picture is to be {text!r}; give a name that ends in {', '.join(PICTURES)}"
        )
    return _writable(text, check_target)


def count(option: str, text: str, least: int = 1, most: int = MOST_REPEATS) -> int:
    """Return the whole number that an option was given.

    Raises:
        TickgraphError: it is none, less than `least` or more than `most`.
    """
    number = text.strip()
    if not number.isdecimal() or int(number[:_DIGITS]) < least:
        raise TickgraphError(f"{option} is {text!r}, expected a whole number of at least {least}")
    if int(number[:_DIGITS]) > most:
        raise TickgraphError(f"{option} is {shown(text)}, expected a whole number of at most {most}")
    return int(number)


def counts(option: str, text: str, least: int = 1, most: int = MOST_REPEATS) -> tuple[int, ...]:
    """Return the whole numbers, separated by commas, that an option was given, each as `count` does."""
    return tuple(count(option, part, least, most) for part in text.split(","))


def sizes(option: str, text: str, least: int = 1, most: int = MOST_REPEATS) -> tuple[int, ...]:
    """Return what `counts` does, each number once: a case that is measured twice has twice the rows, all alike."""
    return tuple(dict.fromkeys(counts(option, text, least, most)))


def names(text: str) -> tuple[str, ...]:
    """Return the names, separated by commas, that an option was given, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))
