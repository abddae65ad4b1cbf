"""The reward normaliser: one scale that keeps returns inside the support of the critic's distribution."""

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.sums import ROW, world_sum


class RewardNormalizer:
    """Divides rewards by the larger of the spread of discounted returns and their largest magnitude over `g_max`.

    Per world G <- gamma (1 - done) G + r with `done` of the same step, so the history is dropped before the terminal
    reward is added. Mean and variance of G are merged over all worlds and ticks (Chan), the largest |G| never decays,
    and the scale is max(sqrt(var + 1e-8), max|G| / g_max).

    The count starts at 1e-4 with mean 0 and variance 1, and nothing is added to it again. (FlashSAC's own code starts
    at 0 and adds 1e-4 to the old count in every merge; after the first tick the two differ by less than 1e-4 samples
    per merge.)

    Args:
        arena: owner of the statistics.
        num_envs: worlds N.
        gamma: discount per step.
        g_max: largest return that the support shall hold.
        prefix: folder of the tensors in the arena.
    """

    def __init__(self, arena: Arena, num_envs: int, gamma: float, g_max: float, prefix: str = "normalizer") -> None:
        self.gamma, self.g_max = gamma, g_max
        wide = torch.float64  # Counts pass 2^24, where float32 stops counting.
        self.returns = arena.new(f"{prefix}/returns", (num_envs,), why="discounted return of each world so far")
        self.largest = arena.new(f"{prefix}/largest", (), why="largest |return| ever seen")
        self.mean = arena.new(f"{prefix}/mean", (1,), wide, "mean of the returns")
        self.var = arena.new(f"{prefix}/var", (1,), wide, "biased variance of the returns", fill=1.0)
        self.count = arena.new(f"{prefix}/count", (1,), wide, "samples in mean and variance", fill=1e-4)
        self.refused = arena.new(f"{prefix}/refused", (1,), torch.int64, "rewards since the last log that counted as 0")
        self.scale = arena.new(f"{prefix}/scale", (), why="divisor that the learner uses, as last published", fill=1.0)

    def update(self, reward: Tensor, done: Tensor) -> None:
        """Take in one tick.

        Args:
            reward: (N,) float32, raw; one that is not finite, or whose square is not, counts as 0, and in
                `refused`.
            done: (N,) bool, terminated or truncated in the same step.
        """
        # A single one beyond that would be the largest return for ever, and the scale infinite.
        fine = torch.isfinite(reward.square())
        reward = torch.where(fine, reward, 0.0)
        returns = self.gamma * torch.where(done, 0.0, self.returns) + reward
        self.returns.copy_(returns)
        new = returns.shape[0]
        # On a GPU of rows first, as `core/sums.py` says.
        shape = (-1, ROW) if returns.is_cuda and new % ROW == 0 else (1, new)
        self.refused += world_sum(~fine)
        rows = returns.view(shape)
        self.largest.copy_(torch.maximum(self.largest, rows.abs().amax(1).amax()))
        rows = rows.to(torch.float64)
        new_mean = rows.mean(1).mean()
        new_var = (rows - new_mean).square().mean(1).mean()
        total = self.count + new
        delta = new_mean - self.mean
        spread = self.var * self.count + new_var * new + delta.square() * self.count * new / total
        self.mean += delta * new / total
        self.var.copy_(spread / total)
        self.count.copy_(total)

    def publish(self) -> None:
        """Let the learner see the statistics so far."""
        deviation = torch.sqrt(self.var + 1e-8).to(torch.float32)
        self.scale.copy_(torch.maximum(deviation, self.largest / self.g_max)[0])


class ObsNormalizer:
    """Running mean and deviation of one group of observations, for (x - mean) / (deviation + eps), as FastSAC has it.

    `update` merges what a tick observed (Chan's parallel formula); networks read `published`, which `publish` writes
    between ticks and updates. So an update that runs beside ticks reads numbers that stay, and the policy acts on
    those of its own last update. A row with anything that is not finite counts for nothing.

    Args:
        arena: owner of the statistics.
        dim: width D of the group.
        prefix: folder of the tensors in the arena.
        eps: added to the deviation.
    """

    def __init__(self, arena: Arena, dim: int, prefix: str, eps: float = 1e-2) -> None:
        self.eps = eps
        wide = torch.float64  # Counts pass 2^24, where float32 stops counting.
        self.mean = arena.new(f"{prefix}/mean", (dim,), wide, "mean of the observations")
        self.var = arena.new(f"{prefix}/var", (dim,), wide, "biased variance of the observations", fill=1.0)
        self.count = arena.new(f"{prefix}/count", (1,), wide, "observations in mean and variance")
        self.published = arena.new(
            f"{prefix}/published", (2, dim), why="mean and 1 / (deviation + eps) as networks read"
        )
        self.publish()

    def update(self, obs: Tensor) -> None:
        """Take in the observations (N, D) float32 of one tick."""
        finite = torch.isfinite(obs).all(-1, keepdim=True)
        rows = torch.where(finite, obs, 0.0).to(torch.float64)
        new = finite.sum(0).to(torch.float64)  # (1,)
        some = new.clamp(min=1.0)
        new_mean = rows.sum(0) / some
        new_var = torch.where(finite, (rows - new_mean).square(), 0.0).sum(0) / some
        total = (self.count + new).clamp(min=1.0)
        delta = new_mean - self.mean
        spread = self.var * self.count + new_var * new + delta.square() * self.count * new / total
        # As long as nothing was seen the variance stays what it was declared as.
        self.var.copy_(torch.where(self.count + new > 0.0, spread / total, self.var))
        self.mean += delta * new / total
        self.count += new

    def publish(self) -> None:
        """Let networks read the statistics so far."""
        scale = 1.0 / (torch.sqrt(self.var) + self.eps)
        self.published.copy_(torch.stack((self.mean, scale)))


def normalize(obs: Tensor, published: Tensor) -> Tensor:
    """Return observations (rows, D) with the statistics (2, D) of `ObsNormalizer.published` taken out."""
    return (obs - published[0]) * published[1]
