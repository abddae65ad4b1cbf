"""How long a run collects before it learns, and which setting says so."""

import pytest

from tickgraph.run.config import TrainCfg
from tickgraph.run.schedule import Schedule


@pytest.mark.parametrize(
    ("asked", "warmup", "forced", "reason"),
    [
        (50, 50, False, "train.learning_starts is 50"),
        (4, 4, False, "train.learning_starts is 4"),
        (1, 4, True, "train.learning_starts is 1, but one sample takes 4 ticks"),
        (0, 4, True, "train.learning_starts is 0, but one sample takes 4 ticks"),
    ],
)
def test_random_actions_last_as_long_as_was_asked_or_one_sample_takes(
    asked: int, warmup: int, forced: bool, reason: str
) -> None:
    schedule = Schedule(TrainCfg(learning_starts=asked), min_ticks=4)
    assert (schedule.warmup, schedule.warmup_is_forced, schedule.warmup_reason) == (warmup, forced, reason)
