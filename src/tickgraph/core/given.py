"""Checks of what a caller hands to a constructor: one line each that says what was given and what to write."""

from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import fits


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number, NumPy's too, as an int.

    Raises:
        TickgraphError: it is something else, or below ``least``.
    """
    if not fits(value, int) or value < least:
        raise TickgraphError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return int(value)


def seed64(value: Any) -> int:
    """Return a seed as an int.

    Raises:
        TickgraphError: it is no whole number from 0 to 2^64 - 1.
    """
    if not fits(value, int) or not 0 <= value < 1 << 64:
        raise TickgraphError(f"seed is {value!r}, expected a whole number from 0 to 2^64 - 1")
    return int(value)
