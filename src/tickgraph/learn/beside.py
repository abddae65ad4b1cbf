"""A program on a stream of its own: in a graph a branch beside what its caller enqueues next, elsewhere in line."""

import torch
from torch import Tensor

from tickgraph.core.program import Program, Resolution


class Beside:
    """Runs a program beside its caller's stream, one call at a time: each `start` is followed by a `join`.

    Where no graph is to be had the program runs in line, as it is started, and the results are the same.

    The program reads what is on the device when it is started. Until `join` the caller keeps its arguments, writes
    nothing that it reads, and does not read what it returned. By the next `start` all that reads that is enqueued.

    Memory is safe by this order, and nothing has to be recorded for the allocator. What was allocated on a stream is
    handed out again on that stream alone. What the program returns is the branch's: whatever gets that memory next runs
    on the branch behind a later `start`, where it waits for the caller's stream and so for those reads. The arguments
    are the caller's: what gets their memory next runs behind `join`.

    Args:
        program: what runs; returns tensors that it made.
        resolution: of the graph that this is a part of.
    """

    def __init__(self, program: Program, resolution: Resolution) -> None:
        self.program = program
        apart = resolution.enabled == "graph" and resolution.device.type == "cuda"
        self.stream = torch.cuda.Stream(resolution.device) if apart else None

    def start(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the program behind all that the caller's stream holds so far, and return what `join` makes readable."""
        if self.stream is None:
            return self._run(args)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            return self._run(args)

    def join(self) -> None:
        """Let the caller's stream wait for what was started."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def report(self) -> dict[str, object]:
        """Return the program's report, and whether it runs on a stream of its own."""
        return self.program.report() | {"beside": self.stream is not None}

    def _run(self, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = self.program(*args)
        assert isinstance(found, tuple)
        return found
