"""Optimiser, projection, running statistics and schedule written out plainly, one tensor at a time: the verifier's own.

Nothing here is shared with `learn/optimizer.py` or `learn/storage.py`, which it is held against, and nothing is fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from tickgraph.learn.networks import UnitBatchNorm, UnitLinear, UnitRMSNorm

MOMENTUM = 0.01  # weight of a batch in the running statistics


class PlainAdam:
    """AdamW over named tensors (arXiv 1412.6980, algorithm 1; decay as in arXiv 1711.05101), factors in Python floats.

    Args:
        parameters: stepped in place.
        first, second: moments to begin with, copied.
        steps: how many steps these have behind them.
        betas, decay: of AdamW.

    Attributes:
        given: gradients to take in place of those that `step` is called with, None for none.
    """

    eps = 1e-8

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        first: Mapping[str, Tensor],
        second: Mapping[str, Tensor],
        steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        decay: float = 0.0,
    ) -> None:
        self.parameters, self.steps, self.betas, self.decay = dict(parameters), steps, betas, decay
        self.first = {name: first[name].detach().clone() for name in self.parameters}
        self.second = {name: second[name].detach().clone() for name in self.parameters}
        self.given: Mapping[str, Tensor] | None = None

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor], rate: float) -> None:
        """Take one step at a rate."""
        self.steps += 1
        grads = grads if self.given is None else self.given
        beta1, beta2 = self.betas
        bias1, bias2 = 1.0 - beta1**self.steps, 1.0 - beta2**self.steps
        for name, parameter in self.parameters.items():
            grad = grads[name]
            self.first[name].mul_(beta1).add_((1.0 - beta1) * grad)
            self.second[name].mul_(beta2).add_((1.0 - beta2) * grad * grad)
            parameter.mul_(1.0 - rate * self.decay)
            root = torch.sqrt(self.second[name] / bias2) + self.eps
            parameter.sub_((rate / bias1) * self.first[name] / root)


def gradients(loss: Tensor, network: nn.Module, max_norm: float = 0.0) -> dict[str, Tensor]:
    """Return the gradient of each parameter by name, shortened as a whole to `max_norm` where that is above 0."""
    parameters = dict(network.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()))
    if max_norm > 0.0:
        norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in found))
        found = tuple(grad * min(1.0, max_norm / max(norm, 1e-12)) for grad in found)
    return dict(zip(parameters, found, strict=True))


@torch.no_grad()
def keep_statistics(network: nn.Module, statistics: Tensor) -> None:
    """Move the running statistics towards those of a batch, (2, S), laid out in the order of a forward pass."""
    start = 0
    for norm in _batch_norms(network):
        size = norm.mean.numel()
        for running, batch in zip((norm.mean, norm.var), statistics[:, start : start + size], strict=True):
            running.add_(MOMENTUM * (batch.view(running.shape) - running))
        start += size


@torch.no_grad()
def project(network: nn.Module) -> None:
    """Put every layer back onto its sphere: rows to norm 1, gain and offset together to sqrt(d), a gain to sqrt(d)."""
    for module in network.modules():
        if isinstance(module, UnitLinear):
            module.weight.div_(module.weight.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-8))
        elif isinstance(module, UnitBatchNorm):
            square = (module.gain.square() + module.offset.square()).sum(-1, keepdim=True)
            factor = math.sqrt(module.gain.shape[-1]) / torch.sqrt(square + 1e-8)
            module.gain.mul_(factor)
            module.offset.mul_(factor)
        elif isinstance(module, UnitRMSNorm):
            square = module.gain.square().sum(-1, keepdim=True)
            module.gain.mul_(math.sqrt(module.gain.shape[-1]) / torch.sqrt(square + 1e-8))


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module, tau: float) -> None:
    """Move a target's parameters towards a network's by the share `tau`."""
    for average, parameter in zip(target.parameters(), network.parameters(), strict=True):
        average.add_(tau * (parameter - average))


def learning_rate(count: int, horizon: int, start: float, end: float, warmup: int) -> float:
    """Return the rate of step `count`, linear from 1e-6 and half a cosine, rounded to float32 as a device has it."""
    if count < warmup:
        rate = 1e-6 + (start - 1e-6) * count / warmup
    else:
        part = min(1.0, (count - warmup) / max(1, horizon - warmup))
        rate = end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * part))
    return float(torch.tensor(rate, dtype=torch.float64).to(torch.float32))


def project_distribution64(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of reward + discount (z - cost) on the atoms in float64, one atom after the other.

    Args:
        probs: (B, K).
        reward, discount, cost: (B,).
        atoms: (K,), evenly spaced.
    """
    probs, reward, discount, cost, atoms = (value.double().cpu() for value in (probs, reward, discount, cost, atoms))
    top = atoms.numel() - 1
    step = float(atoms[-1] - atoms[0]) / top
    found = torch.zeros_like(probs)
    for row in range(probs.shape[0]):
        for mass, atom in zip(probs[row].tolist(), atoms.tolist(), strict=True):
            moved = float(reward[row]) + float(discount[row]) * (atom - float(cost[row]))
            place = (min(max(moved, float(atoms[0])), float(atoms[-1])) - float(atoms[0])) / step
            lower = min(int(place), top)
            found[row, lower] += mass * (1.0 - (place - lower))
            found[row, min(lower + 1, top)] += mass * (place - lower)
    return found


def _batch_norms(network: nn.Module) -> Iterator[UnitBatchNorm]:
    """Yield the batch norms in the order of a forward pass, which is that of their declaration."""
    return (module for module in network.modules() if isinstance(module, UnitBatchNorm))
