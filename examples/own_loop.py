"""A learner of one's own around `tickgraph.Env`: actor-critic that takes falls and time limits for what they are.

Run it with `python examples/own_loop.py`; docs/own-loop.md explains it. It is here for its loop: short, not strong.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tickgraph import Env, load_task

REACH = f"{Path(__file__).parent / 'reach.py'}:reach"
GAMMA, TRACE, STEPS = 0.97, 0.9, 16


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, outputs))


def main(task: str = REACH, num_envs: int = 256, updates: int = 300, seed: int = 0) -> list[float]:
    """Train, print the mean reward of a step now and then, and return it of every update."""
    torch.manual_seed(seed)  # of the networks and the exploration here; the worlds draw their own words
    torch.set_num_threads(1)
    means = []
    with Env(load_task(task).env, num_envs=num_envs, seed=seed) as env:
        obs, _ = clone(env.reset(seed=seed))
        env.stagger()  # so that not all time limits fall into the same step
        actor = network(obs["actor"].shape[1], env.action.shape[1])
        critic = network(obs["critic"].shape[1], 1)
        spread = nn.Parameter(torch.full((env.action.shape[1],), -0.5))
        optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), spread], lr=1e-3)
        for update in range(updates):
            log_probs, values, rewards, next_values, boundaries = [], [], [], [], []
            for _ in range(STEPS):
                policy = torch.distributions.Normal(actor(obs["actor"]), spread.exp())
                action = policy.sample()
                log_probs.append(policy.log_prob(action).sum(dim=1))
                values.append(critic(obs["critic"])[:, 0])
                # Cloned, because it is kept longer than two calls: autograd holds the inputs of the networks.
                obs, reward, terminated, truncated, extras = clone(env.step(action))
                # final_obs is the observation that follows in every world, reset or not. Only a fall has no future.
                with torch.no_grad():
                    after = critic(extras["final_obs"]["critic"])[:, 0]
                next_values.append(torch.where(terminated, 0.0, after))
                boundaries.append(extras["boundary"])
                rewards.append(reward)
            means.append(float(torch.stack(rewards).mean()))
            value = torch.stack(values)
            error = torch.stack(rewards) + GAMMA * torch.stack(next_values) - value.detach()
            gain, gains = torch.zeros(num_envs), []
            for step in reversed(range(STEPS)):  # a trace never runs over a boundary into the next episode
                gain = error[step] + GAMMA * TRACE * torch.where(boundaries[step], 0.0, gain)
                gains.insert(0, gain)
            advantage = torch.stack(gains)
            scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = -(torch.stack(log_probs) * scaled).mean() + (value - (value.detach() + advantage)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if update % 50 == 0 or update == updates - 1:
                print(f"update {update}: mean reward of a step {means[-1]:.4f}", flush=True)
    return means


def clone(value):
    """Copy the tensors in tuples and dictionaries."""
    if isinstance(value, dict):
        return {name: clone(item) for name, item in value.items()}
    return value.clone() if isinstance(value, Tensor) else tuple(map(clone, value))


if __name__ == "__main__":
    main()
