"""Terms that no shipped task has: they are static, and compiled they compute what they compute eager."""

import torch
from mdp_toys import ROBOT, robot_cfg

from tickgraph import mdp
from tickgraph.env.config import (
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
)
from tickgraph.env.env import Env
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg, SensorCfg

FEET = ("base", "b")


def velocity_cfg():
    """The two-hinge robot on the ground, with the terms of velocity and reaching tasks of Isaac Lab and mjlab."""
    twist, feet = {"command_name": "twist"}, {"sensor_names": FEET}
    moving = {**twist, "command_threshold": 0.05}
    sites = {"asset_cfg": SceneEntityCfg("robot", site_names=("b_tip", "b_root"), preserve_order=True)}
    pose = {"command_name": "pose", "asset_cfg": SceneEntityCfg("robot", body_names="b")}
    std = {"std_standing": 0.1, "std_walking": {"a": 0.2}, "std_running": 0.3}
    robot = ROBOT.replace('contype="0" conaffinity="0"', "")
    robot = robot.replace('<option gravity="0 0 0"/>', '<option><flag filterparent="disable"/></option>')
    robot = robot.replace('<site name="b_tip"', '<site name="b_root"/><site name="b_tip"')
    observed = {
        "air": ObservationTermCfg(mdp.foot_air_time, feet),
        "forces": ObservationTermCfg(mdp.foot_contact_forces, feet),
        "lin_vel": ObservationTermCfg(mdp.root_lin_vel_w),
        "ang_vel": ObservationTermCfg(mdp.root_ang_vel_w),
        "limits": ObservationTermCfg(mdp.joint_pos_limit_normalized),
    }
    rewards = {
        "lin": (mdp.track_linear_velocity, {**twist, "std": 0.5}),
        "ang": (mdp.track_angular_velocity, {**twist, "std": 0.5}),
        "lin_yaw": (mdp.track_lin_vel_xy_yaw_frame_exp, {**twist, "std": 0.5}),
        "ang_world": (mdp.track_ang_vel_z_world_exp, {**twist, "std": 0.5}),
        "posture": (mdp.variable_posture, {**twist, **std}),
        "still": (mdp.stand_still_joint_deviation_l1, twist),
        "body_rate": (mdp.body_angular_velocity_penalty, {"asset_cfg": SceneEntityCfg("robot", body_names="a")}),
        "momentum": (mdp.angular_momentum_penalty, {"sensor_name": "momentum"}),
        "itself": (mdp.self_collision_cost, {"sensor_name": "itself"}),
        "contact": (mdp.contact_forces, {**feet, "threshold": 1.0}),
        "air": (mdp.feet_air_time, {**feet, **twist, "threshold": 0.1}),
        "biped": (mdp.feet_air_time_positive_biped, {**feet, **twist, "threshold": 0.4}),
        "in_range": (mdp.feet_air_time_in_range, {**feet, **moving}),
        "clearance": (mdp.feet_clearance, {**sites, **moving, "target_height": 0.1}),
        "swing": (mdp.feet_swing_height, {**feet, **sites, **moving, "target_height": 0.1}),
        "slip": (mdp.feet_slip, {**feet, **sites, **moving}),
        "landing": (mdp.soft_landing, {**feet, **moving}),
        "acc": (mdp.action_acc_l2, {}),
        "speed": (mdp.joint_vel_l1, {}),
        "torque": (mdp.joint_torques_l2, {"asset_cfg": SceneEntityCfg("robot", joint_names="a")}),
        "reach": (mdp.position_command_error_tanh, {**pose, "std": 0.2}),
        "turn": (mdp.orientation_command_error, pose),
    }
    stages = [{"step": 4, "lin_vel_x": (0.5, 1.0)}]
    return robot_cfg(
        scene=SceneCfg(
            {"robot": EntityCfg(robot, InitialStateCfg(pos=(0.0, 0.0, 0.08)))},
            timestep=0.005,
            sensors=(
                *(SensorCfg(n, "contact", n, objtype="geom", ref="terrain", track_air_time=True) for n in FEET),
                SensorCfg("momentum", "subtreeangmom", "base", objtype="body"),
                SensorCfg("itself", "contact", "base", objtype="subtree", ref="base", reftype="subtree"),
            ),
        ),
        episode_length_s=0.2,
        observations={"actor": ObservationGroupCfg(observed, history_length=2)},
        commands={
            "twist": mdp.UniformVelocityCommandCfg(
                rel_heading_envs=0.5, rel_forward_envs=0.5, rel_standing_envs=0.2, resampling_time_range=(0.04, 0.1)
            ),
            "pose": mdp.UniformPoseCommandCfg(ranges=mdp.PoseRanges((-0.3, 0.3), (-0.3, 0.3), yaw=(-1.0, 1.0))),
        },
        rewards={name: RewardTermCfg(func, 1.0, params) for name, (func, params) in rewards.items()},
        events={
            "mass": EventTermCfg(mdp.randomize_body_mass, "reset", {"ranges": (0.8, 1.2)}),
            "throw": EventTermCfg(mdp.reset_root_state_uniform, params={"velocity_range": {"z": (0.0, 0.8)}}),
        },
        curriculum={
            "ranges": CurriculumTermCfg(mdp.commands_vel, {**twist, "velocity_stages": stages}),
            "weight": CurriculumTermCfg(
                mdp.reward_weight, {"reward_name": "acc", "weight_stages": [{"step": 4, "weight": 0.5}]}
            ),
        },
        metrics={"acc": MetricTermCfg(mdp.mean_action_acc)},
    )


def test_they_are_static():
    assert Env(velocity_cfg(), 4, device="meta").blockers() == []


def test_compiled_they_compute_the_same():
    eager, compiled = (Env(velocity_cfg(), 16, execution=mode, seed=3) for mode in ("eager", "compile"))
    generator = torch.Generator().manual_seed(0)
    seen = torch.zeros(len(eager.reward_manager.names), dtype=torch.bool)
    for _ in range(24):  # two episodes and a half
        action = torch.rand(16, 2, generator=generator) * 2.0 - 1.0
        for env in (eager, compiled):
            env.step(action)
        for name in ("values", "weights"):
            ours, theirs = getattr(compiled.reward_manager, name), getattr(eager.reward_manager, name)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled.obs["actor"], eager.obs["actor"], rtol=1e-4, atol=1e-4)
        seen |= (eager.reward_manager.values != 0.0).any(dim=0)
    assert not any(program["eager_fallbacks"] for program in compiled.execution_report().values())
    # A term that is 0 all the way would prove nothing.
    assert [name for name, on in zip(eager.reward_manager.names, seen, strict=True) if not on] == []
