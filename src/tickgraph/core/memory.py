"""Running out of memory, as one line that says what was asked for."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tickgraph.core.errors import TickgraphError

# What torch says of main memory, for which it has no exception of its own.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that names what the memory was for.

    Args:
        what: such as "tensor 'ring/obs' (4096, 99) float32, 1.6 MB".

    Raises:
        TickgraphError: the device has not enough memory left.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        explained = out_of_memory(error, what)
        if explained is None:
            raise
        raise explained from error


def out_of_memory(error: Exception, what: str) -> TickgraphError | None:
    """Return the line that says what memory was wanted for, or None where an error is about something else."""
    on_gpu = isinstance(error, torch.OutOfMemoryError)
    if not (on_gpu or isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)):
        return None
    said = (str(error).strip() or "no more is said").splitlines()[0]
    asked = None if on_gpu else re.search(r"tried to allocate (\d+) bytes", said)
    if asked is not None:  # the rest is the allocator's place in torch's source
        said = f"{int(asked[1]) / 2**30:.1f} GiB cannot be had."
    return TickgraphError(
        f"out of {'GPU ' if on_gpu else ''}memory for {what}: {said} Use fewer worlds (num_envs), or a smaller replay "
        "(replay_slots), batch or network"
    )
