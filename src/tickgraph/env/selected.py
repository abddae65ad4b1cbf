"""A selector whose names a term never looks at selects nothing: said while an environment is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall
from tickgraph.env.scene import PARTS, SceneEntity


class _Watched(SceneEntity):
    """A selector that notes which parts are read of it."""

    def __getattribute__(self, name: str) -> Any:
        part = name.removesuffix("_ids")
        if part in PARTS:
            object.__getattribute__(self, "read").add(part)
        return object.__getattribute__(self, name)


@contextmanager
def every_selector_read(call: JudgedCall) -> Iterator[None]:
    """Refuse a function that reads none of the parts that a selector among its parameters names.

    Of a class nothing is said: it may have looked at the names while it was built.

    Raises:
        TickgraphError: `SceneEntityCfg("robot", body_names="torso")` for a function of joints, say.
    """
    given = {key: value for key, value in call.params.items() if isinstance(value, SceneEntity)}
    if isinstance(call.func, type) or not isinstance(call.params, dict):
        given = {}
    for key, value in given.items():
        watched = _Watched(**{field.name: getattr(value, field.name) for field in fields(SceneEntity)})
        object.__setattr__(watched, "read", set())
        call.params[key] = watched
    watches = {key: call.params[key] for key in given}
    try:
        yield
    finally:
        call.params.update(given)
    for key, watched in watches.items():
        read = object.__getattribute__(watched, "read")
        named = [part for part in PARTS if not isinstance(getattr(given[key], f"{part}_ids"), slice)]
        if named and not read.intersection(named):
            instead = " and ".join(f"{part}_names" for part in PARTS if part in read) or "the entity's name alone"
            raise TickgraphError(
                f"{key} selects by {named[0]}_names, and {getattr(call.func, '__name__', call.func)} looks at "
                f"{instead}; leave out what it does not look at"
            )
