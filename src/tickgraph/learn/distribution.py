"""Distributions over fixed atoms: their mean, and what a step of reward and discount makes of them."""

import torch
from torch import Tensor


def expectation(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the mean of the distribution (..., K) over the atoms (K,)."""
    return (torch.softmax(logits, dim=-1) * atoms).sum(-1)


def project_distribution(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of reward + discount (z - cost), projected back onto the atoms.

    Each shifted atom is clipped to the support and its mass split between its two neighbours in proportion to nearness,
    which keeps the mean of what was not clipped (Bellemare et al., arXiv 1707.06887, equation 7).

    Args:
        probs: (..., B, K) of the successor.
        reward, discount, cost: (B,); cost is alpha log pi, discount is in [0, 1] and 0 after a termination.
        atoms: (K,) ascending, evenly spaced.
    """
    form = project_by_integral if probs.is_cuda else project_by_scatter
    return form(probs, reward, discount, cost, atoms)


def project_by_scatter(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Compute `project_distribution` as what each mass adds to the two atoms beside its place."""
    top = atoms.shape[0] - 1
    shifted = reward[:, None] + discount[:, None] * (atoms - cost[:, None])
    place = (torch.clamp(shifted, atoms[0], atoms[-1]) - atoms[0]) * (top / (atoms[-1] - atoms[0]))
    place = place.expand_as(probs)
    # Clamped as an integer: one that comes from a NaN would otherwise lead out of the tensor.
    lower = place.floor().to(torch.int64).clamp(0, top)
    part = place - lower
    upper = (lower + 1).clamp(max=top)
    result = torch.zeros_like(probs)
    return result.scatter_add(-1, lower, probs * (1.0 - part)).scatter_add(-1, upper, probs * part)


def project_by_integral(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Compute `project_distribution` by sums along the atoms: no atomic additions, whose order differs from run to run.

    In spaces between atoms source i lies at start + discount i. With F(x) the sum over all sources at or before x of
    mass (x - place), which is the integral of the distribution function, atom j receives F(j + 1) - 2 F(j) + F(j - 1),
    and the ends what lies beyond them too. Sums in float64: differences of their ends are what remains.
    """
    count = atoms.shape[0]
    reward, step, cost, low, high = (value.double() for value in (reward, discount, cost, atoms[0], atoms[-1]))
    start = (reward + step * (low - cost) - low) * ((count - 1) / (high - low))
    # Farther out nothing changes, and products with infinity would not be numbers. A NaN stays one.
    start, step = start.clamp(-2.0 * count, 2.0 * count)[:, None], step[:, None]
    j = torch.arange(count, device=probs.device, dtype=torch.float64)
    wide = probs.double()
    mass, moment = torch.cumsum(wide, -1), torch.cumsum(wide * (start + step * j), -1)
    last = torch.where(step > 0.0, torch.floor((j - start) / step), torch.where(start <= j, count, -1.0))
    last = torch.nan_to_num(last).clamp(-1, count - 1).to(torch.int64).expand_as(probs)
    reached = last.clamp(min=0)
    integral = torch.where(last < 0, 0.0 * start, j * mass.gather(-1, reached) - moment.gather(-1, reached))
    rise = integral[..., 1:] - integral[..., :-1]
    ends = (rise[..., :1], mass[..., -1:] - rise[..., -1:])
    return torch.cat((ends[0], rise[..., 1:] - rise[..., :-1], ends[1]), -1).to(probs.dtype)
