"""Cart-pole swing-up: the pole hangs down, and one force on the cart must bring it up and hold it there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.env.config import (
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from tickgraph.env.scene import SceneEntity
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.robots.cartpole import HINGE_JOINT, SLIDER_JOINT, cartpole_robot
from tickgraph.run.config import EvaluationCfg, Task, TrainCfg
from tickgraph.sim.scene import CapacityCfg, SceneCfg

if TYPE_CHECKING:
    from tickgraph.env.env import Env
    from tickgraph.run.evaluate import EvalTrace

UPRIGHT_ANGLE = 0.2  # rad, within which the pole counts as upright
FINAL_SECOND = 1.0  # s, the end of an episode throughout which a success must hold the pole upright


def upright(env: Env, asset_cfg: SceneEntity) -> Tensor:
    """(N,) 1 with the pole upright, 0 hanging: (1 + cos(angle)) / 2."""
    return 0.5 * (1.0 + torch.cos(mdp.joint_pos(env, asset_cfg)[:, 0]))


def off_centre(env: Env, asset_cfg: SceneEntity) -> Tensor:
    """(N,) m^2, squared distance of the cart from the middle of its rail."""
    return torch.square(mdp.joint_pos(env, asset_cfg)[:, 0])


def cartpole_swingup() -> Task:
    """Return the task: 10 s episodes at 50 Hz; an episode ends by time alone, the rail's ends only stop the cart."""
    env = EnvCfg(
        scene=SceneCfg(
            entities={"robot": cartpole_robot()},
            terrain=None,
            timestep=0.01,
            capacity=CapacityCfg(nconmax=4, njmax=8),  # nothing touches; one row is the rail's end
        ),
        decimation=2,
        episode_length_s=10.0,
        num_envs=128,
        observations={
            "actor": ObservationGroupCfg(_observed()),
            "critic": ObservationGroupCfg(_observed()),
        },
        actions={"force": mdp.JointEffortActionCfg(actuator_names=SLIDER_JOINT)},
        rewards={
            "upright": RewardTermCfg(upright, 1.0, {"asset_cfg": _pole()}),
            "off_centre": RewardTermCfg(off_centre, -0.1, {"asset_cfg": _cart()}),
            "pole_speed": RewardTermCfg(mdp.joint_vel_l2, -0.002, {"asset_cfg": _pole()}),
            "effort": RewardTermCfg(mdp.action_l2, -0.02),
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out)},
        events={
            "joints": EventTermCfg(
                mdp.reset_joints_by_offset, "reset", {"position_range": (-0.1, 0.1), "velocity_range": (-0.1, 0.1)}
            ),
        },
    )
    train = TrainCfg(
        algo=FlashSacCfg(
            actor_width=32,
            actor_blocks=1,
            critic_width=64,
            critic_blocks=1,
            batch_size=256,
            gamma=0.99,
            n_step=3,
            tau=0.02,
        ),
        iterations=6000,
        updates_per_iteration=4,
        learning_starts=50,
        replay_slots=2000,
        checkpoint_interval=2000,
    )
    evaluation = EvaluationCfg(
        episodes=100,
        recorders={
            "pole_angle": RecorderTermCfg(mdp.joint_pos, {"asset_cfg": _pole()}),
            "cart_pos": RecorderTermCfg(mdp.joint_pos, {"asset_cfg": _cart()}),
        },
        figures=swingup_figures,
    )
    sac = replace(
        train,
        algo=SacCfg(
            actor_width=64,
            critic_width=96,
            batch_size=256,
            gamma=0.99,
            n_step=3,
            tau=0.02,
            v_max=5.0,
            policy_period=2,
            lr_start=1e-3,
            lr_end=5e-4,
        ),
    )
    return Task(env=env, train=train, presets={"sac": sac}, evaluation=evaluation)


def swingup_figures(trace: EvalTrace) -> dict[str, float]:
    """Return upright_at_end: share of episodes upright throughout the last second; upright_share: share of all time;
    cart_offset_at_end: mean distance of the cart from the middle then, m, NaN where no episode lasted. A world whose
    episode ended before is not upright at the end."""
    steps = round(FINAL_SECOND / trace.step_dt)
    is_up = (torch.cos(trace.signals["pole_angle"][..., 0]) > math.cos(UPRIGHT_ANGLE)) & trace.counted
    return {
        "upright_at_end": is_up[-steps:].all(dim=0).to(torch.float64).mean().item(),
        "upright_share": is_up[trace.counted].to(torch.float64).mean().item(),
        "cart_offset_at_end": trace.signals["cart_pos"][-steps:, :, 0][trace.counted[-steps:]].abs().mean().item(),
    }


def _observed() -> dict[str, ObservationTermCfg]:
    return {
        "cart_pos": ObservationTermCfg(mdp.joint_pos, {"asset_cfg": _cart()}),
        "pole_angle": ObservationTermCfg(mdp.joint_pos_sin_cos, {"asset_cfg": _pole()}),
        "cart_vel": ObservationTermCfg(mdp.joint_vel, {"asset_cfg": _cart()}),
        "pole_vel": ObservationTermCfg(mdp.joint_vel, {"asset_cfg": _pole()}),
    }


def _cart() -> SceneEntityCfg:
    return SceneEntityCfg("robot", joint_names=SLIDER_JOINT)


def _pole() -> SceneEntityCfg:
    """The hinge, whose angle is 0 with the pole upright."""
    return SceneEntityCfg("robot", joint_names=HINGE_JOINT)
