"""The flat gradient: the same whether its parts are put together one by one or by the operation that takes all."""

import importlib.util

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn import put_off
from tickgraph.learn.gradients import Gradients, Moments, Operation, Plan
from tickgraph.learn.kernel_check import fill_in
from tickgraph.learn.networks import Actor, Critic
from tickgraph.learn.put_off import SMALL, finish
from tickgraph.learn.storage import Storage, declare, flatten
from tickgraph.learn.trunk import _in_halves

ROWS = 6
RUNS = [("cpu", "torch"), *(pytest.param("cuda", form, marks=[pytest.mark.gpu]) for form in ("torch", "triton"))]
"""Devices and forms; on a CPU `kernel_cases.py` has the kernels, by Triton's interpreter."""


def storage_of(network: str, device: str) -> Storage:
    seed = torch.Generator().manual_seed(0)
    made = Critic(5, 2, 8, 2, 11, seed) if network == "critic" else Actor(5, 2, 8, 2, seed)
    return declare(made, Arena(device), "net", "a gradient")


def finished(storage: Storage, operation, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    grads = Gradients(storage, operation)
    return grads.finish(*fill_in(grads, ROWS, dtype))


def operation_of(device: str, form: str) -> Operation:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if form == "torch":
        return finish
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    from tickgraph.learn.kernels import finish as kernel

    return kernel.finish


@pytest.mark.parametrize(("device", "form"), RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", ["critic", "actor"])
def test_one_operation_puts_the_same_together(network, dtype, device, form):
    operation, storage = operation_of(device, form), storage_of(network, device)
    one, each = (finished(storage, how, dtype) for how in (operation, None))
    assert one[0].dtype == torch.float32 and one[0].shape == storage.parameters.shape
    for mine, wanted in zip(one, each, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(*pair) for pair in zip(one, finished(storage, operation, dtype), strict=True)), (
        "a run repeats"
    )


def test_what_is_put_off_is_what_it_says():
    storage = storage_of("actor", "cpu")
    grads = Gradients(storage, finish)
    figures, moments = fill_in(grads, ROWS, torch.float32)
    flat, means, statistics = grads.finish(figures, moments)
    named = storage.named(flat)
    both = ("mean.weight", "raw.weight")
    above, source = grads.products[both]
    wanted = above[0].T @ source[0]
    torch.testing.assert_close(torch.cat([named[name] for name in both]), wanted[:4])
    torch.testing.assert_close(named["raw_bias"], grads.totals["raw_bias"][0].sum(0)[:2])
    # The embedding by autograd: x hat times gain plus offset, times the weight.
    (((weight, gain, offset), given),) = grads.embeddings.items()
    own = [value[0].clone().requires_grad_() for value in given[2:]]
    width = own[0].shape[1]
    xhat, ones = given.x[0, :, :width], given.x[0, :, width]
    result = xhat @ (own[0] * own[1]).T + ones[:, None] * (own[0] @ own[2])
    for name, wanted in zip((weight, gain, offset), torch.autograd.grad(result, own, given.above[0]), strict=True):
        torch.testing.assert_close(named[name], wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(means, figures.mean(1))
    every = [torch.cat([value.flatten() for value in part]) for part in moments[:3]]
    assert torch.equal(statistics[0], every[0])
    biased = every[2].double().pow(-2) - 1e-5
    unbiased = torch.cat((every[1], biased * 2 * ROWS / (2 * ROWS - 1)))
    torch.testing.assert_close(statistics[1].double(), unbiased, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operation", [None, finish])
def test_a_gradient_that_is_missing_or_there_twice_is_an_error(operation):
    storage = storage_of("actor", "cpu")
    grads = Gradients(storage, operation)
    rest = fill_in(grads, ROWS, torch.float32)
    name, factors = grads.products.popitem()
    with pytest.raises(ValueError, match=f"of {len(storage.spans)} parameters"):
        grads.finish(*rest)
    grads.product(name, *factors)
    assert grads.finish(*rest)[0].isfinite().all()
    grads[name[0]] = torch.zeros(1)
    with pytest.raises(ValueError, match=f"of {len(storage.spans)} parameters"):
        grads.finish(*rest)


@pytest.mark.parametrize(("device", "form"), RUNS)
def test_products_of_all_sizes_and_parts_between_them(device, form):
    """Beside each other and not, larger than what is dealt to streams and smaller, in any order."""
    operation = operation_of(device, form)
    torch.manual_seed(0)
    large = (1, 4, SMALL // 256 + 1, 256)
    shapes = [(1, 4, 3, 5), (2, 4, 2, 2), large]  # members, rows, out, in
    factors = [[torch.randn(m, r, size, device=device) for size in (out, width)] for m, r, out, width in shapes]
    parts = [torch.randn(size, device=device) for size in (4, 7, 1, 3)]
    made = [above.mT @ source for above, source in factors]
    pieces = [parts[1], made[0], parts[3], parts[0], made[2], made[1], parts[2]]
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + piece.numel())
    products = [[(starts[at], out)] for at, (_, _, out, _) in zip((1, 5, 4), shapes, strict=True)]
    places, own = [starts[3], starts[0], starts[6], starts[2]], [torch.rand(6, device=device) + 0.5 for _ in range(8)]
    moments = Moments(own[:4], own[4:6], own[6:], 16)
    plan = Plan(starts[-1], products, [], [], places, [4, 2, 16]).numbers()
    figures = torch.randn(2, 5, device=device)
    tensors = [*(value for pair in factors for value in pair), *parts, figures, *moments.tensors]
    flat, means, statistics = operation(tensors, plan)
    torch.testing.assert_close(flat, flatten(pieces), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(means, figures.mean(1))
    torch.testing.assert_close(statistics, moments.packed())
    torch.library.opcheck(operation, (tensors, plan), test_utils=("test_schema", "test_faketensor"))


class Lane:
    """A stream that keeps what is enqueued on it and on streams, in their order."""

    now: "Lane"

    def __init__(self, name: str, seen: list[tuple[str, str]]) -> None:
        self.name, self.seen = name, seen

    def wait_stream(self, other: "Lane") -> None:
        self.seen.append((self.name, f"waits for {other.name}"))

    def __enter__(self) -> None:
        self.before, Lane.now = Lane.now, self

    def __exit__(self, *error: object) -> None:
        Lane.now = self.before


def dealt(monkeypatch, large: int, beside: bool) -> list[tuple[str, str]]:
    """Return (stream, what is enqueued on it), in their order: some large products, an embedding, a head and a rest."""
    seen: list[tuple[str, str]] = []
    main, *sides = (Lane(name, seen) for name in ("main", "a", "b", "c"))

    def job(name: str, steps: int):
        for step in range(steps):
            seen.append((Lane.now.name, f"{name} {step}"))
            if step < steps - 1:
                yield

    Lane.now = main
    monkeypatch.setattr(put_off, "_lanes", lambda device, count: sides[:count])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda lane: lane)
    first, *small = [job(f"large {i}", 1) for i in range(large)], [job("embed", 2)], [job("head", 2)]
    put_off._deal(torch.device("cuda"), put_off.Work(first, *small, beside), [[job("rest", 1)]])
    assert seen[:3] == [(name, "waits for main") for name in "abc"] and Lane.now is main
    assert seen[-3:] == [("main", f"waits for {name}") for name in "abc"]
    return seen


@pytest.mark.parametrize("large", [2, 0])
def test_large_products_come_behind_the_first_steps_of_all_others(monkeypatch, large):
    seen = dealt(monkeypatch, large, beside=False)
    found = {what: at for at, what in enumerate(seen)}
    assert len(found) == len(seen) - (3 if large else 0) and found["a", "embed 0"] < found["a", "embed 1"]
    if large:
        own = ("b", "head 0"), ("b", "head 1")
        firsts, waited = [("a", "embed 0"), own[0], ("c", "rest 0")], len(seen) - 3
        assert seen[3:6] == firsts, "what takes longest first"
        begun = [at for at, (lane, what) in enumerate(seen[:waited]) if lane == "main" and what.startswith("waits")]
        assert len(begun) == 3 and max(found[first] for first in firsts) < begun[0]
        assert begun[-1] < min(found[own[1]], found["a", "embed 1"], found["main", "large 0 0"])
        assert found["main", "large 0 0"] < found["main", "large 1 0"]
    else:
        assert ("main", "head 1") in found and ("c", "rest 0") in found


def test_large_products_that_leave_room_come_first_and_wait_for_nothing(monkeypatch):
    seen = dealt(monkeypatch, 2, beside=True)
    assert seen[3:5] == [("main", "large 0 0"), ("main", "large 1 0")]
    assert seen[5:-3] == [("a", "embed 0"), ("a", "embed 1"), ("b", "head 0"), ("b", "head 1"), ("c", "rest 0")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_halves_is_the_product(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6, 3).to(dtype), torch.randn(4, 5, 3).to(dtype)
    assert torch.equal(_in_halves(x, weight), torch.bmm(x, weight.transpose(1, 2)))
    torch.library.opcheck(_in_halves, (x, weight), test_utils=("test_schema", "test_faketensor"))


def test_a_plan_is_read_as_it_was_written():
    plan = Plan(99, [[(0, 3)], [(9, 2), (15, 4)]], [[20, 30, 40]], [(50, 2), (60, 3)], [70, 80], [4, 2, 16])
    assert Plan.of(plan.numbers()) == plan
    empty = Plan(1, [], [], [], [], [1, 1, 2])
    assert Plan.of(empty.numbers()) == empty
