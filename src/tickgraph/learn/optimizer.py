"""Adam, projection and target average as one traceable step whose whole state lies on the device."""

import math

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.storage import Storage

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Adam without weight decay over one flat tensor; moments and step counter are tensors of the arena.

    Args:
        parameters: (P,) float32, or () for a scalar.
        arena: owner of the state.
        prefix: folder of the state in the arena.
    """

    def __init__(self, parameters: Tensor, arena: Arena, prefix: str) -> None:
        shape = tuple(parameters.shape)
        self.parameters = parameters
        self.moment1 = arena.new(f"{prefix}/moment1", shape, why="Adam's mean of gradients")
        self.moment2 = arena.new(f"{prefix}/moment2", shape, why="Adam's mean of squared gradients")
        self.steps = arena.new(f"{prefix}/steps", (), torch.int64, "steps that Adam has taken, without skipped ones")

    def factors(self, rate: Tensor) -> Tensor:
        """Return (2,): what the next step at `rate` () multiplies its direction and its spread with.

        They come from a program of their own: a compiler would fuse them into the loop over the parameters and compute
        them again for each.
        """
        count = (self.steps + 1).to(torch.float32)
        # 1 - beta^count, without the cancellation at small counts.
        size = -rate / torch.expm1(count * math.log(BETA1))
        return torch.stack((size, torch.rsqrt(-torch.expm1(count * math.log(BETA2)))))

    def proposal(self, grad: Tensor, factors: Tensor, ok: Tensor) -> Tensor:
        """Update the moments where `ok` and return what the parameters would become.

        Args:
            grad: (P,) float32.
            factors: of this step.
            ok: () bool; where it is false, moments and step counter stay.
        """
        moment1 = torch.where(ok, torch.lerp(self.moment1, grad, 1.0 - BETA1), self.moment1)
        moment2 = torch.where(ok, torch.lerp(self.moment2, grad.square(), 1.0 - BETA2), self.moment2)
        self.moment1.copy_(moment1)
        self.moment2.copy_(moment2)
        self.steps += ok
        return self.parameters - factors[0] * moment1 / (torch.sqrt(moment2) * factors[1] + EPS)


class NetworkStep:
    """One optimiser step of a network: Adam, projection, batch norms' running statistics, average of a target.

    Args:
        storage: the trained network's flat tensors.
        arena, prefix: owner and folder of Adam's state.
        momentum: weight of a batch in the running statistics.
        target: flat parameters that follow by `tau`; their network has no running statistics.
        tau: weight of the new parameters in the target.
    """

    def __init__(
        self,
        storage: Storage,
        arena: Arena,
        prefix: str,
        momentum: float,
        target: Tensor | None = None,
        tau: float = 0.0,
    ) -> None:
        self.storage, self.momentum, self.target, self.tau = storage, momentum, target, tau
        self.adam = Adam(storage.parameters, arena, prefix)

    def apply(self, loss: Tensor, grad: Tensor, statistics: Tensor, factors: Tensor) -> Tensor:
        """Take the step unless the loss or a gradient is not finite; then everything keeps its value.

        Args:
            loss: () float32.
            grad: (P,) float32, laid out like the storage's parameters.
            statistics: (2, S) float32, batch statistics of the forward pass.
            factors: (2,) of `Adam.factors`.

        Returns:
            () bool: the step was taken.
        """
        # A square that overflows counts as not finite too, as it would ruin the second moment.
        ok = torch.isfinite(loss) & torch.isfinite(grad.square().sum())
        parameters, running = self.storage.parameters, self.storage.statistics
        new = torch.where(ok, self.storage.projection(self.adam.proposal(grad, factors, ok)), parameters)
        if self.target is not None:
            self.target.copy_(torch.where(ok, torch.lerp(self.target, new, self.tau), self.target))
        parameters.copy_(new)
        running.copy_(torch.where(ok, torch.lerp(running, statistics, self.momentum), running))
        return ok


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
