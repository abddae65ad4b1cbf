"""Compiled code that is called again without asking torch's guards whether it still fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Found(NamedTuple):
    """What a guarded call has run: compiled code, the tensors that torch gave to it and those that came out."""

    code: Callable[..., Sequence[object]]
    inputs: tuple[object, ...]
    outputs: Sequence[object]

    def binds_nothing(self) -> bool:
        """Tell whether all that came out had gone in.

        Tensors that come out are bound to names on the host, as `self.count += 1` does. Bound again to what went in,
        they change nothing there.
        """
        return {id(value) for value in self.outputs} <= {id(value) for value in self.inputs}


class Shortcut:
    """Compiled code with what torch's guards found for it: which inputs are arguments, and what becomes of its outputs.

    Inputs that are no arguments are the very tensors that were found, so that they are given once more; and so is what
    the result holds that neither came out of the code nor is an argument.

    Args:
        found: a guarded call.
        arguments: the tensors that its caller gave, in order.
        result: what its caller got.

    Raises:
        ValueError: something is no tensor, or an argument is given twice.
    """

    __slots__ = ("code", "inputs", "kept", "kinds", "left", "places", "state", "template")

    def __init__(self, found: Found, arguments: Sequence[object], result: object) -> None:
        if not all(isinstance(value, Tensor) for value in (*found.inputs, *arguments)):
            raise ValueError
        order = {id(value): index for index, value in enumerate(arguments)}
        if len(order) < len(arguments):
            raise ValueError
        self.code = found.code
        self.places = [(place, order[id(v)]) for place, v in enumerate(found.inputs) if id(v) in order]
        self.inputs = [None if id(value) in order else value for value in found.inputs]
        self.kinds = kinds_of(arguments)
        there: list[object] = [*found.outputs, *arguments]
        made = len(there)
        self.template = _template(result, there, {id(value): place for place, value in enumerate(there)})
        self.kept = there[made:]
        self.left = 0  # calls until the guards are asked
        # What torch's guards watch of the process: threads, gradient mode, autocast, default dtype, determinism.
        self.state = torch._C._dynamo.guards.GlobalStateGuard()

    def __call__(self, arguments: Sequence[object]) -> object:
        """Run the code with other arguments of the same kinds."""
        inputs: list[object] = list(self.inputs)
        for place, index in self.places:
            inputs[place] = arguments[index]
        return _filled(self.template, (*self.code(*inputs), *arguments, *self.kept))

    def repeats(self, other: Shortcut) -> bool:
        """Tell whether another guarded call found the same."""
        mine, others = (self.code, *self.inputs, *self.kept), (other.code, *other.inputs, *other.kept)
        same = len(mine) == len(others) and all(a is b for a, b in zip(mine, others, strict=True))
        return same and (self.places, self.kinds, self.template) == (other.places, other.kinds, other.template)


def leaves(arguments: Iterable[object]) -> list[object]:
    """Return arguments in order, those in tuples one by one."""
    found: list[object] = []
    for value in arguments:
        if isinstance(value, tuple):
            found += leaves(value)
        else:
            found.append(value)
    return found


def kinds_of(arguments: Iterable[object]) -> list[tuple[object, ...]]:
    """Return shape, strides and dtype of arguments; of what is no tensor, itself."""
    return [(v.shape, v.stride(), v.dtype) if isinstance(v, Tensor) else (v,) for v in arguments]


def _template(result: object, there: list[object], places: dict[int, int]) -> object:
    """Return a result with, for each of its tensors, its place in `there`, which gets what it lacks."""
    if isinstance(result, tuple):
        return type(result), [_template(value, there, places) for value in result]
    if result is None:
        return None
    if not isinstance(result, Tensor):
        raise ValueError
    if id(result) not in places:
        places[id(result)] = len(there)
        there.append(result)
    return places[id(result)]


def _filled(template: Any, there: Sequence[object]) -> object:
    """Return the result of which a template was made, of what there is now."""
    if isinstance(template, int):
        return there[template]
    if template is None:
        return None
    kind, parts = template
    values = [_filled(part, there) for part in parts]
    return tuple(values) if kind is tuple else kind._make(values)
