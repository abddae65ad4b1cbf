"""The critics' loss and its gradient, written out, from the trunk's result back to it.

What lies between its products is the head: here in torch, in `kernels/loss_head.py` in one launch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.learn.distribution import project_distribution
from tickgraph.learn.gradients import full_product
from tickgraph.learn.path import HeadForm
from tickgraph.learn.trunk import unit_backward, unit_features, wide


def critic_tail(
    h: Tensor,
    gains: Tensor,
    heads: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_prob: Tensor,
    log_alpha: Tensor,
    atoms: Tensor,
    head: HeadForm,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradient of the trunk's result, what the gradient of the heads' weights is a product of, and figures.

    Args:
        h: (4, B, d) of two online members, rows of (s, a), and two targets, of (s', a'); bfloat16 or float32.
        gains: (4, d) of the last norm, float32.
        heads: (4, K filled up, d), in the precision of h.
        biases: (4, 1, K filled up), float32.
        reward, discount, atoms: of `categorical_head`.
        log_prob: (B,) log pi(a'|s').
        log_alpha: () log temperature.
        head: what computes the part between the products, `filled_head` or its kernel.

    Returns:
        In the precision of h: the gradient of the online members' h (2, B, d), their features (2, B, d) and the
        gradient of their logits (2, B, K filled up), zeros behind the atoms. In float32: figures (3, B) of
        `categorical_head`, and what the gradients of gains and biases are the sums over rows of, (2, B, d) and
        (2, P, K filled up).
    """
    features, unit, scale = unit_features(h, gains)
    logits = full_product(features, heads.transpose(1, 2))
    to_logits, figures, to_bias = head(logits, biases, reward, discount, log_prob, log_alpha, atoms, h.dtype)
    to_h, to_gain = unit_backward(torch.bmm(to_logits, heads[:2]), unit[:2], scale[:2], gains[:2])
    return to_h.to(h.dtype), features[:2], to_logits, figures, to_gain, to_bias.transpose(0, 1)


def filled_head(
    logits: Tensor,
    biases: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_prob: Tensor,
    log_alpha: Tensor,
    atoms: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `categorical_head` of logits that are filled up.

    Args:
        logits: (4, B, K filled up) float32, without their biases, of two online members and two targets.
        biases, reward, discount, log_prob, log_alpha, atoms: of `critic_tail`.
        dtype: of the gradient.

    Returns:
        The gradient of the online logits (2, B, K filled up), zeros behind the atoms; figures (3, B); and sums of the
        gradient over rows (P, 2, K filled up), float32, to be added up; here one.
    """
    count, width = atoms.shape[0], logits.shape[-1]
    online, target = (logits + biases)[..., :count].chunk(2)
    made, figures = categorical_head(online, target, reward, discount, torch.exp(log_alpha) * log_prob, atoms)
    to_logits = F.pad(made, (0, width - count)).to(dtype)
    return to_logits, figures, wide(to_logits).sum(1, keepdim=True).transpose(0, 1)


def categorical_head(
    online: Tensor, target: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the loss for the online logits, and figures of every row.

    The loss is the mean over rows and members of the cross entropy of the online distributions against one label a row:
    the distribution of the target member whose mean is less, moved by reward, discount and cost and projected back onto
    the atoms. Its gradient for the logits is (p - label) / (members * B).

    Args:
        online: (2, B, K) logits of (s, a).
        target: (2, B, K) logits of (s', a').
        reward, discount, cost: (B,); cost is alpha log pi(a'|s').
        atoms: (K,) support.

    Returns:
        (2, B, K) gradient, and (3, B): a row's loss, mean value of (s, a) and mean of its label, whose means over B are
        those of the batch.
    """
    members, rows, _ = online.shape
    probs = torch.softmax(target, dim=-1)
    values = (probs * atoms).sum(-1)
    lesser = torch.where((values[0] <= values[1])[:, None], probs[0], probs[1])
    labels = project_distribution(lesser, reward, discount, cost, atoms)
    log_probs = torch.log_softmax(online, dim=-1)
    mine = log_probs.exp()
    figures = (-(labels * log_probs).sum(-1).mean(0), (mine * atoms).sum(-1).mean(0), (labels * atoms).sum(-1))
    return (mine - labels) / (members * rows), torch.stack(figures)
