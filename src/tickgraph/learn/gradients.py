"""What a backward pass puts off: gradients of a network's parameters as one flat tensor, and what goes with them.

Nothing in a backward pass reads the gradients of weights, nor sums over rows, nor figures and statistics. So they are
taken last, in one operation, each straight to its place (`put_off.py`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tickgraph.learn.networks import UnitBatchNorm
from tickgraph.learn.storage import Span, Storage, flatten

EPS = UnitBatchNorm.eps


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

    def folded(self) -> Tensor:
        """Return the product that the gradients are made of, (M, d, I filled up)."""
        return full_product(self.above.transpose(1, 2), self.x)

    def gradients(self, folded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return those of weight (M, d, I), gain and offset (M, I), from `folded`."""
        width = self.weight.shape[-1]
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


Operation = Callable[[Sequence[Tensor], Sequence[int]], list[Tensor]]
"""What does a plan, given as `Plan.numbers`, with its tensors, and returns what `Gradients.finish` does."""


class Gradients:
    """The gradients of a network's parameters, (M, ...) each.

    Args:
        storage: the network's layout.
        operation: what does all that is put off, or None to take gradients one by one and lay them out flat.
    """

    def __init__(self, storage: Storage, operation: Operation | None) -> None:
        self.storage, self.operation = storage, operation
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
            above: (M, R, out) gradients of their results. Columns behind those fill up: a product of 101 columns takes
                a GPU ten times as long as one of 104.
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
        if self.operation is None:
            made = self._made(spans)
            return flatten([made[name] for name in spans]), figures.mean(1), moments.packed()
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
        grad, means, statistics = self.operation([*tensors, *moments.tensors], plan.numbers())
        return grad, means, statistics

    def _made(self, spans: dict[str, Span]) -> dict[str, Tensor]:
        """Return all gradients, one by one."""
        made = dict(self.named)
        for names, (above, source) in self.products.items():
            heights = [_rows(spans[name]) for name in names]
            whole = full_product(above.transpose(1, 2), source)[:, : sum(heights)]
            made |= dict(zip(names, whole.split(heights, dim=1), strict=True))
        for names, given in self.embeddings.items():
            made |= dict(zip(names, given.gradients(given.folded()), strict=True))
        return made | {name: values.sum(1)[..., : spans[name].shape[-1]] for name, values in self.totals.items()}


def _rows(span: Span) -> int:
    """Return the rows of a weight (M, rows, columns) or (rows, columns)."""
    return span.shape[-2]


class Plan(NamedTuple):
    """What an `Operation` does; its tensors follow each other as the fields do, the figures before the last."""

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
