"""A task in a file of its own: a planar arm of two joints moves its tip to a target and holds it there.

Train it with `tickgraph train examples/reach.py:reach`; docs/first-task.md explains it line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tickgraph import mdp
from tickgraph.core.masked import assign_rows
from tickgraph.core.rotation import quat_apply_inverse
from tickgraph.env.config import (
    CommandTermCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from tickgraph.env.managers import CommandTerm
from tickgraph.env.scene import SceneEntity
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.run.config import EvaluationCfg, Task, TrainCfg
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg

ARM = """
<mujoco model="arm">
  <compiler angle="radian"/>
  <option gravity="0 0 0"/>
  <default>
    <joint type="hinge" axis="0 0 1" damping="1.5" armature="0.01"/>
    <geom type="capsule" size="0.03" density="500" contype="0" conaffinity="0" rgba="0.2 0.42 0.68 1"/>
  </default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder"/>
      <geom fromto="0 0 0 0.5 0 0"/>
      <body name="lower" pos="0.5 0 0">
        <joint name="elbow" limited="true" range="0.5 2.6"/>
        <geom fromto="0 0 0 0.5 0 0"/>
        <site name="tip" pos="0.5 0 0" size="0.04" rgba="0.9 0.47 0.16 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="shoulder" joint="shoulder" gear="4" ctrllimited="true" ctrlrange="-1 1"/>
    <motor name="elbow" joint="elbow" gear="4" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""
BENT = InitialStateCfg(joint_pos={"elbow": 1.2})  # rad


# A command: where the tip shall be. Its state lies in the arena, and is drawn anew by mask.
class TargetCommand(CommandTerm):
    """A point in the plane, (N, 2) m, at a distance that the arm can reach."""

    def __init__(self, cfg: TargetCommandCfg, env, path: str) -> None:
        super().__init__(cfg, env, path)
        self.target = env.arena.new(f"{path}/target", (env.num_envs, 2), why="where the tip shall be, m")

    @property
    def command(self) -> torch.Tensor:
        return self.target

    def resample(self, mask: torch.Tensor) -> None:
        angle = self.rng.uniform("angle", 1, -torch.pi, torch.pi)
        radius = self.rng.uniform("radius", 1, *self.cfg.radius)
        assign_rows(self.target, mask, radius * torch.cat((torch.cos(angle), torch.sin(angle)), dim=1))


@dataclass
class TargetCommandCfg(CommandTermCfg):
    """``radius`` (m) is the range of the target's distance from the shoulder."""

    class_type: Callable[..., Any] | None = TargetCommand
    radius: tuple[float, float] = (0.4, 0.9)


# Terms: plain functions of all N worlds at once.
def offset(env) -> torch.Tensor:
    """(N, 2) m, from the tip to the target, in the world."""
    tip = env.scene["robot"].data.site_pos_w[:, 0, :2]
    return env.command_manager.get_command("target") - tip


def to_target(env, asset_cfg: SceneEntity) -> torch.Tensor:
    """(N, 2) m, from the tip to the target, as seen from the selected body."""
    quat = env.scene[asset_cfg.name].data.body_link_quat_w[:, asset_cfg.body_ids][:, 0]
    flat = offset(env)
    return quat_apply_inverse(quat, torch.cat((flat, torch.zeros_like(flat[:, :1])), dim=1))[:, :2]


def distance(env) -> torch.Tensor:
    """(N,) m, between tip and target."""
    return torch.linalg.vector_norm(offset(env), dim=1)


def near_target(env, std: float) -> torch.Tensor:
    """(N,) 1 at the target, falling off over ``std`` metres."""
    return torch.exp(-distance(env) / std)


def turn_shoulder(env, mask, rng) -> None:
    """At a reset, the shoulder points anywhere."""
    robot = env.scene["robot"]
    angle = rng.uniform("angle", 1, -torch.pi, torch.pi)
    position = torch.cat((angle, robot.staged_joint_pos()[:, 1:]), dim=1)
    robot.write_joint_state_to_sim(position, robot.staged_joint_vel(), mask)


def figures(trace) -> dict[str, float]:
    """What an evaluation says of a policy, from the recorded distances (T, N)."""
    return {"distance_m": float(trace.mean("distance").mean())}


def reach() -> Task:
    """Return the task; every call makes a new one."""
    elbow, lower = SceneEntityCfg("robot", joint_names="elbow"), SceneEntityCfg("robot", body_names="lower")
    observed = {
        "elbow": ObservationTermCfg(mdp.joint_pos_sin_cos, {"asset_cfg": elbow}),
        "joint_vel": ObservationTermCfg(mdp.joint_vel, scale=0.3),
        "to_target": ObservationTermCfg(to_target, {"asset_cfg": lower}),
    }
    env = EnvCfg(
        scene=SceneCfg({"robot": EntityCfg(ARM, BENT)}, terrain=None, timestep=0.01),
        decimation=4,
        episode_length_s=4.0,
        num_envs=64,
        observations={"actor": ObservationGroupCfg(observed), "critic": ObservationGroupCfg(observed)},
        actions={"torque": mdp.JointEffortActionCfg()},
        commands={"target": TargetCommandCfg(resampling_time_range=(4.0, 4.0))},
        rewards={
            "near_target": RewardTermCfg(near_target, weight=1.0, params={"std": 0.5}),
            "joint_vel": RewardTermCfg(mdp.joint_vel_l2, weight=-0.0005),
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out)},
        events={"turn_shoulder": EventTermCfg(turn_shoulder, mode="reset")},
        metrics={"distance": MetricTermCfg(distance)},
    )
    train = TrainCfg(
        algo=FlashSacCfg(
            actor_width=48,
            actor_blocks=1,
            critic_width=64,
            critic_blocks=1,
            batch_size=256,
            n_step=3,
            gamma=0.95,
            tau=0.05,
            lr_start=1e-3,
            lr_end=3e-4,
        ),
        iterations=1000,
        updates_per_iteration=4,
        learning_starts=20,
        replay_slots=1000,
    )
    evaluation = EvaluationCfg(
        episodes=64, ignore_s=2.0, recorders={"distance": RecorderTermCfg(distance)}, figures=figures
    )
    return Task(env, train, evaluation)
