"""Capacities of MuJoCo Warp: what a scene has of contacts and rows, what its worlds needed, and what to raise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import warp as wp
from mujoco_warp import OverflowType
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.sim import warp_kernels as kernels

_HEADROOM = 1.25  # by how much the advice exceeds the largest need that was seen


@dataclass(frozen=True)
class _Limit:
    """A capacity, the bits of MuJoCo Warp's overflow mask that mean it, and the option that sets it."""

    name: str
    bits: tuple[str, ...]
    option: str


_LIMITS = (
    _Limit("contacts", ("BROADPHASE", "NARROWPHASE", "CCD"), "nconmax"),
    _Limit("constraints", ("NEFC",), "njmax"),
    _Limit("jacobian", ("NJMAX_NNZ",), "njmax_nnz"),
    _Limit("sensor_contacts", ("CONTACT_MATCH",), "sensor_contacts"),
)
_SOLVER_BITS = {"solver_iterations": ("ITERATIONS",), "solver_ls_iterations": ("LS_ITERATIONS",)}


class Capacities:
    """Watches over one backend's capacities, on the device; only `watch` is part of a tick.

    Args:
        model: the ``mujoco_warp.Model``.
        data: the ``mujoco_warp.Data`` of N worlds.
        num_envs: N.
        arena: holds the counts and the largest needs. Warp's device must be the current one here and in `watch`.
    """

    def __init__(self, model: Any, data: Any, num_envs: int, arena: Arena) -> None:
        self._model, self._data, self._n = model, data, num_envs
        bits = [limit.bits for limit in _LIMITS] + list(_SOLVER_BITS.values())
        masks = [sum(int(OverflowType[bit]) for bit in kind) for kind in bits]
        self._masks = wp.array(np.array(masks, dtype=np.int32), dtype=int)
        self._counts_tensor = arena.new("sim/overflows", (len(masks),), torch.int64, "worlds beyond each capacity")
        self._needs_tensor = arena.new("sim/needs", (3,), torch.int32, "largest number of contacts and rows needed")
        self._counts, self._needs = wp.from_torch(self._counts_tensor), wp.from_torch(self._needs_tensor)
        self._contacts = wp.zeros(num_envs, dtype=int)

    def watch(self) -> None:
        """Count the worlds in which the last step exceeded a capacity, and keep the largest needs."""
        d = self._data
        wp.launch(kernels.count_contacts, dim=d.naconmax, inputs=[d.nacon, d.contact.worldid, self._contacts])
        watched = [self._masks, d.nacon, d.ncollision, d.nefc, self._contacts, d.overflow]
        wp.launch(kernels.watch, dim=self._n, inputs=[*watched, self._counts, self._needs])

    def overflow(self) -> dict[str, int]:
        """Return how many worlds, summed over ticks, exceeded each capacity; waits for the device."""
        counts = self._counts_tensor.tolist()
        return {limit.name: counts[i] for i, limit in enumerate(_LIMITS)}

    def overflow_counts(self) -> Tensor:
        """Return the counts of `overflow` without waiting, in its order."""
        return self._counts_tensor[: len(_LIMITS)]

    def overflow_advice(self) -> list[str]:
        """Return a line for each capacity that was exceeded, with what was needed and the option to raise."""
        pool, busiest, rows = self._needs_tensor.tolist()
        d, n, matches = self._data, self._n, self._model.opt.contact_sensor_maxmatch
        average = math.ceil(pool / n)
        needs = {
            "contacts": (
                d.naconmax // n,
                max(average, busiest),
                f"{pool} places were needed at once by all {n} worlds together and {max(average, busiest)} by one of "
                f"them; there are {d.naconmax // n} a world, {d.naconmax} in all",
            ),
            "constraints": (d.njmax, max(rows, d.njmax + 1), f"a world needed {rows} rows, and has {d.njmax}"),
            "jacobian": (d.njmax_nnz, 2 * d.njmax_nnz, f"a world needed more than the {d.njmax_nnz} numbers it has"),
            "sensor_contacts": (matches, 2 * matches, f"a contact sensor matched more than its {matches} contacts"),
        }
        lines, counts = [], self.overflow()
        for limit in _LIMITS:
            if count := counts[limit.name]:
                capacity, need, text = needs[limit.name]
                raised = max(math.ceil(_HEADROOM * need), capacity + 1)
                lines.append(
                    f"{limit.name}: {text}; the rest was left out of the physics ({count} times, counted by world and "
                    f"tick). Set scene.capacity.{limit.option} to {raised}"
                )
        return lines

    def given(self) -> dict[str, int | None]:
        """Return the capacities by the options that set them."""
        d = self._data
        return {
            "nconmax": d.naconmax // self._n,
            "njmax": d.njmax,
            "njmax_nnz": d.njmax_nnz if self._model.is_sparse else None,
            "sensor_contacts": self._model.opt.contact_sensor_maxmatch,
        }

    def needed(self) -> dict[str, int]:
        """Return the largest needs that were seen; waits for the device."""
        pool, busiest, rows = self._needs_tensor.tolist()
        return {"contacts_of_all": pool, "contacts_of_one": busiest, "constraints_of_one": rows}

    def reached(self) -> dict[str, int]:
        """Return how many worlds, summed over ticks, used up the solver's iterations; waits for the device."""
        return dict(zip(_SOLVER_BITS, self._counts_tensor[len(_LIMITS) :].tolist(), strict=True))
