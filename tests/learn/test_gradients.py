"""What gathers a backward pass's gradients; the branch on which products run beside it."""

import pytest
import torch
from objective_rig import made

from tickgraph.learn import gradients
from tickgraph.learn.gradients import Gradients, GradientsBeside
from tickgraph.learn.storage import flatten

DELAY = 50_000_000  # cycles of a GPU, some 30 ms


def gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


def gathered(device: str, beside: bool, busy=lambda: None, late=lambda: None):
    """Return the flat gradient of made-up factors and parts; `busy` runs before the end, `late` before a product."""
    learner = made(1)
    storage, made_up = learner.critic_storage, torch.Generator().manual_seed(1)
    place = torch.full_like(storage.parameters, torch.nan, device=device)
    grads = GradientsBeside(storage, place) if beside else Gradients(storage, flatten)
    for span in storage.spans:
        if ".blocks." in span.name and span.name.endswith("weight"):
            members, out, width = span.shape
            above, source = (torch.randn(members, 7, size, generator=made_up).to(device) for size in (out, width))
            late()
            grads.product(span.name, above, source)
            del above, source  # whoever starts a product keeps nothing of it
            for _ in range(3):  # and what is allocated now may lie where they were
                torch.full((members, 7, out), torch.nan, device=device)
        else:
            grads[span.name] = torch.randn(span.shape, generator=made_up).to(device)
    busy()
    flat = grads.flat()
    assert not beside or flat is place
    return flat.clone()


def test_beside_or_in_line_is_the_same():
    assert torch.equal(gathered("cpu", True), gathered("cpu", False))


@gpu
def test_the_end_waits_for_the_products_and_they_for_their_factors():
    """Whichever stream is held up, and whatever is allocated meanwhile."""
    device = torch.device("cuda", torch.cuda.current_device())
    wanted = gathered("cuda", False)

    def hold_up_branch() -> None:
        with torch.cuda.stream(gradients._side(device)):
            torch.cuda._sleep(DELAY)

    def hold_up_all() -> None:
        torch.cuda._sleep(DELAY)

    for busy, late in ((hold_up_branch, hold_up_branch), (hold_up_all, hold_up_all), (lambda: None, hold_up_all)):
        assert torch.equal(gathered("cuda", True, busy, late), wanted)


@gpu
def test_products_are_a_branch_of_a_graph():
    """Captured, replayed on new numbers, with no kernel outside of the graph."""
    storage = made(1).critic_storage
    span = next(span for span in storage.spans if ".blocks." in span.name and span.name.endswith("weight"))
    members, out, width = span.shape
    above, source = (torch.randn(members, 9, size, device="cuda") for size in (out, width))
    place = torch.zeros_like(storage.parameters, device="cuda")

    def run() -> None:
        grads = GradientsBeside(storage, place)
        grads.product(span.name, above, source)
        grads["head_bias"] = source.sum((0, 1))[:1]
        grads.flat()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # once before, for what cuBLAS sets up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    for _ in range(3):
        above.normal_()
        source.normal_()
        graph.replay()
        torch.testing.assert_close(span.of(place), torch.bmm(above.transpose(1, 2), source))
