"""Every persistent tensor, declared once with its name, shape, dtype and reason, at an address that never changes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.memory import memory_for
from tickgraph.core.room import FEWER, check_room


@dataclass(frozen=True)
class _Entry:
    tensor: Tensor
    why: str
    constant: bool
    read_only: bool = False


class Arena:
    """Owner of all tensors that live from one tick to the next.

    Declare tensors with `new` and `constant` while building, then `seal`: from then on nothing can be added, and every
    tensor keeps its address, so a captured or compiled program may hold it for ever. State is written in place only.

    Args:
        device: where every tensor lives. "meta" gives shapes without memory, which is what the judge runs on.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None and torch.cuda.is_available():
            # By its number, as the tensors on it say it, and as other libraries want it.
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._entries: dict[str, _Entry] = {}
        self._sealed = False

    @property
    def sealed(self) -> bool:
        """True once `seal` has been called."""
        return self._sealed

    def seal(self) -> None:
        """End the declarations: `new` and `constant` raise from here on."""
        self._sealed = True

    def new(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        why: str = "",
        fill: float | int | bool = 0,
        read_only: bool = False,
        advice: str = FEWER,
    ) -> Tensor:
        """Declare a tensor of state, filled with `fill`; it is part of every snapshot.

        Args:
            name: unique path such as "env/episode_length".
            shape: full shape; () is a scalar, an int is a vector of that length.
            dtype: element type.
            why: one line for readers of `table`.
            fill: value of every element at first.
            read_only: its owner alone writes it; the judge names whoever else does.
            advice: what to change where there is no memory for it.

        Returns:
            The tensor, on the arena's device. Write it in place, never rebind it.

        Raises:
            TickgraphError: the name is taken, the arena is sealed, it would be a float64 scalar, or the machine has
                not the memory.
        """
        self._check_free(name)
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        if not size and dtype == torch.float64:
            raise TickgraphError(
                f"tensor {name!r} is a float64 scalar, and torch.compile loses what is written to one on a CPU "
                "(seen with 2.13); give it the shape (1,)"
            )
        what = f"tensor {name!r} {size} {_short(dtype)} beside the {self.nbytes() / 1e9:.1f} GB declared before"
        check_room(math.prod(size) * dtype.itemsize, self.device, what, advice)
        with memory_for(what, advice):
            tensor = torch.full(size, fill, dtype=dtype, device=self.device)
        self._entries[name] = _Entry(tensor, why, constant=False, read_only=read_only)
        return tensor

    def constant(self, name: str, value: object, dtype: torch.dtype = torch.float32, why: str = "") -> Tensor:
        """Declare a tensor that follows from the configuration and is therefore left out of snapshots.

        Args:
            name: unique path.
            value: number, nested list, array or tensor; it is copied.
            dtype: element type after the copy.
            why: one line for readers of `table`.

        Raises:
            TickgraphError: the name is taken, the arena is sealed, or the machine has not the memory.
        """
        self._check_free(name)
        source = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
        what = f"tensor {name!r} {tuple(source.shape)} {_short(dtype)}"
        check_room(source.numel() * dtype.itemsize, self.device, what)
        tensor = torch.empty(source.shape, dtype=dtype, device=self.device)
        tensor.copy_(source)
        self._entries[name] = _Entry(tensor, why, constant=True)
        return tensor

    def __getitem__(self, name: str) -> Tensor:
        """Return a declared tensor; raises TickgraphError with similar names when there is none."""
        entry = self._entries.get(name)
        if entry is None:
            raise TickgraphError(
                f"the arena has no tensor {name!r}; {nearby(name, self._entries) or 'see Arena.names()'}"
            )
        return entry.tensor

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        """Return all names, constants included, in the order of their declaration."""
        return list(self._entries)

    def nbytes(self) -> int:
        """Return the bytes that all tensors take together."""
        return sum(_nbytes(entry.tensor) for entry in self._entries.values())

    def table(self) -> list[dict[str, object]]:
        """Return one {name, shape, dtype, bytes, why} per tensor, in the order of their declaration."""
        return [
            {
                "name": name,
                "shape": tuple(entry.tensor.shape),
                "dtype": _short(entry.tensor.dtype),
                "bytes": _nbytes(entry.tensor),
                "why": entry.why,
            }
            for name, entry in self._entries.items()
        ]

    def read_only(self) -> dict[str, Tensor]:
        """Return by name what its owner alone may write."""
        return {name: entry.tensor for name, entry in self._entries.items() if entry.read_only}

    def versions(self) -> dict[str, int]:
        """Return by name how often each tensor has been written so far."""
        return {name: entry.tensor._version for name, entry in self._entries.items()}

    def constants(self) -> dict[str, Tensor]:
        """Return by name what follows from the configuration, and is in no snapshot."""
        return {name: entry.tensor for name, entry in self._entries.items() if entry.constant}

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of every tensor of state (not of the constants), on the arena's device."""
        return {name: entry.tensor.clone() for name, entry in self._entries.items() if not entry.constant}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Write a snapshot back in place; nothing is written unless all of it fits.

        Args:
            state: exactly the names, shapes and dtypes of `snapshot`, on any device.

        Raises:
            TickgraphError: a name is missing or unknown, or a shape or dtype differs.
        """
        own = {name: entry.tensor for name, entry in self._entries.items() if not entry.constant}
        missing = [name for name in own if name not in state]
        unknown = [name for name in state if name not in own]
        if missing or unknown:
            parts = [f"lacks {', '.join(missing[:5])}"] if missing else []
            parts += [f"has unknown {', '.join(unknown[:5])}"] if unknown else []
            raise TickgraphError(
                f"the snapshot {' and '.join(parts)} ({len(missing)} missing, {len(unknown)} unknown of {len(own)} "
                "tensors); restore it into an arena built from the same configuration"
            )
        for name, tensor in own.items():
            given = state[name]
            if given.shape != tensor.shape or given.dtype != tensor.dtype:
                raise TickgraphError(
                    f"the snapshot's {name!r} is {tuple(given.shape)} {given.dtype}, the arena's is "
                    f"{tuple(tensor.shape)} {tensor.dtype}; restore it into an arena built from the same configuration"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def pointers(self) -> dict[str, int]:
        """Return the address of every tensor, to check that none moved."""
        return {name: entry.tensor.data_ptr() for name, entry in self._entries.items()}

    def _check_free(self, name: str) -> None:
        if self._sealed:
            raise TickgraphError(f"tensor {name!r} was declared after the arena was sealed; declare it while building")
        if name in self._entries:
            raise TickgraphError(f"tensor {name!r} is declared already; give each persistent tensor its own name")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _nbytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
