"""FlashSAC in readable PyTorch: the configuration, the objectives in the authors' order, and the learner's state."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.program import Resolution
from tickgraph.learn.distribution import expectation, project_distribution
from tickgraph.learn.learner import AlgoCfg, Figures, Learner, NoiseHold, Rates, Tails, generator_of
from tickgraph.learn.networks import Actor, BatchStats, Critic, UnitBatchNorm, log_std_of, sample_action
from tickgraph.learn.normalizer import RewardNormalizer
from tickgraph.learn.optimizer import Adam, NetworkStep
from tickgraph.learn.path import Switches, build_kernels, resolve_switches
from tickgraph.learn.policy_form import Layout, PolicyForm
from tickgraph.learn.replay import Batch
from tickgraph.learn.storage import pack_statistics

NOISE_SCOPES = ("shared", "per_env")


@dataclass
class FlashSacCfg(AlgoCfg):
    """Hyperparameters; the defaults are the paper's for GPU simulators."""

    actor_width: int = 128
    actor_blocks: int = 2
    critic_width: int = 256
    critic_blocks: int = 2
    bf16: bool | None = None
    lr_end: float = 1.5e-4
    sigma_target: float = 0.15
    """The temperature drives the entropy to that of independent Gaussians of this deviation."""
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

    choices: ClassVar[dict[str, tuple[str, ...]]] = AlgoCfg.choices | {"noise_scope": NOISE_SCOPES}
    least: ClassVar[dict[str, int]] = AlgoCfg.least | dict.fromkeys(
        ("actor_width", "actor_blocks", "critic_width", "critic_blocks", "noise_max_repeat"), 1
    )
    most: ClassVar[dict[str, int]] = AlgoCfg.most | {
        **dict.fromkeys(("actor_width", "critic_width"), 1 << 20),
        **dict.fromkeys(("actor_blocks", "critic_blocks"), 1000),
        "noise_max_repeat": 10_000,
    }
    above_zero: ClassVar[tuple[str, ...]] = (*AlgoCfg.above_zero, "sigma_target", "g_max")
    not_negative: ClassVar[tuple[str, ...]] = (*AlgoCfg.not_negative, "bc_weight", "noise_exponent")


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


def target_entropy(action_dim: int, sigma: float) -> float:
    """Return A/2 ln(2 pi e sigma^2), the entropy of A independent Gaussians of deviation sigma."""
    return action_dim * (0.5 * math.log(2.0 * math.pi * math.e) + math.log(sigma))  # a square may be 0 or infinite


class FlashSac(Learner):
    """The learner of FlashSAC; its arguments are those of `Learner`, and the worlds, for the reward normaliser.

    Learning rates follow the count of steps on the device. As in the authors' code the schedules of actor and
    temperature advance only when the actor does, while the horizon counts critic updates: with `policy_period` 2 they
    end a run half-way down the cosine, at 2.25e-4 for the default rates.
    """

    normalizer: RewardNormalizer
    actor_first = True
    MEANS = (("critic_loss", "q_mean", "target_q_mean"), ("actor_loss", "entropy", "alpha_loss"))
    LAST = (("critic_lr", "reward_scale"), ("actor_lr", "alpha"))
    TOTALS = ((), ("skipped_temperature_steps",))
    TAILS = TAILS

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
        start = generator_of(seed)
        actor = Actor(obs_dims["actor"], action_dim, cfg.actor_width, cfg.actor_blocks, start)
        widths = (obs_dims["critic"], action_dim, cfg.critic_width, cfg.critic_blocks, cfg.atoms)
        networks = (actor, Critic(*widths, start))
        super().__init__(cfg, obs_dims, action_dim, arena, seed, total_updates, first_row, networks, True)
        self.hold = NoiseHold(cfg.noise_exponent, cfg.noise_max_repeat, cfg.noise_scope == "shared")
        self.target_entropy = target_entropy(action_dim, cfg.sigma_target)
        momentum = UnitBatchNorm.momentum
        self.actor_step = NetworkStep(self.actor_storage, arena, "learner/actor_adam", momentum)
        self.critic_step = NetworkStep(
            *(self.critic_storage, arena, "learner/critic_adam", momentum),
            *(self.target_storage.parameters, cfg.tau),
        )
        self.alpha_adam = Adam(self.log_alpha, arena, "learner/alpha_adam")
        self.normalizer = RewardNormalizer(arena, num_envs, cfg.gamma, cfg.g_max, "learner/normalizer")
        self.maths: Any = None
        self.written: Any = None
        self.policy_form: Any = None

    def choose_maths(self, resolution: Resolution, kernels: str | Switches) -> None:
        """Write the gradients out where the switches say so; else take the short form of the objectives where it is the
        faster one, and in bfloat16 the readable one.

        The short form has no casts of its own, and its uncompiled batch norm is for the CPU.
        """
        from tickgraph.learn import flashsac, fused, stacked  # which are written in terms of this file

        uncompiled = self.arena.device.type != "cpu" and resolution.inner == "eager"
        self.maths = flashsac if self.cfg.bf16 or uncompiled else fused
        if isinstance(kernels, str):
            kernels = resolve_switches(kernels, resolution, stacked.kernel_checks(self))
        self.switches = kernels
        if kernels.manual:
            self.written = stacked.Written(self, kernels)
        if kernels.row_step == "triton":
            self.take_row_steps()

    def choose_policy(self, kernels: str) -> None:
        """Let a kernel act where one can be had and products may round to TF32, which its own do."""
        from tickgraph.learn.kernel_check import check_policy  # which is written in terms of all of this

        device, inputs, worlds = self.arena.device, self.obs_dims["actor"], self.normalizer.returns.shape[0]
        if torch.get_float32_matmul_precision() == "highest":
            if device.type == "cuda" and kernels in ("auto", "triton"):
                self.policy_report["reasons"] = ["float32 products are not to be rounded (train.matmul_precision)"]
            return
        layout = Layout(inputs, self.cfg.actor_width, self.cfg.actor_blocks, self.action_dim)

        def made(arena: Arena) -> PolicyForm:
            return PolicyForm(self.policy_storage, layout, arena, "kernels/policy")

        check = {"policy": lambda: check_policy(self.policy, made(Arena(device)), worlds, inputs)}
        built, reasons = build_kernels(kernels, device, check)
        self.policy_report = {"form": "triton" if built else "torch", "reasons": reasons}
        if built:
            self.policy_form = made(self.arena)

    def gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `Learner.gaussian`, in the form that was chosen."""
        if self.policy_form is None:
            return super().gaussian(obs)
        mean, raw = self.policy_form(obs)
        return mean, log_std_of(raw)

    def begin_cycle(self) -> None:
        """Renew the copies of the weights."""
        if self.written is not None:
            self.written.refresh()

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with its rewards divided by the normaliser's scale."""
        reward = batch.reward / self.normalizer.scale
        return Batch(batch.actor_obs, batch.critic_obs, batch.action, reward, batch.discount, batch.redraws)

    def rates(self) -> Tensor:
        """Return what the schedules say for the next update; the temperature follows the actor's."""
        return self.rate_table(self.updates, self.actor_updates, self.actor_updates)

    def actor_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> Any:
        """Compute `actor_objective`."""
        if self.written is not None:
            return self.written.actor.gradient(batch, noise, self.alpha())
        return self.maths.actor_objective(
            *(self.actor, self.frozen_critic, self.alpha(), batch, noise, self.atoms, self.cfg.bc_weight, tails)
        )

    def actor_forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Compute `Learner.actor_forward`."""
        return self.written.actor.forward(obs, noise)

    def actor_objective_at(self, batch: Batch, noise: Tensor, forward: tuple[Tensor, ...]) -> Any:
        """Compute `actor_objective` with its gradient, behind a forward pass."""
        return self.written.actor.gradient_behind(forward, batch, noise, self.alpha())

    def apply_actor(self, out: ActorLoss, grad: Tensor, rates: Rates) -> Tensor:
        """Take the actor's step."""
        return self.actor_step.apply(out.loss, grad, out.statistics, rates.actor_factors)

    def after_actor(self, out: ActorLoss, ok: Tensor, rates: Rates) -> Figures:
        """Take the temperature's step by the actor's entropy, and count the update."""
        alpha_loss, skipped = self.step_alpha(out.entropy, rates.alpha_factors, ok)
        self.actor_updates += 1
        return (out.loss, out.entropy, alpha_loss), (rates.actor, self.alpha()), ok, (skipped,)

    def critic_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> Any:
        """Compute `critic_objective`, with a' of the actor as it has just become."""
        if self.written is not None:
            return self.critic_objective_at(batch, self.next_actions(batch.actor_obs[noise.shape[0] :], noise))
        successor = self.maths.next_action(self.actor, batch, noise)
        return self.maths.critic_objective(self.critic, self.target, self.alpha(), batch, successor, self.atoms, tails)

    def next_actions(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `next_action` for the rows of one or several batches."""
        return self.written.actor.next_action(obs, noise)

    def critic_inputs(self, obs: Tensor, action: Tensor, next_action: Tensor) -> tuple[Tensor, ...]:
        """Compute `Learner.critic_inputs`."""
        return self.written.critic.inputs(obs, action, next_action)

    def critic_objective_at(
        self, batch: Batch, successor: tuple[Tensor, Tensor], inputs: tuple[Tensor, ...] | None = None
    ) -> Any:
        """Compute `critic_objective` with its gradient."""
        return self.written.critic.gradient(batch, successor, self.log_alpha, inputs)

    def apply_critic(self, out: CriticLoss, grad: Tensor, rates: Rates) -> Figures:
        """Take the critic's step, and let the target follow."""
        ok = self.critic_step.apply(out.loss, grad, out.statistics, rates.critic_factors)
        return (out.loss, out.q, out.target_q), (rates.critic, self.normalizer.scale), ok, ()
