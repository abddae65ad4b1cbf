"""The start of a run: its milestones, and how often Python collects garbage until the first tick."""

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tickgraph.run.startup import FIRST_TICK, RARELY, StartUp, rare_collections
from tickgraph.run.trainer import Trainer

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def first_two() -> tuple[int, int]:
    return gc.get_threshold()[:2]  # newer Pythons keep no third


def test_collections_are_rare_until_the_first_tick_is_over() -> None:
    with rare_collections() as started:
        startup = StartUp(str, then=started)
        with startup.phase("building"):
            assert first_two() == RARELY[:2]
        startup.reached("another")
        assert first_two() == RARELY[:2]
        startup.reached(FIRST_TICK)
        assert first_two() == USUAL[:2]
        gc.set_threshold(5000, 20, 20)  # a task's own choice, later
        startup.reached(FIRST_TICK)
        assert first_two() == (5000, 20)
    assert first_two() == (5000, 20)


def test_collections_are_as_before_after_a_failure() -> None:
    with pytest.raises(KeyError), rare_collections():
        assert first_two() == RARELY[:2]
        raise KeyError
    assert first_two() == USUAL[:2]


@pytest.mark.parametrize("own", [0, 500_000])
def test_a_process_that_collects_as_rarely_is_left_alone(own: int) -> None:
    gc.set_threshold(own, 10, 10)
    with rare_collections() as started:
        assert first_two() == (own, 10)
        started()
        assert first_two() == (own, 10)
    assert first_two() == (own, 10)


def test_the_compiler_collects_nothing_between_programs() -> None:
    config, seen = torch._dynamo.config, list[bool]()
    usual = config.run_gc_after_compile
    iteration = SimpleNamespace(rehearse=lambda: seen.append(config.run_gc_after_compile))
    cycle = SimpleNamespace(report=dict)
    Trainer.prepare(SimpleNamespace(cycle=cycle, iteration=iteration, startup=StartUp(str), _on_cuda=False))
    assert seen == [False] and config.run_gc_after_compile is usual is True


def test_a_milestone_is_noted_once() -> None:
    calls: list[int] = []
    startup = StartUp(str, began=0.0, then=lambda: calls.append(1))
    startup.reached(FIRST_TICK)
    first = startup.seconds[FIRST_TICK]
    startup.reached(FIRST_TICK)
    assert startup.seconds == {FIRST_TICK: first} and first > 0
    assert calls == [1]
