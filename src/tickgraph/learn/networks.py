"""The networks of FlashSAC: unit-norm linear layers, batch statistics in float32, an actor and a pair of critics.

Modules that come as an ensemble carry a leading member axis M on every parameter and take (M, rows, d) or, shared by
all members, (rows, d). A forward pass never writes: in training it appends each layer's batch statistics to a list, and
the optimiser's step decides whether they are committed.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
ALL_ROWS = slice(None)

BatchStats = tuple[Tensor, Tensor]
"""Mean and unbiased variance over the rows, each (M, d) or (d,) float32."""


class UnitLinear(nn.Module):
    """x W^T without bias; every row of W has norm 1 after `project`.

    Args:
        inputs, outputs: sizes of a row and of its image.
        members: size M of the ensemble, None for a single layer.
        generator: source of the orthogonal start.
    """

    def __init__(self, inputs: int, outputs: int, members: int | None, generator: torch.Generator) -> None:
        super().__init__()
        weights = [torch.empty(outputs, inputs) for _ in range(members or 1)]
        for weight in weights:
            nn.init.orthogonal_(weight, generator=generator)
        self.weight = nn.Parameter(torch.stack(weights) if members else weights[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return (M, rows, out), or (rows, out) for a single layer."""
        if self.weight.dim() == 2:
            return F.linear(x, self.weight)
        members = self.weight.shape[0]
        return torch.bmm(x if x.dim() == 3 else x.expand(members, *x.shape), self.weight.transpose(1, 2))


class UnitBatchNorm(nn.Module):
    """Batch normalisation in float32 whose gain and offset together have norm sqrt(d) after projection."""

    momentum = 0.01
    eps = 1e-5

    def __init__(self, dim: int, members: int | None) -> None:
        super().__init__()
        shape = (members, dim) if members else (dim,)
        self.gain = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))

    def forward(self, x: Tensor, stats: list[BatchStats] | None = None) -> Tensor:
        """Normalise (..., rows, d): with the rows' own statistics, appended to `stats`, or with the running ones."""
        wide = x.float()
        if stats is None:
            mean, var = self.mean.unsqueeze(-2), self.var.unsqueeze(-2)
        else:
            mean, var, batch = batch_statistics(wide)
            stats.append((batch[0].expand(self.gain.shape), batch[1].expand(self.gain.shape)))
        y = (wide - mean) * torch.rsqrt(var + self.eps) * self.gain.unsqueeze(-2) + self.offset.unsqueeze(-2)
        return y.to(x.dtype)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor, BatchStats]:
    """Return mean and biased variance over the rows of (..., rows, d), rows kept as 1, and what to commit of them."""
    rows = x.shape[-2]
    mean = x.mean(-2, keepdim=True)
    # Two passes: the difference of mean square and squared mean loses digits for an input far from 0.
    var = (x - mean).square().mean(-2, keepdim=True)
    return mean, var, (mean.squeeze(-2).detach(), var.squeeze(-2).detach() * (rows / (rows - 1)))


class UnitRMSNorm(nn.Module):
    """g x / sqrt(mean(x^2) + 1e-6); g has norm sqrt(d) after projection."""

    eps = 1e-6

    def __init__(self, dim: int, members: int | None) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones((members, dim) if members else (dim,)))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row of (..., rows, d), in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.gain.unsqueeze(-2) * wide * scale).to(x.dtype)


class Block(nn.Module):
    """d -> 4d -> d with a skip: ReLU before the sum, and the skip path is not normalised."""

    def __init__(self, dim: int, members: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.up = UnitLinear(dim, 4 * dim, members, generator)
        self.up_norm = UnitBatchNorm(4 * dim, members)
        self.down = UnitLinear(4 * dim, dim, members, generator)
        self.down_norm = UnitBatchNorm(dim, members)

    def forward(self, h: Tensor, stats: list[BatchStats] | None = None) -> Tensor:
        """Map (..., rows, d) to the same shape."""
        u = F.relu(self.up_norm(self.up(h), stats))
        return F.relu(self.down_norm(self.down(u), stats)) + h


class Trunk(nn.Module):
    """Input normalisation (the only one that observations get), embedding and residual blocks."""

    def __init__(self, inputs: int, dim: int, blocks: int, members: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.input_norm = UnitBatchNorm(inputs, members)
        self.embed = UnitLinear(inputs, dim, members, generator)
        self.blocks = nn.ModuleList(Block(dim, members, generator) for _ in range(blocks))
        self.norm = UnitRMSNorm(dim, members)

    def forward(self, x: Tensor, stats: list[BatchStats] | None = None, rows: slice = ALL_ROWS) -> Tensor:
        """Return the features of the chosen rows, (..., rows, dim).

        All rows enter the batch statistics; the rows that nobody reads are dropped where nothing mixes rows any more.
        """
        h = self.embed(self.input_norm(x, stats))
        for block in self.blocks:
            h = block(h, stats)
        return self.norm(h[..., rows, :])


class Actor(nn.Module):
    """Observation -> mean and log deviation of the Gaussian before tanh.

    Args:
        obs_dim, action_dim: widths O and A.
        dim: width of the trunk.
        blocks: residual blocks.
        generator: source of the start.
    """

    def __init__(self, obs_dim: int, action_dim: int, dim: int, blocks: int, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = Trunk(obs_dim, dim, blocks, None, generator)
        self.mean = UnitLinear(dim, action_dim, None, generator)
        self.mean_bias = nn.Parameter(torch.zeros(action_dim))
        self.raw = UnitLinear(dim, action_dim, None, generator)
        self.raw_bias = nn.Parameter(torch.zeros(action_dim))

    def forward(
        self, obs: Tensor, stats: list[BatchStats] | None = None, rows: slice = ALL_ROWS
    ) -> tuple[Tensor, Tensor]:
        """Return mean and log deviation of the chosen rows, (rows, A) float32; the log deviation is in [-10, 2]."""
        features = self.trunk(obs, stats, rows)
        mean = self.mean(features).float() + self.mean_bias
        raw = self.raw(features).float() + self.raw_bias
        return mean, log_std_of(raw)


class Critic(nn.Module):
    """Two members that map observation and action to logits over the atoms of the return."""

    members = 2

    def __init__(
        self, obs_dim: int, action_dim: int, dim: int, blocks: int, atoms: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.trunk = Trunk(obs_dim + action_dim, dim, blocks, self.members, generator)
        self.head = UnitLinear(dim, atoms, self.members, generator)
        self.head_bias = nn.Parameter(torch.zeros(self.members, atoms))

    def forward(self, x: Tensor, stats: list[BatchStats] | None = None, rows: slice = ALL_ROWS) -> Tensor:
        """Return logits (2, rows, atoms) float32 of the chosen rows of x = [observation, action], (all rows, O + A)."""
        return self.head(self.trunk(x, stats, rows)).float() + self.head_bias.unsqueeze(-2)


def log_std_of(raw: Tensor) -> Tensor:
    """Return the log deviation in [-10, 2] that a head's output stands for."""
    return LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * 0.5 * (1.0 + torch.tanh(raw))


def sample_action(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action tanh(mean + exp(log_std) noise), (rows, A), and the log density of that action, (rows,)."""
    u = mean + torch.exp(log_std) * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    squash = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return torch.tanh(u), (gaussian - squash).sum(-1)
