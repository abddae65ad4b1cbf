"""A measurement in a process of its own, so that nothing of an earlier one is in it.

What a trace leaves behind in its process is the reason: there the host takes several times as long to launch a graph.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tickgraph.core.errors import TickgraphError

Measure = Callable[[Any, Callable[[str], None], Callable[[Any], None]], Any]


def measure_apart(measure: Measure, case: Any, say: Callable[[str], None], keep: Callable[[Any], None]) -> Any:
    """Return `measure(case, say, keep)`, computed in a new process; `keep` is called in this one.

    Args:
        measure, say: functions of modules, which the process imports.
        case: what can be sent to it.
        keep: told of results on the way.

    Raises:
        TickgraphError: the process ended without a result.
        Exception: whatever `measure` raised.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_play, args=(measure, case, say, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        while True:
            kind, value = mine.recv()
            if kind == "kept":
                keep(value)
            elif kind == "failed":
                raise value
            else:
                return value
    except EOFError:
        child.join()
        raise TickgraphError(f"a measurement's process ended by itself, with exit code {child.exitcode}") from None
    finally:
        mine.close()
        child.join(10.0)
        child.terminate()  # where it has not ended


def _play(measure: Measure, case: Any, say: Callable[[str], None], results: Connection) -> None:
    try:
        results.send(("done", measure(case, say, lambda rows: results.send(("kept", rows)))))
    except Exception as error:
        results.send(("failed", error))
