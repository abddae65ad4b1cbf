"""A learner without worlds: built from a task's settings, fed with made-up transitions, run as training runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tickgraph.bench._learner_paths import EAGER, BenchPath
from tickgraph.core.arena import Arena
from tickgraph.core.graph import Graph, chain_stream
from tickgraph.env.env import Env
from tickgraph.learn.build import make_learner, make_ring, plain_cfg
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.config import Task
from tickgraph.sim.platform import resolve_platform

STEPS_BEFORE = 100  # of Adam, in a scrambled state
ENDS = 0.05  # share of made-up steps that a fall ends, and of those that a time limit ends


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is built from."""

    algo: Any
    """Configuration of the algorithm."""
    dims: Mapping[str, int]
    """Widths of the groups "actor" and "critic"."""
    actions: int
    num_envs: int
    slots: int
    updates: int
    """Critic updates in a cycle."""
    horizon: int = 1000
    """Critic updates over which the learning rate falls."""
    seed: int = 0
    data_seed: int = 5
    """Of the made-up transitions."""


def spec_of(task: Task) -> LearnerSpec:
    """Return what training builds its learner from, read off the task's settings; no world is built."""
    train = task.train
    backend = resolve_platform("cpu" if train.backend == "auto" else "auto", train.backend).backend
    env = Env(task.env, task.num_envs, "meta", backend, "eager")
    horizon = max(1, train.iterations * train.updates_per_iteration)
    return LearnerSpec(
        *(plain_cfg(train.algo), dict(env.observation_manager.dims), env.action_manager.total_dim),
        *(task.num_envs, train.replay_slots, train.updates_per_iteration, horizon, train.seed),
    )


def with_algo(spec: LearnerSpec, **values: Any) -> LearnerSpec:
    """Return a spec with some of the algorithm's values changed."""
    return replace(spec, algo=replace(spec.algo, **values))


@dataclass(frozen=True)
class MadeUpTick:
    """One tick of all worlds, in the arguments of `Ring.write`."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    boundary: Tensor
    final_obs: dict[str, Tensor]


def made_up(spec: LearnerSpec, ticks: int, device: torch.device | str = "cpu", seed: int = 5) -> Iterator[MadeUpTick]:
    """Yield transitions with falls and time limits among them, the same ones for one seed and kind of device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    for _ in range(ticks):
        obs, final = (
            {name: 2.0 * normal(spec.num_envs, width) + 1.0 for name, width in spec.dims.items()} for _ in range(2)
        )
        ends = torch.rand(2, spec.num_envs, generator=generator, device=device) < ENDS
        fell, late = ends[0], ends[1] & ~ends[0]
        action = torch.tanh(normal(spec.num_envs, spec.actions))
        yield MadeUpTick(obs, action, normal(spec.num_envs), fell, late, fell | late, final)


class LearnerRig:
    """Learner, ring and update cycle on a device, run eager, compiled or as CUDA graphs.

    Args:
        spec: what is built.
        device: where.
        path: how the cycle runs.
    """

    def __init__(self, spec: LearnerSpec, device: torch.device | str, path: BenchPath = EAGER) -> None:
        self.spec, self.path = spec, path
        self.arena = Arena(device)
        self.device = self.arena.device
        self.resolution = path.resolution(self.device)
        algo = spec.algo
        self.learner = make_learner(
            algo, spec.dims, spec.actions, spec.num_envs, self.arena, spec.seed, total_updates=spec.horizon
        )
        self.ring = make_ring(self.learner, spec.slots, spec.num_envs)
        self.cycle = UpdateCycle(self.learner, self.ring, spec.updates, self.resolution, path.scope, path.kernels)
        self.arena.seal()
        self._phase: int | None = None  # of the next cycle, None: ask the device
        self.stream = chain_stream(self.device) if self.device.type == "cuda" else None
        self.graphs = {
            phase: Graph(
                f"update/{phase}",
                partial(self.cycle.run, phase),
                self.resolution,
                stream=self.stream,
                watch=self.arena.pointers,
            )
            for phase in self.cycle.kinds
        }
        self.wait()  # what was made here is there for the rig's stream

    @torch.no_grad()
    def write(self, ticks: Iterator[MadeUpTick]) -> None:
        """Write ticks into the ring, and show them to the learner."""
        with self.on_stream():
            for tick in ticks:
                obs, final = (
                    {name: value.to(self.device) for name, value in group.items()}
                    for group in (tick.obs, tick.final_obs)
                )
                rest = (tick.action, tick.reward, tick.terminated, tick.truncated, tick.boundary)
                self.ring.write(obs, *(value.to(self.device) for value in rest), final)
            self.ring.publish()
        self.wait()

    @torch.no_grad()
    def scramble(self, seed: int = 7) -> None:
        """Go to a state as amid training, the same for one seed: no parameter at a special value or on its sphere.

        Adam's moments are filled, so that a step is a smooth function of its gradient. From moments of 0 a first step
        is the sign of the gradient, whose roundings then grow without end, in any two ways of computing it.
        """
        generator = torch.Generator().manual_seed(seed)
        for name in self.arena:
            tensor, last = self.arena[name], name.rpartition("/")[2]
            if not name.startswith("learner/") or not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if last == "parameters":
                tensor += (0.02 * noise).to(self.device)
            elif last == "statistics":
                tensor[0] += (0.1 * noise[0]).to(self.device)
                tensor[1] *= (0.2 * noise[1]).exp().to(self.device)
            elif last == "moment1":
                tensor += (3e-4 * noise).to(self.device)
            elif last == "moment2":
                tensor += (1e-6 * (0.5 * noise).exp()).to(self.device)
                self.arena[name.replace("/moment2", "/steps")].fill_(STEPS_BEFORE)
        self.learner.snapshot_policy()
        self.wait()

    def run(self) -> None:
        """Enqueue one cycle; where cycles are not all alike, the first one reads the device for its place."""
        with self.on_stream():
            if self._phase is None:
                self._phase = self.cycle.phase()
            self.graphs[self.cycle.kind(self._phase)]()
        self._phase = (self._phase + self.cycle.updates) % self.cycle.phases.stop

    def capture(self) -> None:
        """Compile and capture everything, and leave all values as they were; the ring must hold enough to sample."""
        with self.held():
            for graph in self.graphs.values():
                for _ in range(2):
                    with self.on_stream():
                        graph()
                graph.prepare()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put every value back as it was when the block ends."""
        before = self.snapshot()
        yield
        self.restore(before)

    def snapshot(self) -> dict[str, Tensor]:
        """Return copies of all state in the arena; what is enqueued before and after leaves them alone."""
        self.wait()
        found = self.arena.snapshot()
        self.wait()
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Write a snapshot of the arena back in place."""
        self.wait()
        self.arena.restore(state)
        self._phase = None
        self.wait()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """What is enqueued inside goes to the rig's stream, behind its cycles."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            yield

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.stream is not None:
            torch.cuda.synchronize(self.device)

    def figures(self) -> dict[str, float | int | None]:
        """Return the learner's figures since the last call, as a log point reads them."""
        self.wait()
        found = self.cycle.metrics.figures(self.cycle.metrics.packed().tolist())
        with torch.no_grad():
            self.cycle.metrics.clear()
        self.wait()
        return found

    def numbers(self) -> dict[str, Tensor]:
        """Return copies of every tensor that a cycle may write, by its name in the arena; not the ring's."""
        return {name: value for name, value in self.snapshot().items() if not name.startswith("ring/")}
