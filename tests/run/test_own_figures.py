"""A task's own figures of an evaluation: numbers by name, and one line that says what is wrong with them."""

from __future__ import annotations

import math

import pytest
import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.run.evaluate import BUILT_IN, EvalTrace, check_figures, check_record_room, evaluate, own_figures
from tickgraph.tasks.cartpole import cartpole_swingup


def _trace() -> EvalTrace:
    """Two worlds, three steps; the second world's last step is not counted."""
    counted = torch.tensor([[True, True], [True, True], [True, False]])
    flags = torch.tensor([True, False])
    signals = {"distance": torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 9.0]])}
    return EvalTrace(0.02, counted, flags, ~flags, torch.zeros(2), torch.tensor([3, 2]), signals)


def _absent(trace):
    return {"speed": trace.mean("distance")[0] / {}["speed"]}


def test_figures_are_numbers_whatever_they_are_made_of() -> None:
    made = own_figures(lambda trace: {"m": trace.mean("distance").mean(), "whole": 3, "nan": math.nan}, _trace())
    assert made == {"m": 2.5, "whole": 3.0, "nan": None}


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        (lambda trace: {"m": trace.mean("distanc")}, "no recorder 'distanc'; did you mean 'distance'"),
        (
            lambda trace: {"m": trace.mean("distance")},
            r"'m' is a tensor \(2,\), expected a number",
        ),
        (lambda trace: {"m": "far"}, r"evaluation\.figures: 'm' is 'far', expected a number"),
        (lambda trace: {"survival": 1.0}, r"evaluation\.figures: 'survival' is what every evaluation reports"),
        (lambda trace: 3, r"evaluation\.figures returned int, expected a dictionary of numbers"),
        (_absent, r"evaluation\.figures: KeyError: 'speed' at _absent \(.*test_own_figures\.py:\d+\)"),
    ],
)
def test_wrong_figures_are_one_line(figures, text) -> None:
    with pytest.raises(TickgraphError, match=text) as caught:
        own_figures(figures, _trace())
    assert "\n" not in str(caught.value)


def _values(trace):
    raise ValueError("no step is upright")


def test_figures_are_tried_before_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    task = cartpole_swingup()
    check_figures(task, "mujoco")
    seen = []
    task.evaluation.figures = lambda trace: seen.append(trace) or {}
    check_figures(task, "mujoco")
    (trace,) = seen
    assert trace.signals["cart_pos"].shape == (500, 2, 1) and trace.counted.shape == (500, 2)
    assert capsys.readouterr().err == ""
    for figures, text in (
        (lambda trace: {"m": trace.mean("distance")}, "no recorder 'distance'"),
        (lambda trace: {"m": trace.mean("cart_pos")[:, 0]}, r"a tensor \(2,\), expected a number"),
        (_absent, "no recorder 'distance'"),
        (lambda trace: {"m": trace.signals["speed"].mean()}, "KeyError: 'speed'"),
    ):
        task.evaluation.figures = figures
        with pytest.raises(TickgraphError, match=text):
            check_figures(task, "mujoco")
    task.evaluation.figures = _values  # may be due to the zeros
    check_figures(task, "mujoco")
    assert "ValueError: no step is upright at _values" in capsys.readouterr().err


def test_the_names_of_every_evaluation_are_those_it_reports() -> None:
    task = cartpole_swingup()
    task.evaluation.episodes, task.evaluation.episode_s, task.evaluation.figures = 2, 0.1, None
    assert {*evaluate(task, None), "report"} == set(BUILT_IN)


def test_a_record_that_no_machine_can_hold_is_refused_before_the_training() -> None:
    task = cartpole_swingup()
    task.evaluation.episodes = 10**9
    expected = r"the record of 1000000000 episodes of 500 steps needs .* use fewer episodes \(evaluation\.episodes\)"
    with pytest.raises(TickgraphError, match=expected):
        check_figures(task, "mujoco")
    with pytest.raises(TickgraphError, match="shorter ones"):
        check_record_room(500, 10**9, [])
    check_record_room(500, 100, [torch.zeros(2, 29)])
