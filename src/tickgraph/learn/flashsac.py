"""FlashSAC in readable PyTorch: the configuration, the objectives in the authors' order, and the learner's state."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.rng import Rng
from tickgraph.learn.networks import Actor, BatchStats, Critic, UnitBatchNorm, sample_action
from tickgraph.learn.normalizer import RewardNormalizer
from tickgraph.learn.optimizer import Adam, NetworkStep, learning_rate
from tickgraph.learn.replay import DISCOUNTS, Batch
from tickgraph.learn.storage import Storage, bind, declare, pack_statistics

NOISE_SCOPES = ("shared", "per_env")


@dataclass
class FlashSacCfg:
    """Hyperparameters; the defaults are the paper's for GPU simulators."""

    actor_width: int = 128
    actor_blocks: int = 2
    critic_width: int = 256
    critic_blocks: int = 2
    atoms: int = 101
    """Atoms of the return's distribution, evenly spaced over [-v_max, v_max]."""
    v_max: float = 5.0
    gamma: float = 0.99
    n_step: int = 1
    discount: str = "exact"
    """"exact": gamma to the steps that a window took; "gamma_n": gamma^n even where it ended early, as the authors."""
    tau: float = 0.01
    """Weight of the new critic in the target, every update."""
    lr_start: float = 3e-4
    lr_end: float = 1.5e-4
    lr_warmup: int = 0
    """Steps of linear warm-up from 1e-6."""
    alpha_init: float = 0.01
    sigma_target: float = 0.15
    """The temperature drives the entropy to that of independent Gaussians of this deviation."""
    policy_period: int = 2
    """Critic updates per update of actor and temperature."""
    batch_size: int = 2048
    g_max: float = 5.0
    """Largest return after reward normalisation."""
    noise_exponent: float = 2.0
    noise_max_repeat: int = 16
    """Exploration noise is held for n in 1..max steps, P(n) in proportion to n^-exponent."""
    noise_scope: str = "shared"
    """"shared": all worlds change their noise in the same step, as the authors; "per_env": each its own, and at its
    episode's end."""
    bc_weight: float = 0.0
    """Weight of the pull towards replayed actions."""
    bf16: bool = False
    """Run matrix products in bfloat16; weights, statistics, losses and optimiser stay float32."""

    def __post_init__(self) -> None:
        for name, options in (("discount", DISCOUNTS), ("noise_scope", NOISE_SCOPES)):
            value = getattr(self, name)
            if value not in options:
                hint = nearby(value, options) or f"choose one of {', '.join(options)}"
                raise TickgraphError(f"FlashSacCfg.{name} is {value!r}; {hint}")
        for name in (
            *("actor_width", "actor_blocks", "critic_width", "critic_blocks", "n_step", "policy_period"),
            "noise_max_repeat",
        ):
            if getattr(self, name) < 1:
                raise TickgraphError(f"FlashSacCfg.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("atoms", "batch_size"):
            if getattr(self, name) < 2:
                raise TickgraphError(f"FlashSacCfg.{name} is {getattr(self, name)}; it must be at least 2")
        for name in ("v_max", "lr_start", "lr_end", "alpha_init", "sigma_target", "g_max"):
            if not getattr(self, name) > 0.0:
                raise TickgraphError(f"FlashSacCfg.{name} is {getattr(self, name)}; it must be above 0")
        for name in ("gamma", "tau"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise TickgraphError(f"FlashSacCfg.{name} is {getattr(self, name)}; it must be in (0, 1]")
        for name in ("lr_warmup", "bc_weight"):
            if getattr(self, name) < 0:
                raise TickgraphError(f"FlashSacCfg.{name} is {getattr(self, name)}; it must not be negative")


class ActorLoss(NamedTuple):
    """What the actor's objective returns."""

    loss: Tensor
    """() with gradient to the actor."""
    entropy: Tensor
    """() mean of -log pi."""
    statistics: Tensor
    """(2, S) batch means and variances of the actor's norms."""


class CriticLoss(NamedTuple):
    """What the critic's objective returns."""

    loss: Tensor
    """() with gradient to both members."""
    q: Tensor
    """() mean value of the replayed actions, over batch and members."""
    target_q: Tensor
    """() mean of the target distribution."""
    statistics: Tensor
    """(2, S) batch means and variances of the critic's norms."""


class Tails(NamedTuple):
    """The parts of the objectives behind the networks, which can be compiled without these."""

    actor: Callable[..., Any]
    labels: Callable[..., Any]
    critic: Callable[..., Any]


def actor_objective(
    actor: Actor,
    critic: Critic,
    alpha: Tensor,
    batch: Batch,
    noise: Tensor,
    atoms: Tensor,
    bc_weight: float,
    tails: Tails | None = None,
) -> ActorLoss:
    """mean(alpha log pi - min_i Q_i(s, a)) with a ~ pi(s).

    The actor runs in training mode on s and s' together, so that its batch statistics see the mixture that the critic
    sees; only the rows of s enter the loss. The critic runs on running statistics.

    Args:
        actor: trained.
        critic: parameters without gradient.
        alpha: () temperature, no gradient.
        batch: B transitions.
        noise: (B, A) standard normal.
        atoms: (K,) support.
        bc_weight: weight of mean|Q| mean((a - replayed action)^2).
        tails: what computes the part behind the networks.
    """
    rows = slice(batch.action.shape[0])
    stats: list[BatchStats] = []
    mean, log_std = actor(batch.actor_obs, stats, rows)
    action, log_prob = sample_action(mean, log_std, noise)
    logits = critic(torch.cat((batch.critic_obs[rows], action), dim=-1))
    value = expectation(logits, atoms).amin(0)
    tail = (tails or TAILS).actor
    return tail(value, action, log_prob, alpha, batch.action, bc_weight, pack_statistics(stats))


def actor_loss(
    value: Tensor,
    action: Tensor,
    log_prob: Tensor,
    alpha: Tensor,
    replayed: Tensor,
    bc_weight: float,
    statistics: Tensor,
) -> ActorLoss:
    """Return the objective from value and log density (B,) of the actor's actions (B, A)."""
    loss = (alpha * log_prob - value).mean()
    if bc_weight:
        loss = loss + bc_weight * value.detach().abs().mean() * (action - replayed).square().mean()
    return ActorLoss(loss, -log_prob.detach().mean(), statistics)


@torch.no_grad()
def next_action(actor: Actor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a' ~ pi(s'), (B, A), and its log density, (B,), from the actor on running statistics; no gradient."""
    return sample_action(*actor(batch.actor_obs[batch.action.shape[0] :]), noise)


def critic_objective(
    critic: Critic,
    target: Critic,
    alpha: Tensor,
    batch: Batch,
    successor: tuple[Tensor, Tensor],
    atoms: Tensor,
    tails: Tails | None = None,
) -> CriticLoss:
    """Cross entropy of both members against the projected distribution of the lesser target member.

    Both critics run in training mode on the same rows, (s, a) and then (s', a'): the loss reads the first half, the
    target the second, and the gradient also flows through the second half by way of the batch statistics.

    Args:
        critic: trained.
        target: parameters without gradient.
        alpha: () temperature.
        batch: B transitions, `reward` already normalised.
        successor: a' (B, A) and log pi(a'|s') (B,).
        atoms: (K,) support.
        tails: what computes the parts behind the networks.
    """
    tails = tails or TAILS
    action, log_prob = successor
    size = action.shape[0]
    x = torch.cat((batch.critic_obs, torch.cat((batch.action, action))), dim=-1)
    with torch.no_grad():
        logits = target(x, [], slice(size, None))
        labels = tails.labels(logits, batch.reward, batch.discount, alpha * log_prob, atoms)
    stats: list[BatchStats] = []
    logits = critic(x, stats, slice(size))
    return tails.critic(logits, labels, atoms, pack_statistics(stats))


def distribution_labels(logits: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Return the target distribution (B, K) from the target critics' logits (2, B, K) of (s', a').

    Per row it is the whole distribution of the member whose mean is less, moved by reward, discount and the entropy's
    cost alpha log pi, (B,) each.
    """
    probs = torch.softmax(logits, dim=-1)
    values = (probs * atoms).sum(-1)
    lesser = torch.where((values[0] <= values[1])[:, None], probs[0], probs[1])
    return project_distribution(lesser, reward, discount, cost, atoms)


def critic_loss(logits: Tensor, labels: Tensor, atoms: Tensor, statistics: Tensor) -> CriticLoss:
    """Return the cross entropy of logits (2, B, K) against labels (B, K), a mean over batch and members."""
    log_probs = torch.log_softmax(logits, dim=-1)
    loss = -(labels * log_probs).sum(-1).mean()
    q = (log_probs.detach().exp() * atoms).sum(-1).mean()
    return CriticLoss(loss, q, (labels * atoms).sum(-1).mean(), statistics)


TAILS = Tails(actor_loss, distribution_labels, critic_loss)


def expectation(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the mean of the distribution (..., K) over the atoms (K,)."""
    return (torch.softmax(logits, dim=-1) * atoms).sum(-1)


def project_distribution(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of reward + discount (z - cost), projected back onto the atoms.

    Each shifted atom is clipped to the support and its mass split between its two neighbours in proportion to nearness,
    which keeps the mean of what was not clipped.

    Args:
        probs: (B, K) of the successor.
        reward, discount, cost: (B,); cost is alpha log pi, discount is 0 after a termination.
        atoms: (K,) ascending, evenly spaced, symmetric about 0.
    """
    top = atoms.shape[0] - 1
    shifted = reward[:, None] + discount[:, None] * (atoms - cost[:, None])
    place = (torch.clamp(shifted, atoms[0], atoms[-1]) - atoms[0]) * (top / (atoms[-1] - atoms[0]))
    return gather_shares(probs, place) if probs.is_cuda else scatter_shares(probs, place)


def scatter_shares(probs: Tensor, place: Tensor) -> Tensor:
    """Split each mass (B, K) between the two atoms beside its place (B, K), in 0 to K - 1; returns (B, K)."""
    top = probs.shape[-1] - 1
    # Clamped as an integer: one that comes from a NaN would otherwise lead out of the tensor.
    lower = place.floor().to(torch.int64).clamp(0, top)
    part = place - lower
    upper = (lower + 1).clamp(max=top)
    result = torch.zeros_like(probs)
    return result.scatter_add(-1, lower, probs * (1.0 - part)).scatter_add(-1, upper, probs * part)


def gather_shares(probs: Tensor, place: Tensor) -> Tensor:
    """Compute `scatter_shares` as what each atom receives from every place.

    K times the work, which a GPU does not notice, and no atomic additions, whose order differs from run to run.
    """
    atoms = torch.arange(probs.shape[-1], device=probs.device)[:, None]
    share = (1.0 - (place[:, None, :] - atoms).abs()).clamp(min=0.0)
    return (share * probs[:, None, :]).sum(-1)


def target_entropy(action_dim: int, sigma: float) -> float:
    """Return A/2 ln(2 pi e sigma^2), the entropy of A independent Gaussians of deviation sigma."""
    return 0.5 * action_dim * math.log(2.0 * math.pi * math.e * sigma**2)


class FlashSac:
    """Networks, optimisers, temperature, schedules and reward normaliser; every tensor lies in the arena.

    Learning rates follow the count of steps on the device. As in the authors' code the schedules of actor and
    temperature advance only when the actor does, while the horizon counts critic updates: with `policy_period` 2 they
    end a run half-way down the cosine, at 2.25e-4 for the default rates.

    Args:
        cfg: hyperparameters.
        obs_dims: widths of the groups "actor" and "critic".
        action_dim: width A of an action.
        num_envs: worlds, for the reward normaliser.
        arena: owner of all tensors, under "learner/" and "policy/"; not sealed yet.
        seed: seed of the start and of the draws.
        total_updates: critic updates of the whole run, the horizon of the learning rates.
        first_row: global number of the first row of a batch, rank * batch_size in a run of several processes.
    """

    def __init__(
        self,
        cfg: FlashSacCfg,
        obs_dims: Mapping[str, int],
        action_dim: int,
        num_envs: int,
        arena: Arena,
        seed: int,
        total_updates: int,
        first_row: int = 0,
    ) -> None:
        self.cfg, self.obs_dims, self.action_dim, self.arena = cfg, dict(obs_dims), action_dim, arena
        generator = torch.Generator().manual_seed(seed & (2**63 - 1))
        self.actor = Actor(obs_dims["actor"], action_dim, cfg.actor_width, cfg.actor_blocks, generator)
        critic = (obs_dims["critic"], action_dim, cfg.critic_width, cfg.critic_blocks, cfg.atoms, generator)
        self.critic = Critic(*critic)
        self.target, self.policy = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        # The trained critic without gradients: autograd, and a compiler that plans ahead, then compute none for it.
        self.frozen_critic = copy.deepcopy(self.critic)
        self.actor_storage = declare(self.actor, arena, "learner/actor", "trained actor")
        self.critic_storage = declare(self.critic, arena, "learner/critic", "trained critics")
        # No running statistics: the target only ever runs on those of the batch.
        self.target_storage = declare(self.target, arena, "learner/target", "average of the critics", False, False)
        self.policy_storage = declare(self.policy, arena, "policy", "the actor that collects", trainable=False)
        # Not the policy itself: an update may run beside ticks, and these act with one policy from first to last.
        self.pending = tuple(
            arena.new(f"learner/pending/{name}", tuple(tensor.shape), why=f"{name} of the policy that acts next")
            for name, tensor in _tensors(self.policy_storage)
        )
        bind(self.frozen_critic, self.critic_storage, trainable=False)
        for trained, follower in (
            (self.actor_storage, self.policy_storage),
            (self.critic_storage, self.target_storage),
        ):
            trained.parameters.copy_(trained.projection(trained.parameters))
            follower.parameters.copy_(trained.parameters)
        self.snapshot_policy()

        self.log_alpha = arena.new("learner/log_alpha", (), why="log temperature", fill=math.log(cfg.alpha_init))
        self.target_entropy = target_entropy(action_dim, cfg.sigma_target)
        momentum = UnitBatchNorm.momentum
        self.actor_step = NetworkStep(self.actor_storage, arena, "learner/actor_adam", momentum)
        self.critic_step = NetworkStep(
            *(self.critic_storage, arena, "learner/critic_adam", momentum),
            *(self.target_storage.parameters, cfg.tau),
        )
        self.alpha_adam = Adam(self.log_alpha, arena, "learner/alpha_adam")
        self.updates = arena.new("learner/updates", (), torch.int64, "critic updates so far")
        self.actor_updates = arena.new("learner/actor_updates", (), torch.int64, "actor updates so far")
        self.horizon = arena.new("learner/horizon", (), torch.int64, "updates of the whole run", fill=total_updates)
        self.normalizer = RewardNormalizer(arena, num_envs, cfg.gamma, cfg.g_max, "learner/normalizer")
        self.atoms = arena.constant(
            "learner/atoms", torch.linspace(-cfg.v_max, cfg.v_max, cfg.atoms, dtype=torch.float64), why="support"
        )
        self.rng = Rng(arena, cfg.batch_size, seed, first_row, "learner/rng")
        self.replay_draw = self.rng.stream("learner/replay")
        self.noise_draw = self.rng.stream("learner/noise")

    def rate(self, count: Tensor) -> Tensor:
        """Return the learning rate () of step `count` () of a schedule."""
        cfg = self.cfg
        return learning_rate(count, self.horizon, cfg.lr_start, cfg.lr_end, cfg.lr_warmup)

    def alpha(self) -> Tensor:
        """Return the temperature, () float32."""
        return torch.exp(self.log_alpha)

    def snapshot_policy(self) -> None:
        """Keep the actor as the policy that collects from the next `publish_policy` on."""
        for pending, (_, tensor) in zip(self.pending, _tensors(self.actor_storage), strict=True):
            pending.copy_(tensor)

    def publish_policy(self) -> None:
        """Let the newest snapshot collect; called between iterations, never beside a tick."""
        for pending, (_, tensor) in zip(self.pending, _tensors(self.policy_storage), strict=True):
            tensor.copy_(pending)

    def set_horizon(self, total_updates: int) -> None:
        """Change the horizon of the learning rates in place; rates follow the new cosine from the next update on."""
        self.horizon.fill_(total_updates)

    def state_names(self) -> list[str]:
        """Return the names in the arena of all state of learner, policy and explorer, constants left out."""
        names = self.arena.names()
        return [name for name in names if name.startswith(STATE_FOLDERS) and not name.endswith(CONSTANTS)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all state under "learner/", "policy/" and "explorer/", by arena name."""
        return {name: self.arena[name].clone() for name in self.state_names()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Write a state back in place.

        Raises:
            TickgraphError: a name is missing or unknown, or a shape or dtype differs; then nothing has been written.
        """
        own = {name: self.arena[name] for name in self.state_names()}
        missing = [name for name in own if name not in state]
        unknown = [name for name in state if name not in own]
        if missing or unknown:
            raise TickgraphError(
                f"the learner's state lacks {missing[:3] or 'nothing'} and has unknown {unknown[:3] or 'nothing'} "
                f"({len(missing)} missing, {len(unknown)} unknown); load it with the configuration it was saved with"
            )
        for name, tensor in own.items():
            given = state[name]
            if given.shape != tensor.shape or given.dtype != tensor.dtype:
                raise TickgraphError(
                    f"the learner's state has {name!r} as {tuple(given.shape)} {given.dtype}, this learner as "
                    f"{tuple(tensor.shape)} {tensor.dtype}; load it with the configuration it was saved with"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])


def _tensors(storage: Storage) -> tuple[tuple[str, Tensor], ...]:
    return ("parameters", storage.parameters), ("statistics", storage.statistics)


STATE_FOLDERS = ("learner/", "policy/", "explorer/")
CONSTANTS = ("learner/atoms", "/rng/row", "/rng/stream", "/rng/block", "explorer/repeat_weights")
