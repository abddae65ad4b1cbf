"""rsl_rl's PPO on a task: versions 3 to 5 of the library.

Run it with `python examples/rsl_rl_train.py`, after `pip install 'rsl-rl-lib>=3'`; docs/own-loop.md explains it.
"""

from __future__ import annotations

import torch
from rsl_rl.runners import OnPolicyRunner

from tickgraph import Env, RslRlVecEnv, load_task

STEPS = 24  # control steps of an iteration
HIDDEN = [64, 64]


def config() -> dict:
    """Return the runner's configuration: rsl_rl 3 reads ``policy``, later ones ``actor`` and ``critic``."""
    model = {"class_name": "MLPModel", "hidden_dims": HIDDEN, "activation": "elu", "obs_normalization": True}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
    return {
        "num_steps_per_env": STEPS,
        "save_interval": 100,
        "obs_groups": {"policy": ["actor"], "actor": ["actor"], "critic": ["critic"]},
        "policy": {
            "class_name": "ActorCritic",
            "actor_hidden_dims": HIDDEN,
            "critic_hidden_dims": HIDDEN,
            "activation": "elu",
            "init_noise_std": 1.0,
            "actor_obs_normalization": True,
            "critic_obs_normalization": True,
        },
        "actor": {**model, "distribution_cfg": noise},
        "critic": model,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "learning_rate": 1e-3,
            "schedule": "adaptive",
            "desired_kl": 0.01,
            "gamma": 0.99,
            "lam": 0.95,
            "entropy_coef": 0.005,
            "rnd_cfg": None,
        },
        "multi_gpu": None,
    }


def main(
    task: str = "cartpole_swingup",
    num_envs: int = 256,
    iterations: int = 100,
    seed: int = 0,
    log_dir: str | None = "runs/rsl_rl",
) -> OnPolicyRunner:
    """Train and return the runner; rsl_rl prints its figures, and keeps its models under ``log_dir``."""
    torch.manual_seed(seed)
    with Env(load_task(task).env, num_envs=num_envs, seed=seed) as env:
        vec = RslRlVecEnv(env, log_every=STEPS)
        runner = OnPolicyRunner(vec, config(), log_dir=log_dir, device=str(env.device))
        runner.learn(iterations, init_at_random_ep_len=True)
    return runner


if __name__ == "__main__":
    main()
