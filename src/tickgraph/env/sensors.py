"""Sensors as terms see them, and how long a contact sensor has been in contact or in the air."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import fill_rows
from tickgraph.sim.scene import SensorCfg

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class ContactTimes:
    """Seconds in contact and in the air of one contact sensor, (N,) float32 each, counted in whole control steps.

    A sensor is in contact where its net force, of the last substep, exceeds ``threshold``, N. All are 0 in a new
    episode. The step on which a phase ends counts as part of it, as in Isaac Lab and mjlab.
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

    def update(self, force: Tensor, seconds: float) -> None:
        """Go on by one control step, at whose end the net force is ``force`` (N, 3)."""
        contact = torch.linalg.vector_norm(force, dim=1) > self._threshold
        air, touch = self.current_air + seconds, self.current_contact + seconds
        self.landed.copy_(contact & (self.current_air > 0.0))
        self.last_air.copy_(torch.where(self.landed, air, self.last_air))
        self.last_contact.copy_(torch.where(~contact & (self.current_contact > 0.0), touch, self.last_contact))
        self.current_air.copy_(torch.where(contact, 0.0, air))
        self.current_contact.copy_(torch.where(contact, touch, 0.0))

    def reset(self, mask: Tensor) -> None:
        for times in (self.current_air, self.last_air, self.current_contact, self.last_contact):
            fill_rows(times, mask, 0.0)
        fill_rows(self.landed, mask, False)


class Sensor:
    """One MuJoCo sensor in every world: ``data`` (N, D) float32; a contact sensor has ``found`` and ``force`` too.

    A contact sensor with ``track_air_time`` also has times, (N,) seconds, and ``first_contact``.
    """

    def __init__(self, env: Env, name: str, adr: int, dim: int, cfg: SensorCfg | None = None) -> None:
        self.name = name
        self._sim = env.sim
        self._columns = slice(adr, adr + dim)
        self.times = ContactTimes(env, name, cfg.force_threshold) if cfg is not None and cfg.track_air_time else None

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
        if self.times is None:
            raise TickgraphError(
                f"sensor {self.name!r} does not count its time in the air; say track_air_time=True in its SensorCfg "
                "(kind 'contact')"
            )
        return self.times
