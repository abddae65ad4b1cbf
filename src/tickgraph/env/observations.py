"""The observation manager: groups of terms with noise, clip, scale, delay and history, committed or only looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall
from tickgraph.core.masked import assign_rows
from tickgraph.core.quiet import unheard
from tickgraph.env.actions import DelayLine
from tickgraph.env.config import GaussianNoiseCfg, ObservationGroupCfg, ObservationTermCfg, UniformNoiseCfg
from tickgraph.env.kept import kept_by_tick
from tickgraph.env.term import Call, Manager, Term, calling, described, label, plain

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def _first_frame(env: Env, term: Term) -> Tensor:
    """Call a term once while building, for its width; a judged term may fail and gets width 1."""
    if env.device.type != "meta":
        with calling(term.path):
            return term()
    try:
        with unheard():
            return term()
    except (Exception, SystemExit):  # the judge will name it
        return torch.empty((env.num_envs, 1), device=env.device)


class ObservationTerm:
    """One term of a group and its memory.

    ``look`` gives the term as it would be with the present frame appended and stores nothing; ``commit`` stores the
    frame, and starts anew from it in worlds that begin an episode.
    """

    def __init__(self, env: Env, group: str, name: str, cfg: ObservationTermCfg, corrupt: bool) -> None:
        self.cfg, self._env = cfg, env
        self.term = Term(env, f"observations/{group}", name, cfg)
        self.path = self.term.path
        frame = _first_frame(env, self.term)
        if not plain(frame) or frame.dim() != 2 or frame.shape[0] != env.num_envs or frame.shape[1] == 0:
            raise TickgraphError(
                f"term {self.path} returned {described(frame)}, expected a float tensor of shape ({env.num_envs}, D)"
            )
        home = env.episode_length.device
        if frame.device != home and home.type != "meta":  # the judge names what makes it elsewhere
            raise TickgraphError(f"term {self.path} returned a tensor on {frame.device}, expected one on {home}")
        self.frame_dim = frame.shape[1]
        self.dim = self.frame_dim * max(1, cfg.history_length)
        self.noise = cfg.noise if corrupt else None
        self._rng = env.rng.stream(self.path)
        self.scale: float | Tensor = 1.0
        if isinstance(cfg.scale, (tuple, list)):
            if len(cfg.scale) != self.frame_dim:
                raise TickgraphError(f"term {self.path}: {len(cfg.scale)} scales given for {self.frame_dim} values")
            self.scale = env.arena.constant(f"{self.path}/scale", list(cfg.scale), torch.float32, "scale of each value")
        elif cfg.scale is not None:
            self.scale = float(cfg.scale)
        self.delay = None
        if (cfg.delay_min_lag, cfg.delay_max_lag) != (0, 0):
            self.delay = DelayLine(env, self.path, self.frame_dim, (cfg.delay_min_lag, cfg.delay_max_lag))
        self.history = None
        if cfg.history_length > 0:
            shape = (env.num_envs, cfg.history_length, self.frame_dim)
            why, advice = (
                "last frames of the term, oldest first",
                "make its history_length smaller, or use fewer worlds",
            )
            self.history = env.arena.new(f"{self.path}/history", shape, why=why, advice=advice)

    def frame(self, draw: str) -> Tensor:
        """Return the present frame (N, D) with noise from the named draw, clipped and scaled."""
        value = self.term()
        rows, width = self._env.num_envs, self.frame_dim
        if not isinstance(value, Tensor) or value.dim() != 2 or value.shape[0] != rows or value.shape[1] != width:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TickgraphError(
                f"term {self.path} returned {got} in a later tick, expected ({rows}, {width}) as at first"
            )
        value = value.to(torch.float32)
        if isinstance(self.noise, UniformNoiseCfg):
            value = value + self._rng.uniform(draw, self.frame_dim, self.noise.n_min, self.noise.n_max)
        elif isinstance(self.noise, GaussianNoiseCfg):
            value = value + self.noise.std * self._rng.normal(draw, self.frame_dim)
        if self.cfg.clip is not None:
            value = value.clamp(*self.cfg.clip)
        if isinstance(self.scale, Tensor) or self.scale != 1.0:
            value = value * self.scale
        return value

    def look(self) -> Tensor:
        """Return (N, dim) with the present frame appended; nothing is stored."""
        frame = self.frame("final_noise")
        if self.delay is not None:
            frame = self.delay.read(self.delay.pushed(frame))
        if self.history is not None:
            return torch.cat((self.history[:, 1:], frame[:, None]), dim=1).flatten(1)
        return frame

    def commit(self, fresh: Tensor) -> Tensor:
        """Return (N, dim) and store it; rows of ``fresh`` (N,) bool begin with this frame."""
        frame = self.frame("noise")
        if self.delay is not None:
            frames = self.delay.pushed(frame)
            frames = torch.where(fresh[:, None, None], frame[:, None], frames)
            self.delay.frames.copy_(frames)
            frame = self.delay.read(frames)
        if self.history is not None:
            frames = torch.cat((self.history[:, 1:], frame[:, None]), dim=1)
            frames = torch.where(fresh[:, None, None], frame[:, None], frames)
            self.history.copy_(frames)
            return frames.flatten(1)
        return frame

    def reset(self, mask: Tensor) -> None:
        self.term.reset(mask)
        if self.delay is not None:
            self.delay.draw(mask)


# What it remembers would go on twice.
_TWICE = (
    "and an observation is computed twice a tick, for final_obs and for obs; write it in a command, reward or metric "
    "term, and read it here"
)


def _in_group(term: ObservationTermCfg, group: ObservationGroupCfg) -> ObservationTermCfg:
    """Return a term's configuration with what its group says of all of them."""
    return term if group.history_length is None else replace(term, history_length=group.history_length)


class ObservationManager(Manager):
    """Groups of observations. ``env.obs[group]`` and ``env.final_obs[group]`` are (N, D) float32."""

    name = "observations"

    def __init__(self, env: Env, cfgs: dict[str, ObservationGroupCfg]) -> None:
        if "actor" not in cfgs:
            has = f"; it has {', '.join(repr(name) for name in cfgs)}" if cfgs else ""
            raise TickgraphError(
                f"the task has no observation group 'actor', which the policy sees{has}; add it to EnvCfg.observations"
            )
        self._env, self.cfgs = env, cfgs
        self.groups: dict[str, dict[str, ObservationTerm]] = {}
        for group, cfg in cfgs.items():
            self.groups[group] = {
                name: ObservationTerm(env, group, name, _in_group(term, cfg), cfg.enable_corruption)
                for name, term in cfg.terms.items()
                if term is not None
            }
            if not self.groups[group]:
                raise TickgraphError(f"observation group {group!r} has no term; add one or leave the group out")
        self.terms = {f"{g}/{n}": t.term for g, terms in self.groups.items() for n, t in terms.items()}
        self.dims = {g: sum(t.dim for t in terms.values()) for g, terms in self.groups.items()}

    def look(self, out: dict[str, Tensor]) -> None:
        """Write every group as it would be without a reset; no memory changes."""
        for group, terms in self.groups.items():
            out[group].copy_(torch.cat([t.look() for t in terms.values()], dim=1))

    def commit(self, out: dict[str, Tensor], fresh: Tensor) -> None:
        """Write every group for the next tick; rows of ``fresh`` (N,) bool begin an episode."""
        for group, terms in self.groups.items():
            out[group].copy_(torch.cat([t.commit(fresh) for t in terms.values()], dim=1))

    def reset(self, mask: Tensor) -> None:
        for terms in self.groups.values():
            for term in terms.values():
                term.reset(mask)

    def calls(self) -> Iterator[JudgedCall]:
        env = self._env
        kept, every = kept_by_tick(env), {name: f"writes {name!r}, {_TWICE}" for name in env.arena}
        for group, terms in self.groups.items():
            for name, term in terms.items():
                inner = term.term
                owners = (env,) if inner.instance is None else (env, inner.instance)
                manager = f"observations/{group}"
                call = Call(inner, ())
                yield JudgedCall(manager, name, call, inner.user_function, owners, env.arena, inner.params, every)
                if inner.instance is not None and hasattr(inner.instance, "reset"):
                    call = Call(inner.reset, (env.no_worlds,))
                    yield JudgedCall(manager, name, call, inner.user_function, owners, env.arena, kept=kept)

    def assign(self, out: dict[str, Tensor], mask: Tensor, source: dict[str, Tensor]) -> None:
        """Copy the rows of a mask from one set of groups to another."""
        for group in self.groups:
            assign_rows(out[group], mask, source[group])

    def describe(self) -> list[dict[str, Any]]:
        rows = []
        for group, terms in self.groups.items():
            for name, term in terms.items():
                rows.append(
                    {
                        "name": name,
                        "group": group,
                        "function": label(term.cfg),
                        "dim": term.dim,
                        "scale": term.cfg.scale,
                        "noise": None if term.noise is None else str(term.noise),
                        "history": term.cfg.history_length,
                    }
                )
        return rows
