"""The contract between the tick and whatever advances the worlds: views, staged writes, model fields."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.bounds import Threads
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_value
from tickgraph.sim.model import Scene

# What a refresh covers. Positions and velocities are those of the new state; qacc, actuator_force and sensors of the
# acceleration stage (contacts, forces) belong to the last substep, and read 0 after a restart until the next advance.
FRESH = (
    "qpos",
    "qvel",
    "ctrl",
    "xpos",
    "xquat",
    "xipos",
    "cvel",
    "subtree_com",
    "site_xpos",
    "site_xmat",
    "geom_xpos",
    "geom_xmat",
    "qacc",
    "actuator_force",
    "sensordata",
)
LAST_SUBSTEP = ("qacc", "actuator_force")  # sensordata is mixed: see Scene.last_substep_columns

_BACKENDS = {
    "mujoco": "tickgraph.sim.mujoco_cpu:MujocoBackend",
    "mjwarp": "tickgraph.sim.mujoco_warp:MujocoWarpBackend",
}


class Backend(ABC):
    """N worlds of one scene. All tensors are float32, full width (N, ...), and live in the arena.

    Attributes:
        ctrl: (N, nu) controls, written by action terms, taken over by the next advance.
        staging_qpos, staging_qvel: (N, nq), (N, nv); events write them, `write_state` takes over the written worlds.
        default_qpos, default_qvel: (nq,), (nv,) the scene's initial state.
        capabilities: "fields" (per-world model fields), "exact_resume" (a resumed run repeats every bit), "graph" (its
            calls can be captured into a CUDA graph).
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]

    def __init__(self, scene: Scene, num_envs: int, device: torch.device, arena: Arena) -> None:
        self.scene = scene
        self.num_envs = num_envs
        self.device = device
        self._arena = arena
        self._views: dict[str, Tensor] = {}
        self._fields: dict[str, Tensor] = {}
        self._defaults: dict[str, Tensor] = {}
        self.ctrl = arena.new("sim/ctrl", (num_envs, scene.nu), why="controls of the next advance")
        self.staging_qpos = arena.new("sim/staging_qpos", (num_envs, scene.nq), why="positions that events write")
        self.staging_qvel = arena.new("sim/staging_qvel", (num_envs, scene.nv), why="velocities that events write")
        self.default_qpos = arena.constant("sim/default_qpos", scene.default_qpos.tolist(), why="initial state")
        self.default_qvel = arena.constant("sim/default_qvel", scene.default_qvel.tolist(), why="initial state")
        self._views["ctrl"] = self.ctrl

    def check_room(self, num_envs: int) -> None:  # noqa: B027  # a backend may leave it
        """Refuse a number of worlds, such as an evaluation's, that the machine has no memory for; here none is."""

    def view(self, name: str) -> Tensor:
        """Return the tensor of a field that every refresh brings up to date, in place.

        The first call declares it, so it must come before the arena is sealed; later calls return the same tensor.

        Args:
            name: one of ``FRESH``, with MuJoCo's shape per world (matrices are (3, 3)), e.g. xpos (N, nbody, 3) m.

        Raises:
            TickgraphError: the field is not one that a refresh covers, or is first asked for after the build.
        """
        tensor = self._views.get(name)
        if tensor is None:
            shape = self.scene.view_shapes.get(name)
            if shape is None:
                hint = f" ({nearby(name, FRESH)})" if nearby(name, FRESH) else ""
                raise TickgraphError(
                    f"{name!r} is not fresh after a step, so that no term may read it{hint}; the fresh fields are "
                    f"{', '.join(FRESH)}"
                )
            shape = (self.num_envs, *shape)
            tensor = self._arena.new(f"sim/{name}", shape, why="view of the simulation", read_only=True)
            if name in ("qpos", "qvel"):
                tensor.copy_(self.default_qpos if name == "qpos" else self.default_qvel)
            self._views[name] = tensor
            self._attach_view(name, tensor)
        return tensor

    def field(self, name: str) -> Tensor:
        """Return a model field with a value per world, (N, ...), filled with the model's own.

        Write rows and mark those worlds as written: `write_state` takes them over and updates what MuJoCo derives.

        Args:
            name: an MjModel field of real numbers, e.g. body_mass, geom_friction, actuator_gainprm, or opt.gravity.

        Raises:
            TickgraphError: there is no such field, or it is first asked for after the build.
        """
        tensor = self._fields.get(name)
        if tensor is None:
            default = self.default_field(name)
            tensor = self._arena.new(f"sim/field/{name}", (self.num_envs, *default.shape), why="model field by world")
            tensor.copy_(default)
            self._fields[name] = tensor
            self._attach_field(name, tensor)
        return tensor

    def check_rows(self, name: str, rows: list[int]) -> None:
        """Refuse rows of a model field that cannot differ between worlds though the field can.

        MuJoCo compiles a lone body whose inertia lies in its own frame with a diagonal mass matrix, which has no place
        for what a displaced centre of mass couples.

        Raises:
            TickgraphError: the field moves the centre of mass of such a body.
        """
        model = self.scene.mjmodel
        for row in rows if name in ("body_ipos", "body_iquat") else ():
            if model.body_simple[row]:
                raise TickgraphError(
                    f"{name} of body {model.body(row).name!r} cannot differ between worlds: MuJoCo has compiled a "
                    "diagonal mass matrix for it, as its centre of mass is its origin; give the body simple='false' in "
                    "its model"
                )

    def default_field(self, name: str) -> Tensor:
        """Return the model's own value of a field, (...), which `field` starts from; a constant."""
        tensor = self._defaults.get(name)
        if tensor is None:
            value = torch.from_numpy(self.scene.model_field(name))
            tensor = self._arena.constant(f"sim/default_field/{name}", value, why="the model's own value")
            self._defaults[name] = tensor
        return tensor

    def stage_from_state(self) -> None:
        """Copy the current qpos and qvel of all worlds into the staging tensors."""
        self.staging_qpos.copy_(self.view("qpos"))
        self.staging_qvel.copy_(self.view("qvel"))

    def capture_scope(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Return a context in which the backend enqueues on this stream, and joins a capture that goes on there."""
        return nullcontext()

    def pointers(self) -> dict[str, int]:
        """Return the address of every array of its own that a captured tick touches, by name; none may move."""
        return {}

    @abstractmethod
    def advance_and_refresh(self, n: int) -> None:
        """Play n physics steps under ``ctrl`` in every world and bring all views up to date.

        A world that diverges does not raise: its state reads as not finite until it is restarted.
        """

    @abstractmethod
    def write_state(self, written: Tensor, restarted: Tensor) -> None:
        """Take over the staged state and the model fields of the worlds of a mask.

        Args:
            written: (N,) bool.
            restarted: (N,) bool, a part of ``written``: these also forget activations, controls, solver warm start,
                applied forces, time and any divergence.
        """

    @abstractmethod
    def refresh(self, written: Tensor) -> None:
        """Bring the views of the worlds of a mask (N,) up to date after `write_state`; others keep every byte."""

    @abstractmethod
    def overflow(self) -> dict[str, int]:
        """Return how often, over all worlds since the build, a capacity was exceeded, by its name."""

    def overflow_counts(self) -> Tensor:
        """Return the counts of `overflow` in its order, (K,) int64 on the device, without waiting for it."""
        return torch.tensor(list(self.overflow().values()), dtype=torch.int64, device=self.device)

    def overflow_advice(self) -> list[str]:
        """Return a line for each capacity that was exceeded: the limit, what was needed, and the option to raise."""
        return []

    @abstractmethod
    def diagnostics(self) -> dict[str, Any]:
        """Return facts for a manifest or a bug report, as plain data."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what the next advance reads beside the arena."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; raises TickgraphError where names or shapes differ.

        Views of positions and velocities follow; those of the last substep are the arena's to restore.
        """

    @abstractmethod
    def close(self) -> None:
        """Give threads and memory back."""

    @abstractmethod
    def _attach_view(self, name: str, tensor: Tensor) -> None:
        """Keep the tensor of a newly declared view up to date from now on."""

    @abstractmethod
    def _attach_field(self, name: str, tensor: Tensor) -> None:
        """Take over rows of the tensor of a newly declared field in `write_state` from now on."""


def backends() -> tuple[str, ...]:
    """Return the names that `make_backend` accepts."""
    return tuple(_BACKENDS)


def make_backend(
    name: str,
    scene: Scene,
    num_envs: int,
    device: torch.device | str,
    arena: Arena,
    threads: int | None = None,
) -> Backend:
    """Build a backend; device "meta" gives one of shapes alone, whatever the name.

    Args:
        name: one of `backends`.
        scene: the compiled scene.
        num_envs: N, number of worlds.
        device: where its tensors live; must be the arena's.
        arena: takes the tensors; not sealed yet.
        threads: physics threads of a CPU backend; by default the processors that the process may use.

    Raises:
        TickgraphError: the backend is unknown, or cannot serve this device or model.
    """
    if name not in _BACKENDS:
        hint = nearby(name, _BACKENDS) or f"the backends are {', '.join(_BACKENDS)}"
        raise TickgraphError(f"backend {name!r} is unknown; {hint}")
    check_value(threads, Threads | None, "threads")
    device = torch.device(device)
    target = "tickgraph.sim.meta:MetaBackend" if device.type == "meta" else _BACKENDS[name]
    module, _, cls = target.partition(":")
    return getattr(importlib.import_module(module), cls)(scene, num_envs, device, arena, threads)
