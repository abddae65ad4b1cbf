"""What a caller may hand to an environment, and where it may use it; anything else is one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import shown
from tickgraph.env.config import EnvCfg
from tickgraph.env.term import described, plain


def check_cfg(cfg: Any) -> None:
    """Refuse what is no configuration of an environment, and say where the one meant is found.

    Raises:
        TickgraphError: it is a task, the name of one, or something else.
    """
    if isinstance(cfg, EnvCfg):
        return
    if isinstance(getattr(cfg, "env", None), EnvCfg):
        raise TickgraphError("Env was given a Task, expected the EnvCfg in it: write Env(task.env, ...)")
    if isinstance(cfg, str):
        raise TickgraphError(f"Env was given {cfg!r}, expected an EnvCfg: write Env(load_task({cfg!r}).env, ...)")
    kind = "the class" if isinstance(cfg, type) else "the function" if callable(cfg) else "an object of type"
    name = getattr(cfg, "__name__", type(cfg).__name__)
    raise TickgraphError(f"Env was given {kind} {name}, expected an EnvCfg, such as load_task(NAME).env")


def check_action(action: Any, own: Tensor) -> None:
    """Refuse an action that is no dense tensor of real numbers of the shape of the environment's own.

    Raises:
        TickgraphError: the text says what it is instead.
    """
    if not isinstance(action, Tensor):
        raise TickgraphError(f"action is of type {type(action).__name__}, expected a tensor; see VectorEnvAdapter")
    if not plain(action) or action.is_meta:
        got = "a tensor of shapes alone (meta)" if action.is_meta else described(action)
        raise TickgraphError(f"action is {got}, expected a dense tensor of real numbers")
    if action.shape != own.shape:
        raise TickgraphError(f"action has shape {tuple(action.shape)}, expected {tuple(own.shape)}")


def check_state(state: Any) -> None:
    """Refuse what is no dictionary of tensors.

    Raises:
        TickgraphError: the text says what it is instead.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TickgraphError(f"the state is {shown(state)}, expected tensors by name, as state_dict() returns them")


def check_process(built_in: int) -> None:
    """Refuse to go on in a process that was forked: threads, those of the physics and of torch, are not copied.

    Raises:
        TickgraphError: this is not process ``built_in``.
    """
    if os.getpid() != built_in:
        raise TickgraphError(
            f"this environment was built in process {built_in} and cannot be used in a forked one: build it there, or "
            "use the spawn start method"
        )
