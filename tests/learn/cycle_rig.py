"""A small FlashSAC learner with a ring of made-up transitions, for tests of how an update cycle computes."""

from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.path import Switches
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import UpdateCycle

WORLDS, DIMS, ACTIONS, TICKS = 4, {"actor": 5, "critic": 6}, 2, 20


class Rig:
    """Learner, ring and cycle on a device.

    Args:
        updates: critic updates a cycle.
        mode: execution.
        kernels: switches of the learner.
        maths: module to take objectives from, where autograd computes.
        compile_scope: of the cycle.
        spoil: called with each tick's (obs, action, reward, final observations) before it is written.
        options: of the configuration.
    """

    def __init__(
        self,
        updates: int = 2,
        mode: str = "eager",
        kernels: str | Switches = "auto",
        maths: Any = None,
        spoil: Any = None,
        device: str = "cpu",
        compile_scope: str = "objective",
        **options: Any,
    ) -> None:
        settings = dict(actor_width=8, actor_blocks=2, critic_width=12, critic_blocks=2, batch_size=16, atoms=21)
        self.cfg = FlashSacCfg(**(settings | options))
        self.arena = Arena(device)
        self.learner = FlashSac(self.cfg, DIMS, ACTIONS, WORLDS, self.arena, 0, 100)
        normalizer = self.learner.normalizer
        steps = (self.cfg.n_step, self.cfg.gamma)
        self.ring = Ring(self.arena, 32, WORLDS, DIMS, ACTIONS, *steps, normalizer=normalizer)
        self.cycle = UpdateCycle(self.learner, self.ring, updates, mode, compile_scope, kernels)
        if maths is not None:
            self.learner.maths = maths
        self.arena.seal()
        made_up = torch.Generator().manual_seed(5)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made_up)

        for tick in range(TICKS):
            obs, final = ({name: random(WORLDS, width) * 2 + 1 for name, width in DIMS.items()} for _ in range(2))
            ends = torch.rand(2, WORLDS, generator=made_up) < 0.1
            action, reward = torch.tanh(random(WORLDS, ACTIONS)), random(WORLDS)
            if spoil is not None:
                spoil(tick, obs, action, reward)
            flags = (ends[0], ends[1] & ~ends[0], ends[0] | ends[1])
            obs, final = ({name: value.to(device) for name, value in group.items()} for group in (obs, final))
            self.ring.write(obs, action.to(device), reward.to(device), *(flag.to(device) for flag in flags), final)
        self.ring.publish()

    def numbers(self) -> dict[str, Tensor]:
        """Return every tensor that the cycle may write, by name."""
        return {name: value for name, value in self.arena.snapshot().items() if not name.startswith("ring/")}
