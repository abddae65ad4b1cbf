"""Errors that a user can act on: one line each, saying what was given, what was expected and what to do."""

import difflib
from collections.abc import Iterable


class TickgraphError(ValueError):
    """Base of every error that is the user's to fix; the command line prints its text without a traceback."""


class ExecutionError(TickgraphError):
    """An execution mode that was asked for by name cannot be had; the text lists every reason with its kind."""


def nearby(name: str, options: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the options that look like `name`, whatever its case, or "" when none does."""
    by_lower = {str(option).lower(): str(option) for option in options}
    found = difflib.get_close_matches(str(name).lower(), list(by_lower), n=3, cutoff=0.6)
    matches = [by_lower[match] for match in found]
    return f"did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


def lacking(error: BaseException) -> str:
    """Return "; did you mean 'x'?" where an object of this package was asked for what it has not, else ""."""
    owner = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not type(owner).__module__.startswith("tickgraph."):
        return ""
    known = [name for name in dir(owner) if not name.startswith("_")]
    hint = nearby(error.name or "", known) or "docs/terms.md says what there is"
    return f"; {hint}"
