"""The fused objectives against the readable ones: losses, gradients and statistics within 1e-5."""

import pytest
import torch
from objective_rig import B, made, made_batch

from tickgraph.learn import flashsac, fused
from tickgraph.learn.flashsac import FlashSac
from tickgraph.learn.replay import Batch


@pytest.fixture(scope="module", params=[1, 2])
def learner(request) -> FlashSac:
    return made(request.param)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return made_batch()


def close(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    mine, wanted = mine.detach(), wanted.detach()
    assert (mine - wanted).norm() <= 1e-5 * wanted.norm(), (mine, wanted)


def test_actor(learner, batch):
    noise, results = torch.randn(B, 3), []
    for maths in (fused, flashsac):
        out = maths.actor_objective(
            learner.actor, learner.frozen_critic, learner.alpha(), batch, noise, learner.atoms, learner.cfg.bc_weight
        )
        results.append((*out, *torch.autograd.grad(out.loss, list(learner.actor.parameters()))))
    for mine, wanted in zip(*results, strict=True):
        close(mine, wanted)


def test_next_action(learner, batch):
    noise = torch.randn(B, 3)
    mine, wanted = (maths.next_action(learner.actor, batch, noise) for maths in (fused, flashsac))
    close(mine[0], wanted[0])
    close(mine[1], wanted[1])


def test_critic(learner, batch):
    successor, results = (torch.rand(B, 3), torch.randn(B)), []
    for maths in (fused, flashsac):
        out = maths.critic_objective(learner.critic, learner.target, learner.alpha(), batch, successor, learner.atoms)
        results.append((*out, *torch.autograd.grad(out.loss, list(learner.critic.parameters()))))
    for mine, wanted in zip(*results, strict=True):
        close(mine, wanted)


def test_no_gradient_is_computed_for_the_critic_under_the_actor(learner, batch):
    out = fused.actor_objective(
        learner.actor, learner.frozen_critic, learner.alpha(), batch, torch.randn(B, 3), learner.atoms, 0.0
    )
    assert not any(p.requires_grad for p in learner.frozen_critic.parameters())
    with pytest.raises(RuntimeError):
        torch.autograd.grad(out.loss, list(learner.critic.parameters()))
