"""Device-side checks: counted, latched, polled."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rng import Rng
from tickgraph.core.verdict import Verdicts


def test_flags_are_counted_and_the_first_tick_is_kept():
    arena = Arena("cpu")
    rng = Rng(arena, 4, seed=0)
    verdicts = Verdicts(arena)
    reward = verdicts.declare("non_finite/reward", "a reward term divides by zero")
    verdicts.declare("quiet", "never fires")
    with pytest.raises(TickgraphError, match="declared already"):
        verdicts.declare("quiet", "again")
    arena.seal()
    for rows in ([0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]):
        rng.advance()
        assert reward.flag(torch.tensor(rows, dtype=torch.bool)) == sum(rows)
    expected = {"name": "non_finite/reward", "count": 3, "first_tick": 2, "why": "a reward term divides by zero"}
    assert verdicts.poll() == [expected]
    assert verdicts.poll(clear=True) == [expected]
    assert verdicts.poll() == []
    reward.flag(torch.tensor([True, False, False, False]))
    assert verdicts.poll()[0]["first_tick"] == 3
