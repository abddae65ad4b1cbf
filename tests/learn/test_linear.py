"""Products of SAC's layers in the form for a GPU, filled up and member by member, against plain ones."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from test_sac import Rig
from torch.utils._python_dispatch import TorchDispatchMode

from tickgraph.learn import linear
from tickgraph.learn.mlp import Linear, SacActor

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default)
ROWS = 8


class Widths(TorchDispatchMode):
    """Notes the widths of the matrices of every product, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS:
            self.seen |= {size for value in args[-2:] for size in value.shape[-2:]}
        return func(*args, **(kwargs or {}))


@pytest.fixture
def filling(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return what says whether products are filled up from here on."""
    return lambda on: monkeypatch.setattr(linear, "suits_gpu", lambda x: on)


@pytest.mark.parametrize(("inputs", "outputs"), [(13, 21), (16, 21), (13, 24), (16, 24)])
@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_a_filled_product_is_the_plain_one(inputs, outputs, members, shared, filling):
    if members is None and not shared:
        pytest.skip("a single layer has rows of its own")
    filling(True)
    generator = torch.Generator().manual_seed(1)
    layer = Linear(inputs, outputs, members, generator)
    assert layer.weight.shape[-2:] == (outputs, inputs)
    x = torch.randn(*(() if shared else (members,)), ROWS, inputs, generator=generator).requires_grad_()
    pull = torch.randn(*((members,) if members else ()), ROWS, outputs, generator=generator)
    with Widths() as widths:
        y = layer(x)
        grads = torch.autograd.grad(y, (x, layer.weight, layer.bias), pull)
    assert {width % 8 for width in widths.seen} == {0}, "rows of every factor begin at a multiple of eight"

    a, w, b, g = (value.detach().double().numpy() for value in (x, layer.weight, layer.bias, pull))
    wanted = a @ np.swapaxes(w, -1, -2) + np.expand_dims(b, -2)
    to_x, to_weight = g @ w, np.swapaxes(g, -1, -2) @ a
    to_x = to_x.sum(0) if members and shared else to_x
    assert y.shape == wanted.shape
    for mine, theirs in zip((y, *grads), (wanted, to_x, to_weight, g.sum(-2)), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=1e-5, atol=2e-6)


def test_nothing_is_filled_on_a_cpu():
    layer = Linear(13, 21, None, torch.Generator().manual_seed(1))
    with Widths() as widths:
        layer(torch.ones(ROWS, 13))
    assert widths.seen == {ROWS, 13, 21}


def test_the_heads_of_the_actor_are_the_layers_of_their_names():
    generator = torch.Generator().manual_seed(1)
    actor = SacActor(5, 3, 16, generator)
    with torch.no_grad():
        for value in (*actor.mean.parameters(), *actor.raw.parameters()):
            value.normal_(generator=generator)
    obs = torch.randn(ROWS, 5, generator=generator)
    mean, log_std = actor(obs)
    features = actor.trunk(obs)
    torch.testing.assert_close(mean, actor.mean(features), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_std, -2.5 + 2.5 * torch.tanh(actor.raw(features)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_updates_of_filled_networks_are_the_plain_ones(mode, filling):
    plain, widths = Rig(updates=2), Widths()
    with widths:
        plain.cycle()
    assert {width % 8 for width in widths.seen} != {0}
    filling(True)
    filled, widths = Rig(updates=2, mode=mode), Widths()
    with widths if mode == "eager" else nullcontext():  # a mode that torch does not compile in
        filled.cycle()
    assert {width % 8 for width in widths.seen} <= {0}
    plain, filled = plain.numbers(), filled.numbers()
    assert list(plain) == list(filled)
    for name, value in plain.items():
        torch.testing.assert_close(filled[name], value, rtol=1e-6, atol=1e-6, msg=name)


def test_filled_products_in_bfloat16(filling):
    filling(True)
    generator = torch.Generator().manual_seed(1)
    for members in (None, 2):
        layer, x = Linear(13, 21, members, generator), torch.randn(ROWS, 13, generator=generator)
        with Widths() as widths, torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        assert {width % 8 for width in widths.seen} == {0}
        wanted = (x @ layer.weight.transpose(-1, -2) + layer.bias.unsqueeze(-2)).detach()
        assert not torch.equal(y.float(), wanted), "rounded to bfloat16"
        torch.testing.assert_close(y.float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_weights_member_by_member(shared):
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(2, ROWS, 3, generator=generator)
    x = torch.randn(*(() if shared else (2,)), ROWS, 5, generator=generator)
    wanted = np.swapaxes(grad.double().numpy(), 1, 2) @ x.double().numpy()
    np.testing.assert_allclose(linear.weight_gradient(grad, x).numpy(), wanted, rtol=1e-5, atol=1e-6)
