"""A program on a stream of its own: in a graph a branch beside what its caller enqueues next, elsewhere in line."""

from typing import Any

import torch
from torch import Tensor

from tickgraph.core.program import Program, Resolution


class Beside:
    """Runs a program beside its caller's stream: what was started is waited for by a `join`.

    Where no graph is to be had, or it is not to be apart, the program runs in line, as it is started, and the results
    are the same.

    The program reads what is on the device when it is started. Until `join` the caller writes nothing that it reads,
    and does not read what it returned or wrote. A program that returns something is joined before it is started again.
    By that next `start` all that reads what it returned is enqueued, or the caller still holds it.

    Memory is safe by this order, and nothing has to be recorded for the allocator. What was allocated on a stream is
    handed out again on that stream alone. What the program returns is the branch's: whatever gets that memory next runs
    on the branch behind a later `start`, where it waits for the caller's stream and so for those reads. The arguments
    are the caller's and kept here until `join`: what gets their memory next runs behind it.

    Args:
        program: what runs; returns a tuple of tensors that it made, or None.
        resolution: of the graph that this is a part of.
        apart: whether it is to have a stream of its own.
    """

    def __init__(self, program: Program, resolution: Resolution, apart: bool = True) -> None:
        self.program = program
        self._kept: list[tuple[Any, ...]] = []
        apart = apart and resolution.enabled == "graph" and resolution.device.type == "cuda"
        self.stream = torch.cuda.Stream(resolution.device) if apart else None

    def start(self, *args: Any) -> tuple[Tensor, ...]:
        """Run the program behind all that the caller's stream holds so far, and return what `join` makes readable."""
        if self.stream is None:
            return self._run(args)
        self._kept.append(args)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            return self._run(args)

    def join(self) -> None:
        """Let the caller's stream wait for what was started, if anything was."""
        if self.stream is not None and self._kept:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self._kept.clear()

    def report(self) -> dict[str, object]:
        """Return the program's report, and whether it runs on a stream of its own."""
        return self.program.report() | {"beside": self.stream is not None}

    def _run(self, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        found = self.program(*args)
        return found if isinstance(found, tuple) else ()
