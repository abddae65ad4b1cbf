"""Unitree G1 imitates reference motion with its whole body; the figures of the task are those of a public G1 task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tickgraph import mdp
from tickgraph.env.config import (
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
from tickgraph.mdp.motion_command import ERRORS
from tickgraph.motion.sampler import SamplerCfg
from tickgraph.robots.g1 import FOOT_GEOMS, PELVIS_IMU_SITE, TORSO_BODY, TORSO_IMU_SITE, TRACKED_BODIES, g1_robot
from tickgraph.run.config import Task, TrainCfg, VideoCfg
from tickgraph.sim.scene import CapacityCfg, SceneCfg, SensorCfg
from tickgraph.tasks.tracking_figures import tracking_evaluation

END_EFFECTORS = ("left_ankle_roll_link", "right_ankle_roll_link", "left_wrist_yaw_link", "right_wrist_yaw_link")
KEPT_OFF_THE_GROUND = (
    "pelvis",
    ".*_hip_roll_link",
    ".*_knee_link",
    TORSO_BODY,
    ".*_shoulder_roll_link",
    ".*_elbow_link",
)
# What the real robot does not know of itself: how fast its base is, and where it is.
UNKNOWN_TO_THE_ROBOT = ("motion_anchor_pos_b", "base_lin_vel")


def g1_motion_tracking() -> Task:
    """Return the task: 10 s episodes at 50 Hz, observations 160 (actor) and 289 (critic), 29 actions."""
    actor, critic = _observed(), _observed()
    critic["body_pos"] = ObservationTermCfg(mdp.robot_body_pos_b, _motion())
    critic["body_ori"] = ObservationTermCfg(mdp.robot_body_ori_b, _motion())
    # The public task shows its critic one velocity twice; here the second one is that of the pelvis' origin.
    critic["root_lin_vel"] = ObservationTermCfg(mdp.base_lin_vel)
    env = EnvCfg(
        scene=SceneCfg(
            entities={"robot": g1_robot()},
            sensors=(
                SensorCfg("torso_gyro", "gyro", TORSO_IMU_SITE),
                SensorCfg("pelvis_local_linvel", "velocimeter", PELVIS_IMU_SITE),
            ),
            timestep=1.0 / 150.0,
            # Exactly on the clips worlds took 27 contacts each, with random actions one took 51. Lying and flailing,
            # with no termination, one took 205 rows.
            capacity=CapacityCfg(nconmax=40, njmax=288),
        ),
        decimation=3,
        episode_length_s=10.0,
        num_envs=2048,
        observations={
            "actor": ObservationGroupCfg(actor, enable_corruption=True),
            "critic": ObservationGroupCfg(critic),
        },
        actions={"joint_pos": mdp.JointPositionActionCfg(scale=2.0)},
        commands={
            "motion": mdp.MotionCommandCfg(
                clips=("squat", "march"),
                anchor_body_name=TORSO_BODY,
                body_names=TRACKED_BODIES,
                sampler=SamplerCfg(mode="adaptive"),
                pose_range={
                    **{"x": (-0.05, 0.05), "y": (-0.05, 0.05), "z": (-0.01, 0.01)},
                    **{"roll": (-0.1, 0.1), "pitch": (-0.1, 0.1), "yaw": (-0.2, 0.2)},
                },
                velocity_range=_velocity_range(),
                joint_position_range=(-0.1, 0.1),
            ),
        },
        rewards={
            "motion_global_root_pos": RewardTermCfg(mdp.motion_global_anchor_position_error_exp, 1.0, _motion(std=0.3)),
            "motion_global_root_ori": RewardTermCfg(
                mdp.motion_global_anchor_orientation_error_exp, 0.5, _motion(std=0.4)
            ),
            "motion_body_pos": RewardTermCfg(mdp.motion_relative_body_position_error_exp, 2.0, _motion(std=0.3)),
            "motion_body_ori": RewardTermCfg(mdp.motion_relative_body_orientation_error_exp, 1.0, _motion(std=0.4)),
            "motion_body_lin_vel": RewardTermCfg(
                mdp.motion_global_body_linear_velocity_error_exp, 1.0, _motion(std=1.0)
            ),
            "motion_body_ang_vel": RewardTermCfg(
                mdp.motion_global_body_angular_velocity_error_exp, 1.0, _motion(std=3.14)
            ),
            "action_rate": RewardTermCfg(mdp.action_rate_l2, -0.1),
            "joint_limit": RewardTermCfg(mdp.joint_pos_hard_limits_l2, -2.0),
            "undesired_contacts": RewardTermCfg(
                mdp.bodies_below_height,
                -0.1,
                {"height": 0.05, "asset_cfg": SceneEntityCfg("robot", body_names=KEPT_OFF_THE_GROUND)},
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out),
            "motion_clip_end": TerminationTermCfg(mdp.motion_clip_end, _motion()),
            "anchor_pos": TerminationTermCfg(mdp.bad_anchor_pos_z_only, _motion(threshold=0.5)),
            "anchor_ori": TerminationTermCfg(mdp.bad_anchor_ori, _motion(threshold=0.8)),
            "ee_body_pos": TerminationTermCfg(
                mdp.bad_motion_body_pos_z_only, _motion(threshold=0.5, body_names=END_EFFECTORS)
            ),
        },
        metrics={f"error_{name}": MetricTermCfg(mdp.motion_error, _motion(name=name)) for name in ERRORS},
    )
    # Sized for a GPU: 51.2 million env steps, 4 replayed rows per step.
    train = TrainCfg(
        algo=FlashSacCfg(batch_size=2048, gamma=0.99, tau=0.05),
        iterations=25_000,
        updates_per_iteration=4,
        learning_starts=98,
        replay_slots=512,
        checkpoint_replay=False,  # it is gigabytes
        matmul_precision="high",
    )
    sac = replace(
        train,
        algo=SacCfg(
            gamma=0.99,
            tau=0.05,
            atoms=501,
            alpha_init=0.1,
            target_entropy_ratio=0.5,
            max_grad_norm=10.0,
            policy_period=2,
        ),
        learning_starts=4,
    )
    evaluation = tracking_evaluation("motion", without=tuple(_randomization()))
    return Task(
        env=env,
        train=train,
        presets={"sac": sac},
        edits={"sac": _randomize},
        evaluation=evaluation,
        video=VideoCfg(worlds=2),  # world i plays clip i
    )


def g1_motion_tracking_blind() -> Task:
    """Return the task for the real robot: the actor, 154, sees neither its base's velocity nor where the anchor is."""
    task = g1_motion_tracking()
    terms = task.env.observations["actor"].terms
    task.env.observations["actor"].terms = {k: v for k, v in terms.items() if k not in UNKNOWN_TO_THE_ROBOT}
    return task


def _randomize(env: EnvCfg) -> None:
    """Let robots differ, push them, and have the actor read encoders: the public task does so for SAC alone."""
    env.events.update(_randomization())
    env.observations["actor"].terms["joint_pos"].params["biased"] = True


def _randomization() -> dict[str, EventTermCfg]:
    robots = {
        "base_com": EventTermCfg(
            mdp.randomize_field,
            "startup",
            {
                "field": "body_ipos",
                "operation": "add",
                "ranges": {0: (-0.025, 0.025), 1: (-0.05, 0.05), 2: (-0.05, 0.05)},  # m, in the torso's frame
                "asset_cfg": SceneEntityCfg("robot", body_names=TORSO_BODY),
            },
        ),
        "encoder_bias": EventTermCfg(mdp.randomize_encoder_bias, "startup", {"bias_range": (-0.01, 0.01)}),
        "foot_friction": EventTermCfg(
            mdp.randomize_field,
            "startup",
            {
                "field": "geom_friction",
                "operation": "abs",
                "ranges": (0.3, 1.2),
                "shared": True,  # both feet walk on one ground
                "asset_cfg": SceneEntityCfg("robot", geom_names=FOOT_GEOMS),
            },
        ),
    }
    push = EventTermCfg(
        mdp.push_by_setting_velocity, "interval", {"velocity_range": _velocity_range()}, interval_range_s=(1.0, 3.0)
    )
    return {**robots, "push_robot": push}


def _velocity_range() -> dict[str, tuple[float, float]]:
    return {
        **{"x": (-0.5, 0.5), "y": (-0.5, 0.5), "z": (-0.2, 0.2)},
        **{"roll": (-0.52, 0.52), "pitch": (-0.52, 0.52), "yaw": (-0.78, 0.78)},
    }


def _observed() -> dict[str, ObservationTermCfg]:
    return {
        "command": ObservationTermCfg(mdp.generated_commands, _motion()),
        "motion_anchor_pos_b": ObservationTermCfg(mdp.motion_anchor_pos_b, _motion()),
        "motion_anchor_ori_b": ObservationTermCfg(mdp.motion_anchor_ori_b, _motion()),
        "base_lin_vel": _noisy(mdp.builtin_sensor, 0.1, sensor_name="pelvis_local_linvel"),
        "base_ang_vel": _noisy(mdp.builtin_sensor, 0.2, sensor_name="torso_gyro"),
        "joint_pos": _noisy(mdp.joint_pos_rel, 0.01),
        "joint_vel": _noisy(mdp.joint_vel_rel, 1.5),
        "last_action": ObservationTermCfg(mdp.last_action),
    }


def _noisy(func: Any, half: float, **params: Any) -> ObservationTermCfg:
    return ObservationTermCfg(func, params, noise=UniformNoiseCfg(-half, half))


def _motion(**more: Any) -> Params:
    return {"command_name": "motion", **more}
