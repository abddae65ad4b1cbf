"""Figures that are kept on the device, read for the log in one copy and without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SLOTS = 8  # readings under way at once, more than the iterations that the host runs ahead


@dataclass(frozen=True)
class Reading:
    """What the device held at the end of an iteration.

    Args:
        after: number of the iteration, as the reader counts them.
        tag: what `take` was given.
        seconds: from the end of the iteration of the reading before (or from `start`) to the end of this one.
        values: by source, its vector.
    """

    after: int
    tag: Any
    seconds: float
    values: dict[str, list[float]]


class Readout:
    """Reads vectors of all sources as one.

    On a GPU a reading is one copy into pinned memory behind the work that is enqueued already. It is handed out when
    the caller knows of a later iteration that is over; so nothing is asked of the device, and nobody waits. Its time is
    the device's own. On the CPU a reading is ready at once.

    Args:
        device: where most of the sources live; a vector from elsewhere is brought there.
        sources: functions that return a vector of constant length, by name; any dtype that float64 holds.
    """

    def __init__(self, device: torch.device, sources: Mapping[str, Callable[[], Tensor]]) -> None:
        self._sources = dict(sources)
        self._device, self._on_cuda = device, device.type == "cuda"
        self._sizes: list[int] = []
        self._waiting: deque[tuple[int, Any, int]] = deque()
        self._taken = 0
        self._before: Any = time.monotonic()
        if self._on_cuda:
            # One more than the slots: the reading before the oldest one is still needed, for its time.
            self._times = [torch.cuda.Event(enable_timing=True) for _ in range(SLOTS + 1)]
        else:
            self._ready: deque[Reading] = deque()
        self._buffers: list[Tensor] = []

    def start(self) -> None:
        """Let the first reading's `seconds` count from here, behind what is enqueued on the current stream."""
        if self._on_cuda:
            self._times[0].record()
            self._taken = 1
        else:
            self._before = time.monotonic()

    def take(self, after: int, tag: Any = None) -> None:
        """Enqueue a reading on the current stream, behind all work of iteration `after`.

        What the sources hold may be cleared right afterwards, on the same stream.
        """
        with torch.no_grad():
            vectors = [source().reshape(-1).to(torch.float64) for source in self._sources.values()]
            packed = torch.cat([vector.to(self._device) for vector in vectors])
        self._sizes = [vector.shape[0] for vector in vectors]
        if not self._on_cuda:
            now = time.monotonic()
            self._ready.append(Reading(after, tag, now - self._before, self._split(packed.tolist())))
            self._before = now
            return
        if not self._taken:
            self.start()
        if not self._buffers:
            self._buffers = [torch.empty_like(packed, device="cpu", pin_memory=True) for _ in range(SLOTS)]
        if len(self._waiting) == SLOTS:
            raise RuntimeError(f"{SLOTS} readings wait to be handed out")
        self._buffers[self._taken % SLOTS].copy_(packed, non_blocking=True)
        self._times[self._taken % len(self._times)].record()
        self._waiting.append((after, tag, self._taken))
        self._taken += 1

    def ready(self, over: int, drained: bool = False) -> Iterator[Reading]:
        """Yield the readings that have arrived, oldest first.

        Args:
            over: number of the newest iteration that is known to be over; a reading is enqueued before the iteration
                that follows it.
            drained: the device has been waited for since the last reading was taken.
        """
        if not self._on_cuda:
            while self._ready:
                yield self._ready.popleft()
            return
        while self._waiting and (drained or self._waiting[0][0] < over):
            after, tag, number = self._waiting.popleft()
            before, now = (self._times[n % len(self._times)] for n in (number - 1, number))
            values = self._split(self._buffers[number % SLOTS].tolist())
            yield Reading(after, tag, before.elapsed_time(now) * 1e-3, values)

    def _split(self, values: list[float]) -> dict[str, list[float]]:
        rest = iter(values)
        return {name: [next(rest) for _ in range(n)] for name, n in zip(self._sources, self._sizes, strict=True)}
