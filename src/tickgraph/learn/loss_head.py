"""The critics' loss and its gradient for the logits, written out: the torch form.

`kernels/loss_head.py` computes the same in one launch and without a sum over programs.
"""

import torch
from torch import Tensor

from tickgraph.learn.flashsac import project_distribution


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
