"""Toy tasks with answers that can be computed by hand, built with the public task API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.masked import fill_rows
from tickgraph.env.config import (
    ActionTermCfg,
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.managers import ActionTerm
from tickgraph.sim.scene import EntityCfg, SceneCfg, SensorCfg

# A mass that slides without force, and a separate joint with the actuator that takes the one action.
SLIDER = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="slider">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
    <body name="dummy">
      <joint name="dummy" type="slide" axis="0 1 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator>
    <position name="dummy" joint="dummy" kp="10" kv="1"/>
  </actuator>
</mujoco>
"""

X = SceneEntityCfg("robot", joint_names="x")


def by_world(env: Env, name: str, values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (N,) with the values repeated over the worlds, as a constant of the arena."""
    return env.arena.constant(name, [values[i % len(values)] for i in range(env.num_envs)], dtype, "value by world")


def joint_pos(env: Env, asset_cfg: Any) -> Tensor:
    return env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]


def joint_vel(env: Env, asset_cfg: Any) -> Tensor:
    return env.scene[asset_cfg.name].data.joint_vel[:, asset_cfg.joint_ids]


def last_action(env: Env) -> Tensor:
    return env.action_manager.action


def alive(env: Env) -> Tensor:
    return torch.ones_like(env.reward)


def position(env: Env, asset_cfg: Any) -> Tensor:
    return joint_pos(env, asset_cfg)[:, 0]


def beyond(env: Env, asset_cfg: Any, limit: float) -> Tensor:
    return joint_pos(env, asset_cfg)[:, 0] > limit


def time_out(env: Env) -> Tensor:
    return env.episode_length >= env.max_episode_length


time_out.is_time_out = True


class TimeOutByWorld:
    """A time limit in steps that differs between worlds."""

    is_time_out = True

    def __init__(self, cfg: TerminationTermCfg, env: Env, path: str) -> None:
        self.limit = by_world(env, f"{path}/limit", cfg.params["steps"], torch.int64)

    def __call__(self, env: Env, steps: Sequence[int]) -> Tensor:
        return env.episode_length >= self.limit


class LaunchByWorld:
    """Reset event: x = x0 with a velocity that differs between worlds; every other joint at its default."""

    def __init__(self, cfg: EventTermCfg, env: Env, path: str) -> None:
        entity = env.scene["robot"]
        x = entity.index.joint_names.index("x")
        pos = entity.data.default_joint_pos.expand(env.num_envs, -1).clone()
        vel = entity.data.default_joint_vel.expand(env.num_envs, -1).clone()
        pos[:, x] = cfg.params.get("x0", 0.0)
        vel[:, x] = by_world(env, f"{path}/v", cfg.params["v"])
        self.pos = env.arena.constant(f"{path}/pos", pos, why="joint positions at the start of an episode")
        self.vel = env.arena.constant(f"{path}/vel", vel, why="joint velocities at the start of an episode")

    def __call__(self, env: Env, mask: Tensor, v: Sequence[float], x0: float = 0.0) -> None:
        env.scene["robot"].write_joint_state_to_sim(self.pos, self.vel, mask)


class Target(ActionTerm):
    """The raw action is the control of the entity's actuators."""

    def __init__(self, cfg: TargetCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        ids = self.entity.index.actuator_ids.tolist()
        self.target = env.arena.new(f"{path}/target", (env.num_envs, len(ids)), why="controls")
        self.ids = env.arena.constant(f"{path}/ids", ids, torch.int64, "columns of ctrl")

    @property
    def dim(self) -> int:
        return self.target.shape[1]

    def process(self, raw: Tensor) -> None:
        self.target.copy_(raw)

    def apply(self) -> None:
        self._env.sim.ctrl.index_copy_(1, self.ids, self.target)

    def reset(self, mask: Tensor) -> None:
        fill_rows(self.target, mask, 0.0)


@dataclass
class TargetCfg(ActionTermCfg):
    class_type: Any = Target


@dataclass
class Slider:
    """What differs between the cases that use the slider."""

    v: Sequence[float] = (1.0,)
    x0: float = 0.0
    limit: Sequence[int] = (5,)
    fall: float | None = None
    history: int = 0
    see_action: bool = False
    delay: tuple[int, int] = (0, 0)
    rewards: dict[str, RewardTermCfg] = field(default_factory=dict)

    def cfg(self) -> EnvCfg:
        actor = {"x": ObservationTermCfg(joint_pos, {"asset_cfg": X}, history_length=self.history)}
        if self.see_action:
            actor["last_action"] = ObservationTermCfg(last_action)
        terminations = {"time_out": TerminationTermCfg(TimeOutByWorld, {"steps": self.limit})}
        if self.fall is not None:
            terminations["fall"] = TerminationTermCfg(beyond, {"asset_cfg": X, "limit": self.fall})
        low, high = self.delay
        return EnvCfg(
            scene=SceneCfg({"robot": EntityCfg(SLIDER)}, terrain=None, timestep=0.005),
            decimation=4,
            episode_length_s=max(self.limit) * 0.02,
            num_envs=6,
            observations={"actor": ObservationGroupCfg(actor)},
            actions={"dummy": TargetCfg(delay_min_lag=low, delay_max_lag=high)},
            rewards=self.rewards or {"alive": RewardTermCfg(alive)},
            terminations=terminations,
            events={"launch": EventTermCfg(LaunchByWorld, "reset", {"v": self.v, "x0": self.x0})},
        )


# A ball on a vertical joint that is pressed on the ground, and beside it a box that flies, tumbles and lands.
FOOT = """
<mujoco>
  <worldbody>
    <body name="foot" pos="0 0 0.15">
      <joint name="z" type="slide" axis="0 0 1" damping="20"/>
      <geom name="foot" type="sphere" size="0.05" mass="1"/>
    </body>
  </worldbody>
  <actuator>
    <position name="z" joint="z" kp="400" kv="40"/>
  </actuator>
</mujoco>
"""
BOX = """
<mujoco>
  <worldbody>
    <body name="box" pos="1 0 0.3">
      <freejoint/>
      <geom name="box" type="box" size="0.1 0.07 0.05" mass="1"/>
      <site name="corner" pos="0.1 0.07 0.05"/>
    </body>
  </worldbody>
</mujoco>
"""


def sensed(env: Env, name: str) -> Tensor:
    return env.scene[name].data


def box_state(env: Env) -> Tensor:
    data = env.scene["box"].data
    parts = (data.root_link_pos_w, data.root_link_quat_w, data.root_link_lin_vel_b, data.root_link_ang_vel_b)
    return torch.cat((*parts, data.site_pos_w.flatten(1), data.projected_gravity_b), dim=1)


def joint_effort(env: Env) -> Tensor:
    data = env.scene["robot"].data
    return torch.cat((data.joint_pos, data.joint_vel, data.joint_acc, data.actuator_force), dim=1)


def toss(env: Env, mask: Tensor, rng: Any) -> None:
    box = env.scene["box"]
    box.write_root_link_velocity_to_sim(rng.uniform("", 6, -2.0, 2.0), mask)


def kick(env: Env, mask: Tensor, rng: Any) -> None:
    robot = env.scene["robot"]
    robot.write_joint_state_to_sim(robot.staged_joint_pos(), rng.uniform("", 1, -1.0, 1.0), mask)


class ScaleMass:
    """Reset event: the box's mass is its default times a draw."""

    def __init__(self, cfg: EventTermCfg, env: Env, path: str) -> None:
        self.mass, self.default = env.sim.field("body_mass"), env.sim.default_field("body_mass")
        self.body = int(env.scene["box"].index.root_body_id)
        self.rng = env.rng.stream(path)

    def __call__(self, env: Env, mask: Tensor) -> None:
        drawn = self.default[self.body] * self.rng.uniform("", 1, 0.5, 2.0)[:, 0]
        self.mass[:, self.body].copy_(torch.where(mask, drawn, self.mass[:, self.body]))
        env.mark_written(mask)


def foot_cfg(limit: Sequence[int] = (11, 17)) -> EnvCfg:
    """Contacts, a floating base, random words at every place where a task can draw them."""
    foot = SensorCfg("foot_contact", "contact", "foot", "geom", ref="terrain")
    actor = {
        "foot": ObservationTermCfg(joint_effort, noise=UniformNoiseCfg(-0.01, 0.01)),
        "box": ObservationTermCfg(box_state, delay_min_lag=0, delay_max_lag=2),
        "contact": ObservationTermCfg(sensed, {"name": "foot_contact"}, history_length=2, scale=0.01),
        "last_action": ObservationTermCfg(last_action),
    }
    return EnvCfg(
        scene=SceneCfg({"robot": EntityCfg(FOOT), "box": EntityCfg(BOX)}, sensors=(foot,), timestep=0.005),
        decimation=4,
        episode_length_s=1.0,
        observations={
            "actor": ObservationGroupCfg(actor, enable_corruption=True),
            "critic": ObservationGroupCfg({"box": ObservationTermCfg(box_state)}),
        },
        actions={"z": TargetCfg(delay_min_lag=0, delay_max_lag=1)},
        rewards={"alive": RewardTermCfg(alive), "z": RewardTermCfg(position, 1.0, {"asset_cfg": SceneEntityCfg()})},
        terminations={"time_out": TerminationTermCfg(TimeOutByWorld, {"steps": limit})},
        events={
            "mass": EventTermCfg(ScaleMass, "reset"),
            "toss": EventTermCfg(toss, "reset"),
            "kick": EventTermCfg(kick, "interval", interval_range_s=(0.04, 0.12)),
        },
    )
