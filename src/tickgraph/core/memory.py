"""Running out of GPU memory, as one line that says what was asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tickgraph.core.errors import TickgraphError


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
    except torch.OutOfMemoryError as error:
        said = (str(error).strip() or "no more is said").splitlines()[0]
        raise TickgraphError(
            f"out of GPU memory for {what}: {said} Use fewer worlds (num_envs) or a smaller replay (replay_slots)"
        ) from error
