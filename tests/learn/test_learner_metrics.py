"""The learner's accumulators by hand: means of what was taken, counts of what was not, and the newest values."""

import math

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.learn.metrics import Metrics
from tickgraph.learn.optimizer import in_line
from tickgraph.learn.storage import flatten


def scalars(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


@pytest.mark.parametrize("flat", [flatten, in_line])
def test_means_are_over_updates_that_were_taken(flat):
    counter, totals = torch.zeros(1, dtype=torch.int64), (("redraws", "odd"), ("odd",))
    names = ((("loss", "q"), ("actor_loss",)), (("rate",), ("scale", "alpha")), totals)
    metrics = Metrics(Arena("cpu"), *names, {"refused": counter}, flat)
    yes, no = torch.tensor(True), torch.tensor(False)

    def figures() -> dict:
        return {name.removeprefix("loss/"): value for name, value in metrics.figures(metrics.packed().tolist()).items()}

    assert all(not value for value in figures().values()) and figures()["rate"] is None
    metrics.add(0, scalars(2.0, 1.0), scalars(0.5), yes, [torch.tensor(3), no])
    metrics.add(0, scalars(math.nan, math.inf), scalars(0.25), no, [torch.tensor(4), yes])
    metrics.add(0, scalars(4.0, -1.0), scalars(0.125), yes, [torch.tensor(0), yes])
    metrics.add(1, scalars(7.0), scalars(8.0, 9.0), no, [yes])
    counter += 5
    assert figures() == {
        **{"loss": 3.0, "q": 0.0, "rate": 0.125, "actor_loss": None, "scale": 8.0, "alpha": 9.0},
        **{"skipped_updates": 2, "redraws": 7, "odd": 3, "refused": 5},
    }
    metrics.clear()
    assert figures() == {
        **{"loss": None, "q": None, "rate": 0.125, "actor_loss": None, "scale": 8.0, "alpha": 9.0},
        **{"skipped_updates": 0, "redraws": 0, "odd": 0, "refused": 0},
    }
    metrics.add(1, scalars(7.0), scalars(1.0, 2.0), yes, [no])
    assert (figures()["actor_loss"], figures()["scale"], figures()["skipped_updates"]) == (7.0, 1.0, 0)
