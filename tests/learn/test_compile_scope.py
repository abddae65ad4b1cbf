"""Where the tails alone are compiled, losses and gradients are those of objectives that run eager."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.replay import Batch
from tickgraph.learn.sac import SacCfg
from tickgraph.learn.storage import flatten
from tickgraph.learn.update import UpdateCycle

B, ACTIONS, DIMS = 16, 2, {"actor": 5, "critic": 6}
SMALL = dict(actor_width=8, critic_width=8, batch_size=B, atoms=11)
CFGS = {"flashsac": FlashSacCfg(**SMALL, actor_blocks=1, critic_blocks=1), "sac": SacCfg(**SMALL, v_max=3.0)}


def cycle_of(algo: str, mode: str, scope: str) -> UpdateCycle:
    learner = make_learner(CFGS[algo], DIMS, ACTIONS, 4, Arena("cpu"), 0, 100)
    made_up = torch.Generator().manual_seed(1)
    for storage in (learner.actor_storage, learner.critic_storage, learner.target_storage):
        storage.parameters.add_(0.1 * torch.randn(storage.parameters.shape, generator=made_up))
    return UpdateCycle(learner, make_ring(learner, 8, 4), 1, mode, scope)


def objectives(cycle: UpdateCycle) -> list[torch.Tensor]:
    """Return what both objectives return, and their gradients, for one made-up batch."""
    torch.manual_seed(2)
    obs = [2.0 * torch.randn(2 * B, width) + 1.0 for width in DIMS.values()]
    discount = torch.where(torch.rand(B) < 0.2, 0.0, 0.9)
    batch = Batch(*obs, torch.rand(B, ACTIONS) * 2 - 1, torch.randn(B), discount, torch.zeros((), dtype=torch.int64))
    noise, found = torch.randn(2, B, ACTIONS), []
    pairs = ((cycle._actor_loss, cycle._actor_parameters), (cycle._critic_loss, cycle._critic_parameters))
    for (objective, parameters), draw in zip(pairs, noise, strict=True):
        out = objective(batch, draw)
        found += [*out, flatten(torch.autograd.grad(out.loss, parameters))]
    return [value.detach() for value in found]


@pytest.mark.parametrize("algo", ["flashsac", "sac"])
def test_compiled_tails_give_the_numbers_of_an_eager_objective(algo):
    # That an objective compiled as a whole does is a matter of test_update.py and test_sac.py.
    cycle = cycle_of(algo, "compile", "loss")
    for mine, wanted in zip(objectives(cycle), objectives(cycle_of(algo, "eager", "objective")), strict=True):
        assert (mine - wanted).norm() <= 1e-5 * wanted.norm() + 1e-9
    report = cycle.report()
    for tail in ("actor", "labels", "critic"):
        row = report[f"update/{tail}_tail"]
        assert (row["enabled"], row["captures"], row["recompiles"]) == ("compile", 1, 0)
        assert row["eager_fallbacks"] == 0
    other = cycle_of(algo, "compile", "objective").report()
    assert not [name for name in other if name.endswith("_tail")]
    for name in ("update/actor_loss", "update/critic_loss"):
        assert (report[name]["compile_scope"], report[name]["enabled"]) == ("loss", "eager")
        assert (other[name]["compile_scope"], other[name]["enabled"]) == ("objective", "compile")


def test_there_are_two_scopes():
    with pytest.raises(TickgraphError, match="compile_scope is 'los'; did you mean 'loss'"):
        cycle_of("sac", "eager", "los")
