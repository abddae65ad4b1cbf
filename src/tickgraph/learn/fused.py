"""The same objectives with fewer operations: where `flashsac.py` reads like the paper, this is what a run computes.

The maths is that of `flashsac.py` and a test holds it to it; only the rounding differs. What is saved:
- the normalised input is the same for online, target and both members, so it is computed once, and gain and offset of
  the input norm are folded into the embedding, so that no gradient flows back to the input;
- on running statistics a batch norm is folded into the weights before it;
- of the critic under the actor only the slope along the action is computed, written out, so that nothing is kept for
  its weights (and no mask, which a CPU without AVX-512 stores ten times slower than the values it is made of);
- where nothing is compiled, batch norm and ReLU are torch's own kernels, forward and backward.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tickgraph.learn.flashsac import TAILS, ActorLoss, CriticLoss
from tickgraph.learn.learner import Tails
from tickgraph.learn.networks import Actor, Critic, Trunk, UnitBatchNorm, batch_statistics, log_std_of, sample_action
from tickgraph.learn.replay import Batch
from tickgraph.learn.storage import flatten

_backward = torch.ops.aten.native_batch_norm_backward.out


class LinearNormRelu(torch.autograd.Function):
    """relu(batch norm(x W^T)) on the statistics of the batch.

    Takes x (M, rows, in), weight (M, out, in), gain and offset (M, out); returns (M, rows, out), and mean and
    1 / deviation of the products, (M, out) each, without gradient. For code that is not compiled: a compiler does
    better with the operations that `linear_norm_relu` shows it.
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
        return torch.bmm(dproduct, weight), torch.bmm(dproduct.transpose(1, 2), x), dgain, doffset


class Linear(torch.autograd.Function):
    """x W^T per member: (M, rows, in), (M, out, in) -> (M, rows, out). Its gradient for W lies as W does, in one piece;
    autograd's own would be the transpose, which is slow to lay out flat."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        to_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        return to_x, torch.bmm(grad.transpose(1, 2), x)


def linear_norm_relu(x: Tensor, weight: Tensor, gain: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `LinearNormRelu` does, in operations that a compiler merges with their neighbours."""
    if not torch.compiler.is_compiling():
        return LinearNormRelu.apply(x, weight, gain, offset)
    product = Linear.apply(x, weight)
    mean = product.mean(1, keepdim=True)
    product = product - mean
    scale = torch.rsqrt(product.square().mean(1, keepdim=True) + UnitBatchNorm.eps)
    y = torch.relu(product * (scale * gain.unsqueeze(1)) + offset.unsqueeze(1))
    return y, mean.squeeze(1).detach(), scale.squeeze(1).detach()


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b per member: (M, rows, in), (M, out, in), (M, out) -> (M, rows, out)."""
    return Linear.apply(x, weight) + bias.unsqueeze(1)


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
    h = affine(whitened.x.expand(weight.shape[0], *whitened.x.shape), weight * gain.unsqueeze(1), bias)
    means, scales = [], []
    for block in trunk.blocks:
        u = h
        for linear, norm in ((block.up, block.up_norm), (block.down, block.down_norm)):
            weight = members(linear.weight, 2)
            u, mean, scale = linear_norm_relu(u, weight, members(norm.gain, 1), members(norm.offset, 1))
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
    h = affine(x.unsqueeze(0), weight, bias)
    for block in trunk.blocks:
        u = h
        for linear, norm in ((block.up, block.up_norm), (block.down, block.down_norm)):
            weight, bias = fold(linear.weight, norm)
            u = torch.relu(affine(u, weight, bias))
        h = h + u
    return trunk.norm(h)


@torch.no_grad()
def lesser_value(critic: Critic, obs: Tensor, action: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Return min_i Q_i(s, a), (B,), on running statistics, and its gradient with respect to the action, (B, A).

    The backward pass is written out: nothing is kept for the weights, and it stops at the columns of the action.
    """
    trunk = critic.trunk
    weight, bias = eval_input(trunk)
    pair = weight.shape[0]
    x = torch.cat((obs, action), dim=-1)
    h = affine(x.expand(pair, *x.shape), weight, bias)
    taken = []
    for block in trunk.blocks:
        up, up_bias = fold(block.up.weight, block.up_norm)
        down, down_bias = fold(block.down.weight, block.down_norm)
        u = torch.relu(affine(h, up, up_bias))
        v = torch.relu(affine(u, down, down_bias))
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
    return values.amin(0), torch.bmm(grad, weight[..., obs.shape[1] :]).sum(0)


def actor_heads(actor: Actor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log deviation (rows, A) from features (1, rows, d), with one product for both heads."""
    weight = torch.cat((actor.mean.weight, actor.raw.weight))
    bias = torch.cat((actor.mean_bias, actor.raw_bias))
    mean, raw = F.linear(features[0], weight, bias).chunk(2, dim=-1)
    return mean, log_std_of(raw)


def critic_logits(critic: Critic, features: Tensor) -> Tensor:
    """Return logits (2, rows, K) from features (2, rows, d)."""
    return affine(features, critic.head.weight, critic.head_bias)


def actor_objective(
    actor: Actor,
    critic: Critic,
    alpha: Tensor,
    batch: Batch,
    noise: Tensor,
    atoms: Tensor,
    bc_weight: float,
    tails: Tails = TAILS,
) -> ActorLoss:
    """Compute `flashsac.actor_objective`."""
    rows = slice(batch.action.shape[0])
    features, statistics = train_features(actor.trunk, Whitened(batch.actor_obs), rows)
    action, log_prob = sample_action(*actor_heads(actor, features), noise)
    value, slope = lesser_value(critic, batch.critic_obs[rows], action.detach(), atoms)
    # Adds 0, with the gradient that was found.
    value = value + (slope * (action - action.detach())).sum(-1)
    return tails.actor(value, action, log_prob, alpha, batch.action, bc_weight, statistics)


@torch.no_grad()
def next_action(actor: Actor, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `flashsac.next_action`."""
    features = actor_features(actor.trunk, batch.actor_obs[batch.action.shape[0] :])
    return sample_action(*actor_heads(actor, features), noise)


def critic_objective(
    critic: Critic,
    target: Critic,
    alpha: Tensor,
    batch: Batch,
    successor: tuple[Tensor, Tensor],
    atoms: Tensor,
    tails: Tails = TAILS,
) -> CriticLoss:
    """Compute `flashsac.critic_objective`."""
    action, log_prob = successor
    size = action.shape[0]
    with torch.no_grad():
        whitened = Whitened(torch.cat((batch.critic_obs, torch.cat((batch.action, action))), dim=-1))
        features, _ = train_features(target.trunk, whitened, slice(size, None))
        logits = critic_logits(target, features)
        labels = tails.labels(logits, batch.reward, batch.discount, alpha * log_prob, atoms)
    features, statistics = train_features(critic.trunk, whitened, slice(size))
    return tails.critic(critic_logits(critic, features), labels, atoms, statistics)
