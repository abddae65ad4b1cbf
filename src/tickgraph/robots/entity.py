"""What an entity of a scene is: a MuJoCo model and the state it starts in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tickgraph.core.bounds import Finite, Quat, Vec3


@dataclass
class InitialStateCfg:
    """State of an entity at the start of an episode, in the world frame.

    Args:
        pos: (3,) m, of the root body. A fixed-base entity is placed there. ``None`` keeps the model's own.
        rot: (4,) w x y z, of the root body. ``None`` keeps the model's own.
        lin_vel: (3,) m/s, world frame; only for a floating base.
        ang_vel: (3,) rad/s, world frame; only for a floating base.
        joint_pos: rad or m by regular expression of joint names. A joint that no expression matches keeps the model's
            reference position; an expression that matches no joint is an error; the last match wins.
        joint_vel: rad/s or m/s by regular expression, otherwise 0.
    """

    pos: Vec3 | None = None
    rot: Quat | None = None
    lin_vel: Vec3 = (0.0, 0.0, 0.0)
    ang_vel: Vec3 = (0.0, 0.0, 0.0)
    joint_pos: dict[str, Finite] = field(default_factory=dict)
    joint_vel: dict[str, Finite] = field(default_factory=dict)


@dataclass
class EntityCfg:
    """A robot or object of a scene.

    Args:
        model: a function that returns an ``MjSpec``, the path of an MJCF file, or an MJCF document as a string (it
            begins with ``<``). Of the model's ``<option>``, only gravity, wind, magnetic, density, viscosity and flags
            are used; timestep and solver come from the scene.
        init_state: where it starts.
        look: a function that adds geoms without contacts and mass to the model for pictures alone. The physics runs
            without them: each costs time in every step (60 of them a tenth of G1's).
    """

    model: Callable[[], Any] | str | Path
    init_state: InitialStateCfg = field(default_factory=InitialStateCfg)
    look: Callable[[Any], None] | None = None
