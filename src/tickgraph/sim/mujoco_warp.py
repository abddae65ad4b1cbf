"""GPU backend: MuJoCo Warp, whose arrays are the arena's tensors; it also runs on Warp's CPU device, for tests."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.robots.mj import load_mujoco, logger
from tickgraph.sim import warp_support
from tickgraph.sim.backend import Backend
from tickgraph.sim.mjcf import one_line
from tickgraph.sim.model import Scene

# What the next step reads beside ctrl and the model.
_STATE = ("qpos", "qvel", "act", "qacc_warmstart", "qfrc_applied", "xfrc_applied", "time")
# What `_light_refresh` computes of the state and a step would compute again, in the module of MuJoCo Warp that has it.
_REFRESHED = ("kinematics", "com_pos", "com_vel")
# Kernels of these for what only a step reads, and, unless a term or a sensor does, too.
_STEP_ALONE = ("_cinert", "_geom_local_to_global")


class MujocoWarpBackend(Backend):
    """``mujoco_warp`` with N worlds in one Data, on a CUDA device or on Warp's CPU device.

    The views are not copies: Data's arrays are made of the arena's tensors, so a step writes what terms read. Nothing
    here reads the device except `overflow`, `overflow_advice`, `diagnostics` and `state_dict`, and every launch goes to
    torch's current stream, so that a tick can be captured in a graph.
    """

    name: ClassVar[str] = "mjwarp"
    capabilities: ClassVar[frozenset[str]] = frozenset({"fields", "graph"})

    def __init__(
        self, scene: Scene, num_envs: int, device: torch.device, arena: Arena, threads: int | None = None
    ) -> None:
        self._mjw, self._wp = warp_support.load()
        warp_support.check_device(device)
        super().__init__(scene, num_envs, device, arena)
        from tickgraph.sim import warp_capacity, warp_fields, warp_kernels, warp_launches

        self._kernels = warp_kernels
        self._smooth = importlib.import_module("mujoco_warp._src.smooth")
        self._streams: dict[int, Any] = {}
        self._graphs: list[Any] = []
        # A graph that is replayed runs no Python, which alone knows what a refresh has left out. So on a GPU nothing is
        # left out but within `capture_scope`, whose end makes up for it: every replay begins and ends with nothing left
        # out. On a CPU nothing is replayed.
        self._leaves_out = device.type != "cuda"
        self._incomplete = False
        self._mjmodel = warp_support.supported_model(scene)
        self._step_alone = [getattr(self._smooth, name, None) for name in _STEP_ALONE]
        if warp_support.senses_geoms(self._mjmodel):
            del self._step_alone[1:]
        self._warp_device = self._wp.device_from_torch(arena.device)
        self._launches = warp_launches.Launches(self._wp, self._smooth, self._warp_device)
        with self._launching():
            self._model, self._data = self._build(scene, num_envs)
            self._world_fields = warp_fields.WorldFields(self._model, self._mjmodel, num_envs, arena.device)
            self._capacities = warp_capacity.Capacities(self._model, self._data, num_envs, arena)
            self._share_rows()
            self._last_substep = self._wp.array(scene.last_substep_columns, dtype=self._wp.bool)
            self._staging = [self._wp.from_torch(self.staging_qpos), self._wp.from_torch(self.staging_qvel)]
            self._adopt("ctrl", self.ctrl)
        for name in ("qpos", "qvel", "qacc", "actuator_force", "sensordata"):
            self.view(name)
        with self._launching():
            self._light_refresh()

    def advance_and_refresh(self, n: int) -> None:
        """Play n physics steps and bring the views to the new state; see `Backend.advance_and_refresh`."""
        with self._launching():
            self._complete()
            for i in range(n):
                with self._known_positions() if i == 0 else nullcontext():
                    self._mjw.step(self._model, self._data)
            left_out = self._step_alone if self._leaves_out else ()
            self._light_refresh(lambda kernel: kernel not in left_out)
            self._incomplete = bool(left_out)
            self._capacities.watch()

    def write_state(self, written: Tensor, restarted: Tensor) -> None:
        """Take over staged rows and model fields; see `Backend.write_state`."""
        d, wp, k = self._data, self._wp, self._kernels
        with self._launching():
            masks = [wp.from_torch(mask, dtype=wp.bool) for mask in (written, restarted)]
            wp.launch(
                k.write_rows,
                dim=(self.num_envs, k.THREADS),
                inputs=[
                    *(*masks, *self._staging, self._last_substep, d.qpos, d.qvel, d.ctrl, d.act, d.act_dot, d.qacc),
                    *(d.qacc_warmstart, d.qfrc_applied, self._xfrc, d.actuator_force, d.sensordata, d.time),
                ],
            )
            # Rows beyond the constraints in use are multiplied by 0, which a NaN left there by a divergence survives.
            wp.launch(k.clear_rows, dim=(self.num_envs, k.ROW_THREADS), inputs=[masks[1], *self._efc_rows])
            self._world_fields.take(masks[0])

    def refresh(self, written: Tensor) -> None:
        """Recompute positions and velocities; worlds that were not written get the same bytes as before."""
        with self._launching():
            self._light_refresh()
        self._incomplete = False

    @contextmanager
    def capture_scope(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Enqueue on this stream, and take part in a capture that torch has begun there."""
        if self.device.type != "cuda":
            with self._completed_at_the_end():
                yield
            return
        wp, own = self._wp, self._stream(stream)
        # Warp's own stream is not waited for: it holds none of our work, and a capture may not depend on it.
        with wp.ScopedStream(own, sync_enter=False):
            if not torch.cuda.is_current_stream_capturing():
                with self._completed_at_the_end():
                    yield
                return
            incomplete = self._incomplete
            wp.capture_begin(stream=own, external=True)
            try:
                with self._completed_at_the_end():
                    yield
            except BaseException:
                with suppress(RuntimeError):
                    wp.capture_end(stream=own)
                raise
            finally:
                self._incomplete = incomplete  # nothing of a capture has run
            self._graphs.append(wp.capture_end(stream=own))  # keeps modules and memory of the capture

    def physics(self) -> tuple[Any, Any]:
        """Return MuJoCo Warp's own model and data, for benchmarks that step them alone; nothing may write to them."""
        return self._model, self._data

    def pointers(self) -> dict[str, int]:
        """Return the address of every array of MuJoCo Warp's Model and Data, by name."""
        found: dict[str, int] = {}
        for owner, value in (("model", self._model), ("data", self._data)):
            _collect_pointers(self._wp, owner, value, found)
        return found

    def overflow(self) -> dict[str, int]:
        """Return how many worlds, summed over ticks, exceeded each capacity; waits for the device."""
        return self._capacities.overflow()

    def overflow_counts(self) -> Tensor:
        """Return the counts of `overflow` without waiting; see `Backend.overflow_counts`."""
        return self._capacities.overflow_counts()

    def overflow_advice(self) -> list[str]:
        """Return a line for each capacity that was exceeded, with what was needed and the option to raise."""
        return self._capacities.overflow_advice()

    def diagnostics(self) -> dict[str, Any]:
        """Return versions, capacities with what was needed of them, solver options and device."""
        opt, capacities, enums = self._model.opt, self._capacities, load_mujoco()
        return {
            "mujoco": enums.__version__,
            "mujoco_warp": self._mjw.__version__,
            "warp": self._wp.__version__,
            "device": str(self._warp_device),
            "capacity": capacities.given(),
            "needed": capacities.needed(),
            "overflow": capacities.overflow(),
            "solver": {
                "solver": enums.mjtSolver(opt.solver).name.removeprefix("mjSOL_").lower(),
                "cone": enums.mjtCone(opt.cone).name.removeprefix("mjCONE_").lower(),
                "jacobian": "sparse" if self._model.is_sparse else "dense",
                "iterations": opt.iterations,
                "ls_iterations": opt.ls_iterations,
            },
            "reached": capacities.reached(),
            "graphs": len(self._graphs),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the state, its warm start and the per-world fields, in float32."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; see `Backend.load_state_dict`."""
        own = self._state
        if state.keys() != own.keys():
            odd = ", ".join(sorted(state.keys() ^ own.keys()))
            raise TickgraphError(f"the simulation's state differs in {odd}; load it into the task that saved it")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise TickgraphError(
                    f"the simulation's {name!r} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}; "
                    "load it into the same task with as many worlds"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])
        with self._launching():
            self._world_fields.derive_all()
            self._light_refresh()
        self._incomplete = False

    def close(self) -> None:
        """Forget the captured graphs; memory goes with the last reference to the views."""
        self._graphs.clear()

    @property
    def _state(self) -> dict[str, Tensor]:
        state = {name: self._wp.to_torch(getattr(self._data, name)) for name in _STATE}
        return state | {f"field/{name}": live for name, live in self._world_fields.live.items()}

    def _build(self, scene: Scene, num_envs: int) -> tuple[Any, Any]:
        cfg = scene.cfg.capacity
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model = self._mjw.put_model(self._mjmodel)
                capacity = {"nconmax": cfg.nconmax, "njmax": cfg.njmax, "njmax_nnz": cfg.njmax_nnz}
                data = self._mjw.make_data(self._mjmodel, nworld=num_envs, **capacity)
            except (NotImplementedError, ValueError) as error:
                raise TickgraphError(f"MuJoCo Warp cannot run this scene: {one_line(error)}") from error
        for item in caught:
            logger.log(logging.WARNING, "MuJoCo Warp: %s", one_line(item.message))
        model.opt.warn_overflow = 0  # a kernel's print repeats for every world and step; `overflow` counts instead
        model.opt.contact_sensor_maxmatch = cfg.sensor_contacts
        return model, data

    def _share_rows(self) -> None:
        """Make arrays of a row for each world, on memory of Data's, that `write_state` clears."""
        wp, d, num_envs = self._wp, self._data, self.num_envs
        self._xfrc = wp.from_torch(wp.to_torch(d.xfrc_applied).view(num_envs, -1))
        rows = (wp.to_torch(array).view(num_envs, -1) for array in (d.efc.J, d.efc.D, d.efc.aref, d.efc.Jqvel))
        self._efc_rows = [wp.from_torch(tensor) for tensor in rows]

    def _light_refresh(self, wanted: Callable[[Any], bool] = lambda kernel: True) -> None:
        """Compute positions and velocities of the state, by the wanted kernels, and the sensors that follow."""
        m, d, mjw = self._model, self._data, self._mjw
        with self._launches.of(wanted):
            mjw.kinematics(m, d)
            mjw.com_pos(m, d)
            mjw.com_vel(m, d)
        mjw.sensor_pos(m, d)
        mjw.sensor_vel(m, d)

    @contextmanager
    def _known_positions(self) -> Iterator[None]:
        """Leave out of a step what the last refresh has computed for the same state: a fifth of a tick's kinematics.

        MuJoCo Warp offers no step that begins behind them, so the functions, which it calls by their module, pass over
        their first call. The bits are those of a whole step, which a test compares.
        """
        own = {name: getattr(self._smooth, name) for name in _REFRESHED}

        def pass_once(name: str) -> Callable[..., None]:
            return lambda *_: setattr(self._smooth, name, own[name])

        try:
            for name in _REFRESHED:
                setattr(self._smooth, name, pass_once(name))
            yield
        finally:
            for name, function in own.items():
                setattr(self._smooth, name, function)

    def _complete(self) -> None:
        """Compute what the refresh behind the last step left out, if no other refresh has come since."""
        if self._incomplete:
            with self._launches.of(lambda kernel: kernel in self._step_alone):
                self._mjw.kinematics(self._model, self._data)
                self._mjw.com_pos(self._model, self._data)
        self._incomplete = False

    @contextmanager
    def _completed_at_the_end(self) -> Iterator[None]:
        """Let refreshes behind a step leave out what only a step reads, and compute it at the end if none has since."""
        outer, self._leaves_out = self._leaves_out, True
        try:
            yield
            with self._launching():
                self._complete()
        finally:
            self._leaves_out = outer

    def _launching(self) -> AbstractContextManager[Any]:
        """Return a context in which Warp works on our device, and on a GPU on the stream that torch is on."""
        if self.device.type != "cuda":
            return self._wp.ScopedDevice("cpu")
        return self._wp.ScopedStream(self._stream(torch.cuda.current_stream(self.device)), sync_enter=False)

    def _stream(self, stream: torch.cuda.Stream) -> Any:
        # One Warp object for each stream: Warp knows a stream that captures by its object.
        own = self._streams.get(stream.cuda_stream)
        if own is None:
            own = self._streams[stream.cuda_stream] = self._wp.stream_from_torch(stream)
        return own

    def _adopt(self, name: str, tensor: Tensor) -> None:
        """Let a tensor be the memory of one of Data's arrays from now on."""
        array = getattr(self._data, name)
        if tensor.numel():
            setattr(self._data, name, self._wp.from_torch(tensor, dtype=array.dtype))

    def _attach_view(self, name: str, tensor: Tensor) -> None:
        with self._launching():
            self._complete()
            if name in ("geom_xpos", "geom_xmat"):
                del self._step_alone[1:]
            if name not in ("qpos", "qvel"):  # geoms of the world never move, so their first values are their last
                tensor.copy_(self._wp.to_torch(getattr(self._data, name)).view(tensor.shape))
            self._adopt(name, tensor)

    def _attach_field(self, name: str, tensor: Tensor) -> None:
        with self._launching():
            self._world_fields.add(name, tensor)


def _collect_pointers(wp: Any, path: str, value: Any, found: dict[str, int]) -> None:
    if isinstance(value, wp.array):
        found[path] = value.ptr or 0
    elif is_dataclass(value):
        for item in fields(value):
            _collect_pointers(wp, f"{path}.{item.name}", getattr(value, item.name, None), found)
