"""What terms hold from their building: found wherever their code reaches, and told apart by its numbers."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from judge_rig import Env, N

from tickgraph.core.held import differing, held_numbers, sums_of
from tickgraph.core.judge import JudgedCall

LOADED = [0.25, 0.5]


class Style:
    scale = torch.ones(2)

    def __init__(self, env: Env, weight: float) -> None:
        self.w = torch.full((3,), weight)
        self.deep = {"net": torch.nn.Linear(2, 1)}
        self.gain, self.count = weight, 3
        self.state = env.x
        self.array = np.array([1.0, weight])

    def __call__(self, env: Env) -> float:
        return LOADED[0]


def held_by_style(weight: float, seed: int = 0) -> Any:
    env = Env("cpu")
    torch.manual_seed(seed)
    style = Style(env, weight)
    call = JudgedCall("rewards", "style", lambda: style(env), Style, (env, style), env.arena)
    return held_numbers([call])


def test_everything_that_is_held_is_found_and_state_and_counts_are_not() -> None:
    held = held_by_style(0.5)["rewards/style"]
    assert held["self.w"] == sums_of(torch.full((3,), 0.5))
    assert {"self.deep['net'].weight", "self.gain", "self.array", "Style.scale", "global LOADED[1]"} <= held.keys()
    assert not {"self.state", "self.count"} & held.keys()


def test_the_first_that_differs_is_named_and_what_rounds_otherwise_is_not() -> None:
    before = held_by_style(0.5)
    assert differing(before, held_by_style(0.5)) == []
    assert differing(before, held_by_style(0.5 * (1 + 1e-7))) == []
    assert differing(before, held_by_style(0.6)) == [("rewards/style", "self.w")]
    assert differing(before, held_by_style(0.5, seed=1)) == [("rewards/style", "self.deep['net'].weight")]
    assert differing({}, held_by_style(0.6)) == []


def test_what_a_function_is_given_counts() -> None:
    env = Env("cpu")

    def term(env: Env, buf: torch.Tensor, gain: float) -> torch.Tensor:
        return buf

    func: Callable[..., Any] = functools.partial(term, gain=0.5)
    params = {"buf": torch.ones(N)}
    [names] = held_numbers([JudgedCall("rewards", "f", lambda: None, func, (env,), env.arena, params)]).values()
    assert names.keys() == {"parameter buf", "argument gain"}


def test_order_counts_and_what_is_not_finite_is_plain_json() -> None:
    assert sums_of(torch.tensor([1.0, 2.0]))[1:] != sums_of(torch.tensor([2.0, 1.0]))[1:]
    assert sums_of(torch.tensor([float("nan"), float("inf")]))[0] == [2]
    assert all(abs(value) < 1e309 for value in sums_of(torch.tensor([float("nan"), float("inf")]))[1:])
    assert sums_of(torch.empty(0))[1:] == [0.0, 0.0]
