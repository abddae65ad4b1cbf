"""What the judge says of a run's terms: told at its start, and what it means for resuming."""

from __future__ import annotations

from tickgraph.core.judge import OUTSIDE_CHECKPOINTS, Blocker
from tickgraph.core.program import CAPTURE_FAILED
from tickgraph.env.env import Env
from tickgraph.run.panel import warn

SHOWN = 10  # blockers that are worth a line each


def judge_run(env: Env) -> list[Blocker] | None:
    """Return the blockers of a run's terms, None where they cannot be judged.

    Warns of them in mode eager, which they do not keep from running.
    """
    found = env.known_blockers
    if found is None:
        found = _look(env)
        if found is None:
            return None
        for blocker in found[:SHOWN]:
            warn(f"mode eager runs it, but {blocker}")
        if len(found) > SHOWN:
            warn(f"and {len(found) - SHOWN} more blockers: see `tickgraph check`")
    keeping = [blocker for blocker in found if blocker.kind in OUTSIDE_CHECKPOINTS]
    terms = sorted({f"{blocker.manager}/{blocker.term}" for blocker in keeping})
    if terms:
        warn(f"no checkpoint holds all that {', '.join(terms)} keep: a run that is resumed does not repeat this one")
    return found


def _look(env: Env) -> list[Blocker] | None:
    # Mode eager is also for terms that fail where the judge calls them, on shapes alone or with few worlds.
    for host_state_too in (True, False):
        try:
            return env.blockers(host_state_too)
        except Exception:
            continue
    return None


def exact_resume(env: Env, blockers: list[Blocker] | None, replay_is_saved: bool) -> bool | str:
    """Return True where a resumed run repeats every bit, False, or what keeps it from that.

    Args:
        env: the worlds of the run.
        blockers: from `judge_run`.
        replay_is_saved: the replay is part of each checkpoint.
    """
    if not replay_is_saved:
        return False
    if blockers is None:
        return "not known: the terms cannot be judged"
    if any(blocker.kind in OUTSIDE_CHECKPOINTS for blocker in blockers):
        return False
    if blockers:
        return "not known: what a term does behind its first blocker is not judged"
    reasons = [str(report["disable_reason"]) for report in env.execution_report().values()]
    if any(CAPTURE_FAILED in reason for reason in reasons):
        return "not known: what a term that does not compile does on the host is not judged"
    return True if "exact_resume" in env.sim.capabilities else "up to the physics engine"
