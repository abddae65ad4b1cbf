"""Geoms for pictures alone: no contacts, no mass, group 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco

Vec3 = tuple[float, float, float]

SILVER = (0.78, 0.80, 0.82, 1.0)
WHITE = (0.92, 0.93, 0.94, 1.0)
GRAPHITE = (0.16, 0.17, 0.19, 1.0)
BLACK = (0.06, 0.06, 0.07, 1.0)
ACCENT = (0.10, 0.55, 0.80, 1.0)

Colour = tuple[float, float, float, float]


def rod(body: mujoco.MjsBody, start: Vec3, end: Vec3, radius: float, colour: Colour = SILVER) -> None:
    """Add a capsule between two points of the body's frame (m)."""
    _add(body, "CAPSULE", [radius, 0, 0], colour, fromto=[*start, *end])


def disc(body: mujoco.MjsBody, start: Vec3, end: Vec3, radius: float, colour: Colour = GRAPHITE) -> None:
    """Add a cylinder between two points of the body's frame (m)."""
    _add(body, "CYLINDER", [radius, 0, 0], colour, fromto=[*start, *end])


def block(body: mujoco.MjsBody, pos: Vec3, half: Vec3, colour: Colour = SILVER) -> None:
    """Add a box of half sizes ``half`` (m) at ``pos`` in the body's frame."""
    _add(body, "BOX", half, colour, pos=list(pos))


def ball(body: mujoco.MjsBody, pos: Vec3, radii: Vec3, colour: Colour = SILVER) -> None:
    """Add an ellipsoid of half axes ``radii`` (m) at ``pos`` in the body's frame."""
    _add(body, "ELLIPSOID", radii, colour, pos=list(pos))


def _add(body: mujoco.MjsBody, kind: str, size: list[float] | Vec3, colour: Colour, **place: list[float]) -> None:
    body.add_geom(
        type=getattr(load_mujoco().mjtGeom, f"mjGEOM_{kind}"),
        size=list(size),
        rgba=list(colour),
        contype=0,
        conaffinity=0,
        mass=0,
        group=2,
        **place,
    )
