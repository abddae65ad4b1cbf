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


def eval_input(trunk: Trunk) -> tuple[Tensor, Tensor]:
    """Return weight (M, d, in) and bias (M, d) of the embedding with the input norm, on running statistics, in it."""
    norm, weight = trunk.input_norm, members(trunk.embed.weight, 2)
    scale = members(norm.gain * torch.rsqrt(norm.var + norm.eps), 1)
    shift = members(norm.offset, 1) - members(norm.mean, 1) * scale
    return weight * scale.unsqueeze(1), torch.bmm(weight, shift.unsqueeze(-1)).squeeze(-1)


def actor_features(trunk: Trunk, x: Tensor) -> Tensor:
    """Return features (1, rows, d) of a single network on running statistics."""
    weight, bias = eval_input(trunk)
    h = torch.baddbmm(bias.unsqueeze(1), x.unsqueeze(0), weight.transpose(1, 2))
    for block in trunk.blocks:
        u = h
        for linear, norm in ((block.up, block.up_norm), (block.down, block.down_norm)):
            weight, bias = fold(linear.weight, norm)
            u = torch.baddbmm(bias.unsqueeze(1), u, weight.transpose(1, 2)).relu_()
        h = h + u
    return trunk.norm(h)


@torch.no_grad()
def lesser_value(critic: Critic, obs: Tensor, action: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Return min_i Q_i(s, a), (B,), on running statistics, and its gradient with respect to the action, (B, A).

    The backward pass is written out: nothing is kept for the weights, and it stops at the columns of the action.
    """
    trunk, size = critic.trunk, obs.shape[1]
    weight, bias = eval_input(trunk)
    pair = weight.shape[0]
    h = torch.baddbmm(bias.unsqueeze(1), obs.expand(pair, *obs.shape), weight[..., :size].transpose(1, 2))
    h = torch.baddbmm(h, action.expand(pair, *action.shape), weight[..., size:].transpose(1, 2))
    taken = []
    for block in trunk.blocks:
        up, up_bias = fold(block.up.weight, block.up_norm)
        down, down_bias = fold(block.down.weight, block.down_norm)
        u = torch.baddbmm(up_bias.unsqueeze(1), h, up.transpose(1, 2)).relu_()
        v = torch.baddbmm(down_bias.unsqueeze(1), u, down.transpose(1, 2)).relu_()
        h = h + v
        taken.append((up, u, down, v))
    gain = trunk.norm.gain.unsqueeze(1)
    scale = torch.rsqrt(h.square().mean(-1, keepdim=True) + trunk.norm.eps)
    unit = h * scale
    probs = torch.softmax(critic_logits(critic, unit * gain), dim=-1)
    values = (probs * atoms).sum(-1)
    lesser = values.argmin(0, keepdim=True) == torch.arange(pair, device=values.device)[:, None]

    grad = probs * (atoms - values.unsqueeze(-1)) * lesser.unsqueeze(-1)
    grad = torch.bmm(grad, critic.head.weight) * gain
    grad = scale * (grad - unit * (unit * grad).mean(-1, keepdim=True))
    for up, u, down, v in reversed(taken):
        inner = torch.bmm(grad * (v > 0), down) * (u > 0)
        grad = grad + torch.bmm(inner, up)
    return values.amin(0), torch.bmm(grad, weight[..., size:]).sum(0)


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
    value, slope = lesser_value(critic, batch.critic_obs[rows], action.detach(), atoms)
    # Adds 0, with the gradient that was found.
    value = value + (slope * (action - action.detach())).sum(-1)
    return actor_loss(value, action, log_prob, alpha, batch.action, bc_weight, statistics)


@torch.no_grad()
def next_action(actor: Actor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `flashsac.next_action`."""
    features = actor_features(actor.trunk, batch.actor_obs[batch.action.shape[0] :])
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
