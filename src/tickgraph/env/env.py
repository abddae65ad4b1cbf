"""The shell that users hold: steps a task, hands out its tensors, names what would block compilation."""

from __future__ import annotations

import math
import os
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from tickgraph.core.bounds import MOST_ROWS
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import check_tree
from tickgraph.core.given import seed64, whole_number
from tickgraph.core.judge import Blocker, judge_calls
from tickgraph.core.memory import memory_for
from tickgraph.core.program import BACKEND_CANNOT, NOT_STATIC, Reason, Resolution, resolve_execution
from tickgraph.core.quiet import unheard
from tickgraph.core.words import counted
from tickgraph.env import tick as transition
from tickgraph.env.blockers import blockers_in_use, build_blocker
from tickgraph.env.build import build, rehearse
from tickgraph.env.config import EnvCfg
from tickgraph.env.given import check_action, check_cfg, check_process, check_state
from tickgraph.env.term import BuildError
from tickgraph.sim.platform import torch_device

PUBLISH_DEPTH = 2  # what step t returned is intact until step t + 2 begins


class Policy(Protocol):
    """Writes actions on the tick's path."""

    def act(self, obs: dict[str, Tensor], action: Tensor, done: Tensor) -> None:
        """Read ``obs[group]`` (N, D) and write ``action`` (N, A) in place; ``done`` (N,) began a new episode."""


class Ring(Protocol):
    """Takes transitions on the tick's path."""

    def write(
        self,
        obs: dict[str, Tensor],
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        boundary: Tensor,
        final_obs: dict[str, Tensor],
    ) -> None:
        """Store one transition of every world, all full width."""


class Env:
    """N worlds of one task.

    Every tensor is full width and lives in ``arena``; read them, never rebind them. ``obs[group]`` and
    ``final_obs[group]`` (N, D), ``action`` (N, A), ``reward`` (N,) float32; ``terminated, truncated, invalid, done,
    rewrite, restarted, written`` (N,) bool; ``episode_length`` (N,) int64 in control steps. It is reset already; ``with
    Env(...) as env:`` closes it.

    Args:
        cfg: the task's environment, ``load_task(NAME).env``.
        num_envs: number of worlds; by default the task's own.
        device: where the tensors live; "meta" builds shapes alone, for the judge.
        backend: physics backend by name.
        execution: "auto", "eager", "compile" or "graph".
        seed: of every random word, 0 to 2^64 - 1.
        threads: physics threads; by default the processors that the process may use.

    Raises:
        TickgraphError: the configuration is wrong; one line says what was given and what was expected.
        ExecutionError: an execution was asked for by name and cannot be had; every reason is listed.
    """

    def __init__(
        self,
        cfg: EnvCfg,
        num_envs: int | None = None,
        device: str | torch.device = "cpu",
        backend: str = "mujoco",
        execution: str = "auto",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        check_cfg(cfg)
        self.cfg = cfg
        self.num_envs = whole_number("num_envs", cfg.num_envs if num_envs is None else num_envs)
        if self.num_envs > MOST_ROWS:
            raise TickgraphError(
                f"num_envs is {self.num_envs}, expected at most {MOST_ROWS} (2^32), as many as random words can be "
                "told apart for: use fewer worlds"
            )
        check_tree(cfg, "")
        self.device = torch_device(device)
        self.seed = seed64(seed)
        self.backend_name = backend
        self.physics_dt = cfg.scene.timestep
        self.step_dt = cfg.scene.timestep * cfg.decimation
        self.max_episode_length = max(1, math.ceil(cfg.episode_length_s / self.step_dt - 1e-9))
        self.policy: Policy | None = None
        self.ring: Ring | None = None
        with memory_for(f"an environment of {counted(self.num_envs, 'world')}"):
            build(self, threads)
            self._slots = [
                {
                    name: self.arena.new(f"publish/{i}/{name}", value.shape, value.dtype, "copy that step() hands out")
                    for name, value in self._published().items()
                }
                for i in range(PUBLISH_DEPTH)
            ]
            rehearse(self)
            self.arena.seal()
        self.known_blockers: list[Blocker] | None = None  # in eager mode nobody has looked yet
        self._resolution = self._resolve(execution)
        self._tick = transition.Tick(self, self._resolution)
        self._slot = 0
        self._process = os.getpid()
        self._closed = False
        if self.device.type != "meta":
            self.reset(self.seed)

    # Use -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Play one whole control step in every world."""
        self._check_usable()
        self._tick.graph()

    def tick_body(self) -> None:
        """Play one control step as a part of a graph of the caller's, who enters ``sim.capture_scope`` around it."""
        self._tick.play()

    def rehearse_programs(self) -> None:
        """Run the torch part of a tick without its physics, so that it is compiled; the caller puts the state back."""
        self._tick.rehearse()

    @property
    def resolution(self) -> Resolution:
        """How the tick runs: for a graph of the caller's that holds ticks."""
        return self._resolution

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Play one control step with the caller's actions.

        Args:
            action: (N, A) float32, raw, nominally in [-1, 1].

        Returns:
            obs {group: (N, D)}, reward (N,), terminated (N,), truncated (N,), extras. Finished worlds are reset
            already: ``extras["final_obs"]``, full width, is what really followed, in every world;
            ``extras["time_outs"]`` is truncated; ``extras["boundary"]`` is where ``obs`` does not follow: an end, or a
            state that a command rewrote. What one call returns stays intact until the call after the next.

        Raises:
            TickgraphError: the action has another shape, or a policy is attached and acts by itself.
        """
        if self.policy is not None:
            raise TickgraphError("a policy is attached and acts by itself: call tick(), or attach(policy=None) first")
        check_action(action, self.action)
        self._check_usable()
        self.action.copy_(action.detach())
        self._tick.graph()
        return self._publish()

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Begin new episodes in every world; startup events run again.

        Args:
            seed: begin at tick 0 of this seed's random words, as building does. Without one the words go on with the
                next tick, so that the episodes are other ones.

        Returns:
            obs {group: (N, D)} and extras.
        """
        self._check_usable()
        if seed is None:
            self.rng.advance()
        else:
            self.seed = seed64(seed)
            self.rng.tick.zero_()
            self.rng.set_seed(self.seed)
        for flag in (self.terminated, self.truncated, self.invalid, self.rewrite):
            flag.zero_()
        self.done.fill_(True)
        self.restarted.fill_(True)
        self.sim.stage_from_state()
        self.event_manager.apply("startup", self.all_worlds)
        self.curriculum_manager.compute(self.no_worlds)  # no episode has ended, so none may be judged
        transition.begin_episodes(self, self.all_worlds)
        self.written.fill_(True)
        self.sim.write_state(self.written, self.restarted)
        self.sim.refresh(self.written)
        transition.observe(self)
        self.verdicts.clear()
        self.stats.clear()
        obs, _, _, _, extras = self._publish()
        return obs, extras

    @torch.no_grad()
    def stagger(self) -> None:
        """Spread the worlds uniformly over an episode; training does so at its start, evaluation does not."""
        transition.stagger(self)

    def attach(self, policy: Policy | None = None, ring: Ring | None = None) -> None:
        """Let a policy act and a ring record inside the tick; the tick's programs are built anew."""
        self._tick.graph.invalidate("a policy or a ring was attached")
        self.policy, self.ring = policy, ring
        self._tick = transition.Tick(self, self._resolution)

    def mark_written(self, mask: Tensor) -> None:
        """Say that the staged state or fields of the worlds of a mask have changed."""
        self.written.logical_or_(mask)

    # Honesty ---------------------------------------------------------------------------------------------------

    def blockers(self, host_state_too: bool = True) -> list[Blocker]:
        """Return what would keep the task from running compiled or captured; needs no compiler and no GPU.

        Args:
            host_state_too: also trace an author's terms as torch.compile does, and play a few real ticks with few
                worlds and report Python attributes that changed.
        """
        try:
            judged = self if self.device.type == "meta" else Env(self.cfg, self.num_envs, "meta", self.backend_name)
        except BuildError as error:
            return [build_blocker(error)]
        once = judged.rng.each_draw_once
        found = judge_calls((call for manager in judged.managers for call in manager.calls()), once)
        if host_state_too:
            with unheard():
                found += blockers_in_use(self, found)
        return found

    def execution_report(self) -> dict[str, dict[str, Any]]:
        """Return what was asked for and what runs, for each program of the tick, and for "tick" as a graph."""
        return self._tick.report()

    def pointers(self) -> dict[str, int]:
        """Return the address of every tensor and array that a tick touches, by name; none may move."""
        own = {f"env.{name}": value for name, value in vars(self).items() if isinstance(value, Tensor)}
        own |= {f"env.{name}[{g!r}]": v for name in ("obs", "final_obs") for g, v in getattr(self, name).items()}
        return {
            **self.arena.pointers(),
            **{name: value.data_ptr() for name, value in own.items()},
            **{f"sim/{name}": address for name, address in self.sim.pointers().items()},
        }

    def describe(self) -> dict[str, Any]:
        """Return spaces, terms and arena as plain data."""
        return {
            "num_envs": self.num_envs,
            "step_dt": self.step_dt,
            "physics_dt": self.physics_dt,
            "max_episode_length": self.max_episode_length,
            "observations": dict(self.observation_manager.dims),
            "actions": self.action_manager.total_dim,
            "terms": {manager.name: manager.describe() for manager in self.managers},
            "arena": self.arena.table(),
            "arena_bytes": self.arena.nbytes(),
        }

    # Checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that the next tick reads: the arena and the backend's own state."""
        self._check_usable()
        state = {f"arena/{name}": value for name, value in self.arena.snapshot().items()}
        return state | {f"sim/{name}": value for name, value in self.sim.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Write a state back in place; raises TickgraphError where names or shapes differ."""
        self._check_usable()
        check_state(state)
        self.arena.restore({k.removeprefix("arena/"): v for k, v in state.items() if k.startswith("arena/")})
        self.sim.load_state_dict({k.removeprefix("sim/"): v for k, v in state.items() if k.startswith("sim/")})

    def close(self) -> None:
        """Give the backend's threads and memory back; the environment cannot be used afterwards."""
        self.sim.close()
        self._closed = True

    def __enter__(self) -> Env:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TickgraphError("an environment cannot be copied or sent to another process: build it there")

    def _check_usable(self) -> None:
        if self._closed:
            raise TickgraphError("the environment is closed; build another")
        check_process(self._process)

    def _resolve(self, execution: str) -> Resolution:
        if execution == "eager" or self.device.type == "meta":
            return resolve_execution("eager", self.device)
        self.known_blockers = self.blockers(host_state_too=False)
        reasons = [Reason(NOT_STATIC, str(blocker)) for blocker in self.known_blockers]
        if self.device.type == "cuda" and "graph" not in self.sim.capabilities:
            text = f"backend {self.backend_name!r} cannot be captured into a CUDA graph"
            reasons.append(Reason(BACKEND_CANNOT, text, ("graph",)))
        return resolve_execution(execution, self.device, reasons)

    def _published(self) -> dict[str, Tensor]:
        return {
            **{f"obs/{g}": v for g, v in self.obs.items()},
            **{f"final_obs/{g}": v for g, v in self.final_obs.items()},
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "invalid": self.invalid,
            "boundary": self.restarted,
        }

    def _publish(self) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        slot = self._slots[self._slot]
        self._slot = (self._slot + 1) % PUBLISH_DEPTH
        for name, value in self._published().items():
            slot[name].copy_(value)
        obs = {g: slot[f"obs/{g}"] for g in self.obs}
        extras = {
            "final_obs": {g: slot[f"final_obs/{g}"] for g in self.final_obs},
            "time_outs": slot["truncated"],
            "invalid": slot["invalid"],
            "boundary": slot["boundary"],
        }
        return obs, slot["reward"], slot["terminated"], slot["truncated"], extras
