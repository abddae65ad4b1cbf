"""Compile a scene: entities, terrain, sensors and solver become one MjModel with an index of names."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_tree
from tickgraph.robots.mj import load_mujoco, logger
from tickgraph.sim.index import (
    EntityIndex,
    SensorIndex,
    index_entity,
    index_sensors,
    last_substep_columns,
    options,
)
from tickgraph.sim.mjcf import load_spec, one_line
from tickgraph.sim.scene import EntityCfg, SceneCfg, SolverCfg
from tickgraph.sim.sensors import add_sensor
from tickgraph.sim.terrain import add_terrain

if TYPE_CHECKING:
    import mujoco

# Below this many degrees of freedom MuJoCo's automatic choice is the dense Jacobian, the path that we tested.
_DENSE_BELOW_NV = 60
_WORLD_OPTIONS = ("gravity", "wind", "magnetic", "density", "viscosity", "disableflags", "enableflags")


class Scene:
    """A compiled scene: the model that every world runs, and where everything in it is.

    Attributes:
        cfg: the declaration.
        mjmodel: the ``mujoco.MjModel``; only sim and robots may use it.
        default_qpos, default_qvel: (nq,), (nv,) float64, initial state of all entities.
        last_substep_columns: (nsensordata,) bool, values that belong to the last substep, not to the new state.
    """

    def __init__(self, cfg: SceneCfg, mjmodel: mujoco.MjModel) -> None:
        self.cfg = cfg
        self.mjmodel = mjmodel
        self._entities = {name: index_entity(mjmodel, name, entity.init_state) for name, entity in cfg.entities.items()}
        self._sensors = index_sensors(mjmodel)
        self.default_qpos, self.default_qvel = self._initial_state()
        self.last_substep_columns = last_substep_columns(mjmodel)

    @property
    def timestep(self) -> float:
        """Physics step in seconds."""
        return float(self.mjmodel.opt.timestep)

    @property
    def nq(self) -> int:
        """Numbers in qpos."""
        return int(self.mjmodel.nq)

    @property
    def nv(self) -> int:
        """Degrees of freedom."""
        return int(self.mjmodel.nv)

    @property
    def nu(self) -> int:
        """Controls."""
        return int(self.mjmodel.nu)

    @property
    def gravity(self) -> NDArray[np.float64]:
        """(3,) m/s^2."""
        return np.array(self.mjmodel.opt.gravity)

    @property
    def entity_names(self) -> tuple[str, ...]:
        """Names of the entities."""
        return tuple(self._entities)

    @property
    def sensor_names(self) -> tuple[str, ...]:
        """Names of all sensors; those that an entity's own model brings are prefixed, as in ``robot/gyro``."""
        return tuple(self._sensors)

    def entity(self, name: str) -> EntityIndex:
        """Return the index of an entity; raises TickgraphError for an unknown name."""
        if name not in self._entities:
            hint = nearby(name, self._entities) or options(self.entity_names)
            raise TickgraphError(f"the scene has no entity {name!r}; {hint}")
        return self._entities[name]

    def sensor(self, name: str) -> SensorIndex:
        """Return where a sensor's values are; raises TickgraphError for an unknown name."""
        if name not in self._sensors:
            hint = nearby(name, self._sensors) or options(self.sensor_names)
            raise TickgraphError(f"the scene has no sensor {name!r}; {hint}")
        return self._sensors[name]

    @property
    def view_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape per world of every field that a backend keeps fresh."""
        m = self.mjmodel
        return {
            "qpos": (m.nq,),
            "qvel": (m.nv,),
            "ctrl": (m.nu,),
            "xpos": (m.nbody, 3),
            "xquat": (m.nbody, 4),
            "xipos": (m.nbody, 3),
            "cvel": (m.nbody, 6),
            "subtree_com": (m.nbody, 3),
            "site_xpos": (m.nsite, 3),
            "site_xmat": (m.nsite, 3, 3),
            "geom_xpos": (m.ngeom, 3),
            "geom_xmat": (m.ngeom, 3, 3),
            "qacc": (m.nv,),
            "actuator_force": (m.nu,),
            "sensordata": (m.nsensordata,),
        }

    def model_field(self, name: str) -> NDArray[np.float64]:
        """Return a copy of a model field of real numbers that may differ between worlds, e.g. body_mass, opt.gravity.

        Raises:
            TickgraphError: the model has no such field, or it holds whole numbers.
        """
        load_mujoco()
        from mujoco.batch import MODEL_FIELDS

        if name not in MODEL_FIELDS:
            hint = nearby(name, MODEL_FIELDS) or "see MjModel's fields, e.g. body_mass, geom_friction, opt.gravity"
            raise TickgraphError(f"there is no per-world model field {name!r}; {hint}")
        owner = self.mjmodel.opt if name.startswith("opt.") else self.mjmodel
        value = np.array(getattr(owner, name.removeprefix("opt.")))
        if value.dtype.kind != "f":
            raise TickgraphError(f"model field {name!r} holds whole numbers, which cannot differ between worlds here")
        return value.astype(np.float64)

    def _initial_state(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        qpos, qvel = np.array(self.mjmodel.qpos0), np.zeros(self.nv)
        for entity in self._entities.values():
            qpos[entity.qpos_adr], qvel[entity.dof_adr] = entity.default_joint_pos, entity.default_joint_vel
            if entity.floating:
                root = entity.default_root_state
                qpos[entity.root_qpos_adr : entity.root_qpos_adr + 7] = root[:7]
                rotation = np.zeros(9)
                load_mujoco().mju_quat2Mat(rotation, root[3:7])
                qvel[entity.root_dof_adr : entity.root_dof_adr + 3] = root[7:10]
                # A free joint's velocity is linear in the world and angular in the body frame.
                qvel[entity.root_dof_adr + 3 : entity.root_dof_adr + 6] = rotation.reshape(3, 3).T @ root[10:]
        return qpos, qvel


def build_scene(cfg: SceneCfg) -> Scene:
    """Compile a scene.

    Raises:
        TickgraphError: a model cannot be read, a name does not exist, the models disagree on gravity or the like, or
            MuJoCo refuses the result; always one line.
    """
    model = compile_model(cfg)
    if model.nv < _DENSE_BELOW_NV and load_mujoco().mj_isSparse(model):
        raise TickgraphError(
            f"the model has {model.nv} degrees of freedom but a sparse Jacobian; leave option/jacobian on auto"
        )
    return Scene(cfg, model)


def compile_model(cfg: SceneCfg, look: bool = False) -> mujoco.MjModel:
    """Return the model of a scene; with ``look``, with the entities' looks, for pictures. Raises as `build_scene`."""
    check_tree(cfg, "scene")
    mujoco = load_mujoco()
    if not cfg.entities:
        raise TickgraphError("the scene has no entities; give SceneCfg.entities at least one")
    spec = mujoco.MjSpec()
    spec.modelname = "scene"
    specs = {name: load_spec(entity.model, name) for name, entity in cfg.entities.items()}
    _world_options(spec, specs, cfg)
    _solver(spec, cfg.solver, cfg.timestep)
    _sky_and_light(spec)
    if cfg.terrain is not None:
        add_terrain(spec, cfg.terrain)
    for name, entity in cfg.entities.items():
        if look and entity.look is not None:
            entity.look(specs[name])
        _attach(spec, name, entity, specs[name])
    names = [sensor.name for sensor in cfg.sensors]
    for sensor in cfg.sensors:
        if names.count(sensor.name) > 1:
            raise TickgraphError(f"there are {names.count(sensor.name)} sensors named {sensor.name!r}; rename one")
        add_sensor(spec, sensor, cfg)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = spec.compile()
        except ValueError as error:
            raise TickgraphError(f"MuJoCo refuses the scene: {one_line(error)}") from error
    for item in caught:
        # That the scene's options win over those of an entity's model is what EntityCfg says.
        level = logging.DEBUG if "Attach conflict" in str(item.message) else logging.WARNING
        logger.log(level, "MuJoCo: %s", one_line(item.message))
    return model


def _world_options(spec: mujoco.MjSpec, specs: dict[str, mujoco.MjSpec], cfg: SceneCfg) -> None:
    """Take what belongs to the world rather than to the solver from the entities' models, which must agree."""
    first, *others = specs
    for option in _WORLD_OPTIONS:
        if option == "gravity" and cfg.gravity is not None:
            spec.option.gravity = list(cfg.gravity)
            continue
        value = np.array(getattr(specs[first].option, option))
        for other in others:
            theirs = np.array(getattr(specs[other].option, option))
            if not np.array_equal(value, theirs):
                advice = "set SceneCfg.gravity" if option == "gravity" else "make the models' <option> agree"
                raise TickgraphError(
                    f"entity {first!r} has {option} {value.tolist()}, entity {other!r} {theirs.tolist()}; {advice}"
                )
        setattr(spec.option, option, value.tolist())
    # Autoreset would hide a divergence: MuJoCo would silently restart the world at its reference pose.
    spec.option.disableflags |= int(load_mujoco().mjtDisableBit.mjDSBL_AUTORESET)


def _solver(spec: mujoco.MjSpec, cfg: SolverCfg, timestep: float) -> None:
    mujoco = load_mujoco()
    option = spec.option
    option.timestep = timestep
    enums = {
        "integrator": (mujoco.mjtIntegrator, "mjINT_"),
        "solver": (mujoco.mjtSolver, "mjSOL_"),
        "cone": (mujoco.mjtCone, "mjCONE_"),
    }
    for name, (enum, prefix) in enums.items():
        members = {key.removeprefix(prefix).lower(): member for key, member in enum.__members__.items()}
        setattr(option, name, members[getattr(cfg, name)])
    for name in ("iterations", "ls_iterations", "tolerance", "ls_tolerance", "ccd_iterations", "impratio"):
        setattr(option, name, getattr(cfg, name))


def _sky_and_light(spec: mujoco.MjSpec) -> None:
    """Sky, light and largest size of pictures; no effect on physics."""
    mujoco = load_mujoco()
    glob = spec.visual.global_
    glob.offwidth, glob.offheight = 1920, 1080
    glob.azimuth, glob.elevation = 140.0, -18.0
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    spec.visual.headlight.diffuse = [0.45, 0.45, 0.45]
    spec.visual.headlight.specular = [0.1, 0.1, 0.1]
    spec.visual.quality.shadowsize = 1024
    spec.visual.map.shadowclip = 0.8
    spec.visual.rgba.haze = [0.70, 0.78, 0.86, 1.0]
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.70, 0.78, 0.86],
        rgb2=[0.35, 0.48, 0.62],
        width=256,
        height=1536,
    )
    spec.worldbody.add_light(
        name="sun",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=[0, 0, 5],
        dir=[0, 0, -1],  # straight down: a slanting light makes stripes on the plane
        diffuse=[0.55, 0.55, 0.55],
        specular=[0.2, 0.2, 0.2],
    )


def _attach(spec: mujoco.MjSpec, name: str, cfg: EntityCfg, child: mujoco.MjSpec) -> None:
    if not name or "/" in name or name == "world":
        raise TickgraphError(f"{name!r} is no name for an entity; use a word such as 'robot'")
    mujoco = load_mujoco()
    bodies = child.worldbody.bodies
    floating = bool(bodies) and any(j.type == mujoco.mjtJoint.mjJNT_FREE for j in bodies[0].joints)
    frame = spec.worldbody.add_frame()
    if bodies and not floating:
        if any(cfg.init_state.lin_vel) or any(cfg.init_state.ang_vel):
            raise TickgraphError(f"entity {name!r} has a fixed base, so init_state.lin_vel and ang_vel must be 0")
        # The init_state is the pose of the root body, not of the model's own world.
        if cfg.init_state.pos is not None:
            bodies[0].pos = list(cfg.init_state.pos)
        if cfg.init_state.rot is not None:
            bodies[0].quat = list(cfg.init_state.rot)
    for key in list(child.keys):  # a keyframe of one entity says nothing about the others
        child.delete(key)
    try:
        spec.attach(child, prefix=f"{name}/", frame=frame)
    except ValueError as error:
        raise TickgraphError(f"MuJoCo refuses the model of entity {name!r}: {one_line(error)}") from error
