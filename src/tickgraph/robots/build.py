"""Build an MjSpec from a robot description of ours (JSON): kinematic tree, inertias, primitives, actuators."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco


def read_description(filename: str) -> dict[str, Any]:
    """Return a description that ships with this package."""
    return json.loads(resources.files("tickgraph.robots").joinpath(filename).read_text(encoding="utf-8"))


def build_spec(name: str, description: dict[str, Any]) -> mujoco.MjSpec:
    """Return the robot without look and contact parameters other than those of its description.

    Bodies, joints, collision primitives (named, invisible by group 3) and sites keep their names; actuators drive
    joints by name. A range of [0, 0] means unlimited.
    """
    mujoco = load_mujoco()
    spec = mujoco.MjSpec()
    spec.modelname = name
    spec.compiler.degree = False
    bodies = {"world": spec.worldbody}
    for item in description["bodies"]:
        body = bodies[item["parent"]].add_body(name=item["name"], pos=item["pos"], quat=item["quat"])
        bodies[item["name"]] = body
        inertial = item["inertial"]
        body.explicitinertial = True
        body.mass, body.ipos, body.iquat = inertial["mass"], inertial["pos"], inertial["quat"]
        body.inertia = inertial["diaginertia"]
        for joint in item["joints"]:
            _add_joint(body, joint, name)
        for geom in item["collision"]:
            body.add_geom(
                name=geom["name"],
                type=getattr(mujoco.mjtGeom, f"mjGEOM_{geom['type'].upper()}"),
                size=geom["size"],
                pos=geom["pos"],
                quat=geom["quat"],
                friction=geom["friction"],
                condim=geom["condim"],
                group=3,
            )
        for site in item["sites"]:
            body.add_site(name=site["name"], pos=site["pos"], quat=site["quat"], group=5)
    for actuator in description["actuators"]:
        _add_actuator(spec, actuator)
    return spec


def _add_joint(body: mujoco.MjsBody, joint: dict[str, Any], robot: str) -> None:
    mujoco = load_mujoco()
    if joint["type"] == "free":
        body.add_freejoint(name=joint["name"] or f"{robot}_root")
        return
    made = body.add_joint(
        name=joint["name"],
        type=getattr(mujoco.mjtJoint, f"mjJNT_{joint['type'].upper()}"),
        axis=joint["axis"],
        pos=joint["pos"],
        range=joint["range"],
        armature=joint["armature"],
        frictionloss=joint["frictionloss"],
    )
    made.damping[0] = joint["damping"]
    made.limited = _limited(joint["range"])
    made.actfrcrange = joint["actuatorfrcrange"]
    made.actfrclimited = _limited(joint["actuatorfrcrange"])


def _add_actuator(spec: mujoco.MjSpec, actuator: dict[str, Any]) -> None:
    mujoco = load_mujoco()
    made = spec.add_actuator(
        name=actuator["name"],
        trntype=mujoco.mjtTrn.mjTRN_JOINT,
        target=actuator["joint"],
        gaintype=mujoco.mjtGain.mjGAIN_FIXED,
        biastype=mujoco.mjtBias.mjBIAS_AFFINE,
        ctrlrange=actuator["ctrlrange"],
        forcerange=actuator["forcerange"],
    )
    made.gainprm[:3] = actuator["gainprm"]
    made.biasprm[:3] = actuator["biasprm"]
    made.ctrllimited = _limited(actuator["ctrlrange"])
    made.forcelimited = _limited(actuator["forcerange"])


def _limited(limits: list[float]) -> int:
    mujoco = load_mujoco()
    unlimited = limits[0] == 0.0 and limits[1] == 0.0
    return mujoco.mjtLimited.mjLIMITED_FALSE if unlimited else mujoco.mjtLimited.mjLIMITED_TRUE
