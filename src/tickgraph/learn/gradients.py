"""The gradients of a network's parameters that a backward pass gathers, at the end as one flat tensor.

Nothing in a backward pass reads the gradients of weights, so that their products are taken last, all in one operation,
and each writes straight to its place in the flat tensor. On a GPU the small ones are dealt to a few streams, in a graph
to branches, as one of them alone does not fill it; what is copied is copied beside all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tickgraph.learn.storage import Storage

LANES = 3
"""Streams, that of the caller among them."""
SMALL = 1 << 17
"""Elements of a product up to which it leaves much of a GPU idle: 32 tiles of 64 by 64."""


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
        flatten: what lays tensors out flat, or None to take all products and the copies of the rest in one operation.
    """

    def __init__(self, storage: Storage, flatten: Callable[[Sequence[Tensor]], Tensor] | None) -> None:
        self.storage, self.flatten = storage, flatten
        self.named: dict[str, Tensor] = {}
        self.factors: dict[str, tuple[Tensor, Tensor]] = {}

    def __setitem__(self, name: str, grad: Tensor) -> None:
        self.named[name] = grad

    def product(self, name: str, above: Tensor, source: Tensor) -> None:
        """Set a weight's gradient above^T source, from (M, R, out) and (M, R, in)."""
        self.factors[name] = (above, source)

    def flat(self) -> Tensor:
        """Return all of them, (P,) float32, laid out like the parameters.

        Raises:
            ValueError: one is missing, or set as a tensor and as a product; its place would hold what lay there before.
        """
        if len(self.named) + len(self.factors) != len(self.storage.spans):
            found = f"{len(self.named)} gradients and {len(self.factors)} products"
            raise ValueError(f"{found} of {len(self.storage.spans)} parameters; each needs one of them")
        if self.flatten is not None:
            made = {name: full_product(above.transpose(1, 2), source) for name, (above, source) in self.factors.items()}
            return self.flatten([(self.named | made)[span.name] for span in self.storage.spans])
        starts = {span.name: span.start for span in self.storage.spans}
        # Those whose factors were made last come first: they are nearest in the caches.
        products = list(reversed(self.factors.items()))
        return _gather(
            [above for _, (above, _) in products],
            [source for _, (_, source) in products],
            [starts[name] for name, _ in products],
            [grad.reshape(-1) for grad in self.named.values()],
            [starts[name] for name in self.named],
            self.storage.parameters.numel(),
        )


_sides: dict[torch.device, list[torch.cuda.Stream]] = {}


def _lanes(device: torch.device) -> list[torch.cuda.Stream]:
    """Return the streams beside the current one."""
    if device not in _sides:
        _sides[device] = [torch.cuda.Stream(device) for _ in range(LANES - 1)]
    return _sides[device]


@torch.library.custom_op("tickgraph::gather_gradients", mutates_args=())
def _gather(
    above: Sequence[Tensor],
    source: Sequence[Tensor],
    starts: Sequence[int],
    parts: Sequence[Tensor],
    places: Sequence[int],
    size: int,
) -> Tensor:
    """Return (size,) float32 with above^T source from each start on, and each part from its place on."""
    flat = above[0].new_empty((size,), dtype=torch.float32)
    products = []
    for left, right, start in zip(above, source, starts, strict=True):
        shape = (left.shape[0], left.shape[2], right.shape[2])
        products.append((left.transpose(1, 2), right, flat[start : start + shape[0] * shape[1] * shape[2]].view(shape)))
    if not flat.is_cuda:
        for left, right, out in products:
            out.copy_(full_product(left, right))
        _copy(flat, parts, places)
        return flat
    main = torch.cuda.current_stream(flat.device)
    lanes = [main, *_lanes(flat.device)]
    for lane in lanes[1:]:
        lane.wait_stream(main)
    for turn, (left, right, out) in enumerate(products):
        with torch.cuda.stream(lanes[turn % len(lanes)] if out.numel() <= SMALL else main):
            if left.dtype == torch.float32:
                torch.bmm(left, right, out=out)
            else:
                torch.ops.aten.bmm.dtype_out(left, right, torch.float32, out=out)
    with torch.cuda.stream(lanes[-1]):
        _copy(flat, parts, places)
    for lane in lanes[1:]:
        main.wait_stream(lane)  # whoever frees a factor from now on does so behind its product
    return flat


def _copy(flat: Tensor, parts: Sequence[Tensor], places: Sequence[int]) -> None:
    """Write each part (N,) to its place; those that lie behind each other by one copy."""
    order = sorted(range(len(parts)), key=lambda i: places[i])
    while order:
        run = [order.pop(0)]
        end = places[run[0]] + parts[run[0]].numel()
        while order and places[order[0]] == end:
            run.append(order.pop(0))
            end += parts[run[-1]].numel()
        out = flat[places[run[0]] : end]
        if len(run) == 1:
            out.copy_(parts[run[0]])
        else:
            torch.cat([parts[i] for i in run], out=out)


@_gather.register_fake
def _(above: Sequence[Tensor], *rest: Any) -> Tensor:
    return above[0].new_empty((rest[-1],), dtype=torch.float32)
