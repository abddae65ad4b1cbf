"""The finite guard: a bad row leaves every tensor of the learner as it was, and what was skipped is counted."""

import math
from dataclasses import replace

import pytest
import torch
from cycle_rig import TICKS, Rig

from tickgraph.core.arena import Arena
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.normalizer import ObsNormalizer, RewardNormalizer
from tickgraph.learn.path import Switches
from tickgraph.learn.sac import SacCfg

WRITTEN = Switches(manual=True, copies=True)
FORMS = {
    "autograd": Switches(),
    "written": WRITTEN,
    "shared": replace(WRITTEN, shared_actions=True),
    "beside": replace(WRITTEN, shared_actions=True, beside=True),
}
# What one cycle of one critic and one actor update skips. Rewards and replayed actions do not reach the actor.
SKIPS = {"actor": 2, "critic": 2, "action": 1, "reward": 1}
# Counters and draws go on, whether a step is taken or not, and metrics say what happened.
GOES_ON = ("learner/updates", "learner/actor_updates", "learner/rng/", "learner/metrics/")


def spoiled(field: str, value: float, world: int):
    """Return what puts a value into a field of one world, from the third tick on."""

    def spoil(tick, obs, action, reward):
        if tick >= 2:
            {"action": action, "reward": reward, **obs}[field][world] = value

    return spoil


def changed(before: dict[str, torch.Tensor], rig: Rig) -> list[str]:
    """Return the names of the tensors that differ bit by bit, those that go on left out."""
    return [
        name
        for name, value in rig.numbers().items()
        if not name.startswith(GOES_ON) and not torch.equal(value.nan_to_num(), before[name].nan_to_num())
    ]


def figures(rig: Rig) -> dict[str, float | int | None]:
    return rig.cycle.metrics.figures(rig.cycle.metrics.packed().tolist())


def skipped(rig: Rig) -> int:
    found = figures(rig)
    assert all(value is None or math.isfinite(value) for value in found.values())
    return found["loss/skipped_updates"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("field", SKIPS)
def test_a_bad_row_changes_nothing(form, field, value):
    rig = Rig(updates=1, kernels=FORMS[form], spoil=spoiled(field, value, world=1))
    before = {name: tensor.clone() for name, tensor in rig.numbers().items()}
    rig.cycle()
    # A reward beyond all bounds is clipped to the support, as any large one is.
    clipped = field == "reward" and value == math.inf
    assert skipped(rig) == (0 if clipped else SKIPS[field])
    if not clipped:
        allowed = ("learner/actor", "learner/log_alpha", "learner/alpha", "learner/pending", "learner/normalizer")
        moved = changed(before, rig)
        # Where the critic's update alone is bad, the actor's is a good one.
        assert moved == [] or (SKIPS[field] == 1 and all(name.startswith(allowed) for name in moved)), moved
    assert all(tensor.isfinite().all() for name, tensor in rig.numbers().items())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("field", ["critic", "action"])
def test_a_variance_that_overflows_changes_no_statistics(form, field):
    """1e30 is finite, its square is not: the loss stays finite, as what is divided by the variance becomes 0."""
    rig = Rig(updates=1, kernels=FORMS[form], spoil=spoiled(field, 1e30, world=1))
    storages = (rig.learner.critic_storage, rig.learner.target_storage)
    before = [storage.parameters.clone() for storage in storages]
    running = rig.learner.critic_storage.statistics.clone()
    rig.cycle()
    assert skipped(rig) >= 1
    assert torch.equal(rig.learner.critic_storage.statistics, running)
    assert all(torch.equal(storage.parameters, old) for storage, old in zip(storages, before, strict=True))
    assert rig.learner.critic_step.adam.steps.item() == 0
    assert all(tensor.isfinite().all() for name, tensor in rig.numbers().items())


@pytest.mark.parametrize("form", FORMS)
def test_training_goes_on_once_the_bad_rows_are_gone(form):
    rig = Rig(updates=2, kernels=FORMS[form], spoil=spoiled("critic", math.nan, world=1))
    rig.cycle()
    assert skipped(rig) == 3 and rig.learner.critic_step.adam.steps.item() == 0
    for group in rig.ring.obs.values():
        group.nan_to_num_()
    rig.cycle()
    assert skipped(rig) == 3 and rig.learner.critic_step.adam.steps.item() == 2
    assert rig.learner.actor_step.adam.steps.item() == rig.learner.alpha_adam.steps.item() == 1


def test_the_temperature_keeps_its_value_where_its_own_step_is_bad():
    """An entropy that overflows while the actor's loss does not must not reach the temperature."""
    rig = Rig()
    learner, factors = rig.learner, rig.learner.alpha_adam.factors(torch.tensor(1e-3))
    before = [learner.log_alpha.clone(), learner.alpha_adam.moment1.clone(), learner.alpha_adam.moment2.clone()]
    for entropy in (math.inf, math.nan, 1e30):
        _, skipped_alone = learner.step_alpha(torch.tensor(entropy), factors, torch.tensor(True))
        assert skipped_alone, "nothing else kept it from being taken"
        assert not learner.step_alpha(torch.tensor(entropy), factors, torch.tensor(False))[1], "the update was skipped"
        after = [learner.log_alpha, learner.alpha_adam.moment1, learner.alpha_adam.moment2]
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True)), entropy
        assert learner.alpha_adam.steps.item() == 0
    assert not learner.step_alpha(torch.tensor(1.0), factors, torch.tensor(True))[1]


@pytest.mark.parametrize("algo", [FlashSacCfg, SacCfg])
def test_temperature_steps_that_are_skipped_alone_are_counted(algo):
    rig = Rig(updates=4, algo=algo, policy_period=2)
    rig.learner.target_entropy = math.inf  # so that its loss is not finite, and every other one is
    rig.cycle()
    found = figures(rig)
    steps = rig.learner.actor_updates.item() if algo is FlashSacCfg else 4
    assert (found["loss/skipped_temperature_steps"], found["loss/skipped_updates"]) == (steps, 0)
    assert rig.learner.alpha_adam.steps.item() == 0 and rig.learner.critic_step.adam.steps.item() == 4
    rig.cycle.metrics.clear()
    assert figures(rig)["loss/skipped_temperature_steps"] == 0


def test_rewards_that_the_normaliser_refuses_are_counted():
    """One of four worlds from the third tick on; what is sampled is not what is counted."""
    rig = Rig(spoil=spoiled("reward", 3e38, world=1))
    assert figures(rig)["loss/skipped_rewards"] == TICKS - 2
    with torch.no_grad():
        rig.cycle.metrics.clear()
    assert figures(rig)["loss/skipped_rewards"] == 0
    assert "loss/skipped_rewards" not in figures(Rig(algo=SacCfg)), "SAC has no such normaliser"


def test_the_reward_scale_survives_any_reward():
    normalizer = RewardNormalizer(Arena("cpu"), 4, 0.99, 5.0)
    done, usual = torch.zeros(4, dtype=torch.bool), torch.tensor([1.0, -2.0, 0.5, 1.5])
    for bad in (math.nan, math.inf, -math.inf, 3e38, -3e38):
        reward = usual.clone()
        reward[2] = bad
        for _ in range(3):
            normalizer.update(reward, done)
    normalizer.publish()
    clean = RewardNormalizer(Arena("cpu"), 4, 0.99, 5.0)
    for _ in range(15):
        clean.update(usual * torch.tensor([1.0, 1.0, 0.0, 1.0]), done)
    clean.publish()
    assert normalizer.scale.item() == clean.scale.item() and 0.0 < clean.scale.item() < 100.0


def test_the_observations_statistics_survive_any_observation():
    arena = Arena("cpu")
    normalizer, clean = ObsNormalizer(arena, 3, "one"), ObsNormalizer(arena, 3, "other")
    torch.manual_seed(0)
    for bad in (math.nan, math.inf, -math.inf):
        obs = torch.randn(4, 3)
        clean.update(obs[1:])
        obs[0, 1] = bad
        normalizer.update(obs)
    normalizer.publish()
    clean.publish()
    assert torch.equal(normalizer.published, clean.published) and normalizer.count.item() == 9


def test_ticks_are_enough_for_a_bad_row_in_every_batch():
    rig = Rig(updates=1, spoil=spoiled("reward", math.nan, world=1))
    assert rig.ring.reward.isnan().sum().item() == TICKS - 2
