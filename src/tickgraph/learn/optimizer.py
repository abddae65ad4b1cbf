"""Adam, projection and target average as one traceable step whose whole state lies on the device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.storage import Stacked, Storage

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Adam over one flat tensor; moments and step counter are tensors of the arena.

    With `decay` it is AdamW (arXiv 1711.05101): parameters shrink by rate * decay before each step, apart from the
    gradient and its moments.

    Args:
        parameters: (P,) float32, or () for a scalar.
        arena: owner of the state.
        prefix: folder of the state in the arena.
        betas: decay of the two moments, per step.
        decay: weight decay, 0 for none.
    """

    def __init__(
        self,
        parameters: Tensor,
        arena: Arena,
        prefix: str,
        betas: tuple[float, float] = (BETA1, BETA2),
        decay: float = 0.0,
    ) -> None:
        shape = tuple(parameters.shape)
        self.parameters = parameters
        self.betas, self.decay = betas, decay
        self.moment1 = arena.new(f"{prefix}/moment1", shape, why="Adam's mean of gradients")
        self.moment2 = arena.new(f"{prefix}/moment2", shape, why="Adam's mean of squared gradients")
        self.steps = arena.new(f"{prefix}/steps", (), torch.int64, "steps that Adam has taken, without skipped ones")

    def factors(self, rate: Tensor) -> Tensor:
        """Return (2,): what the next step at `rate` () multiplies its direction and its spread with; with weight
        decay (3,), and what it multiplies the parameters with.

        They come from a program of their own: a compiler would fuse them into the loop over the parameters and compute
        them again for each.
        """
        table = factor_table((self,), rate[None])[0]
        return table[: self.factor_count]

    @property
    def factor_count(self) -> int:
        """Return how many numbers `factors` has."""
        return 3 if self.decay else 2

    def proposal(self, grad: Tensor, factors: Tensor, ok: Tensor) -> Tensor:
        """Update the moments where `ok` and return what the parameters would become.

        Args:
            grad: (P,) float32.
            factors: of this step.
            ok: () bool; where it is false, moments and step counter stay.
        """
        beta1, beta2 = self.betas
        moment1 = torch.where(ok, torch.lerp(self.moment1, grad, 1.0 - beta1), self.moment1)
        moment2 = torch.where(ok, torch.lerp(self.moment2, grad.square(), 1.0 - beta2), self.moment2)
        self.moment1.copy_(moment1)
        self.moment2.copy_(moment2)
        self.steps += ok
        parameters = self.parameters * factors[2] if self.decay else self.parameters
        return parameters - factors[0] * moment1 / (torch.sqrt(moment2) * factors[1] + EPS)


class NetworkStep:
    """One optimiser step of a network: Adam, projection, batch norms' running statistics, average of a target.

    Args:
        storage: the trained network's flat tensors.
        arena, prefix: owner and folder of Adam's state.
        momentum: weight of a batch in the running statistics.
        target: flat parameters that follow by `tau`; their network has no running statistics.
        tau: weight of the new parameters in the target.
        betas, decay: of Adam.
        max_norm: largest norm of the whole gradient; a longer one is shortened to it. 0: none is.
        stacked: copies of the weights that every step renews.
    """

    def __init__(
        self,
        storage: Storage,
        arena: Arena,
        prefix: str,
        momentum: float,
        target: Tensor | None = None,
        tau: float = 0.0,
        betas: tuple[float, float] = (BETA1, BETA2),
        decay: float = 0.0,
        max_norm: float = 0.0,
        stacked: Stacked | None = None,
    ) -> None:
        self.storage, self.momentum, self.target, self.tau = storage, momentum, target, tau
        self.max_norm, self.stacked = max_norm, stacked
        self.adam = Adam(storage.parameters, arena, prefix, betas, decay)

    def apply(self, loss: Tensor, grad: Tensor, statistics: Tensor | None, factors: Tensor) -> Tensor:
        """Take the step unless loss, gradient or statistics are not finite; then everything keeps its value.

        Args:
            loss: () float32.
            grad: (P,) float32, laid out like the storage's parameters.
            statistics: (2, S) float32, batch statistics of the forward pass; None where no layer has any.
            factors: of `Adam.factors`.

        Returns:
            () bool: the step was taken.
        """
        # A square that overflows counts as not finite too, as it would ruin the second moment. A variance can overflow
        # while the loss stays finite, because what is divided by it becomes 0.
        square = grad.square().sum()
        ok = torch.isfinite(loss) & torch.isfinite(square)
        if statistics is not None:
            ok = ok & torch.isfinite(statistics).all()
        if self.max_norm:  # as torch.nn.utils.clip_grad_norm_ has it
            grad = grad * (self.max_norm / (torch.sqrt(square) + 1e-6)).clamp(max=1.0)
        parameters, running = self.storage.parameters, self.storage.statistics
        new = torch.where(ok, self.storage.projection(self.adam.proposal(grad, factors, ok)), parameters)
        if self.target is not None:
            self.target.copy_(torch.where(ok, torch.lerp(self.target, new, self.tau), self.target))
        parameters.copy_(new)
        if statistics is not None:
            running.copy_(torch.where(ok, torch.lerp(running, statistics, self.momentum), running))
        if self.stacked is not None:
            self.stacked.refresh()
        return ok


def factor_table(adams: Sequence[Adam], rates: Tensor) -> Tensor:
    """Return (M, 4): of each optimiser what the next step at its rate, of `rates` (M,), multiplies direction, spread
    and parameters with, and the rate.

    One vector for all: so a compiler makes a kernel or two of it. They share the decay of the moments; that of the
    parameters is the first one's, and an optimiser without it leaves the third number alone.
    """
    beta1, beta2 = adams[0].betas
    count = (in_line([adam.steps for adam in adams]) + 1).to(torch.float32)
    # 1 - beta^count, without the cancellation at small counts.
    size = -rates / torch.expm1(count * math.log(beta1))
    spread = torch.rsqrt(-torch.expm1(count * math.log(beta2)))
    return in_line([value[:, None] for value in (size, spread, 1.0 - rates * adams[0].decay, rates)])


def in_line(values: Sequence[Tensor]) -> Tensor:
    """Return values (..., 1) or () behind each other, (..., count), as `torch.cat` does.

    By comparisons, for a handful of numbers: a compiler can put these into a loop, and makes a copy each of a `cat`.
    """
    place = torch.arange(len(values), device=values[0].device)
    found = values[-1].expand(*values[-1].shape[:-1], len(values))
    for index in reversed(range(len(values) - 1)):
        found = torch.where(place == index, values[index], found)
    return found


def learning_rate(count: Tensor, horizon: Tensor, start: float, end: float, warmup: int) -> Tensor:
    """Return the rate of step `count`: linear from 1e-6 over `warmup` steps, then half a cosine from start to end.

    Args:
        count: (...) int64, steps of each schedule so far.
        horizon: () int64, steps at which `end` is reached; the rate stays there afterwards.
        start, end: rates.
        warmup: steps of the linear part, which the horizon includes.

    Returns:
        (...) float32.
    """
    done = count.to(torch.float64)
    part = ((done - warmup) / (horizon - warmup).clamp(min=1)).clamp(0.0, 1.0)
    rate = end + 0.5 * (start - end) * (1.0 + torch.cos(math.pi * part))
    if warmup:
        rate = torch.where(count < warmup, 1e-6 + (start - 1e-6) * done / warmup, rate)
    return rate.to(torch.float32)
