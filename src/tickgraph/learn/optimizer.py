"""Adam, projection and target average as one traceable step whose whole state lives on the device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tickgraph.core.arena import Arena
from tickgraph.learn.networks import BatchStats, UnitBatchNorm, projected

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Adam without weight decay over a list of tensors; moments and step counter are tensors of the arena.

    Args:
        parameters: float32 tensors, written in place.
        names: one per parameter.
        arena: owner of the state.
        prefix: folder of the state in the arena.
    """

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str], arena: Arena, prefix: str) -> None:
        self.parameters = list(parameters)
        self.moment1 = [
            arena.new(f"{prefix}/moment1/{name}", tuple(p.shape), why="Adam's mean of gradients")
            for name, p in zip(names, self.parameters, strict=True)
        ]
        self.moment2 = [
            arena.new(f"{prefix}/moment2/{name}", tuple(p.shape), why="Adam's mean of squared gradients")
            for name, p in zip(names, self.parameters, strict=True)
        ]
        self.steps = arena.new(f"{prefix}/steps", (), why="steps that Adam has taken, skipped ones not counted")

    def proposal(self, grads: Sequence[Tensor], rate: Tensor, ok: Tensor) -> list[Tensor]:
        """Update the moments where `ok` and return what the parameters would become.

        Args:
            grads: one per parameter.
            rate: () float32 learning rate.
            ok: () bool; where it is false, moments and step counter stay.
        """
        targets = [torch.where(ok, grad, mean) for grad, mean in zip(grads, self.moment1, strict=True)]
        squares = [torch.where(ok, grad.square(), mean) for grad, mean in zip(grads, self.moment2, strict=True)]
        torch._foreach_lerp_(self.moment1, targets, 1.0 - BETA1)
        torch._foreach_lerp_(self.moment2, squares, 1.0 - BETA2)
        self.steps += ok
        count = self.steps.clamp(min=1.0)
        size = -rate / torch.expm1(count * math.log(BETA1))
        spread = torch.rsqrt(-torch.expm1(count * math.log(BETA2)))
        change = torch._foreach_sqrt(self.moment2)
        torch._foreach_mul_(change, spread)
        torch._foreach_add_(change, EPS)
        change = torch._foreach_div(self.moment1, change)
        torch._foreach_mul_(change, size)
        return list(torch._foreach_sub(self.parameters, change))

    def commit(self, values: Sequence[Tensor], ok: Tensor) -> None:
        """Write the parameters where `ok`."""
        write_where(ok, self.parameters, values)


class NetworkStep:
    """One optimiser step of a network: Adam, projection, batch norms' running statistics, average of a target.

    Args:
        network: the trained network, its tensors in the arena.
        arena, prefix: owner and folder of Adam's state.
        target: network of the same form whose parameters follow by `tau`; its running statistics are never used.
        tau: weight of the new parameters in the target.
    """

    def __init__(
        self, network: nn.Module, arena: Arena, prefix: str, target: nn.Module | None = None, tau: float = 0.0
    ) -> None:
        self.network, self.tau = network, tau
        self.norms = [module for module in network.modules() if isinstance(module, UnitBatchNorm)]
        self.target = list(target.parameters()) if target is not None else []
        names, parameters = zip(*network.named_parameters(), strict=True)
        self.adam = Adam(parameters, names, arena, prefix)

    def apply(self, loss: Tensor, grads: Sequence[Tensor], stats: Sequence[BatchStats], rate: Tensor) -> Tensor:
        """Take the step unless the loss or a gradient is not finite; then everything keeps its value.

        Args:
            loss: () float32.
            grads: one per parameter of the network, in their order.
            stats: batch statistics of the forward pass, one per batch norm.
            rate: () float32.

        Returns:
            () bool: the step was taken.
        """
        # A square that overflows counts as not finite too, as it would ruin the second moment.
        ok = torch.isfinite(loss) & torch.isfinite(torch.stack([grad.square().sum() for grad in grads]).sum())
        self.adam.commit(projected(self.network, self.adam.proposal(grads, rate, ok)), ok)
        for norm, batch in zip(self.norms, stats, strict=True):
            write_where(ok, (norm.mean, norm.var), norm.committed(batch))
        if self.target:
            write_where(ok, self.target, torch._foreach_lerp(self.target, self.adam.parameters, self.tau))
        return ok


def write_where(ok: Tensor, targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write each value into its target in place where `ok` () bool is true."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(torch.where(ok, value, target))


def learning_rate(count: Tensor, horizon: Tensor, start: float, end: float, warmup: int) -> Tensor:
    """Return the rate of step `count`: linear from 1e-6 over `warmup` steps, then half a cosine from start to end.

    Args:
        count: () int64, steps of this schedule so far.
        horizon: () int64, steps at which `end` is reached; the rate stays there afterwards.
        start, end: rates.
        warmup: steps of the linear part, which the horizon includes.

    Returns:
        () float32.
    """
    done = count.to(torch.float64)
    part = ((done - warmup) / (horizon - warmup).clamp(min=1)).clamp(0.0, 1.0)
    rate = end + 0.5 * (start - end) * (1.0 + torch.cos(math.pi * part))
    if warmup:
        rate = torch.where(count < warmup, 1e-6 + (start - 1e-6) * done / warmup, rate)
    return rate.to(torch.float32)
