"""Unitree G1 walks on flat ground at a commanded velocity; the figures of the task are those of a public G1 task."""

from __future__ import annotations

import math
from typing import Any

from tickgraph import mdp
from tickgraph.env.config import (
    CurriculumTermCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    Params,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
)
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.robots.g1 import FOOT_BODIES, FOOT_SITES, PELVIS_IMU_SITE, TORSO_BODY, TORSO_IMU_SITE, g1_robot
from tickgraph.run.config import Task, TrainCfg
from tickgraph.sim.scene import CapacityCfg, SceneCfg, SensorCfg
from tickgraph.tasks.velocity_figures import walking_evaluation

FOOT_CONTACTS = {"left_foot": "left_foot_contact", "right_foot": "right_foot_contact"}

# How much a joint's distance from the standing pose matters.
POSE_WEIGHTS = {
    ".*_hip_pitch_joint": 0.01,
    ".*_hip_roll_joint": 2.0,
    ".*_hip_yaw_joint": 5.0,
    ".*_knee_joint": 0.01,
    ".*_ankle_(pitch|roll)_joint": 5.0,
    "waist_.*|.*_(shoulder|elbow|wrist)_.*": 50.0,
}


def g1_walk_flat() -> Task:
    """Return the task: 20 s episodes at 50 Hz, observations 98 (actor) and 101 (critic), 29 actions."""
    scene = SceneCfg(
        entities={"robot": g1_robot()},
        sensors=(
            SensorCfg("torso_gyro", "gyro", TORSO_IMU_SITE),
            SensorCfg("pelvis_local_linvel", "velocimeter", PELVIS_IMU_SITE),
            *(
                SensorCfg(sensor, "contact", body, objtype="body", ref="terrain")
                for sensor, body in zip(FOOT_CONTACTS.values(), FOOT_BODIES, strict=True)
            ),
        ),
        timestep=1.0 / 150.0,
        # Standing at first, each foot touches at 14 points: 28 contacts, 112 rows. Falling anyhow took 160 rows.
        capacity=CapacityCfg(nconmax=32, njmax=272),
    )
    actor, critic = _observed(), _observed()
    critic["pelvis_lin_vel"] = ObservationTermCfg(mdp.builtin_sensor, {"sensor_name": "pelvis_local_linvel"}, scale=2.0)
    rewards = {
        "tracking_lin_vel": RewardTermCfg(
            mdp.track_lin_vel_xy_exp, 2.0, _twist(std=0.5, sensor_name="pelvis_local_linvel")
        ),
        "tracking_ang_vel": RewardTermCfg(mdp.track_ang_vel_z_exp, 1.5, _twist(std=0.5, sensor_name="torso_gyro")),
        "penalty_ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, -1.0, {"sensor_name": "torso_gyro"}),
        "penalty_orientation": RewardTermCfg(mdp.flat_orientation_l2, -10.0, {"asset_cfg": _torso()}),
        "penalty_action_rate": RewardTermCfg(mdp.action_rate_l2, -5.0),
        "pose": RewardTermCfg(mdp.joint_deviation_l2, -0.5, {"weights": dict(POSE_WEIGHTS)}),
        "penalty_feet_ori": RewardTermCfg(mdp.feet_orientation_l2, -25.0, {"asset_cfg": _feet()}),
        "feet_phase": RewardTermCfg(mdp.feet_phase, 5.0, _gait(swing_height=0.09, sigma=0.005, asset_cfg=_feet())),
        "alive": RewardTermCfg(mdp.alive, 10.0),
    }
    half = (-0.5, 0.5)
    env = EnvCfg(
        scene=scene,
        decimation=3,
        episode_length_s=20.0,
        num_envs=4096,
        observations={
            "actor": ObservationGroupCfg(actor, enable_corruption=True),
            "critic": ObservationGroupCfg(critic),
        },
        actions={"joint_pos": mdp.JointPositionActionCfg(scale=1.0)},
        commands={
            # Drawn once an episode.
            "twist": mdp.UniformVelocityCommandCfg(
                ranges=mdp.VelocityRanges(lin_vel_x=(-0.6, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_z=(-0.8, 0.8)),
                min_planar_speed=0.2,
            ),
            "gait": mdp.GaitPhaseCfg(frequency=1.5, offsets=(0.0, math.pi)),
        },
        rewards=rewards,
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out),
            "bad_orientation": TerminationTermCfg(
                mdp.bad_orientation, {"limit_angle": math.radians(65.0), "asset_cfg": _torso()}
            ),
            "base_height": TerminationTermCfg(mdp.root_height_below_minimum, {"minimum_height": 0.3}),
        },
        events={
            "root_state": EventTermCfg(
                mdp.reset_root_state_uniform,
                "reset",
                {
                    "pose_range": {"x": half, "y": half, "yaw": (-math.pi, math.pi)},
                    "velocity_range": {axis: half for axis in ("x", "y", "z", "roll", "pitch", "yaw")},
                },
            ),
            "pd_gains": EventTermCfg(
                mdp.randomize_pd_gains, "reset", {"kp_range": (0.9, 1.1), "kd_range": (0.9, 1.1), "operation": "scale"}
            ),
        },
        curriculum={
            # The penalties above therefore act with 1/16 to 1/8 of their weights.
            "penalty_scale": CurriculumTermCfg(
                mdp.penalty_scale,
                {
                    "initial": 0.0625,
                    "low": 0.0625,
                    "high": 0.125,
                    "level_down": 150.0,
                    "level_up": 750.0,
                    "degree": 0.001,
                },
            ),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, _twist()),
            "yaw_rate_error": MetricTermCfg(mdp.yaw_rate_error, _twist()),
        },
    )
    # Sized for a GPU: 20.5 million env steps, 4 replayed rows per step.
    train = TrainCfg(
        algo=FlashSacCfg(batch_size=2048, gamma=0.97, tau=0.05),
        iterations=5000,
        updates_per_iteration=8,
        learning_starts=49,
        replay_slots=256,
        checkpoint_replay=False,  # it is a gigabyte
        matmul_precision="high",
    )
    evaluation = walking_evaluation(FOOT_CONTACTS, randomized=("pd_gains",), straight_on=False, gyro="torso_gyro")
    # 10.2 million env steps, 32 replayed rows per step; the rewards' sum over 1 / (1 - gamma) steps is within v_max.
    sac = TrainCfg(
        algo=SacCfg(),
        num_envs=2048,
        iterations=5000,
        updates_per_iteration=8,
        learning_starts=10,
        replay_slots=512,
        checkpoint_replay=False,
        matmul_precision="high",
    )
    return Task(env=env, train=train, presets={"sac": sac}, evaluation=evaluation)


def _observed() -> dict[str, ObservationTermCfg]:
    return {
        "torso_gyro": ObservationTermCfg(mdp.builtin_sensor, {"sensor_name": "torso_gyro"}, scale=0.25),
        "torso_up": ObservationTermCfg(mdp.up_vector, {"asset_cfg": _torso()}),
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, noise=UniformNoiseCfg(-0.01, 0.01)),
        "joint_vel": ObservationTermCfg(mdp.joint_vel_rel, noise=UniformNoiseCfg(-0.1, 0.1), scale=0.05),
        "last_action": ObservationTermCfg(mdp.last_action),
        "command": ObservationTermCfg(mdp.generated_commands, _twist()),
        "gait_phase": ObservationTermCfg(mdp.gait_phase, _gait()),
    }


def _twist(**more: Any) -> Params:
    return {"command_name": "twist", **more}


def _gait(**more: Any) -> Params:
    return {"command_name": "gait", **more}


def _torso() -> SceneEntityCfg:
    return SceneEntityCfg("robot", body_names=TORSO_BODY)


def _feet() -> SceneEntityCfg:
    return SceneEntityCfg("robot", body_names=FOOT_BODIES, site_names=FOOT_SITES, preserve_order=True)
