"""The ground: how it is declared, and how it is added to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tickgraph.core.bounds import LARGEST, Bound
from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco

TERRAIN_BODY = "terrain"  # every geom of the ground belongs to this static body, so that sensors can name it

Friction = Annotated[
    tuple[float, float, float],
    Bound(lambda value: all(0.0 <= part <= LARGEST for part in value), "3 finite numbers of at least 0"),
]


@dataclass
class TerrainCfg:
    """A flat, infinite plane at height 0.

    Args:
        kind: ``plane``.
        friction: sliding (no unit), torsional (m) and rolling (m). A geom of higher priority, as the feet of our
            robots are, uses its own instead.
    """

    kind: Literal["plane"] = "plane"
    friction: Friction = (1.0, 0.005, 0.0001)


def add_terrain(spec: mujoco.MjSpec, cfg: TerrainCfg) -> None:
    """Add the ground to a scene's spec, as geoms of the static body ``terrain``."""
    mujoco = load_mujoco()
    texture = spec.add_texture(
        name="terrain",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        mark=mujoco.mjtMark.mjMARK_EDGE,
        rgb1=[0.30, 0.34, 0.39],
        rgb2=[0.25, 0.29, 0.34],
        markrgb=[0.46, 0.50, 0.55],
        width=300,
        height=300,
    )
    material = spec.add_material(name="terrain", texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = texture.name
    body = spec.worldbody.add_body(name=TERRAIN_BODY)
    body.add_geom(
        name=TERRAIN_BODY,
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.05],
        material=material.name,
        friction=list(cfg.friction),
    )
