"""The fused objectives against the readable ones: losses, gradients and statistics within 1e-5."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn import flashsac, fused
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.replay import Batch

B = 64


@pytest.fixture(scope="module", params=[1, 2])
def learner(request) -> FlashSac:
    blocks = request.param
    cfg = FlashSacCfg(
        actor_width=16, actor_blocks=blocks, critic_width=24, critic_blocks=blocks, batch_size=B, bc_weight=0.3
    )
    made = FlashSac(cfg, {"actor": 7, "critic": 9}, 3, 4, Arena("cpu"), 0, total_updates=100)
    torch.manual_seed(0)
    for storage in (made.actor_storage, made.critic_storage):
        storage.statistics[0].normal_()
        storage.statistics[1].uniform_(0.5, 2.0)
    for storage in (made.actor_storage, made.critic_storage, made.target_storage):
        storage.parameters.add_(torch.randn_like(storage.parameters) * 0.1)
    return made


@pytest.fixture(scope="module")
def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(
        torch.randn(2 * B, 7) * 3 + 1,
        torch.randn(2 * B, 9) * 3 + 20,  # far from 0, where a careless variance loses digits
        torch.rand(B, 3) * 2 - 1,
        torch.randn(B),
        torch.rand(B),
        torch.zeros(()),
    )


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
