"""Gymnasium's vector API and one of its wrappers around a task: NumPy in, NumPy out.

Run it with `python examples/gymnasium_loop.py`, after `pip install gymnasium`; docs/own-loop.md explains it.
"""

from __future__ import annotations

import gymnasium
import numpy as np

from tickgraph import Env, VectorEnvAdapter, load_task


def main(task: str = "cartpole_swingup", num_envs: int = 16, steps: int = 1000, seed: int = 0) -> list[float]:
    """Play random actions; print and return the returns of the episodes that ended."""
    adapter = VectorEnvAdapter(Env(load_task(task).env, num_envs=num_envs, seed=seed))
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(adapter)
    returns: list[float] = []
    envs.action_space.seed(seed)
    obs, _ = envs.reset(seed=seed)
    for _ in range(steps):
        obs, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        # What a learner stores as the next observation: where a world ended, `obs` is of its next episode already.
        next_obs = obs.copy()
        for world in np.flatnonzero(infos.get("_final_obs", ())):
            next_obs[world] = infos["final_obs"][world]
        assert next_obs.shape == (num_envs, *envs.single_observation_space.shape)
        # ... with a target of reward + gamma * (1 - terminated) * value(next_obs): a time limit has a future.
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    envs.close()
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.2f}" if returns else "no episode ended")
    return returns


if __name__ == "__main__":
    main()
