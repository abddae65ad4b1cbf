"""What torch.compile refuses is found by tracing alone, with the author's line and a remedy in our words."""

import datetime
import json
import logging
import os
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from judge_rig import Env, marked_line
from test_host_state import Good
from test_judge import GOOD

from tickgraph.core import judge
from tickgraph.core.judge import JudgedCall, refused_calls
from tickgraph.core.refusals import place_of_refusal, said_by_torch

log = logging.getLogger("author")


def prints(env):
    print("here")  # here
    return env.x[:, 0]


def logs(env):
    log.info("here")  # here
    return env.x[:, 0]


def warns(env):
    warnings.warn("here", stacklevel=1)  # here
    return env.x[:, 0]


def reads_the_clock(env):
    return env.x[:, 0] * time.time()  # here


def reads_the_date(env):
    return env.x[:, 0] * datetime.datetime.now().second  # here


def opens(env):
    with open(os.devnull) as file:  # here
        file.read()
    return env.x[:, 0]


def draws(env):
    return env.x[:, 0] * float(np.random.default_rng(0).normal())  # here


def asks_the_system(env):
    return env.x[:, 0] * os.getpid()  # here


def through_a_helper(env):
    return prints(env)


def logs_by_the_module(env):
    logging.warning("here %s", 3)  # here
    return env.x[:, 0]


def writes_to_the_terminal(env):
    sys.stdout.write("here")  # here
    return env.x[:, 0]


def parses(env):
    return env.x[:, 0] * json.loads("[1]")[0]  # here


def evaluates(env):
    return eval("env.x")[:, 0]  # here


REFUSED = {
    prints: "calls print(); remove it: a metric or recorder term shows values",
    logs: "logs or warns; remove it: a metric or recorder shows values",
    warns: "logs or warns; remove it: a metric or recorder shows values",
    reads_the_clock: "reads the clock; count time by env.episode_length * env.step_dt",
    reads_the_date: "reads the clock; count time by env.episode_length * env.step_dt",
    opens: "reads or writes a file; do it while building",
    draws: "draws on the host; take an `rng` parameter",
    asks_the_system: "getpid, which torch.compile cannot take in; call it once, while building",
    through_a_helper: "calls print(); remove it: a metric or recorder term shows values",
    logs_by_the_module: "logs or warns; remove it: a metric or recorder shows values",
    writes_to_the_terminal: "writes text; remove it: a metric or recorder term shows values",
    parses: "calls json.loads, which torch.compile cannot take in; call it once, while building",
    evaluates: "calls eval, which torch.compile cannot take in; call it once, while building",
}


def refused(call, func=None):
    env = Env("cpu")
    return refused_calls([JudgedCall("rewards", "test", lambda: call(env), func or call, (env,), env.arena)])


@pytest.mark.parametrize("func", REFUSED, ids=lambda func: func.__name__)
def test_a_refusal_names_the_line_and_what_to_do(func, recwarn):
    (blocker,) = refused(func)
    line = marked_line(prints if func is through_a_helper else func)
    assert (blocker.kind, blocker.file, blocker.line) == (judge.REFUSED, __file__, line)
    assert blocker.reason.endswith(REFUSED[func]) and "\n" not in str(blocker)
    assert not [warning for warning in recwarn if "Dynamo" in str(warning.message)]


@pytest.mark.parametrize("func", GOOD, ids=lambda func: func.__name__)
def test_good_terms_are_not_refused(func):
    assert refused(func) == []


def test_a_good_class_is_not_refused():
    assert refused(Good(), Good) == []


def test_no_compiler_is_needed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert len(refused(prints)) == 1 and refused(GOOD[0]) == []


def test_what_the_package_brings_is_not_traced(monkeypatch):
    monkeypatch.setattr(judge, "refusal_of", lambda fn: pytest.fail("traced"))
    assert refused(lambda env: env.x, torch.add) == []


def test_torchs_own_words_where_there_are_none_of_ours():
    text = (
        "New kind of break\n  Explanation: It breaks.\n  Hint: none\n\n  Developer debug context: x\n\n"
        'from user code:\n   File "task.py", line 7, in f\n    g()\n'
    )
    error = torch._dynamo.exc.Unsupported(text)
    assert said_by_torch(error) == "torch.compile refuses it: New kind of break: It breaks."
    assert place_of_refusal(error) == ("task.py", 7)
    deeper = torch._dynamo.exc.Unsupported(f'{text}  File "/lib/site-packages/a.py", line 3, in g\n')
    assert said_by_torch(deeper) == "calls a.g, which torch.compile cannot take in; call it once, while building"
    assert place_of_refusal(deeper) == ("task.py", 7)
    assert said_by_torch(torch._dynamo.exc.Unsupported("")) == "Unsupported without a message"
