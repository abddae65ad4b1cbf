"""Python state of objects, fingerprinted, to find what a tick changes on the host and a compiled program would not."""

import dataclasses
import functools
import inspect
import itertools
import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch

from tickgraph.core.foreign import foreign_classes, is_foreign, is_foreign_module

_DEPTH = 8


class _Same:
    """Equal to another where both hold the same object; holding it keeps its identity from being used again."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def fingerprint(value: Any) -> object:
    """Return something that compares equal as long as the host sees the same value.

    Numbers and strings compare by value, containers, dataclasses, NumPy arrays and objects of an author's classes by
    content, iterators and random generators by where they stand, tensors by identity and address (what they hold lives
    on the device and may change), everything else by identity.
    """
    return _fingerprint(value, _DEPTH, set())


def _fingerprint(value: Any, depth: int, seen: set[int]) -> object:
    if value is None or isinstance(value, bool | int | str | bytes | complex | Enum):
        return type(value), value
    if isinstance(value, float | range | slice):
        return type(value), repr(value)
    if isinstance(value, torch.Tensor):
        address = 0 if value.is_meta else value.data_ptr()
        return _Same(value), address, tuple(value.shape)
    if depth == 0:
        return _Same(value)

    def inner(part: object) -> object:
        return _fingerprint(part, depth - 1, seen)

    if isinstance(value, dict):
        return type(value), tuple((inner(key), inner(item)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return type(value), tuple(inner(item) for item in value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(inner(item) for item in value)
    if isinstance(value, bytearray):
        return bytearray, bytes(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return value.tobytes(), value.shape
    standing = _standing(value)
    if standing is not None:
        return type(value), inner(standing)  # by no identity: an iterator shows parts of it made anew
    if id(value) in seen:
        return _Same(value)
    seen.add(id(value))
    if isinstance(value, type | types.ModuleType):
        return _Same(value)
    if foreign_classes(type(value)) or isinstance(value, torch.nn.Module):
        return _Same(value), tuple((name, inner(item)) for name, item in _own_attributes(value))
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return _Same(value), tuple(inner(getattr(value, name, None)) for name in fields)
    return _Same(value)


def _standing(value: Any) -> object | None:
    """Return where a random generator or an iterator stands, without moving it; None of anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return () if frame is None else (frame.f_lasti, dict(frame.f_locals))
    kind = type(value)
    if kind.__module__.startswith("numpy.random"):
        generator = getattr(value, "bit_generator", value)
        return repr(getattr(generator, "state", None) or generator.get_state())
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of itertools, deprecated: they are not copied here, only looked at
            try:
                return tuple(value.__reduce__()[1:])
            except TypeError:  # an open file, say
                return None
    return None


def is_random_generator(owner: object, name: str) -> bool:
    """Tell whether an attribute, by the name that `changed_host_state` gives it, is a generator of random numbers."""
    value = dict(_attributes(owner)).get(name)
    return isinstance(value, random.Random | torch.Generator) or type(value).__module__.startswith("numpy.random")


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    """Yield what code can change on an object: its attributes, or for a function the outer names that it uses."""
    function = owner.__func__ if isinstance(owner, types.MethodType) else owner
    if isinstance(function, types.FunctionType):
        code = function.__code__
        for name in code.co_names:
            if name in function.__globals__:
                value = function.__globals__[name]
                yield f"global {name}", value
                if isinstance(value, types.ModuleType) and is_foreign(getattr(value, "__file__", None) or "<"):
                    yield from ((f"global {name}.{a}", getattr(value, a)) for a in code.co_names if hasattr(value, a))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield f"nonlocal {name}", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield "default arguments", function.__defaults__
        owner = function
    yield from _own_attributes(owner)


def _own_attributes(owner: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, and what an author's class of it keeps for all its objects."""
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        # A cached property that is read for the first time is no change.
        if not isinstance(inspect.getattr_static(type(owner), name, None), functools.cached_property):
            yield name, value
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name, getattr(owner, name)
        for name, value in list(vars(kind).items()) if is_foreign_module(kind.__module__) else ():
            if not name.startswith("__") and not hasattr(value, "__get__"):
                yield f"{kind.__qualname__}.{name}", value


def held_by(owners: Iterable[object], functions: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Yield what code can reach with the name it has there: first of an instance, then of functions, then of env.

    Args:
        owners: the environment, then the term's instance where there is one.
        functions: what runs.
    """
    env, *instances = owners
    for instance in instances:
        yield "self", instance
        yield from ((name, value) for name, value in _own_attributes(instance) if "." in name)  # its class's
    for function in functions:
        yield from ((name, value) for name, value in _attributes(function) if value is not env)
    yield "env", env


HostState = list[tuple[object, dict[str, object]]]


def host_state(objects: Iterable[object]) -> HostState:
    """Return a snapshot of the Python state of objects.

    Args:
        objects: managers, terms, the environment; of a plain function the globals and closed-over names it uses.
    """
    return [(owner, {name: fingerprint(value) for name, value in _attributes(owner)}) for owner in objects]


def changed_host_state(before: HostState, objects: Iterable[object]) -> list[tuple[object, str]]:
    """Return (object, attribute) of everything that was set, removed, rebound or mutated since a snapshot.

    Args:
        before: from `host_state`.
        objects: the same objects; those that the snapshot lacks are skipped.
    """
    known = {id(owner): attributes for owner, attributes in before}
    changes = []
    for owner, now in host_state(objects):
        then = known.get(id(owner))
        if then is not None:
            names = [*now, *(name for name in then if name not in now)]
            missing = object()
            changes += [(owner, name) for name in names if now.get(name, missing) != then.get(name, missing)]
    return changes


# Called with the object, the attribute's name, its old value (None where it had none) and its new one (None: removed).
OnAssign = Callable[[object, str, object, object], None]


@contextmanager
def recorded_assignments(objects: Iterable[object], on_assign: OnAssign) -> Iterator[None]:
    """Call back at each assignment to an attribute of the objects, while the context lasts.

    Each object belongs to a subclass of its class meanwhile. Objects whose layout forbids that are left alone.
    """
    originals: list[tuple[object, type]] = []
    try:
        for owner in {id(owner): owner for owner in objects}.values():
            kind = type(owner)
            try:
                object.__setattr__(owner, "__class__", _recording_class(kind, on_assign))
            except TypeError:
                continue
            originals.append((owner, kind))
        yield
    finally:
        for owner, kind in originals:
            for name, value in list(vars(type(owner)).items()):  # `type(self).count += 1`
                if not name.startswith("__"):
                    on_assign(owner, name, getattr(kind, name, None), value)
            object.__setattr__(owner, "__class__", kind)


def _recording_class(kind: Any, on_assign: OnAssign) -> type:
    def record(owner: object, name: str, new: object) -> None:
        # A property's setter assigns something else, which is recorded in turn.
        if isinstance(inspect.getattr_static(kind, name, None), property):
            return
        old = getattr(owner, name, None)
        # `self.buffer += x` writes in place and then assigns the tensor to itself.
        if new is not old or not hasattr(owner, name):
            on_assign(owner, name, old, new)

    def __setattr__(self: object, name: str, value: object) -> None:
        record(self, name, value)
        kind.__setattr__(self, name, value)

    def __delattr__(self: object, name: str) -> None:
        record(self, name, None)
        kind.__delattr__(self, name)

    body = {"__slots__": (), "__setattr__": __setattr__, "__delattr__": __delattr__}
    body |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (kind,), body)
