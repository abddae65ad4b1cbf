"""Whether a run's terms and models are of the code that it began with: a sum of each, kept in checkpoints."""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from tickgraph.core.fields import configurations, join
from tickgraph.core.foreign import foreign_classes, is_foreign, is_foreign_module
from tickgraph.robots.entity import EntityCfg
from tickgraph.run.config import Task

Code = dict[str, int]
"""Path of a value in the task -> sum of the author's code behind it, or of a model's file; ``FILE`` for the task's."""
FILE = "file"
_PYTHON = "python"  # whose instructions were summed: another version has others
_FORM = 2  # of what is summed
_DEFAULT = "default "  # and the parameter
_MOST = 1000  # parts of a container


def code_sums(task: Task) -> Code:
    """Return what tells the code of a task's author apart from what it is after an edit.

    It is that of functions, classes and what these reach by name, with the plain values that they find there. Comments,
    blank lines, docstrings and names of variables do not count, nor what a configuration holds: config.yaml has that.
    Floats count as defaults alone; others are numbers that a term holds (core/held.py), which may have been drawn. The
    package's own code is that of its version.
    """
    sums: Code = {_PYTHON: _FORM << 16 | sys.hexversion >> 16}
    for path, node in configurations(task.env, "env"):
        for field in dataclasses.fields(node):
            value, where = getattr(node, field.name, None), join(path, field.name)
            if isinstance(node, EntityCfg) and isinstance(value, str | Path):
                if (found := _sum_of_file(str(value))) is not None:
                    sums[where] = found
                continue
            inner = {join(where, str(key)): part for key, part in value.items()} if isinstance(value, dict) else {}
            for name, part in {where: value, **inner}.items():
                if callable(part) and (told := sorted(_told(part))):
                    sums[name] = zlib.crc32("\n".join(told).encode())
    file = task.reference.rpartition(":")[0]
    if file.endswith(".py") and (found := _sum_of_file(file)) is not None:
        sums[FILE] = found
    return sums


def changed_code(before: Mapping[str, int], now: Code) -> list[str]:
    """Return the paths whose code, or file, is another one; none where a checkpoint does not say so."""
    if before.get(_PYTHON) != now[_PYTHON]:
        return []
    return [path for path, value in now.items() if before.get(path, value) != value]


def _told(root: object) -> Iterator[str]:
    """Yield what an author's code that can be reached from a callable computes by, and the plain values it finds."""
    left: list[tuple[str, object]] = [("", root)]
    seen: set[int] = set()
    while left:
        name, value = left.pop()
        if isinstance(value, bool | int | float | str):
            moved = isinstance(value, str) and Path(value).is_absolute()  # a folder may have been
            if not moved and (not isinstance(value, float) or name.startswith(_DEFAULT)):
                yield repr((name, value))
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, types.FunctionType) and is_foreign(value.__code__.co_filename):
                yield repr(list(_instructions(value.__code__)))
            left += islice(_reached(name, value), _MOST)


def _reached(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what a callable's code can reach by name, and what a container or an author's object leads to."""
    if isinstance(value, types.FunctionType):
        yield from _reached_by(value) if is_foreign(value.__code__.co_filename) else _wrapped(value)
    elif isinstance(value, functools.partial):
        yield from [("func", value.func), *((str(i), part) for i, part in enumerate(value.args))]
        yield from value.keywords.items()
    elif isinstance(value, types.MethodType):
        yield from (("func", value.__func__), ("self", value.__self__))
    elif isinstance(value, property):
        yield from (("get", value.fget), ("set", value.fset))
    elif isinstance(value, staticmethod | classmethod):
        yield "func", value.__func__
    elif isinstance(value, functools.cached_property):
        yield "func", value.func
    elif isinstance(value, tuple):
        yield from ((f"{name}[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, list | dict):  # its plain values may change as the program runs
        parts = value.values() if isinstance(value, dict) else value
        yield from (("", part) for part in parts if not isinstance(part, bool | int | float | str))
    elif isinstance(value, type):
        for kind in foreign_classes(value):
            for attribute, part in vars(kind).items():
                if isinstance(part, types.FunctionType) or not attribute.startswith("__"):
                    yield attribute, part
    elif foreign_classes(type(value)):
        yield "class", type(value)


def _reached_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the defaults of a function, what it closes over, and what its global names stand for."""
    defaults = {**dict(enumerate(function.__defaults__ or ())), **(function.__kwdefaults__ or {})}
    yield from ((f"{_DEFAULT}{name}", value) for name, value in defaults.items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    names, attributes = _names(function.__code__)
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if is_foreign_module(value.__name__):
                yield from ((a, getattr(value, a)) for a in sorted(attributes) if hasattr(value, a))
        elif not name.startswith("__"):
            yield name, value


def _wrapped(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    if (inner := getattr(function, "__wrapped__", None)) is not None:
        yield "wrapped", inner


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the global names that code reads, and all names in it; those of functions within it too."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    every = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names, attributes = _names(constant)
            found |= names
            every |= attributes
    return found, every


def _instructions(code: types.CodeType) -> Iterator[object]:
    """Yield what a function computes by: instructions with names and constants, those of functions within it too."""
    for step in dis.get_instructions(code):
        if step.opcode not in dis.hasconst:
            yield step.opname, step.argval if step.opcode in dis.hasname else step.arg
        elif isinstance(step.argval, types.CodeType):
            yield from _instructions(step.argval)
        else:  # the order within a set depends on the process
            held = sorted(map(repr, step.argval)) if isinstance(step.argval, frozenset) else step.argval
            yield step.opname, repr(held)


def _sum_of_file(name: str) -> int | None:
    """Return a sum of a file's bytes, of Python source without its comments; None where that is no file."""
    try:
        data = Path(name).read_bytes()
        if name.endswith(".py"):
            data = ast.unparse(ast.parse(data)).encode()
    except RecursionError:  # a sum of thousands of numbers, say: its bytes then, comments and all
        pass
    except (OSError, ValueError, SyntaxError):  # a model may be given as XML, in the place of a path
        return None
    return zlib.crc32(data)
