"""A small FlashSAC amid training and a batch that is hard on it, for tests of the forms of its objectives."""

import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.replay import Batch

B = 64


def made(blocks: int, bf16: bool = False) -> FlashSac:
    widths = dict(actor_width=16, actor_blocks=blocks, critic_width=24, critic_blocks=blocks)
    cfg = FlashSacCfg(**widths, batch_size=B, bc_weight=0.3, bf16=bf16)
    learner = FlashSac(cfg, {"actor": 7, "critic": 9}, 3, 4, Arena("cpu"), 0, total_updates=100)
    torch.manual_seed(0)
    for storage in (learner.actor_storage, learner.critic_storage):
        storage.statistics[0].normal_()
        storage.statistics[1].uniform_(0.5, 2.0)
    for storage in (learner.actor_storage, learner.critic_storage, learner.target_storage):
        storage.parameters.add_(torch.randn_like(storage.parameters) * 0.1)
    return learner


def made_batch() -> Batch:
    torch.manual_seed(1)
    return Batch(
        torch.randn(2 * B, 7) * 3 + 1,
        torch.randn(2 * B, 9) * 3 + 20,  # far from 0, where a careless variance loses digits
        torch.rand(B, 3) * 2 - 1,
        torch.randn(B) * 3,  # beyond the support too
        torch.rand(B) * (torch.rand(B) > 0.2),
        torch.zeros(()),
    )
