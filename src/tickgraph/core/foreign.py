"""Whose code it is: a task author's, or this package's, a library's or Python's own."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


@functools.cache
def is_foreign(file: str) -> bool:
    """Tell whether a file belongs neither to this package nor to torch, a library or Python itself."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    homes = (Path(__file__).parents[1], Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib")))
    libraries = {"site-packages", "dist-packages"}
    return not libraries.intersection(path.parts) and not any(path.is_relative_to(home.resolve()) for home in homes)


def is_foreign_module(name: str) -> bool:
    """Tell whether a module is an author's."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and is_foreign(file)


def foreign_classes(kind: type) -> list[type]:
    """Return a class and its bases, those that an author wrote."""
    return [base for base in kind.__mro__ if is_foreign_module(base.__module__)]


def function_of(func: Any) -> types.FunctionType | None:
    """Return the plain function that runs when `func` is called, None for one that is not written in Python."""
    while isinstance(func, functools.partial):
        func = func.func
    if not isinstance(func, types.FunctionType | types.MethodType):
        func = inspect.getattr_static(func if isinstance(func, type) else type(func), "__call__", None)
    func = inspect.unwrap(getattr(func, "__func__", func))
    return func if isinstance(func, types.FunctionType) else None


def functions_of(func: Any) -> list[types.FunctionType]:
    """Return the functions that may run when `func` is called: its own, an author's methods, and what these call.

    Args:
        func: a function, a class or an instance. Of a class an author's methods count, inherited ones too.
    """
    found: dict[int, types.FunctionType] = {}
    left = [function_of(func)]
    while isinstance(func, functools.partial):
        func = func.func
    if not isinstance(func, types.FunctionType | types.MethodType):
        for kind in foreign_classes(func if isinstance(func, type) else type(func)):
            left += [function for value in vars(kind).values() for function in _within(value)]
    while left:
        function = left.pop()
        if function is not None and id(function) not in found:
            found[id(function)] = function
            left += [f for f in _named_in(function) if is_foreign(f.__code__.co_filename)]
    return list(found.values())


def _within(value: object) -> Iterator[types.FunctionType]:
    """Yield the functions of a class's attribute: a method, static or class method, or property."""
    parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    for part in parts:
        part = inspect.unwrap(part) if callable(part) else part
        if isinstance(part, types.FunctionType):
            yield part


def _named_in(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yield the functions that a function's global and closed-over names stand for, and `name` of `module.name`."""
    names = function.__code__.co_names
    values = [function.__globals__.get(name) for name in names]
    modules = [value for value in values if isinstance(value, types.ModuleType) and is_foreign_module(value.__name__)]
    values += [getattr(module, name, None) for module in modules for name in names]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for value in values:
        if isinstance(value, types.FunctionType):
            yield value
