"""Layers and networks: shapes, parameter counts, and statistics against numbers computed another way."""

import math

import pytest
import torch

from tickgraph.learn.networks import Actor, Critic, Trunk, UnitBatchNorm, UnitLinear, UnitRMSNorm, sample_action


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_sizes_are_the_papers_for_the_g1_walk():
    actor = Actor(98, 29, 128, 2, generator())
    critic = Critic(101, 29, 256, 2, 101, generator())
    assert sum(p.numel() for p in actor.parameters()) == 285_054
    assert sum(p.numel() for p in critic.parameters()) == 2_226_898
    assert len(list(actor.parameters())) == 20
    assert len(list(critic.parameters())) == 18


def test_networks_return_the_rows_asked_for():
    actor, critic = Actor(5, 3, 8, 1, generator()), Critic(6, 3, 8, 1, 11, generator())
    mean, log_std = actor(torch.randn(10, 5), [], slice(4))
    assert mean.shape == log_std.shape == (4, 3)
    x = torch.randn(10, 9)
    assert critic(x, [], slice(4, None)).shape == (2, 6, 11)
    torch.testing.assert_close(critic(x, [], slice(4, None)), critic(x, [])[:, 4:])


def test_log_deviation_stays_between_its_bounds():
    actor = Actor(2, 1, 8, 1, generator())
    with torch.no_grad():
        actor.raw_bias.fill_(100.0)
        assert actor(torch.zeros(2, 2))[1].tolist() == [[2.0], [2.0]]
        actor.raw_bias.fill_(-100.0)
        assert actor(torch.zeros(2, 2))[1].tolist() == [[-10.0], [-10.0]]
        actor.raw_bias.zero_()
        actor.raw.weight.zero_()
        assert actor(torch.zeros(2, 2))[1].tolist() == [[-4.0], [-4.0]]


def test_start_is_orthogonal_and_depends_on_the_generator_alone():
    layer = UnitLinear(6, 4, 2, generator())
    for weight in layer.weight:
        torch.testing.assert_close(weight @ weight.T, torch.eye(4))
    assert not torch.equal(layer.weight[0], layer.weight[1])
    torch.manual_seed(1)
    assert torch.equal(layer.weight, UnitLinear(6, 4, 2, generator()).weight)


def test_batch_norm_normalises_by_biased_variance_and_reports_the_unbiased():
    norm = UnitBatchNorm(1, None)
    stats = []
    y = norm(torch.tensor([[1.0], [2.0], [3.0], [6.0]]), stats)
    # Mean 3, squared differences 4, 1, 0, 9: biased variance 3.5, unbiased 14/3.
    torch.testing.assert_close(y[:, 0], torch.tensor([-2.0, -1.0, 0.0, 3.0]) / math.sqrt(3.5 + 1e-5))
    assert stats[0][0].item() == 3.0
    assert stats[0][1].item() == pytest.approx(14 / 3)
    assert norm.mean.item() == 0.0 and norm.var.item() == 1.0, "a forward pass writes nothing"


def test_batch_norm_matches_torch_for_each_member():
    torch.manual_seed(0)
    norm, x = UnitBatchNorm(5, 2), torch.randn(2, 16, 5) * 3 + 2
    with torch.no_grad():
        norm.gain.uniform_(0.5, 2.0)
        norm.offset.normal_()
    stats = []
    y = norm(x, stats)
    for i in range(2):
        theirs = torch.nn.BatchNorm1d(5, momentum=UnitBatchNorm.momentum, eps=1e-5)
        with torch.no_grad():
            theirs.weight.copy_(norm.gain[i])
            theirs.bias.copy_(norm.offset[i])
        torch.testing.assert_close(y[i], theirs(x[i]))
        torch.testing.assert_close(torch.lerp(norm.mean[i], stats[0][0][i], 0.01), theirs.running_mean)
        torch.testing.assert_close(torch.lerp(norm.var[i], stats[0][1][i], 0.01), theirs.running_var)


def test_batch_norm_keeps_small_variance_far_from_zero():
    x = 1000.0 + torch.tensor([[0.0], [0.25], [0.5], [0.75]])
    stats = []
    UnitBatchNorm(1, None)(x, stats)
    assert stats[0][1].item() == pytest.approx(0.3125 / 3)


def test_statistics_are_float32_under_bfloat16():
    torch.manual_seed(0)
    trunk, x = Trunk(4, 8, 1, None, generator()), torch.randn(64, 4) + 10.0
    with torch.autocast("cpu", torch.bfloat16):
        half, stats = UnitBatchNorm(8, None), []
        y = trunk.embed(x)
        assert y.dtype == torch.bfloat16
        half(y, stats)
    assert stats[0][0].dtype == stats[0][1].dtype == torch.float32
    torch.testing.assert_close(stats[0][0], y.float().mean(0))
    torch.testing.assert_close(stats[0][1], y.float().var(0))


def test_rms_norm():
    y = UnitRMSNorm(2, None)(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(y, torch.tensor([[3.0, 4.0]]) / math.sqrt(12.5 + 1e-6))


def test_block_adds_the_skip_after_the_relu():
    trunk = Trunk(3, 3, 1, None, generator())
    with torch.no_grad():
        for norm in (trunk.blocks[0].up_norm, trunk.blocks[0].down_norm):
            norm.gain.zero_()
            norm.offset.fill_(-1.0)
    x = torch.tensor([[-1.0, -2.0, 3.0]])
    assert torch.equal(trunk.blocks[0](x), x), "a block whose ReLU is shut passes negative values on"


def test_density_of_a_squashed_gaussian():
    mean, log_std, noise = torch.tensor([[0.3]]), torch.tensor([[-0.5]]), torch.tensor([[0.7]])
    action, log_prob = sample_action(mean, log_std, noise)
    base = torch.distributions.Normal(mean, log_std.exp())
    theirs = torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform(cache_size=1))
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, theirs.log_prob(action).sum(-1))
