"""The second difference of the raw action, for rewards and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from tickgraph.core.masked import fill_rows

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class ActionChange:
    """Remembers the action before the last one, which the action manager does not keep; asked once a tick."""

    def __init__(self, env: Env, path: str) -> None:
        shape = (env.num_envs, env.action_manager.total_dim)
        self._before = env.arena.new(f"{path}/prev_prev_action", shape, why="raw action of two ticks before")

    def second_difference(self, env: Env) -> Tensor:
        """Return a - 2 a_prev + a_prevprev, (N, A)."""
        manager = env.action_manager
        change = manager.action - 2.0 * manager.prev_action + self._before
        self._before.copy_(manager.prev_action)
        return change

    def reset(self, mask: Tensor) -> None:
        fill_rows(self._before, mask, 0.0)
