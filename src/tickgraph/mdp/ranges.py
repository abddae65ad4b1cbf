"""Ranges that terms draw from."""

from __future__ import annotations

from tickgraph.core.bounds import Range, ends_in_order
from tickgraph.core.errors import TickgraphError

__all__ = ["Range", "check_range"]


def check_range(pair: Range, what: str) -> None:
    """Refuse what is no range; `what` names it, such as "events/push: velocity_range of x".

    Raises:
        TickgraphError: it is no pair of numbers, an end is not finite, or the low one is above the high one.
    """
    try:
        low, high = pair
        fine = ends_in_order(low, high)
    except (TypeError, ValueError):
        fine = False
    if not fine:
        given = tuple(pair) if isinstance(pair, list | tuple) else pair
        raise TickgraphError(f"{what} is {given!r}, expected two finite numbers, low <= high")
