"""THE TICK: one control step of every world, in the order of the transition contract (docs/transition.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.graph import Graph
from tickgraph.core.masked import assign_rows, fill_rows, or_rows
from tickgraph.core.program import Program, Resolution
from tickgraph.env.late import terms_at

if TYPE_CHECKING:
    from tickgraph.env.env import Env

DIVERGED = 1.0e10  # MuJoCo's own mjMAXVAL: a state beyond it is as good as not finite
CAUSES = ("action", "state", "reward", "observation")


class Tick:
    """The tick as programs around the physics: torch, physics, torch, state write, torch; all in a graph on a GPU."""

    def __init__(self, env: Env, resolution: Resolution) -> None:
        self._env = env

        # Fresh functions, so that a compiler's cache of one environment never serves another.
        def act_and_apply() -> None:
            act(env)
            apply(env)

        def program(name: str, fn: Callable[[], None], may_be_empty: bool = False) -> Program:
            owners = functools.partial(terms_at, env)
            return Program(f"tick/{name}", fn, resolution, may_be_empty=may_be_empty, owners=owners)

        in_graph = resolution.enabled == "graph" and env.ring is not None

        def judge_to_restart() -> None:
            judge(env)
            command(env)
            terminal_observation(env)
            if not in_graph:
                store(env)
            record(env)
            restart(env)

        self.act_and_apply = program("act_and_apply", act_and_apply)
        self.judge_to_restart = program("judge_to_restart", judge_to_restart)
        # In a graph it is a branch beside write and refresh: nobody reads what it writes, and what it reads stays.
        self.store = program("store", lambda: store(env)) if in_graph else None
        self._beside = torch.cuda.Stream(env.device) if in_graph else None
        self.observe = program("observe", lambda: observe(env))
        self.substeps = [
            program(f"substep{i}", lambda i=i: env.substep_manager.apply(i), may_be_empty=True)
            for i in range(env.cfg.decimation if env.substep_manager.terms else 0)
        ]
        self.graph = Graph("tick", self.play, resolution, scopes=(env.sim.capture_scope,), watch=env.pointers)

    @torch.inference_mode(False)  # a caller's inference mode would have every program compiled anew
    def play(self) -> None:
        """Play one tick, or have it captured: what it enqueues is the same every time."""
        sim = self._env.sim
        self.act_and_apply()
        if self.substeps:
            for substep in self.substeps:
                substep()
                sim.advance_and_refresh(1)
        else:
            sim.advance_and_refresh(self._env.cfg.decimation)
        self.judge_to_restart()
        with self._stored_beside():
            sim.write_state(self._env.written, self._env.restarted)
            sim.refresh(self._env.written)
        self.observe()

    @contextmanager
    def _stored_beside(self) -> Iterator[None]:
        """Store the transition on a stream of its own, beside what the caller enqueues."""
        if self.store is None or self._beside is None:
            yield
            return
        own = torch.cuda.current_stream(self._beside.device)
        self._beside.wait_stream(own)
        with torch.cuda.stream(self._beside):
            self.store()
        yield
        own.wait_stream(self._beside)

    @torch.inference_mode(False)
    def rehearse(self) -> None:
        """Run the programs alone, so that they are compiled; the worlds hold nonsense afterwards."""
        for program in self._programs():
            program()

    def report(self) -> dict[str, dict[str, Any]]:
        """Return what was asked for and what runs: of each program, and of the graph where there is one."""
        rows = {program.name: program.report() for program in self._programs()}
        return {self.graph.name: self.graph.report(), **rows} if self.graph.in_use else rows

    def _programs(self) -> list[Program]:
        store = [] if self.store is None else [self.store]
        return [self.act_and_apply, *self.substeps, self.judge_to_restart, *store, self.observe]


def act(env: Env) -> None:
    """The policy reads ``obs`` and writes ``action``; without a policy the caller of ``env.step`` has written it."""
    env.rng.advance()
    if env.policy is not None:
        env.policy.act(env.obs, env.action, env.done)


def apply(env: Env) -> None:
    """Action terms turn the action into controls."""
    env.action_manager.process(env.action)


def judge(env: Env) -> None:
    """Terminations and rewards of the new state, under the command that the policy saw."""
    env.episode_length += 1
    env.scene.update()
    env.termination_manager.compute(env.terminated, env.truncated)
    env.reward_manager.compute(env.reward)


def command(env: Env) -> None:
    """Commands advance; one may ask for its state rewrite."""
    env.command_manager.step()
    env.rewrite.zero_()
    for term in env.command_manager.terms.values():
        if term.rewrite is not None:
            or_rows(env.rewrite, term.rewrite)


def terminal_observation(env: Env) -> None:
    """``final_obs`` is what ``obs`` would have been; a world with anything non-finite ends here, as ``invalid``."""
    env.observation_manager.look(env.final_obs)
    bad = (
        _not_finite(env.action),
        _beyond(env.sim.view("qpos"), DIVERGED) | _beyond(env.sim.view("qvel"), env.cfg.diverged_speed),
        ~torch.isfinite(env.reward),
        torch.stack([_not_finite(value) for value in env.final_obs.values()]).any(dim=0),
    )
    env.invalid.zero_()
    for cause, (verdict, mask) in enumerate(zip(env.invalid_verdicts, bad, strict=True)):
        # What comes first in this order brings the others about: a world counts for its first cause alone.
        first = mask & ~env.invalid
        env.cause_counts[cause].copy_(verdict.flag(first))
        env.invalid.logical_or_(mask)
    # The last finite observation stands in for the one that cannot be used.
    env.observation_manager.assign(env.final_obs, env.invalid, env.obs)
    fill_rows(env.reward, env.invalid, 0.0)
    fill_rows(env.action, env.invalid, 0.0)
    env.terminated.logical_or_(env.invalid)
    env.truncated.logical_and_(~env.terminated)
    env.done.copy_(env.terminated | env.truncated)
    env.rewrite.logical_and_(~env.done)
    env.restarted.copy_(env.done | env.rewrite)


def store(env: Env) -> None:
    """The replay ring takes the transition."""
    if env.ring is not None:
        env.ring.write(env.obs, env.action, env.reward, env.terminated, env.truncated, env.restarted, env.final_obs)


def record(env: Env) -> None:
    """Recorders see the transition; statistics of finished episodes close."""
    env.recorder_manager.record()
    env.stats.record(env.metric_manager.compute(), env.cause_counts)


def restart(env: Env) -> None:
    """Everything that writes simulation state stages it: push, then rewrite, then reset, so that the later one wins."""
    env.sim.stage_from_state()
    env.written.zero_()
    env.event_manager.step()
    for term in env.command_manager.terms.values():
        if term.rewrite is not None:
            term.write_state(term.rewrite & env.rewrite)
    env.curriculum_manager.compute(env.done)
    begin_episodes(env, env.done)
    env.written.logical_or_(env.restarted)


def begin_episodes(env: Env, mask: Tensor) -> None:
    """Begin new episodes in the worlds of a mask: reset events, commands, actions, histories."""
    env.scene.reset(mask)
    env.event_manager.apply("reset", mask)
    env.command_manager.reset(mask)
    for manager in env.managers_with_memory:
        manager.reset(mask)
    env.stats.reset(mask)
    fill_rows(env.episode_length, mask, 0)


def observe(env: Env) -> None:
    """``obs`` for the next tick; worlds that begin an episode fill their histories with this frame."""
    env.observation_manager.commit(env.obs, env.done)
    # A first frame that is not finite has no earlier one to stand in for it: zeros do, and the check says so.
    bad = torch.stack([_not_finite(value) for value in env.obs.values()]).any(dim=0)
    env.invalid_verdicts[-1].flag(bad & env.done)
    for value in env.obs.values():
        fill_rows(value, bad, 0.0)


PARTS = (act, apply, judge, command, terminal_observation, store, record, restart, observe)


def stagger(env: Env) -> None:
    """Spread the worlds uniformly over an episode, so that their time limits do not fall together."""
    steps = env.rng.stream("env/stagger").integers("", 1, 0, env.max_episode_length)[:, 0]
    env.episode_length.copy_(steps)
    assign_rows(env.stats.start_length, env.all_worlds, steps)


def _not_finite(values: Tensor) -> Tensor:
    """Return (N,) bool: any value of the row is NaN, infinite or beyond what MuJoCo calls bad."""
    return _beyond(values, DIVERGED)


def _beyond(values: Tensor, limit: float) -> Tensor:
    """Return (N,) bool: any value of the row is NaN or of a magnitude beyond the limit."""
    # NaN compares false, so that the negated test catches it too.
    return ~(values.abs() < limit).all(dim=1)
