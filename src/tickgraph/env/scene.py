"""The scene as terms see it: entities with data and masked writes, sensors, and resolved selectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.masked import assign_rows
from tickgraph.env.config import SceneEntityCfg, SubstepTermCfg
from tickgraph.env.sensors import Sensor

if TYPE_CHECKING:
    from tickgraph.env.env import Env

Index = slice | Tensor
PARTS = ("joint", "body", "geom", "site", "actuator")
"""What a selector names: joint_names, body_names, ..."""
_SOFT_LIMIT_FACTOR = 0.9  # share of a joint's range that soft_joint_pos_limits keeps, as in mjlab's G1


def _columns(env: Env, name: str, ids: Any) -> Index:
    """Return ids as a slice where they are consecutive, else as a long tensor of the arena."""
    ids = [int(i) for i in ids]
    if ids == list(range(ids[0], ids[0] + len(ids))) if ids else True:
        return slice(ids[0], ids[0] + len(ids)) if ids else slice(0, 0)
    return env.arena.constant(name, ids, torch.int64, "indices of an entity's parts in the model")


class EntityData:
    """State of one entity in every world, float32, read from the simulation's views.

    ``_w`` is the world frame, ``_b`` the root link's; quaternions are w x y z; N worlds, J joints, B bodies, S sites,
    G geoms, U actuators in the entity's own order. Metres, radians, seconds, newtons.
    """

    def __init__(self, env: Env, name: str, index: Any) -> None:
        self._sim = env.sim
        self._index = index
        arena, path = env.arena, f"scene/{name}"
        self._arena, self._path = arena, path
        self._encoder_bias: Tensor | None = None
        self._qpos = _columns(env, f"{path}/qpos_adr", index.qpos_adr)
        self._dof = _columns(env, f"{path}/dof_adr", index.dof_adr)
        self._bodies = _columns(env, f"{path}/body_ids", index.body_ids)
        self._geoms = _columns(env, f"{path}/geom_ids", index.geom_ids)
        self._sites = _columns(env, f"{path}/site_ids", index.site_ids)
        self._site_bodies = _columns(env, f"{path}/site_body", index.site_body)
        self._actuators = _columns(env, f"{path}/actuator_ids", index.actuator_ids)
        self._root = int(index.root_body_id)
        # cvel is taken at the centre of mass of a body's whole tree; an entity may consist of several trees.
        roots = sorted({int(i) for i in index.body_root_ids})
        self._tree = int(index.body_root_ids[0])
        self._trees: Index = slice(roots[0], roots[0] + 1)
        if len(roots) > 1:
            self._trees = arena.constant(f"{path}/body_root_ids", index.body_root_ids, torch.int64, "tree of each body")
        tree_of = dict(zip(index.body_ids.tolist(), index.body_root_ids.tolist(), strict=True))
        self._site_trees = _columns(
            env, f"{path}/site_root_ids", [tree_of.get(body, body) for body in index.site_body.tolist()]
        )

        def constant(what: str, value: Any, why: str) -> Tensor:
            return arena.constant(f"{path}/{what}", torch.as_tensor(value, dtype=torch.float32), torch.float32, why)

        self.default_joint_pos = constant("default_joint_pos", index.default_joint_pos, "joints in the initial state")
        self.default_joint_vel = constant("default_joint_vel", index.default_joint_vel, "joints in the initial state")
        self.default_root_state = constant(
            "default_root_state", index.default_root_state, "position, quaternion, linear and angular velocity at first"
        )
        limits = torch.as_tensor(index.joint_range, dtype=torch.float32).reshape(-1, 2)
        middle, half = limits.mean(dim=1, keepdim=True), (limits[:, 1:] - limits[:, :1]) / 2
        soft = torch.cat((middle - _SOFT_LIMIT_FACTOR * half, middle + _SOFT_LIMIT_FACTOR * half), dim=1)
        self.joint_pos_limits = constant("joint_pos_limits", limits, "hard joint range")
        self.soft_joint_pos_limits = constant("soft_joint_pos_limits", soft, "joint range shrunk about its middle")
        self._gravity = constant("gravity_dir", [0.0, 0.0, -1.0], "direction of gravity in the world frame")
        self._forward = constant("forward_dir", [1.0, 0.0, 0.0], "direction of the root's x axis in its own frame")

    # Root link -------------------------------------------------------------------------------------------------

    @property
    def root_link_pos_w(self) -> Tensor:
        """(N, 3) m."""
        return self._sim.view("xpos")[:, self._root]

    @property
    def root_link_quat_w(self) -> Tensor:
        """(N, 4)."""
        return self._sim.view("xquat")[:, self._root]

    @property
    def root_link_ang_vel_w(self) -> Tensor:
        """(N, 3) rad/s."""
        return self._sim.view("cvel")[:, self._root, :3]

    @property
    def root_link_lin_vel_w(self) -> Tensor:
        """(N, 3) m/s, of the origin of the root link."""
        cvel = self._sim.view("cvel")[:, self._root]
        arm = self._sim.view("subtree_com")[:, self._tree] - self._sim.view("xpos")[:, self._root]
        return cvel[:, 3:] - torch.linalg.cross(cvel[:, :3], arm)

    @property
    def root_link_lin_vel_b(self) -> Tensor:
        """(N, 3) m/s."""
        return rotation.quat_apply_inverse(self.root_link_quat_w, self.root_link_lin_vel_w)

    @property
    def root_link_ang_vel_b(self) -> Tensor:
        """(N, 3) rad/s."""
        return rotation.quat_apply_inverse(self.root_link_quat_w, self.root_link_ang_vel_w)

    @property
    def projected_gravity_b(self) -> Tensor:
        """(N, 3) unit vector of gravity in the root frame; (0, 0, -1) when upright."""
        quat = self.root_link_quat_w
        return rotation.quat_apply_inverse(quat, self._gravity.expand(quat.shape[0], 3))

    @property
    def heading_w(self) -> Tensor:
        """(N,) rad, yaw of the root's x axis."""
        quat = self.root_link_quat_w
        forward = rotation.quat_apply(quat, self._forward.expand(quat.shape[0], 3))
        return torch.atan2(forward[:, 1], forward[:, 0])

    # Joints ----------------------------------------------------------------------------------------------------

    @property
    def joint_pos(self) -> Tensor:
        """(N, J) rad or m."""
        return self._sim.view("qpos")[:, self._qpos]

    @property
    def encoder_bias(self) -> Tensor:
        """(N, J) rad or m, what each joint's encoder reads too much: 0 unless an event draws it.

        The first call declares it, as `Backend.view` does with a view: only tasks that ask for it have it.
        """
        if self._encoder_bias is None:
            shape = (self._sim.num_envs, len(self._index.qpos_adr))
            why = "what each joint's encoder reads too much"
            self._encoder_bias = self._arena.new(f"{self._path}/encoder_bias", shape, why=why)
        return self._encoder_bias

    @property
    def joint_pos_biased(self) -> Tensor:
        """(N, J) rad or m, as the encoders read them."""
        return self.joint_pos + self.encoder_bias

    @property
    def joint_vel(self) -> Tensor:
        """(N, J) rad/s or m/s."""
        return self._sim.view("qvel")[:, self._dof]

    @property
    def joint_acc(self) -> Tensor:
        """(N, J) rad/s^2 or m/s^2, of the last substep."""
        return self._sim.view("qacc")[:, self._dof]

    @property
    def actuator_force(self) -> Tensor:
        """(N, U) N or N m, of the last substep."""
        return self._sim.view("actuator_force")[:, self._actuators]

    # Bodies, geoms, sites --------------------------------------------------------------------------------------

    @property
    def body_link_pos_w(self) -> Tensor:
        """(N, B, 3) m."""
        return self._sim.view("xpos")[:, self._bodies]

    @property
    def body_link_quat_w(self) -> Tensor:
        """(N, B, 4)."""
        return self._sim.view("xquat")[:, self._bodies]

    @property
    def body_link_lin_vel_w(self) -> Tensor:
        """(N, B, 3) m/s, of each body's origin."""
        cvel = self._sim.view("cvel")[:, self._bodies]
        arm = self._sim.view("subtree_com")[:, self._trees] - self._sim.view("xpos")[:, self._bodies]
        return cvel[..., 3:] - torch.linalg.cross(cvel[..., :3], arm)

    @property
    def body_link_ang_vel_w(self) -> Tensor:
        """(N, B, 3) rad/s."""
        return self._sim.view("cvel")[:, self._bodies, :3]

    @property
    def body_com_pos_w(self) -> Tensor:
        """(N, B, 3) m."""
        return self._sim.view("xipos")[:, self._bodies]

    @property
    def geom_pos_w(self) -> Tensor:
        """(N, G, 3) m."""
        return self._sim.view("geom_xpos")[:, self._geoms]

    @property
    def site_pos_w(self) -> Tensor:
        """(N, S, 3) m."""
        return self._sim.view("site_xpos")[:, self._sites]

    @property
    def site_lin_vel_w(self) -> Tensor:
        """(N, S, 3) m/s."""
        cvel = self._sim.view("cvel")[:, self._site_bodies]
        arm = self._sim.view("subtree_com")[:, self._site_trees] - self.site_pos_w
        return cvel[..., 3:] - torch.linalg.cross(cvel[..., :3], arm)


class Entity:
    """One entity of the scene: its index, its data and masked writes of its state.

    Writes go to the staging tensors and set the world's bit in ``env.written``; the simulation takes them over once a
    tick, after all events. Every value is full width, (N, ...); ``mask`` (N,) bool selects worlds.
    """

    def __init__(self, env: Env, name: str, index: Any) -> None:
        self.name = name
        self.index = index
        self.data = EntityData(env, name, index)
        self._env = env
        self._root_qpos = None
        if index.floating:
            adr, dof = int(index.root_qpos_adr), int(index.root_dof_adr)
            self._root_qpos, self._root_dof = slice(adr, adr + 7), slice(dof, dof + 6)

    def write_root_link_pose_to_sim(self, pose: Tensor, mask: Tensor) -> None:
        """Stage position and quaternion (N, 7), world frame."""
        self._check_width("pose", pose, 7)
        assign_rows(self._env.sim.staging_qpos[:, self._floating()], mask, pose)
        self._env.mark_written(mask)

    def write_root_link_velocity_to_sim(self, velocity: Tensor, mask: Tensor) -> None:
        """Stage linear and angular velocity (N, 6), world frame, at the orientation that is staged."""
        self._floating()
        self._check_width("velocity", velocity, 6)
        quat = self.staged_root_pose()[:, 3:]
        # A free joint's velocity is linear in the world and angular in the body frame.
        angular = rotation.quat_apply_inverse(quat, velocity[:, 3:])
        assign_rows(self._env.sim.staging_qvel[:, self._root_dof], mask, torch.cat((velocity[:, :3], angular), dim=1))
        self._env.mark_written(mask)

    def write_joint_state_to_sim(self, pos: Tensor, vel: Tensor, mask: Tensor) -> None:
        """Stage joint positions and velocities, (N, J) each."""
        self._check_width("pos", pos, len(self.index.joint_names))
        self._check_width("vel", vel, len(self.index.joint_names))
        for target, columns, value in (
            (self._env.sim.staging_qpos, self.data._qpos, pos),
            (self._env.sim.staging_qvel, self.data._dof, vel),
        ):
            if isinstance(columns, slice):
                assign_rows(target[:, columns], mask, value)
            else:
                target.index_copy_(1, columns, torch.where(mask[:, None], value, target[:, columns]))
        self._env.mark_written(mask)

    def _check_width(self, name: str, value: Tensor, width: int) -> None:
        """Refuse a value that would be spread over columns: one number for all joints is seldom what is meant."""
        if value.dim() == 0 or value.shape[-1] != width:
            rows = self._env.num_envs
            raise TickgraphError(
                f"entity {self.name!r}: {name} has shape {tuple(value.shape)}, expected ({rows}, {width})"
            )

    def staged_root_pose(self) -> Tensor:
        """(N, 7) position and quaternion as staged so far in this tick."""
        return self._env.sim.staging_qpos[:, self._floating()]

    def staged_root_velocity(self) -> Tensor:
        """(N, 6) linear and angular velocity, world frame, as staged so far in this tick."""
        self._floating()
        qvel = self._env.sim.staging_qvel[:, self._root_dof]
        return torch.cat((qvel[:, :3], rotation.quat_apply(self.staged_root_pose()[:, 3:], qvel[:, 3:])), dim=1)

    def staged_joint_pos(self) -> Tensor:
        """(N, J) as staged so far in this tick."""
        return self._env.sim.staging_qpos[:, self.data._qpos]

    def staged_joint_vel(self) -> Tensor:
        """(N, J) as staged so far in this tick."""
        return self._env.sim.staging_qvel[:, self.data._dof]

    def _floating(self) -> slice:
        if self._root_qpos is None:
            raise TickgraphError(
                f"entity {self.name!r} has a fixed base, so its root cannot be moved; write its joints, or give its "
                "root body a free joint"
            )
        return self._root_qpos


@dataclass(frozen=True)
class SceneEntity:
    """A resolved :class:`SceneEntityCfg`: index tensors, or ``slice(None)`` for all, into the entity's own lists."""

    name: str
    joint_ids: Index = field(default_factory=lambda: slice(None))
    body_ids: Index = field(default_factory=lambda: slice(None))
    geom_ids: Index = field(default_factory=lambda: slice(None))
    site_ids: Index = field(default_factory=lambda: slice(None))
    actuator_ids: Index = field(default_factory=lambda: slice(None))


class SceneView:
    """``env.scene[name]``: an entity or a sensor by its name."""

    def __init__(self, env: Env) -> None:
        self._env = env
        scene = env.sim.scene
        self.entities = {name: Entity(env, name, scene.entity(name)) for name in scene.entity_names}
        declared = {cfg.name: cfg for cfg in scene.cfg.sensors}
        self.sensors = {}
        for name in scene.sensor_names:
            info = scene.sensor(name)
            self.sensors[name] = Sensor(env, name, info.adr, info.dim, declared.get(name))
        self._memories = [(sensor, sensor.memory) for sensor in self.sensors.values() if sensor.memory is not None]
        self._selectors = 0

    def __getitem__(self, name: str) -> Any:
        item = self.entities.get(name) or self.sensors.get(name)
        if item is None:
            names = [*self.entities, *self.sensors]
            hint = nearby(name, names) or f"the scene has {', '.join(names)}"
            raise TickgraphError(f"the scene has no entity or sensor {name!r}; {hint}")
        return item

    def substep_terms(self) -> dict[str, SubstepTermCfg]:
        """Return the term by which contact sensors look at every substep, where one does."""
        looks = any(memory.forces is not None for _, memory in self._memories)
        return {"_sensors": SubstepTermCfg(_look)} if looks else {}

    def look(self, substep: int) -> None:
        """Let such sensors look at the substep that is over."""
        for sensor, memory in self._memories:
            memory.look(sensor.force, substep)

    def update(self) -> None:
        """Let what contact sensors remember go on by the tick whose state is new."""
        for sensor, memory in self._memories:
            memory.update(sensor.force)

    def reset(self, mask: Tensor) -> None:
        """Stage the initial state, of every entity and of every kind of joint, for the worlds of a mask."""
        sim = self._env.sim
        assign_rows(sim.staging_qpos, mask, sim.default_qpos)
        assign_rows(sim.staging_qvel, mask, sim.default_qvel)
        self._env.mark_written(mask)
        for _, memory in self._memories:
            memory.reset(mask)

    def resolve(self, cfg: SceneEntityCfg) -> SceneEntity:
        """Turn a selector's patterns into index tensors; unknown names raise TickgraphError with nearby ones."""
        if cfg.name in self.sensors:
            raise TickgraphError(
                f"{cfg.name!r} is a sensor, which no SceneEntityCfg selects: give its name alone, as in "
                f"{{'sensor_name': {cfg.name!r}}}"
            )
        if cfg.name not in self.entities:
            hint = nearby(cfg.name, self.entities) or f"the scene has {', '.join(self.entities)}"
            raise TickgraphError(f"the scene has no entity {cfg.name!r}; {hint}")
        index = self.entities[cfg.name].index
        self._selectors += 1
        ids: dict[str, Index] = {}
        for part in PARTS:
            patterns = getattr(cfg, f"{part}_names")
            if patterns is None:
                continue
            found = index.find(part, patterns, preserve_order=cfg.preserve_order)
            ids[f"{part}_ids"] = self._env.arena.constant(
                f"scene/selector{self._selectors}/{part}_ids", found, torch.int64, f"{part}s that {patterns} selects"
            )
        return SceneEntity(cfg.name, **ids)


def _look(env: Env, substep: int) -> None:
    """Behind the last substep comes `SceneView.update`, whose place the first look takes until then."""
    env.scene.look(substep - 1)
