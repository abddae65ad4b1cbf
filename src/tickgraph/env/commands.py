"""Commands: what the policy is told to do, resampled by mask as time goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall
from tickgraph.core.masked import assign_rows
from tickgraph.env.term import Call, Manager, build_instance, calling, described, plain

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class CommandTerm:
    """Base of commands: resampled by mask after a time drawn from ``cfg.resampling_time_range`` seconds.

    A term that sets rows of ``rewrite`` (N,) bool in ``update`` asks for its ``write_state(mask)`` to be called for
    them: the state changes without an end of the episode.
    """

    rewrite: Tensor | None = None

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self.cfg, self.path, self._env = cfg, path, env
        self.rng = env.rng.stream(path)
        self.time_left = env.arena.new(
            f"{path}/time_left", (env.num_envs,), why="seconds until the command is resampled"
        )

    @property
    def command(self) -> Tensor:
        """(N, C) float32."""
        raise NotImplementedError

    def resample(self, mask: Tensor) -> None:
        """Draw a new command for the worlds of a mask."""
        raise NotImplementedError

    def update(self) -> None:
        """Advance by one tick what changes each tick."""

    def write_state(self, mask: Tensor) -> None:
        """Stage the state of worlds whose ``rewrite`` bit is set."""

    def step(self) -> None:
        """Advance by one tick: count down, resample where the time is over, update."""
        self.time_left -= self._env.step_dt
        # Half a step of slack: repeated subtraction in float32 must not turn 5.00 s into one tick more.
        due = self.time_left <= 0.5 * self._env.step_dt
        self.resample(due)
        self._restart_clock(due)
        self.update()

    def reset(self, mask: Tensor) -> None:
        self.resample(mask)
        self._restart_clock(mask)

    def _restart_clock(self, mask: Tensor) -> None:
        low, high = self.cfg.resampling_time_range
        assign_rows(self.time_left, mask, self.rng.uniform("time_left", 1, low, high)[:, 0])


class CommandManager(Manager):
    """Commands by name."""

    name = "commands"

    def _build(self, name: str, cfg: Any) -> Any:
        if cfg.class_type is None:
            raise TickgraphError(
                f"command {name!r}: class_type is not set; use a configuration such as UniformVelocityCommandCfg"
            )
        return build_instance(cfg.class_type, cfg, self._env, f"commands/{name}")

    def get_command(self, name: str) -> Tensor:
        """Return (N, C) float32 of a command; raises TickgraphError with nearby names."""
        return self.term(name).command

    def step(self) -> None:
        for term in self.terms.values():
            if term.rewrite is not None:
                term.rewrite.zero_()
            term.step()

    def calls(self) -> Iterator[JudgedCall]:
        env = self._env
        for name, term in self.terms.items():
            for step in (
                Call(term.step, ()),
                Call(term.reset, (env.no_worlds,)),
                Call(term.write_state, (env.no_worlds,)),
                Call(getattr, (term, "command")),
            ):
                yield JudgedCall(self.name, name, step, type(term), (env, term), env.arena)

    def rehearse(self) -> None:
        for name, term in self.terms.items():
            with calling(f"commands/{name}"):
                value = term.command
            if not plain(value) or value.dim() != 2 or value.shape[0] != self._env.num_envs:
                raise TickgraphError(
                    f"term commands/{name}: command is {described(value)}, expected a tensor ({self._env.num_envs}, C)"
                )
