"""What a scene declares: entities, terrain, sensors and solver. Plain data; nothing here imports MuJoCo."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tickgraph.core.bounds import Bound, CCount, Named, NotNegative, Positive, Vec3
from tickgraph.core.errors import TickgraphError
from tickgraph.robots.entity import EntityCfg, InitialStateCfg
from tickgraph.sim.terrain import TerrainCfg

__all__ = ["CapacityCfg", "EntityCfg", "InitialStateCfg", "SceneCfg", "SensorCfg", "SolverCfg", "TerrainCfg"]

Timestep = Annotated[
    float, Bound(lambda value: 1e-6 <= value <= 0.1, "seconds from 1e-6 to 0.1: physics steps are milliseconds")
]
SensorKind = Literal[
    "accelerometer",
    "contact",
    "force",
    "frameangacc",
    "frameangvel",
    "framelinacc",
    "framelinvel",
    "framepos",
    "framequat",
    "framexaxis",
    "frameyaxis",
    "framezaxis",
    "gyro",
    "subtreeangmom",
    "subtreecom",
    "subtreelinvel",
    "torque",
    "touch",
    "velocimeter",
]


@dataclass
class SolverCfg:
    """Integrator and constraint solver, by their MJCF names; the defaults are those of public G1 and Go2 tasks."""

    integrator: Literal["euler", "rk4", "implicit", "implicitfast"] = "implicitfast"
    solver: Literal["pgs", "cg", "newton"] = "newton"
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    iterations: CCount = 10
    ls_iterations: CCount = 20
    tolerance: NotNegative = 1e-8
    ls_tolerance: NotNegative = 0.01
    ccd_iterations: CCount = 50
    impratio: Positive = 1.0


@dataclass
class CapacityCfg:
    """Memory that MuJoCo Warp sets aside before the first step; MuJoCo itself grows as it needs, and ignores this.

    What does not fit is left out of the physics and counted (``Backend.overflow_advice``). Larger is slower.

    Args:
        nconmax: contacts a world, on average: all worlds share one pool of N times as many places. Pairs of geoms that
            merely come near each other take a place too. ``None``: MuJoCo Warp's guess.
        njmax: constraint rows of any one world; a contact with friction takes 4 (pyramidal, condim 3). ``None``: guess.
        njmax_nnz: numbers in the constraint Jacobian of any one world, where it is sparse. ``None``: guess.
        sensor_contacts: contacts that one contact sensor can match.
    """

    nconmax: CCount | None = None
    njmax: CCount | None = None
    njmax_nnz: CCount | None = None
    sensor_contacts: CCount = 64


@dataclass
class SensorCfg:
    """One MuJoCo sensor, named ``name`` in ``scene.sensor`` and ``env.scene``.

    Args:
        name: unique name.
        kind: MJCF element, or ``contact``: 4 numbers, ``found`` (number of contacts between ``obj`` and ``ref``) and
            ``force`` (3, N: net force that ``ref`` exerts on ``obj``, world frame), both of the last substep.
        obj: name of the thing measured, without the entity's prefix; ``world`` is the world body.
        objtype: what ``obj`` names: ``site``, ``body`` (inertial frame), ``xbody`` (body frame), ``geom``, or for
            contacts ``subtree`` (a body and all below it). gyro, velocimeter, accelerometer, force, torque and touch
            take a site, subtree sensors a body.
        entity: the entity that owns ``obj``.
        ref: frame sensors: the frame in which the value is expressed (default: the world). contact: the other party:
            ``terrain``, or a name (default: anything).
        reftype: what ``ref`` names.
        ref_entity: the entity that owns ``ref``; by default that of ``obj``.
        track_air_time: contact: count seconds in the air and in contact (``env.scene[name].current_air_time``, ...).
        force_threshold: contact: N, above which it is in contact for these times.
        every_substep: contact: look at the force behind each physics substep, not behind the last one alone:
            ``env.scene[name].forces`` has them all, and times go on by physics steps. The physics then stops between
            substeps, which costs time.
    """

    name: str
    kind: SensorKind
    obj: str
    objtype: Literal["site", "body", "xbody", "geom", "subtree"] = "site"
    entity: str = "robot"
    ref: str | None = None
    reftype: Literal["site", "body", "xbody", "geom", "subtree"] = "body"
    ref_entity: str | None = None
    track_air_time: bool = False
    force_threshold: NotNegative = 1.0
    every_substep: bool = False

    def check_together(self, where: str) -> None:
        for name, what in (("track_air_time", "such times"), ("every_substep", "such a force")):
            if getattr(self, name) and self.kind != "contact":
                raise TickgraphError(
                    f"{where} has {name} and kind {self.kind!r}; only a sensor of kind 'contact' has {what}"
                )


@dataclass
class SceneCfg:
    """A scene: the model that every world runs.

    Args:
        entities: by name. In the compiled model the parts of entity ``robot`` are named ``robot/...``.
        terrain: the ground, or ``None`` for none.
        sensors: sensors beside those that the entities' models bring.
        timestep: s, physics step.
        solver: integrator and constraint solver.
        capacity: memory for contacts and constraints, for the backends that need to know before.
        gravity: (3,) m/s^2; ``None`` takes it from the entities' models, which must agree.
    """

    entities: Named[EntityCfg]
    terrain: TerrainCfg | None = field(default_factory=TerrainCfg)
    sensors: tuple[SensorCfg, ...] = ()
    timestep: Timestep = 0.005
    solver: SolverCfg = field(default_factory=SolverCfg)
    capacity: CapacityCfg = field(default_factory=CapacityCfg)
    gravity: Vec3 | None = None
