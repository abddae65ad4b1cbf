"""What a task consists of, from shapes alone: spaces, terms with weights, and every tensor with its bytes."""

from __future__ import annotations

from typing import Any

import torch

from tickgraph.core.arena import Arena
from tickgraph.core.quiet import unheard
from tickgraph.core.room import check_room, size
from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.explore import Explorer
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.arguments import table
from tickgraph.run.config import Task
from tickgraph.sim.platform import AUTO, Platform, resolve_platform


def describe(task: Task) -> dict[str, Any]:
    """Return what `tickgraph describe` shows; shapes alone are built, no memory is taken.

    Keys: those of `Env.describe`; `algo`, the algorithm, of `algos`, those that the task has settings for; `learner`:
    the learner's and the replay's tensors, with `learner_bytes`.
    """
    backend = resolve_platform("cpu" if task.train.backend == AUTO else AUTO, task.train.backend).backend
    env, arena = _shapes(task, backend)
    value = {"task": task.name, "algo": task.algo, "algos": list(task.algos), **env.describe()}
    value |= {"learner": arena.table(), "learner_bytes": arena.nbytes()}
    env.close()
    return value


def check_gpu(task: Task, platform: Platform) -> None:
    """Refuse a training whose tensors a GPU has no room for, before any is made; the physics' own come on top.

    Raises:
        TickgraphError: there is less left.
    """
    device = torch.device(platform.device)
    if device.type != "cuda":
        return  # of main memory each part is asked for as it is taken
    try:
        with unheard():
            env, arena = _shapes(task, platform.backend)
    except (Exception, SystemExit):  # terms may need values; whatever it is, building says it
        return
    replay = sum(int(row["bytes"]) for row in arena.table() if str(row["name"]).startswith("ring/"))
    parts = {
        counted(task.num_envs, "world"): 0 if platform.bridged else env.arena.nbytes(),
        f"a replay of {task.train.replay_slots} slots": replay,
        "networks": arena.nbytes() - replay,
    }
    what = f"training ({', '.join(f'{name} {size(count)}' for name, count in parts.items() if count)})"
    env.close()
    check_room(sum(parts.values()), device, what)


def _shapes(task: Task, backend: str) -> tuple[Env, Arena]:
    """Build the worlds of a task, and learner and replay in an arena beside them, without any memory."""
    train, n = task.train, task.num_envs
    env, arena = Env(task.env, n, "meta", backend, "eager"), Arena("meta")
    dims, actions = dict(env.observation_manager.dims), env.action_manager.total_dim
    learner = make_learner(train.algo, dims, actions, n, arena, train.seed)
    ring = make_ring(learner, train.replay_slots, n)
    UpdateCycle(learner, ring, train.updates_per_iteration, "eager")
    Explorer(learner, n, train.seed)
    return env, arena


def lines(value: dict[str, Any]) -> list[str]:
    """Return a description as lines for a terminal."""
    rate = 1.0 / value["step_dt"]
    result = [
        f"{value['task']}: {counted(value['num_envs'], 'world')}, control step {value['step_dt']:g} s ({rate:g} Hz), "
        f"physics step {value['physics_dt']:g} s, episodes of {value['max_episode_length']} steps",
        "",
        "observations: " + ", ".join(f"{group} {dim}" for group, dim in value["observations"].items()),
        f"actions: {value['actions']}",
        f"algorithm: {value['algo']}" + (f" (--algo: {', '.join(value['algos'])})" if len(value["algos"]) > 1 else ""),
    ]
    for manager, terms in value["terms"].items():
        if terms:
            result += ["", f"{manager}:", *table(_term_row(term) for term in terms)]
    for name, tensors, total in (
        ("environment", value["arena"], value["arena_bytes"]),
        ("learner and replay", value["learner"], value["learner_bytes"]),
    ):
        rows = [
            (t["name"], "x".join(map(str, t["shape"])) or "1", t["dtype"], size(t["bytes"]), t["why"]) for t in tensors
        ]
        result += ["", f"memory of the {name}: {size(total)}", *table(rows)]
    return result


def _term_row(term: Any) -> tuple[str, ...]:
    if not isinstance(term, dict):
        return (str(term),)
    head = str(term.get("name", ""))
    return (head, ", ".join(f"{key} {value}" for key, value in term.items() if key != "name"))
