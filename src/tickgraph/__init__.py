"""tickgraph: robot reinforcement learning in which a whole control step is one program.

The names below are what a training loop of one's own imports; each loads its module when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tickgraph.core.errors import TickgraphError
    from tickgraph.env.adapters import RslRlVecEnv, VectorEnvAdapter
    from tickgraph.env.env import Env
    from tickgraph.tasks.registry import load as load_task

__version__ = "0.1.0"
__all__ = ["Env", "RslRlVecEnv", "TickgraphError", "VectorEnvAdapter", "load_task"]

_HOME = {
    "Env": "tickgraph.env.env:Env",
    "RslRlVecEnv": "tickgraph.env.adapters:RslRlVecEnv",
    "TickgraphError": "tickgraph.core.errors:TickgraphError",
    "VectorEnvAdapter": "tickgraph.env.adapters:VectorEnvAdapter",
    "load_task": "tickgraph.tasks.registry:load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tickgraph' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
