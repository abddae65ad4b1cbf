"""What an author's terms hold from their building, as a few sums each: told apart where another process drew others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.foreign import foreign_classes, functions_of, is_foreign
from tickgraph.core.judge import JudgedCall
from tickgraph.core.outside import parts_of, storage_key

Held = dict[str, dict[str, list[Any]]]
"""Term -> name of what it holds -> shape, a weighted sum, and the sum of magnitudes; plain JSON."""

_MOST = 1000  # values of a term
_SAMPLE = 1 << 16  # elements of a tensor
_DEPTH = 6
_TOLERANCE = 1e-5  # of the magnitudes: another processor may round a sine otherwise


def held_numbers(calls: Iterable[JudgedCall]) -> Held:
    """Return what can be reached of numbers from the code of authors' terms, beside the arena's state.

    Args:
        calls: of all terms, right after an environment was built. The package's own terms draw nothing while building.
    """
    found: Held = {}
    for call in calls:
        if not any(is_foreign(function.__code__.co_filename) for function in functions_of(call.func)):
            continue
        path = f"{call.manager}/{call.term}"
        constants = call.arena.constants()
        state = {storage_key(call.arena[name]) for name in call.arena if name not in constants}
        holders = [(name, value) for name, value in call.holders() if value is not call.owners[0]]
        numbers = chain(
            _numbers(holders, call.owners[0], state),
            ((f"constant {name!r}", value) for name, value in constants.items() if name.startswith(f"{path}/")),
        )
        sums = {name: sums_of(value) for name, value in islice(numbers, _MOST)}
        found[path] = found.get(path, {}) | sums
    return {path: sums for path, sums in found.items() if sums}


def differing(before: Mapping[str, Mapping[str, list[Any]]], now: Held) -> list[tuple[str, str]]:
    """Return (term, name) of the first thing of each term whose numbers differ, where both hold it in one shape."""
    found = []
    for path, sums in now.items():
        for name, (shape, total, size) in sums.items():
            then = before.get(path, {}).get(name)
            if then is not None and then[0] == shape:
                scale = max(size, then[2])
                if abs(total - then[1]) > _TOLERANCE * scale or abs(size - then[2]) > _TOLERANCE * scale:
                    found.append((path, name))
                    break
    return found


def sums_of(value: Any) -> list[Any]:
    """Return the shape of numbers, their sum with weights that tell places apart, and the sum of their magnitudes."""
    flat = value.detach().reshape(-1) if isinstance(value, Tensor) else _flat(value)
    flat = flat[:: max(1, len(flat) // _SAMPLE)]
    flat = flat.cpu().to(torch.float64) if isinstance(flat, Tensor) else torch.tensor(list(flat), dtype=torch.float64)
    flat = flat.nan_to_num()
    total = float(flat @ torch.cos(torch.arange(len(flat), dtype=torch.float64)))
    size = float(flat.abs().sum())
    return [list(getattr(value, "shape", ())), *(sum_ if math.isfinite(sum_) else 0.0 for sum_ in (total, size))]


def _flat(value: Any) -> Any:
    return value.reshape(-1) if hasattr(value, "reshape") else [value]


def _numbers(holders: Iterable[tuple[str, object]], env: object, state: set[int | None]) -> Iterator[tuple[str, Any]]:
    """Walk through containers, networks and objects of authors' classes."""
    left: deque[tuple[str, Any, int]] = deque((name, value, 0) for name, value in holders)
    seen = {id(env)}
    while left:
        name, value, depth = left.popleft()
        if isinstance(value, Tensor):
            real = value.layout == torch.strided and not value.is_complex() and not value.is_meta
            if real and storage_key(value) not in state:
                yield name, value
        elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            if value.dtype.kind == "f" or (value.dtype.kind in "iub" and value.ndim):
                yield name, value
        elif isinstance(value, float):  # a whole number says how many, and is none that was drawn
            yield name, value
        elif depth < _DEPTH and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict | list | tuple | deque | torch.nn.Module) or foreign_classes(type(value)):
                left.extend((f"{name}{step}", part, depth + 1) for step, part in islice(parts_of(value), _MOST))
