"""What a controller on the robot must know of a task to feed its policy and to obey it, as plain data."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.env.env import Env
from tickgraph.env.observations import ObservationTerm
from tickgraph.env.scene import PARTS, Entity, SceneEntity
from tickgraph.env.term import label, own_code
from tickgraph.sim.index import UNLIMITED

GROUP = "actor"
MOST_NUMBERS = 10_000


def controller_facts(env: Env) -> dict[str, Any]:
    """Return how observations are made, what actions mean, and the joints and gains of what they drive.

    Keys:
        step_dt, physics_dt: seconds of a control step and of a physics step.
        observations: the terms of group "actor" in their order, each with `start` and `dim` in the vector, `function`,
            `params` (None: none, or unlimited), `selected` (an entity, and names of what a selector chose of it; what
            is not named is all, in the entity's order), `history_length` (frames, oldest first; 0: the newest alone),
            `clip` and, behind it, `scale`. Noise and delay belong to the training.
        actions: the terms in their order, each with `start`, `dim`, `entity` (None: none of the scene's) and what it
            says of itself (`ActionTerm.facts`).
        commands: the terms, each with its configuration.
        entities: by name; joints in the model's order with default positions (rad, m), ranges, and the model's own
            damping and armature; actuators with stiffness (N m/rad), damping (N m s/rad), `ctrl_range`, to which the
            simulation holds their targets, and limits of force. An actuator acts on its joint through its `gear`:
            it is as long as gear times the joint's position, and gear times its force is what the joint gets. What
            damps a joint in the simulation is its own damping and its actuators' together.
    """
    return {
        "step_dt": env.step_dt,
        "physics_dt": env.physics_dt,
        "observations": list(_observations(env)),
        "actions": list(_actions(env)),
        "commands": [
            {"name": name, "function": label(cfg), **_fields(cfg, ("name", "function"))}
            for name, cfg in env.command_manager.cfgs.items()
            if cfg is not None
        ],
        "entities": {name: _entity(env, entity) for name, entity in env.scene.entities.items()},
    }


def flat_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of `controller_facts` that mjlab's exporter writes too, as comma-separated text, by its names.

    They are of the entity that the first action drives: a stiffness and a damping for each of its joints, those of its
    actuators at the joint, gear included, together; the damping is also the joint's own: models such as the Go2's have
    all of it in the joint, and on the robot it is the motor that must damp. A stiffness is 0 where no position actuator
    drives the joint. A scale is 1 where an action does not say its own.
    """
    scales = [scale for action in facts["actions"] for scale in action.get("scale", [1.0] * action["dim"])]
    flat = {
        "command_names": _text(command["name"] for command in facts["commands"]),
        "observation_names": _text(term["name"] for term in facts["observations"]),
        "action_scale": _text(scales),
    }
    name = facts["actions"][0]["entity"]
    if name is None:
        return flat
    entity = facts["entities"][name]
    stiffness = dict.fromkeys(entity["joint_names"], 0.0)
    damping = dict(zip(entity["joint_names"], entity["joint_damping"], strict=True))
    for actuator in entity["actuators"]:
        if (joint := actuator["joint"]) is not None:
            stiffness[joint] += actuator["gear"] ** 2 * actuator["stiffness"]
            damping[joint] += actuator["gear"] ** 2 * actuator["damping"]
    return flat | {
        "joint_names": _text(entity["joint_names"]),
        "joint_stiffness": _text(stiffness.values()),
        "joint_damping": _text(damping.values()),
        "default_joint_pos": _text(entity["default_joint_pos"]),
    }


def _text(values: Any) -> str:
    return ",".join(f"{value:.7g}" if isinstance(value, float) else str(value) for value in values)


def _observations(env: Env) -> Iterator[dict[str, Any]]:
    start = 0
    for name, term in env.observation_manager.groups[GROUP].items():
        cfg, scale, given = term.cfg, term.scale, _given(term)
        yield {
            "name": name,
            "function": label(cfg),
            "start": start,
            "dim": term.dim,
            "history_length": cfg.history_length,
            "clip": None if cfg.clip is None else list(cfg.clip),
            "scale": scale.tolist() if isinstance(scale, Tensor) else scale,
            "params": {key: _plain(value) for key, value in given.items() if not isinstance(value, SceneEntity)},
            "selected": {key: _selected(env, value) for key, value in given.items() if isinstance(value, SceneEntity)},
        }
        start += term.dim


def _given(term: ObservationTerm) -> dict[str, Any]:
    """Return what a term's function is given by name: its defaults, what a partial has bound, and its parameters."""
    func, bound = term.cfg.func, dict[str, Any]()
    while isinstance(func, functools.partial):
        func, bound = func.func, func.keywords | bound
    try:
        known = inspect.signature(func.__call__ if inspect.isclass(func) else func).parameters
    except (TypeError, ValueError):  # of what is not written in Python
        known = {}
    values = {key: p.default for key, p in known.items() if p.default is not p.empty} | bound | term.term.params
    return {key: value for key, value in values.items() if key != "rng"}


def _selected(env: Env, chosen: SceneEntity) -> dict[str, Any]:
    result: dict[str, Any] = {"entity": chosen.name}
    for part in PARTS:
        ids = getattr(chosen, f"{part}_ids")
        if isinstance(ids, Tensor):
            names = getattr(env.scene.entities[chosen.name].index, f"{part}_names")
            result[f"{part}_names"] = [names[i] for i in ids.tolist()]
    return result


def _actions(env: Env) -> Iterator[dict[str, Any]]:
    manager, start = env.action_manager, 0
    for name, term in manager.terms.items():
        entity = manager.cfgs[name].entity_name
        head = {"name": name, "function": type(term).__name__, "start": start, "dim": manager.dims[name]}
        head["entity"] = entity if entity in env.scene.entities else None
        yield {**head, **_said(term, f"term actions/{name}: facts()", head)}
        start += manager.dims[name]


def _said(term: Any, what: str, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an action term says of itself.

    Raises:
        TickgraphError: its method fails, or returns no dictionary, a key of `head`, or a scale that is not one number
            a column.
    """
    if not hasattr(term, "facts"):  # it needs no base class
        return {}
    with own_code(what):
        said = _plain(term.facts())
    if not isinstance(said, dict):
        raise TickgraphError(f"{what} returned {type(said).__name__}, expected a dictionary of plain data")
    if taken := [key for key in said if key in head]:
        raise TickgraphError(f"{what} returned {taken[0]!r}, which is said of every action; choose another name")
    scale, columns = said.get("scale", [1.0] * head["dim"]), head["dim"]
    if not (isinstance(scale, list) and len(scale) == columns and all(map(_is_number, scale))):
        wanted = f"a list of {counted(columns, 'number')}, one a column"
        raise TickgraphError(f"{what} returned scale {scale!r}, expected {wanted}")
    return said


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _entity(env: Env, entity: Entity) -> dict[str, Any]:
    index = entity.index
    gear = env.sim.scene.model_field("actuator_gear")[index.actuator_ids, 0]
    actuators = [
        {
            "name": name,
            "joint": index.joint_names[joint] if joint >= 0 else None,
            "kind": kind,
            "stiffness": float(kp),
            "damping": float(kd),
            "gear": float(ratio),
            "ctrl_range": _limits(ctrl),
            "force_range": _limits(force),
        }
        for name, joint, kind, kp, kd, ratio, ctrl, force in zip(
            *(index.actuator_names, index.actuator_joint.tolist(), index.actuator_kind),
            *(index.actuator_kp, index.actuator_kd, gear),
            *(index.ctrl_range.tolist(), index.actuator_force_range.tolist()),
            strict=True,
        )
    ]
    return {
        "floating": index.floating,
        "joint_names": list(index.joint_names),
        "default_joint_pos": index.default_joint_pos.tolist(),
        "joint_range": [_limits(pair) for pair in index.joint_range.tolist()],
        "joint_damping": index.joint_damping.tolist(),
        "joint_armature": index.joint_armature.tolist(),
        "actuators": actuators,
    }


def _limits(pair: Any) -> list[float] | None:
    """Return a range, None where there is none."""
    low, high = map(float, pair)
    return None if low <= -UNLIMITED and high >= UNLIMITED else [low, high]


def _fields(node: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [field.name for field in fields(node) if field.name not in ("class_type", *without)]
    return {name: _plain(getattr(node, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: functions, classes and files of this machine by their name, arrays by numbers.

    A large array's numbers are left out.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        text = str(value)
        return Path(text).name or text if os.path.isabs(text) and os.path.exists(text) else text
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(part) for part in value), key=str)
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        count = value.numel() if isinstance(value, Tensor) else value.size
        return value.tolist() if count <= MOST_NUMBERS else f"{count} numbers"
    while isinstance(value, functools.partial):
        value = value.func
    return str(getattr(value, "__name__", type(value).__name__))
