"""SAC: against a float64 reference from its formulas, compiled and not, safe, resumable, and learning."""

import math
from dataclasses import fields
from functools import partial

import numpy as np
import point
import pytest
import sac_by_hand as reference
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Program, resolve_execution
from tickgraph.learn.build import algo_name, make_learner, make_ring
from tickgraph.learn.explore import Explorer, GreedyPolicy
from tickgraph.learn.learner import AlgoCfg
from tickgraph.learn.normalizer import ObsNormalizer, normalize
from tickgraph.learn.sac import Sac, SacCfg, distribution_labels, next_action
from tickgraph.learn.storage import flatten
from tickgraph.learn.update import UpdateCycle

WORLDS, OBS, CRITIC_OBS, ACTIONS = 8, 5, 6, 3
DIMS = {"actor": OBS, "critic": CRITIC_OBS}


class Rig:
    """A small SAC, away from its start, with a ring of made-up transitions, some of which end either way."""

    def __init__(self, updates=1, mode="eager", scope="objective", bad=None, **options):
        settings = dict(actor_width=16, critic_width=24, batch_size=32, atoms=21, policy_period=2, gamma=0.9)
        settings |= dict(v_max=4.0, alpha_init=0.2, target_entropy_ratio=0.5, lr_start=1e-3, lr_end=1e-3)
        self.cfg = SacCfg(**(settings | options))
        self.arena = Arena("cpu")
        self.learner = make_learner(self.cfg, DIMS, ACTIONS, WORLDS, self.arena, 0, 100)
        self.ring = make_ring(self.learner, 32, WORLDS)
        self.explorer = Explorer(self.learner, WORLDS, seed=0)
        self.cycle = UpdateCycle(self.learner, self.ring, updates, mode, scope)
        self.arena.seal()
        made_up = torch.Generator().manual_seed(5)
        for storage in (self.learner.actor_storage, self.learner.critic_storage, self.learner.target_storage):
            storage.parameters.add_(0.1 * torch.randn(storage.parameters.shape, generator=made_up))
        self.seen = {name: [] for name in DIMS}
        for tick in range(20):
            obs, final = (
                {name: torch.randn(WORLDS, width, generator=made_up) * 2 + 1 for name, width in DIMS.items()}
                for _ in range(2)
            )
            ends = torch.rand(2, WORLDS, generator=made_up) < 0.15
            action = torch.rand(WORLDS, ACTIONS, generator=made_up) * 2 - 1
            reward = torch.randn(WORLDS, generator=made_up)
            if tick == 10 and bad:
                {"action": action, "reward": reward, **obs}[bad][1] = math.nan
            self.ring.write(obs, action, reward, ends[0], ends[1] & ~ends[0], ends[0] | ends[1], final)
            for name, rows in self.seen.items():
                rows.append(obs[name].clone())
        self.ring.publish()

    def numbers(self):
        """Return every tensor that the cycle may write, by name."""
        return {name: value for name, value in self.arena.snapshot().items() if not name.startswith("ring/")}

    def by_hand(self) -> reference.Reference:
        learner = self.learner
        actor = reference.Actor(OBS, ACTIONS, 16).double()
        reference.load(actor, learner.actor_storage.named(learner.actor_storage.parameters), None)
        theirs = reference.Reference(actor, self.critics(learner.critic_storage), self.cfg)
        theirs.targets = self.critics(learner.target_storage)
        return theirs

    def critics(self, storage) -> list[reference.Critic]:
        found = [reference.Critic(CRITIC_OBS + ACTIONS, 24, 21).double() for _ in range(2)]
        for member, critic in enumerate(found):
            reference.load(critic, storage.named(storage.parameters), member)
        return found

    def drawn(self) -> tuple[torch.Tensor, ...]:
        """Return what the reference's next update takes, in float64: the raw sample, normalised by NumPy."""
        batch = self.ring.sample(self.learner.replay_draw)
        obs = []
        for name, value in (("actor", batch.actor_obs), ("critic", batch.critic_obs)):
            if self.cfg.normalize_obs:
                rows = torch.cat(self.seen[name]).double().numpy()
                value = torch.tensor((value.double().numpy() - rows.mean(0)) / (rows.std(0) + 1e-2))
            obs.append(value.double())
        noise = [self.learner.noise_draw.normal(name, ACTIONS).double() for name in ("policy", "successor")]
        return (*obs, batch.action.double(), batch.reward.double(), batch.discount.double(), *noise)


def same(first, second):
    return [name for name in first if not torch.equal(first[name], second[name])] == []


def close(mine: torch.Tensor, wanted: torch.Tensor, bound: float = 1e-5) -> None:
    mine, wanted = mine.detach().double(), wanted.detach().double()
    assert (mine - wanted).norm() <= bound * wanted.norm() + 1e-12, (mine, wanted)


def flat_grad(loss: torch.Tensor, learner: Sac, network: str, storage) -> torch.Tensor:
    return flatten(torch.autograd.grad(loss, storage.ordered(getattr(learner, network))))


@pytest.mark.parametrize("n_step", [1, 3])
def test_objectives_are_those_of_the_reference(n_step):
    rig = Rig(n_step=n_step)
    learner, theirs = rig.learner, rig.by_hand()
    obs, critic_obs, action, reward, discount, noise, next_noise = rig.drawn()
    assert (discount == 0.0).any() and (discount > 0.0).any(), "rows that end and rows that go on"
    batch, size = learner.prepare(rig.ring.sample(learner.replay_draw)), len(action)
    close(batch.actor_obs, obs)
    close(batch.critic_obs, critic_obs)

    labels, log_prob = theirs.labels(obs[size:], critic_obs[size:], reward, discount, next_noise)
    ahead, mine_log_prob = next_action(learner.actor, batch, next_noise.float())
    close(mine_log_prob, log_prob)
    logits = learner.target(torch.cat((batch.critic_obs[size:], ahead), -1))
    mine = distribution_labels(logits, batch.reward, batch.discount, learner.alpha() * mine_log_prob, learner.atoms)
    close(mine, torch.stack(labels))
    assert not torch.allclose(mine[0], mine[1], atol=1e-3), "each target projects its own distribution"

    out = learner.critic_objective(batch, next_noise.float(), learner.TAILS)
    wanted = theirs.critic_loss(critic_obs[:size], action, labels)
    close(out.loss, wanted)
    close(out.entropy, -log_prob.mean())
    close(out.target_q, (torch.stack(labels) * theirs.atoms).sum(-1).mean())
    # The gradients, through a step of the reference that is as long as they are.
    grad, storage = flat_grad(out.loss, learner, "critic", learner.critic_storage), learner.critic_storage
    for member, critic in enumerate(theirs.critics):
        copy = reference.Critic(CRITIC_OBS + ACTIONS, 24, 21).double()
        reference.load(copy, storage.named(grad.double()), member)
        pairs = zip(copy.parameters(), torch.autograd.grad(wanted, critic.parameters(), retain_graph=True), strict=True)
        for mine_grad, their_grad in pairs:
            close(mine_grad, their_grad, 2e-5)

    out = learner.actor_objective(batch, noise.float(), learner.TAILS)
    wanted = theirs.actor_loss(obs[:size], critic_obs[:size], noise)
    close(out.loss, wanted)
    copy = reference.Actor(OBS, ACTIONS, 16).double()
    grad, storage = flat_grad(out.loss, learner, "actor", learner.actor_storage), learner.actor_storage
    reference.load(copy, storage.named(grad.double()), None)
    for mine_grad, their_grad in zip(
        copy.parameters(), torch.autograd.grad(wanted, list(theirs.actor.parameters())), strict=True
    ):
        close(mine_grad, their_grad, 2e-5)
    assert not any(p.requires_grad for p in learner.frozen_critic.parameters())


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.05, "normalize_obs": False, "n_step": 3}])
def test_four_updates_match_the_reference(options):
    rig = Rig(**options)
    learner, theirs = rig.learner, rig.by_hand()
    alphas = [learner.alpha().item()]
    for _ in range(4):
        theirs.update(*rig.drawn())
        rig.cycle()
        alphas.append(learner.alpha().item())
    assert learner.updates.item() == 4 and learner.actor_updates.item() == 2
    assert len(set(alphas)) == 5, "the temperature steps with every critic update"
    assert learner.log_alpha.item() == pytest.approx(theirs.log_alpha.item(), abs=1e-6)
    copy = reference.Actor(OBS, ACTIONS, 16).double()
    reference.load(copy, learner.actor_storage.named(learner.actor_storage.parameters), None)
    pairs = list(zip(copy.parameters(), theirs.actor.parameters(), strict=True))
    for storage, networks in ((learner.critic_storage, theirs.critics), (learner.target_storage, theirs.targets)):
        for mine, wanted in zip(rig.critics(storage), networks, strict=True):
            pairs += zip(mine.parameters(), wanted.parameters(), strict=True)
    for mine, wanted in pairs:
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=2e-5)
    learner.publish_policy()
    assert torch.equal(learner.policy_storage.parameters, learner.actor_storage.parameters)


def test_the_actor_moves_behind_the_critic():
    # With a period of 2 the first of two updates moves it, and it sees the critic that this update has made.
    rig, blind = Rig(policy_period=2), Rig(policy_period=2)
    yes, none = torch.tensor(True), torch.zeros(())
    blind.learner.apply_critic = lambda out, grad, rates: ((out.loss,) * 4, (rates.critic,) * 2, yes, (none,))
    for each in (rig, blind):
        each.cycle()
        assert each.learner.actor_updates.item() == 1
    moved = [each.learner.actor_storage.parameters for each in (rig, blind)]
    assert not torch.equal(*moved)
    before = rig.learner.actor_storage.parameters.clone()
    rig.cycle()
    assert torch.equal(before, rig.learner.actor_storage.parameters)


def test_compiled_matches_eager():
    eager, compiled = Rig(), Rig(mode="compile")
    for _ in range(2):
        eager.cycle()
        compiled.cycle()
    for name, report in compiled.cycle.report().items():
        assert report["enabled"] == "compile" and report["captures"] == 1 and report["recompiles"] == 0, name
    found = compiled.numbers()
    for name, value in eager.numbers().items():
        if value.dtype.is_floating_point:
            close(found[name].nan_to_num(), value.nan_to_num())
        else:
            assert torch.equal(found[name], value), name


def test_observations_are_normalised_as_numpy_has_it():
    torch.manual_seed(0)
    norm, ticks = ObsNormalizer(Arena("cpu"), 4, "obs"), [torch.randn(6, 4) * 7 + 300 for _ in range(30)]
    assert norm.published[0].tolist() == [0.0] * 4
    for tick in ticks:
        norm.update(tick)
    rows = torch.cat(ticks).double().numpy()
    assert norm.published[0].tolist() == [0.0] * 4, "not published yet"
    norm.publish()
    np.testing.assert_allclose(norm.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.var.numpy(), rows.var(0), rtol=1e-10)
    assert norm.count.item() == 180
    wanted = (rows - rows.mean(0)) / (rows.std(0) + 1e-2)
    np.testing.assert_allclose(normalize(torch.cat(ticks), norm.published).numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_row_that_is_not_finite_leaves_the_statistics_alone():
    norm, other = (ObsNormalizer(Arena("cpu"), 2, "obs") for _ in range(2))
    bad = torch.tensor([[math.nan, 1.0], [3.0, math.inf], [2.0, 4.0], [6.0, 8.0]])
    norm.update(bad[:2])
    assert (norm.mean.tolist(), norm.var.tolist(), norm.count.item()) == ([0.0, 0.0], [1.0, 1.0], 0.0)
    norm.update(bad)
    other.update(bad[2:])
    assert (norm.mean.tolist(), norm.var.tolist(), norm.count.item()) == ([4.0, 6.0], [4.0, 4.0], 2.0)
    assert torch.equal(norm.mean, other.mean) and torch.equal(norm.var, other.var)


def test_the_statistics_are_kept_in_compiled_code():
    # torch.compile on a CPU loses writes to float64 tensors without dimensions.
    found = []
    for mode in ("eager", "compile"):
        norm, obs, made_up = ObsNormalizer(Arena("cpu"), 5, "obs"), torch.zeros(16, 5), torch.Generator().manual_seed(3)
        update = Program("observe", partial(norm.update, obs), resolve_execution(mode, "cpu"))
        for tick in range(4):
            obs.copy_(torch.randn(16, 5, generator=made_up) * 3 + 2)
            obs[tick, 1] = math.nan
            update()
        assert update.report()["enabled"] == mode
        assert norm.count.item() == 4 * 15
        found.append(torch.cat((norm.mean, norm.var)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_the_policy_acts_on_the_statistics_of_its_last_update():
    rig = Rig()
    learner = rig.learner
    start = learner.acting_obs.clone()
    assert torch.equal(start, torch.stack((torch.zeros(OBS), torch.full((OBS,), 1 / 1.01))))
    rig.cycle()
    assert torch.equal(learner.acting_obs, start), "ticks may be running"
    learner.publish_policy()
    used = learner.obs_normalizers["actor"].published.clone()
    assert torch.equal(learner.acting_obs, used) and not torch.equal(used, start)
    obs = torch.randn(WORLDS, OBS)
    mean, log_std = learner.actor(normalize(obs, used))
    mine = learner.gaussian(obs)
    torch.testing.assert_close(mine[0], mean)
    torch.testing.assert_close(mine[1], log_std)
    action = torch.zeros(WORLDS, ACTIONS)
    with torch.no_grad():
        GreedyPolicy(learner).act({"actor": obs}, action, torch.zeros(WORLDS, dtype=torch.bool))
    torch.testing.assert_close(action, torch.tanh(mean))
    assert "policy/observed" in rig.numbers()


def test_exploration_draws_anew_in_each_step():
    rig = Rig()
    explorer, obs, done = rig.explorer, {"actor": torch.zeros(WORLDS, OBS)}, torch.zeros(WORLDS, dtype=torch.bool)
    explorer.set_warmup(False)
    mean, log_std = rig.learner.gaussian(obs["actor"])
    noise = []
    for _ in range(400):
        action = torch.zeros(WORLDS, ACTIONS)
        with torch.no_grad():
            explorer.act(obs, action, done)
        noise.append((torch.atanh(action) - mean) / log_std.exp())
    found = torch.stack(noise).detach()
    assert (found[1:] != found[:-1]).all()
    assert found.mean().item() == pytest.approx(0.0, abs=0.04) and found.std().item() == pytest.approx(1.0, abs=0.04)
    assert not [name for name in rig.arena.names() if name in ("explorer/noise", "explorer/left")]


@pytest.mark.parametrize("bad", ["actor", "critic", "action", "reward"])
def test_a_nan_in_the_ring_leaves_everything_finite_and_is_counted(bad):
    rig = Rig(updates=8, bad=bad)
    rig.cycle()
    figures = rig.cycle.metrics.figures(rig.cycle.metrics.packed().tolist())
    assert 0 < figures["loss/skipped_updates"] <= 12
    for name, value in rig.numbers().items():
        assert value.isfinite().all(), name
    assert all(value is None or math.isfinite(value) for value in figures.values())
    learner = rig.learner
    assert (learner.updates.item(), learner.actor_updates.item()) == (8, 4), "the schedule goes on"
    steps = learner.critic_step.adam.steps + learner.actor_step.adam.steps
    assert steps.item() == 12 - figures["loss/skipped_updates"]


def test_a_restored_learner_goes_on_to_the_bit():
    first, second = Rig(), Rig()
    for _ in range(3):
        first.cycle()
    assert not same(first.numbers(), second.numbers())
    second.learner.load_state_dict(first.learner.state_dict())
    for rig in (first, second):
        rig.cycle()
        rig.cycle()
    assert same(first.numbers(), second.numbers())


def test_figures_by_name():
    rig = Rig(updates=2)
    figures = rig.cycle.metrics.figures(rig.cycle.metrics.packed().tolist())
    names = ("critic_loss", "q_mean", "target_q_mean", "alpha_loss", "critic_lr", "alpha", "actor_loss", "entropy")
    more = ("actor_q", "action_std", "actor_lr", "skipped_updates", "skipped_temperature_steps", "replay_redraws")
    assert set(figures) == {f"loss/{name}" for name in (*names, *more)}
    assert figures["loss/actor_lr"] is None and figures["loss/alpha"] is None
    before = rig.learner.alpha().item()
    rig.cycle()
    figures = rig.cycle.metrics.figures(rig.cycle.metrics.packed().tolist())
    assert figures["loss/critic_loss"] == pytest.approx(2 * math.log(21), rel=0.2), "two critics over 21 atoms"
    assert figures["loss/alpha"] == pytest.approx(rig.learner.alpha().item()) != pytest.approx(before, rel=1e-6)
    assert figures["loss/actor_lr"] == figures["loss/critic_lr"] == pytest.approx(1e-3)


def test_the_start_is_the_authors():
    learner = make_learner(SacCfg(), {"actor": 98, "critic": 101}, 29, 4, Arena("meta"), 0)
    shapes = {name: tuple(value.shape) for name, value in learner.critic.named_parameters()}
    assert [shapes[f"trunk.layers.{k}.weight"] for k in range(3)] == [(2, 768, 130), (2, 384, 768), (2, 192, 384)]
    assert shapes["head.weight"] == (2, 101, 192)
    small = make_learner(SacCfg(actor_width=8, critic_width=8, batch_size=4), DIMS, ACTIONS, 4, Arena("cpu"), 0)
    mean, log_std = small.actor(torch.randn(7, OBS))
    assert (mean == 0.0).all() and (log_std == -2.5).all(), "heads are zero"
    assert torch.equal(small.target_storage.parameters, small.critic_storage.parameters)
    weight = small.critic.trunk.layers[1].weight
    assert not torch.equal(weight[0], weight[1]) and weight.abs().max() <= 8**-0.5
    assert small.target_entropy == 0.0


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"discount": "exac"}, "SacCfg.discount is 'exac'; did you mean 'exact'"),
        ({"actor_width": 6}, "actor_width is 6; it is halved twice, so give a multiple of 4"),
        ({"critic_width": 0}, "critic_width is 0; it must be at least 4"),
        ({"beta2": 1.0}, "beta2 is 1.0; it must be in"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must not be negative"),
        ({"obs_eps": 0.0}, "obs_eps is 0.0; it must be above 0"),
        ({"tau": 0.0}, "tau is 0.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting, text):
    with pytest.raises(TickgraphError, match=text):
        SacCfg(**setting)


def test_a_configuration_of_no_algorithm_is_refused():
    assert algo_name(SacCfg()) == "sac"
    with pytest.raises(TickgraphError, match="is a AlgoCfg; give one of FlashSacCfg, SacCfg"):
        algo_name(AlgoCfg())


def test_a_point_learns_to_sit_at_the_origin():
    cfg = SacCfg(
        actor_width=32, critic_width=32, batch_size=128, gamma=0.9, tau=0.1, atoms=51, lr_start=2e-3, lr_end=2e-3,
        policy_period=2,
    )  # fmt: skip
    random, trained = point.learn(cfg, ticks=200, horizon=1)
    assert random < -1.2
    assert trained > -0.45


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e39])
@pytest.mark.parametrize("name", [field.name for field in fields(SacCfg) if field.type in (float, "float")])
def test_numbers_that_float32_does_not_hold_are_refused(name, value):
    with pytest.raises(TickgraphError, match=f"SacCfg.{name} is "):
        SacCfg(**{name: value})
