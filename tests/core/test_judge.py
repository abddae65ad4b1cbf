"""The judge: every habit that breaks a captured tick is found with its line, and honest terms pass."""

import inspect
import logging
import random
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from judge_rig import Env, N, judged, marked_line

from tickgraph.core import judge
from tickgraph.core.host_state import changed_host_state, host_state
from tickgraph.core.judge import JudgedCall, judge_calls

ARRAY, PLACES = np.arange(4, dtype=np.float32), np.array([0, 2])


# Each bad term marks the line to be named with "# here".
def item(env):
    total = env.x.sum()
    return env.x[:, 0] * total.item()  # here


def branch(env):
    if env.x.sum() > 0:  # here
        return env.x[:, 0]
    return env.x[:, 1]


def as_float(env):
    gain = float(env.scale)  # here
    return env.x[:, 0] * gain


def nonzero(env):
    rows = env.mask.nonzero()  # here
    return rows


def where_rows(env):
    return torch.where(env.mask)[0]  # here


def bool_index(env):
    return env.x[env.mask]  # here


def assign_bool_index(env):
    env.x[env.mask] = env.x  # here


def assign_scalar_tensor(env):
    env.x[env.mask] = env.scale  # here


def to_cpu(env):
    host = env.x.cpu()  # here
    return host[:, 0]


def to_numpy(env):
    return env.x.numpy()  # here


def fresh_constant(env):
    gains = torch.tensor([1.0, 2.0, 3.0, 4.0])  # here
    return env.x @ gains


def fresh_constant_on_device(env):
    gains = torch.tensor([1.0, 2.0, 3.0, 4.0], device=env.x.device)  # here
    return env.x @ gains


def fresh_new_tensor(env):
    return env.x @ env.x.new_tensor([1.0, 2.0, 3.0, 4.0])  # here


def array_as_it_lies(env):
    return env.x @ torch.from_numpy(ARRAY)  # here


def array_copied(env):
    return env.x @ torch.tensor(ARRAY, device=env.x.device)  # here


def array_constructed(env):
    return env.x @ torch.Tensor(ARRAY)  # here


def array_as_index(env):
    return env.x[:, PLACES]  # here


def array_in_arithmetic(env):
    return env.x * ARRAY  # here


def numpy_of_a_tensor(env):
    return np.asarray(env.x)  # here


def numpy_function(env):
    return np.sin(env.x)  # here


def zeros_on_cpu(env):
    return env.x + torch.zeros(4)  # here


def reads_cpu_tensor(env):
    return env.x * env.on_cpu  # here


def rand(env):
    return torch.rand(N, device=env.x.device)  # here


def randn_like(env):
    return env.x + torch.randn_like(env.x)  # here


def bernoulli(env):
    return env.x.clone().bernoulli_(0.5)  # here


def sets_env(env):
    env.last = env.x[:, 0]  # here
    return env.last


def rebinds_arena_tensor(env):
    env.x = env.x * 2.0  # here
    return env.x[:, 0]


def swaps_storage(env):
    env.x.set_(env.x.clone())  # here


def prints(env):
    return [f"{env.scale}"]  # here


def wrong(env):
    return env.x[:, 0] + env.missing  # here


def swallows(env):
    try:
        env.x.sum().item()  # here
    except Exception:
        pass


def zeroes_a_view(env):
    return env.view[:, 1:3].zero_()[:, 0]  # here


def clamps_into_a_view(env):
    return torch.clamp(env.x, 0.0, 1.0, out=env.view)  # here


def assigns_a_view(env):
    env.view[:, 0] = 1.0  # here


def adds_to_a_view(env):
    pos = env.view
    pos += env.x  # here


BAD = {
    zeroes_a_view: judge.READ_ONLY,
    clamps_into_a_view: judge.READ_ONLY,
    assigns_a_view: judge.READ_ONLY,
    adds_to_a_view: judge.READ_ONLY,
    item: judge.HOST_READ,
    branch: judge.HOST_READ,
    as_float: judge.HOST_READ,
    nonzero: judge.DYNAMIC_SHAPE,
    where_rows: judge.DYNAMIC_SHAPE,
    bool_index: judge.DYNAMIC_SHAPE,
    assign_bool_index: judge.DYNAMIC_SHAPE,
    assign_scalar_tensor: judge.DYNAMIC_SHAPE,
    to_cpu: judge.OTHER_DEVICE,
    to_numpy: judge.HOST_READ,
    fresh_constant: judge.HOST_DATA,
    fresh_constant_on_device: judge.HOST_DATA,
    fresh_new_tensor: judge.HOST_DATA,
    array_as_it_lies: judge.HOST_DATA,
    array_copied: judge.HOST_DATA,
    array_constructed: judge.HOST_DATA,
    array_as_index: judge.HOST_DATA,
    array_in_arithmetic: judge.HOST_READ,
    numpy_of_a_tensor: judge.HOST_READ,
    numpy_function: judge.HOST_READ,
    zeros_on_cpu: judge.OTHER_DEVICE,
    reads_cpu_tensor: judge.OTHER_DEVICE,
    rand: judge.RANDOM,
    randn_like: judge.RANDOM,
    bernoulli: judge.RANDOM,
    sets_env: judge.HOST_STATE,
    rebinds_arena_tensor: judge.HOST_STATE,
    swaps_storage: judge.REBOUND,
    prints: judge.HOST_READ,
    wrong: judge.ERROR,
    swallows: judge.HOST_READ,
}


@pytest.mark.parametrize("func", BAD, ids=lambda func: func.__name__)
def test_bad_term_is_named_with_file_and_line(func):
    blockers = judged(func)
    assert [(b.kind, b.file, b.line) for b in blockers] == [(BAD[func], __file__, marked_line(func))]
    assert (blockers[0].manager, blockers[0].term) == ("rewards", "test")
    assert str(blockers[0]).startswith(f"rewards/test ({__file__}:{marked_line(func)}): ") and "\n" not in str(
        blockers[0]
    )


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (array_as_it_lies, "torch.from_numpy(), torch.Tensor() or the like reads a NumPy array or a list in each tick"),
        (array_copied, "tensor() reads a NumPy array in each tick"),
        (array_constructed, "torch.from_numpy(), torch.Tensor() or the like reads a NumPy array or a list"),
        (array_as_index, "x[...] reads a NumPy array or a list in each tick"),
        (array_in_arithmetic, "numpy.asarray(tensor), or arithmetic with a NumPy array, copies a tensor to the host"),
        (fresh_constant, "tensor() copies host data in each tick"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_an_array_that_a_term_reads_is_told_as_that_with_where_it_belongs(func, reason):
    (blocker,) = judged(func)
    assert blocker.reason.startswith(reason)
    assert blocker.reason.endswith("once, in __init__, on env.device")


def test_what_an_operation_is_called_does_not_stay_for_the_next_one():
    (blocker,) = judged(lambda env: (env.x * 2.0) @ torch.from_numpy(ARRAY))
    assert "mul" not in blocker.reason


class Counting:
    def __init__(self) -> None:
        self.k = 0
        self.history = []

    def __call__(self, env):
        self.k += 1  # here
        return env.x[:, 0]


class CommandLike:
    """Has no __call__: its methods are called one by one."""

    def reset(self, env):
        self.started = True  # here


def test_methods_of_a_class_without_call():
    env, term = Env(), CommandLike()
    call = JudgedCall("commands", "walk", lambda: term.reset(env), CommandLike, (env, term), env.arena)
    (blocker,) = judge_calls([call])
    assert (blocker.file, blocker.line) == (__file__, marked_line(CommandLike))
    place = judge.Blocker.of("commands", "walk", CommandLike, "changes between ticks")
    assert (place.file, place.line) == (__file__, inspect.getsourcelines(CommandLike)[1])
    assert str(place) == f"commands/walk ({place.file}:{place.line}): changes between ticks"


class Appending(Counting):
    def __call__(self, env):
        self.history.append(1)
        return env.x[:, 0]


class Slotted:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 0

    def __call__(self, env):
        self.k += 1  # here
        return env.x[:, 0]


@pytest.mark.parametrize("kind", [Counting, Slotted])
def test_a_python_counter_is_named_with_its_line_and_taken_back(kind):
    term = kind()
    blockers = judged(kind, term=term)
    assert [(b.kind, b.line) for b in blockers] == [(judge.HOST_STATE, marked_line(kind))]
    assert f"assigns {kind.__name__}.k" in blockers[0].reason
    assert type(term) is kind
    if kind is Counting:
        assert term.k == 0


def test_a_list_that_grows_is_found():
    term = Appending()
    (blocker,) = judged(term, term=term)
    assert blocker.kind == judge.HOST_STATE and "Appending.history in place" in blocker.reason
    assert blocker.line == Appending.__call__.__code__.co_firstlineno


calls_so_far = []


def test_state_outside_the_term_is_found():
    count = 0

    def closure(env):
        nonlocal count
        count += 1
        return env.x[:, 0]

    def module_list(env):
        calls_so_far.append(1)
        return env.x[:, 0]

    def python_random(env):
        return env.x[:, 0] * random.random()

    def env_dict(env):
        env.extras["log"] = env.x[:, 0]
        return env.x[:, 0]

    reasons = [judged(func)[0].reason for func in (closure, module_list, python_random, env_dict)]
    assert "nonlocal count" in reasons[0] and "global calls_so_far" in reasons[1]
    assert "global generator" in reasons[2] and "Env.extras" in reasons[3]


def test_each_call_is_judged_alone_and_all_are_reported():
    env = Env()
    funcs = (sets_env, good_gather, item, rebinds_arena_tensor)
    calls = [JudgedCall("m", f.__name__, lambda f=f: f(env), f, (env,), env.arena) for f in funcs]
    assert [b.term for b in judge_calls(calls)] == ["sets_env", "item", "rebinds_arena_tensor"]
    assert not hasattr(env, "last") and env.x is env.arena["x"] and type(env) is Env


def test_two_findings_of_one_term():
    def both(env):
        env.last = 1
        return env.x.sum().item()

    assert [b.kind for b in judged(both)] == [judge.HOST_STATE, judge.HOST_READ]


def test_the_frame_of_the_user_is_named_rather_than_a_helper_of_the_package():
    def through_package(env):
        return env.rng.choice("c", env.on_cpu.long())  # here

    (blocker,) = judged(through_package)
    assert (blocker.file, blocker.line) == (__file__, marked_line(through_package))


def good_gather(env):
    return env.x.gather(1, (env.ids % 4)[:, None])[:, 0]


def good_cumsum(env):
    return torch.where(env.mask, env.x[:, 0].cumsum(0), env.scale)


def good_index_list(env):
    return env.x[:, [0, 2]].sum(-1) + env.x[env.ids, 0]


def good_masked_fill(env):
    env.x[env.mask] = 0.0
    env.x[env.mask, 1] = 2.0
    env.x[:, [0, 2]] = 1.0
    env.x.masked_fill_(env.mask[:, None], env.scale)
    return env.x[:, 0].masked_fill(env.mask, 3.0)


def good_roll(env):
    env.x.copy_(torch.roll(env.x, 1, dims=1))
    env.x[:, 0] = env.x[:, 1]
    return env.x[:, 0]


def good_shift(env):
    return ((env.ids >> 3) ^ (env.ids & 7)) << 2


def good_stack(env):
    return torch.stack((env.x[:, 0], env.x[:, 1])).sum(0) + torch.cat((env.x[:3, 0], env.x[3:, 1]))


def good_factories(env):
    width = torch.arange(4, device=env.x.device) + torch.zeros_like(env.ids)[:, None]
    return env.x.new_zeros(N) + width.sum(-1) + torch.full((N,), 2.0, device=env.arena.device)


def good_einsum(env):
    return torch.einsum("ni,ni->n", env.x, env.x.clamp(-1.0, 1.0)).sqrt()


def good_draws(env):
    a = env.rng.uniform("a", 3, -1.0, env.x[:, :3]) + env.rng.normal("b", 3)
    return a.sum(-1) + env.rng.integers("c", 2, 0, 5)[:, 0] + env.rng.choice("d", env.ids)


def good_in_place(env):
    env.x += 1.0
    env.scale *= 0.5
    return env.x[:, 0]


def good_statistics(env):
    return env.x.median(dim=1).values + env.x.topk(2).values[:, 0] + torch.linalg.vector_norm(env.x, dim=-1)


def good_copy_of_a_view(env):
    own = env.view.clone()
    own[:, 0] = 1.0
    env.x.copy_(env.view)
    return own.clamp_(-1.0, 1.0)[:, 0] + env.view[:, 0]


GOOD = [value for name, value in list(globals().items()) if name.startswith("good_")]


@pytest.mark.parametrize("func", GOOD, ids=lambda func: func.__name__)
def test_good_term_passes(func):
    assert judged(func) == []


def test_host_state_between_two_real_ticks():
    class Manager:
        def __init__(self) -> None:
            self.names = ["a"]
            self.gain = float("nan")
            self.buffer = torch.zeros(3)
            self.cfg = types.SimpleNamespace(weight=1.0)

    manager = Manager()
    before = host_state([manager])
    manager.buffer.fill_(2.0)
    assert changed_host_state(before, [manager]) == []
    manager.names.append("b")
    manager.buffer = torch.zeros(3)
    manager.late = 1
    del manager.gain
    changed = changed_host_state(before, [manager])
    assert changed == [(manager, name) for name in ("names", "buffer", "late", "gain")]


def test_no_compiler_is_needed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert len(judged(item)) == 1 and judged(good_draws) == []


def stops(env):
    breakpoint()  # here  # noqa: T100
    return env.x[:, 0]


def asks(env):
    return env.x[:, 0] * float(input("how much? "))  # here


@pytest.mark.parametrize(("func", "name"), [(stops, "breakpoint"), (asks, "input")])
def test_what_would_wait_for_a_person_is_a_blocker_and_does_not(func, name):
    [blocker] = judged(func)
    assert (blocker.kind, blocker.line) == (judge.HOST_READ, marked_line(func))
    assert blocker.reason == f"calls {name}(), which waits for a person; remove it"


def test_nothing_that_a_judged_call_says_is_heard(capfd, caplog):
    def says(env):
        print("printed")
        sys.stderr.write("written")
        warnings.warn("warned", stacklevel=1)
        logging.getLogger("author").warning("logged")
        return env.x[:, 0]

    assert judged(says) == []
    assert capfd.readouterr() == ("", "") and not caplog.records


class Network(torch.nn.Module):
    def forward(self, env):
        return env.x[:, 0] * env.scale.item()  # here


def test_a_network_is_blocked_in_its_authors_file():
    [blocker] = judged(Network, term=Network())
    assert (blocker.file, blocker.line) == (__file__, marked_line(Network))
    place = judge.place_of_definition(Network)
    assert place == (__file__, inspect.getsourcelines(Network)[1])


def test_a_term_that_is_called_in_several_ways_is_blocked_once():
    env = Env()
    call = JudgedCall("commands", "walk", lambda: item(env), item, (env,), env.arena)
    assert len(judge_calls([call, call])) == 1
