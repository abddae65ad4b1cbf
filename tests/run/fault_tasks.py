"""Tasks with a fault each, for command lines: small, and sound but for the one thing that their name says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.env.config import (
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.run.config import Task, TrainCfg
from tickgraph.sim.scene import CapacityCfg, EntityCfg, SceneCfg
from tickgraph.tasks.cartpole import cartpole_swingup

SICK = 3  # the world that gets a NaN
WHEN = 20  # in this tick
GIB = 1 << 30
SPARE = 2 * GIB  # what `crowded` leaves of the GPU
_held: list[Tensor] = []


def with_reward(func: Any) -> Task:
    """Return the cart-pole with one more reward term."""
    task = cartpole_swingup()
    task.env.rewards["fault"] = RewardTermCfg(func, 1.0)
    return task


def sound() -> Task:
    return with_reward(lambda env: torch.zeros_like(env.reward))


# What waits for the device ------------------------------------------------------------------------------------------


def reads(env: Env) -> Tensor:
    return env.reward * (0.0 if env.reward.sum().item() > 1e9 else 1.0)


def waits_openly() -> Task:
    """What a dry run on shapes alone sees."""
    return with_reward(reads)


def counts(env: Env) -> Tensor:
    return env.reward * float(len(env.reward.nonzero()) >= 0)


def counts_openly() -> Task:
    return with_reward(counts)


def reads_hidden(env: Env) -> Tensor:
    if env.device.type == "cuda":
        env.reward.sum().item()
    return torch.zeros_like(env.reward)


def waits_hidden() -> Task:
    """What no dry run sees."""
    return with_reward(reads_hidden)


# What cannot be captured --------------------------------------------------------------------------------------------


def halts(env: Env) -> Tensor:
    if env.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return torch.zeros_like(env.reward)


def illegal() -> Task:
    return with_reward(halts)


# An array swapped behind the program's back ---------------------------------------------------------------------------


def swaps(env: Env) -> Tensor:
    if env.device.type == "cuda":
        env.rewrite = env.rewrite.clone()
    return torch.zeros_like(env.reward)


def swapped() -> Task:
    return with_reward(swaps)


# A NaN in one world's state -------------------------------------------------------------------------------------------


def poisons(env: Env, mask: Tensor) -> None:
    """Write a NaN at the end of a tick: the next one computes its physics with it."""
    world = torch.arange(env.num_envs, device=env.device)
    bad = (world == SICK) & (env.rng.tick == WHEN)
    qvel = env.sim.staging_qvel
    qvel.copy_(torch.where(bad[:, None], torch.full_like(qvel, float("nan")), qvel))
    env.mark_written(bad)


def poisoned() -> Task:
    task = sound()
    task.env.events["fault"] = EventTermCfg(poisons, "step")
    return task


# A capacity set too low -----------------------------------------------------------------------------------------------


def nine_balls() -> Task:
    """Nine balls that lie on the ground, 9 contacts and 36 rows in a world, and a slider for the action to push."""
    places = [f"{0.2 * (i % 3)} {0.2 * (i // 3)} 0.049" for i in range(9)]
    ball = '<freejoint/><geom size="0.05" mass="1"/></body>'
    balls = "".join(f'<body name="b{i}" pos="{place}">{ball}' for i, place in enumerate(places))
    slider = (
        '<body name="cart" pos="0 0 5"><joint name="x" type="slide" damping="1"/>'
        '<geom size="0.05" mass="1" contype="0" conaffinity="0"/></body>'
    )
    model = (
        f"<mujoco><worldbody>{balls}{slider}</worldbody>"
        '<actuator><motor name="push" joint="x" gear="0.1"/></actuator></mujoco>'
    )
    seen = {"x": ObservationTermCfg(mdp.joint_pos)}
    env = EnvCfg(
        scene=SceneCfg({"robot": EntityCfg(model)}, timestep=0.002, capacity=CapacityCfg(nconmax=64, njmax=64)),
        decimation=10,
        episode_length_s=10.0,
        num_envs=4,
        observations={"actor": ObservationGroupCfg(seen), "critic": ObservationGroupCfg(dict(seen))},
        actions={"push": mdp.JointEffortActionCfg(actuator_names="push")},
        rewards={"still": RewardTermCfg(mdp.joint_vel_l2, -0.01)},
        terminations={"time_out": TerminationTermCfg(mdp.time_out)},
        events={"begin": EventTermCfg(mdp.reset_joints_by_offset, "reset", {"position_range": (-0.1, 0.1)})},
    )
    small = cartpole_swingup().train
    return Task(env=env, train=TrainCfg(algo=replace(small.algo), replay_slots=64))


# Too little memory ----------------------------------------------------------------------------------------------------


def crowded() -> Task:
    """The cart-pole on a GPU of which somebody else holds all but `SPARE` bytes."""
    free, _ = torch.cuda.mem_get_info()
    _held.append(torch.empty(free - SPARE, dtype=torch.uint8, device="cuda"))
    return cartpole_swingup()
