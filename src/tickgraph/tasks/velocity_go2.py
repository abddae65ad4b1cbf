"""Unitree Go2 trots on flat ground at a commanded velocity; the figures of the task are those of public Go2 tasks."""

from __future__ import annotations

import math
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
)
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.robots.go2 import FOOT_GEOMS, FOOT_RADIUS, FOOT_SITES, LEGS, go2_robot
from tickgraph.run.config import Task, TrainCfg
from tickgraph.sim.scene import CapacityCfg, SceneCfg, SensorCfg, SolverCfg
from tickgraph.tasks.velocity_figures import walking_evaluation

STANCE_FRACTION = 0.6  # of a foot's cycle
FOOT_CONTACTS = {leg: f"{leg}_foot_contact" for leg in LEGS}


def go2_walk_flat() -> Task:
    """Return the task: 20 s episodes at 50 Hz, observations 47 (actor) and 50 (critic), 12 actions."""
    contacts = tuple(FOOT_CONTACTS.values())
    scene = SceneCfg(
        entities={"robot": go2_robot()},
        sensors=tuple(
            SensorCfg(sensor, "contact", geom, objtype="geom", ref="terrain")
            for sensor, geom in zip(contacts, FOOT_GEOMS, strict=True)
        ),
        timestep=0.01,
        # At 10 iterations a landing foot now and then (once in 15,000 steps of random actions) leaves the solver
        # unconverged and throws the robot away at 100 rad/s and more; at 20 none did in 300,000 steps.
        solver=SolverCfg(iterations=20, ls_iterations=50),
        # Of random actions, none took more than 13 contacts of one world, 4 on average, and 74 rows.
        capacity=CapacityCfg(nconmax=16, njmax=96),
    )
    actor, critic = _observed(), _observed()
    critic["base_lin_vel"] = ObservationTermCfg(mdp.base_lin_vel)
    # The terms of public Go2 tasks at scales that two CPU cores learn from within minutes (docs/performance.md has the
    # search): sharper tracking, milder penalties, and one arc that all four feet must follow at once. With the public
    # scales and a mean over the feet, the robot learns to stand.
    rewards = {
        "tracking_lin_vel": RewardTermCfg(mdp.track_lin_vel_xy_exp, 2.0, _twist(std=0.5)),
        "tracking_ang_vel": RewardTermCfg(mdp.track_ang_vel_z_exp, 0.5, _twist(std=0.5)),
        "lin_vel_z": RewardTermCfg(mdp.lin_vel_z_l2, -2.0),
        "ang_vel_xy": RewardTermCfg(mdp.ang_vel_xy_l2, -0.05),
        "base_height": RewardTermCfg(mdp.base_height_l2, -50.0, {"target_height": 0.3}),
        "action_rate": RewardTermCfg(mdp.action_rate_l2, -0.005),
        "similar_to_default": RewardTermCfg(mdp.joint_deviation_l1, -0.1),
        "contact": RewardTermCfg(
            mdp.gait_contact,
            0.96,
            _gait(stance_fraction=STANCE_FRACTION, sensor_names=contacts, force_threshold=0.1),
        ),
        "swing_feet_z": RewardTermCfg(
            mdp.swing_foot_arc,
            1.5,
            _gait(
                stance_height=FOOT_RADIUS,
                target_height=0.09,
                sigma=0.004,
                stance_fraction=STANCE_FRACTION,
                asset_cfg=_feet(),
            ),
        ),
    }
    half = (-0.5, 0.5)
    env = EnvCfg(
        scene=scene,
        decimation=2,
        episode_length_s=20.0,
        num_envs=256,
        diverged_speed=50.0,  # rad/s; the motors turn at 30 at most
        observations={"actor": ObservationGroupCfg(actor), "critic": ObservationGroupCfg(critic)},
        actions={"joint_pos": mdp.JointPositionActionCfg(scale=0.4)},
        commands={
            # Drawn once an episode.
            "twist": mdp.UniformVelocityCommandCfg(
                ranges=mdp.VelocityRanges(lin_vel_x=(-0.6, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_z=(-0.8, 0.8)),
            ),
            # A trot: FL with RR, FR with RL half a period apart.
            "gait": mdp.GaitPhaseCfg(frequency=2.0, offsets=(0.0, math.pi, math.pi, 0.0)),
        },
        rewards=rewards,
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out),
            "bad_orientation": TerminationTermCfg(mdp.bad_orientation, {"limit_angle": math.radians(60.0)}),
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
                mdp.randomize_pd_gains,
                "reset",
                {"kp_range": (31.5, 38.5), "kd_range": (0.45, 0.55), "operation": "abs"},
            ),
        },
        metrics={
            "lin_vel_error": MetricTermCfg(mdp.lin_vel_error, _twist()),
            "yaw_rate_error": MetricTermCfg(mdp.yaw_rate_error, _twist()),
        },
    )
    # Sized for two CPU cores: small networks, two updates a tick, three-step returns (docs/performance.md).
    train = TrainCfg(
        algo=FlashSacCfg(
            actor_width=48,
            actor_blocks=1,
            critic_width=64,
            critic_blocks=1,
            batch_size=512,
            gamma=0.97,
            n_step=3,
            lr_start=6e-4,
            lr_end=3e-4,
        ),
        iterations=14_000,
        updates_per_iteration=2,
        learning_starts=100,
        replay_slots=4096,
        checkpoint_interval=2000,
    )
    sac = replace(
        train,
        algo=SacCfg(
            actor_width=96,
            critic_width=96,
            batch_size=512,
            n_step=3,
            tau=0.02,
            v_max=5.0,
            policy_period=2,
            lr_start=6e-4,
            lr_end=3e-4,
        ),
    )
    evaluation = walking_evaluation(FOOT_CONTACTS, randomized=("pd_gains",))
    return Task(env=env, train=train, presets={"sac": sac}, evaluation=evaluation)


def _observed() -> dict[str, ObservationTermCfg]:
    return {
        "base_ang_vel": ObservationTermCfg(mdp.base_ang_vel),
        "projected_gravity": ObservationTermCfg(mdp.projected_gravity),
        "joint_pos": ObservationTermCfg(mdp.joint_pos_rel),
        "joint_vel": ObservationTermCfg(mdp.joint_vel_rel),
        "last_action": ObservationTermCfg(mdp.last_action),
        "command": ObservationTermCfg(mdp.generated_commands, _twist()),
        "gait_phase": ObservationTermCfg(mdp.gait_clock, _gait()),
    }


def _twist(**more: Any) -> Params:
    return {"command_name": "twist", **more}


def _gait(**more: Any) -> Params:
    return {"command_name": "gait", **more}


def _feet() -> SceneEntityCfg:
    return SceneEntityCfg("robot", site_names=FOOT_SITES, preserve_order=True)
