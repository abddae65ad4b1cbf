"""A point that an algorithm learns to bring to the origin: x moves by 0.3 a, reward -x^2, 20 steps an episode."""

import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.explore import Explorer, GreedyPolicy
from tickgraph.learn.learner import AlgoCfg
from tickgraph.learn.update import UpdateCycle

WORLDS = 32


def learn(cfg: AlgoCfg, ticks: int, horizon: int) -> tuple[float, float]:
    """Return the mean reward of a step at random, and greedy after `ticks` of learning.

    Moving 0.3 a step towards 0 from the uniform start costs 0.31 a step on average; random motion about 1.8.
    """
    learner = make_learner(cfg, {"actor": 1, "critic": 1}, 1, WORLDS, Arena("cpu"), seed=0, total_updates=horizon)
    ring = make_ring(learner, 400, WORLDS)
    explorer, greedy = Explorer(learner, WORLDS, seed=0), GreedyPolicy(learner)
    cycle = UpdateCycle(learner, ring, 2, "eager")
    places = torch.Generator().manual_seed(0)
    no = torch.zeros(WORLDS, dtype=torch.bool)

    def start() -> torch.Tensor:
        return torch.rand(WORLDS, 1, generator=places) * 4 - 2

    def play(policy: Explorer | GreedyPolicy, ticks: int, learns: bool) -> float:
        x, action, total, ended = start(), torch.zeros(WORLDS, 1), 0.0, no
        for tick in range(ticks):
            obs = {"actor": x, "critic": x}
            with torch.no_grad():
                policy.act(obs, action, ended)
            after = x + 0.3 * action
            reward = -after.square()[:, 0]
            total += reward.mean().item()
            ended = torch.full((WORLDS,), tick % 20 == 19)  # by a time limit
            with torch.no_grad():
                ring.write(obs, action, reward, no, ended, ended, {"actor": after, "critic": after})
            x = torch.where(ended[:, None], start(), after)
            if learns:
                with torch.no_grad():
                    ring.publish()
                cycle()
                learner.publish_policy()
        return total / ticks

    random = play(explorer, 40, learns=False)
    explorer.set_warmup(False)
    play(explorer, ticks, learns=True)
    return random, play(greedy, 20, learns=False)
