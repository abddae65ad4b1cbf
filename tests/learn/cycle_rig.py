"""A small learner with a ring of made-up transitions, for tests of how an update cycle computes."""

from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.learner import AlgoCfg
from tickgraph.learn.path import Switches
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
        algo: configuration of the algorithm.
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
        algo: type[AlgoCfg] = FlashSacCfg,
        **options: Any,
    ) -> None:
        settings = dict(actor_width=8, critic_width=12, batch_size=16, atoms=21)
        settings |= dict(actor_blocks=2, critic_blocks=2) if algo is FlashSacCfg else {}
        self.cfg = algo(**(settings | options))
        self.arena = Arena(device)
        self.learner: Any = make_learner(self.cfg, DIMS, ACTIONS, WORLDS, self.arena, 0, 100)
        self.ring = make_ring(self.learner, 32, WORLDS)
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
