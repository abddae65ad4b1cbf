"""Sensors as terms see them, the forces of a step's substeps, and how long a contact sensor has been in contact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import fill_rows
from tickgraph.sim.scene import SensorCfg

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class ContactTimes:
    """Seconds in contact and in the air of one contact sensor, (N,) float32 each.

    They are counted in whole control steps, or in physics steps where a sensor looks at every substep. It is in contact
    where its net force exceeds ``threshold``, N. All are 0 in a new episode. The step on which a phase ends counts as
    part of it, as in Isaac Lab and mjlab.
    """

    def __init__(self, env: Env, name: str, threshold: float) -> None:
        self._threshold = threshold
        path = f"sensors/{name}"

        def seconds(what: str, why: str) -> Tensor:
            return env.arena.new(f"{path}/{what}", (env.num_envs,), why=why)

        self.current_air = seconds("current_air_time", "seconds in the air so far, 0 in contact")
        self.last_air = seconds("last_air_time", "seconds that the last flight took")
        self.current_contact = seconds("current_contact_time", "seconds in contact so far, 0 in the air")
        self.last_contact = seconds("last_contact_time", "seconds that the last contact took")
        self.landed = env.arena.new(f"{path}/first_contact", (env.num_envs,), torch.bool, "in contact since this step")

    def update(self, forces: Sequence[Tensor], seconds: float) -> None:
        """Go on by one control step: by ``seconds`` for each of its net forces (N, 3), the oldest first."""
        current_air, current_contact, landed = self.current_air, self.current_contact, None
        for force in forces:
            contact = torch.linalg.vector_norm(force, dim=1) > self._threshold
            air, touch = current_air + seconds, current_contact + seconds
            lands = contact & (current_air > 0.0)
            landed = lands if landed is None else (landed | lands) & contact
            self.last_air.copy_(torch.where(lands, air, self.last_air))
            self.last_contact.copy_(torch.where(~contact & (current_contact > 0.0), touch, self.last_contact))
            current_air = torch.where(contact, 0.0, air)
            current_contact = torch.where(contact, touch, 0.0)
        self.landed.copy_(landed)
        self.current_air.copy_(current_air)
        self.current_contact.copy_(current_contact)

    def reset(self, mask: Tensor) -> None:
        for times in (self.current_air, self.last_air, self.current_contact, self.last_contact):
            fill_rows(times, mask, 0.0)
        fill_rows(self.landed, mask, False)


class ContactMemory:
    """What a contact sensor keeps from substep to substep and from step to step: forces, and times."""

    def __init__(self, env: Env, name: str, cfg: SensorCfg) -> None:
        self.times = ContactTimes(env, name, cfg.force_threshold) if cfg.track_air_time else None
        self.forces: Tensor | None = None
        self._seconds = env.step_dt
        if cfg.every_substep:
            shape = (env.num_envs, env.cfg.decimation, 3)
            self.forces = env.arena.new(f"sensors/{name}/forces", shape, why="net force of each substep, N")
            self._seconds = env.cfg.scene.timestep

    def look(self, force: Tensor, substep: int) -> None:
        """Keep the force (N, 3) of the substep that is over, where all are kept."""
        if self.forces is not None:
            self.forces[:, substep].copy_(force)

    def update(self, force: Tensor) -> None:
        """Take over the control step whose last substep had this force (N, 3)."""
        self.look(force, -1)
        if self.times is not None:
            self.times.update([force] if self.forces is None else self.forces.unbind(dim=1), self._seconds)

    def reset(self, mask: Tensor) -> None:
        """Forget the last episode in the worlds of a mask."""
        if self.forces is not None:
            fill_rows(self.forces, mask, 0.0)
        if self.times is not None:
            self.times.reset(mask)


class Sensor:
    """One MuJoCo sensor in every world: ``data`` (N, D) float32; a contact sensor has ``found`` and ``force`` too.

    A contact sensor with ``track_air_time`` also has times, (N,) seconds, and ``first_contact``; one with
    ``every_substep`` the ``forces`` of all substeps.
    """

    def __init__(self, env: Env, name: str, adr: int, dim: int, cfg: SensorCfg | None = None) -> None:
        self.name = name
        self._sim = env.sim
        self._columns = slice(adr, adr + dim)
        remembers = cfg is not None and (cfg.track_air_time or cfg.every_substep)
        self.memory = ContactMemory(env, name, cfg) if cfg is not None and remembers else None

    @property
    def data(self) -> Tensor:
        """(N, D)."""
        return self._sim.view("sensordata")[:, self._columns]

    @property
    def found(self) -> Tensor:
        """(N,) number of contacts, of the last substep; contact sensors only."""
        return self.data[:, 0]

    @property
    def force(self) -> Tensor:
        """(N, 3) N, net contact force of the last substep; contact sensors only."""
        return self.data[:, 1:4]

    @property
    def forces(self) -> Tensor:
        """(N, H, 3) N, net contact forces of the control step's substeps, the oldest first; contact sensors only.

        H is the decimation with ``every_substep``; else 1, of the last substep alone.
        """
        kept = None if self.memory is None else self.memory.forces
        return self.force[:, None] if kept is None else kept

    @property
    def current_air_time(self) -> Tensor:
        """(N,) s in the air so far; 0 in contact."""
        return self._kept().current_air

    @property
    def last_air_time(self) -> Tensor:
        """(N,) s that the last flight took."""
        return self._kept().last_air

    @property
    def current_contact_time(self) -> Tensor:
        """(N,) s in contact so far; 0 in the air."""
        return self._kept().current_contact

    @property
    def last_contact_time(self) -> Tensor:
        """(N,) s that the last contact took."""
        return self._kept().last_contact

    @property
    def first_contact(self) -> Tensor:
        """(N,) bool: in contact since this step, out of the air.

        A robot that stands from the first step of its episode on has not landed.
        """
        return self._kept().landed

    def _kept(self) -> ContactTimes:
        times = None if self.memory is None else self.memory.times
        if times is None:
            raise TickgraphError(
                f"sensor {self.name!r} does not count its time in the air; say track_air_time=True in its SensorCfg "
                "(kind 'contact')"
            )
        return times
