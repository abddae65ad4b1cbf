"""The networks of SAC: linear layers with layer norm and SiLU that halve in width, an actor and a pair of critics.

Modules that come as an ensemble carry a leading member axis M on every parameter and take (M, rows, d) or, shared by
all members, (rows, d).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tickgraph.learn.linear import linear

LOG_STD_MIN, LOG_STD_MAX = -5.0, 0.0
SQUASH_EPS = 1e-6
LAYERS = 3


class Linear(nn.Module):
    """x W^T + b, weights and biases uniform within 1 / sqrt(inputs) at the start, as torch.nn.Linear has them; or zero.

    Args:
        inputs, outputs: sizes of a row and of its image.
        members: size M of the ensemble, None for a single layer.
        generator: source of the start; None: all zero.
    """

    plain = False
    """Multiplies in the plain form on every device, for a reference."""

    def __init__(self, inputs: int, outputs: int, members: int | None, generator: torch.Generator | None) -> None:
        super().__init__()
        lead = (members,) if members else ()
        self.weight = nn.Parameter(torch.zeros(*lead, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(*lead, outputs))
        if generator is not None:
            bound = 1.0 / math.sqrt(inputs)
            with torch.no_grad():
                for value in (self.weight, self.bias):
                    value.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return (M, rows, out), or (rows, out) for a single layer."""
        return linear(x, self.weight, self.bias, self.plain)


class LayerNorm(nn.Module):
    """g (x - mean) / sqrt(var + 1e-5) + o over each row, in float32."""

    eps = 1e-5

    def __init__(self, dim: int, members: int | None) -> None:
        super().__init__()
        shape = (members, dim) if members else (dim,)
        self.gain = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row of (..., rows, d); returns the same shape in x's own precision."""
        unit = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (unit * self.gain.unsqueeze(-2) + self.offset.unsqueeze(-2)).to(x.dtype)


class Mlp(nn.Module):
    """Three times linear, layer norm, SiLU, of width d, d / 2 and d / 4."""

    def __init__(self, inputs: int, dim: int, members: int | None, generator: torch.Generator) -> None:
        super().__init__()
        widths = [dim // 2**k for k in range(LAYERS)]
        sizes = zip([inputs, *widths], widths, strict=False)
        self.layers = nn.ModuleList(Linear(before, after, members, generator) for before, after in sizes)
        self.norms = nn.ModuleList(LayerNorm(width, members) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (..., rows, dim / 4)."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.silu(norm(layer(x)))
        return x


class SacActor(nn.Module):
    """Observation -> mean and log deviation of the Gaussian before tanh; both heads are zero at the start.

    Args:
        obs_dim, action_dim: widths O and A.
        dim: width of the first layer.
        generator: source of the start.
    """

    def __init__(self, obs_dim: int, action_dim: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = Mlp(obs_dim, dim, None, generator)
        last = dim // 2 ** (LAYERS - 1)
        self.mean, self.raw = Linear(last, action_dim, None, None), Linear(last, action_dim, None, None)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log deviation, (rows, A) float32; the log deviation is in [-5, 0]."""
        features = self.trunk(obs)
        # Both heads in one product, which reads the features once.
        weight = torch.cat((self.mean.weight, self.raw.weight))
        bias = torch.cat((self.mean.bias, self.raw.bias))
        mean, raw = linear(features, weight, bias, self.mean.plain).float().chunk(2, dim=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1.0)


class SacCritic(nn.Module):
    """Two members that map observation and action to logits over the atoms of the return."""

    members = 2

    def __init__(self, obs_dim: int, action_dim: int, dim: int, atoms: int, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = Mlp(obs_dim + action_dim, dim, self.members, generator)
        self.head = Linear(dim // 2 ** (LAYERS - 1), atoms, self.members, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (2, rows, atoms) float32 of x = [observation, action], (rows, O + A)."""
        return self.head(self.trunk(x)).float()


def sample_action(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action tanh(mean + exp(log_std) noise), (rows, A), and its log density, (rows,).

    The squash is corrected by log(1 - a^2 + 1e-6), as FastSAC's authors have it.
    """
    action = torch.tanh(mean + torch.exp(log_std) * noise)
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return action, (gaussian - torch.log(1.0 - action.square() + SQUASH_EPS)).sum(-1)
