"""Takes a tick apart: the milliseconds of each program and each call of the backend, in the order in which they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tickgraph.bench._figures import times
from tickgraph.core.program import Program
from tickgraph.env.env import Env

_BACKEND = ("advance_and_refresh", "write_state", "refresh")


def take_apart(env: Env, ticks: int) -> list[dict[str, Any]]:
    """Play ticks and return, for each part, its name, its times as `times` gives them, and its share of the whole.

    What is in no part (the calls themselves) is left out; the clock that is read around each part adds a little.
    """
    samples: dict[str, list[float]] = {}
    with _clocks(env, samples):
        for _ in range(ticks):
            env.tick()
    # A part that runs several times in a tick, as a substep does, counts as one.
    parts = {name: np.reshape(values, (ticks, -1)).sum(axis=1) for name, values in samples.items()}
    whole = float(sum(values.sum() for values in parts.values()))
    return [{"part": name, **times(values), "share": float(values.sum()) / whole} for name, values in parts.items()]


@contextmanager
def _clocks(env: Env, samples: dict[str, list[float]]) -> Iterator[None]:
    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.perf_counter_ns()
            result = function(*args)
            samples.setdefault(name, []).append((time.perf_counter_ns() - start) / 1e6)
            return result

        return run

    call = Program.__call__

    def call_program(program: Program, *args: Any) -> Any:
        return timed(program.name, lambda *given: call(program, *given))(*args)

    Program.__call__ = call_program  # type: ignore[method-assign]
    for name in _BACKEND:
        setattr(env.sim, name, timed(f"sim/{name}", getattr(env.sim, name)))
    try:
        yield
    finally:
        Program.__call__ = call  # type: ignore[method-assign]
        for name in _BACKEND:
            delattr(env.sim, name)  # the class's own methods show again
