"""Names of a compiled model as plain numbers, so that nothing outside sim and robots needs MuJoCo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.robots.entity import InitialStateCfg
from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco

UNLIMITED = 1e10  # stands for "no limit" in ranges; finite, so that arithmetic on ranges stays finite

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SensorIndex:
    """Where a sensor's values are in ``sensordata``, and whether they follow from positions, velocities or forces."""

    name: str
    adr: int
    dim: int
    stage: str  # "pos", "vel" or "acc"; "acc" belongs to the last substep, the others to the new state


@dataclass(frozen=True)
class EntityIndex:
    """One entity of a compiled model. Names are without the entity's prefix; ids are those of the whole model.

    J joints (hinge and slide), B bodies, G geoms, S sites, U actuators, each in the model's order.

    Attributes:
        qpos_adr, dof_adr: (J,) addresses in qpos and qvel.
        body_root_ids: (B,) the topmost body of each body's tree, whose ``subtree_com`` ``cvel`` refers to.
        actuator_joint: (U,) index into ``joint_names``, -1 where the actuator does not drive one of them.
        actuator_kind: (U,) "position", "velocity", "motor" or "other".
        actuator_kp, actuator_kd: (U,) N m/rad and N m s/rad (N/m, N s/m for slides), 0 where there is none.
        actuator_force_range, ctrl_range: (U, 2); +-1e10 where unlimited.
        joint_range: (J, 2) rad or m; +-1e10 where unlimited.
        root_body_id: the entity's first body; ``floating`` if it has a free joint.
        root_qpos_adr, root_dof_adr: of the free joint, -1 for a fixed base.
        default_root_state: (13,) position, quaternion, linear and angular velocity, world frame.
        default_joint_pos, default_joint_vel: (J,).
    """

    name: str
    joint_names: tuple[str, ...]
    joint_ids: Ints
    qpos_adr: Ints
    dof_adr: Ints
    joint_range: Floats
    joint_damping: Floats
    joint_armature: Floats
    body_names: tuple[str, ...]
    body_ids: Ints
    body_root_ids: Ints
    body_mass: Floats
    geom_names: tuple[str, ...]
    geom_ids: Ints
    geom_body: Ints
    site_names: tuple[str, ...]
    site_ids: Ints
    site_body: Ints
    actuator_names: tuple[str, ...]
    actuator_ids: Ints
    actuator_joint: Ints
    actuator_kind: tuple[str, ...]
    actuator_kp: Floats
    actuator_kd: Floats
    actuator_force_range: Floats
    ctrl_range: Floats
    root_body_id: int
    floating: bool
    root_qpos_adr: int
    root_dof_adr: int
    default_root_state: Floats
    default_joint_pos: Floats
    default_joint_vel: Floats

    def find(self, part: str, patterns: str | tuple[str, ...] | list[str], preserve_order: bool = False) -> list[int]:
        """Return indices into ``{part}_names`` of the names that the regular expressions match in full.

        Args:
            part: joint, body, geom, site or actuator.
            patterns: one expression or several; each must match something.
            preserve_order: order by expression, then by model; otherwise by model alone.

        Raises:
            TickgraphError: an expression matches nothing, or is malformed.
        """
        return find_names(getattr(self, f"{part}_names"), patterns, f"{part} of entity {self.name!r}", preserve_order)


def find_names(
    names: tuple[str, ...], patterns: str | tuple[str, ...] | list[str], what: str, preserve_order: bool = False
) -> list[int]:
    """Return the indices of the names that any of the expressions matches in full; see ``EntityIndex.find``."""
    found: list[int] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise TickgraphError(f"{pattern!r} is not a regular expression for a {what}: {error}") from error
        matches = [i for i, name in enumerate(names) if expression.fullmatch(name)]
        if not matches:
            raise TickgraphError(f"no {what} matches {pattern!r}; {nearby(pattern, names) or options(names)}")
        found += [i for i in matches if i not in found]
    return found if preserve_order else sorted(found)


def options(names: tuple[str, ...] | list[str]) -> str:
    """Return "there are a, b, ..." for an error, cut after twelve names."""
    if not names:
        return "there are none"
    return f"there are {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def index_sensors(model: mujoco.MjModel) -> dict[str, SensorIndex]:
    """Return every named sensor of a model.

    Raises:
        TickgraphError: a contact sensor has no force among its data: without it, its values would belong to the new
            state on one backend and to the last substep on another.
    """
    mujoco = load_mujoco()
    stages = {int(mujoco.mjtStage.mjSTAGE_POS): "pos", int(mujoco.mjtStage.mjSTAGE_VEL): "vel"}
    sensors: dict[str, SensorIndex] = {}
    for i in range(model.nsensor):
        name, stage = model.sensor(i).name, stages.get(int(model.sensor_needstage[i]), "acc")
        if model.sensor_type[i] == mujoco.mjtSensor.mjSENS_CONTACT and stage != "acc":
            raise TickgraphError(f"contact sensor {name!r} has no force among its data; add force to its data")
        if name:
            sensors[name] = SensorIndex(name, int(model.sensor_adr[i]), int(model.sensor_dim[i]), stage)
    return sensors


def last_substep_columns(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Return (nsensordata,) bool: the values of sensors of the acceleration stage."""
    columns = np.zeros(model.nsensordata, dtype=bool)
    for adr, dim, stage in zip(model.sensor_adr, model.sensor_dim, model.sensor_needstage, strict=True):
        columns[adr : adr + dim] = stage == load_mujoco().mjtStage.mjSTAGE_ACC
    return columns


def index_entity(model: mujoco.MjModel, name: str, init: InitialStateCfg) -> EntityIndex:
    """Return the index of the entity whose parts are prefixed ``name/`` in a compiled model."""
    mujoco = load_mujoco()
    prefix = f"{name}/"

    def parts(count: int, accessor: object) -> tuple[tuple[str, ...], Ints]:
        pairs = [(accessor(i).name, i) for i in range(count)]
        own = [(full.removeprefix(prefix), i) for full, i in pairs if full.startswith(prefix)]
        return tuple(short for short, _ in own), np.array([i for _, i in own], dtype=np.int64)

    body_names, body_ids = parts(model.nbody, model.body)
    if not len(body_ids):
        raise TickgraphError(f"entity {name!r} has no body; put its geoms and joints into a body")
    all_names, all_ids = parts(model.njnt, model.joint)
    hinge_or_slide = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    scalar = np.isin(model.jnt_type[all_ids], hinge_or_slide)
    joint_names = tuple(joint for joint, keep in zip(all_names, scalar, strict=True) if keep)
    joint_ids = all_ids[scalar]
    qpos_adr = model.jnt_qposadr[joint_ids].astype(np.int64)
    dof_adr = model.jnt_dofadr[joint_ids].astype(np.int64)
    geom_names, geom_ids = parts(model.ngeom, model.geom)
    site_names, site_ids = parts(model.nsite, model.site)
    actuator_names, actuator_ids = parts(model.nu, model.actuator)

    root = int(body_ids[0])
    first = int(model.body_jntadr[root])
    floating = first >= 0 and model.jnt_type[first] == mujoco.mjtJoint.mjJNT_FREE
    root_qpos = int(model.jnt_qposadr[first]) if floating else -1
    pose = model.qpos0[root_qpos : root_qpos + 7] if floating else [*model.body_pos[root], *model.body_quat[root]]
    state = np.array([*pose, *init.lin_vel, *init.ang_vel], dtype=np.float64)
    if floating:
        state[:3] = state[:3] if init.pos is None else init.pos
        state[3:7] = state[3:7] if init.rot is None else _unit(init.rot, name)
    if not np.isfinite(state).all():
        raise TickgraphError(
            f"init_state of entity {name!r} puts its root at {state.tolist()}, expected finite numbers"
        )

    return EntityIndex(
        name=name,
        joint_names=joint_names,
        joint_ids=joint_ids,
        qpos_adr=qpos_adr,
        dof_adr=dof_adr,
        joint_range=_ranges(model.jnt_range[joint_ids], model.jnt_limited[joint_ids]),
        joint_damping=model.dof_damping[dof_adr].astype(np.float64),
        joint_armature=model.dof_armature[dof_adr].astype(np.float64),
        body_names=body_names,
        body_ids=body_ids,
        body_root_ids=model.body_rootid[body_ids].astype(np.int64),
        body_mass=model.body_mass[body_ids].astype(np.float64),
        geom_names=geom_names,
        geom_ids=geom_ids,
        geom_body=model.geom_bodyid[geom_ids].astype(np.int64),
        site_names=site_names,
        site_ids=site_ids,
        site_body=model.site_bodyid[site_ids].astype(np.int64),
        actuator_names=actuator_names,
        actuator_ids=actuator_ids,
        **_actuators(model, actuator_ids, joint_ids),
        root_body_id=root,
        floating=bool(floating),
        root_qpos_adr=root_qpos,
        root_dof_adr=int(model.jnt_dofadr[first]) if floating else -1,
        default_root_state=state,
        default_joint_pos=_values(init.joint_pos, joint_names, model.qpos0[qpos_adr], f"joint of entity {name!r}"),
        default_joint_vel=_values(init.joint_vel, joint_names, np.zeros(len(joint_ids)), f"joint of entity {name!r}"),
    )


def _actuators(model: mujoco.MjModel, ids: Ints, joint_ids: Ints) -> dict[str, object]:
    mujoco = load_mujoco()
    on_joint = model.actuator_trntype[ids] == mujoco.mjtTrn.mjTRN_JOINT
    positions = {int(joint): i for i, joint in enumerate(joint_ids)}
    target = model.actuator_trnid[ids, 0]
    driven = [positions.get(int(j), -1) if ok else -1 for j, ok in zip(target, on_joint, strict=True)]
    gain, bias = model.actuator_gainprm[ids, 0], model.actuator_biasprm[ids]
    fixed = model.actuator_gaintype[ids] == mujoco.mjtGain.mjGAIN_FIXED
    affine = model.actuator_biastype[ids] == mujoco.mjtBias.mjBIAS_AFFINE
    none = model.actuator_biastype[ids] == mujoco.mjtBias.mjBIAS_NONE
    position = fixed & affine & (gain != 0) & (bias[:, 1] == -gain)
    velocity = fixed & affine & (gain != 0) & (bias[:, 1] == 0) & (bias[:, 2] == -gain)
    kinds = np.select([position, velocity, fixed & none], ["position", "velocity", "motor"], "other")
    return {
        "actuator_joint": np.array(driven, dtype=np.int64),
        "actuator_kind": tuple(str(kind) for kind in kinds),
        "actuator_kp": np.where(position, gain, 0.0),
        "actuator_kd": np.where(affine, 0.0 - bias[:, 2], 0.0),
        "actuator_force_range": _ranges(model.actuator_forcerange[ids], model.actuator_forcelimited[ids]),
        "ctrl_range": _ranges(model.actuator_ctrlrange[ids], model.actuator_ctrllimited[ids]),
    }


def _ranges(values: Floats, limited: NDArray) -> Floats:
    return np.where(limited.astype(bool)[:, None], values, [-UNLIMITED, UNLIMITED]).reshape(-1, 2)


def _values(given: dict[str, float], names: tuple[str, ...], default: Floats, what: str) -> Floats:
    values = np.array(default, dtype=np.float64)
    for pattern, value in given.items():
        values[find_names(names, pattern, what)] = value
    return values


def _unit(quat: tuple[float, ...], owner: str) -> Floats:
    value = np.asarray(quat, dtype=np.float64)
    norm = np.linalg.norm(value) if value.shape == (4,) else 0.0
    if not norm > 1e-6:
        raise TickgraphError(f"init_state.rot of entity {owner!r} is {quat}, expected a quaternion w x y z")
    return value / norm
