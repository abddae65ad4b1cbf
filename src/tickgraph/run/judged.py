"""What the judge says of a run's terms: told at its start, and what it means for resuming."""

from __future__ import annotations

from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.held import differing, held_numbers
from tickgraph.core.judge import OUTSIDE_CHECKPOINTS, Blocker
from tickgraph.core.program import CAPTURE_FAILED
from tickgraph.core.quiet import unheard
from tickgraph.env.env import Env
from tickgraph.run.code_change import FILE, Code, changed_code, code_sums
from tickgraph.run.config import Task
from tickgraph.run.motion_change import Motions, changed_motions, motion_sums
from tickgraph.run.panel import tell, warn
from tickgraph.sim.platform import resolve_platform

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
        keep = "keeps" if len(terms) == 1 else "keep"
        warn(f"no checkpoint holds all that {', '.join(terms)} {keep}: a run that is resumed does not repeat this one")
    return found


def _look(env: Env) -> list[Blocker] | None:
    # Mode eager is also for terms that fail where the judge calls them, on shapes alone or with few worlds.
    for host_state_too in (True, False):
        try:
            return env.blockers(host_state_too)
        except Exception:
            continue
    return None


def held(env: Env, task: Task) -> dict[str, Any]:
    """Return what authors' terms and motion files hold at the start, for a checkpoint; asked before the first tick."""
    numbers, motions = _numbers(env), motion_sums(env.cfg)
    return {"device": env.device.type, "terms": numbers, "motions": motions, "code": code_sums(task)}


def _numbers(env: Env) -> dict[str, Any]:
    return held_numbers(call for manager in env.managers for call in manager.calls())


def built_alike(env: Env, now: dict[str, Any]) -> bool:
    """Tell whether terms hold the same numbers each time they are built; warns where they do not.

    Args:
        env: the worlds of the run; two environments of few worlds are built from its configuration.
        now: from `held`; where authors' terms hold nothing, nothing is built.
    """
    if not now["terms"]:
        return True
    terms = []
    try:
        with unheard():
            for _ in range(2):
                with Env(env.cfg, 4, "cpu", resolve_platform("cpu").backend, "eager") as few:
                    terms.append(_numbers(few))
    except (Exception, SystemExit):  # some terms need all worlds, or a GPU: a later process will tell
        return True
    found = differing(*terms)
    for path, name in found:
        warn(
            f"{path} holds other numbers in {name} each time it is built: what is resumed, judged or played is another "
            "task; give the generator that draws them a seed"
        )
    return not found


def same_held(before: dict[str, Any] | None, now: dict[str, Any], outcome: str) -> bool:
    """Tell whether terms and motion files hold what they held when the run began; warns where they do not.

    Args:
        before: from a checkpoint; None of one that does not say. Another device may draw other numbers.
        now: from `held`.
        outcome: what is another task then, such as "what is resumed".
    """
    if before is None:
        return True
    same = _same_motions(before, now["motions"], outcome) & _same_code(before, now["code"], outcome)
    found = differing(before["terms"], now["terms"]) if before["device"] == now["device"] else []
    if FILE in changed_code(before.get("code", {}), now["code"]) and same and not found:
        tell("the task's file has been edited since the run began, which goes on with its own config.yaml's values")
    if found:
        path, name = found[0]
        others = f" (and {', '.join(path for path, _ in found[1:])})" if found[1:] else ""
        warn(
            f"{path} holds other numbers in {name} than when the run began{others}: it draws them while building "
            f"without a seed, or its code has changed; {outcome} is another task"
        )
    return same and not found


def _same_motions(before: dict[str, Any], now: Motions, outcome: str) -> bool:
    lines = changed_motions(before.get("motions", {}), now)  # checkpoints of before have none
    for line in lines:
        warn(f"{line}; {outcome} is another task")
    return not lines


def _same_code(before: dict[str, Any], now: Code, outcome: str) -> bool:
    changed = [path for path in changed_code(before.get("code", {}), now) if path != FILE]  # of before: none
    if changed:
        which = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        warn(f"the code of {which} has been edited since the run began: {outcome} is another task")
    return not changed


def check_held(task: Task, before: dict[str, Any] | None) -> None:
    """Warn where what terms or motion files of a judged task hold is not what they held when its run began."""
    if before is None:
        return
    _same_motions(before, motion_sums(task.env), "what is judged")
    _same_code(before, code_sums(task), "what is judged")
    if not before["terms"]:
        return
    platform = resolve_platform(task.train.device, task.train.backend)
    # Few worlds are quick, but numbers may depend on how many there are.
    for num_envs in (min(4, task.num_envs), task.num_envs):
        try:
            with Env(task.env, num_envs, platform.worlds, platform.backend, "eager", task.train.seed) as env:
                now = held(env, task)
        except TickgraphError:  # whoever plays it says so
            return
        if before["device"] != now["device"] or not differing(before["terms"], now["terms"]):
            return
    same_held({**before, "motions": {}, "code": {}}, now, "what is judged")


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
