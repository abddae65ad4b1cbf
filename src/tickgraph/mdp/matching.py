"""Settings by name: a number for all, or numbers by regular expression, become one value per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import SceneEntityCfg
from tickgraph.sim.index import EntityIndex, find_names

T = TypeVar("T")


def match_values(given: T | Mapping[str, T], names: Sequence[str], what: str, default: T | None = None) -> list[T]:
    """Return one value per name.

    Args:
        given: one value for every name, or values by regular expression; an expression must match a whole name, and a
            name must not be matched by two of them.
        names: the names, in order.
        what: what the values are, for errors, such as "actions/joint_pos: scale by joint".
        default: value of names that no expression matches.

    Raises:
        TickgraphError: an expression matches nothing, a name is matched twice, or not at all without a default.
    """
    if not isinstance(given, Mapping):
        return [given] * len(names)
    owner: dict[int, str] = {}
    for pattern in given:
        try:
            matched = find_names(tuple(names), pattern, "name")
        except TickgraphError as error:
            raise TickgraphError(f"{what}: {error}") from error
        for i in matched:
            if i in owner:
                raise TickgraphError(
                    f"{what}: {names[i]!r} is matched by {owner[i]!r} and by {pattern!r}; keep one of them"
                )
            owner[i] = pattern
    missing = [name for i, name in enumerate(names) if i not in owner]
    if missing and default is None:
        raise TickgraphError(f"{what}: no expression matches {', '.join(missing[:6])}; add one, such as '.*'")
    return [given[owner[i]] if i in owner else default for i in range(len(names))]


def find_actuators(index: EntityIndex, asset_cfg: SceneEntityCfg) -> list[int]:
    """Return which actuators a selector means: those that it names, or those that drive the joints that it names.

    With both, those of the named actuators that drive one of the named joints; with neither, all.
    """
    chosen = index.find("actuator", asset_cfg.actuator_names or ".*")
    if asset_cfg.joint_names is None:
        return chosen
    joints = set(index.find("joint", asset_cfg.joint_names))
    driving = [a for a in chosen if int(index.actuator_joint[a]) in joints]
    if not driving:
        raise TickgraphError(
            f"no actuator of entity {index.name!r} drives a joint that {asset_cfg.joint_names!r} matches; select others"
        )
    return driving
