"""Small tracking environments, and ways to put their robots and references where a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from tickgraph.env.config import EnvCfg
from tickgraph.env.env import Env
from tickgraph.mdp.motion_command import MotionCommand, MotionCommandCfg
from tickgraph.tasks.tracking_g1 import g1_motion_tracking

HEIGHT = 1.5  # m, of the pelvis in made-up clips: nothing touches the ground
MARK = 1e-3  # rad a frame, of the first joint in made-up clips


def quiet(cfg: EnvCfg) -> MotionCommandCfg:
    """Take the noise out of a task's starts and observations; returns its motion command."""
    motion = cfg.commands["motion"]
    motion.pose_range, motion.velocity_range, motion.joint_position_range = {}, {}, (0.0, 0.0)
    motion.sampler.mode = "uniform"
    cfg.observations["actor"].enable_corruption = False
    return motion


def tracking_env(worlds: int = 4, seed: int = 1, edit: Callable[[EnvCfg], None] | None = None) -> Env:
    """Return an eager environment of the task without noise."""
    cfg = g1_motion_tracking().env
    quiet(cfg)
    if edit is not None:
        edit(cfg)
    return Env(cfg, worlds, execution="eager", seed=seed)


def motion_of(env: Env) -> MotionCommand:
    return env.command_manager.term("motion")


def show(env: Env, clip: Tensor, frame: Tensor) -> None:
    """Make frames of clips what the next states are compared with."""
    motion = motion_of(env)
    motion.clip.copy_(clip)
    motion.frame.copy_(frame)
    motion._rows.copy_(motion.library.rows(clip, frame))


def place(env: Env, qpos: Tensor, qvel: Tensor) -> None:
    """Put every world into a state (N, nq), (N, nv)."""
    env.sim.staging_qpos.copy_(qpos)
    env.sim.staging_qvel.copy_(qvel)
    env.sim.write_state(env.all_worlds, env.all_worlds)
    env.sim.refresh(env.all_worlds)


def put_on_reference(env: Env, clip: Tensor, frame: Tensor) -> None:
    """Put every robot exactly on a frame, and compare it with that frame."""
    env.written.zero_()
    env.sim.stage_from_state()
    motion_of(env).put(env.all_worlds, clip, frame)
    env.sim.write_state(env.all_worlds, env.all_worlds)
    env.sim.refresh(env.all_worlds)
    show(env, clip, frame)


def rewards(env: Env) -> dict[str, Tensor]:
    """Return each reward term's bare value, (N,)."""
    env.reward_manager.compute(env.reward)
    bare = env.reward_manager.values / (env.reward_manager.weights * env.step_dt)
    return dict(zip(env.reward_manager.names, bare.unbind(1), strict=True))


def observations(env: Env, group: str = "critic") -> dict[str, Tensor]:
    """Return each observation of a group, (N, D)."""
    env.observation_manager.look(env.final_obs)
    return split(env, env.final_obs[group], group)


def split(env: Env, value: Tensor, group: str) -> dict[str, Tensor]:
    terms = env.observation_manager.groups[group]
    return dict(zip(terms, value.split([term.dim for term in terms.values()], dim=1), strict=True))


def terminations(env: Env) -> dict[str, Tensor]:
    return {name: term() for name, term in env.termination_manager.terms.items()}


def write_clips(folder: Path, lengths: list[int]) -> tuple[str, ...]:
    """Write motions at rest whose root x is the clip's number, m, and whose first joint marks the frame."""
    paths = []
    for number, length in enumerate(lengths):
        qpos = np.zeros((length, 36))
        qpos[:, 0], qpos[:, 2], qpos[:, 3] = number, HEIGHT, 1.0
        qpos[:, 7] = MARK * np.arange(length)
        paths.append(folder / f"clip{number:02d}.npz")
        np.savez(paths[-1], fps=np.array([50]), qpos=qpos)
    return tuple(map(str, paths))
