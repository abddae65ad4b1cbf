"""CPU backend: MuJoCo's own batch of worlds on its thread pool, identical for every number of threads."""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.room import check_room
from tickgraph.core.words import counted
from tickgraph.robots.mj import load_mujoco
from tickgraph.sim.backend import LAST_SUBSTEP, Backend
from tickgraph.sim.mjcf import one_line
from tickgraph.sim.model import Scene

# Of a world beyond the buffer of its MjData (touched stack, the allocator's share): less than any shipped task's takes,
# which is 167 to 275 KB of resident memory in a batch of 512 after a step.
_WORLD_BYTES = 1 << 17


class MujocoBackend(Backend):
    """``mujoco.batch.Batch`` with its float64 arrays copied into float32 views.

    The batch keeps one MjData per world (``persistent``): without, a partial forward leaves another world's values in
    the acceleration fields, and the velocity stage after a step would have to be computed twice.
    """

    name: ClassVar[str] = "mujoco"
    capabilities: ClassVar[frozenset[str]] = frozenset({"fields", "exact_resume"})

    def __init__(
        self, scene: Scene, num_envs: int, device: torch.device, arena: Arena, threads: int | None = None
    ) -> None:
        if device.type != "cpu":
            raise TickgraphError(
                f"backend 'mujoco' runs on device 'cpu', not on {str(device)!r}; give backend='mjwarp', or device='cpu'"
            )
        self._mujoco, self.scene = load_mujoco(), scene
        self.check_room(num_envs)  # ahead of every tensor of so many rows
        super().__init__(scene, num_envs, device, arena)
        from mujoco import batch

        self._error = batch.SimulationError
        self._batch = batch.Batch(scene.mjmodel, num_envs, threads or processors(), persistent=True)
        _OPEN.add(self)
        self._stage_vel = int(self._mujoco.mjtStage.mjSTAGE_VEL)
        self._stage_none = int(self._mujoco.mjtStage.mjSTAGE_NONE)
        self._live = {name: self._batch.bind(name) for name in ("qpos", "qvel", "ctrl")}
        # Rounded to float32, as every state is that an event stages.
        self._live["qpos"][:], self._live["qvel"][:] = self.default_qpos.numpy(), self.default_qvel.numpy()
        self._ctrl64 = _tensor(self._live["ctrl"])
        self._pairs: list[tuple[Tensor, Tensor]] = []  # (view, the batch's array), copied after every advance
        self._rows: dict[str, tuple[NDArray, NDArray]] = {}  # the same as arrays, for rows of written worlds
        self._field_rows: dict[str, tuple[NDArray, NDArray]] = {}  # field -> (the batch's array, the arena's)
        self._derive = False
        columns = scene.last_substep_columns
        self._new_state_columns, self._last_substep_columns = np.flatnonzero(~columns), np.flatnonzero(columns)
        self._warning_names = [
            name.removeprefix("mjWARN_").lower()
            for name in self._mujoco.mjtWarning.__members__
            if name.startswith("mjWARN_")
        ]
        self._warnings = np.zeros(len(self._warning_names), dtype=np.int64)  # of worlds restarted since
        self._raised = 0
        self._last_error = ""
        for name in ("qpos", "qvel"):
            self.view(name)

    def check_room(self, num_envs: int) -> None:
        """Refuse more worlds than the machine has memory for, by what MuJoCo's own data of one takes at least."""
        data = self._mujoco.MjData(self.scene.mjmodel)
        wanted = num_envs * (int(data.nbuffer) + _WORLD_BYTES)
        what = f"an environment of {counted(num_envs, 'world')}"
        check_room(wanted, torch.device("cpu"), what, "use fewer worlds (num_envs, in an evaluation its episodes)")

    def advance_and_refresh(self, n: int) -> None:
        """Play n physics steps and copy every view; see `Backend.advance_and_refresh`."""
        self._ctrl64.copy_(self.ctrl)
        raised = None
        try:
            # Positions and velocities of the new state cost nothing: the next step continues from them.
            self._batch.step(nstep=n, stage=self._stage_vel)
        except self._error as error:
            raised = error
        for view, source in self._pairs:
            view.copy_(source)
        if raised is not None:
            self._mark(raised)

    def write_state(self, written: Tensor, restarted: Tensor) -> None:
        """Take over staged rows; see `Backend.write_state`. Values that were not changed keep float64 precision."""
        fresh = np.flatnonzero(restarted.numpy()).astype(np.int32)
        pushed = np.flatnonzero((written & ~restarted).numpy()).astype(np.int32)
        if not fresh.size and not pushed.size:
            return
        ids = np.sort(np.concatenate((fresh, pushed)))
        for live, rows in self._field_rows.values():
            live[ids] = rows[ids]
        if self._derive:
            self._call(self._batch.set_const, ids)
        staging = {"qpos": self.staging_qpos.numpy(), "qvel": self.staging_qvel.numpy()}
        if fresh.size:
            self._warnings += self._batch.warning[fresh, :, 1].sum(axis=0)
            self._call(self._batch.reset, fresh, stage=self._stage_none)
            for name, rows in staging.items():
                self._live[name][fresh] = rows[fresh]
            self.ctrl.numpy()[fresh] = 0.0
            for name, (view, _) in self._rows.items():
                if name in LAST_SUBSTEP:
                    view[fresh] = 0.0
                elif name == "sensordata":
                    view[np.ix_(fresh, self._last_substep_columns)] = 0.0
        for name, rows in staging.items() if pushed.size else ():
            live, seen = self._live[name][pushed], self._rows[name][0][pushed]
            np.copyto(live, rows[pushed], where=rows[pushed] != seen)
            self._live[name][pushed] = live

    def refresh(self, written: Tensor) -> None:
        """Compute positions and velocities of the written worlds and copy their rows; see `Backend.refresh`."""
        ids = np.flatnonzero(written.numpy()).astype(np.int32)
        if ids.size:
            self._forward(ids)

    def overflow(self) -> dict[str, int]:
        """Return how often MuJoCo ran out of memory for contacts or constraints."""
        totals = self._warning_totals()
        return {"contacts": totals["contactfull"], "constraints": totals["cnstrfull"]}

    def diagnostics(self) -> dict[str, Any]:
        """Return MuJoCo's version, its threads and warnings, and worlds in which it raised."""
        return {
            "mujoco": self._mujoco.__version__,
            "threads": self._batch.nthread,
            "warnings": self._warning_totals(),
            "raised": self._raised,
            "last_error": self._last_error,
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the integration state (N, nstate) with its warm start, and the per-world fields, in float64."""
        state = {"state": torch.from_numpy(self._batch.state.copy())}
        state |= {f"field/{name}": torch.from_numpy(live.copy()) for name, (live, _) in self._field_rows.items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; see `Backend.load_state_dict`."""
        own = {"state": self._batch.state} | {f"field/{name}": live for name, (live, _) in self._field_rows.items()}
        if state.keys() != own.keys():
            odd = ", ".join(sorted(state.keys() ^ own.keys()))
            raise TickgraphError(f"the simulation's state differs in {odd}; load it into the task that saved it")
        for name, live in own.items():
            if tuple(state[name].shape) != live.shape:
                raise TickgraphError(
                    f"the simulation's {name!r} has shape {tuple(state[name].shape)}, expected {live.shape}; "
                    "load it into the same task with as many worlds"
                )
        for name, live in own.items():
            live[...] = state[name].cpu().numpy()
        ids = np.arange(self.num_envs, dtype=np.int32)
        if self._derive:
            self._call(self._batch.set_const, ids)
        self._forward(ids)

    def close(self) -> None:
        """Drop the batch with its threads; the views keep their last values."""
        self._pairs.clear()
        self._rows.clear()
        self._field_rows.clear()
        self._live.clear()
        self._ctrl64 = torch.empty(0)
        self._batch = None

    def _attach_view(self, name: str, tensor: Tensor) -> None:
        source = self._batch.bind(name).reshape(tensor.shape)
        self._rows[name] = (tensor.numpy(), source)
        if tensor.numel():
            self._pairs.append((tensor, _tensor(source)))

    def _attach_field(self, name: str, tensor: Tensor) -> None:
        live = self._batch.expand(name)
        # Rounded as the tensor is, so that worlds that are written and worlds that are not run the same model.
        live[...] = tensor.numpy()
        self._field_rows[name] = (live, tensor.numpy())
        if name in self._mujoco.MjModel._setconst_inputs or name.startswith("opt."):
            self._derive = True
            self._call(self._batch.set_const, np.arange(self.num_envs, dtype=np.int32))

    def _forward(self, ids: NDArray[np.int32]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            raised = self._call(self._batch.forward, ids, stage=self._stage_vel)
            for name, (view, source) in self._rows.items():
                if name == "sensordata":
                    rows = np.ix_(ids, self._new_state_columns)
                    view[rows] = source[rows]
                elif name not in LAST_SUBSTEP:
                    view[ids] = source[ids]
        if raised is not None:
            self._mark(raised)

    def _call(self, function: Any, ids: NDArray[np.int32], **options: Any) -> Exception | None:
        """Call the batch for some worlds; return what MuJoCo raised in some of them, the others having run."""
        try:
            function(ids, **options)
        except self._error as error:
            self._note(error)
            return error
        return None

    def _mark(self, error: Any) -> None:
        # Such a world kept the state it had before the call. The views must not make it look sound.
        self._note(error)
        self._rows["qvel"][0][error.ids] = np.nan

    def _note(self, error: Any) -> None:
        self._raised += len(error.ids)
        self._last_error = one_line(error)

    def _warning_totals(self) -> dict[str, int]:
        totals = self._warnings + self._batch.warning[:, :, 1].sum(axis=0)
        return {name: int(total) for name, total in zip(self._warning_names, totals, strict=True)}


_OPEN: weakref.WeakSet[MujocoBackend] = weakref.WeakSet()


def _abandon() -> None:
    """In a forked process, keep batches for good: freeing one waits for its threads, which only the parent has."""
    for backend in list(_OPEN):
        if backend._batch is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend._batch))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tensor(array: NDArray) -> Tensor:
    with warnings.catch_warnings():
        # The batch hands its outputs out as read-only; we only read them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
