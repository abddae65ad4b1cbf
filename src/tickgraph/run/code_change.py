"""Whether a run's terms and models are of the code that it began with: a sum of each, kept in checkpoints."""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tickgraph.core.fields import configurations, join
from tickgraph.core.foreign import functions_of, is_foreign
from tickgraph.robots.entity import EntityCfg
from tickgraph.run.config import Task

Code = dict[str, int]
"""Path of a value in the task -> sum of the author's code behind it, or of a model's file; ``FILE`` for the task's."""
FILE = "file"
_PYTHON = "python"  # whose instructions were summed: another version has others


def code_sums(task: Task) -> Code:
    """Return what tells the code of a task's author apart from what it is after an edit: of functions, not of values.

    Comments, blank lines and names of variables do not count. The package's own code is that of its version.
    """
    sums: Code = {_PYTHON: sys.hexversion >> 16}
    for path, node in configurations(task.env, "env"):
        for field in dataclasses.fields(node):
            value = getattr(node, field.name, None)
            if isinstance(node, EntityCfg) and isinstance(value, str | Path):
                if (found := _sum_of_file(str(value))) is not None:
                    sums[join(path, field.name)] = found
            elif callable(value) or isinstance(value, functools.partial):
                functions = [f for f in functions_of(value) if is_foreign(f.__code__.co_filename)]
                if functions:
                    told = sorted(repr([_defaults(function), *_parts(function.__code__)]) for function in functions)
                    sums[join(path, field.name)] = zlib.crc32("\n".join(told).encode())
    file = task.reference.rpartition(":")[0]
    if file.endswith(".py") and (found := _sum_of_file(file)) is not None:
        sums[FILE] = found
    return sums


def changed_code(before: Mapping[str, int], now: Code) -> list[str]:
    """Return the paths whose code, or file, is another one; none where a checkpoint does not say so."""
    if before.get(_PYTHON) != now[_PYTHON]:
        return []
    return [path for path, value in now.items() if before.get(path, value) != value]


def _defaults(function: types.FunctionType) -> list[object]:
    """Return the plain ones of a function's defaults; others show where in memory they are."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [value for value in values if isinstance(value, bool | int | float | str)]


def _parts(code: types.CodeType) -> Iterator[object]:
    """Yield what a function computes by: instructions, names and constants, those of functions within it too."""
    yield from (code.co_code.hex(), code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _parts(constant)
        else:  # the order within a set depends on the process
            yield sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def _sum_of_file(name: str) -> int | None:
    """Return a sum of a file's bytes, of Python source without its comments; None where that is no file."""
    try:
        data = Path(name).read_bytes()
        if name.endswith(".py"):
            data = ast.unparse(ast.parse(data)).encode()
    except (OSError, ValueError, SyntaxError):  # a model may be given as XML, in the place of a path
        return None
    return zlib.crc32(data)
