"""What would keep a task from being compiled or captured, beyond what a dry run of its terms shows."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import Blocker, JudgedCall, changed_host_state, host_state, refused_calls
from tickgraph.env.term import BuildError
from tickgraph.sim.platform import resolve_platform

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def build_blocker(error: BuildError) -> Blocker:
    """Say which term cannot be built without values; the judge's environment has shapes alone."""
    file, line = _place(error.cls)
    step = error.__cause__.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno
        step = step.tb_next
    reason = f"{error}; while building, read numbers from cfg or from an entity's index, not from tensors"
    return Blocker(error.manager, error.term, file, line, reason, "error")


def blockers_in_use(env: Env, found: list[Blocker]) -> list[Blocker]:
    """Return what only a real environment of few worlds shows, beside the blockers of terms that are found already."""
    try:
        few = type(env)(env.cfg, 4, "cpu", resolve_platform("cpu").backend, "eager")
    except TickgraphError:
        if found:  # first things first
            return []
        raise
    known = {(blocker.manager, blocker.term) for blocker in found}
    calls = [call for manager in few.managers for call in manager.calls()]
    more = refused_calls(call for call in calls if (call.manager, call.term) not in known)
    if not found and not more:
        more = host_state_blockers(few)
    few.close()
    return more


def host_state_blockers(env: Env) -> list[Blocker]:
    """Play three real ticks; a Python attribute that changes after the first is host state."""
    owners: dict[int, tuple[Any, JudgedCall]] = {}
    for call in (call for manager in env.managers for call in manager.calls()):
        for owner in (*call.owners, call.func):
            if owner is not env:
                owners.setdefault(id(owner), (owner, call))
    objects = [owner for owner, _ in owners.values()]
    env.tick()
    before = host_state(objects)
    env.tick()
    env.tick()
    found = []
    for owner, attribute in changed_host_state(before, objects):
        call = owners[id(owner)][1]
        reason = f"changes {attribute} between ticks; keep state in an arena tensor"
        found.append(Blocker(call.manager, call.term, *_place(call.func), reason, "host state"))
    return found


def _place(func: Any) -> tuple[str, int]:
    """Return file and line of a function or class."""
    func = inspect.unwrap(func.func if isinstance(func, functools.partial) else func)
    try:
        return inspect.getsourcefile(func) or "<unknown>", inspect.getsourcelines(func)[1]
    except (TypeError, OSError):
        return "<unknown>", 0
