"""The objectives: whose distribution the labels are, the entropy's target, refused settings."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.learn.flashsac import (
    FlashSac,
    FlashSacCfg,
    distribution_labels,
    target_entropy,
)

ATOMS = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64).float()


def test_target_entropy_of_the_g1():
    assert target_entropy(29, 0.15) == pytest.approx(-13.867, abs=5e-4)
    assert target_entropy(1, 0.15) == pytest.approx(-0.47818, abs=5e-6)
    # ln(1e-200) = -460.517, and 1e-400 is 0; 1/2 ln(2 pi e) = 1.41894
    assert target_entropy(2, 1e-200) == pytest.approx(2 * (1.41894 - 460.517), abs=5e-3)


def test_labels_take_the_whole_distribution_of_the_lesser_member():
    logits = torch.full((2, 2, 101), -50.0)
    logits[0, 0, 70] = logits[1, 0, 60] = 50.0  # row 0: member 1 is less
    logits[0, 1, 30] = logits[1, 1, 40] = 50.0  # row 1: member 0 is less
    labels = distribution_labels(logits, torch.zeros(2), torch.ones(2), torch.zeros(2), ATOMS)
    assert labels.argmax(-1).tolist() == [60, 30]
    torch.testing.assert_close(labels.amax(-1), torch.ones(2), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"discount": "exac"}, "did you mean 'exact'"),
        ({"noise_scope": "all"}, "shared, per_env"),
        ({"batch_size": 1}, "batch_size is 1; it must be at least 2"),
        ({"policy_period": 0}, "policy_period is 0"),
        ({"alpha_init": 0.0}, "alpha_init is 0.0; it must be above 0"),
        ({"tau": 1.5}, "tau is 1.5"),
        ({"lr_warmup": -1}, "lr_warmup is -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting, text):
    with pytest.raises(TickgraphError, match=text):
        FlashSacCfg(**setting)


def learner(width: int = 8, seed: int = 0) -> FlashSac:
    cfg = FlashSacCfg(actor_width=width, actor_blocks=1, critic_width=8, critic_blocks=1, batch_size=4)
    return FlashSac(cfg, {"actor": 3, "critic": 4}, 2, 4, Arena("cpu"), seed, total_updates=10)


@pytest.mark.parametrize("asked", [None, False, True])
def test_products_are_bfloat16_where_asked_for_and_by_default_on_a_gpu(asked):
    small = FlashSacCfg(actor_width=8, actor_blocks=1, critic_width=8, critic_blocks=1, batch_size=4, bf16=asked)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        made = FlashSac(small, {"actor": 3, "critic": 4}, 2, 4, Arena(device), 0, total_updates=10)
        assert made.cfg.bf16 is (device == "cuda" if asked is None else asked)


def test_a_state_goes_around():
    first, second = learner(), learner(seed=1)
    first.critic_step.adam.moment1.normal_()
    first.updates.fill_(7)
    state = first.state_dict()
    addresses = second.arena.pointers()
    assert any(not torch.equal(value, second.arena[name]) for name, value in state.items())
    second.load_state_dict(state)
    assert all(torch.equal(value, second.arena[name]) for name, value in state.items())
    assert second.arena.pointers() == addresses
    assert torch.equal(first.critic.head.weight, second.critic.head.weight)
    assert "learner/atoms" not in state


def test_a_state_that_does_not_fit_changes_nothing():
    mine = learner()
    before = mine.state_dict()
    for state, text in (
        (learner(width=16).state_dict(), "'learner/actor/parameters' as"),
        ({"learner/actr": torch.zeros(1)} | before, "unknown .*learner/actr"),
        ({name: value for name, value in before.items() if name != "learner/updates"}, "lacks .*learner/updates"),
    ):
        with pytest.raises(TickgraphError, match=text):
            mine.load_state_dict(state)
    assert all(torch.equal(value, mine.arena[name]) for name, value in before.items())


def test_one_seed_one_start():
    first, second, third = learner(), learner(), learner(seed=1)
    assert torch.equal(first.critic_storage.parameters, second.critic_storage.parameters)
    assert not torch.equal(first.critic_storage.parameters, third.critic_storage.parameters)
    assert torch.equal(first.target_storage.parameters, first.critic_storage.parameters)
    assert not torch.equal(first.critic.head.weight[0], first.critic.head.weight[1])
