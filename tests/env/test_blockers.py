"""The build names every term that would keep a task from running compiled, and no other."""

import functools
import re
from pathlib import Path

import blocked
import pytest
import torch
from toys import Slider, alive

from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.env.config import MetricTermCfg, RewardTermCfg
from tickgraph.env.env import Env
from tickgraph.env.late import terms_at


def marked_lines():
    """Return {"manager/term": line} of the marks in blocked.py."""
    lines = Path(blocked.__file__).read_text().splitlines()
    marks = {i: re.search(r"  # ((?:\w+/)+\w+)$", line) for i, line in enumerate(lines, start=1)}
    return {mark[1]: i for i, mark in marks.items() if mark}


def test_ten_bad_terms_are_named_with_file_and_line():
    env = Env(blocked.bad_cfg(), num_envs=8, execution="eager")
    found = env.blockers()
    expected = marked_lines()
    assert len(expected) == 10
    assert {f"{b.manager}/{b.term}": b.line for b in found} == expected
    assert {b.file for b in found} == {blocked.__file__}
    for blocker in found:
        assert "\n" not in str(blocker) and blocker.term in str(blocker)
    env.step(torch.zeros(8, 1))  # judging has not touched the environment
    assert not hasattr(env, "x") or env.x == 1.0


def test_the_same_terms_done_well_block_nothing():
    env = Env(blocked.good_cfg(), num_envs=8, execution="eager")
    assert env.blockers() == []


def test_modes_tell_what_blocks_them(caplog):
    cfg = Slider(rewards={"alive": RewardTermCfg(alive), "bad": RewardTermCfg(blocked.mean_by_item)}).cfg()
    with pytest.raises(ExecutionError, match=r"term not static: rewards/bad \(.*blocked.py:\d+\)"):
        Env(cfg, num_envs=2, execution="compile")
    env = Env(cfg, num_envs=2, execution="auto")
    for report in env.execution_report().values():
        assert (report["requested"], report["enabled"]) == ("auto", "eager")
        assert "rewards/bad" in report["disable_reason"]
    env.step(torch.zeros(2, 1))
    with pytest.raises(ExecutionError, match=r"backend cannot: CUDA graphs need a CUDA device"):
        Env(Slider().cfg(), num_envs=2, execution="graph")
    with pytest.raises(TickgraphError, match="execution 'compil' is unknown"):
        Env(cfg, num_envs=2, execution="compil")


class ReadsWhileBuilding:
    def __init__(self, cfg, env, path):
        self.limit = env.scene["robot"].data.joint_pos_limits.max().item()  # reads a value

    def __call__(self, env):
        return env.reward


def test_a_class_that_reads_values_while_it_is_built_is_named():
    cfg = Slider(rewards={"reads": RewardTermCfg(ReadsWhileBuilding)}).cfg()
    env = Env(cfg, num_envs=2, execution="auto")
    assert env.execution_report()["tick/observe"]["enabled"] == "eager"
    [blocker] = env.blockers()
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# reads a value" in text)
    assert (blocker.manager, blocker.term, blocker.file, blocker.line) == ("rewards", "reads", __file__, line)
    assert "read numbers from cfg" in str(blocker)


def test_host_state_that_only_real_ticks_show(monkeypatch):
    # The judge is told that all is well, so that what three real ticks see is what counts.
    calls = []

    def counts(env):
        calls.append(1)
        return env.reward

    monkeypatch.setattr("tickgraph.env.env.judge_calls", lambda calls, around: [])
    cfg = Slider().cfg()
    cfg.metrics = {"counts": MetricTermCfg(counts)}
    [blocker] = Env(cfg, num_envs=2, execution="eager").blockers()
    assert (blocker.manager, blocker.term, blocker.file) == ("metrics", "counts", __file__)
    assert "calls" in blocker.reason and blocker.line > 0
    cfg.metrics = {"partial": MetricTermCfg(functools.partial(blocked.plain, scale=2.0))}
    assert Env(cfg, num_envs=2, execution="eager").blockers() == []


def prints(env):
    print(end="")  # prints
    return env.reward


def reads_a_file(env):
    with open(__file__) as file:  # reads
        return env.reward * len(file.read())


def line_of(mark):
    return next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith(f"  # {mark}"))


def test_what_a_compiler_refuses_is_named_without_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    rewards = {"alive": RewardTermCfg(alive), "prints": RewardTermCfg(prints), "reads": RewardTermCfg(reads_a_file)}
    found = Env(Slider(rewards=rewards).cfg(), num_envs=2, execution="eager").blockers()
    assert [(b.term, b.file, b.line) for b in found] == [
        ("prints", __file__, line_of("prints")),
        ("reads", __file__, line_of("reads")),
    ]
    assert "calls print()" in found[0].reason and "while building" in found[1].reason


def test_a_tick_that_does_not_compile_names_the_term(caplog):
    rewards = {"prints": RewardTermCfg(prints), "alive": RewardTermCfg(alive)}
    cfg = Slider(rewards=rewards).cfg()
    caplog.set_level("WARNING")
    text = f"capture failed: term rewards/prints: calls print().* \\({re.escape(__file__)}:{line_of('prints')}\\)$"
    env = Env(cfg, num_envs=2, execution="auto")
    env.step(torch.zeros(2, 1))
    report = env.execution_report()["tick/judge_to_restart"]
    assert report["enabled"] == "eager" and re.search(text, report["disable_reason"])
    assert env.execution_report()["tick/observe"]["enabled"] == "compile"
    [told] = [record.message for record in caplog.records if record.name.startswith("tickgraph")]
    assert re.search(text, told)
    with pytest.raises(ExecutionError, match=text):
        Env(cfg, num_envs=2, execution="compile").step(torch.zeros(2, 1))


def test_terms_that_share_a_function_are_both_named():
    rewards = {"a": RewardTermCfg(alive), "b": RewardTermCfg(alive), "c": RewardTermCfg(prints)}
    env = Env(Slider(rewards=rewards).cfg(), num_envs=2, execution="eager")
    code = alive.__code__
    assert terms_at(env, [(code.co_filename, code.co_firstlineno + 1)]) == "term rewards/a or rewards/b"
    assert terms_at(env, [("x.py", 1), (__file__, line_of("prints"))]) == "term rewards/c"
    assert terms_at(env, [("x.py", 1)]) == ""
