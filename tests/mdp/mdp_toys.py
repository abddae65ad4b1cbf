"""Small worlds for tests of terms: stand-ins with numbers by hand, and tiny environments that really run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.env.config import EnvCfg, ObservationGroupCfg, ObservationTermCfg, TerminationTermCfg
from tickgraph.env.env import Env
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg

# A free body with two hinges; the actuators come in the opposite order, and only b's has damping of its own.
ROBOT = """
<mujoco>
  <compiler angle="radian"/>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint name="root"/>
      <geom name="base" type="box" size="0.2 0.1 0.05" mass="2" contype="0" conaffinity="0"/>
      <body name="a" pos="0.2 0 0">
        <joint name="a" axis="0 1 0" range="-1 1" damping="0.5"/>
        <geom name="a" type="capsule" fromto="0 0 0 0.1 0 0" size="0.02" mass="0.1" contype="0" conaffinity="0"/>
      </body>
      <body name="b" pos="-0.2 0 0">
        <joint name="b" axis="0 1 0" range="-2 2"/>
        <geom name="b" type="capsule" fromto="0 0 0 -0.1 0 0" size="0.02" mass="0.1" contype="0" conaffinity="0"/>
        <site name="b_tip" pos="-0.1 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="act_b" joint="b" kp="20" kv="2" forcerange="-3 3"/>
    <position name="act_a" joint="a" kp="10" forcerange="-4 5"/>
  </actuator>
</mujoco>
"""
JOINT_POS = {"a": 0.1, "b": -0.2}
STEPS = 3  # length of an episode, control steps


def robot_cfg(**parts: Any) -> EnvCfg:
    """Return a task of the two-hinge robot: episodes of three steps of 0.02 s, observing its joints."""
    given = {
        "scene": SceneCfg(
            {"robot": EntityCfg(ROBOT, InitialStateCfg(pos=(0.0, 0.0, 1.0), joint_pos=dict(JOINT_POS)))},
            terrain=None,
            timestep=0.005,
        ),
        "decimation": 4,
        "episode_length_s": STEPS * 0.02,
        "num_envs": 4,
        "observations": {"actor": ObservationGroupCfg({"joint_pos": ObservationTermCfg(mdp.joint_pos)})},
        "actions": {"joint_pos": mdp.JointPositionActionCfg()},
        "terminations": {"time_out": TerminationTermCfg(mdp.time_out)},
    }
    return EnvCfg(**{**given, **parts})


def robot_env(num_envs: int = 4, seed: int = 0, **parts: Any) -> Env:
    """Return a running environment of `robot_cfg`."""
    return Env(robot_cfg(**parts), num_envs, execution="eager", seed=seed)


def fake_env(commands: dict[str, Tensor] | None = None, sensors: dict[str, Any] | None = None, **data: Any) -> Any:
    """Return a stand-in for an environment whose entity "robot" has the given data."""
    values = {"robot": SimpleNamespace(data=SimpleNamespace(**data)), **(sensors or {})}
    return SimpleNamespace(
        scene=values,
        command_manager=SimpleNamespace(get_command=(commands or {}).__getitem__),
        step_dt=0.02,
    )


def force_sensor(*forces: tuple[float, float, float]) -> Any:
    """Return a stand-in for a contact sensor with a net force in each world, N."""
    force = torch.tensor(forces)
    return SimpleNamespace(force=force, forces=force[:, None])
