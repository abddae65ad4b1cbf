"""Unitree G1: a humanoid of 29 joints and 33.3 kg with position actuators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.robots.build import build_spec, read_description
from tickgraph.robots.entity import EntityCfg, InitialStateCfg
from tickgraph.robots.look import ACCENT, BLACK, GRAPHITE, SILVER, WHITE, ball, block, disc, rod

if TYPE_CHECKING:
    import mujoco

ROOT_BODY = "pelvis"
TORSO_BODY = "torso_link"
PELVIS_IMU_SITE = "imu_in_pelvis"
TORSO_IMU_SITE = "imu_in_torso"
FOOT_BODIES = ("left_ankle_roll_link", "right_ankle_roll_link")
FOOT_SITES = ("left_foot", "right_foot")  # on the sole, 0.04 m ahead of the ankle
FOOT_GEOMS = tuple(f"{side}_foot{i}_collision" for side in ("left", "right") for i in range(1, 8))
HAND_SITES = ("left_palm", "right_palm")
LEG_JOINTS = ".*_(hip|knee|ankle)_.*|.*_knee_joint"
WAIST_JOINTS = "waist_.*"
ARM_JOINTS = ".*_(shoulder|elbow|wrist)_.*"
# The fourteen bodies that motion tracking follows.
TRACKED_BODIES = (
    "pelvis",
    "left_hip_roll_link",
    "left_knee_link",
    "left_ankle_roll_link",
    "right_hip_roll_link",
    "right_knee_link",
    "right_ankle_roll_link",
    "torso_link",
    "left_shoulder_roll_link",
    "left_elbow_link",
    "left_wrist_yaw_link",
    "right_shoulder_roll_link",
    "right_elbow_link",
    "right_wrist_yaw_link",
)
HOME_HEIGHT = 0.754  # m, of the pelvis
HOME_JOINT_POS = {
    ".*_hip_pitch_joint": -0.312,
    ".*_knee_joint": 0.669,
    ".*_ankle_pitch_joint": -0.363,
    ".*_shoulder_pitch_joint": 0.2,
    "left_shoulder_roll_joint": 0.2,
    "right_shoulder_roll_joint": -0.2,
    ".*_elbow_joint": 0.6,
}
_EXCLUDED = (
    ("left_elbow_link", "left_wrist_pitch_link"),
    ("right_elbow_link", "right_wrist_pitch_link"),
    ("pelvis", "left_hip_roll_link"),
    ("pelvis", "right_hip_roll_link"),
)


def g1_spec() -> mujoco.MjSpec:
    """Return the model: primitives collide with the ground and with one another."""
    spec = build_spec("g1", read_description("g1.json"))
    for geom in spec.geoms:
        geom.contype, geom.conaffinity = 1, 1
        if geom.name in FOOT_GEOMS:
            geom.condim, geom.priority = 3, 1
            geom.friction[0] = 0.6
        else:
            geom.condim, geom.priority = 1, 0
    for first, second in _EXCLUDED:
        spec.add_exclude(bodyname1=first, bodyname2=second)
    return spec


def g1_robot() -> EntityCfg:
    """Return the robot standing with bent knees, pelvis at 0.754 m."""
    return EntityCfg(
        model=g1_spec,
        init_state=InitialStateCfg(pos=(0.0, 0.0, HOME_HEIGHT), joint_pos=dict(HOME_JOINT_POS)),
        look=g1_look,
    )


def g1_look(spec: mujoco.MjSpec) -> None:
    """Add what pictures show in place of the collision primitives."""
    pelvis, torso = spec.body(ROOT_BODY), spec.body(TORSO_BODY)
    ball(pelvis, (0.0, 0.0, -0.07), (0.075, 0.085, 0.07), GRAPHITE)
    rod(pelvis, (0.0, -0.05, -0.1), (0.0, 0.05, -0.1), 0.045, GRAPHITE)
    disc(spec.body("waist_yaw_link"), (0.0, 0.0, -0.02), (0.0, 0.0, 0.05), 0.06, BLACK)
    rod(torso, (0.005, -0.035, 0.07), (0.005, 0.035, 0.07), 0.066, SILVER)
    rod(torso, (0.005, -0.06, 0.19), (0.005, 0.06, 0.19), 0.082, WHITE)
    rod(torso, (0.0, -0.075, 0.255), (0.0, 0.075, 0.255), 0.05, WHITE)
    ball(torso, (0.075, 0.0, 0.2), (0.02, 0.045, 0.035), ACCENT)
    disc(torso, (0.0, 0.0, 0.29), (0.0, 0.0, 0.36), 0.035, GRAPHITE)
    ball(torso, (0.005, 0.0, 0.42), (0.068, 0.062, 0.085), WHITE)
    ball(torso, (0.03, 0.0, 0.425), (0.05, 0.054, 0.062), BLACK)
    for side, out in (("left", 1), ("right", -1)):
        hip_pitch, hip_roll = spec.body(f"{side}_hip_pitch_link"), spec.body(f"{side}_hip_roll_link")
        thigh, shin = spec.body(f"{side}_hip_yaw_link"), spec.body(f"{side}_knee_link")
        foot, ankle = spec.body(f"{side}_ankle_roll_link"), spec.body(f"{side}_ankle_pitch_link")
        disc(hip_pitch, (0.0, -0.02 * out, 0.0), (0.0, 0.055 * out, 0.0), 0.052, GRAPHITE)
        disc(hip_roll, (-0.045, 0.0, 0.0), (0.05, 0.0, 0.0), 0.05, BLACK)
        rod(hip_roll, (0.015, 0.0, -0.03), (0.022, 0.0, -0.11), 0.055, WHITE)
        rod(thigh, (0.0, 0.0, -0.02), (-0.065, 0.0, -0.15), 0.052, SILVER)
        disc(shin, (0.0, -0.042, 0.0), (0.0, 0.042, 0.0), 0.048, GRAPHITE)
        rod(shin, (0.005, 0.0, -0.03), (0.015, 0.0, -0.14), 0.044, WHITE)
        rod(shin, (0.012, 0.0, -0.14), (0.004, 0.0, -0.27), 0.03, SILVER)
        disc(ankle, (0.0, -0.03, 0.0), (0.0, 0.03, 0.0), 0.024, BLACK)
        block(foot, (0.037, 0.0, -0.025), (0.085, 0.026, 0.009), BLACK)
        rod(foot, (-0.035, 0.0, -0.014), (0.1, 0.0, -0.018), 0.014, GRAPHITE)
        shoulder, upper = spec.body(f"{side}_shoulder_pitch_link"), spec.body(f"{side}_shoulder_roll_link")
        arm, elbow = spec.body(f"{side}_shoulder_yaw_link"), spec.body(f"{side}_elbow_link")
        forearm, hand = spec.body(f"{side}_wrist_roll_link"), spec.body(f"{side}_wrist_yaw_link")
        disc(shoulder, (0.0, -0.02 * out, 0.0), (0.0, 0.045 * out, -0.012), 0.042, GRAPHITE)
        ball(upper, (0.0, 0.0, -0.01), (0.045, 0.042, 0.05), WHITE)
        rod(upper, (0.0, 0.004 * out, -0.03), (0.0, 0.006 * out, -0.08), 0.034, WHITE)
        rod(arm, (0.0, 0.0, 0.0), (0.01, 0.0, -0.07), 0.033, SILVER)
        disc(elbow, (0.0, -0.034, 0.0), (0.0, 0.034, 0.0), 0.033, GRAPHITE)
        rod(elbow, (0.02, 0.0, -0.005), (0.08, 0.0, -0.01), 0.032, WHITE)
        rod(forearm, (0.0, 0.0, 0.0), (0.045, 0.0, 0.0), 0.029, SILVER)
        rod(hand, (0.0, 0.0, 0.0), (0.04, 0.0, 0.0), 0.024, GRAPHITE)
        block(hand, (0.075, 0.0, 0.0), (0.04, 0.016, 0.03), BLACK)
        rod(hand, (0.1, 0.0, 0.02), (0.14, -0.015 * out, 0.018), 0.011, BLACK)
        rod(hand, (0.1, 0.0, -0.015), (0.14, -0.015 * out, -0.013), 0.011, BLACK)
