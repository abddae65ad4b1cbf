"""A trunk's passes written out, forward and backward, over all members of an ensemble at once.

The maths is that of `networks.py`; no gradient is recorded. The input norm's gain and offset are folded into the
embedding, whose bias is a column of ones in the input, so that its gradient comes out of the same product. Inputs are
filled up to a multiple of eight columns, which matrix units want.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.learn.batch_norm import EPS, wide
from tickgraph.learn.gradients import Embedding, Gradients, Moments
from tickgraph.learn.networks import BatchStats, UnitRMSNorm, batch_statistics
from tickgraph.learn.storage import Span, Stacked, Storage, join

LARGE = 1 << 22
"""Elements of a member's result from which on a product of four members is taken in halves. As one, cuBLAS takes a
kernel that counts its tiles, which a memset clears first: in a graph the product waits for it 5 to 15 us (H200)."""
Normed = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class NormForm:
    """What computes batch norms: `norm_relu` of `batch_norm.py`, its backward pass and `whiten`, or their kernels."""

    forward: Callable[..., Normed]
    backward: Callable[..., Normed]
    whiten: Callable[..., Normed]


def filled(width: int) -> int:
    """Return the multiple of eight that holds `width` columns."""
    return -(-width // 8) * 8


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T per member: (M, rows, in), (M, out, in) -> (M, rows, out) in the precision of x."""
    members, rows, _ = x.shape
    if x.is_cuda and members == 4 and rows * weight.shape[1] >= LARGE:
        return _in_halves(x, weight)
    return torch.bmm(x, weight.transpose(1, 2))


@torch.library.custom_op("tickgraph::product_in_halves", mutates_args=())
def _in_halves(x: Tensor, weight: Tensor) -> Tensor:
    members, rows, _ = x.shape
    out = x.new_empty((members, rows, weight.shape[1]))
    for part in (slice(members // 2), slice(members // 2, None)):
        torch.bmm(x[part], weight[part].transpose(1, 2), out=out[part])
    return out


@_in_halves.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:2], weight.shape[1]))


class SmallWeights(NamedTuple):
    """What the passes read of small parameters, so of all but the blocks' weights, M members."""

    folded: Tensor
    """(M, d, I + 1 filled up) embedding times the input norm's gain, and its bias, in the products' precision."""
    head: Tensor
    """(M, K filled up, d) weights of all heads in the products' precision; rows behind them are 0."""
    head_bias: Tensor
    """(M, 1, K filled up) float32."""
    named: dict[str, Tensor]
    """{name: parameter (M, ...)}; of those that what is above is made of, the first network's members may be all."""


SmallForm = Callable[[Sequence[Tensor], torch.dtype], SmallWeights]
"""What makes them of flat tensors: `small_weights` or its kernel."""


class Weights:
    """What the passes read of a network, M members, and of its target behind them.

    Args:
        storage: the network's layout.
        parameters: flat tensors whose members are stacked, in this order.
        blocks: residual blocks.
        dtype: of the products.
        form: what makes of the small parameters what is read.
        stacked: copies of the blocks' weights to read instead of making them here; its first members are read.
    """

    def __init__(
        self,
        storage: Storage,
        parameters: Sequence[Tensor],
        blocks: int,
        dtype: torch.dtype,
        form: SmallForm,
        stacked: Stacked | None = None,
    ) -> None:
        self.dtype = dtype
        self.folded, self.head, self.head_bias, named = form(parameters, dtype)
        self.embed, self.gain = named["trunk.embed.weight"], named["trunk.norm.gain"]
        self.input_gain, self.input_offset = named["trunk.input_norm.gain"], named["trunk.input_norm.offset"]
        self.blocks = [(f"trunk.blocks.{i}.up", f"trunk.blocks.{i}.down") for i in range(blocks)]
        layers = [path for block in self.blocks for path in block]
        self.norms = {path: (named[f"{path}_norm.gain"], named[f"{path}_norm.offset"]) for path in layers}
        if stacked is None:
            linear = storage.linear
            self.weights = {path: stack(linear[f"{path}.weight"], parameters).to(dtype) for path in layers}
        else:
            self.weights = {path: stacked.weights[f"{path}.weight"][: self.folded.shape[0]] for path in layers}


def small_weights(storage: Storage, joined: bool, parameters: Sequence[Tensor], dtype: torch.dtype) -> SmallWeights:
    """Return the `SmallWeights` of the members of all flat tensors, in their order.

    Args:
        storage: the network's layout.
        joined: put the parameters of an ensemble and its target together by one copy.
        parameters: flat tensors.
        dtype: of the products.
    """
    named = (by_one_copy if joined and len(parameters) > 1 else by_name)(storage, parameters)
    embed, gain, offset = (named[f"trunk.{name}"] for name in ("embed.weight", "input_norm.gain", "input_norm.offset"))
    bias = (embed * offset.unsqueeze(1)).sum(-1, keepdim=True)
    folded = fill(torch.cat((embed * gain.unsqueeze(1), bias), dim=-1))
    heads, biases = ([named[span.name] for span in spans] for spans in head_spans(storage))
    # One head keeps its layout, several lie column by column: a product rounds by how its factors lie.
    if len(heads) == 1:
        head, head_bias = F.pad(heads[0], (0, 0, 0, filled(heads[0].shape[1]) - heads[0].shape[1])), biases[0]
    else:
        head, head_bias = fill(torch.cat(heads, dim=1).transpose(1, 2)).transpose(1, 2), torch.cat(biases, dim=1)
    return SmallWeights(folded.to(dtype), head.to(dtype), fill(head_bias).unsqueeze(1), named)


def by_name(storage: Storage, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return {name: parameter (M, ...)} of the members of all flat tensors, the blocks' weights left out; of one flat
    tensor they are views."""
    found = storage.pairs(parameters)
    found |= {span.name: stack(span, parameters) for span in _small(storage) if span.name not in found}
    return found


def by_one_copy(storage: Storage, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Compute `by_name` by one copy, where a parameter at a time would take one for each. For ensembles only."""
    spans = _small(storage)
    flat, start, found = join([span.of(each) for span in spans for each in parameters]), 0, {}
    for span in spans:
        shape = (len(parameters) * span.shape[0], *span.shape[1:])
        found[span.name] = flat[start : start + len(parameters) * span.size].view(shape)
        start += len(parameters) * span.size
    return found


def _small(storage: Storage) -> list[Span]:
    return [span for span in storage.spans if not (".blocks." in span.name and span.name.endswith("weight"))]


def head_spans(storage: Storage) -> tuple[list[Span], list[Span]]:
    """Return the places of the heads' weights, and those of their biases."""
    outer, linear = [span for span in storage.spans if not span.name.startswith("trunk.")], storage.linear
    return [span for span in outer if span.name in linear], [span for span in outer if span.name not in linear]


def stack(span: Span, parameters: Sequence[Tensor]) -> Tensor:
    """Return a parameter of the members of all flat tensors, (M, ...)."""
    alone = len(span.shape) == (2 if span.name.endswith("weight") else 1)
    found = [span.of(flat).unsqueeze(0) if alone else span.of(flat) for flat in parameters]
    return found[0] if len(found) == 1 else torch.cat(found)


def fill(x: Tensor) -> Tensor:
    """Return x (..., C) with columns of zeros up to a multiple of eight."""
    return F.pad(x, (0, filled(x.shape[-1]) - x.shape[-1]))


def fill_input(xhat: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a normalised input (..., I) with a column of ones, filled up, as one expression."""
    cols = xhat.shape[-1]
    width = filled(cols + 1)
    ones = torch.arange(width, device=xhat.device) == cols
    return torch.where(ones, 1.0, F.pad(xhat, (0, width - cols))).to(dtype)


def whiten(x: Tensor, dtype: torch.dtype, upper: Tensor | None = None, lower: Tensor | None = None) -> Normed:
    """Return an input (R, I) on the statistics of the batch, filled as by `fill_input`, and mean (I,) and unbiased
    variance (I,), which are to commit.

    Args:
        x: the input, or its first columns.
        dtype: of the result.
        upper, lower: both or neither: its other columns, (R/2, A) each, of the first half of the rows and the second.
    """
    ends = [end for end in (upper, lower) if end is not None]
    if ends:
        x = torch.cat((x, torch.cat(ends)), dim=-1)  # which refuses one of them alone
    mean, var, stats = batch_statistics(x)
    return fill_input((x - mean) * torch.rsqrt(var + EPS), dtype), *stats


@dataclass
class Kept:
    """What the backward pass reads of a forward pass: for each layer what went into and came out of its product, and
    what its batch norm returned."""

    layers: list[tuple[str, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def moments(self, first: BatchStats, members: int, rows: int) -> Moments:
        """Return the statistics of the first members of a batch of `rows`; `first` are those of the input, (I,) each,
        mean and unbiased variance."""
        means, scales = ([layer[at][:members] for layer in self.layers] for at in (3, 4))
        return Moments([*[first[0]] * members, *means], [first[1]] * members, scales, rows)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return what is kept, layer by layer, without the names."""
        return tuple(value for layer in self.layers for value in layer[1:])

    @classmethod
    def of(cls, weights: Weights, tensors: Sequence[Tensor]) -> Self:
        """Return what was kept of a forward pass with these weights, given its `tensors`; layers hold equally many."""
        paths = [path for block in weights.blocks for path in block]
        each = len(tensors) // len(paths)
        return cls([(path, *tensors[i * each : (i + 1) * each]) for i, path in enumerate(paths)])


def forward(weights: Weights, x: Tensor, norm: NormForm, first: int) -> tuple[Tensor, Kept]:
    """Return the features before the last norm (M, R/2, d), on the statistics of the batch, and what backward needs.

    Args:
        weights: of M members.
        x: (R, I) of `fill_input`, the same for all members.
        norm: what computes the batch norms.
        first: members of whose result the first half of the rows is read; of the others it is the second.
    """
    h = product(x.expand(weights.folded.shape[0], *x.shape), weights.folded)
    kept, last = Kept(), weights.blocks[-1][-1]
    for up, down in weights.blocks:
        u = h
        for path, residual in ((up, None), (down, h)):
            made = product(u, weights.weights[path])
            y, mean, scale = norm.forward(made, *weights.norms[path], residual, first if path == last else None)
            kept.layers.append((path, u, made, mean, scale))
            u = y
        h = u
    return h, kept


def backward(weights: Weights, x: Tensor, kept: Kept, grad: Tensor, norm: NormForm, grads: Gradients) -> None:
    """Set the gradients of the trunk's parameters, the last norm's left out.

    The gradient of a block's result is what came through the block behind it and what came past that one. The block's
    norm adds up the two as it reads them. Summed here are the embedding's, and what comes past more than one block.

    Args:
        weights, x, kept: of the forward pass.
        grad: (T, G, d) of its result, for its first T members and first G rows.
        norm: what computes the batch norms.
        grads: where they go.
    """
    members, above = grad.shape[0], grad
    past: list[Tensor] = []
    for path, source, made, mean, scale in reversed(kept.layers):
        gain, offset = weights.norms[path]
        inputs = [value[:members] for value in (made, mean, scale, gain, offset)]
        extra: list[Tensor] = []
        if path.endswith("down"):
            extra = past if len(past) < 2 else [_summed(past)]
            past = [above, *extra]
        above, to_gain, to_offset = norm.backward(above, *inputs, *extra)
        grads[f"{path}_norm.gain"], grads[f"{path}_norm.offset"] = to_gain, to_offset
        grads.product(f"{path}.weight", above, source[:members])
        above = torch.bmm(above, weights.weights[path][:members])
    folded = (value[:members] for value in (weights.embed, weights.input_gain, weights.input_offset))
    names = ("trunk.embed.weight", "trunk.input_norm.gain", "trunk.input_norm.offset")
    grads.embedding(names, Embedding(_summed([above, *past]), x.expand(members, *x.shape), *folded))


def _summed(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of gradients (M, R or less, C), the first of all R rows, as one expression, rounded once."""
    first, *others = parts
    rows, total = first.shape[1], wide(first)
    for part in others:
        total = total + F.pad(wide(part), (0, 0, 0, rows - part.shape[1]))
    return total.to(first.dtype)


def unit_features(h: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the RMS norm's result (M, R, d) like h, h / rms (M, R, d) and 1 / rms (M, R, 1) float32."""
    full = wide(h)
    scale = torch.rsqrt(full.square().mean(-1, keepdim=True) + UnitRMSNorm.eps)
    unit = full * scale
    return (unit * gain.unsqueeze(1)).to(h.dtype), unit, scale


def unit_backward(grad: Tensor, unit: Tensor, scale: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of `unit_features` for h (M, R, d), float32, and what that for the gain is the sum over rows
    of, (M, R, d) float32."""
    grad = wide(grad)
    inner = grad * gain.unsqueeze(1)
    return scale * (inner - unit * (unit * inner).mean(-1, keepdim=True)), grad * unit
