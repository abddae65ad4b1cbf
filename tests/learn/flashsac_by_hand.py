"""FlashSAC once more, from the paper's text with torch's own layers and optimisers, one member at a time."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Trunk(nn.Module):
    def __init__(self, inputs: int, dim: int, blocks: int) -> None:
        super().__init__()

        def norm(size: int) -> nn.BatchNorm1d:
            return nn.BatchNorm1d(size, eps=1e-5, momentum=0.01)

        self.input_norm = norm(inputs)
        self.embed = nn.Linear(inputs, dim, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "up": nn.Linear(dim, 4 * dim, bias=False),
                    "up_norm": norm(4 * dim),
                    "down": nn.Linear(4 * dim, dim, bias=False),
                    "down_norm": norm(dim),
                }
            )
            for _ in range(blocks)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(self.input_norm(x))
        for block in self.blocks:
            u = torch.relu(block["up_norm"](block["up"](h)))
            h = torch.relu(block["down_norm"](block["down"](u))) + h
        return self.norm(h)


class Actor(nn.Module):
    def __init__(self, inputs: int, actions: int, dim: int, blocks: int) -> None:
        super().__init__()
        self.trunk = Trunk(inputs, dim, blocks)
        self.mean, self.raw = nn.Linear(dim, actions), nn.Linear(dim, actions)

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        f = self.trunk(obs)[: noise.shape[0]]
        log_std = -10.0 + 6.0 * (1.0 + torch.tanh(self.raw(f)))
        u = self.mean(f) + log_std.exp() * noise
        density = torch.distributions.Normal(self.mean(f), log_std.exp()).log_prob(u)
        return torch.tanh(u), (density - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))).sum(-1)


class Critic(nn.Module):
    def __init__(self, inputs: int, dim: int, blocks: int, atoms: int) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(inputs, dim, blocks), nn.Linear(dim, atoms)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


@torch.no_grad()
def project(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.div_(module.weight.norm(dim=1, keepdim=True).clamp(min=1e-8))
        elif isinstance(module, nn.BatchNorm1d):
            scale = math.sqrt(module.weight.numel()) / torch.sqrt(
                module.weight.square().sum() + module.bias.square().sum() + 1e-8
            )
            module.weight.mul_(scale)
            module.bias.mul_(scale)
        elif isinstance(module, nn.RMSNorm):
            module.weight.mul_(math.sqrt(module.weight.numel()) / torch.sqrt(module.weight.square().sum() + 1e-8))


def load(network: nn.Module, parameters: dict[str, Tensor], member: int | None) -> None:
    """Copy tickgraph's parameters, by tickgraph's names, of one member."""
    names = {"gain": "weight", "offset": "bias"}
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            path, _, last = name.rpartition(".")
            mine = f"{path}.{names.get(last, last)}" if path else f"{name.removesuffix('_bias')}.bias"
            own.pop(mine).copy_(value if member is None else value[member])
    assert not own, own


class Reference:
    """The update, in the authors' order, as a list of plain statements."""

    def __init__(self, actor: Actor, critics: list[Critic], alpha: float, horizon: int, tau: float, period: int):
        self.actor, self.critics, self.targets = actor, critics, copy.deepcopy(critics)
        self.log_alpha = torch.tensor(math.log(alpha), requires_grad=True)
        self.horizon, self.tau, self.period = horizon, tau, period
        self.actor_adam = torch.optim.Adam(actor.parameters())
        self.critic_adam = torch.optim.Adam([p for critic in critics for p in critic.parameters()])
        self.alpha_adam = torch.optim.Adam([self.log_alpha])
        self.atoms = torch.linspace(-5.0, 5.0, critics[0].head.out_features)
        self.k = self.j = 0

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, count: int, parameters: list[Tensor]) -> None:
        rate = 1.5e-4 + 0.75e-4 * (1.0 + math.cos(math.pi * count / self.horizon))
        optimizer.param_groups[0]["lr"] = rate
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = grad
        optimizer.step()

    def update(self, obs, critic_obs, action, reward, discount, noise, next_noise) -> None:
        size = len(action)
        if self.k % self.period == 0:
            self.actor.train()
            fresh, log_prob = self.actor(obs, noise)
            q = []
            for critic in self.critics:
                critic.eval()
                q.append((critic(torch.cat((critic_obs[:size], fresh), -1)).softmax(-1) * self.atoms).sum(-1))
            loss = (self.log_alpha.exp().detach() * log_prob - torch.minimum(*q)).mean()
            self.step(self.actor_adam, loss, self.j, list(self.actor.parameters()))
            project(self.actor)
            entropy = -log_prob.detach().mean()
            target = 0.5 * action.shape[1] * math.log(2 * math.pi * math.e * 0.15**2)
            self.step(self.alpha_adam, self.log_alpha.exp() * (entropy - target), self.j, [self.log_alpha])
            self.j += 1
        self.actor.eval()
        with torch.no_grad():
            ahead, log_prob = self.actor(obs[size:], next_noise)
            x = torch.cat((critic_obs, torch.cat((action, ahead))), -1)
            probs = [target(x)[size:].softmax(-1) for target in self.targets]
            q = [(p * self.atoms).sum(-1) for p in probs]
            labels = torch.zeros_like(probs[0])
            for row in range(size):
                p = probs[0][row] if q[0][row] <= q[1][row] else probs[1][row]
                for atom, mass in zip(self.atoms, p, strict=True):
                    y = reward[row] + discount[row] * (atom - self.log_alpha.exp() * log_prob[row])
                    place = (y.clamp(-5.0, 5.0) + 5.0) / 10.0 * (len(self.atoms) - 1)
                    low = min(int(place), len(self.atoms) - 1)
                    labels[row, low] += mass * (1.0 - (place - low))
                    labels[row, min(low + 1, len(self.atoms) - 1)] += mass * (place - low)
        losses = []
        for critic in self.critics:
            critic.train()
            losses.append(-(labels * critic(x)[:size].log_softmax(-1)).sum(-1).mean())
        parameters = [p for critic in self.critics for p in critic.parameters()]
        self.step(self.critic_adam, sum(losses) / 2, self.k, parameters)
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                project(critic)
                for mine, theirs in zip(critic.parameters(), target.parameters(), strict=True):
                    theirs.lerp_(mine, self.tau)
        self.k += 1
