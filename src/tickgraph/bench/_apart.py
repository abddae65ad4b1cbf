"""A measurement in a process of its own, so that nothing of an earlier one is in it.

The second case in a process took the host five to seven times as long to enqueue as the first, whichever of two came
first (H200). A trace had been taken in the process by then, which is the likely reason.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.env.late import of_term

Measure = Callable[[Any, Callable[[str], None], Callable[[Any], None]], Any]


def measure_apart(measure: Measure, case: Any, say: Callable[[str], None], keep: Callable[[Any], None]) -> Any:
    """Return `measure(case, say, keep)`, computed in a new process; `keep` is called in this one.

    Args:
        measure, say: functions of modules, which the process imports.
        case: what can be sent to it.
        keep: told of results on the way.

    Raises:
        TickgraphError: the process ended without a result.
        Exception: whatever `measure` raised, or a RuntimeError with its name and text where that cannot be sent; its
            traceback is a note.
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
        child.join()  # it holds the device's memory until then


def _play(measure: Measure, case: Any, say: Callable[[str], None], results: Connection) -> None:
    logging.basicConfig(format="warning: %(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        results.send(("done", measure(case, say, lambda rows: results.send(("kept", rows)))))
    except KeyboardInterrupt:
        pass  # the parent tells
    except Exception as error:
        results.send(("failed", _portable(error)))


def _portable(error: Exception) -> Exception:
    """Return the error, or what names the term that it came from, or where neither can be sent its name and text; with
    its traceback as a note."""
    note, error = "".join(traceback.format_exception(error)), of_term(error) or error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however that came."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
