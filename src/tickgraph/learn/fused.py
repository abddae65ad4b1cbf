"""The same objectives with fewer operations, for the CPU, where reading and writing activations costs most.

The maths is that of `flashsac.py` and a test holds it to it; only the rounding differs. What is saved:
- a batch norm and its ReLU are torch's own fused kernels, forward and backward (twice as fast as generated code);
- the normalised input is the same for online, target and both members, so it is computed once, and gain and offset of
  the input norm are folded into the embedding, so that no gradient flows back to the input;
- on running statistics a batch norm is folded into the weights before it;
- of the critic under the actor, the backward pass stops at the columns of the action.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tickgraph.learn.flashsac import ActorLoss, CriticLoss, actor_loss, critic_loss, distribution_labels
from tickgraph.learn.networks import Actor, Critic, Trunk, UnitBatchNorm, batch_statistics, log_std_of, sample_action
from tickgraph.learn.replay import Batch
from tickgraph.learn.storage import flatten

_backward = torch.ops.aten.native_batch_norm_backward.out


class LinearNormRelu(torch.autograd.Function):
    """relu(batch norm(x W^T)) on the statistics of the batch.

    Takes x (M, rows, in), weight (M, out, in), gain and offset (M, out); returns (M, rows, out), and mean and
    1 / deviation of the products, (M, out) each, without gradient.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, gain: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        product = torch.bmm(x, weight.transpose(1, 2))
        y, mean, scale = torch.empty_like(product), torch.empty_like(gain), torch.empty_like(gain)
        for i in range(x.shape[0]):
            out = (y[i], mean[i], scale[i])
            torch.native_batch_norm(product[i], gain[i], offset[i], None, None, True, 0.0, UnitBatchNorm.eps, out=out)
        y.relu_()
        ctx.save_for_backward(x, weight, product, gain, mean, scale, y)
        ctx.mark_non_differentiable(mean, scale)
        ctx.set_materialize_grads(False)
        return y, mean, scale

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, weight, product, gain, mean, scale, y = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        dproduct, dgain, doffset = torch.empty_like(product), torch.empty_like(gain), torch.empty_like(gain)
        for i in range(x.shape[0]):
            _backward(
                *(grad[i], product[i], gain[i], None, None, mean[i], scale[i], True, UnitBatchNorm.eps, [True] * 3),
                out0=dproduct[i],
                out1=dgain[i],
                out2=doffset[i],
            )
        # This order leaves the weight's gradient as the weight itself lies; autograd's own would be its transpose.
        return torch.bmm(dproduct, weight), torch.bmm(dproduct.transpose(1, 2), x), dgain, doffset


class Affine(torch.autograd.Function):
    """x W^T + b per member, (M, rows, in), (M, out, in), (M, out) -> (M, rows, out)."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad  # type: ignore[attr-defined]
        return (
            torch.bmm(grad, weight) if needs_x else None,
            torch.bmm(grad.transpose(1, 2), x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


class Whitened:
    """An input and its batch statistics, computed once for all networks that read it."""

    def __init__(self, x: Tensor) -> None:
        mean, var, self.stats = batch_statistics(x)
        self.x = (x - mean) * torch.rsqrt(var + UnitBatchNorm.eps)


def members(value: Tensor, dims: int) -> Tensor:
    """Return a parameter with its member axis, of size 1 for a single network; `dims` is its number without one."""
    return value if value.dim() > dims else value.unsqueeze(0)


def train_features(trunk: Trunk, whitened: Whitened, rows: slice) -> tuple[Tensor, Tensor]:
    """Return features (M, rows, d) of the chosen rows and the batch statistics (2, S) of all norms."""
    weight, gain = members(trunk.embed.weight, 2), members(trunk.input_norm.gain, 1)
    offset = members(trunk.input_norm.offset, 1)
    bias = torch.bmm(weight, offset.unsqueeze(-1)).squeeze(-1)
    h = Affine.apply(whitened.x.expand(weight.shape[0], *whitened.x.shape), weight * gain.unsqueeze(1), bias)
    means, scales = [], []
    for block in trunk.blocks:
        u = h
        for linear, norm in ((block.up, block.up_norm), (block.down, block.down_norm)):
            affine = members(norm.gain, 1), members(norm.offset, 1)
            u, mean, scale = LinearNormRelu.apply(u, members(linear.weight, 2), *affine)
            means.append(mean)
            scales.append(scale)
        h = h + u
    with torch.no_grad():
        count = whitened.x.shape[0]
        spread = (flatten(scales).square().reciprocal() - UnitBatchNorm.eps) * (count / (count - 1))
        first = [value.expand_as(trunk.input_norm.mean).reshape(-1) for value in whitened.stats]
        statistics = torch.stack((torch.cat((first[0], flatten(means))), torch.cat((first[1], spread))))
    return trunk.norm(h[:, rows]), statistics


@torch.no_grad()
def fold(weight: Tensor, norm: UnitBatchNorm) -> tuple[Tensor, Tensor]:
    """Return weight (M, out, in) and bias (M, out) of a linear layer and the norm on running statistics after it."""
    scale = members(norm.gain * torch.rsqrt(norm.var + norm.eps), 1)
    return members(weight, 2) * scale.unsqueeze(-1), members(norm.offset, 1) - members(norm.mean, 1) * scale


def eval_features(trunk: Trunk, *parts: Tensor) -> Tensor:
    """Return features (M, rows, d) on running statistics of an input given as column blocks (rows, ...), no gradient
    to the network; the backward pass reaches only the blocks that need it."""
    with torch.no_grad():
        norm = trunk.input_norm
        scale = members(norm.gain * torch.rsqrt(norm.var + norm.eps), 1)
        shift = members(norm.offset, 1) - members(norm.mean, 1) * scale
        weight = members(trunk.embed.weight, 2)
        bias = torch.bmm(weight, shift.unsqueeze(-1)).transpose(1, 2)
        columns = (weight * scale.unsqueeze(1)).split([part.shape[1] for part in parts], dim=-1)
    h: Tensor = bias
    for part, columns_of in zip(parts, columns, strict=True):
        h = torch.baddbmm(h, part.expand(weight.shape[0], *part.shape), columns_of.transpose(1, 2))
    for block in trunk.blocks:
        u = Affine.apply(h, *fold(block.up.weight, block.up_norm)).relu_()
        h = h + Affine.apply(u, *fold(block.down.weight, block.down_norm)).relu_()
    return trunk.norm(h)


def actor_heads(actor: Actor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log deviation (rows, A) from features (1, rows, d), with one product for both heads."""
    weight = torch.cat((actor.mean.weight, actor.raw.weight))
    bias = torch.cat((actor.mean_bias, actor.raw_bias))
    mean, raw = F.linear(features[0], weight, bias).chunk(2, dim=-1)
    return mean, log_std_of(raw)


def critic_logits(critic: Critic, features: Tensor) -> Tensor:
    """Return logits (2, rows, K) from features (2, rows, d)."""
    return Affine.apply(features, critic.head.weight, critic.head_bias)


def actor_objective(
    actor: Actor, critic: Critic, alpha: Tensor, batch: Batch, noise: Tensor, atoms: Tensor, bc_weight: float
) -> ActorLoss:
    """Compute `flashsac.actor_objective`."""
    rows = slice(batch.action.shape[0])
    features, statistics = train_features(actor.trunk, Whitened(batch.actor_obs), rows)
    action, log_prob = sample_action(*actor_heads(actor, features), noise)
    logits = critic_logits(critic, eval_features(critic.trunk, batch.critic_obs[rows], action))
    return actor_loss(logits, action, log_prob, alpha, batch.action, atoms, bc_weight, statistics)


@torch.no_grad()
def next_action(actor: Actor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `flashsac.next_action`."""
    features = eval_features(actor.trunk, batch.actor_obs[batch.action.shape[0] :])
    return sample_action(*actor_heads(actor, features), noise)


def critic_objective(
    critic: Critic, target: Critic, alpha: Tensor, batch: Batch, successor: tuple[Tensor, Tensor], atoms: Tensor
) -> CriticLoss:
    """Compute `flashsac.critic_objective`."""
    action, log_prob = successor
    size = action.shape[0]
    with torch.no_grad():
        whitened = Whitened(torch.cat((batch.critic_obs, torch.cat((batch.action, action))), dim=-1))
        features, _ = train_features(target.trunk, whitened, slice(size, None))
        labels = distribution_labels(critic_logits(target, features), batch, alpha * log_prob, atoms)
    features, statistics = train_features(critic.trunk, whitened, slice(size))
    return critic_loss(critic_logits(critic, features), labels, atoms, statistics)
