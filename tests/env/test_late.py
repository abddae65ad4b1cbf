"""What a term does only in a later tick names the term: error, function, file and line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import (
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.late import of_term
from tickgraph.tasks.cartpole import cartpole_swingup

fault: Callable[[], None] | None = None  # what the terms below do


def _value(env: Env) -> Any:
    if fault is not None:
        fault()
    return env.reward


class _Kept:
    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self.env = env

    def __call__(self, env: Env) -> Any:
        return _value(env)


def _absent() -> None:
    {}["absent"]  # noqa: B018


def _event(env: Env, mask: Any) -> None:
    _value(env)


def _narrow(env: Env) -> Any:
    pos = mdp.joint_pos(env)
    return pos if fault is None else pos[:, :1]


class _Force(mdp.actions.JointEffortAction):
    def process(self, raw: Any) -> None:
        super().process(raw)
        _value(self._env)


def _env(kind: str) -> Env:
    cfg = cartpole_swingup().env
    if kind == "rewards":
        cfg.rewards["late"] = RewardTermCfg(_value)
    elif kind == "metrics":
        cfg.metrics["late"] = MetricTermCfg(_Kept)
    elif kind == "terminations":
        cfg.terminations["late"] = TerminationTermCfg(lambda env: _value(env) > 1.0, time_out=False)
    elif kind == "events":
        cfg.events["late"] = EventTermCfg(_event, "step")
    elif kind == "recorders":
        cfg.recorders["late"] = RecorderTermCfg(_value)
    elif kind == "observations/actor":
        cfg.observations["actor"].terms["late"] = ObservationTermCfg(lambda env: _value(env)[:, None])
    else:
        action = mdp.JointEffortActionCfg(actuator_names=".*")
        action.class_type = _Force
        cfg.actions = {"late": action}
    return Env(cfg, 2, execution="eager")


def _failure(env: Env, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> BaseException:
    env.tick()
    monkeypatch.setattr(sys.modules[__name__], "fault", act)
    with pytest.raises((Exception, SystemExit)) as caught:
        env.tick()
    env.close()
    return caught.value


@pytest.mark.parametrize(
    "kind", ["rewards", "metrics", "terminations", "events", "recorders", "observations/actor", "actions"]
)
def test_a_late_error_names_its_term(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = of_term(_failure(_env(kind), _absent, monkeypatch))
    assert re.fullmatch(
        rf"term {kind}/late: KeyError: 'absent' at _absent \(.*test_late\.py:\d+\) in program 'tick/.*'", str(named)
    )


def test_a_late_end_of_the_program_names_its_term(monkeypatch: pytest.MonkeyPatch) -> None:
    named = of_term(_failure(_env("rewards"), lambda: sys.exit(0), monkeypatch))
    assert "term rewards/late: SystemExit: it ends the program at <lambda> (" in str(named)


def test_an_observation_that_changes_its_size_names_its_term(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = cartpole_swingup().env
    cfg.observations["actor"].terms["late"] = ObservationTermCfg(_narrow)
    error = _failure(Env(cfg, 2, execution="eager"), _absent, monkeypatch)
    assert isinstance(error, TickgraphError)
    assert "term observations/actor/late returned (2, 1) in a later tick, expected (2, 2) as at first" in str(error)


def test_what_no_term_raised_has_no_line() -> None:
    try:
        _absent()
    except KeyError as error:
        assert of_term(error) is None


def test_the_end_of_the_program_while_building_names_its_term() -> None:
    cfg = cartpole_swingup().env
    cfg.rewards["early"] = RewardTermCfg(lambda env: sys.exit(0))
    with pytest.raises(TickgraphError, match=r"term rewards/early: SystemExit: it ends the program at <lambda> \("):
        Env(cfg, 2, execution="eager")
    (blocker,) = Env(cfg, 2, "meta", execution="eager").blockers()
    assert (blocker.term, blocker.reason) == ("early", "raises SystemExit: 0")
