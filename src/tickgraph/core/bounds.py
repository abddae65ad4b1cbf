"""Bounds of a configuration's values, said in the types of its fields: ``decimation: Count = 4``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

LARGEST = 3.4028234663852886e38  # of float32
MOST_THREADS = 1024
MOST_ROWS = 1 << 32
"""Worlds that have random words of their own: an id is a word of the counter."""
MOST_REPEATS = 10**6
"""Of what is played in one go, such as the ticks of an iteration: more takes days that only a mistake asks for."""


@dataclass(frozen=True)
class Bound:
    """What a value must be beyond its type: a test, and the words of the error behind "expected"."""

    test: Callable[[Any], bool]
    expected: str

    def holds(self, value: Any) -> bool:
        """Tell whether a value of the right type is within the bound."""
        try:
            return bool(self.test(value))
        except (OverflowError, TypeError, ValueError):
            return False


NONE_LEAVES_OUT = "None leaves out"
"""Mark of a dictionary in which None stands for nothing: a term that a task took out of another's."""


def at_least(least: int) -> Bound:
    """Return the bound of a whole number."""
    return Bound(lambda value: value >= least, f"a whole number of at least {least}")


def at_most(most: int, said: str) -> Bound:
    """Return the upper bound of a whole number, as a reader knows it: "2^53"."""
    return Bound(lambda value: value <= most, f"a whole number of at most {said}")


def within(low: float, high: float, what: str = "a number") -> Bound:
    """Return the bound of a number between two others, both included."""
    return Bound(lambda value: low <= value <= high, f"{what} from {low:g} to {high:g}")


def ends_in_order(low: float, high: float) -> bool:
    """Tell whether two numbers are a range: low <= high, both finite."""
    return finite(low) and finite(high) and low <= high


def finite(value: float) -> bool:
    """Tell whether float32 holds a number."""
    return abs(value) <= LARGEST


def _distinct(names: Iterable[str]) -> bool:
    names = list(names)
    return len({name.replace("-", "_") for name in names}) == len(names)


_NOT_HUGE = at_most(2**53, "2^53")

Count = Annotated[int, at_least(1), _NOT_HUGE]
Whole = Annotated[int, at_least(0), _NOT_HUGE]
CCount = Annotated[int, at_least(1), at_most(2**31 - 1, "2^31 - 1")]
"""Of what libraries keep in an int of C."""
Repeats = Annotated[int, at_least(1), at_most(MOST_REPEATS, "10^6")]
Threads = Annotated[int, within(1, MOST_THREADS, "a whole number of threads")]
Finite = Annotated[float, Bound(finite, "a finite number")]
Positive = Annotated[float, Bound(lambda value: 0.0 < value <= LARGEST, "a finite number above 0")]
NotNegative = Annotated[float, Bound(lambda value: 0.0 <= value <= LARGEST, "a finite number of at least 0")]
Share = Annotated[float, within(0, 1, "a share")]
Range = Annotated[tuple[float, float], Bound(lambda pair: ends_in_order(*pair), "two finite numbers, low <= high")]
Limits = Annotated[
    tuple[float, float], Bound(lambda pair: pair[0] < pair[1], "two numbers (low, high) with low < high")
]
Seconds = Annotated[
    tuple[float, float],
    Bound(lambda pair: ends_in_order(0.0, pair[0]) and pair[1] > 0.0 and ends_in_order(*pair),
          "two finite numbers of seconds (low, high) with 0 <= low <= high and high above 0"),
]  # fmt: skip
Vec3 = Annotated[tuple[float, float, float], Bound(lambda value: all(map(finite, value)), "3 finite numbers")]
Quat = Annotated[
    tuple[float, float, float, float],
    Bound(lambda value: 1e-6 < math.hypot(*value) <= LARGEST, "a quaternion w x y z, which is not 0"),
]
Name = Annotated[
    str,
    Bound(
        lambda name: re.fullmatch(r"\w[\w-]*", name) is not None,
        "letters, digits, _ and - alone: it stands in the log and on the command line",
    ),
]
Names = Annotated[tuple[str, ...], Bound(lambda names: len(names) > 0 and "" not in names, "at least one name")]
Patterns = Annotated[
    str | tuple[str, ...] | None,
    Bound(
        lambda value: value is None or all([value] if isinstance(value, str) else value or [""]),
        "names, or None for all",
    ),
]

T = TypeVar("T")
Named = Annotated[
    dict[Name, T], Bound(_distinct, "names that differ by more than - and _, which are one on the command line")
]
Terms = Annotated[Named[T], NONE_LEAVES_OUT]
