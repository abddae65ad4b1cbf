"""Sensors: from a declaration by names to MuJoCo's sensor with its object, reference and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.robots.mj import load_mujoco
from tickgraph.sim.index import options
from tickgraph.sim.scene import SceneCfg, SensorCfg
from tickgraph.sim.terrain import TERRAIN_BODY

if TYPE_CHECKING:
    import mujoco


def add_sensor(spec: mujoco.MjSpec, cfg: SensorCfg, scene: SceneCfg) -> None:
    """Add a declared sensor to a spec that has the entities and the terrain already; raises for unknown names."""
    mujoco = load_mujoco()
    sensor = spec.add_sensor(name=cfg.name, type=getattr(mujoco.mjtSensor, f"mjSENS_{cfg.kind.upper()}"))
    obj = _target(spec, cfg, cfg.objtype, cfg.obj, cfg.entity, scene)
    ref = None if cfg.ref is None else _target(spec, cfg, cfg.reftype, cfg.ref, cfg.ref_entity or cfg.entity, scene)
    if cfg.kind == "contact":
        # MuJoCo reports the force of the first party on the second, so that the thing measured goes second.
        obj, ref = ref, obj
        fields = (mujoco.mjtConDataField.mjCONDATA_FOUND, mujoco.mjtConDataField.mjCONDATA_FORCE)
        net_force, slots = 3, 1
        sensor.intprm[:3] = [sum(1 << int(item) for item in fields), net_force, slots]
    if obj is not None:
        sensor.objtype, sensor.objname = obj
    if ref is not None:
        sensor.reftype, sensor.refname = ref


def _target(
    spec: mujoco.MjSpec, sensor: SensorCfg, kind: str, name: str, owner: str, scene: SceneCfg
) -> tuple[int, str]:
    """Return the MuJoCo object type and full name of a sensor's obj or ref."""
    mujoco = load_mujoco()
    types = {
        "site": mujoco.mjtObj.mjOBJ_SITE,
        # Contacts belong to the tree's bodies as such; for frames, MuJoCo's "body" means the inertial frame.
        "body": mujoco.mjtObj.mjOBJ_BODY,
        "xbody": mujoco.mjtObj.mjOBJ_BODY if sensor.kind == "contact" else mujoco.mjtObj.mjOBJ_XBODY,
        "geom": mujoco.mjtObj.mjOBJ_GEOM,
        "subtree": mujoco.mjtObj.mjOBJ_XBODY,
    }
    if name == TERRAIN_BODY and sensor.ref == name:
        if scene.terrain is None:
            raise TickgraphError(f"sensor {sensor.name!r} refers to the terrain, but SceneCfg.terrain is None")
        return mujoco.mjtObj.mjOBJ_BODY, TERRAIN_BODY
    if name == "world":
        return (types["xbody"] if kind != "body" else types["body"]), name
    lists = {"site": spec.sites, "geom": spec.geoms}
    names = [item.name for item in lists.get(kind, spec.bodies)]
    full = f"{owner}/{name}"
    if full not in names:
        own = [item.removeprefix(f"{owner}/") for item in names if item.startswith(f"{owner}/")]
        hint = nearby(name, own) or options(own)
        raise TickgraphError(f"sensor {sensor.name!r}: entity {owner!r} has no {kind} {name!r}; {hint}")
    return types[kind], full
