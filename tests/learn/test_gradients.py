"""The flat gradient: the same whether its parts are put together one by one or by the operation that takes all."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.gradients import SMALL, Gradients, _gather
from tickgraph.learn.networks import Actor, Critic
from tickgraph.learn.storage import Storage, declare, flatten
from tickgraph.learn.trunk import _in_halves

ROWS = 6
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu])]


def storage_of(network: str, device: str) -> Storage:
    seed = torch.Generator().manual_seed(0)
    made = Critic(5, 2, 8, 2, 11, seed) if network == "critic" else Actor(5, 2, 8, 2, seed)
    return declare(made, Arena(device), "net", "a gradient")


def filled_in(grads: Gradients, storage: Storage, dtype: torch.dtype) -> torch.Tensor:
    """Return the flat gradient of factors and parts, the same in every call; every other weight is a product."""
    torch.manual_seed(0)
    for index, span in enumerate(storage.spans):
        *members, out, width = (
            (1, *span.shape) if len(span.shape) == 2 else span.shape if len(span.shape) > 2 else (1, 1, 1)
        )
        if "weight" in span.name and index % 2:
            factors = [torch.randn(*members, ROWS, size).to(storage.parameters.device, dtype) for size in (out, width)]
            grads.product(span.name, *factors)
        else:
            grads[span.name] = torch.randn(span.shape).to(storage.parameters.device)
    return grads.flat()


def skip_without(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", ["critic", "actor"])
def test_one_operation_puts_the_same_together(network, dtype, device):
    skip_without(device)
    storage = storage_of(network, device)
    one, each = (filled_in(Gradients(storage, form), storage, dtype) for form in (None, flatten))
    assert one.dtype == torch.float32 and one.shape == storage.parameters.shape
    torch.testing.assert_close(one, each, rtol=1e-5, atol=1e-6)
    assert torch.equal(one, filled_in(Gradients(storage, None), storage, dtype)), "a run repeats"


@pytest.mark.parametrize("form", [None, flatten])
def test_a_gradient_that_is_missing_or_there_twice_is_an_error(form):
    storage = storage_of("actor", "cpu")
    grads = Gradients(storage, form)
    filled_in(grads, storage, torch.float32)
    name, factors = grads.factors.popitem()
    with pytest.raises(ValueError, match=f"of {len(storage.spans)} parameters"):
        grads.flat()
    grads.product(name, *factors)
    assert grads.flat().isfinite().all()
    grads[name] = torch.zeros(1)
    with pytest.raises(ValueError, match=f"of {len(storage.spans)} parameters"):
        grads.flat()


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_all_sizes_and_parts_between_them(device):
    """Beside each other and not, larger than what is dealt to streams and smaller, in any order."""
    skip_without(device)
    torch.manual_seed(0)
    large = (1, 4, SMALL // 256 + 1, 256)
    shapes = [(1, 4, 3, 5), (2, 4, 2, 2), large]  # members, rows, out, in
    above = [torch.randn(m, r, out, device=device) for m, r, out, _ in shapes]
    source = [torch.randn(m, r, width, device=device) for m, r, _, width in shapes]
    parts = [torch.randn(size, device=device) for size in (4, 7, 1, 3)]
    pieces = [
        parts[1],
        above[0].mT @ source[0],
        parts[3],
        parts[0],
        above[2].mT @ source[2],
        above[1].mT @ source[1],
        parts[2],
    ]
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + piece.numel())
    products, places = [starts[1], starts[5], starts[4]], [starts[3], starts[0], starts[6], starts[2]]
    args = (above, source, products, parts, places, starts[-1])
    torch.testing.assert_close(_gather(*args), flatten(pieces), rtol=1e-4, atol=1e-4)
    torch.library.opcheck(_gather, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_halves_is_the_product(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6, 3).to(dtype), torch.randn(4, 5, 3).to(dtype)
    assert torch.equal(_in_halves(x, weight), torch.bmm(x, weight.transpose(1, 2)))
    torch.library.opcheck(_in_halves, (x, weight), test_utils=("test_schema", "test_faketensor"))
