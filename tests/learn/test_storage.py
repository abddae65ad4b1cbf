"""Flat storage: modules are views of it, and projections put every row and pair on its sphere."""

import math

import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.networks import Critic, UnitBatchNorm, UnitLinear, UnitRMSNorm
from tickgraph.learn.storage import bind, declare


def critic(seed: int = 0) -> Critic:
    return Critic(5, 2, 4, 2, 7, torch.Generator().manual_seed(seed))


def test_modules_are_views_of_the_arena():
    arena, network = Arena("cpu"), critic()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    storage = declare(network, arena, "critic", "a test")
    assert {name for name in before} == set(network.state_dict())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert arena["critic/parameters"].numel() == sum(p.numel() for p in network.parameters())
    storage.parameters.fill_(2.0)
    storage.statistics[0].fill_(3.0)
    assert all((p == 2.0).all() for p in network.parameters())
    assert all((b == 3.0).all() for name, b in network.named_buffers() if name.endswith("mean"))
    assert all((b == 1.0).all() for name, b in network.named_buffers() if name.endswith("var"))


def test_every_parameter_has_its_own_place():
    storage = declare(critic(), Arena("cpu"), "critic", "a test")
    used = torch.zeros(storage.parameters.numel(), dtype=torch.int64)
    for span in storage.spans:
        span.of(used).add_(1)
    assert used.eq(1).all()


def test_bound_networks_share_numbers_but_not_gradients():
    network, frozen = critic(), critic(1)
    storage = declare(network, Arena("cpu"), "critic", "a test")
    bind(frozen, storage, trainable=False)
    storage.parameters.normal_()
    for mine, theirs in zip(network.parameters(), frozen.parameters(), strict=True):
        assert torch.equal(mine, theirs) and mine.requires_grad and not theirs.requires_grad


def test_projection_puts_everything_on_its_sphere():
    network = critic()
    storage = declare(network, Arena("cpu"), "critic", "a test")
    torch.manual_seed(0)
    raw = torch.randn_like(storage.parameters)
    storage.parameters.copy_(storage.projection(raw))
    named = storage.named(raw)
    for path, module in network.named_modules():
        if isinstance(module, UnitLinear):
            given = named[f"{path}.weight"]
            assert torch.allclose(module.weight, given / given.norm(dim=-1, keepdim=True))
            torch.testing.assert_close(module.weight.norm(dim=-1), torch.ones(module.weight.shape[:-1]))
        elif isinstance(module, UnitBatchNorm):
            norm = (module.gain.square().sum(-1) + module.offset.square().sum(-1)).sqrt()
            torch.testing.assert_close(norm, torch.full((2,), math.sqrt(module.gain.shape[-1])))
            torch.testing.assert_close(module.gain / named[f"{path}.gain"], module.offset / named[f"{path}.offset"])
        elif isinstance(module, UnitRMSNorm):
            torch.testing.assert_close(module.gain.norm(dim=-1), torch.full((2,), 2.0))
    assert torch.equal(network.head_bias, named["head_bias"])


def test_projection_survives_a_row_of_zeros():
    storage = declare(critic(), Arena("cpu"), "critic", "a test")
    assert storage.projection(torch.zeros_like(storage.parameters)).isfinite().all()
