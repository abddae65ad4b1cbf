"""The machine-readable result of a benchmark: which fields it has, and the check that refuses any other file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import isfile  # unlike Path's, False for a name that is too long
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import read_json, write_json
from tickgraph.run.manifest import result_header
from tickgraph.run.output import is_stream

FORMAT = 1
_CASE = ("task", "backend", "device", "num_envs", "scenario")
_HEADER = ("format", "benchmark", "machine", "versions", "commit", "dirty", "results", "ratios")
_TIMES = ("mean_ms", "median_ms", "p90_ms", "p95_ms")
ROW = (
    *_CASE,
    "arm",
    *_TIMES,
    "ticks",
    "host_syncs_per_tick",
    "graph_launches_per_tick",
    "allocated_bytes_delta",
)
RATIO = (*_CASE, "tick_over_physics", "ci95")
LEARNER_ROW = ("algo", "updates", "batch_size", "graph_nodes", "floor_ms", "over_floor")
LEARNER_RATIO = ("fastest", "fastest_ms", "over_floor", "floor_ms", "floor_flops_ms", "floor_bytes_ms")
TRAIN_ROW = ("tail_env_steps_per_sec", "collector_ms", "learner_ms", "overlap_share", "enqueue_ms")

# Keys of a row and of a case, and what of a case is above 0. The ratios of training and of the learner are between the
# arms that were asked for.
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "collector": (ROW, RATIO, ("tick_over_physics",)),
    "train": ((*ROW, *TRAIN_ROW), _CASE, ()),
    "learner": ((*ROW, *LEARNER_ROW), (*_CASE, *LEARNER_RATIO), ("over_floor", "floor_ms")),
}


def new_result(benchmark: str, results: list[dict[str, Any]], ratios: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole result: `results` has a row an arm with the keys of `ROW`, `ratios` one a case with `RATIO`."""
    return {"format": FORMAT, "benchmark": benchmark, **result_header(), "results": results, "ratios": ratios}


def write_result(path: Path, result: dict[str, Any], whole: bool = True) -> None:
    """Write a result as strict JSON; one that is not whole yet goes to a file alone, where the next one replaces it."""
    if whole or not is_stream(path):
        write_json(path, result)


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Name the file in the error where something that is read off it is missing or of another kind.

    Raises:
        TickgraphError: instead of what Python says then.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise TickgraphError(
            f"{path} is not whole: {type(error).__name__} {error}; give it as tickgraph wrote it, or measure again"
        ) from error


def finite(value: object) -> float:
    """Return a number of a file as float.

    Raises:
        TypeError: it is none, or not finite.
    """
    if not is_number(value):
        raise TypeError(f"{value!r} in the place of a number")
    return float(value)  # type: ignore[arg-type]


def read_result(path: Path) -> dict[str, Any]:
    """Read a result.

    Raises:
        TickgraphError: the file is missing, no result, or lacks something; the text names what.
    """
    if not isfile(path):
        raise TickgraphError(f"there is no file {str(path)!r}; give a result that `tickgraph bench ... --json` wrote")
    value = read_json(path, "result of a benchmark")
    _require(value, _HEADER, str(path))
    if value["format"] != FORMAT:
        raise TickgraphError(f"{path} has format {value['format']!r}, this version reads {FORMAT}")
    if value["benchmark"] not in (kinds := [*_KEYS]):
        raise TickgraphError(f"{path} is of the benchmark {value['benchmark']!r}, expected one of {', '.join(kinds)}")
    row_keys, ratio_keys, ratio = _KEYS[value["benchmark"]]
    for name, keys, positive in (
        ("results", row_keys, (*_TIMES, "num_envs")),
        ("ratios", ratio_keys, (*ratio, "num_envs")),
    ):
        if not isinstance(value[name], list) or not value[name]:
            raise TickgraphError(f"{path}: {name!r} is not a list of rows")
        for number, row in enumerate(value[name]):
            where = f"{path}: {name}[{number}]"
            if not isinstance(row, dict):
                raise TickgraphError(f"{where} is not an object")
            _require(row, keys, where)
            _check_positive(row, positive, where)
    for number, row in enumerate(value["ratios"] if "ci95" in ratio_keys else []):
        interval = row["ci95"]
        if not isinstance(interval, list) or len(interval) != 2 or not all(is_number(end) for end in interval):
            raise TickgraphError(f"{path}: ratios[{number}].ci95 is {interval!r}, expected two numbers")
    return value


def _require(row: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    missing = [key for key in keys if key not in row]
    if missing:
        raise TickgraphError(f"{where} lacks {', '.join(missing)}; it is not a result that tickgraph wrote")


def _check_positive(row: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if not is_number(row[key]) or row[key] <= 0:
            raise TickgraphError(f"{where}.{key} is {row[key]!r}, expected a number above 0")


def is_number(value: object) -> bool:
    """Return whether a value of a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
