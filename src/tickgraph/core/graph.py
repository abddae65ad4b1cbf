"""A whole segment of work, physics included, as one CUDA graph; in other modes the same work, called."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress

import torch

from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.core.memory import memory_for
from tickgraph.core.program import CAPTURE_FAILED, NOT_STATIC, Resolution, first_line
from tickgraph.core.waits import place_of, watch_for_waits

_log = logging.getLogger(__name__)

WARM_UP = 2  # the first run compiles and loads modules; the second is watched, with nothing of that in its way
DEBUG = "TICKGRAPH_DEBUG"  # environment variable: addresses are compared before every replay

Scope = Callable[[torch.cuda.Stream], AbstractContextManager[None]]


class Graph:
    """A function that enqueues work; in mode graph, captured into one CUDA graph and replayed.

    Calls 1 and 2 after the build or an `invalidate` run the function for real, so that nothing has to be undone; call 3
    captures it and launches the graph, and so does every later call. A capture records what is enqueued and executes
    nothing, so the function must have no effect on the host: no counters, nothing rebound.

    On a CUDA device a call enqueues and returns. With a `stream` of the caller's, the work is ordered by what the
    caller records and waits for on that stream. Without one, it behaves as if enqueued on the stream that is current.

    Args:
        name: what the report and the warnings call it, such as "tick".
        fn: the work, without arguments and result.
        resolution: from `resolve_execution`; in mode eager or compile the function is just called.
        stream: where the graph is captured and launched; by default one of its own.
        scopes: context managers that are given the stream and stay open around each run and the capture, the last one
            innermost. Whether it is a capture is what `torch.cuda.is_current_stream_capturing()` says.
        watch: returns the address of every array that the work touches, by name. It is compared with that of the first
            run before a capture, and before every replay where TICKGRAPH_DEBUG is set.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[], object],
        resolution: Resolution,
        *,
        stream: torch.cuda.Stream | None = None,
        scopes: Sequence[Scope] = (),
        watch: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self.name = name
        self._fn = fn
        self._resolution = resolution
        self._enabled = resolution.enabled
        self._reason = resolution.disable_reason
        self._scopes = tuple(scopes)
        self._watch = watch
        self._on_cuda = resolution.device.type == "cuda"
        self._joined = stream is None
        if self._enabled == "graph":
            stream = torch.cuda.Stream(resolution.device) if stream is None else stream
        self._stream = stream
        self._debug = os.environ.get(DEBUG, "") not in ("", "0")
        self._graph: torch.cuda.CUDAGraph | None = None
        self._addresses: dict[str, int] = {}
        self._runs = 0  # since the build or the last `invalidate`
        self._version = 1
        self._captures = 0
        self._replays = 0
        self._fallbacks = 0
        self._nodes: int | None = None

    def __call__(self) -> None:
        """Enqueue the work once; never waits for the device, except to capture.

        Raises:
            ExecutionError: the mode was asked for by name, and the work synchronises or cannot be captured.
            TickgraphError: an array was replaced, or the device has not enough memory.
        """
        if self._enabled != "graph":
            self._fallbacks += self._resolution.enabled == "graph"
            self._call()
            return
        stream = self._stream
        assert stream is not None
        outer = torch.cuda.current_stream(stream.device) if self._joined else None
        if outer is not None:
            stream.wait_stream(outer)
        if self._graph is None and self._runs >= WARM_UP:
            self._capture()  # or falls back
        try:
            with torch.cuda.stream(stream):
                if self._graph is not None:
                    if self._debug:
                        self._check_addresses()
                    self._graph.replay()
                    self._replays += 1
                elif self._enabled == "graph":
                    with memory_for(f"the work of graph {self.name!r}"):
                        self._warm_up()
                else:
                    self._fallbacks += 1
                    self._call()
        finally:  # also behind an error the caller reads what was enqueued until then
            if outer is not None:
                outer.wait_stream(stream)

    def prepare(self) -> None:
        """Capture now instead of at the third call.

        Raises:
            ExecutionError, TickgraphError: as for a call; also when the warm-up of two calls is not over.
        """
        if self._enabled != "graph" or self._graph is not None:
            return
        if self._runs < WARM_UP:
            raise TickgraphError(f"graph {self.name!r} was called {self._runs} times; call it {WARM_UP} times first")
        self._capture()

    def invalidate(self, why: str) -> None:
        """Forget the capture, because an array, a capacity or a width was replaced; the next calls warm up again.

        Waits for work in flight.

        Args:
            why: for the log.
        """
        self._version += 1
        self._runs = 0
        self._addresses = {}
        if self._graph is not None:
            assert self._stream is not None
            # Its memory goes back to torch, which would hand it out while a replay still writes to it.
            self._stream.synchronize()
            self._graph.reset()
            self._graph, self._nodes = None, None
            _log.info("graph %r will be captured again: %s", self.name, why)

    @property
    def in_use(self) -> bool:
        """True once it was called and its resolution is for a graph: what it reports is then of interest."""
        return self._resolution.enabled == "graph" and bool(self._runs or self._replays or self._fallbacks)

    def report(self) -> dict[str, object]:
        """Return what was asked for and what ran.

        Keys: requested, enabled, inner (what its programs run as), disable_reason (None or text), version, captures,
        replays (graph launches), eager_fallbacks (calls that ran without a graph because it could not be had),
        nodes (of the graph, bodies of conditional nodes not counted; None without a graph).
        """
        return {
            "requested": self._resolution.requested,
            "enabled": self._enabled,
            "inner": self._resolution.inner,
            "disable_reason": self._reason,
            "version": self._version,
            "captures": self._captures,
            "replays": self._replays,
            "eager_fallbacks": self._fallbacks,
            "nodes": self._nodes,
        }

    # The three ways to run ---------------------------------------------------------------------------------------

    def _call(self) -> None:
        """Run the function on the stream that is current."""
        if not self._on_cuda:
            self._fn()
            return
        stream = torch.cuda.current_stream(self._resolution.device)
        with ExitStack() as scopes:
            for scope in self._scopes:
                scopes.enter_context(scope(stream))
            self._fn()

    def _warm_up(self) -> None:
        if self._runs == 0:
            self._addresses = self._look()
            self._call()
            self._runs = 1
            return
        self._check_addresses()
        with watch_for_waits() as places:
            self._call()
        self._runs += 1
        if places:
            text = f"waits for the device at {', '.join(places)}; keep values in tensors and choose by masks"
            self._fall_back(f"{NOT_STATIC}: {text}", None)

    def _capture(self) -> None:
        self._check_addresses()
        stream = self._stream
        assert stream is not None
        torch.cuda.synchronize(stream.device)
        gc.collect()
        _forget_workspaces()
        torch.cuda.empty_cache()  # a capture cannot give cached memory back to the device by itself
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        collects = gc.isenabled()
        gc.disable()  # what a collection frees may call CUDA in ways that end a capture
        try:
            with memory_for(f"the capture of graph {self.name!r}"), torch.cuda.stream(stream):
                self._record(graph)
        except TickgraphError:
            raise
        except Exception as error:
            self._fall_back(f"{CAPTURE_FAILED}: {_cause(error)}", error)
            return
        finally:
            _forget_workspaces()
            if collects:
                gc.enable()
        self._graph = graph
        self._captures += 1

    def _record(self, graph: torch.cuda.CUDAGraph) -> None:
        # Not torch.cuda.graph: when ending a capture fails, it leaves its stream the current one.
        pool = torch.cuda.graph_pool_handle()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            self._call()
        except BaseException:
            with suppress(RuntimeError):  # the first error is the one that tells
                self._end(graph, pool)
            raise
        self._end(graph, pool)
        self._nodes = _count_nodes(graph.raw_cuda_graph())
        graph.instantiate()

    def _end(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """End a capture, also one that an error has broken: of that torch itself leaves the half undone."""
        try:
            graph.capture_end()
        except RuntimeError:
            device = self._stream.device.index if self._stream is not None else 0
            with suppress(AttributeError, RuntimeError):
                # Else the allocator takes the capture for unfinished, and never frees cached memory again.
                torch._C._cuda_endAllocateToPool(device, pool)
                torch._C._cuda_releasePool(device, pool)
            with suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(device)):
                # Else torch's generator does too, and refuses to draw. It follows the end of any capture.
                other = torch.cuda.CUDAGraph()
                other.capture_begin(capture_error_mode="thread_local")
                torch.zeros(1, device=torch.device("cuda", device))
                other.capture_end()
                other.reset()
            raise

    def _fall_back(self, reason: str, error: Exception | None) -> None:
        """Give up the graph: an error where it was asked for by name, else one warning."""
        if self._resolution.requested != "auto":
            raise ExecutionError(f"graph {self.name!r} cannot run as 'graph': {reason}") from error
        self._enabled, self._reason = self._resolution.inner, reason
        _log.warning("graph %r falls back from graph to %s: %s", self.name, self._enabled, reason)

    # Addresses ---------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, int]:
        return dict(self._watch()) if self._watch is not None else {}

    def _check_addresses(self) -> None:
        now = self._look()
        moved = [name for name in self._addresses.keys() | now.keys() if self._addresses.get(name) != now.get(name)]
        if moved:
            raise TickgraphError(
                f"graph {self.name!r} was built with other arrays: {', '.join(sorted(moved)[:5])} "
                f"{'was' if len(moved) == 1 else 'were'} replaced; write arrays in place, or call invalidate()"
            )


def _forget_workspaces() -> None:
    """Let cuBLAS take new memory to work in, before and behind a capture.

    torch keeps one such piece for each stream, and gives it back when others ask for that: graphs of Inductor do. One
    that is from before the capture would be in other hands while replays still write to it. One that is taken within
    the capture lies in the graph's own pool, which nothing else gets, if work outside of it does not go on with it.
    """
    torch._C._cuda_clearCublasWorkspaces()


def _cause(error: Exception) -> str:
    """Return the first line of an error with the place where it was raised."""
    place = place_of(reversed(list(traceback.walk_tb(error.__traceback__))))
    return f"{first_line(error)} at {place}" if place else first_line(error)


def _count_nodes(graph: int) -> int | None:
    """Return the number of nodes of a raw CUDA graph, or None where the driver cannot be asked."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_size_t(0)
        failed = driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    except (OSError, AttributeError):
        return None
    return None if failed else count.value


def chain_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream to capture and launch graphs on whose kernels go ahead of those of other streams.

    A captured kernel keeps its stream's priority. So branches, on streams of the usual one, take what the chain that
    all waits for leaves idle.
    """
    return torch.cuda.Stream(device, priority=-1)


def events_leave_graphs(device: torch.device) -> bool:
    """Return whether another stream can wait for an event that a graph records in its middle.

    Tried out on the device, in some milliseconds: CUDA documents it, and drivers have had faults here. Without it the
    head is launched by itself.
    """
    first, second = torch.cuda.Stream(device), torch.cuda.Stream(device)
    value, seen = torch.zeros(1, device=device), torch.zeros(1, device=device)
    event = torch.cuda.Event(external=True)
    graph = torch.cuda.CUDAGraph()
    sleep = 2_000_000  # cycles, about a millisecond: a wait that does not hold reads the value of the launch before
    torch.cuda.synchronize(device)
    with torch.cuda.stream(first):
        value.add_(1)
        event.record(first)
        torch.cuda._sleep(1)
        torch.cuda.synchronize(device)
        graph.capture_begin(capture_error_mode="thread_local")
        torch.cuda._sleep(sleep)
        value.add_(1)
        event.record(first)
        torch.cuda._sleep(sleep)
        graph.capture_end()
    for launch in range(3):
        with torch.cuda.stream(first):
            graph.replay()
        with torch.cuda.stream(second):
            second.wait_event(event)
            seen.copy_(value)
        second.synchronize()
        if seen.item() != launch + 2:
            torch.cuda.synchronize(device)
            return False
    torch.cuda.synchronize(device)
    return True
