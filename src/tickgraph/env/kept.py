"""What a term that only tells something of a tick must not write: what the tick, or others, keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.outside import storage_key
from tickgraph.core.quiet import unheard

if TYPE_CHECKING:
    from tickgraph.env.env import Env

_FOLDERS = ("actions/", "env/", "scene/", "sensors/", "sim/", "stats/")
_NAMES = ("rewards/weights", "rewards/values", "terminations/dones", "curriculum/values")
_REMEDY = (
    "which the tick keeps and others read: compute with what returns a new tensor (a - b, not a -= b or a.sub_(b)), or "
    "with a.clone()"
)


def kept_by_tick(env: Env) -> dict[str, str]:
    """Return by name what the tick keeps, with what is to be said of a term that writes it.

    It is all that is no term's own, and what commands give to whoever asks.
    """
    given = set(map(_given, env.command_manager.terms.values()))
    buffers = {id(buffer) for buffer in env.recorder_manager.buffers.values()}

    def kept(name: str, tensor: Tensor) -> bool:
        own = name.startswith(_FOLDERS) or name in _NAMES or id(tensor) in buffers
        return own or storage_key(tensor) in given

    return {name: f"writes {name!r}, {_REMEDY}" for name in env.arena if kept(name, env.arena[name])}


def _given(term: object) -> int | None:
    """Return what tells the memory of a command; None where it fails, which is said where it is called."""
    try:
        with unheard():
            return storage_key(term.command)  # type: ignore[attr-defined]
    except (Exception, SystemExit):
        return None


def check_written(env: Env, path: str, before: Mapping[str, int], kept: Mapping[str, str]) -> None:
    """Refuse a term that has written what it must not, as `a = env.action; a -= 1` does.

    Args:
        env: the environment.
        path: the term's.
        before: `Arena.versions` before the term was called.
        kept: by name what it must not write, and what is to be said then.
    """
    for name, version in env.arena.versions().items():
        if version != before.get(name, version) and name in kept:
            raise TickgraphError(f"term {path} {kept[name]}")
