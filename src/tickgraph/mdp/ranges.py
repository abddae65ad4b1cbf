"""Ranges that terms draw from."""

from __future__ import annotations

import math

from tickgraph.core.errors import TickgraphError

Range = tuple[float, float]


def check_range(pair: Range, what: str) -> None:
    """Refuse what is no range; `what` names it, such as "events/push: velocity_range of x".

    Raises:
        TickgraphError: an end is not finite, or the low one is above the high one.
    """
    if len(pair) != 2 or not all(map(math.isfinite, pair)) or pair[0] > pair[1]:
        raise TickgraphError(f"{what} is {tuple(pair)}, expected low <= high, both finite")
