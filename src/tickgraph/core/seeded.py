"""Random numbers while a task is built: the global generators start from what is built, not from the process."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded_by(path: str) -> Iterator[None]:
    """Seed the global generators of torch, Python and NumPy from a path alone; put them back afterwards.

    So a network that a term makes in its ``__init__`` has the same weights in training, when a run goes on and when it
    is judged, whatever the run's seed, and whatever was built before it.

    Args:
        path: what is built, such as "rewards/style".
    """
    import torch

    numpy = sys.modules.get("numpy")  # torch loads it, where it is installed
    seed = zlib.crc32(path.encode("utf-8", "surrogateescape"))
    python, cpu = random.getstate(), torch.get_rng_state()
    legacy = numpy.random.get_state() if numpy is not None else None
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if in_use else []
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if in_use:
            torch.cuda.set_rng_state_all(cuda)
        elif torch.cuda.is_available():  # seeded when it is first used: as the caller has torch seeded
            torch.cuda.manual_seed_all(torch.initial_seed())
