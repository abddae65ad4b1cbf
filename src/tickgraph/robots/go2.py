"""Unitree Go2: a quadruped of 12 joints and 15.2 kg with position actuators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.robots.build import build_spec, read_description
from tickgraph.robots.entity import EntityCfg, InitialStateCfg
from tickgraph.robots.look import ACCENT, BLACK, GRAPHITE, SILVER, ball, block, disc, rod

if TYPE_CHECKING:
    import mujoco

LEGS = ("FL", "FR", "RL", "RR")  # the order of joints, feet and gait phases; actuators come FR FL RR RL
BASE_BODY = "base"
IMU_SITE = "imu"
FOOT_GEOMS = LEGS
FOOT_SITES = tuple(f"{leg}_foot" for leg in LEGS)  # centre of the foot's sphere
FOOT_BODIES = tuple(f"{leg}_calf" for leg in LEGS)
FOOT_RADIUS = 0.022  # m
HIP_JOINTS = ".*_hip_joint"
THIGH_JOINTS = ".*_thigh_joint"
CALF_JOINTS = ".*_calf_joint"
HOME_HEIGHT = 0.335  # m, soles just above the ground in the home pose; at 0.30 they would start 3 cm deep in it
STANDING_HEIGHT = 0.30  # m, where the base comes to rest when the actuators hold the home pose, within 5 mm
HOME_JOINT_POS = {HIP_JOINTS: 0.0, "F[LR]_thigh_joint": 0.8, "R[LR]_thigh_joint": 1.0, CALF_JOINTS: -1.5}


def go2_spec() -> mujoco.MjSpec:
    """Return the model: primitives collide with the ground but not with one another."""
    spec = build_spec("go2", read_description("go2.json"))
    for geom in spec.geoms:
        geom.contype, geom.conaffinity = 1, 2
        if geom.name in FOOT_GEOMS:
            geom.priority, geom.condim = 1, 6
            geom.solref = [0.01, 1.0]
            geom.solimp[:3] = [0.015, 1.0, 0.023]
            geom.margin = 0.005
            spec.body(f"{geom.name}_calf").add_site(name=f"{geom.name}_foot", pos=geom.pos, group=5)
        else:
            geom.margin = 0.001
    return spec


def go2_robot() -> EntityCfg:
    """Return the robot standing at its home pose: soles just above the ground, calves at -1.5 rad."""
    return EntityCfg(
        model=go2_spec,
        init_state=InitialStateCfg(pos=(0.0, 0.0, HOME_HEIGHT), joint_pos=dict(HOME_JOINT_POS)),
        look=go2_look,
    )


def go2_look(spec: mujoco.MjSpec) -> None:
    """Add what pictures show in place of the collision primitives."""
    base = spec.body(BASE_BODY)
    block(base, (0.0, 0.0, 0.005), (0.175, 0.055, 0.05), SILVER)
    rod(base, (-0.16, 0.05, 0.0), (0.16, 0.05, 0.0), 0.042, SILVER)
    rod(base, (-0.16, -0.05, 0.0), (0.16, -0.05, 0.0), 0.042, SILVER)
    block(base, (-0.01, 0.0, 0.054), (0.13, 0.05, 0.006), GRAPHITE)
    block(base, (-0.01, 0.0, 0.061), (0.10, 0.006, 0.002), ACCENT)
    ball(base, (0.265, 0.0, 0.015), (0.075, 0.062, 0.052), SILVER)
    ball(base, (0.315, 0.0, 0.008), (0.032, 0.05, 0.034), BLACK)
    ball(base, (0.293, 0.0, -0.045), (0.04, 0.04, 0.04), BLACK)
    for leg in LEGS:
        fore, out = (1 if leg[0] == "F" else -1), (1 if leg[1] == "L" else -1)
        hip, thigh, calf = spec.body(f"{leg}_hip"), spec.body(f"{leg}_thigh"), spec.body(f"{leg}_calf")
        disc(hip, (-0.04 * fore, 0.0, 0.0), (0.035 * fore, 0.0, 0.0), 0.046, GRAPHITE)
        disc(hip, (0.0, 0.045 * out, 0.0), (0.0, 0.078 * out, 0.0), 0.046, SILVER)
        disc(thigh, (0.0, -0.016 * out, 0.0), (0.0, 0.026 * out, 0.0), 0.047, GRAPHITE)
        disc(thigh, (0.0, 0.026 * out, 0.0), (0.0, 0.029 * out, 0.0), 0.03, ACCENT)
        rod(thigh, (-0.008, 0.0, -0.03), (0.0, 0.0, -0.19), 0.027, SILVER)
        disc(calf, (0.0, -0.02, 0.0), (0.0, 0.02, 0.0), 0.028, GRAPHITE)
        rod(calf, (0.0, 0.0, 0.0), (0.014, 0.0, -0.12), 0.016, SILVER)
        rod(calf, (0.014, 0.0, -0.12), (-0.002, 0.0, -0.205), 0.013, GRAPHITE)
        ball(calf, (-0.002, 0.0, -0.213), (FOOT_RADIUS, FOOT_RADIUS, FOOT_RADIUS), BLACK)
