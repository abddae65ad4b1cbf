"""Types of a configuration's fields: which can be set from outside, what they are called, and whether a value fits."""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import functools
import inspect
import numbers
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tickgraph.core.bounds import NONE_LEAVES_OUT, Bound
from tickgraph.core.errors import TickgraphError, nearby

_MAPPINGS = (dict, collections.abc.Mapping)
_LONGEST_SHOWN = 80  # characters of a value in an error


def check_tree(node: Any, where: str) -> None:
    """Hold every configuration within a value, itself included, to its fields, and to their types and bounds.

    Args:
        node: a dataclass, or dictionaries, tuples and lists of them.
        where: path of the value, in front of the field's name in the error; "" for none.

    Raises:
        TickgraphError: as `check_fields`, or an attribute was set that is no field, or a subclass has a default that
            dataclasses do not read.
    """
    found = list(configurations(node, where))
    for path, one in found:
        _check_names(one, path)
        _check_defaults(one, path)
        _check_each(one, path)
    for path, one in found:
        _check_together(one, path)


def check_fields(node: Any, where: str) -> None:
    """Refuse a value of a dataclass that is not of its field's type, or outside the field's bounds.

    A field whose type is a class of its own kind, such as a protocol, is left alone, and so is None where it is the
    default.

    Args:
        node: an instance of a dataclass. Its method ``check_together(where)``, if it has one, says more of its fields.
        where: what stands before the field's name in the error.

    Raises:
        TickgraphError: a field holds something else; the text names it, the value and what was expected.
    """
    _check_each(node, where)
    _check_together(node, where)


def _check_each(node: Any, where: str) -> None:
    kinds = _annotations(node.__class__)
    for field in dataclasses.fields(node):
        value = getattr(node, field.name, None)
        if value is not None or field.default is not None:
            check_value(value, kinds[field.name], join(where, field.name))


def _check_names(node: Any, where: str) -> None:
    """Refuse an attribute that was set on a configuration from outside and that nothing declares: a misspelled field.

    What its class has, what the class's own methods name and what begins with "_" is the class's affair.
    """
    fields = [field.name for field in dataclasses.fields(node)]
    for name in getattr(node, "__dict__", {}):
        if name not in fields and not name.startswith("_") and not hasattr(type(node), name):
            methods = (value for kind in type(node).__mro__ for value in vars(kind).values())
            if not any(name in function.__code__.co_names for function in methods if inspect.isfunction(function)):
                hint = nearby(name, fields) or f"it has {', '.join(fields) or 'none'}"
                raise TickgraphError(f"{where or type(node).__name__} has no field {name!r}; {hint}")


def _check_defaults(node: Any, where: str) -> None:
    """Refuse a value that a subclass gives a field where dataclasses do not read it: without a type, or in a class
    without @dataclass. An instance would have the older default, silently."""
    for field in dataclasses.fields(node):
        owner = next((kind for kind in type(node).__mro__ if field.name in vars(kind)), None)
        value = field.default if owner is None else vars(owner)[field.name]
        if owner is not None and value is not field.default and not inspect.isdatadescriptor(value):
            raise TickgraphError(
                f"{where or type(node).__name__}: {owner.__name__} sets {field.name} = {shown(value)}, which is not "
                f"taken as a default; write `{field.name}: TYPE = ...` there, and @dataclass over the class"
            )


def _check_together(node: Any, where: str) -> None:
    check_together = getattr(node, "check_together", None)
    if check_together is not None:
        check_together(where)


def check_value(value: Any, kind: Any, where: str) -> None:
    """Refuse a value that is not of a type, or outside its bounds; a dictionary's entries are named one by one."""
    inner, extras = _bare(kind)
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin in (typing.Union, types.UnionType) and isinstance(value, collections.abc.Mapping):
        ways = [part for part in arguments if typing.get_origin(_bare(part)[0]) in _MAPPINGS]
        if len(ways) == 1:
            return check_value(value, ways[0], where)
    if origin in _MAPPINGS and arguments and isinstance(value, collections.abc.Mapping):
        key_kind, item_kind = arguments
        for key, item in value.items():
            if not fits(key, key_kind):
                raise TickgraphError(f"{where} has the name {key!r}, expected {type_name(key_kind)}")
            if item is not None or NONE_LEAVES_OUT not in extras:
                check_value(item, item_kind, f"{where}.{key}")
    elif not fits(value, inner):
        if origin in (typing.Union, types.UnionType):
            for part in arguments:  # of the right type, and outside its bounds
                if _of_type(value, _bare(part)[0]):
                    return check_value(value, part, where)
        hint = nearby(value, arguments) if origin is Literal and isinstance(value, str) else _as_numbers(value, kind)
        raise TickgraphError(f"{where} is {shown(value)}, expected {type_name(kind)}{hint and '; '}{hint}")
    for bound in extras:
        if isinstance(bound, Bound) and not bound.holds(value):
            raise TickgraphError(f"{where} is {shown(value)}, expected {bound.expected}")


def _as_numbers(value: Any, kind: Any) -> str:
    """Return what to do with an array or a tensor in the place of plain numbers, "" where that would not help."""
    if not (hasattr(value, "tolist") and hasattr(value, "shape")):
        return ""
    try:
        helps = fits(value.tolist(), kind)
    except (NotImplementedError, RuntimeError):  # a tensor without values
        return ""
    return "give the array's .tolist()" if helps else ""


def check_arguments(function: Any, given: collections.abc.Mapping[str, Any], where: str) -> None:
    """Hold arguments to the bounds in a function's annotations; those without any bound are for readers alone.

    Args:
        function: what is called with them; no annotations, no checks.
        given: arguments by name.
        where: whose they are, in front of the argument's name in the error.

    Raises:
        TickgraphError: as `check_value`.
    """
    names = getattr(function, "__globals__", {})
    for name, text in getattr(function, "__annotations__", {}).items():
        kind = _resolved(text, names) if name in given else None
        if _bounded(kind):
            check_value(given[name], kind, f"{where}: {name}")


def configurations(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, dataclass) for every configuration within a value, in the order of their declaration."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        yield where, node
        for field in dataclasses.fields(node):
            yield from configurations(getattr(node, field.name, None), join(where, field.name))
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from configurations(value, join(where, str(key)))
    elif isinstance(node, tuple | list):
        for i, value in enumerate(node):
            yield from configurations(value, f"{where}[{i}]")


def join(where: str, name: str) -> str:
    """Return the path of a field; of one of the outermost configuration its name alone."""
    return f"{where}.{name}" if where else name


def shown(value: Any) -> str:
    """Return a value as an error shows it: what is long, by its type alone."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN and "\n" not in text else f"a {type(value).__name__}"


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value is of a type and within its bounds; NumPy's numbers are numbers, a bool is none."""
    kind, extras = _bare(kind)
    return _of_type(value, kind) and all(bound.holds(value) for bound in extras if isinstance(bound, Bound))


def _of_type(value: Any, kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (tuple, list):
        if not isinstance(value, tuple | list):
            return False
        parts = arguments[:1] * len(value) if origin is list or arguments[-1] is Ellipsis else arguments
        return len(parts) == len(value) and all(map(fits, value, parts))
    if origin in _MAPPINGS:
        return isinstance(value, origin) and all(
            fits(item, kind) for pair in value.items() for item, kind in zip(pair, arguments, strict=True)
        )
    if origin is collections.abc.Callable or kind is collections.abc.Callable:
        return callable(value)
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol, a type variable, a generic class: left alone
        return True


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Return the field types of a dataclass; names that only type checkers know make their field unsettable."""
    return {name: _stripped(hint) for name, hint in _annotations(kind).items()}


@functools.cache
def _annotations(kind: type) -> dict[str, Any]:
    """Return the field types of a dataclass with their bounds; ``object`` for what only type checkers know."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            owner = next(base for base in kind.__mro__ if field.name in base.__dict__.get("__annotations__", {}))
            found[field.name] = _resolved(owner.__annotations__[field.name], vars(sys.modules[owner.__module__]))
        return found


class _Names(dict[str, Any]):
    """Names of a module; what it does not know stands for anything, for only type checkers import it."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation stands for where these names are known; ``object`` for no type."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return _resolved(eval(annotation, dict(names), _Names(names)), names)  # quoted twice, it is text still
    except Exception:  # whatever somebody wrote for readers alone
        return object


def _bare(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its bounds, and these."""
    if typing.get_origin(kind) is not Annotated:
        return kind, ()
    return kind.__origin__, kind.__metadata__


def _bounded(kind: Any) -> bool:
    """Tell whether there is a bound anywhere in a type."""
    inner, extras = _bare(kind)
    return any(isinstance(extra, Bound) for extra in extras) or any(map(_bounded, typing.get_args(inner)))


def _stripped(kind: Any) -> Any:
    """Return a type without any bounds in it; ``object`` where a name in it is not known."""
    one = types.SimpleNamespace(__annotations__={"it": kind})
    try:
        return typing.get_type_hints(one, {})["it"]
    except NameError:
        return object


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
    """Return a type as a reader of the help sees it; one with bounds as the first of these says it."""
    kind, extras = _bare(kind)
    for bound in extras:
        if isinstance(bound, Bound) and typing.get_origin(kind) not in _MAPPINGS:
            return bound.expected
    names = {
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        str: "text",
        type(None): "None",
        Any: "anything",
    }
    if kind in names:
        return names[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return "a number" if set(arguments) == {int, float} else " or ".join(map(type_name, arguments))
    if origin is collections.abc.Callable:
        return "a function or a class"
    if origin in _MAPPINGS:
        keys = "name" if _bare(arguments[0])[0] is str else type_name(arguments[0])
        return f"a dictionary of {type_name(arguments[1])} by {keys}"
    if isinstance(kind, type) and not arguments:
        return f"{kind.__name__}(...)" if dataclasses.is_dataclass(kind) else f"a {kind.__name__}"
    if not arguments:
        return str(kind)
    if arguments[-1] is Ellipsis:
        return f"any number of values, each {type_name(arguments[0])}"
    if len(set(arguments)) == 1:
        return f"{len(arguments)} values, each {type_name(arguments[0])}"
    return ", ".join(map(type_name, arguments))
