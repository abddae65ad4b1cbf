"""A trunk's passes on running statistics, forward and back to its input, and their steps in torch.

A batch norm is then a factor and a shift a column, which belong to the product before it, and on the way back to the
product behind it. `kernels/affine_product.py` computes the same steps in one launch each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tickgraph.learn.batch_norm import EPS, wide
from tickgraph.learn.gradients import full_product
from tickgraph.learn.trunk import Weights, fill_input, product

Gate = tuple[Tensor, Tensor]
"""What a layer gave, (M, R, C), and its factor, (M, 1, C) float32."""


@dataclass(frozen=True)
class AffineForm:
    """What computes a layer: `affine_relu` and `affine_backward`, or their kernels."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor]]


def affine_relu(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y = relu(x W^T scale + shift), and y + residual, or y where there is none.

    Args:
        x: (M, R, K), float32 or bfloat16.
        weight: (M, N, K) like x.
        scale, shift: (M, 1, N) float32.
        residual: (M, R, N) like x.

    Returns:
        Both (M, R, N) like x; the product is rounded before the norm, and y before the sum.
    """
    y = torch.relu(wide(product(x, weight)) * scale + shift).to(x.dtype)
    return y, y if residual is None else residual + y


def gated(grad: Tensor, output: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of a layer's product (M, R, C) from that of its output, given its `Gate`."""
    return (wide(grad) * (output > 0) * scale).to(output.dtype)


def affine_backward(
    above: Tensor, weight: Tensor, gate: Gate | None, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a layer's input, and that of the product of the layer before it.

    Args:
        above: (M, R, N) of the layer's product, float32 or bfloat16.
        weight: (M, N, K) like above.
        gate: of the layer before, or None where there is none.
        residual: (M, R, K) like above, a gradient that is added.

    Returns:
        Both (M, R, K) like above; the first is to be read with a residual alone, and without a gate both are the same.
        Each step is rounded.
    """
    made = torch.bmm(above, weight)
    if residual is not None:
        made = residual + made
    return made, made if gate is None else gated(made, *gate)


class Running:
    """Shift and factor of every norm on running statistics.

    Args:
        weights: the network's M members.
        statistics: (2, S), in the order of a forward pass.
    """

    def __init__(self, weights: Weights, statistics: Tensor) -> None:
        members, start = weights.embed.shape[0], 0
        self.layers: dict[str, tuple[Tensor, Tensor]] = {}
        for path, (gain, offset) in {"": (weights.input_gain, weights.input_offset), **weights.norms}.items():
            size = members * gain.shape[-1]
            mean, var = statistics[:, start : start + size].view(2, members, -1)
            start += size
            if path:
                scale = gain * torch.rsqrt(var + EPS)
                self.layers[path] = (scale.unsqueeze(1), (offset - mean * scale).unsqueeze(1))
            else:
                self.mean, self.scale = mean.unsqueeze(1), torch.rsqrt(var + EPS).unsqueeze(1)


def eval_forward(weights: Weights, running: Running, x: Tensor, form: AffineForm) -> tuple[Tensor, dict[str, Gate]]:
    """Return the features before the last norm (M, R, d) of a raw input (R, I) on running statistics, and each layer's
    gate."""
    h = product(fill_input((x - running.mean) * running.scale, weights.dtype), weights.folded)
    gates: dict[str, Gate] = {}
    for block in weights.blocks:
        u = h
        for path, residual in zip(block, (None, h), strict=True):
            scale, shift = running.layers[path]
            output, u = form.forward(u, weights.weights[path], scale, shift, residual)
            gates[path] = (output, scale)
        h = u
    return h, gates


def eval_backward(
    weights: Weights, running: Running, gates: dict[str, Gate], grad: Tensor, columns: slice, form: AffineForm
) -> Tensor:
    """Return the gradient (R, C) for some columns of the raw input, summed over the members.

    Args:
        weights, running, gates: of `eval_forward`.
        grad: (M, R, d) of its result.
        columns: of the input.
        form: what computes the layers.
    """
    above, before = gated(grad, *gates[weights.blocks[-1][1]]), [None, *(gates[down] for _, down in weights.blocks)]
    for (up, down), gate in zip(reversed(weights.blocks), reversed(before[:-1]), strict=True):
        _, above = form.backward(above, weights.weights[down], gates[up])
        grad, above = form.backward(above, weights.weights[up], gate, grad)
    slope = full_product(grad, weights.folded)[..., columns]  # of all columns, which lie at even distances
    return (slope * running.scale[..., columns]).sum(0)
