"""When each kind of term runs, for which worlds, and what it may remember."""

import gc
import inspect
import json
import re
import weakref

import mujoco
import numpy as np
import pytest
import torch
from toys import SLIDER, Slider, TimeOutByWorld, X, alive, foot_cfg, joint_pos

from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import assign_rows, fill_rows
from tickgraph.env.config import (
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SubstepTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.managers import CommandTerm
from tickgraph.sim.scene import SensorCfg


class Log:
    """Event or curriculum that notes its masks; for eager tests alone."""

    def __init__(self, cfg, env, path):
        self.seen = cfg.params["seen"]
        self.name = path.rpartition("/")[2]

    def __call__(self, env, mask, seen):
        # Not while building, when a term is tried on no world.
        if env.arena.sealed:
            self.seen.append((self.name, int(env.rng.tick), mask.nonzero()[:, 0].tolist()))


def run(cfg, ticks, num_envs=2, **options):
    env = Env(cfg, num_envs=num_envs, execution="eager", **options)
    for _ in range(ticks):
        env.step(torch.zeros(num_envs, env.action.shape[1]))
    return env


def test_events_and_curricula_run_when_their_mode_says():
    seen = []
    cfg = Slider(limit=(5, 100)).cfg()
    params = {"seen": seen}
    cfg.events |= {
        "once": EventTermCfg(Log, "startup", params),
        "fresh": EventTermCfg(Log, "reset", params),
        "each": EventTermCfg(Log, "step", params),
        "timed": EventTermCfg(Log, "interval", params, interval_range_s=(0.06, 0.06)),
    }
    cfg.curriculum = {"rule": CurriculumTermCfg(Log, params)}
    run(cfg, 9)
    per_name = {name: [(t, rows) for n, t, rows in seen if n == name] for name in {n for n, *_ in seen}}
    assert per_name["once"] == [(0, [0, 1])]
    assert [entry for entry in per_name["fresh"] if entry[1]] == [(0, [0, 1]), (5, [0])]
    assert per_name["each"] == [(t, [0, 1]) for t in range(1, 10)]
    # Every third step; in world 0 the clock starts anew with the episode that begins at step 5.
    assert [entry for entry in per_name["timed"] if entry[1]] == [(3, [0, 1]), (6, [1]), (8, [0]), (9, [1])]
    # A curriculum judges episodes that ended, and a reset of the whole environment ended none.
    assert [entry for entry in per_name["rule"] if entry[1]] == [(5, [0])]
    # In one tick: step, interval, curriculum, reset.
    fifth = [name for name, tick, _ in seen if tick == 5]
    assert fifth == ["each", "timed", "rule", "fresh"]


class Counter(CommandTerm):
    """Counts its draws."""

    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1))

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        assign_rows(self.value, mask, self.value + 1.0)


def test_a_command_is_drawn_after_its_time_and_at_a_reset():
    cfg = Slider(limit=(100, 7)).cfg()
    cfg.commands = {"count": CommandTermCfg(Counter, (0.1, 0.1))}
    cfg.recorders = {"count": RecorderTermCfg(lambda env: env.command_manager.get_command("count"))}
    env = Env(cfg, num_envs=2, execution="eager")
    drawn = []
    for _ in range(15):
        env.step(torch.zeros(2, 1))
        drawn.append(env.command_manager.get_command("count")[:, 0].tolist())
    first = env.command_manager.get_command("count")
    assert first is env.arena["commands/count/value"]
    # 0.1 s are five steps. World 1 begins episodes at steps 7 and 14 and counts its time from there.
    changes = [[t + 1 for t in range(1, 15) if drawn[t][w] != drawn[t - 1][w]] for w in range(2)]
    assert changes == [[5, 10, 15], [5, 7, 12, 14]]


def test_recorders_see_the_tick_before_any_reset():
    cfg = Slider(limit=(3,)).cfg()
    cfg.recorders = {"x": RecorderTermCfg(joint_pos, {"asset_cfg": X})}
    env = run(cfg, 3)
    assert env.recorder_manager["x"][:, 0].tolist() == pytest.approx([0.06, 0.06])
    assert env.obs["actor"][:, 0].tolist() == pytest.approx([0.0, 0.0])
    with pytest.raises(TickgraphError, match="recorders has no term 'y'"):
        env.recorder_manager["y"]


def by_substep(env, substep, gain):
    env.sim.ctrl.fill_(gain * (substep + 1))


def test_substep_terms_run_before_each_physics_step():
    cfg = Slider(limit=(100,)).cfg()
    cfg.substeps = {"ramp": SubstepTermCfg(by_substep, {"gain": 0.1})}
    env = run(cfg, 2)
    spec = SLIDER.replace('gravity="0 0 0"', 'gravity="0 0 0" timestep="0.005" integrator="implicitfast"')
    model = mujoco.MjModel.from_xml_string(spec)
    data = mujoco.MjData(model)
    data.qvel[0] = 1.0
    for _ in range(2):
        for substep in range(4):
            data.ctrl[0] = 0.1 * (substep + 1)
            mujoco.mj_step(model, data)
    np.testing.assert_allclose(env.sim.view("qpos")[0], data.qpos, rtol=1e-5)
    np.testing.assert_allclose(env.sim.view("qvel")[0], data.qvel, rtol=1e-5)


def in_one_substep(env, substep, gain):
    if substep == 2:
        env.sim.ctrl.fill_(gain)


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_a_substep_in_which_no_term_does_anything_is_none_to_compile(mode, caplog):
    cfg = Slider(limit=(100,)).cfg()
    cfg.substeps = {"late": SubstepTermCfg(in_one_substep, {"gain": 0.1})}
    env = Env(cfg, 2, execution=mode)
    for _ in range(3):
        env.step(torch.zeros(2, env.action.shape[1]))
        assert env.sim.ctrl[:, 0].tolist() == pytest.approx([0.1, 0.1])
    assert {row["enabled"] for row in env.execution_report().values()} == {mode}
    assert not [record for record in caplog.records if record.name.startswith("tickgraph")]


class Best:
    """The largest x of the episode so far."""

    def __init__(self, cfg, env, path):
        self.best = env.arena.new(f"{path}/best", (env.num_envs,))

    def __call__(self, env, asset_cfg=X):
        self.best.copy_(torch.maximum(self.best, joint_pos(env, asset_cfg)[:, 0]))
        return self.best

    def reset(self, mask):
        fill_rows(self.best, mask, 0.0)


def test_terms_with_memory_forget_the_worlds_that_begin():
    cfg = Slider(limit=(3, 100)).cfg()
    cfg.rewards["best"] = RewardTermCfg(Best)
    cfg.observations["actor"].terms["best"] = ObservationTermCfg(lambda env: env.arena["rewards/best/best"][:, None])
    env = run(cfg, 3)
    best = env.reward_manager.term("best")
    assert isinstance(best, Best)
    assert best.best.tolist() == pytest.approx([0.0, 0.06])
    assert env.obs["actor"][:, 1].tolist() == pytest.approx([0.0, 0.06])


class Substeps:
    """Counts the substeps of the episode so far."""

    def __init__(self, cfg, env, path):
        self.count = env.arena.new(f"{path}/count", (env.num_envs,))

    def __call__(self, env, substep):
        self.count += 1.0

    def reset(self, mask):
        fill_rows(self.count, mask, 0.0)


def test_a_term_of_substeps_forgets_the_worlds_that_begin():
    cfg = Slider(limit=(3, 100)).cfg()
    cfg.substeps = {"count": SubstepTermCfg(Substeps)}
    env = run(cfg, 4)
    counted = env.substep_manager.term("count").count
    assert counted.tolist() == [1.0 * cfg.decimation, 4.0 * cfg.decimation]


def test_weights_are_read_from_the_device_each_tick():
    cfg = Slider(limit=(100,), rewards={"alive": RewardTermCfg(alive, 2.0), "half": RewardTermCfg(alive, 0.5)}).cfg()
    env = run(cfg, 1)
    assert env.reward.tolist() == pytest.approx([0.05, 0.05])
    env.reward_manager.weights[env.reward_manager.term_index("half")] = -1.0
    env.step(torch.zeros(2, 1))
    assert env.reward.tolist() == pytest.approx([0.02, 0.02])


def test_scaling_by_draws_starts_from_the_default_each_time():
    # Every second tick is a reset, in the even worlds alone; the mass must stay within its range and not drift.
    cfg = foot_cfg(limit=(2, 10**9))
    env = Env(cfg, num_envs=32, execution="eager", seed=1)
    mass, default = env.arena["sim/field/body_mass"], env.sim.default_field("body_mass")
    body = int(env.scene["box"].index.root_body_id)
    odd = mass[1::2].clone()
    factors = []
    for tick in range(100):
        env.step(torch.zeros(32, 1))
        if tick % 2:
            factors.append((mass[::2, body] / default[body]).clone())
    factors = torch.stack(factors)
    assert 0.5 <= factors.min() and factors.max() < 2.0
    assert torch.equal(mass[1::2], odd)
    # 800 uniform draws in [0.5, 2): mean 1.25 and deviation 1.5 / sqrt(12), within five standard errors.
    assert factors.mean().item() == pytest.approx(1.25, abs=5 * 0.433 / 28)
    assert factors.std().item() == pytest.approx(0.433, abs=0.03)
    first, later = factors[:-1].flatten() - 1.25, factors[1:].flatten() - 1.25
    assert abs((first * later).mean() / factors.var()) < 5 / 28
    # All other rows keep their default.
    rest = [i for i in range(mass.shape[1]) if i != body]
    assert torch.equal(mass[:, rest], default[rest].expand(32, -1))


class Half:
    """Every world at half the limit of the configuration; a time-out by the class's own word."""

    is_time_out = True

    def __init__(self, cfg, env, path):
        self.half = env.max_episode_length // 2

    def __call__(self, env):
        return env.episode_length >= self.half


def test_a_class_may_say_that_it_is_a_time_out():
    cfg = Slider(limit=(10,)).cfg()
    cfg.terminations = {
        "half": TerminationTermCfg(Half),
        "by_world": TerminationTermCfg(TimeOutByWorld, {"steps": [9]}, time_out=False),
    }
    env = run(cfg, 5)
    assert env.truncated.tolist() == [True, True] and not env.terminated.any()
    assert env.termination_manager.is_time_out == {"half": True, "by_world": False}


def test_the_action_before_the_last_is_zero_in_a_new_episode():
    cfg = Slider(limit=(3, 100)).cfg()
    both = lambda env: torch.cat((env.action_manager.action, env.action_manager.prev_action), dim=1)  # noqa: E731
    cfg.recorders = {"both": RecorderTermCfg(both)}
    env = Env(cfg, num_envs=2, execution="eager")
    seen = []
    for action in (1.0, 2.0, 3.0, 4.0, 5.0):
        env.step(torch.full((2, 1), action))
        seen.append(env.recorder_manager["both"].tolist())
    assert [row[1] for row in seen] == [[1, 0], [2, 1], [3, 2], [4, 3], [5, 4]]
    assert [row[0] for row in seen] == [[1, 0], [2, 1], [3, 2], [4, 0], [5, 4]]


def test_an_environment_that_is_dropped_is_freed():
    env = Env(foot_cfg(), num_envs=2, execution="eager")
    env.step(torch.zeros(2, 1))
    gone = weakref.ref(env), weakref.ref(env.arena)
    env.close()
    del env
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_describe_is_plain_data():
    row = Env(foot_cfg(), num_envs=2, execution="eager").describe()
    text = json.loads(json.dumps(row))
    assert text["actions"] == 1 and text["observations"]["critic"] == 19
    names = {manager: [term["name"] for term in terms] for manager, terms in text["terms"].items()}
    assert names["events"] == ["mass", "toss", "kick"] and names["rewards"] == ["alive", "z"]
    assert text["arena_bytes"] == sum(entry["bytes"] for entry in text["arena"])
    assert all(entry["why"] for entry in text["arena"] if not entry["name"].startswith(("sim/", "events", "actions")))


def test_whole_numbers_and_bools_are_taken_as_their_value():
    cfg = Slider().cfg()
    cfg.scale_rewards_by_dt = False
    cfg.rewards = {
        "steps": RewardTermCfg(lambda env: env.episode_length, 0.5),
        "flag": RewardTermCfg(lambda env: env.episode_length > 0, 0.25),
    }
    cfg.metrics = {"steps": MetricTermCfg(lambda env: env.episode_length)}
    cfg.terminations["third"] = TerminationTermCfg(lambda env: env.episode_length // 3, time_out=False)
    cfg.observations["actor"].terms["steps"] = ObservationTermCfg(lambda env: env.episode_length[:, None])
    env = Env(cfg, num_envs=2, execution="eager")
    for step, ends in ((1, False), (2, False), (3, True)):
        _, reward, terminated, _, extras = env.step(torch.zeros(2, env.action.shape[1]))
        assert reward.tolist() == [0.5 * step + 0.25] * 2
        assert terminated.tolist() == [ends] * 2
        assert extras["final_obs"]["actor"][:, -1].tolist() == [float(step)] * 2
    assert env.stats.drain()["metric/steps"] == 2.0


def test_a_reward_of_weight_0_counts_for_nothing_whatever_it_returns():
    cfg = Slider().cfg()
    bad = {"nan": lambda env: env.reward * float("nan"), "inf": lambda env: env.reward + float("inf")}
    cfg.rewards = {"alive": RewardTermCfg(alive, 2.0)} | {name: RewardTermCfg(f, 0.0) for name, f in bad.items()}
    cfg.scale_rewards_by_dt = False
    env = run(cfg, 3)
    assert env.reward_manager.values.tolist() == [[2.0, 0.0, 0.0]] * 2 and env.reward.tolist() == [2.0, 2.0]
    assert not env.invalid.any() and env.reward_manager.not_finite() == []
    cfg.rewards["inf"].weight = 1.0
    env = run(cfg, 1)
    assert env.invalid.all() and env.reward_manager.not_finite() == ["inf"]


def in_place(env):
    action = env.action
    action -= 1.0  # here
    return action.abs().sum(dim=1)


def with_obs(env):
    return env.obs["actor"].clamp_(-1.0, 1.0)[:, 0]  # here


def default_pos(env):
    pos = env.scene["robot"].data.default_joint_pos
    pos -= 1.0  # here
    return env.reward + pos.sum()


def joint_positions(env):
    pos = env.scene["robot"].data.joint_pos
    pos -= 1.0  # here
    return pos[:, 0]


def told(env):
    command = env.command_manager.get_command("told")
    command -= 1.0  # here
    return command[:, 0]


def in_the_air(env):
    return env.scene["touch"].last_air_time.clamp_(max=0.5)  # here


def lighter(env):
    return env.reward + env.reward_manager.weights.mul_(0.5).sum()  # here


def emptied(env):
    return env.reward.zero_()  # here


class Told(CommandTerm):
    """A command, and a mark that terms may set."""

    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1))
        self.reached = env.arena.new(f"{path}/reached", (env.num_envs,), torch.bool)

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        fill_rows(self.value, mask, 1.0)


def marking(env):
    env.command_manager.term("told").reached.logical_or_(env.done)
    return env.reward + 0.0


KEPT = {
    in_place: "env/action",
    with_obs: "env/obs/actor",
    default_pos: "scene/robot/default_joint_pos",
    joint_positions: "sim/qpos",
    told: "commands/told/value",
    in_the_air: "sensors/touch/last_air_time",
    lighter: "rewards/weights",
    emptied: "env/reward",
}


def cfg_with(kind, func):
    cfg = foot_cfg()
    cfg.scene.sensors = (*cfg.scene.sensors, SensorCfg("touch", "contact", "foot", "geom", track_air_time=True))
    cfg.commands["told"] = CommandTermCfg(class_type=Told)
    getattr(cfg, kind)["mine"] = {
        "rewards": RewardTermCfg,
        "terminations": lambda func: TerminationTermCfg(lambda env: func(env) > 9.0, time_out=False),
        "metrics": MetricTermCfg,
        "recorders": RecorderTermCfg,
    }[kind](func)
    return cfg


@pytest.mark.parametrize(("func", "name"), KEPT.items())
@pytest.mark.parametrize("kind", ["rewards", "terminations", "metrics", "recorders"])
def test_a_term_that_only_tells_something_writes_nothing_of_the_tick(func, name, kind):
    cfg = cfg_with(kind, func)
    said = f"writes '{name}', which the tick keeps and others read: .*a - b, not a -= b"
    with pytest.raises(TickgraphError, match=f"term {kind}/mine {said}"):
        Env(cfg, 2, execution="eager")
    [blocker] = Env(cfg, 2, "meta").blockers(host_state_too=False)
    lines, first = inspect.getsourcelines(func)
    here = first + next(i for i, line in enumerate(lines) if "# here" in line)
    assert (blocker.manager, blocker.term, blocker.file, blocker.line) == (kind, "mine", __file__, here)
    assert re.search(f"writes '{name}', which the (tick keeps|simulation alone may)", blocker.reason)


def test_what_a_command_does_not_give_away_may_be_marked():
    cfg = cfg_with("rewards", marking)
    Env(cfg, 2, execution="eager")
    assert Env(cfg, 2, "meta").blockers(host_state_too=False) == []


def counting(env):
    env.command_manager.term("told").reached.fill_(True)
    return env.reward[:, None] + 0.0


def test_an_observation_writes_nothing_at_all():
    cfg = cfg_with("rewards", alive)
    cfg.observations["actor"].terms["mine"] = ObservationTermCfg(counting)
    said = "writes 'commands/told/reached', and an observation is computed twice a tick"
    with pytest.raises(TickgraphError, match=f"term observations/actor/mine {said}"):
        Env(cfg, 2, execution="eager")
    [blocker] = Env(cfg, 2, "meta").blockers(host_state_too=False)
    assert said in blocker.reason and blocker.line == counting.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("value", "got"), [(3.0, "float"), (torch.zeros(2), r"\(2,\)"), (torch.zeros(1, 3), r"\(1, 3\)")]
)
def test_a_command_is_a_tensor_of_a_row_a_world(value, got):
    class Other(Told):
        command = value

    cfg = cfg_with("rewards", alive)
    cfg.commands["told"] = CommandTermCfg(class_type=Other)
    with pytest.raises(TickgraphError, match=rf"^term commands/told: command is {got}, expected a tensor \(2, C\)$"):
        Env(cfg, 2, execution="eager")


def test_a_command_that_fails_is_one_line_that_says_where():
    class Failing(Told):
        @property
        def command(self):
            raise ValueError("no target")

    cfg = cfg_with("rewards", alive)
    cfg.commands["told"] = CommandTermCfg(class_type=Failing)
    with pytest.raises(TickgraphError, match=r"^term commands/told: ValueError: no target at command \(.*:\d+\)$"):
        Env(cfg, 2, execution="eager")
