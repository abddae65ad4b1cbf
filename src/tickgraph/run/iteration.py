"""One training iteration: ticks on one stream beside the updates on another, changing hands only in between.

Iteration i is a head, K ticks and U updates. The head lets the newest policy act and, with overlap, shows the learner
what was written so far. So with overlap update i samples what was written before the ticks of iteration i, and these
act with the policy of update i - 1, as they do without; but what they see reaches the learner one iteration later
(`policy_lag` 1). The result does not depend on timing. Without overlap the ticks come first and are shown before the
update begins.

On a GPU ticks with their head are one CUDA graph and the updates another. Elsewhere the same functions are called in
turn, in the same order. Where the worlds are on the CPU and the learner on a GPU, a `Bridge` plays the ticks: the head
is a graph of its own, and the updates are enqueued before the host begins to play.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.graph import Graph, chain_stream, events_leave_graphs
from tickgraph.core.program import Resolution, resolve_execution
from tickgraph.env.env import Env
from tickgraph.learn.explore import Explorer
from tickgraph.learn.learner import Learner
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.bridge import Bridge

AHEAD = 4  # iterations that may be enqueued and not over: enqueueing i waits for the end of i - 4
REMEMBERED = 128  # iterations whose end can be asked for


class Iteration:
    """Runs iterations, and plays given actions.

    Args:
        env: whose ticks are played, with the explorer and the ring attached; for `play` alone without a policy.
        learner, ring, cycle: None where nothing is learned and only `play` is used.
        ticks: K, ticks in an iteration.
        overlap: updates run beside the ticks of the same iteration. Where there are no streams they come in turn, with
            the same result. The ring must have been built with `ahead` of at least `ticks`.
        execution: how the updates run; by default as the ticks do.
        streams: CUDA streams of ticks and updates; by default two of its own.
        threads: torch's threads during ticks and updates, on a CPU; by default as they are.
        explorer: the policy, where learner and ring are not on the worlds' device: the ticks are then bridged.

    Raises:
        TickgraphError: the parts do not fit together.
    """

    def __init__(
        self,
        env: Env,
        learner: Learner | None = None,
        ring: Ring | None = None,
        cycle: UpdateCycle | None = None,
        ticks: int = 1,
        overlap: bool = False,
        execution: Resolution | None = None,
        streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None,
        threads: tuple[int, int] | None = None,
        explorer: Explorer | None = None,
    ) -> None:
        if ticks < 1:
            raise TickgraphError(f"ticks is {ticks}; an iteration has at least one")
        if overlap and ring is not None and ring.ahead < ticks:
            raise TickgraphError(
                f"updates that overlap {ticks} ticks need a ring with ahead={ticks}, this one has {ring.ahead}"
            )
        self.env, self.learner, self.ring, self.cycle = env, learner, ring, cycle
        self.ticks, self.overlap = ticks, overlap
        self.count = 0
        """Iterations that were enqueued."""
        self.over = 0
        """Iterations that are known to be over; on a GPU at most `AHEAD` fewer than were enqueued."""
        self._threads = threads
        resolution = env.resolution
        if explorer is not None:
            assert learner is not None and ring is not None, "a policy elsewhere needs its learner and its ring"
            resolution = execution or resolve_execution("auto", learner.arena.device)
        device = self.device = resolution.device
        self._on_cuda = device.type == "cuda"
        self.actions: Tensor | None = None
        self.dones: Tensor | None = None
        self._ends: list[float] = [0.0] * REMEMBERED
        self.streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        """Of ticks and updates; iterations end on the first."""
        self._apart = explorer is not None
        if self._on_cuda:
            # The head's event lies inside the ticks' graph, and the updates wait for it from outside.
            self._head = torch.cuda.Event(external=True)
            self._collected, self._updated = torch.cuda.Event(), torch.cuda.Event()
            # Blocking, so that a host that waits leaves its core to others.
            self._events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(REMEMBERED)]
            self.streams = streams or (torch.cuda.Stream(device), chain_stream(device))
            for event in (self._collected, self._updated, *self._events):
                event.record(self.streams[0])  # made here, and not one by one in the first iterations
            self._apart = self._apart or (overlap and not events_leave_graphs(device))
        stream_a, stream_b = self.streams or (None, None)
        scopes, watch = (env.sim.capture_scope,), self._pointers
        self.collect_graph = Graph("collect", self._collect, resolution, stream=stream_a, scopes=scopes, watch=watch)
        self.head_graph = Graph("head", self._begin, resolution, stream=stream_a, watch=watch) if self._apart else None
        self.bridge: Bridge | None = None
        if explorer is not None and learner is not None and ring is not None:
            self.bridge = Bridge(env, learner, explorer, ring, resolution, stream_a)
        self.update_graphs: dict[int, Graph] = {}
        self._phase: int | None = None
        if cycle is not None:
            execution = execution or resolve_execution(resolution.requested, device)
            self.update_graphs = {
                phase: Graph(name, partial(cycle.run, phase), execution, stream=stream_b, watch=watch)
                for phase, name in ((p, "update" if len(cycle.phases) == 1 else f"update/{p}") for p in cycle.kinds)
            }
        self._play_graph: Graph | None = None

    # Running -----------------------------------------------------------------------------------------------------

    def run(self, learns: bool = True) -> None:
        """Enqueue one iteration; on a GPU it returns before the iteration is over, at most `AHEAD` ahead."""
        self._wait_until_over(self.count + 1 - AHEAD)
        # Where the host plays the ticks itself, what is to run beside them has to be enqueued before.
        early = learns and self.overlap and self.bridge is not None
        self._begin_apart()
        if early:
            self.enqueue_update()
        self._enqueue_ticks()
        if learns:
            if not early:
                self.enqueue_update()
            self._join_update()
        self.count += 1
        self._mark_end()

    def collect(self) -> None:
        """Enqueue head and ticks."""
        self._begin_apart()
        self._enqueue_ticks()

    def _begin_apart(self) -> None:
        """Enqueue the head by itself, where the ticks' graph does not hold it."""
        if self.head_graph is None:
            return
        with self.between():
            self.head_graph()
            if self.streams is not None:
                self._head.record(self.streams[0])

    def _enqueue_ticks(self) -> None:
        self._set_threads(0)
        with self.between():
            if self.bridge is None:
                self.collect_graph()
            else:
                self._collect()
            if self.streams is not None and not self.overlap:
                self._collected.record(self.streams[0])

    def update(self) -> None:
        """Enqueue the updates: behind the head with overlap, else behind the ticks; the next ticks come after them."""
        self.enqueue_update()
        self._join_update()

    def enqueue_update(self) -> None:
        """Enqueue the updates, and let nothing wait for them yet."""
        graph = self._next_update()
        if self.streams is None:
            self._set_threads(1)
            graph()
            return
        stream = self.streams[1]
        stream.wait_event(self._head if self.overlap else self._collected)
        with torch.cuda.stream(stream):
            graph()
            self._updated.record(stream)

    def _join_update(self) -> None:
        if self.streams is not None:
            self.streams[0].wait_event(self._updated)

    def play(self, actions: Tensor) -> Tensor:
        """Play given actions instead of a policy's, as one graph of all ticks.

        Args:
            actions: (K, N, A) float32, taken over before this returns to the caller's stream.

        Returns:
            (K, N) bool, the worlds whose episode ended in each tick; written again by the next call. The caller's
            stream waits for it, the host does not: `played()` says when it is over.

        Raises:
            TickgraphError: the shape is another, or a policy is attached and acts by itself.
        """
        env, shape = self.env, (self.ticks, *self.env.action.shape)
        if env.policy is not None:
            raise TickgraphError("a policy is attached and acts by itself: attach(policy=None, ring=ring) first")
        if tuple(actions.shape) != shape:
            raise TickgraphError(f"actions have shape {tuple(actions.shape)}, expected {shape}: ticks, worlds, action")
        if self.actions is None or self.dones is None or self._play_graph is None:
            self.actions = torch.zeros(shape, device=env.device)
            self.dones = torch.zeros(shape[:2], dtype=torch.bool, device=env.device)
            stream = self.streams[0] if self.streams else None
            scopes = (env.sim.capture_scope,)
            self._play_graph = Graph(
                "play", self._play, env.resolution, stream=stream, scopes=scopes, watch=self._pointers
            )
        self._wait_until_over(self.count + 1 - AHEAD)
        if self.streams is None:
            self._set_threads(0)
            self.actions.copy_(actions)
            self._play_graph()
        else:
            stream, outer = self.streams[0], torch.cuda.current_stream(self.device)
            stream.wait_stream(outer)
            with torch.cuda.stream(stream):
                self.actions.copy_(actions)
                self._play_graph()
                self._collected.record(stream)
            outer.wait_event(self._collected)
        self.count += 1
        self._mark_end()
        return self.dones

    def played(self) -> bool:
        """Return whether the newest iteration is over, without waiting for it."""
        return not self._on_cuda or self._events[(self.count - 1) % REMEMBERED].query()

    @contextmanager
    def between(self) -> Iterator[None]:
        """What is enqueued inside falls between the newest iteration and the next one."""
        if self.streams is None:
            yield
            return
        with torch.cuda.stream(self.streams[0]):
            yield

    def connect(self) -> None:
        """Show a policy that is not on the worlds' device what they look like: before the first iteration, and after
        worlds or policy were changed from outside."""
        if self.bridge is not None:
            self.bridge.connect()

    def drain(self) -> None:
        """Wait until everything is over."""
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
        self.over = self.count
        self._phase = None  # whoever waited may write the learner's counters

    def seconds(self, first: int, last: int) -> float:
        """Return the seconds between the ends of two iterations, by their numbers from 1, both among the newest.

        On a GPU these are the device's times of completion, not the host's, which runs ahead.
        """
        assert max(1, self.count - REMEMBERED + 1) <= first <= last <= self.over
        if self._on_cuda:
            return self._events[(first - 1) % REMEMBERED].elapsed_time(self._events[(last - 1) % REMEMBERED]) * 1e-3
        return self._ends[(last - 1) % REMEMBERED] - self._ends[(first - 1) % REMEMBERED]

    def rehearse(self) -> None:
        """Compile and capture the updates, and on a GPU load the physics and compile the ticks meanwhile.

        Called before a run begins or is restored: the ring must be empty. Everything is put back as it was, so that
        none of it comes in the middle of a run. The ticks' own graph is not captured: its first runs are the first
        iterations of the run.
        """
        if self.learner is None or not self.update_graphs:
            return
        arena = self.learner.arena
        with torch.no_grad():
            before = {name: value for name, value in arena.snapshot().items() if not name.startswith("ring/")}
            self.learner.updates.zero_()  # the first update of a run has every part in it
        self.drain()
        self._set_threads(1)
        if self.streams is None:
            self.update_graphs[0]()
        elif self.bridge is not None:
            self._rehearse_bridged(self.streams[1])
        else:
            self._rehearse_on(*self.streams)
        self.drain()
        with torch.no_grad():
            for name, value in before.items():
                arena[name].copy_(value)
        self.drain()

    def _rehearse_on(self, stream_a: torch.cuda.Stream, stream_b: torch.cuda.Stream) -> None:
        env, failures = self.env, []
        worlds = env.state_dict()
        self.drain()

        def load_physics() -> None:
            """Play one step: the physics' kernels are built by compilers of their own, which leave Python alone."""
            try:
                with torch.cuda.device(env.device), torch.cuda.stream(stream_a):
                    env.sim.advance_and_refresh(1)
                    env.sim.write_state(env.all_worlds, env.all_worlds)
                    env.sim.refresh(env.all_worlds)
            except BaseException as error:
                failures.append(error)

        physics = threading.Thread(target=load_physics, name="load-physics", daemon=True)
        physics.start()
        with torch.cuda.stream(stream_b):
            env.rehearse_programs()
            for graph in self.update_graphs.values():
                graph()
        physics.join()
        if failures:
            raise failures[0]
        self.drain()
        env.load_state_dict(worlds)
        if self.ring is not None:
            self.ring.clear()
            self.ring.overflowed.zero_()
        self.drain()
        for graph in self.update_graphs.values():
            graph()
            graph.prepare()

    def _rehearse_bridged(self, stream_b: torch.cuda.Stream) -> None:
        assert self.bridge is not None and self.ring is not None
        with torch.cuda.stream(stream_b):
            for graph in self.update_graphs.values():
                graph()
                graph()
                graph.prepare()
        self.drain()
        self.bridge.rehearse()
        self.drain()
        self.ring.clear()
        self.ring.overflowed.zero_()

    @property
    def captured(self) -> bool:
        """True once no call will warm up or capture any more."""
        ticks = (self.collect_graph,) if self.bridge is None else self.bridge.graphs
        reports = [graph.report() for graph in (*ticks, self.head_graph) if graph is not None]
        return all(report["enabled"] != "graph" or report["captures"] for report in reports)

    def report(self) -> dict[str, dict[str, object]]:
        """Return what each graph was asked for and what it ran as; nothing where no graph was to be had."""
        ticks = (self.collect_graph,) if self.bridge is None else self.bridge.graphs
        graphs = (self.head_graph, *ticks, *self.update_graphs.values(), self._play_graph)
        return {graph.name: graph.report() for graph in graphs if graph is not None and graph.in_use}

    def _next_update(self) -> Graph:
        assert self.cycle is not None, "built without an update cycle"
        phases = self.cycle.phases
        if len(phases) == 1:
            return self.update_graphs[0]
        if self._phase is None or not self._on_cuda:
            self._phase = self.cycle.phase()
        graph = self.update_graphs[self.cycle.kind(self._phase)]
        self._phase = (self._phase + self.cycle.updates) % phases.stop
        return graph

    # The work ------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        if self.head_graph is None:
            self._begin()
        for _ in range(self.ticks):
            if self.bridge is None:
                self.env.tick_body()
            else:
                self.bridge.tick()
        if self.ring is not None and not self.overlap:
            self._publish_ring()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _begin(self) -> None:
        """The head: what changes hands between two iterations."""
        if self.learner is not None:
            self.learner.publish_policy()
        if self.ring is not None and self.overlap:
            self.ring.publish()
        if self._on_cuda and self.overlap and not self._apart:
            self._head.record(torch.cuda.current_stream(self.device))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _publish_ring(self) -> None:
        assert self.ring is not None
        self.ring.publish()

    def _play(self) -> None:
        assert self.actions is not None and self.dones is not None
        with torch.no_grad():
            for tick in range(self.ticks):
                self.env.action.copy_(self.actions[tick])
                self.env.tick_body()
                self.dones[tick].copy_(self.env.done)

    # Time ------------------------------------------------------------------------------------------------------------

    def _mark_end(self) -> None:
        slot = (self.count - 1) % REMEMBERED
        if self.streams is not None:
            self._events[slot].record(self.streams[0])  # which has been told to wait for the updates
        else:
            self._ends[slot] = time.monotonic()
            self.over = self.count

    def _wait_until_over(self, number: int) -> None:
        """Wait for the end of an iteration by its number from 1: the host's only wait between two log points."""
        if number > self.over:
            self._events[(number - 1) % REMEMBERED].synchronize()
            self.over = number

    def _set_threads(self, part: int) -> None:
        if self._threads is not None and not self._on_cuda:
            torch.set_num_threads(self._threads[part])

    def _pointers(self) -> dict[str, int]:
        learned = self.learner.arena.pointers() if self.learner is not None else {}
        return {**self.env.pointers(), **{f"learn/{name}": address for name, address in learned.items()}}
