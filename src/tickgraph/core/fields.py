"""Types of a configuration's fields: which can be set from outside, what they are called, and whether a value fits."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import sys
import types
import typing
from typing import Any, Literal

from tickgraph.core.errors import TickgraphError


def check_fields(node: Any, where: str) -> None:
    """Refuse a value of a dataclass that is not of its field's type.

    Fields of other types than numbers, text and tuples of them are left alone, and so is None where it is the default.

    Args:
        node: an instance of a dataclass.
        where: what stands before the field's name in the error.

    Raises:
        TickgraphError: a field holds something else; the text names it, the value and the type.
    """
    kinds = hints(node.__class__)
    for field in dataclasses.fields(node):
        kind, value = settable(kinds[field.name]), getattr(node, field.name, None)
        other = any(settable(part) is None for part in typing.get_args(kinds[field.name]) if part is not Ellipsis)
        literal = typing.get_origin(kinds[field.name]) is Literal
        if kind is None or (other and not literal) or fits(value, kind) or (value is None and field.default is None):
            continue
        raise TickgraphError(f"{where}.{field.name} is {value!r}, expected {type_name(kind)}")


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value is of a type that `settable` returned; NumPy's numbers are numbers, a bool is none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is Literal:
        return type(value) in {type(choice) for choice in arguments}  # which of them it is, its owner says better
    if origin in (tuple, list):
        if not isinstance(value, tuple | list):
            return False
        parts = arguments[:1] * len(value) if origin is list or arguments[-1] is Ellipsis else arguments
        return len(parts) == len(value) and all(map(fits, value, parts))
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    return isinstance(value, kind)


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Return the field types of a dataclass; names that only type checkers know make their field unsettable."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            owner = next(base for base in kind.__mro__ if field.name in base.__dict__.get("__annotations__", {}))
            try:
                text = owner.__annotations__[field.name]
                found[field.name] = (
                    eval(text, dict(vars(sys.modules[owner.__module__])), {}) if isinstance(text, str) else text
                )
            except NameError:
                found[field.name] = object
        return found


def settable(hint: Any) -> Any:
    """Return the type that the command line can give for a field of type `hint`, or None."""
    if hint in (bool, int, float, str, type(None)):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return hint
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in map(settable, arguments) if part is not None]
        return typing.Union[tuple(parts)] if set(parts) - {type(None)} else None  # noqa: UP007
    if origin in (tuple, list):
        parts = [Ellipsis if part is Ellipsis else settable(part) for part in arguments]
        if parts and None not in parts:
            return origin[tuple(parts)]
    return None


def type_name(kind: Any) -> str:
    """Return a type as a reader of the help sees it."""
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None"}
    if kind in names:
        return names[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return "a number" if set(arguments) == {int, float} else " or ".join(map(type_name, arguments))
    if arguments and arguments[-1] is Ellipsis:
        return f"any number of values, each {type_name(arguments[0])}"
    if len(set(arguments)) == 1:
        return f"{len(arguments)} values, each {type_name(arguments[0])}"
    return ", ".join(map(type_name, arguments))
