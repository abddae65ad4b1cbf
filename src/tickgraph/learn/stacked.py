"""FlashSAC's objectives with their gradients written out: online and target critics in the same products.

`CriticUpdate` and `ActorUpdate` return what the objectives of `flashsac.py` do, and the flat gradient with it, so that
a whole objective is one program without autograd; a test holds them to the readable form. How they compute is a
`Switches`. Activations are bfloat16 where the configuration says so; statistics, losses, softmax, gradients of
parameters and everything that is kept are float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tickgraph.learn import trunk
from tickgraph.learn.flashsac import ActorLoss, CriticLoss, FlashSac, FlashSacCfg
from tickgraph.learn.gradients import full_product
from tickgraph.learn.kernel_check import (
    check_affine,
    check_batch_norm,
    check_loss_head,
    check_put_off,
    check_row_steps,
    check_small_weights,
)
from tickgraph.learn.loss_head import critic_tail
from tickgraph.learn.networks import log_std_of, sample_action
from tickgraph.learn.path import Switches
from tickgraph.learn.replay import Batch
from tickgraph.learn.running import Running, eval_backward, eval_forward
from tickgraph.learn.storage import Stacked, Storage
from tickgraph.learn.trunk import Kept, Weights, fill


class CriticGradient(NamedTuple):
    """What the critic's objective returns, without gradient, and the gradient."""

    loss: Tensor
    """()"""
    q: Tensor
    """() mean value of the replayed actions, over batch and members."""
    target_q: Tensor
    """() mean of the target distribution."""
    statistics: Tensor
    """(2, S) batch means and variances of the critic's norms."""
    grad: Tensor
    """(P,) laid out like the critic's parameters."""

    def parts(self) -> tuple[CriticLoss, Tensor]:
        """Return what the readable objective returns, and the gradient."""
        return CriticLoss(self.loss, self.q, self.target_q, self.statistics), self.grad


class ActorGradient(NamedTuple):
    """What the actor's objective returns, without gradient, and the gradient."""

    loss: Tensor
    """()"""
    entropy: Tensor
    """() mean of -log pi."""
    statistics: Tensor
    """(2, S) batch means and variances of the actor's norms."""
    grad: Tensor
    """(P,) laid out like the actor's parameters."""

    def parts(self) -> tuple[ActorLoss, Tensor]:
        """Return what the readable objective returns, and the gradient."""
        return ActorLoss(self.loss, self.entropy, self.statistics), self.grad


class CriticUpdate:
    """The critics' objective with its gradient.

    Args:
        cfg: hyperparameters.
        storage: the trained critics.
        target: the target's flat parameters.
        atoms: (K,) support.
        path: how it is computed.
        stacked: copies of the weights of both, where the path keeps them.
    """

    def __init__(
        self,
        cfg: FlashSacCfg,
        storage: Storage,
        target: Tensor,
        atoms: Tensor,
        path: Switches,
        stacked: Stacked | None,
    ) -> None:
        self.cfg, self.storage, self.target, self.atoms, self.path = cfg, storage, target, atoms, path
        self.stacked = stacked
        self.dtype = torch.bfloat16 if cfg.bf16 else torch.float32
        self.norm, self.head = path.norm_form(), path.head_form()
        self.small = path.small_form(storage)

    def weights(self, *parameters: Tensor) -> Weights:
        """Return the weights of networks behind each other; where there are copies, the first is the trained one."""
        return Weights(self.storage, parameters, self.cfg.critic_blocks, self.dtype, self.small, self.stacked)

    @torch.no_grad()
    def inputs(self, obs: Tensor, action: Tensor, next_action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the part of `gradient` that reads no network: the normalised input of both halves of the rows, and
        mean and variance to commit.

        Args:
            obs: (2B, Dc) of a batch.
            action, next_action: a and a' (B, A).
        """
        return self.norm.whiten(obs, self.dtype, action, next_action)

    @torch.no_grad()
    def gradient(
        self,
        batch: Batch,
        successor: tuple[Tensor, Tensor],
        log_alpha: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> CriticGradient:
        """Compute `flashsac.critic_objective` and its gradient.

        Args:
            batch: B transitions, `reward` already normalised.
            successor: a' (B, A) and log pi(a'|s') (B,).
            log_alpha: () log temperature.
            inputs: what `inputs` returned for them, if it was called before.
        """
        action, log_prob = successor
        if inputs is None:
            inputs = self.inputs(batch.critic_obs, batch.action, action)
        x, first_mean, first_var = inputs
        online = self.storage.parameters
        weights = self.weights(online, self.target)
        h, kept = trunk.forward(weights, x, self.norm, 2)
        ends = (weights.gain, weights.head, weights.head_bias)
        to_h, features, to_logits, figures, to_gain, to_bias = critic_tail(
            h, *ends, batch.reward, batch.discount, log_prob, log_alpha, self.atoms, self.head
        )
        grads = self.path.gradients(self.storage)
        grads.product("head.weight", to_logits, features)
        grads.total("head_bias", to_bias)
        grads.total("trunk.norm.gain", to_gain)
        trunk.backward(weights, x, kept, to_h, self.norm, grads)
        moments = kept.moments((first_mean, first_var), to_h.shape[0], x.shape[0])
        grad, means, statistics = grads.finish(figures, moments)
        return CriticGradient(*means.unbind(), statistics, grad)


def _to_heads(out: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return `factor` and `constant` of an `ActorPass`, from what the heads gave (B, 2A), action and noise (B, A).

    log pi = sum(-noise^2 / 2 - log std - ln(2 pi) / 2 - ln(1 - tanh(u)^2)), whose slope along u is 2 tanh(u); u is
    mean + std noise, and its mean over rows is the loss.
    """
    size, raw = out.shape[0], out.chunk(2, dim=-1)[1]
    along, to_log_std = torch.exp(log_std_of(raw)) * noise, 6.0 * (1.0 - torch.tanh(raw).square())
    factor, constant = 1.0 - action.square(), (2.0 / size) * action
    factors = torch.cat((factor, factor * along * to_log_std), dim=-1)
    return factors, torch.cat((constant, (constant * along - 1.0 / size) * to_log_std), dim=-1)


@dataclass
class ActorPass:
    """What a forward pass of the actor over 2B rows leaves for its gradient, and the actions of the first B."""

    action: Tensor
    """(B, A)."""
    log_prob: Tensor
    """(B,)."""
    factor: Tensor
    constant: Tensor
    """(B, 2A) of both heads: the gradient of what they gave is that of the action times the one, and the temperature
    times the other."""
    features: Tensor
    unit: Tensor
    scale: Tensor
    """Of `trunk.unit_features`, (1, B, d), and (1, B, 1) the scale."""
    head: Tensor
    """Weight (1, 2A filled up, d) of both heads."""
    mean: Tensor
    variance: Tensor
    """(I,) of the input, to commit."""
    x: Tensor
    """(2B, I) whitened and filled up."""
    kept: Kept
    """Of the trunk."""

    def flat(self) -> tuple[Tensor, ...]:
        """Return the tensors one after the other: torch 2.11 compiles no program that returns them nested."""
        heads = (
            self.action,
            self.log_prob,
            self.factor,
            self.constant,
            self.features,
            self.unit,
            self.scale,
            self.head,
        )
        return (*heads, self.mean, self.variance, self.x, *self.kept.tensors())

    @classmethod
    def of(cls, weights: Weights, flat: Sequence[Tensor]) -> Self:
        """Return the pass that `flat` was called on, made with these weights."""
        own, kept = flat[:11], flat[11:]
        return cls(*own, Kept.of(weights, kept))


class ActorUpdate:
    """The actor's objective with its gradient, and the actions that a critic's update needs.

    Args:
        cfg: hyperparameters.
        storage: the trained actor.
        critics: the critics' update, whose weights are read.
        path: how it is computed.
        stacked: copies of the actor's weights, where the path keeps them.
    """

    def __init__(
        self, cfg: FlashSacCfg, storage: Storage, critics: CriticUpdate, path: Switches, stacked: Stacked | None
    ) -> None:
        self.cfg, self.storage, self.critics, self.path, self.stacked = cfg, storage, critics, path, stacked
        self.dtype = torch.bfloat16 if cfg.bf16 else torch.float32
        self.norm, self.affine = path.norm_form(), path.affine_form()
        self.small = path.small_form(storage)

    def weights(self) -> Weights:
        """Return the actor's weights."""
        own, blocks = [self.storage.parameters], self.cfg.actor_blocks
        return Weights(self.storage, own, blocks, self.dtype, self.small, self.stacked)

    @torch.no_grad()
    def next_action(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `flashsac.next_action` for observations (R, O) and noise (R, A).

        The actor does not change between its updates, so the rows of all critic updates in between may come at once.
        """
        weights = self.weights()
        h, _ = eval_forward(weights, Running(weights, self.storage.statistics), obs, self.affine)
        features, _, _ = trunk.unit_features(h, weights.gain)
        action, log_prob, _ = self._act(weights, features, noise)
        return action, log_prob

    def _act(self, weights: Weights, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return action (B, A) and log density (B,) of features (1, B, d), and what the heads gave (B, 2A)."""
        made = full_product(features, weights.head.transpose(1, 2)) + weights.head_bias
        out = made[0, :, : 2 * noise.shape[1]]
        mean, raw = out.chunk(2, dim=-1)
        return *sample_action(mean, log_std_of(raw), noise), out

    @torch.no_grad()
    def gradient(self, batch: Batch, noise: Tensor, alpha: Tensor) -> ActorGradient:
        """Compute `flashsac.actor_objective` and its gradient; arguments as there."""
        weights = self.weights()
        return self._gradient(weights, self._forward(weights, batch.actor_obs, noise), batch, noise, alpha)

    @torch.no_grad()
    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return the part of `gradient` that reads the actor alone, for `gradient_behind`: an `ActorPass`, flat.

        Args:
            obs: (2B, O) of a batch.
            noise: (B, A).
        """
        return self._forward(self.weights(), obs, noise).flat()

    @torch.no_grad()
    def gradient_behind(self, forward: Sequence[Tensor], batch: Batch, noise: Tensor, alpha: Tensor) -> ActorGradient:
        """Compute `gradient` from what `forward` returned for the same batch and noise, the actor as it was then."""
        weights = self.weights()
        return self._gradient(weights, ActorPass.of(weights, forward), batch, noise, alpha)

    def _forward(self, weights: Weights, obs: Tensor, noise: Tensor) -> ActorPass:
        x, *moments = self.norm.whiten(obs, self.dtype)
        h, kept = trunk.forward(weights, x, self.norm, 1)
        features, unit, scale = trunk.unit_features(h, weights.gain)
        action, log_prob, out = self._act(weights, features, noise)
        factors = _to_heads(out, action, noise)
        return ActorPass(action, log_prob, *factors, features, unit, scale, weights.head, *moments, x, kept)

    def _gradient(
        self, weights: Weights, passed: ActorPass, batch: Batch, noise: Tensor, alpha: Tensor
    ) -> ActorGradient:
        size, actions = batch.action.shape
        action, log_prob = passed.action, passed.log_prob
        value, slope = self.lesser_value(batch.critic_obs[:size], action)

        cost, pull = alpha * log_prob - value, self.cfg.bc_weight
        to_action = -slope / size
        if pull:
            apart, strength = action - batch.action, pull * value.abs().mean()
            cost = cost + strength * apart.square().mean(-1)
            to_action = to_action + (2.0 / (size * actions)) * strength * apart
        # One expression for both heads and what fills them up, so that a compiler makes one kernel of it.
        both = to_action.unsqueeze(1).expand(size, 2, actions).reshape(size, 2 * actions)
        total = fill(both * passed.factor + alpha * passed.constant).unsqueeze(0)
        to_out = total.to(self.dtype)
        above = torch.bmm(to_out, passed.head)
        to_features, to_gain = trunk.unit_backward(above, passed.unit, passed.scale, weights.gain)
        grads = self.path.gradients(self.storage)
        grads.product(("mean.weight", "raw.weight"), to_out, passed.features)
        for name, values in (("mean_bias", total), ("raw_bias", total[..., actions:]), ("trunk.norm.gain", to_gain)):
            grads.total(name, values)
        trunk.backward(weights, passed.x, passed.kept, to_features.to(self.dtype), self.norm, grads)
        moments = passed.kept.moments((passed.mean, passed.variance), 1, passed.x.shape[0])
        grad, means, statistics = grads.finish(torch.stack((cost, -log_prob)), moments)
        return ActorGradient(*means.unbind(), statistics, grad)

    def lesser_value(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return min_i Q_i(s, a), (B,), on running statistics, and its gradient for the action, (B, A)."""
        critics = self.critics
        weights = critics.weights(critics.storage.parameters)
        running = Running(weights, critics.storage.statistics)
        h, gates = eval_forward(weights, running, torch.cat((obs, action), dim=-1), self.affine)
        features, unit, scale = trunk.unit_features(h, weights.gain)
        logits, atoms = full_product(features, weights.head.transpose(1, 2)) + weights.head_bias, fill(critics.atoms)
        known = torch.arange(atoms.shape[0], device=atoms.device) < critics.atoms.shape[0]
        probs = torch.softmax(torch.where(known, logits, -torch.inf), dim=-1)
        values = (probs * atoms).sum(-1)
        lesser = values.argmin(0, keepdim=True) == torch.arange(values.shape[0], device=values.device)[:, None]
        to_logits = (probs * (atoms - values.unsqueeze(-1)) * lesser.unsqueeze(-1)).to(self.dtype)
        above, _ = trunk.unit_backward(torch.bmm(to_logits, weights.head), unit, scale, weights.gain)
        columns = slice(obs.shape[1], obs.shape[1] + action.shape[1])
        slope = eval_backward(weights, running, gates, above.to(self.dtype), columns, self.affine)
        return values.amin(0), slope


class Written:
    """What a FlashSAC learner computes with when its gradients are written out: both updates, and copies of weights.

    Args:
        learner: whose steps renew the copies from now on; its arena is not sealed yet.
        switches: how it is computed.
    """

    def __init__(self, learner: FlashSac, switches: Switches) -> None:
        cfg, arena = learner.cfg, learner.arena
        target, dtype = learner.target_storage.parameters, torch.bfloat16 if cfg.bf16 else torch.float32
        critics = actors = None
        if switches.copies:
            critics = Stacked(learner.critic_storage, target, dtype, arena, "copies/critic")
            learner.critic_step.stacked = critics
            if cfg.bf16:  # in float32 a single network is its own copy
                actors = learner.actor_step.stacked = Stacked(learner.actor_storage, None, dtype, arena, "copies/actor")
        self.copies, self._renew = [copy for copy in (critics, actors) if copy is not None], switches.copies_form()
        self.critic = CriticUpdate(cfg, learner.critic_storage, target, learner.atoms, switches, critics)
        self.actor = ActorUpdate(cfg, learner.actor_storage, self.critic, switches, actors)

    def refresh(self) -> None:
        """Copy the weights anew: whatever has happened to the parameters, a cycle begins with true copies."""
        for copy in self.copies:
            self._renew(copy)


def kernel_checks(learner: FlashSac) -> dict[str, Callable[[], None]]:
    """Return {switch: a check that its kernel can be built and agrees}, in the sizes of a learner."""
    cfg, device, rows = learner.cfg, learner.arena.device, 2 * learner.cfg.batch_size
    dtype = torch.bfloat16 if cfg.bf16 else torch.float32
    shapes = [(4, rows, width) for width in (cfg.critic_width, 4 * cfg.critic_width)]
    shapes += [(1, rows, width) for width in (cfg.actor_width, 4 * cfg.actor_width)]
    storages = (learner.critic_storage, learner.actor_storage)
    embeds = [storage.named(storage.parameters)["trunk.embed.weight"] for storage in storages]
    actions = (learner.action_dim, 0)  # which the critics read from tensors of their own
    inputs = [(rows, embed.shape[-1] - behind, behind) for embed, behind in zip(embeds, actions, strict=True)]
    networks = [(learner.critic_storage, parts, cfg.critic_blocks) for parts in (2, 1)]
    networks.append((learner.actor_storage, 1, cfg.actor_blocks))
    critic_layers, actor_layers = (2, cfg.batch_size, cfg.critic_width), (1, rows, cfg.actor_width)

    return {
        "batch_norm": lambda: check_batch_norm(device, shapes, inputs, dtype),
        "loss_head": lambda: check_loss_head(device, cfg.batch_size, cfg.critic_width, learner.atoms, dtype),
        "affine": lambda: check_affine(device, critic_layers, actor_layers, dtype),
        "small_weights": lambda: check_small_weights(networks, dtype),
        "put_off": lambda: check_put_off([(storage, cfg.batch_size) for storage in storages], dtype),
        "row_step": lambda: check_row_steps(learner.critic_step, learner.actor_step),
    }
