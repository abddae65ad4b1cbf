"""Where a network's numbers lie: one flat tensor of parameters and one of running statistics, modules being views."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tickgraph.core.arena import Arena
from tickgraph.learn.networks import BatchStats, UnitBatchNorm, UnitLinear, UnitRMSNorm


@dataclass(frozen=True)
class Span:
    """The place of one tensor, or of a block of tensors of one shape, in a flat tensor."""

    name: str
    start: int
    shape: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """Return the view (*shape) of `flat` (P,)."""
        return flat[self.start : self.start + self.size].view(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Storage:
    """The flat tensors of a network.

    Parameters that are projected alike lie together, so that one operation projects all of them: rows of linear layers
    by their width, gains and offsets of batch norms by theirs, then gains alone, then the rest.

    Args:
        parameters: (P,) float32.
        statistics: (2, S) float32, running means and running variances in the order of a forward pass.
        spans: place of each parameter, in the order of the flat tensor.
        groups: blocks that are projected alike.
    """

    parameters: Tensor
    statistics: Tensor
    spans: tuple[Span, ...]
    groups: tuple[Span, ...]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return {name of the parameter: view} of a flat tensor (P,), such as a moment of an optimiser."""
        return {span.name: span.of(flat) for span in self.spans}

    def ordered(self, network: nn.Module) -> list[Tensor]:
        """Return the parameters of a network of this form in the order of the flat tensor."""
        parameters = dict(network.named_parameters())
        return [parameters[span.name] for span in self.spans]

    def projection(self, flat: Tensor) -> Tensor:
        """Return parameters (P,) put back onto their unit spheres, as a new tensor; biases of heads stay.

        Rows of a linear layer get norm 1, gain and offset of a batch norm together norm sqrt(d), the gain of an RMS
        norm sqrt(d).
        """
        if not self.groups:
            return flat
        pieces = [_PROJECTIONS[group.name](group.of(flat)) for group in self.groups]
        return flatten([*pieces, flat[sum(piece.numel() for piece in pieces) :]])

    @property
    def linear(self) -> dict[str, Span]:
        """{name: place} of the linear layers' weights; they are the first in the flat tensor."""
        end = sum(group.size for group in self.groups if group.name == "rows")
        return {span.name: span for span in self.spans if span.start < end}

    def pairs(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return {name: (M, d)} of the batch norms' gains and offsets, of the members of all flat tensors, in their
        order.

        The norms of one width are put together in one operation.
        """
        found: dict[str, Tensor] = {}
        for group in self.groups:
            if group.name == "pairs":
                parts = [group.of(flat) for flat in flats]
                both = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
                names = [s.name for s in self.spans if group.start <= s.start < group.start + group.size]
                found |= dict(zip(names, both.flatten(0, 1).unbind(), strict=True))
        return found


class Stacked:
    """Copies of the linear layers' weights for products over all members at once, in the precision of the products.

    A network's members come first, then those of the target. What is copied follows from the parameters, so it is no
    state: `refresh` makes it anew, and whoever changes parameters renews it.

    Args:
        storage: the trained network.
        target: flat parameters of the target, None for a network without one.
        dtype: of the copies.
        arena, name: owner and name of the copies; the arena is not sealed yet.
    """

    def __init__(self, storage: Storage, target: Tensor | None, dtype: torch.dtype, arena: Arena, name: str) -> None:
        self.storage, self.target = storage, target
        self.parts = 1 if target is None else 2
        size = self.parts * sum(span.size for span in storage.linear.values())
        empty = torch.zeros(size, dtype=dtype)
        self.flat = arena.constant(name, empty, dtype, "copies of the weights for products over all members")
        self.weights = {}
        for span in storage.linear.values():
            members = span.shape[0] if len(span.shape) == 3 else 1
            place = Span(span.name, self.parts * span.start, (self.parts * members, *span.shape[-2:]))
            self.weights[span.name] = place.of(self.flat)

    def places(self, span: Span, place: int) -> tuple[int, int]:
        """Return where the element at `place` of a parameter lies in the copies, and where the target's (or -1)."""
        mine = self.parts * span.start + place - span.start
        return mine, mine + span.size if self.parts == 2 else -1

    def refresh(self) -> None:
        """Copy the parameters anew."""
        sources = [self.storage.parameters] if self.target is None else [self.storage.parameters, self.target]
        self.flat.copy_(join([span.of(flat) for span in self.storage.linear.values() for flat in sources]))


def declare(
    network: nn.Module, arena: Arena, prefix: str, why: str, trainable: bool = True, statistics: bool = True
) -> Storage:
    """Move a network into the arena, as `prefix`/parameters and `prefix`/statistics, and make its tensors views.

    Without `statistics` the network keeps none and can only run on the statistics of a batch.
    """
    spans, groups, size = _layout(network)
    width = sum(module.mean.numel() for module in network.modules() if isinstance(module, UnitBatchNorm))
    parameters = arena.new(f"{prefix}/parameters", (size,), why=f"{why}: parameters, one after the other")
    running = (
        arena.new(f"{prefix}/statistics", (2, width), why=f"{why}: running means and variances")
        if statistics
        else torch.empty((2, width), device="meta")
    )
    storage = Storage(parameters, running, spans, groups)
    with torch.no_grad():
        parameters.copy_(flatten(storage.ordered(network)))
        running[1].fill_(1.0)
    bind(network, storage, trainable)
    return storage


def bind(network: nn.Module, storage: Storage, trainable: bool) -> None:
    """Make the tensors of a network views of a storage; networks that share one see each other's writes."""
    views = storage.named(storage.parameters)
    start = 0
    for path, module in network.named_modules():
        for name in list(module._parameters):
            view = views[f"{path}.{name}" if path else name]
            module._parameters[name] = nn.Parameter(view, requires_grad=trainable)
        if isinstance(module, UnitBatchNorm):
            span = Span(path, start, tuple(module.mean.shape))
            module.mean, module.var = span.of(storage.statistics[0]), span.of(storage.statistics[1])
            start += math.prod(span.shape)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors' elements one after the other, (P,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Compute `flatten` as one operation that a compiler leaves alone: on a GPU one kernel copies all parts, where a
    compiler would write one for each."""
    return _join([tensor.reshape(-1) for tensor in tensors])


@torch.library.custom_op("tickgraph::join", mutates_args=())
def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts))


@_join.register_fake
def _(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].new_empty(sum(part.numel() for part in parts))


def pack_statistics(stats: Sequence[BatchStats]) -> Tensor:
    """Return the batch statistics of a forward pass as (2, S), laid out like `Storage.statistics`."""
    return torch.stack((flatten([mean for mean, _ in stats]), flatten([var for _, var in stats])))


def unit_rows(weight: Tensor) -> Tensor:
    """Return rows (R, d) divided by their norms."""
    return weight / torch.linalg.vector_norm(weight, dim=-1, keepdim=True).clamp(min=1e-8)


def unit_pairs(pairs: Tensor) -> Tensor:
    """Return gains and offsets (layers, 2, M, d), scaled so that those of a layer and member have norm sqrt(d)."""
    square = pairs.square().sum((1, 3), keepdim=True)
    return pairs * (math.sqrt(pairs.shape[-1]) * torch.rsqrt(square + 1e-8))


def unit_gains(gains: Tensor) -> Tensor:
    """Return gains (M, d) scaled to norm sqrt(d)."""
    return gains * (math.sqrt(gains.shape[-1]) * torch.rsqrt(gains.square().sum(-1, keepdim=True) + 1e-8))


_PROJECTIONS = {"rows": unit_rows, "pairs": unit_pairs, "gains": unit_gains}


def _layout(network: nn.Module) -> tuple[tuple[Span, ...], tuple[Span, ...], int]:
    """Return the place of each parameter, the groups that are projected alike, and the number of elements."""
    kinds: dict[str, str] = {}
    for path, module in network.named_modules():
        if isinstance(module, UnitLinear):
            kinds[f"{path}.weight"] = "rows"
        elif isinstance(module, UnitBatchNorm):
            kinds[f"{path}.gain"] = kinds[f"{path}.offset"] = "pairs"
        elif isinstance(module, UnitRMSNorm):
            kinds[f"{path}.gain"] = "gains"
    order = [*_PROJECTIONS, "free"]
    items = [(kinds.get(name, "free"), name, tuple(value.shape)) for name, value in network.named_parameters()]
    # Stable, so that the offset of a batch norm stays right behind its gain.
    items.sort(key=lambda item: (order.index(item[0]), item[2][-1] if item[0] != "free" else 0))
    spans: list[Span] = []
    blocks: dict[tuple[str, int], list[Span]] = {}
    start = 0
    for kind, name, shape in items:
        spans.append(Span(name, start, shape))
        if kind != "free":
            blocks.setdefault((kind, shape[-1]), []).append(spans[-1])
        start += math.prod(shape)
    groups = []
    for (kind, width), block in blocks.items():
        rows = sum(math.prod(span.shape) for span in block) // width
        shape = (len(block) // 2, 2, rows // len(block), width) if kind == "pairs" else (rows, width)
        groups.append(Span(kind, block[0].start, shape))
    return tuple(spans), tuple(groups), start
