"""What a run's manifest says it was trained with, against what lies in its folder now: edited settings, lost rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tickgraph.run import manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import iter_rows
from tickgraph.run.settings import flat_config, parse_config, read_config


def edits(run: RunFolder) -> dict[str, tuple[Any, Any]] | None:
    """Return {path: (value now, value trained with)} of what differs in config.yaml; None where that is not known.

    Raises:
        TickgraphError: the manifest, or config.yaml, is damaged.
    """
    text = manifest.read_manifest(run).get("config") if run.manifest.exists() else None
    if text is None:
        return None
    was, now = flat_config(parse_config(text, run.manifest)), flat_config(read_config(run.config))
    paths = [path for path in {**now, **was} if _differ(now.get(path), was.get(path))]
    return {path: (now.get(path), was.get(path)) for path in paths}


def told(values: dict[str, tuple[Any, Any]], shown: int = 3) -> str:
    """Return edits as words: what each is and was."""
    words = [f"{path} is {now!r}, was {was!r}" for path, (now, was) in values.items()]
    more = [f"and {len(words) - shown} more"] if len(words) > shown else []
    return "; ".join([*words[:shown], *more])


def lost_rows(run: RunFolder, sessions: Sequence[Any], iteration: int) -> list[tuple[int, int]]:
    """Return the first and the last iteration of each stretch of rows that the log up to `iteration` has lost.

    Args:
        run: the run's folder.
        sessions: of the manifest; parts from before `log_interval` was kept in them are not judged.
        iteration: of the checkpoint that the run goes on from.
    """
    there = {row["iteration"] for row in iter_rows(run.metrics)} if run.metrics.exists() else set()
    begun = [session.get("from_iteration") if isinstance(session, dict) else None for session in sessions]
    written: list[int] = []
    for number, (start, session) in enumerate(zip(begun, sessions, strict=True)):
        every = session.get("log_interval") if isinstance(session, dict) else None
        if not isinstance(start, int) or not isinstance(every, int) or every < 1:
            continue
        # What came after the checkpoint that a later session went on from was dropped then.
        end = min([iteration, *(later for later in begun[number + 1 :] if isinstance(later, int))])
        written += range(start - start % every + every, end + 1, every)
    stretches = [(lost, list(group)) for lost, group in groupby(written, lambda number: number not in there)]
    return [(group[0], group[-1]) for lost, group in stretches if lost]


def _differ(a: Any, b: Any) -> bool:
    return a != b and repr(a) != repr(b)  # NaN is no edit
