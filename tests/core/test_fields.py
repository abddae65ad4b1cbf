"""Values of configurations are held to the types of their fields, and what has no plain type is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tickgraph.core.bounds import Positive, Range  # noqa: F401  # in annotations
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import check_arguments, check_fields, check_tree
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.run.config import EvaluationCfg, TrainCfg, VideoCfg


@dataclass
class Cfg:
    count: int = 1
    rate: float = 0.5
    fast: bool = False
    name: str = ""
    late: float = None  # type: ignore[assignment]  # meant, if not written
    limit: float | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    many: tuple[str, ...] = ()
    mode: Literal["a", "b"] = "a"
    scale: float | torch.Tensor | None = None
    call: Callable[[], None] | None = None
    rest: Any = None


@pytest.mark.parametrize(
    "values",
    [
        {"count": np.int64(3), "rate": 1, "fast": np.bool_(True)},
        {"rate": np.float32(0.1), "late": None, "limit": 2},
        {"pair": [1, 2.0], "many": ["x"], "mode": "b"},
        {"scale": torch.ones(2), "call": print, "rest": object()},
    ],
)
def test_what_fits_passes(values: dict[str, Any]) -> None:
    check_fields(Cfg(**values), "cfg")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"count": 10.5}, "cfg.count is 10.5, expected a whole number"),
        ({"count": True}, "cfg.count is True, expected a whole number"),
        ({"rate": "x"}, "cfg.rate is 'x', expected a number"),
        ({"rate": None}, "cfg.rate is None, expected a number"),
        ({"fast": 1}, "cfg.fast is 1, expected True or False"),
        ({"name": 3}, "cfg.name is 3, expected text"),
        ({"limit": "x"}, "cfg.limit is 'x', expected a number or None"),
        ({"pair": (1.0,)}, r"cfg.pair is \(1.0,\), expected 2 values, each a number"),
        ({"many": "x"}, "cfg.many is 'x', expected any number of values, each text"),
        ({"mode": 1}, "cfg.mode is 1, expected one of a, b"),
        ({"mode": "c"}, "cfg.mode is 'c', expected one of a, b"),
        ({"scale": "2"}, "cfg.scale is '2', expected a number or a Tensor or None"),
        ({"rate": float("nan")}, "cfg.rate is nan, expected a number"),
        (
            {"pair": np.array([0.0, 1.0])},
            r"expected 2 values, each a number; give the array's .tolist\(\)$",
        ),
        ({"rate": torch.tensor(0.5)}, r"expected a number; give the array's .tolist\(\)$"),
        ({"rate": torch.ones(2)}, r"expected a number$"),
        ({"rate": torch.ones((), device="meta")}, r"expected a number$"),
        ({"call": 3}, "cfg.call is 3, expected a function or a class or None"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(TickgraphError, match=text):
        check_fields(Cfg(**values), "cfg")


@dataclass
class Derived(Cfg):
    kind = "class attribute"

    def __post_init__(self) -> None:
        self.computed = 2 * self.count


def test_an_attribute_that_is_no_field_is_refused_and_a_class_may_keep_its_own() -> None:
    wrong, kept = Cfg(), Derived()
    kept.kind, kept._cache, kept.computed = "another", 1, 3
    check_tree({"kept": kept}, "env")
    wrong.cuont = 3
    with pytest.raises(TickgraphError, match=r"^env\.terms\.x has no field 'cuont'; did you mean 'count'\?$"):
        check_tree({"terms": {"x": wrong}}, "env")
    with pytest.raises(TickgraphError, match="^Cfg has no field 'cuont'"):
        check_tree(wrong, "")


def test_a_default_that_dataclasses_do_not_take_is_refused() -> None:
    class Bare(Cfg):
        count = 7

    @dataclass
    class Untyped(Cfg):
        count = 7

    @dataclass
    class Typed(Cfg):
        count: int = 7

    class Further(Typed):
        """Says nothing of its own."""

    assert Bare().count == Untyped().count == Cfg().count != 7 == Typed().count
    check_tree({"a": Typed(), "b": Further(), "c": Cfg()}, "env")
    for made, text in ((Bare(), "Bare"), (Untyped(), "Untyped")):
        with pytest.raises(TickgraphError, match=rf"^env\.x: {text} sets count = 7, which is not taken as a default; "):
            check_tree({"x": made}, "env")


def term(env, std, names, free=0.0, *, ranges=None):
    """Stand for a term."""


# As modules have them that import annotations from __future__, some quoted all the same, some for readers alone.
term.__annotations__ = {
    "std": "'Positive'", "names": "1 / 0", "free": "'float'", "ranges": "dict[str, Range]", "return": "None",
}  # fmt: skip


def test_arguments_are_held_to_the_bounds_in_annotations() -> None:
    check_arguments(term, {"std": 1.0, "names": 5, "free": "left alone", "ranges": {"x": (0, 1)}}, "term t")
    check_arguments(print, {"sep": 5}, "term t")
    with pytest.raises(TickgraphError, match="term t: std is 0.0, expected a finite number above 0"):
        check_arguments(term, {"std": 0.0}, "term t")
    with pytest.raises(TickgraphError, match=r"term t: ranges.x is \(1, 0\), expected two finite numbers, low <= high"):
        check_arguments(term, {"ranges": {"x": (1, 0)}}, "term t")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TrainCfg(iterations=10.5), "train.iterations is 10.5, expected a whole number"),
        (lambda: TrainCfg(seed="x"), "train.seed is 'x', expected a whole number"),
        (lambda: EvaluationCfg(episodes=2.5), "evaluation.episodes is 2.5, expected a whole number"),
        (lambda: VideoCfg(seconds="x"), "video.seconds is 'x', expected more than 0 and at most 3600 seconds"),
        (lambda: FlashSacCfg(gamma="x"), "FlashSacCfg.gamma is 'x', expected a number"),
        (lambda: SacCfg(batch_size=16.5), "SacCfg.batch_size is 16.5, expected a whole number"),
    ],
)
def test_configurations_hold_their_values_to_it(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TickgraphError, match=text):
        make()
