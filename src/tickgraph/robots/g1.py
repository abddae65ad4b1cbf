"""Unitree G1: a humanoid of 29 joints and 33.3 kg with position actuators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.robots.build import build_spec, read_description
from tickgraph.robots.entity import EntityCfg, InitialStateCfg

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
    )
