"""SAC in readable PyTorch, as FastSAC has it (arXiv 2512.01996): the configuration, the objectives, the learner.

It differs from FlashSAC in what an update computes (docs/algorithms.md has the table): layer norm in place of batch
norm and unit weights, each critic against the distribution of its own target, an actor that follows the mean of both
critics, a temperature that steps with the critic, AdamW, and a normaliser of the observations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Resolution
from tickgraph.learn.distribution import expectation, project_distribution
from tickgraph.learn.kernel_check import check_row_steps
from tickgraph.learn.learner import AlgoCfg, Figures, Learner, Rates, Tails, generator_of
from tickgraph.learn.mlp import LAYERS, SacActor, SacCritic, sample_action
from tickgraph.learn.normalizer import ObsNormalizer, normalize
from tickgraph.learn.optimizer import Adam, NetworkStep
from tickgraph.learn.path import PLAIN_ON_A_GPU, Switches, resolve_switches
from tickgraph.learn.replay import Batch


@dataclass
class SacCfg(AlgoCfg):
    """Hyperparameters; the defaults are FastSAC's for humanoid locomotion."""

    gamma: float = 0.97
    tau: float = 0.125
    v_max: float = 20.0
    alpha_init: float = 0.001
    policy_period: int = 4
    batch_size: int = 8192
    actor_width: int = 512
    """Width of the actor's first layer; the second has half of it, the third a quarter."""
    critic_width: int = 768
    """The same of each critic."""
    target_entropy_ratio: float = 0.0
    """The temperature drives the entropy to minus this times the number of actions."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 1e-3
    """Of AdamW, for actor and critics; the temperature has none."""
    max_grad_norm: float = 0.0
    """Largest norm of a network's whole gradient; 0: it is never shortened."""
    normalize_obs: bool = True
    """Take running mean and deviation out of the observations, of actor and critic."""
    obs_eps: float = 1e-2
    """Added to that deviation."""

    least: ClassVar[dict[str, int]] = AlgoCfg.least | {"actor_width": 4, "critic_width": 4}
    most: ClassVar[dict[str, int]] = AlgoCfg.most | {"actor_width": 1 << 20, "critic_width": 1 << 20}
    above_zero: ClassVar[tuple[str, ...]] = (*AlgoCfg.above_zero, "obs_eps")
    not_negative: ClassVar[tuple[str, ...]] = (
        *(*AlgoCfg.not_negative, "target_entropy_ratio", "weight_decay", "max_grad_norm"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("actor_width", "critic_width"):
            parts = 2 ** (LAYERS - 1)
            self._check(name, getattr(self, name) % parts == 0, f"it is halved twice, so give a multiple of {parts}")
        for name in ("beta1", "beta2"):
            self._check(name, 0.0 < getattr(self, name) < 1.0, "it must be in (0, 1)")


class SacActorLoss(NamedTuple):
    """What the actor's objective returns."""

    loss: Tensor
    """() with gradient to the actor."""
    entropy: Tensor
    """() mean of -log pi."""
    value: Tensor
    """() mean value of the actor's actions."""
    deviation: Tensor
    """() mean deviation of the Gaussian before tanh."""


class SacCriticLoss(NamedTuple):
    """What the critic's objective returns."""

    loss: Tensor
    """() with gradient to both members."""
    q: Tensor
    """() mean value of the replayed actions, over batch and members."""
    target_q: Tensor
    """() mean of the target distributions, over batch and members."""
    entropy: Tensor
    """() mean of -log pi of the successors' actions."""


def actor_objective(
    actor: SacActor, critic: SacCritic, alpha: Tensor, batch: Batch, noise: Tensor, atoms: Tensor, tails: Tails
) -> SacActorLoss:
    """mean(alpha log pi - mean_i Q_i(s, a)) with a ~ pi(s).

    Args:
        actor: trained.
        critic: parameters without gradient.
        alpha: () temperature, no gradient.
        batch: B transitions, observations normalised.
        noise: (B, A) standard normal.
        atoms: (K,) support.
        tails: what computes the part behind the networks.
    """
    size = batch.action.shape[0]
    mean, log_std = actor(batch.actor_obs[:size])
    action, log_prob = sample_action(mean, log_std, noise)
    logits = critic(torch.cat((batch.critic_obs[:size], action), dim=-1))
    return tails.actor(logits, log_prob, log_std, alpha, atoms)


def actor_loss(logits: Tensor, log_prob: Tensor, log_std: Tensor, alpha: Tensor, atoms: Tensor) -> SacActorLoss:
    """Return the objective from the critics' logits (2, B, K), log density (B,) and log deviation (B, A)."""
    value = expectation(logits, atoms).mean(0)
    loss = (alpha * log_prob - value).mean()
    deviation = torch.exp(log_std.detach()).mean()
    return SacActorLoss(loss, -log_prob.detach().mean(), value.detach().mean(), deviation)


@torch.no_grad()
def next_action(actor: SacActor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a' ~ pi(s'), (B, A), and its log density, (B,); no gradient."""
    return sample_action(*actor(batch.actor_obs[batch.action.shape[0] :]), noise)


def critic_objective(
    critic: SacCritic,
    target: SacCritic,
    alpha: Tensor,
    batch: Batch,
    successor: tuple[Tensor, Tensor],
    atoms: Tensor,
    tails: Tails,
) -> SacCriticLoss:
    """Cross entropy of each critic against the projected distribution of its own target, summed over both.

    Args:
        critic: trained.
        target: parameters without gradient.
        alpha: () temperature, no gradient.
        batch: B transitions, observations normalised.
        successor: a' (B, A) and log pi(a'|s') (B,).
        atoms: (K,) support.
        tails: what computes the parts behind the networks.
    """
    action, log_prob = successor
    size = action.shape[0]
    with torch.no_grad():
        logits = target(torch.cat((batch.critic_obs[size:], action), dim=-1))
        labels = tails.labels(logits, batch.reward, batch.discount, alpha * log_prob, atoms)
    logits = critic(torch.cat((batch.critic_obs[:size], batch.action), dim=-1))
    return tails.critic(logits, labels, log_prob, atoms)


def distribution_labels(logits: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
    """Return each member's target distribution (2, B, K) from the target critics' logits (2, B, K) of (s', a').

    Every atom z becomes reward + discount (z - cost), where cost is alpha log pi and discount is 0 behind a
    termination, (B,) each.
    """
    return project_distribution(torch.softmax(logits, -1), reward, discount, cost, atoms)


def critic_loss(logits: Tensor, labels: Tensor, log_prob: Tensor, atoms: Tensor) -> SacCriticLoss:
    """Return the cross entropy of logits against labels, (2, B, K) each: a mean over the batch, a sum over members."""
    log_probs = torch.log_softmax(logits, dim=-1)
    loss = -(labels * log_probs).sum(-1).mean(-1).sum()
    q = (log_probs.detach().exp() * atoms).sum(-1).mean()
    return SacCriticLoss(loss, q, (labels * atoms).sum(-1).mean(), -log_prob.mean())


class Sac(Learner):
    """The learner of SAC; its arguments are those of `Learner`.

    Temperature and target step with every critic update. The target follows within the critic's step: the authors
    move it behind the actor's, which reads no target, so nothing differs.
    """

    actor_first = False
    MEANS = (
        ("critic_loss", "q_mean", "target_q_mean", "alpha_loss"),
        ("actor_loss", "entropy", "actor_q"),
    )
    LAST = (("critic_lr", "alpha"), ("actor_lr", "action_std"))
    TOTALS = (("skipped_temperature_steps",), ())
    TAILS = Tails(actor_loss, distribution_labels, critic_loss)

    def __init__(
        self,
        cfg: SacCfg,
        obs_dims: Mapping[str, int],
        action_dim: int,
        arena: Arena,
        seed: int,
        total_updates: int,
        first_row: int = 0,
    ) -> None:
        start = generator_of(seed)
        actor = SacActor(obs_dims["actor"], action_dim, cfg.actor_width, start)
        critic = SacCritic(obs_dims["critic"], action_dim, cfg.critic_width, cfg.atoms, start)
        super().__init__(cfg, obs_dims, action_dim, arena, seed, total_updates, first_row, (actor, critic), False)
        if cfg.normalize_obs:
            self.obs_normalizers = {
                group: ObsNormalizer(arena, obs_dims[group], f"learner/obs/{group}", cfg.obs_eps)
                for group in ("actor", "critic")
            }
            published = self.obs_normalizers["actor"].published
            why = "mean and 1 / (deviation + eps) of what the policy observes"
            self.acting_obs = arena.new("policy/observed", tuple(published.shape), why=why)
            self.acting_obs.copy_(published)
            self.follow("observed", published, self.acting_obs)
        self.target_entropy = -cfg.target_entropy_ratio * action_dim
        betas = (cfg.beta1, cfg.beta2)
        options = {"betas": betas, "decay": cfg.weight_decay, "max_norm": cfg.max_grad_norm}
        self.actor_step = NetworkStep(self.actor_storage, arena, "learner/actor_adam", 0.0, **options)
        self.critic_step = NetworkStep(
            *(self.critic_storage, arena, "learner/critic_adam", 0.0),
            *(self.target_storage.parameters, cfg.tau),
            **options,
        )
        self.alpha_adam = Adam(self.log_alpha, arena, "learner/alpha_adam", betas)

    def choose_maths(self, resolution: Resolution, kernels: str | Switches) -> None:
        """Let a kernel take the steps where the switches say so; of the objectives there is one form."""
        if isinstance(kernels, str):
            checks = {"row_step": lambda: check_row_steps(self.critic_step, self.actor_step)}
            kernels = resolve_switches(kernels, resolution, checks, PLAIN_ON_A_GPU, by_host=PLAIN_ON_A_GPU)
        if kernels.manual:
            raise TickgraphError("SAC's gradients are not written out; give it switches without manual")
        self.switches = kernels
        if kernels.row_step == "triton":
            self.take_row_steps()

    def gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log deviation (N, A) of the policy that collects, for raw observations (N, Da)."""
        mean, log_std = self.policy(normalize(obs, self.acting_obs) if self.obs_normalizers else obs)
        return mean, log_std

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with its observations normalised, as last published."""
        obs = {"actor": batch.actor_obs, "critic": batch.critic_obs}
        for group, normalizer in self.obs_normalizers.items():
            obs[group] = normalize(obs[group], normalizer.published)
        return Batch(obs["actor"], obs["critic"], batch.action, batch.reward, batch.discount, batch.redraws)

    def rates(self) -> Tensor:
        """Return what the schedules say for the next update; the temperature follows the critic's."""
        return self.rate_table(self.updates, self.actor_updates, self.updates)

    def actor_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> SacActorLoss:
        """Compute `actor_objective`."""
        return actor_objective(self.actor, self.frozen_critic, self.alpha(), batch, noise, self.atoms, tails)

    def apply_actor(self, out: SacActorLoss, grad: Tensor, rates: Rates) -> Tensor:
        """Take AdamW's step."""
        return self.actor_step.apply(out.loss, grad, None, rates.actor_factors)

    def after_actor(self, out: SacActorLoss, ok: Tensor, rates: Rates) -> Figures:
        """Count the update."""
        self.actor_updates += 1
        deviation = torch.where(ok, out.deviation, 0.0)  # what is kept stays finite
        return (out.loss, out.entropy, out.value), (rates.actor, deviation), ok, ()

    def critic_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> SacCriticLoss:
        """Compute `critic_objective`, with a' of the actor before its own update."""
        successor = next_action(self.actor, batch, noise)
        return critic_objective(self.critic, self.target, self.alpha(), batch, successor, self.atoms, tails)

    def apply_critic(self, out: SacCriticLoss, grad: Tensor, rates: Rates) -> Figures:
        """Take AdamW's step, move the targets, and step the temperature by the successors' entropy."""
        ok = self.critic_step.apply(out.loss, grad, None, rates.critic_factors)
        alpha_loss, skipped = self.step_alpha(out.entropy, rates.alpha_factors, ok)
        return (out.loss, out.q, out.target_q, alpha_loss), (rates.critic, self.alpha()), ok, (skipped,)
