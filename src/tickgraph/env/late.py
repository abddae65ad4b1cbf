"""Which term an error of a later tick comes from, read from the traceback: nothing of it is on a tick's path."""

from __future__ import annotations

import traceback

import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.core.memory import out_of_memory
from tickgraph.env.actions import ActionTerm
from tickgraph.env.commands import CommandTerm
from tickgraph.env.observations import ObservationTerm
from tickgraph.env.term import Term, said

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
