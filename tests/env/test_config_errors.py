"""A wrong task is refused with one line: what was given, what there is, and which term it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from toys import Slider, Target, TargetCfg, X, alive, foot_cfg, joint_pos, sensed, time_out

from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import (
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.managers import CommandTerm


def takes_scale(env, scale):
    return env.reward * scale


def wide(env):
    return env.reward[:, None]


def on_meta(env):
    return env.reward.to("meta")


def short(env):
    return env.reward[:-1]


def number(env):
    return 1.0


def broken(env):
    return absent  # noqa: F821  # a typing mistake


def broken_event(env, mask):
    raise RuntimeError("no limb\nat all")


def event(env, mask):
    pass


def follows(env, command_name):
    return env.command_manager.get_command(command_name)[:, 0]


def reads_site(env):
    return env.sim.view("qfrc_actuator")[:, 0]


def moves_root(env, mask):
    env.scene["robot"].write_root_link_pose_to_sim(torch.zeros(env.num_envs, 7), mask)


def one_column(env, mask):
    robot = env.scene["robot"]
    robot.write_joint_state_to_sim(robot.staged_joint_pos()[:, :1], robot.staged_joint_vel(), mask)


class NoCall:
    def __init__(self, cfg, env, path):
        pass


class Fails:
    def __init__(self, cfg, env, path):
        raise KeyError("limb")

    def __call__(self, env):
        return env.reward


class Flat(CommandTerm):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs,))

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        pass


class Velocity(Flat):
    @property
    def command(self):
        return self.value[:, None]


@dataclass
class BareActionCfg(TargetCfg):
    class_type: Any = None


def reward(func, **params):
    return lambda cfg: cfg.rewards.update(bad=RewardTermCfg(func, 1.0, params))


def observe(func, **options):
    return lambda cfg: cfg.observations["actor"].terms.update(bad=ObservationTermCfg(func, **options))


def on_event(func, *when):
    return lambda cfg: cfg.events.update(bad=EventTermCfg(func, *when))


def selector(**names):
    return observe(joint_pos, params={"asset_cfg": SceneEntityCfg(**names)})


def set_fields(**values):
    def change(cfg):
        for name, value in values.items():
            setattr(cfg, name, value)

    return change


def both(*changes):
    def change(cfg):
        for one in changes:
            one(cfg)

    return change


CASES = {
    "entity": (selector(name="robt"), "actor/bad: the scene has no entity 'robt'; did you mean 'robot'?"),
    "joint": (selector(joint_names="dumy"), "bad: no joint of entity 'robot' matches 'dumy'; did you mean 'dummy'"),
    "pattern": (selector(joint_names="("), "actor/bad: '(' is not a regular expression"),
    "body": (selector(body_names="slidr"), "no body of entity 'robot' matches 'slidr'; did you mean 'slider'"),
    "parameter": (reward(takes_scale, scal=1.0), "bad: takes_scale has no parameter 'scal'; did you mean 'scale'"),
    "no parameter": (reward(alive, scale=1.0), "rewards/bad: alive has no parameter 'scale'; it takes none"),
    "missing": (reward(takes_scale), "rewards/bad: takes_scale needs 'scale'; add it to params"),
    "sensor": (reward(sensed, name="foot"), "rewards/bad: the scene has no entity or sensor 'foot'"),
    "command": (
        both(reward(follows, command_name="twst"), set_fields(commands={"twist": CommandTermCfg(Velocity)})),
        "rewards/bad: commands has no term 'twst'; did you mean 'twist'",
    ),
    "view": (reward(reads_site), "rewards/bad: 'qfrc_actuator' is not fresh after a step"),
    "not callable": (reward("alive"), "rewards.bad.func is 'alive', expected a function or a class"),
    "no __call__": (reward(NoCall), "rewards/bad: class NoCall needs a __call__ method"),
    "class fails": (reward(Fails), "rewards/bad: Fails(cfg, env, path) raised KeyError: 'limb'"),
    "wide reward": (reward(wide), "rewards/bad returned (3, 1), expected a float tensor of shape (3,)"),
    "short reward": (reward(short), "rewards/bad returned (2,), expected a float tensor of shape (3,)"),
    "number": (reward(number), "rewards/bad returned float, expected a float tensor of shape (3,)"),
    "termination": (
        lambda cfg: cfg.terminations.update(bad=TerminationTermCfg(wide)),
        "terminations/bad returned (3, 1), expected a bool tensor of shape (3,)",
    ),
    "device": (reward(on_meta), "rewards/bad returned a tensor on meta, expected a float tensor of shape (3,) on cpu"),
    "observation's device": (
        observe(lambda env: env.reward[:, None].to("meta")),
        "observations/actor/bad returned a tensor on meta, expected one on cpu",
    ),
    "complex": (reward(lambda env: env.reward + 0j), "rewards/bad returned a tensor of torch.complex64"),
    "a distance that ends": (
        set_fields(terminations={"bad": TerminationTermCfg(lambda env: env.reward + 1.5)}),
        "terminations/bad returned a tensor of torch.float32, expected a bool tensor of shape (3,)",
    ),
    "joint state": (
        on_event(one_column, "reset"),
        "entity 'robot': pos has shape (3, 1), expected (3, 2)",
    ),
    "reward fails": (reward(broken), "term rewards/bad: NameError: name 'absent' is not defined at broken ("),
    "observation fails": (observe(broken), "term observations/actor/bad: NameError: name 'absent'"),
    "termination fails": (
        set_fields(terminations={"bad": TerminationTermCfg(broken)}),
        "term terminations/bad: NameError: name 'absent'",
    ),
    "recorder fails": (
        set_fields(recorders={"bad": RecorderTermCfg(broken)}),
        "term recorders/bad: NameError: name 'absent'",
    ),
    "event fails": (
        on_event(broken_event, "reset"),
        "term events/bad: RuntimeError: no limb at broken_event (",
    ),
    "time limit": (
        set_fields(terminations={"limit": TerminationTermCfg(lambda env: env.episode_length >= 5)}),
        "terminations/limit fires by the length of the episode alone; say time_out=True",
    ),
    "metric": (set_fields(metrics={"bad": MetricTermCfg(wide)}), "metrics/bad returned (3, 1)"),
    "recorder": (set_fields(recorders={"bad": RecorderTermCfg(number)}), "recorders/bad returned float"),
    "narrow observation": (observe(alive), "actor/bad returned (3,), expected a float tensor of shape (3, D)"),
    "scales": (
        observe(joint_pos, params={"asset_cfg": X}, scale=(1.0, 2.0)),
        "observations/actor/bad: 2 scales given for 1 values",
    ),
    "history": (observe(wide, history_length=-1), "bad.history_length is -1, expected a whole number of at least 0"),
    "lags": (
        observe(wide, delay_min_lag=3, delay_max_lag=2),
        "observations.actor.terms.bad: lags (3, 2) given, expected 0 <= min <= max",
    ),
    "empty group": (
        lambda cfg: cfg.observations.update(critic=ObservationGroupCfg()),
        "observation group 'critic' has no term",
    ),
    "no actor": (set_fields(observations={}), "no observation group 'actor'"),
    "no action": (set_fields(actions={}), "declares no action"),
    "action class": (set_fields(actions={"bad": BareActionCfg()}), "action 'bad': class_type is not set"),
    "action entity": (
        set_fields(actions={"bad": TargetCfg(entity_name="robo")}),
        "actions/bad: the scene has no entity or sensor 'robo'; did you mean 'robot'",
    ),
    "action lags": (set_fields(actions={"bad": TargetCfg(delay_min_lag=1)}), "actions.bad: lags (1, 0) given"),
    "command class": (set_fields(commands={"bad": CommandTermCfg()}), "command 'bad': class_type is not set"),
    "flat command": (
        set_fields(commands={"bad": CommandTermCfg(Flat)}),
        "term commands/bad: command is (3,), expected a tensor (3, C)",
    ),
    "mode": (
        on_event(event, "restet"),
        "events.bad.mode is 'restet', expected one of startup, reset, interval, step; did you mean 'reset'",
    ),
    "interval": (
        on_event(event, "interval"),
        "events.bad has mode 'interval' and no interval_range_s; give",
    ),
    "fixed base": (
        on_event(moves_root),
        "events/bad: entity 'robot' has a fixed base",
    ),
    "event returns": (
        set_fields(curriculum={"bad": CurriculumTermCfg(event)}),
        None,  # a curriculum may return nothing
    ),
    "decimation": (set_fields(decimation=0), "decimation is 0, expected a whole number of physics steps from 1"),
    "timestep": (
        lambda cfg: setattr(cfg.scene, "timestep", 0.0),
        "scene.timestep is 0.0, expected seconds from 1e-6 to 0.1",
    ),
    "episode": (set_fields(episode_length_s=0.0), "episode_length_s is 0.0, expected a finite number above 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_tasks_are_refused_in_one_line(case):
    change, text = CASES[case]
    cfg = Slider().cfg()
    change(cfg)
    if text is None:
        Env(cfg, num_envs=3, execution="eager")
        return
    with pytest.raises(TickgraphError) as caught:
        Env(cfg, num_envs=3, execution="eager")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, True])
def test_number_of_worlds(num_envs):
    with pytest.raises(TickgraphError, match=f"num_envs is {num_envs}, expected a whole number of at least 1"):
        Env(Slider().cfg(), num_envs=num_envs, execution="eager")


def test_more_worlds_than_there_is_memory_for_are_refused_before_anything_is_made():
    with pytest.raises(TickgraphError, match="^out of memory: an environment of 1000000000 worlds needs"):
        Env(foot_cfg(), num_envs=10**9, execution="eager")


def test_wrong_calls_are_refused_in_one_line():
    env = Env(foot_cfg(), num_envs=3, execution="eager")
    with pytest.raises(TickgraphError, match=r"action has shape \(3, 2\), expected \(3, 1\)"):
        env.step(torch.zeros(3, 2))
    with pytest.raises(TickgraphError, match="no entity or sensor 'bx'; did you mean 'box'"):
        env.scene["bx"]
    with pytest.raises(TickgraphError, match="rewards has no term 'aliv'; did you mean 'alive'"):
        env.reward_manager.term_index("aliv")
    with pytest.raises(TickgraphError, match="declared after the arena was sealed"):
        env.sim.view("xipos")
    with pytest.raises(TickgraphError, match="the snapshot lacks"):
        env.load_state_dict({})
    with pytest.raises(TickgraphError, match="is unknown"):
        Env(foot_cfg(), num_envs=3, backend="mujco")

    class Still:
        def act(self, obs, action, done):
            action.zero_()

    env.attach(policy=Still())
    with pytest.raises(TickgraphError, match="a policy is attached"):
        env.step(torch.zeros(3, 1))
    env.tick()
    env.attach()
    env.step(torch.zeros(3, 1))
    with pytest.raises(TickgraphError, match="action is of type list, expected a tensor"):
        env.step([[0.0]] * 3)
    env.close()
    env.close()
    for call in (lambda: env.step(torch.zeros(3, 1)), env.tick, env.reset):
        with pytest.raises(TickgraphError, match="the environment is closed"):
            call()


def test_a_term_left_out_by_none_is_left_out():
    cfg = Slider().cfg()
    cfg.rewards["alive"] = None
    cfg.events["launch"] = None
    cfg.terminations["time_out"] = None
    cfg.observations["actor"].terms["gone"] = None
    env = Env(cfg, num_envs=2, execution="eager")
    _, reward, *_ = env.step(torch.zeros(2, 1))
    assert env.reward_manager.names == [] and reward.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("flag", [True, False])
def test_a_time_limit_may_say_what_it_is(flag):
    cfg = Slider().cfg()
    cfg.terminations = {"limit": TerminationTermCfg(lambda env: env.episode_length >= 2, time_out=flag)}
    env = Env(cfg, num_envs=1, execution="eager")
    env.step(torch.zeros(1, 1))
    _, _, terminated, truncated, _ = env.step(torch.zeros(1, 1))
    assert (terminated.item(), truncated.item()) == (not flag, flag)


def test_a_time_out_is_known_by_its_function():
    cfg = Slider().cfg()
    cfg.terminations = {"limit": TerminationTermCfg(time_out), "fall": TerminationTermCfg(lambda env: env.no_worlds)}
    env = Env(cfg, num_envs=2, execution="eager")
    assert env.termination_manager.is_time_out == {"limit": True, "fall": False}
    rows = {row["name"]: row for row in env.describe()["terms"]["terminations"]}
    assert rows["limit"]["time_out"] is True and Target.__name__ == env.describe()["terms"]["actions"][0]["function"]
