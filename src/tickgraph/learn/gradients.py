"""What a backward pass puts off: gradients of a network's parameters as one flat tensor, and what goes with them.

Nothing in a backward pass reads the gradients of weights, nor sums over rows, nor figures and statistics. So they are
taken last, in one operation, each straight to its place. On a GPU that deals them to a few streams, in a graph to
branches, as most of them alone leave a GPU idle; large products follow each other on the caller's.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tickgraph.learn.networks import UnitBatchNorm
from tickgraph.learn.storage import Span, Storage

EPS = UnitBatchNorm.eps
SMALL = 1 << 17
"""Elements of a product up to which it leaves much of a GPU idle: 32 tiles of 64 by 64."""
FOLD = 32
"""Rows that are summed first."""


def full_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the batched product in float32; of bfloat16 factors too, whose sums are not rounded."""
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


class Embedding(NamedTuple):
    """What the gradients of an embedding come from, into which gain and offset of its input norm are folded."""

    above: Tensor
    """(M, R, d) gradient of its result."""
    x: Tensor
    """(M, R, I filled up) normalised input, behind whose I columns is one of ones."""
    weight: Tensor
    """(M, d, I) float32."""
    gain: Tensor
    offset: Tensor
    """(M, I) float32."""

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return those of weight (M, d, I), gain and offset (M, I)."""
        folded, width = full_product(self.above.transpose(1, 2), self.x), self.weight.shape[-1]
        to_folded, to_bias = folded[..., :width], folded[..., width : width + 1]
        to_weight = to_folded * self.gain.unsqueeze(1) + to_bias * self.offset.unsqueeze(1)
        return to_weight, (to_folded * self.weight).sum(1), (to_bias * self.weight).sum(1)


class Moments(NamedTuple):
    """Statistics of a forward pass as its norms leave them."""

    means: list[Tensor]
    """Of each norm, any shape."""
    variances: list[Tensor]
    """Unbiased, of the first norms."""
    scales: list[Tensor]
    """1 / sqrt(biased variance + EPS) of the others."""
    rows: int

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.means, *self.variances, *self.scales]

    def packed(self) -> Tensor:
        """Return them as (2, S), means and unbiased variances, laid out like `Storage.statistics`."""
        means, first, scales = (
            [value.reshape(-1) for value in part] for part in (self.means, self.variances, self.scales)
        )
        others = (torch.cat(scales).square().reciprocal() - EPS) * (self.rows / (self.rows - 1))
        return torch.stack((torch.cat(means), torch.cat((*first, others))))


class Gradients:
    """The gradients of a network's parameters, (M, ...) each.

    Args:
        storage: the network's layout.
        flatten: what lays tensors out flat, or None to do all that is put off in one operation.
    """

    def __init__(self, storage: Storage, flatten: Callable[[Sequence[Tensor]], Tensor] | None) -> None:
        self.storage, self.flatten = storage, flatten
        self.named: dict[str, Tensor] = {}
        self.products: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        self.totals: dict[str, Tensor] = {}
        self.embeddings: dict[tuple[str, str, str], Embedding] = {}

    def __setitem__(self, name: str, grad: Tensor) -> None:
        self.named[name] = grad

    def product(self, names: str | tuple[str, ...], above: Tensor, source: Tensor) -> None:
        """Set the gradients of weights that read the same, one behind the other, to above^T source.

        Args:
            names: of the weights.
            above: (M, R, out) gradients of their results; columns behind those fill up.
            source: (M, R, in) what they read.
        """
        self.products[(names,) if isinstance(names, str) else names] = (above, source)

    def total(self, name: str, values: Tensor) -> None:
        """Set a gradient (M, C) to the sums over rows of values (M, R, C or more) float32."""
        self.totals[name] = values

    def embedding(self, names: tuple[str, str, str], given: Embedding) -> None:
        """Set the gradients of an embedding's weight, and of its input norm's gain and offset."""
        self.embeddings[names] = given

    def finish(self, figures: Tensor, moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
        """Return all of them, (P,) float32, laid out like the parameters, and what goes with them.

        Args:
            figures: (F, R) float32.
            moments: of the forward pass.

        Returns:
            The gradient, the figures' means over rows (F,), and `Moments.packed`.

        Raises:
            ValueError: a gradient is missing, or set more than once; its place would hold what lay there before.
        """
        spans = {span.name: span for span in self.storage.spans}
        put_off = [name for names in (*self.products, *self.embeddings) for name in names]
        found = [*self.named, *self.totals, *put_off]
        if sorted(found) != sorted(spans):
            raise ValueError(f"{len(found)} gradients of {len(spans)} parameters; each needs one")
        if self.flatten is not None:
            made = self._made(spans)
            return self.flatten([made[name] for name in spans]), figures.mean(1), moments.packed()
        # Products whose factors were made last come first: they are nearest in the caches.
        products = list(reversed(self.products.items()))
        plan = Plan(
            self.storage.parameters.numel(),
            [[(spans[name].start, _rows(spans[name])) for name in names] for names, _ in products],
            [[spans[name].start for name in names] for names in self.embeddings],
            [(spans[name].start, spans[name].shape[-1]) for name in self.totals],
            [spans[name].start for name in self.named],
            [len(moments.means), len(moments.variances), moments.rows],
        )
        tensors = [factor for _, factors in products for factor in factors]
        tensors += [value for given in self.embeddings.values() for value in given]
        tensors += [*self.totals.values(), *(grad.reshape(-1) for grad in self.named.values()), figures]
        grad, means, statistics = _finish([*tensors, *moments.tensors], plan.numbers())
        return grad, means, statistics

    def _made(self, spans: dict[str, Span]) -> dict[str, Tensor]:
        """Return all gradients, one by one."""
        made = dict(self.named)
        for names, (above, source) in self.products.items():
            heights = [_rows(spans[name]) for name in names]
            whole = full_product(above.transpose(1, 2), source)[:, : sum(heights)]
            made |= dict(zip(names, whole.split(heights, dim=1), strict=True))
        for names, given in self.embeddings.items():
            made |= dict(zip(names, given.gradients(), strict=True))
        return made | {name: values.sum(1)[..., : spans[name].shape[-1]] for name, values in self.totals.items()}


def _rows(span: Span) -> int:
    """Return the rows of a weight (M, rows, columns) or (rows, columns)."""
    return span.shape[-2]


class Plan(NamedTuple):
    """What `_finish` does with its tensors; they follow each other as the fields do, the figures before the last."""

    size: int
    """Of the flat gradient."""
    products: list[list[tuple[int, int]]]
    """Of each, which is two tensors, the places of its weights and their rows."""
    embeddings: list[list[int]]
    """Of each, which is an `Embedding`, the places of weight, gain and offset."""
    totals: list[tuple[int, int]]
    """Place and columns of each."""
    parts: list[int]
    """The place of each tensor that is copied."""
    moments: list[int]
    """How many tensors are means and how many variances, and rows."""

    def numbers(self) -> list[int]:
        """Return it as one list, which an operation can be given."""
        made = [self.size, len(self.products)]
        for weights in self.products:
            made += [len(weights), *(number for weight in weights for number in weight)]
        made += [len(self.embeddings), *(start for starts in self.embeddings for start in starts)]
        made += [len(self.totals), *(number for total in self.totals for number in total)]
        return [*made, len(self.parts), *self.parts, *self.moments]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Self:
        """Return the plan whose `numbers` these are."""
        rest = iter(numbers)

        def pairs() -> list[tuple[int, int]]:
            return [(next(rest), next(rest)) for _ in range(next(rest))]

        size, products = next(rest), [pairs() for _ in range(next(rest))]
        embeddings = [[next(rest) for _ in range(3)] for _ in range(next(rest))]
        return cls(size, products, embeddings, pairs(), [next(rest) for _ in range(next(rest))], list(rest))

    def moments_of(self, tensors: Sequence[Tensor]) -> Moments:
        """Return the moments, which are the last tensors."""
        means, variances, rows = self.moments
        own = list(tensors[self.moments_begin :])
        return Moments(own[:means], own[means : means + variances], own[means + variances :], rows)

    @property
    def moments_begin(self) -> int:
        """Return how many tensors are before the moments."""
        count = 2 * len(self.products) + len(Embedding._fields) * len(self.embeddings)
        return count + len(self.totals) + len(self.parts) + 1


_sides: dict[torch.device, list[torch.cuda.Stream]] = {}


def _lanes(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Return streams beside the current one, the same in every call."""
    own = _sides.setdefault(device, [])
    own += [torch.cuda.Stream(device) for _ in range(count - len(own))]
    return own[:count]


@torch.library.custom_op("tickgraph::finish_gradients", mutates_args=())
def _finish(tensors: Sequence[Tensor], plan: Sequence[int]) -> list[Tensor]:
    """Return what `Gradients.finish` does."""
    how, given = Plan.of(plan), iter(tensors)
    outputs = _outputs(tensors, plan)
    flat, means, statistics = outputs
    large, small = list[Job](), list[Job]()
    for places in how.products:
        above, source = next(given), next(given)
        size = above.shape[0] * above.shape[2] * source.shape[2]
        (small if size <= SMALL else large).append(_multiply(flat, places, above, source))
    folded = [_unfold(flat, starts, Embedding(*(next(given) for _ in Embedding._fields))) for starts in how.embeddings]
    sums = [_add_up(flat, start, width, next(given)) for start, width in how.totals]
    rest = [
        _copy(flat, [next(given) for _ in how.parts], how.parts),
        _average(means, next(given)),
        _pack(statistics, how.moments_of(tensors)),
    ]
    if flat.is_cuda:
        _deal(flat.device, large, small, [folded, sums, rest])
    else:
        for job in (*large, *small, *folded, *sums, *rest):
            _end(job)
    return outputs


def _outputs(tensors: Sequence[Tensor], plan: Sequence[int]) -> list[Tensor]:
    how = Plan.of(plan)
    figures, moments = tensors[how.moments_begin - 1], how.moments_of(tensors)
    width = sum(mean.numel() for mean in moments.means)
    sizes: list[tuple[int, ...]] = [(how.size,), (figures.shape[0],), (2, width)]
    return [figures.new_empty(size) for size in sizes]


_finish.register_fake(_outputs)


Job = Iterator[None]
"""Work to enqueue, in steps: what needs a GPU's matrix units, if anything does, is the first."""


def _end(job: Job) -> None:
    for _ in job:
        pass


def _deal(device: torch.device, large: list[Job], small: list[Job], others: list[list[Job]]) -> None:
    """Enqueue all jobs on streams beside each other, which the current one waits for; each of the lists of others has a
    stream of its own.

    A large product has as many programs as a GPU has processors and leaves no room on them for those of another
    product: beside one it takes twice as long. So the first steps of small ones and others come before all large ones.
    """
    main = torch.cuda.current_stream(device)
    lanes = _lanes(device, len(others) + 1)
    for lane in lanes:
        lane.wait_stream(main)
    own, *theirs = lanes
    dealt = [(lane, job) for lane, jobs in zip(theirs, others, strict=True) for job in jobs]
    dealt += [(own if large or turn % 2 else main, job) for turn, job in enumerate(small)]
    firsts = {lane: job for lane, job in reversed(dealt)} if large else {}
    for lane, job in firsts.items():
        with torch.cuda.stream(lane):
            next(job, None)
    for lane in firsts:
        main.wait_stream(lane)
    for lane, job in [*dealt, *((main, job) for job in large)]:
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


def _multiply(flat: Tensor, places: Sequence[Sequence[int]], above: Tensor, source: Tensor) -> Job:
    """Write above^T source to the places of its weights, straight where it is one without columns that fill up."""
    members, height, width = above.shape[0], above.shape[2], source.shape[2]
    left, begin = above.transpose(1, 2), 0
    if len(places) == 1 and places[0][1] == height:
        _product(left, source, _place(flat, places[0][0], (members, height, width)))
        return
    whole = flat.new_empty((members, height, width))
    _product(left, source, whole)
    yield
    for start, rows in places:
        _place(flat, start, (members, rows, width)).copy_(whole[:, begin : begin + rows])
        begin += rows


def _unfold(flat: Tensor, starts: Sequence[int], given: Embedding) -> Job:
    """Write `Embedding.gradients` to their places."""
    shape = given.weight.shape
    folded = flat.new_empty((shape[0], shape[1], given.x.shape[-1]))
    _product(given.above.transpose(1, 2), given.x, folded)
    yield
    to_folded, to_bias = folded[..., : shape[2]], folded[..., shape[2] : shape[2] + 1]
    to_weight, *sums = (
        _place(flat, start, size) for start, size in zip(starts, (shape, *[shape[::2]] * 2), strict=True)
    )
    torch.mul(to_folded, given.gain.unsqueeze(1), out=to_weight).addcmul_(to_bias, given.offset.unsqueeze(1))
    for factor, out in zip((to_folded, to_bias), sums, strict=True):
        torch.sum(factor * given.weight, 1, out=out)


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
    means, variances, scales = (
        [value.reshape(-1) for value in part] for part in (moments.means, moments.variances, moments.scales)
    )
    torch.cat(means, out=out[0])
    torch.cat([*variances, *scales], out=out[1])
    others = out[1, sum(value.numel() for value in variances) :]
    others.pow_(-2).sub_(EPS).mul_(moments.rows / (moments.rows - 1))


def _place(flat: Tensor, start: int, shape: Sequence[int]) -> Tensor:
    return flat[start : start + math.prod(shape)].view(*shape)


def _copy(flat: Tensor, parts: Sequence[Tensor], places: Sequence[int]) -> Job:
    """Write each part (N,) to its place; those that lie behind each other by one copy."""
    yield
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
