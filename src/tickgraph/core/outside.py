"""Tensors that live from one tick to the next outside the arena: told by their storage, named by who holds them."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tickgraph.core.arena import Arena

_DEPTH = 6


class Storages:
    """Which memory a call may write: the arena's state, and what its own operations have made.

    Whatever else it writes was there before the call, so that the next tick may read it, and no checkpoint has it.
    """

    def __init__(self, arena: Arena) -> None:
        self._constants = {storage_key(tensor): name for name, tensor in arena.constants().items()}
        self._read_only = {storage_key(tensor): name for name, tensor in arena.read_only().items()}
        self._arena = {storage_key(arena[name]): name for name in arena}
        self._made: dict[int | None, torch.UntypedStorage] = {}  # alive, so that no address is given away twice

    def add_results(self, results: object, inputs: Iterable[Tensor]) -> None:
        """Take over the memory of an operation's results, where it is not that of its inputs."""
        given = {storage_key(tensor) for tensor in inputs}
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor) and (key := storage_key(leaf)) is not None and key not in given:
                self._made[key] = leaf.untyped_storage()

    def read_only(self, tensor: Tensor) -> str | None:
        """Return the arena's name of memory that its owner alone may write, None for other memory."""
        return self._read_only.get(storage_key(tensor))

    def name(self, tensor: Tensor) -> str | None:
        """Return the arena's name of memory, None for other memory."""
        return self._arena.get(storage_key(tensor))

    def constant(self, tensor: Tensor) -> str | None:
        """Return the arena's name of a constant, None for other memory."""
        return self._constants.get(storage_key(tensor))

    def outside(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is neither the arena's nor made by the call itself."""
        key = storage_key(tensor)
        return key is not None and key not in self._arena and key not in self._made


def holder_of(tensor: Tensor, holders: Iterable[tuple[str, object]]) -> str | None:
    """Return by what name the memory of a tensor can be reached, such as "self.net.running_mean", or None.

    Args:
        tensor: what is looked for.
        holders: names and what they stand for; the first that leads there is taken.
    """
    key, seen = storage_key(tensor), set()
    left = deque((name, value, 0) for name, value in holders)
    while left:
        name, value, depth = left.popleft()
        if isinstance(value, Tensor):
            if storage_key(value) == key:
                return name
        elif depth < _DEPTH and id(value) not in seen:
            seen.add(id(value))
            left.extend((f"{name}{step}", part, depth + 1) for step, part in parts_of(value))
    return None


def parts_of(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what a container or an object holds, each with the step that leads there, such as ".net" or "[0]"."""
    if isinstance(value, torch.nn.Module):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f".{name}", tensor
    if isinstance(value, dict):
        for name, item in list(value.items()):
            yield f"[{name!r}]", item
    elif isinstance(value, list | tuple | deque):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif not isinstance(value, type | types.ModuleType | types.FunctionType):
        for name, item in list(getattr(value, "__dict__", {}).items()):
            yield f".{name}", item
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield f".{name}", getattr(value, name)


def storage_key(tensor: Tensor) -> int | None:
    """Return what tells one memory from another, None for a tensor without any, such as a sparse one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None
