"""The objectives with gradients written out against the readable ones and autograd."""

from dataclasses import replace

import pytest
import torch
from cycle_rig import Rig
from objective_rig import B, made, made_batch

from tickgraph.core.arena import Arena
from tickgraph.learn import flashsac
from tickgraph.learn.flashsac import FlashSac
from tickgraph.learn.path import ON_A_GPU, Switches
from tickgraph.learn.replay import Batch
from tickgraph.learn.stacked import ActorUpdate, CriticUpdate
from tickgraph.learn.storage import Stacked, flatten
from tickgraph.learn.trunk import whiten
from tickgraph.learn.update import groups

PATHS = {
    "written": Switches(manual=True),
    "copies": Switches(manual=True, copies=True),
    "joined": Switches(manual=True, joined=True),
    "as on a GPU": ON_A_GPU,
}


@pytest.fixture(scope="module", params=[1, 2, 3])
def learner(request) -> FlashSac:
    return made(request.param)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return made_batch()


def updates(learner: FlashSac, path: Switches) -> tuple[CriticUpdate, ActorUpdate]:
    dtype = torch.bfloat16 if learner.cfg.bf16 else torch.float32
    arena, copies = Arena("cpu"), [None, None]
    if path.copies:
        target = learner.target_storage.parameters
        copies = [
            Stacked(learner.critic_storage, target, dtype, arena, "critic"),
            Stacked(learner.actor_storage, None, dtype, arena, "actor"),
        ]
        for copy in copies:
            copy.refresh()
    critic = CriticUpdate(
        learner.cfg, learner.critic_storage, learner.target_storage.parameters, learner.atoms, path, copies[0]
    )
    return critic, ActorUpdate(learner.cfg, learner.actor_storage, critic, path, copies[1])


def close(mine: torch.Tensor, wanted: torch.Tensor, limit: float = 1e-5) -> None:
    mine, wanted = mine.detach(), wanted.detach()
    assert (mine - wanted).norm() <= limit * wanted.norm(), (mine, wanted)


def compare(mine, wanted, network, storage, limit: float = 1e-5) -> None:
    """Hold losses, figures, statistics, and the gradient of each parameter to the readable form's."""
    assert not mine.grad.requires_grad and not mine.loss.requires_grad
    for name in wanted._fields:
        close(getattr(mine, name), getattr(wanted, name), limit)
    named = storage.named(mine.grad)
    parameters = dict(network.named_parameters())
    grads = torch.autograd.grad(wanted.loss, list(parameters.values()))
    assert set(named) == set(parameters)
    for name, grad in zip(parameters, grads, strict=True):
        close(named[name], grad, limit)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_critic(learner, batch, path):
    torch.manual_seed(2)
    successor, alpha = (torch.rand(B, 3), torch.randn(B)), torch.tensor(0.3)
    mine = updates(learner, path)[0].gradient(batch, successor, alpha.log())
    wanted = flashsac.critic_objective(learner.critic, learner.target, alpha, batch, successor, learner.atoms)
    compare(mine, wanted, learner.critic, learner.critic_storage)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_actor(learner, batch, path):
    torch.manual_seed(3)
    noise, alpha = torch.randn(B, 3), torch.tensor(0.3)
    actor = updates(learner, path)[1]
    mine = actor.gradient(batch, noise, alpha)
    wanted = flashsac.actor_objective(
        learner.actor, learner.frozen_critic, alpha, batch, noise, learner.atoms, learner.cfg.bc_weight
    )
    compare(mine, wanted, learner.actor, learner.actor_storage)
    for found, expected in zip(
        actor.next_action(batch.actor_obs[B:], noise), flashsac.next_action(learner.actor, batch, noise), strict=True
    ):
        close(found, expected)


def everything(learner: FlashSac, path: Switches | None, batch: Batch) -> list[torch.Tensor]:
    """Return what both objectives return, and both flat gradients; without a path by the readable form."""
    torch.manual_seed(2)
    successor, noise, alpha = (torch.rand(B, 3), torch.randn(B)), torch.randn(B, 3), torch.tensor(0.3)
    if path is not None:
        critic, actor = updates(learner, path)
        return [*critic.gradient(batch, successor, alpha.log()), *actor.gradient(batch, noise, alpha)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=learner.cfg.bf16, cache_enabled=False):
        critic = flashsac.critic_objective(learner.critic, learner.target, alpha, batch, successor, learner.atoms)
        actor = flashsac.actor_objective(
            learner.actor, learner.frozen_critic, alpha, batch, noise, learner.atoms, learner.cfg.bc_weight
        )
    grads = [
        flatten(torch.autograd.grad(out.loss, storage.ordered(network)))
        for out, storage, network in (
            (critic, learner.critic_storage, learner.critic),
            (actor, learner.actor_storage, learner.actor),
        )
    ]
    return [value.detach() for value in (*critic, grads[0], *actor, grads[1])]


def test_bfloat16_is_as_near_as_under_autocast(batch):
    """What products in bfloat16 cost is what it costs the readable form; what must be float32 is."""
    learners = {bf16: made(2, bf16) for bf16 in (True, False)}
    for learner in learners.values():
        for storage in (learner.actor_storage, learner.critic_storage, learner.target_storage):
            storage.parameters.copy_(storage.projection(storage.parameters))
    exact = everything(learners[False], None, batch)
    for mine, theirs, wanted in zip(
        everything(learners[True], PATHS["copies"], batch), everything(learners[True], None, batch), exact, strict=True
    ):
        assert mine.dtype == torch.float32
        off = [((value - wanted).norm() / wanted.norm()).item() for value in (mine, theirs)]
        assert 0.0 < off[0] <= 2.0 * off[1] + 5e-4


@pytest.mark.parametrize("name", ["written", "as on a GPU"])
def test_ten_cycles_are_the_readable_form_s(name):
    """Every tensor that a cycle writes, after 1 and after 10 cycles of 2 critic updates and 1 of the actor."""
    rigs = [Rig(kernels=Switches(), maths=flashsac), Rig(kernels=PATHS[name])]
    for cycle in range(10):
        for rig in rigs:
            rig.cycle()
        if cycle in (0, 9):
            mine, wanted = (rig.numbers() for rig in reversed(rigs))
            assert set(mine) == set(wanted)
            for key, value in mine.items():
                close(value.double(), wanted[key].double())
    assert rigs[1].learner.updates.item() == 20 and rigs[1].learner.critic_step.adam.steps.item() == 20
    report = rigs[1].cycle.report()
    assert report["update/critic_loss"]["switches"]["manual"] is True


def test_a_cycle_begins_with_true_copies():
    """Parameters that somebody has written, as a checkpoint does, are what the next cycle computes with."""
    rigs = [Rig(kernels=PATHS["written"]), Rig(kernels=PATHS["copies"])]
    for rig in rigs:
        rig.cycle()
        rig.learner.critic_storage.parameters.mul_(-1.0)
        rig.learner.target_storage.parameters.mul_(0.5)
        rig.cycle()
    first, second = (rig.numbers() for rig in rigs)
    for key, value in first.items():
        close(value.double(), second[key].double())


@pytest.mark.parametrize(("updates", "period"), [(4, 2), (3, 2), (1, 2), (2, 3)])
def test_one_pass_for_the_next_actions_of_several_updates(updates, period):
    """The same words, rates and results as with a pass for each update, whatever phase a cycle begins in."""
    apart = PATHS["copies"]
    rigs = [
        Rig(updates, kernels=switches, policy_period=period)
        for switches in (apart, replace(apart, shared_actions=True))
    ]
    for _ in range(4):
        for rig in rigs:
            rig.cycle()
    mine, wanted = (rig.numbers() for rig in reversed(rigs))
    assert set(mine) == set(wanted)
    for key, value in mine.items():
        close(value.double(), wanted[key].double(), 1e-6)
    assert rigs[1].learner.actor_updates.item() == -(-4 * updates // period)


def test_groups_share_an_actor():
    assert groups(0, 8, 2) == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert groups(1, 3, 2) == [(1, 1), (2, 2)]
    assert groups(2, 2, 3) == [(2, 1), (3, 1)]
    assert groups(0, 1, 4) == [(0, 1)]


def test_an_input_has_both_of_its_ends_or_neither():
    obs, action = torch.randn(8, 3), torch.randn(4, 2)
    joined = torch.cat((obs, torch.cat((action, action + 1.0))), dim=-1)
    found, wanted = whiten(obs, torch.float32, action, action + 1.0), whiten(joined, torch.float32)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    for ends in ((action, None), (None, action)):
        with pytest.raises(RuntimeError):
            whiten(obs, torch.float32, *ends)
