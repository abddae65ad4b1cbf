"""Which term an error comes from, of a later tick or of compiling one: nothing of it is on a tick's path."""

from __future__ import annotations

import traceback
import types
from typing import TYPE_CHECKING

import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.core.foreign import functions_of
from tickgraph.core.memory import out_of_memory
from tickgraph.env.actions import ActionTerm
from tickgraph.env.commands import CommandTerm
from tickgraph.env.observations import ObservationTerm
from tickgraph.env.term import Term, said

if TYPE_CHECKING:
    from tickgraph.env.env import Env

_TERMS = (Term, ActionTerm, CommandTerm, ObservationTerm)


def of_term(error: BaseException) -> TickgraphError | None:
    """Return the line that names the term which raised an error: error, function, file and line.

    None where no term was running, where the line says enough already, and for what a device reports: that comes from
    an earlier kernel, whatever runs when it is noticed.
    """
    if isinstance(error, TickgraphError | KeyboardInterrupt | torch.AcceleratorError):
        return None
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for owner in (frame.f_locals.get("self"), frame.f_locals.get("term")):
            path = getattr(owner, "path", None) if isinstance(owner, _TERMS) else None
            if path is not None:
                memory = out_of_memory(error, f"term {path}")  # whoever called says what it was for
                return None if memory is not None else TickgraphError(f"term {path}: {said(error)}")
    return None


def terms_at(env: Env, places: list[tuple[str, int]]) -> str:
    """Return "term rewards/alive", or several, whose code holds the first of these files and lines that any has."""
    owned = [
        (f"{call.manager}/{call.term}", function.__code__)
        for manager in env.managers
        for call in manager.calls()
        for function in functions_of(call.func)
    ]
    for file, line in places:
        found = {path for path, code in owned if code.co_filename == file and line in _lines(code)}
        if found:
            return f"term {' or '.join(sorted(found))}"
    return ""


def _lines(code: types.CodeType) -> range:
    inner = [_lines(part).stop for part in code.co_consts if isinstance(part, types.CodeType)]
    return range(code.co_firstlineno, max([*inner, *(line + 1 for *_, line in code.co_lines() if line)], default=0))
