"""State on the host that a call moves on: generators, iterators, helpers, classes and objects of an author's own."""

import dataclasses
import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
from judge_rig import judged

from tickgraph.core import judge
from tickgraph.core.host_state import fingerprint

numbers = iter(range(10**6))
count = itertools.count()
numpy_generator = np.random.default_rng(0)
torch_generator = torch.Generator()
own_generator = random.Random(0)
helper_calls = []


def endless():
    step = 0
    while True:
        step += 1
        yield step


steps = endless()


def by_iterator(env):
    return env.x[:, 0] * next(numbers)


def by_count(env):
    return env.x[:, 0] * next(count)


def by_generator(env):
    return env.x[:, 0] * next(steps)


def by_numpy_generator(env):
    return env.x[:, 0] * float(numpy_generator.normal())


def by_random(env):
    return env.x[:, 0] * own_generator.random()


def helper(env):
    helper_calls.append(1)
    return env.x[:, 0]


def by_helper(env):
    return helper(env)


HELD = {
    by_iterator: "global numbers",
    by_count: "global count",
    by_generator: "global steps",
    by_helper: "global helper_calls",
}


@pytest.mark.parametrize("func", HELD, ids=lambda func: func.__name__)
def test_what_moves_on_outside_the_term_is_named(func):
    (blocker,) = judged(func)
    assert blocker.kind == judge.HOST_STATE and blocker.reason.startswith(f"changes {HELD[func]} in place; ")


@pytest.mark.parametrize("func", [by_numpy_generator, by_random], ids=lambda func: func.__name__)
def test_a_generator_of_its_own_is_no_stream(func):
    (blocker,) = judged(func)
    name = "numpy_generator" if func is by_numpy_generator else "own_generator"
    assert (blocker.kind, blocker.reason) == (judge.RANDOM, f"draws from global {name}; take an `rng` parameter")


class Counter:
    def __init__(self):
        self.total = 0


@dataclasses.dataclass
class Record:
    name: str = "a"

    def __post_init__(self):
        self.count = 0


class Term:
    calls = 0

    def __init__(self):
        self.counter, self.values, self.module = Counter(), iter([1, 2, 3]), torch.nn.Linear(1, 1)


class CountsInAnObject(Term):
    def __call__(self, env):
        self.counter.total += 1
        return env.x[:, 0]


class MovesAnIterator(Term):
    def __call__(self, env):
        return env.x[:, 0] * next(self.values)


class CountsInItsClass(Term):
    def __call__(self, env):
        CountsInItsClass.calls += 1
        return env.x[:, 0]


class CountsInItsOwnType(Term):
    def __call__(self, env):
        type(self).calls += 1
        return env.x[:, 0]


class SwitchesAModule(Term):
    def __call__(self, env):
        self.module.train(not self.module.training)
        return env.x[:, 0]


class CountsBesideTheFields(Term):
    def __call__(self, env):
        self.record.count += 1
        return env.x[:, 0]

    def __init__(self):
        self.record = Record()


class ResetsAGlobal(Term):
    def __call__(self, env):
        return env.x[:, 0]

    def reset(self, env):
        helper_calls.append(1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CountsInAnObject, "changes CountsInAnObject.counter in place"),
        (MovesAnIterator, "changes MovesAnIterator.values in place"),
        (CountsBesideTheFields, "changes CountsBesideTheFields.record in place"),
        (CountsInItsClass, "CountsInItsClass.calls"),
        (CountsInItsOwnType, "assigns CountsInItsOwnType.calls"),
        (SwitchesAModule, "changes SwitchesAModule.module in place"),
    ],
)
def test_what_a_term_holds_is_looked_into(kind, reason):
    (blocker,) = judged(kind, term=kind())
    assert blocker.kind == judge.HOST_STATE and reason in blocker.reason


def test_every_method_counts():
    term = ResetsAGlobal()
    (blocker,) = judged(lambda env: term.reset(env), func=ResetsAGlobal)
    assert "global helper_calls" in blocker.reason


@dataclasses.dataclass
class Settings:
    gains: tuple[float, ...] = (1.0, 2.0)
    name: str = "a"


class Good(Term):
    """What any term may do on the host."""

    settings = Settings()

    def __init__(self):
        super().__init__()
        self.rows = {"a": 0, "b": 1}
        self.scale = functools.partial(torch.mul, other=2.0)

    def __call__(self, env):
        picked = next(i for i, name in enumerate("abc") if name == "b")
        total = sum(gain * math.sqrt(4.0) for gain in dataclasses.replace(self.settings, name="b").gains)
        assert isinstance(env.x, torch.Tensor) and len(self.rows) == 2, f"{self.settings.name} of {env.x.shape}"
        columns = [env.x[:, row] for name, row in sorted(self.rows.items()) if getattr(self, "on", True)]
        for step, (low, high) in zip(range(2), itertools.pairwise((0.0, 1.0, 2.0)), strict=True):
            columns.append(env.x[:, step].clamp(low, high))
        return self.scale(torch.stack(columns).sum(0)) * total + env.x[:, picked]


def test_good_host_code_passes():
    assert judged(Good, term=Good()) == []


def test_looking_moves_nothing_and_sees_the_same_twice():
    cycle = itertools.cycle("ab")
    next(cycle), next(cycle), next(cycle)  # in its second round
    kinds = (
        iter("ab"),
        iter({"a": 1}),
        iter({1, 2}),
        reversed([1, 2]),
        enumerate("ab"),
        zip("ab", "cd", strict=True),
        map(str, "ab"),
    )
    more = (
        zip("ab", "cd", strict=True),
        itertools.islice("abc", 2),
        itertools.chain("ab", "cd"),
        cycle,
        (x for x in "ab"),
    )
    held = [numbers, count, steps, numpy_generator, torch_generator, own_generator, *kinds, *more]
    for value in held:
        assert fingerprint(value) == fingerprint(value), value
    before = next(count)
    fingerprint(count)
    assert next(count) == before + 1 and next(cycle) == "b"
    for value in (*kinds, *more):
        old = fingerprint(value)
        next(value)
        assert fingerprint(value) != old, value
