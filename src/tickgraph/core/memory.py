"""Running out of memory, as one line that says what was asked for, what is free and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.core.room import FEWER, size

# What those say that have no exception of their own for it: torch of main memory, Warp, the CUDA driver, cuBLAS.
_NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "Storage size calculation overflowed"),
    *("Failed to allocate", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
)


@contextmanager
def memory_for(what: str, advice: str = FEWER) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that names what the memory was for.

    Args:
        what: such as "tensor 'ring/obs' (4096, 99) float32, 1.6 MB".
        advice: what to change.

    Raises:
        TickgraphError: the device has not enough memory left.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        explained = out_of_memory(error, what, advice)
        if explained is None:
            raise
        raise explained from error


def out_of_memory(error: BaseException, what: str, advice: str = FEWER) -> TickgraphError | None:
    """Return the line that says what memory was wanted for, or None where an error is about something else."""
    text = str(error)
    of_torch = isinstance(error, torch.OutOfMemoryError)
    if not (of_torch or isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)):
        return None
    on_gpu = of_torch or any(word in text for word in ("cuda", "CUDA", "CUBLAS"))
    said = (text.strip() or "no more is said").splitlines()[0]
    asked = None if of_torch else re.search(r"allocate (\d+) bytes", said)
    if asked is not None:  # the rest is the allocator's place in torch's source, or the device
        said = f"{size(int(asked[1]))} cannot be had"
    elif " is free." in said:  # what torch says behind it is about its allocator
        said = f"{said.partition(' is free.')[0]} is free"
    if on_gpu and " is free" not in said:
        said = said.rstrip(".") + _free_on_gpu()
    told = f"{said.rstrip('.')}. {advice[:1].upper()}{advice[1:]}"
    return TickgraphError(f"out of {'GPU ' if on_gpu else ''}memory for {what}: {told}")


def _free_on_gpu() -> str:
    """Return what the current GPU has left, as a part of a sentence; nothing where it cannot be asked any more."""
    with suppress(RuntimeError, AssertionError):
        if torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            return f"; of its {total / 2**30:.1f} GiB {free / 2**30:.1f} GiB is free"
    return ""
