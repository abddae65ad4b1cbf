"""The product of SAC's linear layers, in a form that suits a GPU, where autograd computes the gradients.

There columns are filled up to a multiple of eight, as cuBLAS has only slow kernels for rows that do not begin at a
multiple of 16 bytes, and an ensemble's gradients of weights are a product for each member. Parameters keep their
shapes. A CPU gains nothing by either.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.learn.trunk import filled


def suits_gpu(x: Tensor) -> bool:
    """Return whether the product of x takes the form for a GPU."""
    return x.is_cuda


def linear(x: Tensor, weight: Tensor, bias: Tensor, plain: bool) -> Tensor:
    """Return x W^T + b, (M, rows, out) with weight (M, out, in), or (rows, out) with (out, in).

    Args:
        x: (M, rows, in) or (rows, in).
        weight, bias: of a layer, or of an ensemble's M.
        plain: keep to the plain form on a GPU too.
    """
    outputs, inputs = weight.shape[-2:]
    on_a_gpu = suits_gpu(x) and not plain
    if on_a_gpu:
        columns, rows = filled(inputs) - inputs, filled(outputs) - outputs
        x = F.pad(x, (0, columns)) if columns else x
        weight = F.pad(weight, (0, columns, 0, rows)) if columns or rows else weight
    if weight.dim() == 3:
        # Autocast would cast in the forward pass alone.
        own = on_a_gpu and not torch.is_autocast_enabled(x.device.type)
        return (ByMember.apply(x, weight) if own else member_product(x, weight))[..., :outputs] + bias.unsqueeze(1)
    if weight.shape[0] == outputs:
        return F.linear(x, weight, bias)
    return F.linear(x, weight)[:, :outputs] + bias


def member_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T of each member, (M, rows, out), without bias."""
    x = x if x.dim() == 3 else x.expand(weight.shape[0], *x.shape)
    return torch.bmm(x, weight.transpose(1, 2))


class ByMember(torch.autograd.Function):
    """`member_product`, with the gradients of the weights member by member.

    They are few tiles with a long sum each. cuBLAS splits that sum for one product and not for a batch of them: with
    8,192 rows of 768 and 296 columns two products take 62 us instead of 139 (H200, TF32).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Keep both for the way back."""
        ctx.save_for_backward(x, weight)
        return member_product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of those of both that want one."""
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = torch.bmm(grad, weight)
            to_x = to_x if x.dim() == 3 else to_x.sum(0)
        if ctx.needs_input_grad[1]:
            to_weight = weight_gradient(grad, x)
        return to_x, to_weight


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad^T x of each member, (M, out, in), from (M, rows, out) and (M, rows, in) or, for all, (rows, in)."""
    own = x if x.dim() == 3 else [x] * grad.shape[0]
    return torch.stack([torch.mm(above.t(), source) for above, source in zip(grad, own, strict=True)])
