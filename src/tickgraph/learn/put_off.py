"""What a backward pass puts off, done by one operation.

On a GPU that deals it to a few streams, in a graph to branches, as most of it alone leaves a GPU idle; large products
follow each other on the caller's. How sums, figures, statistics and copies are computed is a form: torch's operations
here, or their kernels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tickgraph.learn.gradients import Embedding, Moments, Plan, full_product

SMALL = 1 << 17
"""Elements of a product up to which it leaves much of a GPU idle: 32 tiles of 64 by 64."""
FOLD = 32
"""Rows that are summed first."""

Job = Iterator[None]
"""Work to enqueue, in steps: what is to run before all large products, if anything is, is the first."""


class Rest(NamedTuple):
    """What is put off besides products."""

    totals: list[tuple[int, int, Tensor]]
    """Of each sum over rows: place, columns, and values (M, R, that many columns or more)."""
    parts: list[tuple[int, Tensor]]
    """Of each copy: place and tensor (N,)."""
    figures: Tensor
    moments: Moments


class Product(NamedTuple):
    """Gradients of weights that are one product."""

    places: list[tuple[int, int]]
    """Of each weight, and its rows."""
    above: Tensor
    source: Tensor
    """(M, R, height) and (M, R, width): the product is above^T source of each member."""

    @property
    def whole(self) -> bool:
        """Whether it is the gradient of one weight, without columns that fill up."""
        return len(self.places) == 1 and self.places[0][1] == self.above.shape[2]


class Work(NamedTuple):
    """Jobs that make products."""

    large: list[Job]
    folded: list[Job]
    small: list[Job]
    beside: bool = False
    """Whether large ones leave room for others beside them on a processor."""


class Form(NamedTuple):
    """How it is computed."""

    products: Callable[[Tensor, Sequence[Product], Sequence[tuple[list[int], Embedding]]], Work]
    """Returns what writes gradients of weights to the flat gradient, and those of embeddings, given with the places of
    weight, gain and offset."""
    rest: Callable[[Sequence[Tensor], Rest], list[list[Job]]]
    """Returns what writes a `Rest` to flat gradient, figures' means and statistics, by streams."""


def carry_out(tensors: Sequence[Tensor], plan: Sequence[int], form: Form) -> list[Tensor]:
    """Return what `Gradients.finish` does; arguments of a `gradients.Operation`, and how."""
    how, given = Plan.of(plan), iter(tensors)
    outputs = outputs_of(tensors, plan)
    flat = outputs[0]
    products = [Product(places, next(given), next(given)) for places in how.products]
    embeddings = [(starts, Embedding(*(next(given) for _ in Embedding._fields))) for starts in how.embeddings]
    work = form.products(flat, products, embeddings)
    totals = [(start, width, next(given)) for start, width in how.totals]
    rest = Rest(totals, [(start, next(given)) for start in how.parts], next(given), how.moments_of(tensors))
    others = form.rest(outputs, rest)
    if flat.is_cuda:
        _deal(flat.device, work, others)
    else:
        for job in (*work.large, *work.folded, *work.small, *(job for jobs in others for job in jobs)):
            _end(job)
    return outputs


def outputs_of(tensors: Sequence[Tensor], plan: Sequence[int]) -> list[Tensor]:
    """Return what `carry_out` fills."""
    how = Plan.of(plan)
    figures, moments = tensors[how.moments_begin - 1], how.moments_of(tensors)
    width = sum(mean.numel() for mean in moments.means)
    sizes: list[tuple[int, ...]] = [(how.size,), (figures.shape[0],), (2, width)]
    return [figures.new_empty(size) for size in sizes]


@torch.library.custom_op("tickgraph::finish_gradients", mutates_args=())
def finish(tensors: Sequence[Tensor], plan: Sequence[int]) -> list[Tensor]:
    """Return what `Gradients.finish` does, by torch's operations."""
    return carry_out(tensors, plan, Form(partial(by_torch, unfold=_unfolded), _rest))


finish.register_fake(outputs_of)


_sides: dict[torch.device, list[torch.cuda.Stream]] = {}


def _lanes(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Return streams beside the current one, the same in every call."""
    own = _sides.setdefault(device, [])
    own += [torch.cuda.Stream(device) for _ in range(count - len(own))]
    return own[:count]


def _end(job: Job) -> None:
    for _ in job:
        pass


def _deal(device: torch.device, work: Work, others: list[list[Job]]) -> None:
    """Enqueue all jobs on streams beside each other, which the current one waits for; what is folded, and each of the
    lists of others, has a stream of its own.

    A large product has nearly as many programs as a GPU has processors. Where each of them takes a processor for
    itself, beside other kernels it took up to twice as long (H200). Then the first steps of the rest come before all
    large ones, those that take longest first; else the large ones do.
    """
    large, folded, small, beside_large = work
    main = torch.cuda.current_stream(device)
    lanes = _lanes(device, len(others) + 2)
    for lane in lanes:
        lane.wait_stream(main)
    own, beside, *theirs = lanes
    dealt = [(own, job) for job in folded]
    dealt += [(beside if large or turn % 2 else main, job) for turn, job in enumerate(small)]
    dealt += [(lane, job) for lane, jobs in zip(theirs, others, strict=True) for job in jobs]
    first = [(main, job) for job in large]
    if large and not beside_large:
        firsts = dict[torch.cuda.Stream, Job]()
        for lane, job in dealt:
            firsts.setdefault(lane, job)
        for lane, job in firsts.items():
            with torch.cuda.stream(lane):
                next(job, None)
        for lane in firsts:
            main.wait_stream(lane)
        dealt, first = first, dealt
    for lane, job in [*first, *dealt]:
        with torch.cuda.stream(lane):
            _end(job)
    for lane in lanes:
        main.wait_stream(lane)  # whoever frees a tensor from now on does so behind what reads it


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the batched product in float32."""
    if not left.is_cuda:
        out.copy_(full_product(left, right))
    elif left.dtype == torch.float32:
        torch.bmm(left, right, out=out)
    else:
        torch.ops.aten.bmm.dtype_out(left, right, torch.float32, out=out)


def is_small(given: Product) -> bool:
    """Return whether a product leaves much of a GPU idle."""
    return given.above.shape[0] * given.above.shape[2] * given.source.shape[2] <= SMALL


Unfold = Callable[[Tensor, Sequence[int], Tensor, Embedding], None]
"""Writes `Embedding.gradients` to their places in the flat gradient, given those and the product (M, d, I filled up)
that they come from."""


def by_torch(
    flat: Tensor, given: Sequence[Product], embeddings: Sequence[tuple[list[int], Embedding]], unfold: Unfold
) -> Work:
    """Do `Form.products` with a product of torch's for each."""
    jobs = [(is_small(each), _multiply(flat, each)) for each in given]
    folded = [_unfold(flat, starts, each, unfold) for starts, each in embeddings]
    # A head's product, made first and so the last, is followed by copies.
    return Work([job for small, job in jobs if not small], folded, [job for small, job in jobs if small][::-1])


def _multiply(flat: Tensor, given: Product) -> Job:
    """Write a product to the places of its weights, straight where it is one without columns that fill up."""
    members, height, width = given.above.shape[0], given.above.shape[2], given.source.shape[2]
    left, begin = given.above.transpose(1, 2), 0
    if given.whole:
        _product(left, given.source, _place(flat, given.places[0][0], (members, height, width)))
        return
    whole = flat.new_empty((members, height, width))
    _product(left, given.source, whole)
    yield
    for start, rows in given.places:
        _place(flat, start, (members, rows, width)).copy_(whole[:, begin : begin + rows])
        begin += rows


def _unfold(flat: Tensor, starts: Sequence[int], given: Embedding, unfold: Unfold) -> Job:
    """Write `Embedding.gradients` to their places."""
    folded = flat.new_empty((*given.weight.shape[:2], given.x.shape[-1]))
    _product(given.above.transpose(1, 2), given.x, folded)
    yield
    unfold(flat, starts, folded, given)


def _unfolded(flat: Tensor, starts: Sequence[int], folded: Tensor, given: Embedding) -> None:
    """Do an `Unfold`."""
    for start, grad in zip(starts, given.gradients(folded), strict=True):
        _place(flat, start, grad.shape).copy_(grad)


def _rest(outputs: Sequence[Tensor], rest: Rest) -> list[list[Job]]:
    """Do `Form.rest`."""
    flat, means, statistics = outputs
    others = [_copy(flat, rest.parts), _average(means, rest.figures), _pack(statistics, rest.moments)]
    return [[_add_up(flat, *total) for total in rest.totals], others]


def _add_up(flat: Tensor, start: int, width: int, values: Tensor) -> Job:
    """Write the sums over rows of the first columns to their place; those of many rows in two steps, as torch's own
    takes several times as long on a GPU."""
    yield
    if values.shape[1] % FOLD == 0:
        values = values.unflatten(1, (-1, FOLD)).sum(2)
    torch.sum(values[..., :width], 1, out=_place(flat, start, (values.shape[0], width)))


def _average(out: Tensor, figures: Tensor) -> Job:
    yield
    torch.mean(figures, 1, out=out)


def _pack(out: Tensor, moments: Moments) -> Job:
    """Write `Moments.packed`."""
    yield
    out.copy_(moments.packed())


def _copy(flat: Tensor, parts: Sequence[tuple[int, Tensor]]) -> Job:
    """Write each part (N,) to its place; those that lie behind each other by one copy."""
    yield
    order = sorted(parts, key=lambda part: part[0])
    while order:
        start, first = order.pop(0)
        run, end = [first], start + first.numel()
        while order and order[0][0] == end:
            run.append(order.pop(0)[1])
            end += run[-1].numel()
        if len(run) == 1:
            flat[start:end].copy_(first)
        else:
            torch.cat(run, out=flat[start:end])


def _place(flat: Tensor, start: int, shape: Sequence[int]) -> Tensor:
    return flat[start : start + math.prod(shape)].view(*shape)
