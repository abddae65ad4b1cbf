"""An environment as other libraries expect one: Gymnasium's vector API, rsl_rl's VecEnv."""

from __future__ import annotations

import functools
import importlib.util
import math
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import shown
from tickgraph.core.given import whole_number
from tickgraph.core.masked import assign_rows
from tickgraph.env.env import Env
from tickgraph.env.term import plain

Array = np.ndarray | Tensor
_INSTALL = "pip install 'rsl-rl-lib>=3'"


def _check_env(env: Any, taker: str) -> None:
    if not isinstance(env, Env):
        raise TickgraphError(f"{taker} was given a {type(env).__name__}, expected an Env, such as Env(task.env)")


class VectorEnvAdapter:
    """Gymnasium's vector API with same-step autoreset: the world that ends is reset within the same `step`.

    Where Gymnasium is installed, an instance is a ``gymnasium.vector.VectorEnv`` with spaces, so that its wrappers take
    it; nothing here needs it. Everything handed out is a copy that stays as it is.

    Args:
        env: the environment; `close` closes it.
        group: the observation group that `reset` and `step` return; ``None`` returns a dict of all groups.
        to_numpy: hand out NumPy arrays; otherwise tensors on the environment's device.

    Raises:
        TickgraphError: the task has no such observation group.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": "SameStep"}
    render_mode = None
    spec = None
    closed = False

    def __new__(cls, *args: Any, **kwargs: Any) -> VectorEnvAdapter:
        if cls is VectorEnvAdapter and importlib.util.find_spec("gymnasium") is not None:
            cls = _gymnasium_class()
        return object.__new__(cls)

    def __init__(self, env: Env, group: str | None = "actor", to_numpy: bool = True) -> None:
        _check_env(env, "VectorEnvAdapter")
        if group is not None and group not in env.obs:
            hint = nearby(group, env.obs) or f"there are {', '.join(env.obs)}"
            raise TickgraphError(f"the task has no observation group {group!r}; {hint}")
        self.env = env
        self.num_envs = env.num_envs
        self._group, self._to_numpy = group, to_numpy

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all worlds; returns observations and infos.

        With a seed at tick 0 of its random words, as building does; without one the words go on.

        Raises:
            TickgraphError: a reset of some worlds only was asked for; they reset themselves.
        """
        if options and "reset_mask" in options:
            raise TickgraphError("worlds reset themselves within step(); call reset() without options['reset_mask']")
        if isinstance(seed, list | tuple | np.ndarray):
            raise TickgraphError(f"seed is {seed!r}, expected one whole number for all worlds")
        obs, _ = self.env.reset(seed)
        return self._observation(obs), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Play one control step.

        Args:
            actions: (N, A), raw, nominally in [-1, 1].

        Returns:
            obs, rewards (N,), terminated (N,), truncated (N,) and infos. Where a world ended, ``obs`` is the first
            observation of its next episode, and ``infos["final_obs"]`` its last one, for the worlds of
            ``infos["_final_obs"]`` (N,) bool; ``infos["_final_info"]`` is the same mask, and
            ``infos["final_info"]["invalid"]`` says which of them had something non-finite.
        """
        try:
            given = torch.as_tensor(actions)
        except (TypeError, ValueError, RuntimeError):  # text, None, objects, rows of several lengths
            shape = tuple(self.env.action.shape)
            raise TickgraphError(f"actions are {shown(actions)}, expected numbers of shape {shape}") from None
        if plain(given) and not given.is_meta:  # the environment refuses the rest
            given = given.to(self.env.device, torch.float32)
        obs, reward, terminated, truncated, extras = self.env.step(given)
        infos: dict[str, Any] = {}
        ended = terminated | truncated
        if bool(ended.any()):
            infos["final_obs"] = self._final(extras["final_obs"], ended)
            infos["final_info"] = {"invalid": self._copy(extras["invalid"])}
            infos["_final_obs"], infos["_final_info"] = self._copy(ended), self._copy(ended)
        out = [self._copy(value) for value in (reward, terminated, truncated)]
        return self._observation(obs), *out, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environment."""
        if not self.closed:
            self.env.close()
            self.closed = True

    def _copy(self, value: Tensor) -> Array:
        value = value.detach().clone()
        return value.cpu().numpy() if self._to_numpy else value

    def _observation(self, obs: dict[str, Tensor]) -> Any:
        if self._group is not None:
            return self._copy(obs[self._group])
        return {name: self._copy(value) for name, value in obs.items()}

    def _final(self, obs: dict[str, Tensor], ended: Tensor) -> Any:
        copied = self._observation(obs)
        if not self._to_numpy:
            return copied
        # Gymnasium's form: an array of objects, None where the world goes on.
        final = np.full(self.num_envs, None, dtype=object)
        for world in np.flatnonzero(ended.cpu().numpy()):
            final[world] = {k: v[world] for k, v in copied.items()} if self._group is None else copied[world]
        return final


@functools.cache
def _gymnasium_class() -> type[VectorEnvAdapter]:
    """Return the adapter as a subclass of Gymnasium's VectorEnv, with spaces."""
    import gymnasium
    from gymnasium.vector.utils import batch_space

    class GymnasiumVectorEnv(VectorEnvAdapter, gymnasium.vector.VectorEnv):
        """See `VectorEnvAdapter`."""

        metadata = {**VectorEnvAdapter.metadata, "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

        def __init__(self, env: Env, group: str | None = "actor", to_numpy: bool = True) -> None:
            super().__init__(env, group, to_numpy)
            box = gymnasium.spaces.Box
            spaces = {name: box(-np.inf, np.inf, (value.shape[1],), np.float32) for name, value in env.obs.items()}
            self.single_observation_space = gymnasium.spaces.Dict(spaces) if group is None else spaces[group]
            self.single_action_space = box(-1.0, 1.0, (env.action.shape[1],), np.float32)
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)
            self.action_space = batch_space(self.single_action_space, env.num_envs)

    return GymnasiumVectorEnv


class RslRlVecEnv:
    """The environment that rsl_rl (3 and later) trains on: observation groups in a TensorDict, time-outs apart.

    ``extras["time_outs"]`` is true for truncation only, so that rsl_rl never bootstraps a fall. Observations stay
    intact until the step after the next, which is longer than rsl_rl reads them.

    Args:
        env: the environment.
        log_every: steps between two ``extras["log"]``, which hold the figures of the episodes that ended in between;
            set it to the runner's ``num_steps_per_env``.

    Raises:
        TickgraphError: rsl_rl is older, tensordict, which it brings, is not installed, or ``log_every`` is below 1.
    """

    def __init__(self, env: Env, log_every: int = 24) -> None:
        try:
            from tensordict import TensorDict
        except ImportError as error:
            raise TickgraphError(f"RslRlVecEnv needs rsl_rl 3 or later; run: {_INSTALL}") from error
        with suppress(PackageNotFoundError):
            installed = version("rsl-rl-lib")
            if int(installed.partition(".")[0]) < 3:
                raise TickgraphError(f"RslRlVecEnv needs rsl_rl 3 or later, {installed} is installed; run: {_INSTALL}")
        _check_env(env, "RslRlVecEnv")
        self._tensordict = TensorDict
        self.env = env
        self.cfg = env.cfg
        self.device = env.device
        self.num_envs = env.num_envs
        self.num_actions = env.action.shape[1]
        self.max_episode_length = env.max_episode_length
        self._log_every, self._steps = whole_number("log_every", log_every), 0
        self._obs = {name: value.clone() for name, value in env.obs.items()}  # it is reset already

    @property
    def unwrapped(self) -> Env:
        """The environment itself."""
        return self.env

    @property
    def episode_length_buf(self) -> Tensor:
        """(N,) int64, control steps of the episodes so far; assign to it to begin training at random ages."""
        return self.env.episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, steps: Tensor) -> None:
        env = self.env
        env.episode_length.copy_(steps)
        # These steps were not played: the log must not count them.
        assign_rows(env.stats.start_length, env.all_worlds, env.episode_length)

    def get_observations(self) -> Any:
        """Return the present observations, a TensorDict of groups (N, D)."""
        return self._wrap(self._obs)

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all worlds; returns observations and extras.

        With a seed at tick 0 of its random words, as building does; without one the words go on.
        """
        self._obs, _ = self.env.reset(seed)
        return self.get_observations(), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
        """Play one control step.

        Args:
            actions: (N, A).

        Returns:
            observations (TensorDict of groups), rewards (N,) float32, dones (N,) int64, extras with "time_outs" (N,)
            bool, "final_obs" (TensorDict, what really followed) and, every ``log_every`` steps, "log".
        """
        self._obs, reward, terminated, truncated, extras = self.env.step(actions)
        out = {"time_outs": extras["time_outs"], "final_obs": self._wrap(extras["final_obs"])}
        self._steps += 1
        if self._steps % self._log_every == 0:
            row = self.env.stats.drain()
            out["log"] = {f"/{name}": v for name, v in row.items() if v is not None and math.isfinite(v)}
        return self._wrap(self._obs), reward, (terminated | truncated).to(torch.int64), out

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _wrap(self, obs: dict[str, Tensor]) -> Any:
        return self._tensordict(dict(obs), batch_size=[self.num_envs], device=self.device)
