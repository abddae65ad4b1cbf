"""SAC once more, from its formulas with torch's own layers and optimisers, in float64, one critic at a time."""

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn


def mlp(inputs: int, dim: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (dim, dim // 2, dim // 4):
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
        inputs = width
    return nn.Sequential(*layers)


class Actor(nn.Module):
    def __init__(self, inputs: int, actions: int, dim: int) -> None:
        super().__init__()
        self.trunk, self.mean, self.raw = mlp(inputs, dim), nn.Linear(dim // 4, actions), nn.Linear(dim // 4, actions)

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        f = self.trunk(obs)
        gaussian = torch.distributions.Normal(self.mean(f), (-5.0 + 2.5 * (torch.tanh(self.raw(f)) + 1.0)).exp())
        u = gaussian.mean + gaussian.stddev * noise
        action = torch.tanh(u)
        return action, (gaussian.log_prob(u) - torch.log(1.0 - action**2 + 1e-6)).sum(-1)


class Critic(nn.Module):
    def __init__(self, inputs: int, dim: int, atoms: int) -> None:
        super().__init__()
        self.trunk, self.head = mlp(inputs, dim), nn.Linear(dim // 4, atoms)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.head(self.trunk(torch.cat((obs, action), -1)))


def load(network: nn.Module, parameters: dict[str, Tensor], member: int | None) -> None:
    """Copy tickgraph's parameters, by tickgraph's names, of one member."""
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            for place in range(3):
                name = name.replace(f"trunk.layers.{place}.", f"trunk.{3 * place}.")
                name = name.replace(f"trunk.norms.{place}.gain", f"trunk.{3 * place + 1}.weight")
                name = name.replace(f"trunk.norms.{place}.offset", f"trunk.{3 * place + 1}.bias")
            own.pop(name).copy_(value if member is None else value[member])
    assert not own, own


def project(probs: np.ndarray, reward: np.ndarray, discount: np.ndarray, cost: np.ndarray, top: float) -> np.ndarray:
    """Return the distribution of (r - d cost) + d z on the atoms, mass by mass."""
    count = probs.shape[1]
    atoms, result = np.linspace(-top, top, count), np.zeros_like(probs)
    for row in range(len(probs)):
        for z, mass in zip(atoms, probs[row], strict=True):
            y = (reward[row] - discount[row] * cost[row]) + discount[row] * z
            place = (min(max(y, -top), top) + top) / (2.0 * top) * (count - 1)
            low = min(int(np.floor(place)), count - 1)
            result[row, low] += mass * (1.0 - (place - low))
            result[row, min(low + 1, count - 1)] += mass * (place - low)
    return result


class Reference:
    """The update as a list of plain statements: critic, temperature, actor, average."""

    def __init__(self, actor: Actor, critics: list[Critic], cfg) -> None:
        self.cfg, self.actor, self.critics, self.targets = cfg, actor, critics, copy.deepcopy(critics)
        self.log_alpha = torch.tensor(math.log(cfg.alpha_init), dtype=torch.float64, requires_grad=True)
        self.weights = [p for critic in critics for p in critic.parameters()]
        options = {"lr": cfg.lr_start, "betas": (0.9, 0.95)}
        self.actor_adam = torch.optim.AdamW(actor.parameters(), weight_decay=cfg.weight_decay, **options)
        self.critic_adam = torch.optim.AdamW(self.weights, weight_decay=cfg.weight_decay, **options)
        self.alpha_adam = torch.optim.AdamW([self.log_alpha], weight_decay=0.0, **options)
        self.atoms = torch.linspace(-cfg.v_max, cfg.v_max, cfg.atoms, dtype=torch.float64)
        self.k = 0

    def labels(self, obs, critic_obs, reward, discount, noise) -> tuple[list[Tensor], Tensor]:
        """Return each target's own distribution, and log pi of the successors' actions."""
        with torch.no_grad():
            ahead, log_prob = self.actor(obs, noise)
            cost = (self.log_alpha.exp() * log_prob).numpy()
            probs = [target(critic_obs, ahead).softmax(-1).numpy() for target in self.targets]
            made = [project(p, reward.numpy(), discount.numpy(), cost, self.cfg.v_max) for p in probs]
            return [torch.tensor(p) for p in made], log_prob

    def critic_loss(self, critic_obs, action, labels) -> Tensor:
        pairs = zip(self.critics, labels, strict=True)
        return sum(-(t * critic(critic_obs, action).log_softmax(-1)).sum(-1).mean() for critic, t in pairs)

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        target = -self.cfg.target_entropy_ratio * self.actor.mean.out_features
        return -self.log_alpha.exp() * (log_prob + target).mean()

    def actor_loss(self, obs, critic_obs, noise) -> Tensor:
        action, log_prob = self.actor(obs, noise)
        values = [(critic(critic_obs, action).softmax(-1) * self.atoms).sum(-1) for critic in self.critics]
        return (self.log_alpha.exp().detach() * log_prob - (values[0] + values[1]) / 2.0).mean()

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Tensor], clip: bool) -> None:
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = grad
        if clip and self.cfg.max_grad_norm:
            nn.utils.clip_grad_norm_(parameters, self.cfg.max_grad_norm)
        optimizer.step()

    def update(self, obs, critic_obs, action, reward, discount, noise, next_noise) -> None:
        size = len(action)
        labels, log_prob = self.labels(obs[size:], critic_obs[size:], reward, discount, next_noise)
        self.step(self.critic_adam, self.critic_loss(critic_obs[:size], action, labels), self.weights, True)
        self.step(self.alpha_adam, self.alpha_loss(log_prob), [self.log_alpha], False)
        if self.k % self.cfg.policy_period == 0:
            loss = self.actor_loss(obs[:size], critic_obs[:size], noise)
            self.step(self.actor_adam, loss, list(self.actor.parameters()), True)
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for mine, theirs in zip(critic.parameters(), target.parameters(), strict=True):
                    theirs.add_(self.cfg.tau * (mine - theirs))
        self.k += 1
