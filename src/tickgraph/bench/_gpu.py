"""A collector's arms on a GPU: one tick run in several ways, and its physics alone; timed by the device's own clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tickgraph.bench._replay import TracedTick
from tickgraph.core.errors import TickgraphError
from tickgraph.core.graph import Graph
from tickgraph.core.program import Resolution, resolve_execution
from tickgraph.env.env import Env
from tickgraph.env.tick import Tick

TICK_ARMS = ("graph", "captured_eager", "compile", "eager")  # the first one present stands for "the tick"
ARMS = (*TICK_ARMS, "physics", "tick_aa")
DEFAULT_ARMS = ("graph", "compile", "eager", "physics", "tick_aa")
SPIN_CYCLES = 400_000  # about 0.2 ms in which the host gets ahead, so that no launch is part of a time
DEVIATION = 1e-2  # m or rad: more than what the order of a device's additions changes in one control step
STRAY_SHARE = 0.1  # of worlds that may exceed it: a contact can go either way


def device_times(run: Callable[[], object], count: int, stream: torch.cuda.Stream) -> list[float]:
    """Run something that enqueues on a stream; returns the device's milliseconds from the end of one to that of the
    next."""
    torch.cuda.synchronize(stream.device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record(stream)
    for mark in marks[1:]:
        run()
        mark.record(stream)
    marks[-1].synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False)]


def resolution_of(arm: str, device: torch.device) -> Resolution:
    """Return how an arm's programs run; raises ExecutionError where that cannot be had."""
    if arm == "captured_eager":
        return replace(resolve_execution("graph", device), inner="eager")
    return resolve_execution(arm, device)


class TickArm:
    """A whole tick of an environment, run in one way on a given stream."""

    def __init__(self, env: Env, name: str, stream: torch.cuda.Stream) -> None:
        self.name, self.stream = name, stream
        self.resolution = resolution_of(name, env.device)
        self.tick = Tick(env, self.resolution)
        self.graph = Graph(
            f"bench/{name}",
            self.tick.play,
            self.resolution,
            stream=stream,
            scopes=(env.sim.capture_scope,),
            watch=env.pointers,
        )

    def __call__(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph()

    def play(self, ticks: int) -> list[float]:
        """Play ticks and return the device's milliseconds between the end of one and the end of the next."""
        return device_times(self, ticks, self.stream)


class PhysicsArm:
    """The bare physics steps of a tick, in a CUDA graph of their own: no refresh, no counters, nothing of the task.

    It steps the same model and data as the tick does. Before each tick the recorded state and controls are copied into
    them, which is not part of the time.
    """

    def __init__(self, env: Env, stream: torch.cuda.Stream) -> None:
        self._env, self.stream = env, stream
        steps = 1 if env.substep_manager.terms else env.cfg.decimation
        step = bare_step(env)

        def physics() -> None:
            for _ in range(steps):
                step()

        resolution = resolve_execution("graph", env.device)
        self.graph = Graph("bench/physics", physics, resolution, stream=stream, scopes=(env.sim.capture_scope,))
        self._wrong = torch.zeros((), dtype=torch.int64, device=env.device)
        self.stray_share = 0.0  # of the last trace's worlds and ticks: ended elsewhere than recorded

    def play(self, trace: list[TracedTick]) -> list[float]:
        """Replay a trace and return the device's milliseconds of each tick's steps.

        Raises:
            TickgraphError: the states differ from the recorded ones by more than the order of additions explains.
        """
        sim = self._env.sim
        torch.cuda.synchronize()
        pairs: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = []
        self._wrong.zero_()
        with torch.cuda.stream(self.stream), sim.capture_scope(self.stream):
            for tick in trace:
                sim.load_state_dict(tick.state)
                pairs.append([])
                for _, controls in tick.calls:
                    sim.ctrl.copy_(controls)
                    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    torch.cuda._sleep(SPIN_CYCLES)
                    before.record(self.stream)
                    self.graph()
                    after.record(self.stream)
                    pairs[-1].append((before, after))
                self._wrong += self._strays(tick)
            sim.refresh(self._env.all_worlds)  # which a tick begins behind, and a bare step does not end in
        torch.cuda.synchronize()
        self.stray_share = int(self._wrong) / (len(trace) * self._env.num_envs)
        if self.stray_share > STRAY_SHARE:
            raise TickgraphError(
                f"the physics arm left the recorded trace in {self.stray_share:.1%} of worlds within one tick, so that "
                "its times would be those of other physics; run with terms that change the physics only through "
                "controls, resets and model fields"
            )
        return [sum(a.elapsed_time(b) for a, b in tick) for tick in pairs]

    def _strays(self, tick: TracedTick) -> Tensor:
        assert tick.qpos is not None
        # Where the tick found something not finite, there is nothing to compare.
        return ((bare_positions(self._env) - tick.qpos).abs() > DEVIATION).any(dim=1).sum()


def bare_step(env: Env) -> Callable[[], None]:
    """Return one physics step of the backend's own model and data, and nothing else.

    Raises:
        TickgraphError: the backend is not one that a GPU runs.
    """
    import mujoco_warp

    model, data = _warp(env)
    return lambda: mujoco_warp.step(model, data)


def bare_positions(env: Env) -> Tensor:
    """Return qpos (N, nq) of the backend's own data, without a copy."""
    import warp

    return warp.to_torch(_warp(env)[1].qpos)


def _warp(env: Env) -> tuple[Any, Any]:
    physics = getattr(env.sim, "physics", None)
    if physics is None:
        raise TickgraphError(f"backend {env.backend_name!r} has no physics that a GPU runs; use --backend mjwarp")
    model, data = physics()
    return model, data
