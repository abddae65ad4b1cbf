"""Gradients that a backward pass gathers: by the parameters' names, at the end as one flat tensor.

On a GPU the products that make the gradients of weights need not hold up the backward pass, which does not read them.
Custom operations start them on a stream of their own, in a graph on a branch, and each writes straight to its place in
the flat gradient. What they read is handed to the operation that ends the branch, so that no compiler gives its memory
away before.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tickgraph.learn.storage import Storage


def full_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the batched product in float32; of bfloat16 factors too, whose sums are not rounded."""
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


class Gradients:
    """The gradients of a network's parameters, (M, ...) each.

    Args:
        storage: the network's layout.
        flatten: what lays tensors out flat.
    """

    def __init__(self, storage: Storage, flatten: Callable[[Sequence[Tensor]], Tensor]) -> None:
        self.storage, self.flatten = storage, flatten
        self.named: dict[str, Tensor] = {}

    def __setitem__(self, name: str, grad: Tensor) -> None:
        self.named[name] = grad

    def product(self, name: str, above: Tensor, source: Tensor) -> None:
        """Set a weight's gradient above^T source, from (M, R, out) and (M, R, in)."""
        self.named[name] = full_product(above.transpose(1, 2), source)

    def flat(self) -> Tensor:
        """Return all of them, (P,), laid out like the parameters."""
        return self.flatten([self.named[span.name] for span in self.storage.spans])


class GradientsBeside(Gradients):
    """`Gradients` whose products run beside what follows them, and that end in a tensor of their own.

    Args:
        storage: the network's layout.
        place: (P,) where they go; every call writes all of it.
    """

    def __init__(self, storage: Storage, place: Tensor) -> None:
        super().__init__(storage, torch.cat)
        self.place = place
        self.starts = {span.name: span.start for span in storage.spans}
        self.read: list[Tensor] = []

    def product(self, name: str, above: Tensor, source: Tensor) -> None:
        """Start `Gradients.product`; both factors stay as they are until `flat`."""
        _product_beside(self.place, above, source, self.starts[name])
        self.read += [above, source]

    def flat(self) -> Tensor:
        """Write the other gradients, wait for the products, and return the tensor."""
        parts = [grad.reshape(-1) for grad in self.named.values()]
        _end_branch(self.place, parts, [self.starts[name] for name in self.named], self.read)
        return self.place


_sides: dict[torch.device, torch.cuda.Stream] = {}


def _side(device: torch.device) -> torch.cuda.Stream:
    if device not in _sides:
        _sides[device] = torch.cuda.Stream(device)
    return _sides[device]


@torch.library.custom_op("tickgraph::product_beside", mutates_args=("place",))
def _product_beside(place: Tensor, above: Tensor, source: Tensor, start: int) -> None:
    left = above.transpose(1, 2)
    shape = (left.shape[0], left.shape[1], source.shape[2])
    out = place[start : start + shape[0] * shape[1] * shape[2]].view(shape)
    if not place.is_cuda:
        out.copy_(full_product(left, source))
        return
    side = _side(place.device)
    side.wait_stream(torch.cuda.current_stream(place.device))
    with torch.cuda.stream(side):
        if left.dtype == torch.float32:
            torch.bmm(left, source, out=out)
        else:
            torch.ops.aten.bmm.dtype_out(left, source, torch.float32, out=out)


@_product_beside.register_fake
def _(place: Tensor, above: Tensor, source: Tensor, start: int) -> None:
    return None


@torch.library.custom_op("tickgraph::end_branch", mutates_args=("place",))
def _end_branch(place: Tensor, parts: Sequence[Tensor], starts: Sequence[int], read: Sequence[Tensor]) -> None:
    places = [place[start : start + part.numel()] for start, part in zip(starts, parts, strict=True)]
    torch._foreach_copy_(places, list(parts))
    if place.is_cuda:
        torch.cuda.current_stream(place.device).wait_stream(_side(place.device))


@_end_branch.register_fake
def _(place: Tensor, parts: Sequence[Tensor], starts: Sequence[int], read: Sequence[Tensor]) -> None:
    return None
