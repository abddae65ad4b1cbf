"""The algorithms by name; loads no torch, so that a command's words can be judged first."""

from __future__ import annotations

from tickgraph.core.errors import TickgraphError, nearby

ALGO_NAMES = ("flashsac", "sac")


def check_algo(name: str) -> str:
    """Return the name of an algorithm.

    Raises:
        TickgraphError: there is none of this name.
    """
    if name not in ALGO_NAMES:
        hint = nearby(name, ALGO_NAMES) or f"the algorithms are {', '.join(ALGO_NAMES)}"
        raise TickgraphError(f"there is no algorithm {name!r}; {hint}")
    return name
