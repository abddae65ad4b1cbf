"""The update cycle: against a reference from torch's own layers, deterministic, safe, resumable, and learning."""

import math

import flashsac_by_hand as reference
import point
import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.learn import flashsac
from tickgraph.learn.explore import Explorer
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import Drawn, UpdateCycle

WORLDS, OBS, CRITIC_OBS, ACTIONS = 4, 5, 6, 2
NO = torch.zeros(WORLDS, dtype=torch.bool)


class Rig:
    """A small learner with a ring of made-up transitions."""

    def __init__(self, updates=2, mode="eager", total_updates=100, bad=None, **options):
        settings = dict(actor_width=8, actor_blocks=2, critic_width=12, critic_blocks=2, batch_size=16, atoms=21)
        self.cfg = FlashSacCfg(**(settings | options))
        self.arena = Arena("cpu")
        dims = {"actor": OBS, "critic": CRITIC_OBS}
        self.learner = FlashSac(self.cfg, dims, ACTIONS, WORLDS, self.arena, 0, total_updates)
        self.ring = Ring(
            self.arena, 32, WORLDS, dims, ACTIONS, self.cfg.n_step, self.cfg.gamma, normalizer=self.learner.normalizer
        )
        self.explorer = Explorer(self.learner, WORLDS, seed=0)
        self.cycle = UpdateCycle(self.learner, self.ring, updates, mode)
        self.arena.seal()
        made_up = torch.Generator().manual_seed(5)
        for tick in range(20):
            obs, final = (
                {name: torch.randn(WORLDS, width, generator=made_up) * 2 + 1 for name, width in dims.items()}
                for _ in range(2)
            )
            ends = torch.rand(2, WORLDS, generator=made_up) < 0.1
            action = torch.rand(WORLDS, ACTIONS, generator=made_up) * 2 - 1
            reward = torch.randn(WORLDS, generator=made_up)
            if tick == 10 and bad:
                {"action": action, "reward": reward, **obs}[bad][1] = math.nan
            self.ring.write(obs, action, reward, ends[0], ends[1] & ~ends[0], ends[0] | ends[1], final)
        self.ring.publish()

    def numbers(self):
        """Return every tensor that the cycle may write, by name."""
        return {name: value for name, value in self.arena.snapshot().items() if not name.startswith("ring/")}


def same(first, second):
    return [name for name in first if not torch.equal(first[name], second[name])] == []


def drained(cycle: UpdateCycle) -> dict[str, float | int | None]:
    """Return the figures since the last call, as a log point reads them."""
    figures = cycle.metrics.figures(cycle.metrics.packed().tolist())
    with torch.no_grad():
        cycle.metrics.clear()
    return figures


@pytest.mark.parametrize("maths", ["fused", "readable"])
def test_four_updates_match_the_reference(maths):
    rig = Rig(updates=1)
    learner, ring = rig.learner, rig.ring
    if maths == "readable":
        rig.learner.maths = flashsac
    actor = reference.Actor(OBS, ACTIONS, 8, 2)
    reference.load(actor, learner.actor_storage.named(learner.actor_storage.parameters), None)
    critics = [reference.Critic(CRITIC_OBS + ACTIONS, 12, 2, 21) for _ in range(2)]
    for member, critic in enumerate(critics):
        reference.load(critic, learner.critic_storage.named(learner.critic_storage.parameters), member)
    theirs = reference.Reference(actor, critics, alpha=0.01, horizon=100, tau=0.01, period=2)
    for _ in range(4):
        batch = ring.sample(learner.replay_draw)
        noise = [learner.noise_draw.normal(name, ACTIONS) for name in ("policy", "successor")]
        theirs.update(
            batch.actor_obs, batch.critic_obs, batch.action, batch.reward / learner.normalizer.scale, batch.discount,
            *noise,
        )  # fmt: skip
        rig.cycle()
    assert learner.updates.item() == 4 and learner.actor_updates.item() == 2
    copy = reference.Actor(OBS, ACTIONS, 8, 2)
    reference.load(copy, learner.actor_storage.named(learner.actor_storage.parameters), None)
    pairs = list(zip(copy.parameters(), actor.parameters(), strict=True))
    for member in range(2):
        for storage, networks in ((learner.critic_storage, theirs.critics), (learner.target_storage, theirs.targets)):
            copy = reference.Critic(CRITIC_OBS + ACTIONS, 12, 2, 21)
            reference.load(copy, storage.named(storage.parameters), member)
            pairs += zip(copy.parameters(), networks[member].parameters(), strict=True)
    for mine, wanted in pairs:
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=2e-5)
    assert learner.log_alpha.item() == pytest.approx(theirs.log_alpha.item(), abs=1e-6)
    torch.testing.assert_close(learner.actor.trunk.input_norm.mean, actor.trunk.input_norm.running_mean)
    for member, critic in enumerate(critics):
        norm = learner.critic.trunk.blocks[1].up_norm
        torch.testing.assert_close(
            norm.mean[member], critic.trunk.blocks[1]["up_norm"].running_mean, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            norm.var[member], critic.trunk.blocks[1]["up_norm"].running_var, rtol=1e-4, atol=1e-5
        )
    assert not torch.equal(learner.policy_storage.parameters, learner.actor_storage.parameters), "ticks may be running"
    learner.publish_policy()
    assert torch.equal(learner.policy_storage.parameters, learner.actor_storage.parameters)
    assert torch.equal(learner.policy_storage.statistics, learner.actor_storage.statistics)


def test_one_seed_gives_the_same_bytes():
    first, second = Rig(), Rig()
    addresses = first.arena.pointers()
    for rig in (first, second):
        for _ in range(3):
            rig.cycle()
    assert same(first.numbers(), second.numbers())
    assert first.arena.pointers() == addresses


def test_the_callers_mode_does_not_matter():
    rigs = [Rig(), Rig(), Rig()]
    rigs[0].cycle()
    with torch.no_grad():
        rigs[1].cycle()
    with torch.inference_mode():
        rigs[2].cycle()
    assert same(rigs[0].numbers(), rigs[1].numbers())
    assert same(rigs[0].numbers(), rigs[2].numbers())


def test_cycles_of_one_and_of_four_updates_are_the_same_run():
    first, second = Rig(updates=1), Rig(updates=4)
    for _ in range(4):
        first.cycle()
    second.cycle()
    assert same(first.numbers(), second.numbers())


def test_a_cycle_draws_what_its_updates_would_one_by_one():
    rig = Rig(updates=3)
    learner, cycles = rig.learner, []
    for _ in range(2):
        wanted, rng, start = [], learner.rng, learner.rng.tick.clone()
        for _ in range(3):
            batch = learner.prepare(rig.ring.sample(learner.replay_draw))
            wanted.append((batch, [learner.noise_draw.normal(name, ACTIONS) for name in ("policy", "successor")]))
            rng.advance()
        rng.tick.copy_(start)
        drawn = Drawn(*rig.cycle._draw())
        assert rng.tick.item() == start.item() + 3
        for index, (batch, noise) in enumerate(wanted):
            mine = (*drawn.batch(index), drawn.noise[index], drawn.next_noise[index])
            for found, expected in zip(mine, (*batch, *noise), strict=True):
                assert torch.equal(found, expected) and found.data_ptr() % 16 == 0, "compiled code copies others"
        cycles.append(drawn)
    for name, first, second in zip(Drawn._fields, *cycles, strict=True):
        assert not torch.equal(first, second) or name == "redraws", name


def test_the_words_of_an_earlier_version_s_state_are_left_out():
    rig = Rig(updates=1)
    state = rig.learner.state_dict()
    rig.learner.load_state_dict(state | {"learner/rng/words": torch.zeros(16, 20, dtype=torch.int64)})
    with pytest.raises(TickgraphError, match="unknown"):
        rig.learner.load_state_dict(state | {"learner/rng/other": torch.zeros(1)})


def test_a_restored_learner_goes_on_to_the_bit():
    first, second = Rig(updates=1), Rig(updates=1)
    for _ in range(3):
        first.cycle()
    second.learner.load_state_dict(first.learner.state_dict())
    for rig in (first, second):
        rig.cycle()
        rig.cycle()
    assert same(first.numbers(), second.numbers())


def test_compiled_matches_eager():
    small = dict(n_step=3, actor_blocks=1, critic_blocks=1)
    eager, compiled = Rig(**small), Rig(**small, mode="compile")
    for _ in range(2):
        eager.cycle()
        compiled.cycle()
    for report in compiled.cycle.report().values():
        assert report["enabled"] == "compile" and report["captures"] == 1 and report["recompiles"] == 0
    second = compiled.numbers()
    for name, value in eager.numbers().items():
        if value.dtype.is_floating_point:
            torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert torch.equal(second[name], value), name


@pytest.mark.parametrize("bad", ["actor", "critic", "action", "reward"])
def test_a_nan_in_the_ring_leaves_everything_finite_and_is_counted(bad):
    rig = Rig(updates=8, bad=bad)
    rig.cycle()
    figures = drained(rig.cycle)
    assert 0 < figures["loss/skipped_updates"] <= 12
    for name, value in rig.numbers().items():
        assert value.isfinite().all(), name
    assert all(value is None or math.isfinite(value) for value in figures.values())
    assert rig.learner.updates.item() == 8, "the schedule goes on"
    assert rig.learner.critic_step.adam.steps.item() < 8


def test_schedules_count_as_the_authors_do():
    rig = Rig(updates=2, total_updates=8)
    rates = []
    for _ in range(4):
        rig.cycle()
        rates.append(drained(rig.cycle))
    cosine = [1.5e-4 + 0.75e-4 * (1 + math.cos(math.pi * k / 8)) for k in range(9)]
    assert [row["loss/critic_lr"] for row in rates] == pytest.approx([cosine[k] for k in (1, 3, 5, 7)], rel=1e-6)
    assert [row["loss/actor_lr"] for row in rates] == pytest.approx([cosine[k] for k in (0, 1, 2, 3)], rel=1e-6)
    learner = rig.learner
    assert learner.rate(learner.updates).item() == pytest.approx(1.5e-4, rel=1e-6)
    assert learner.rate(learner.actor_updates).item() == pytest.approx(2.25e-4, rel=1e-6)
    learner.set_horizon(16)
    assert learner.rate(learner.updates).item() == pytest.approx(2.25e-4, rel=1e-6)


def test_metrics_are_means_since_the_last_drain():
    rig = Rig(updates=2)
    before = drained(rig.cycle)
    assert set(before) == {
        f"loss/{name}"
        for name in (
            *("critic_loss", "actor_loss", "alpha", "alpha_loss", "entropy", "q_mean", "target_q_mean", "critic_lr"),
            *("actor_lr", "reward_scale", "skipped_updates", "skipped_temperature_steps", "skipped_rewards"),
            "replay_redraws",
        )
    }
    assert before["loss/critic_loss"] is None and before["loss/alpha"] is None
    rig.cycle()
    row = drained(rig.cycle)
    assert row["loss/critic_loss"] == pytest.approx(math.log(21), rel=0.2), "untrained: about uniform over 21 atoms"
    assert row["loss/alpha"] == pytest.approx(rig.learner.alpha().item())
    assert row["loss/alpha"] == pytest.approx(0.01, rel=0.01)
    assert row["loss/reward_scale"] == rig.learner.normalizer.scale.item()
    assert row["loss/alpha_loss"] == pytest.approx(0.01 * (row["loss/entropy"] - rig.learner.target_entropy), rel=1e-3)
    assert drained(rig.cycle)["loss/critic_loss"] is None


def test_packed_figures_are_those_of_a_drain():
    rig = Rig(updates=2)
    rig.cycle()
    packed = rig.cycle.metrics.packed()
    assert packed.dtype == torch.float64
    figures = rig.cycle.metrics.figures(packed.tolist())
    assert figures == drained(rig.cycle)
    assert figures["loss/critic_lr"] == rig.learner.rate(rig.learner.updates * 0 + 1).item()


def test_bfloat16_runs_the_readable_form():
    rig = Rig(bf16=True)
    rig.cycle()
    assert drained(rig.cycle)["loss/skipped_updates"] == 0
    assert rig.learner.critic_storage.parameters.dtype == torch.float32
    plain = Rig()
    plain.cycle()
    name = "learner/critic/statistics"
    torch.testing.assert_close(rig.numbers()[name], plain.numbers()[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("updates", "period"), [(1, 1), (1, 2), (2, 2), (8, 2), (3, 2), (2, 3), (4, 6), (6, 4), (1, 7), (5, 12), (12, 5)]
)
def test_cycles_in_which_the_actor_moves_alike_are_one_kind(updates, period):
    cycle = Rig(updates=updates, policy_period=period).cycle

    def moves(phase):
        return tuple(i for i in range(updates) if (phase + i) % period == 0)

    assert {cycle.kind(phase) for phase in cycle.phases} == set(cycle.kinds)
    assert all(moves(phase) == moves(cycle.kind(phase)) for phase in cycle.phases)
    assert len({moves(phase) for phase in cycle.phases}) == len(cycle.kinds) == len(set(cycle.kinds)) <= updates + 1
    assert cycle.kinds[0] == 0


def test_a_period_longer_than_any_run_takes_two_kinds_of_cycles():
    rig = Rig(updates=1, policy_period=2**31)
    assert rig.cycle.kinds == [0, 1] and rig.cycle.kind(2**31 - 1) == 1
    for _ in range(3):
        rig.cycle()
    assert (int(rig.learner.updates), int(rig.learner.actor_updates)) == (3, 1)


def test_a_cycle_needs_an_update():
    with pytest.raises(TickgraphError, match="0 updates per cycle"):
        Rig(updates=0)


def test_a_point_learns_to_sit_at_the_origin():
    cfg = FlashSacCfg(
        actor_width=16, actor_blocks=1, critic_width=16, critic_blocks=1, batch_size=128, gamma=0.9, tau=0.05,
        lr_start=2e-3, lr_end=1e-3,
    )  # fmt: skip
    random, trained = point.learn(cfg, ticks=300, horizon=600)
    assert random < -1.2
    assert trained > -0.45
