"""Cart-pole: a cart on a rail of 3.6 m with a free pole, driven by one force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.robots.entity import EntityCfg, InitialStateCfg
from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco

SLIDER_JOINT = "slider"
HINGE_JOINT = "hinge"  # 0 is upright
POLE_BODY = "pole"
TIP_SITE = "tip"
RAIL_HALF_LENGTH = 1.8  # m
POLE_LENGTH = 1.0  # m, from hinge to tip
MAX_FORCE = 10.0  # N, at ctrl = 1

_XML = f"""
<mujoco model="cartpole">
  <worldbody>
    <geom name="rail" type="capsule" fromto="-{RAIL_HALF_LENGTH + 0.2} 0 1 {RAIL_HALF_LENGTH + 0.2} 0 1" size="0.02"
      rgba="0.55 0.58 0.62 1" contype="0" conaffinity="0"/>
    <body name="cart" pos="0 0 1">
      <joint name="{SLIDER_JOINT}" type="slide" axis="1 0 0" limited="true"
        range="-{RAIL_HALF_LENGTH} {RAIL_HALF_LENGTH}" damping="0.0005"/>
      <geom name="cart" type="box" size="0.12 0.09 0.06" mass="1" rgba="0.20 0.42 0.68 1" contype="0" conaffinity="0"/>
      <body name="{POLE_BODY}">
        <joint name="{HINGE_JOINT}" type="hinge" axis="0 1 0" damping="0.000002"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 {POLE_LENGTH}" size="0.04" mass="0.1"
          rgba="0.90 0.47 0.16 1" contype="0" conaffinity="0"/>
        <site name="{TIP_SITE}" pos="0 0 {POLE_LENGTH}" size="0.05" group="5"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="{SLIDER_JOINT}" joint="{SLIDER_JOINT}" gear="{MAX_FORCE}" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def cartpole_spec() -> mujoco.MjSpec:
    """Return the model: no contacts, the rail's ends are joint limits."""
    return load_mujoco().MjSpec.from_string(_XML.strip())


def cartpole_robot() -> EntityCfg:
    """Return the cart-pole at the middle of its rail with the pole hanging down."""
    return EntityCfg(model=cartpole_spec, init_state=InitialStateCfg(joint_pos={HINGE_JOINT: 3.141592653589793}))
