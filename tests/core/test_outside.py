"""Memory that a term keeps outside the arena is found when it is written, whoever holds it, and named."""

import functools
import inspect

import pytest
import torch
from judge_rig import Env, N, judged, marked_line
from torch.nn import functional

from tickgraph.core import judge

BUFFER = torch.zeros(N, device="meta")


class Term:
    def __init__(self) -> None:
        self.b = torch.zeros(N, device="meta")
        self.many = [torch.zeros(N, device="meta"), torch.zeros(N, device="meta")]
        self.table = {"sums": torch.zeros(N, 4, device="meta")}
        self.norm = torch.nn.BatchNorm1d(4, device="meta")
        self.linear = torch.nn.Linear(4, 1, device="meta")


class Plain(Term):
    def __call__(self, env):
        self.b.add_(1.0)  # here
        return self.b + env.x[:, 0]


class ByView(Term):
    def __call__(self, env):
        self.b[:3].unsqueeze(1).copy_(env.x[:3, :1])  # here
        return self.b


class ByOut(Term):
    def __call__(self, env):
        return torch.add(env.x[:, 0], 1.0, out=self.b)  # here


class Augmented(Term):
    def __call__(self, env):
        self.b += 1.0  # here
        return self.b


class InList(Term):
    def __call__(self, env):
        self.many[1].copy_(env.x[:, 0])  # here
        return self.many[0]


class InTable(Term):
    def __call__(self, env):
        rows = self.table["sums"][:, 1]
        rows.masked_fill_(env.mask, 0.0)  # here
        return rows


class Normalised(Term):
    def __call__(self, env):
        return self.norm(env.x)[:, 0]  # here


class NormalisedByFunction(Term):
    def __call__(self, env):
        own = (self.norm.running_mean, self.norm.running_var)
        return functional.batch_norm(env.x, *own, training=True)[:, 0]  # here


class Learning(Term):
    def __call__(self, env):
        self.linear.weight.data.mul_(0.5)  # here
        return self.linear(env.x)[:, 0]


class Through(Term):
    def __call__(self, env):
        add_one(self.b)
        return self.b


def add_one(tensor):
    tensor.add_(1.0)  # here


class Constant(Term):
    def __call__(self, env):
        env.constant.add_(1.0)  # here
        return env.x[:, 0]


class OnTheEnvironment(Term):
    def __call__(self, env):
        env.extras["count"].add_(1.0)  # here
        return env.x[:, 0]


WRITTEN = {
    Plain: "self.b",
    ByView: "self.b",
    ByOut: "self.b",
    Augmented: "self.b",
    InList: "self.many[1]",
    InTable: "self.table['sums']",
    Normalised: "self.norm.num_batches_tracked",
    NormalisedByFunction: "self.norm.running_mean",
    Learning: "self.linear.weight",
    Through: "self.b",
    OnTheEnvironment: "env.extras['count']",
}


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_a_write_outside_the_arena_is_named_with_file_and_line(kind):
    env = Env()
    env.extras["count"] = torch.zeros(N, device="meta")
    blocker = judged(kind, term=kind(), env=env)[0]
    line = marked_line(add_one if kind is Through else kind)
    assert (blocker.kind, blocker.file, blocker.line) == (judge.HOST_STATE, __file__, line)
    remedy = "so no checkpoint holds it: make it with env.arena.new(...)"
    assert blocker.reason == f"writes {WRITTEN[kind]}, which is outside the arena, {remedy}"


def test_closures_globals_and_defaults():
    own = torch.zeros(N, device="meta")

    def by_closure(env):
        own.add_(1.0)
        return own

    def by_global(env):
        BUFFER.add_(1.0)
        return BUFFER

    def by_default(env, buffer=torch.zeros(N, device="meta")):  # noqa: B008
        buffer.add_(1.0)
        return buffer

    names = [judged(func)[0].reason.split(",")[0] for func in (by_closure, by_global, by_default)]
    assert names == ["writes nonlocal own", "writes global BUFFER", "writes default arguments[0]"]


def test_a_constant_of_the_arena_is_no_state():
    (blocker,) = judged(Constant, term=Constant())
    assert blocker.line == marked_line(Constant)
    assert blocker.reason == (
        "writes constant 'constant', which no checkpoint holds: declare it with env.arena.new(...)"
    )


def test_the_call_goes_on_behind_a_write_and_each_tensor_is_told_once():
    class Both(Term):
        def __call__(self, env):
            self.b.add_(1.0)
            self.b.mul_(2.0)
            self.many[0].add_(1.0)
            return env.x.sum().item()

    found = judged(Both, term=Both())
    first = inspect.getsourcelines(Both.__call__)[1]
    assert [(b.kind, b.line - first) for b in found] == [
        (judge.HOST_STATE, 1),
        (judge.HOST_STATE, 3),
        (judge.HOST_READ, 4),
    ]


class Good(Term):
    """Reads what it holds, and writes what it makes or the arena has."""

    def __call__(self, env):
        made = torch.zeros_like(self.b)
        made[1:].add_(self.b[1:])
        rows = self.table["sums"].clone()
        rows[:, 0] = 1.0
        out = torch.empty(N, device=env.x.device)
        torch.add(made, rows[:, 0], out=out)
        env.x[:, :2].clamp_(-1.0, 1.0)
        env.x.add_(self.linear(env.x))
        self.norm.eval()
        torch.stack(self.many).mul_(2.0)
        return functional.relu(self.norm(env.x)[:, 0] + out, inplace=True)


def test_what_a_term_makes_and_the_arena_may_be_written():
    term = Good()
    term.norm.eval()
    assert judged(Good, term=term) == []


HELD = torch.zeros(N)


def through_a_helper(env):
    return helper(env.x[:, 0])


def helper(x):
    return HELD.add_(x)  # here


def into_a_default(env, buf=torch.zeros(N)):  # noqa: B008  # what is judged
    return buf.mul_(2.0)  # here


@pytest.mark.parametrize(
    ("func", "named"), [(through_a_helper, "global HELD"), (into_a_default, "default arguments[0]")]
)
def test_memory_on_the_cpu_is_first_of_all_kept(func, named):
    [blocker] = judged(func)
    assert blocker.kind == judge.HOST_STATE
    assert blocker.reason.startswith(f"writes {named}, which is outside the arena")
    assert blocker.line == marked_line(helper if func is through_a_helper else func)


def test_a_parameter_and_an_argument_of_a_partial_are_named():
    env, kept = Env(), torch.zeros(N)

    def adds(env, buf):
        return buf.add_(1.0)

    for func, params, named in (
        (adds, {"buf": kept}, "parameter buf"),
        (functools.partial(adds, buf=kept), {}, "argument buf"),
    ):
        call = judge.JudgedCall(
            "rewards", "test", lambda func=func, params=params: func(env, **params), func, (env,), env.arena, params
        )
        assert [b.reason.partition(",")[0] for b in judge.judge_calls([call])] == [f"writes {named}"]


def test_memory_on_the_cpu_that_is_read_is_on_another_device():
    [blocker] = judged(lambda env: env.x[:, 0] + HELD)
    assert (blocker.kind, "that is on cpu" in blocker.reason) == (judge.OTHER_DEVICE, True)
