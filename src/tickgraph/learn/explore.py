"""The policies that act: exploration with noise while collecting, the mean action while evaluating."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tickgraph.core.rng import Rng
from tickgraph.learn.learner import Learner, NoiseHold

# Probabilities as whole numbers of this, so that a choice is the same on every device.
_UNIT = 1 << 28


class Explorer:
    """a = tanh(mean + std * noise), the noise drawn in each step or held for some; uniform actions during warm-up.

    It reads the policy snapshot. Where the algorithm holds its noise, a vector lasts n in 1..longest steps, P(n) in
    proportion to n^-exponent: shared, all worlds change theirs in the same step, whether or not an episode ends; else
    each world has its own count and also changes when its episode ends.

    Args:
        learner: owner of the policy snapshot and of the arena, which holds the explorer's state under "explorer/".
        num_envs: worlds N.
        seed: seed of the draws.
        first_row: global number of world 0.
    """

    def __init__(self, learner: Learner, num_envs: int, seed: int, first_row: int = 0) -> None:
        arena, self.hold = learner.arena, learner.hold
        self.gaussian, self.action_dim = learner.gaussian, learner.action_dim
        self.rng = Rng(arena, num_envs, seed, first_row, "explorer/rng")
        self.draw = self.rng.stream("explorer")
        lanes = self.action_dim + self.action_dim % 2  # normals come in pairs
        self.rng.reserve({**({"explorer/repeat": 1} if self.hold else {}), "explorer/noise": lanes})
        self.warmup = arena.new("explorer/warmup", (), torch.bool, "uniform actions instead of the policy's", fill=True)
        if self.hold is None:
            return
        self.noise = arena.new("explorer/noise", (num_envs, self.action_dim), why="noise that is held")
        self.left = arena.new("explorer/left", (num_envs,), torch.int64, "steps that the noise still lasts")
        powers = [n**-self.hold.exponent for n in range(1, self.hold.longest + 1)]
        weights = torch.tensor([round(_UNIT * power / sum(powers)) for power in powers])
        self.weights = arena.constant("explorer/repeat_weights", weights, torch.int64, "P(n) of holding noise n steps")

    def act(self, obs: Mapping[str, Tensor], action: Tensor, done: Tensor) -> None:
        """Write an action for every world and go on to the next draw.

        Args:
            obs: group "actor" (N, Da) float32.
            action: (N, A) float32, written: in [-1, 1].
            done: (N,) bool, the episode ended in the last step.
        """
        noise = self.draw.normal("noise", self.action_dim)
        random = self.draw.uniform("noise", self.action_dim, -1.0, 1.0)  # of the same words: one of the two is used
        if self.hold is not None:
            noise = self._held(noise, done, self.hold)
        mean, log_std = self.gaussian(obs["actor"])
        chosen = torch.tanh(mean + torch.exp(log_std) * noise)
        action.copy_(torch.where(self.warmup, random, chosen))
        self.rng.advance()

    def _held(self, fresh: Tensor, done: Tensor, hold: NoiseHold) -> Tensor:
        """Return the noise (N, A) of this step: the one that is held, or `fresh` where its time is over."""
        repeats = self.draw.choice("repeat", self.weights) + 1
        renew = self.left <= 0
        if hold.shared:
            repeats = repeats[:1].expand_as(repeats)
        else:
            renew = renew | done
        self.noise.copy_(torch.where(renew[:, None], fresh, self.noise))
        self.left.copy_(torch.where(renew, repeats, self.left) - 1)
        return self.noise

    def set_warmup(self, on: bool) -> None:
        """Switch uniform random actions on or off, in place."""
        self.warmup.fill_(on)


class GreedyPolicy:
    """The deterministic action tanh(mean) of the policy snapshot; it has no state and draws nothing.

    Args:
        learner: owner of the policy snapshot.
    """

    def __init__(self, learner: Learner) -> None:
        self.gaussian = learner.gaussian

    def act(self, obs: Mapping[str, Tensor], action: Tensor, done: Tensor) -> None:
        """Write tanh(mean) of `obs` group "actor" (N, Da) into `action` (N, A); `done` is not read."""
        action.copy_(torch.tanh(self.gaussian(obs["actor"])[0]))
