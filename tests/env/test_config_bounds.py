"""Values that fit no field, or mean nothing, are refused by their path before anything is built."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from toys import SLIDER, Slider, alive, joint_pos

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import (
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
)
from tickgraph.env.env import Env
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SensorCfg

NAN, INF = math.nan, math.inf


def term(path, value):
    """Return a change that adds an observation term with one value."""
    return lambda cfg: cfg.observations["actor"].terms.update(bad=ObservationTermCfg(joint_pos, **{path: value}))


def put(path, value):
    """Return a change that sets one value of a task; numbers and names of the path are keys of dictionaries."""

    def change(cfg):
        node = cfg
        *way, last = path.split(".")
        for part in way:
            node = node[part] if isinstance(node, dict) else getattr(node, part)
        if isinstance(node, dict):
            node[last] = value
        else:
            setattr(node, last, value)

    return change


def reward(func, **params):
    return lambda cfg: cfg.rewards.update(bad=RewardTermCfg(func, 1.0, params))


def event(func, mode="reset", **params):
    return lambda cfg: cfg.events.update(bad=EventTermCfg(func, mode, params))


def refused(change):
    cfg = Slider().cfg()
    change(cfg)
    with pytest.raises(TickgraphError) as caught:
        Env(cfg, num_envs=2, execution="eager")
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize("value", [0.1, "x", -1.0, (-0.1, 0.1), {"n_min": 0.0}, UniformNoiseCfg])
def test_noise_is_a_configuration(value):
    text = refused(term("noise", value))
    assert "observations.actor.terms.bad.noise is " in text
    assert text.endswith("expected UniformNoiseCfg(...) or GaussianNoiseCfg(...) or None")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (term("noise", UniformNoiseCfg(0.1, -0.1)), "UniformNoiseCfg(n_min=0.1, n_max=-0.1), expected n_min <= n_max"),
        (term("noise", UniformNoiseCfg(-INF, INF)), "bad.noise.n_min is -inf, expected a finite number"),
        (term("noise", GaussianNoiseCfg(-0.1)), "bad.noise.std is -0.1, expected a finite number of at least 0"),
        (term("clip", (1.0, -1.0)), "bad.clip is (1.0, -1.0), expected two numbers (low, high) with low < high"),
        (term("clip", (NAN, 1.0)), "bad.clip is (nan, 1.0), expected two numbers"),
        (term("clip", 1.0), "bad.clip is 1.0, expected two numbers"),
        (term("scale", "2"), "bad.scale is '2', expected a finite number or any number of values"),
        (term("scale", (1.0, INF)), "bad.scale is (1.0, inf), expected a finite number or"),
        (term("delay_max_lag", -1), "bad.delay_max_lag is -1, expected a whole number of at least 0"),
        (term("history_length", 1.5), "bad.history_length is 1.5, expected a whole number of at least 0"),
        (term("history_length", 10**30), "0, expected a whole number of at most 2^53"),
        (term("params", [1]), "bad.params is [1], expected a dictionary of anything by name"),
        (term("params", None), "bad.params is None, expected a dictionary"),
        (put("rewards.alive.weight", NAN), "rewards.alive.weight is nan, expected a finite number"),
        (put("rewards.alive.weight", -INF), "rewards.alive.weight is -inf, expected a finite number"),
        (put("rewards.alive.weight", 1e300), "rewards.alive.weight is 1e+300, expected a finite number"),
        (put("actions.dummy.delay_min_lag", -1), "actions.dummy.delay_min_lag is -1, expected a whole number"),
        (put("diverged_speed", 0.0), "diverged_speed is 0.0, expected a number above 0"),
        (put("episode_length_s", 1e300), "episode_length_s is 1e+300, expected a finite number"),
        (put("episode_length_s", 1e-9), "episode_length_s is 1e-09, shorter than a control step of 0.02 s"),
        (put("episode_length_s", 1e9), "is 1e+09: 5e+10 control steps of 0.02 s, expected at most 1e+08"),
        (put("scene.timestep", 5.0), "scene.timestep is 5.0, expected seconds from 1e-6 to 0.1"),
        (put("scene.timestep", "x"), "scene.timestep is 'x', expected seconds"),
        (put("decimation", 2.0), "decimation is 2.0, expected a whole number"),
        (put("scene.solver.iterations", -1), "scene.solver.iterations is -1, expected a whole number of at least 1"),
        (put("scene.solver.impratio", 0.0), "scene.solver.impratio is 0.0, expected a finite number above 0"),
        (put("scene.solver.cone", "flat"), "scene.solver.cone is 'flat', expected one of pyramidal, elliptic"),
        (put("scene.gravity", (0.0, NAN, 0.0)), "scene.gravity is (0.0, nan, 0.0), expected 3 finite numbers"),
        (put("scene.capacity.njmax", 0), "scene.capacity.njmax is 0, expected a whole number of at least 1"),
        (put("scene.entities.robot.init_state", InitialStateCfg(rot=(0.0,) * 4)), "expected a quaternion w x y z"),
        (put("scene.entities.robot", None), "scene.entities.robot is None, expected EntityCfg(...)"),
        (put("scene.entities", [EntityCfg(SLIDER)]), "scene.entities is a list, expected a dictionary of Ent"),
        (put("scene.sensors", {"s": SensorCfg("s", "gyro", "x")}), "scene.sensors is "),
        (put("scene.sensors", (5,)), "scene.sensors is (5,), expected any number of values, each SensorCfg(...)"),
        (put("scene", None), "scene is None, expected SceneCfg(...)"),
    ],
)  # fmt: skip
def test_values_are_within_bounds(change, text):
    assert text in refused(change)


@pytest.mark.parametrize("seconds", [(3.0, 1.0), (0.0, 0.0), (-1.0, -1.0), (1.0, INF), (NAN, 1.0), 5.0, (1.0,)])
def test_times_are_drawn_from_a_range(seconds):
    expected = "expected two finite numbers of seconds (low, high) with 0 <= low <= high and high above 0"
    interval = EventTermCfg(lambda env, mask: None, "interval", interval_range_s=seconds)
    assert f"events.bad.interval_range_s is {seconds}, {expected}" in refused(
        lambda cfg: cfg.events.update(bad=interval)
    )
    command = CommandTermCfg(mdp.GaitPhase, seconds)
    assert f"commands.bad.resampling_time_range is {seconds}, {expected}" in refused(put("commands.bad", command))


@pytest.mark.parametrize(
    "name", ["observations", "actions", "rewards", "terminations", "commands", "events", "curriculum", "metrics",
             "recorders", "substeps"],
)  # fmt: skip
@pytest.mark.parametrize("value", [[RewardTermCfg(alive)], None, 5])
def test_terms_are_a_dictionary(name, value):
    text = refused(put(name, value))
    assert text.startswith(f"{name} is ") and "expected a dictionary of " in text and text.endswith("Cfg(...) by name")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rewards", alive), ("rewards", TerminationTermCfg(alive)), ("terminations", RewardTermCfg(alive)),
        ("metrics", 5), ("events", [EventTermCfg(alive)]), ("observations", None), ("observations", {"x": 1}),
        ("actions", MetricTermCfg(alive)), ("curriculum", RecorderTermCfg(alive)),
    ],
)  # fmt: skip
def test_a_term_is_of_its_managers_kind(name, value):
    text = refused(lambda cfg: getattr(cfg, name).update(bad=value))
    assert text.startswith(f"{name}.bad is ") and text.endswith("Cfg(...)")


@pytest.mark.parametrize("name", ["", "a/b c", "a.b", "a b", "-a", "a\n", 5])
def test_names_can_be_logged_and_said_on_a_command_line(name):
    expected = "expected letters, digits, _ and - alone: it stands in the log and on the command line"
    for place in ("rewards", "observations", "commands"):
        value = {"rewards": RewardTermCfg(alive), "observations": ObservationGroupCfg(), "commands": CommandTermCfg()}
        assert refused(lambda cfg, at=place: getattr(cfg, at).update({name: value[at]})) == (  # noqa: B023
            f"{place} has the name {name!r}, {expected}"
        )


def test_names_of_any_script_are_fine_but_not_two_that_read_alike():
    cfg = Slider(rewards={"步态-2": RewardTermCfg(alive), "größe_1": RewardTermCfg(alive)}).cfg()
    Env(cfg, num_envs=2, execution="eager").close()
    cfg.rewards["größe-1"] = RewardTermCfg(alive)
    with pytest.raises(TickgraphError, match="expected names that differ by more than - and _"):
        Env(cfg, num_envs=2, execution="eager")


@pytest.mark.parametrize("value", [(), "", ("",), ("x", 5)])
@pytest.mark.parametrize("part", ["joint", "body", "geom", "site", "actuator"])
def test_a_selector_names_something(part, value):
    params = {"asset_cfg": SceneEntityCfg(**{f"{part}_names": value})}
    text = refused(lambda cfg: cfg.observations["actor"].terms.update(bad=ObservationTermCfg(joint_pos, params)))
    assert f"bad.params.asset_cfg.{part}_names is {value!r}, expected names, or None for all" in text


def test_an_action_names_its_actuators():
    action = mdp.JointPositionActionCfg(actuator_names=())
    assert "actions.bad.actuator_names is (), expected names, or None" in refused(put("actions", {"bad": action}))
    cfg = Slider().cfg()
    cfg.actions = {"all": mdp.JointPositionActionCfg(actuator_names=None)}
    assert Env(cfg, num_envs=2, execution="eager").action_manager.total_dim == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (event(mdp.reset_joints_by_offset, position_range=(1.0, -1.0)), "position_range is (1.0, -1.0), expected two"),
        (event(mdp.reset_joints_by_scale, position_range=(0.0, NAN)), "position_range is (0.0, nan), expected two"),
        (event(mdp.reset_root_state_uniform, pose_range={"x": (1.0, 0.0)}), "pose_range.x is (1.0, 0.0), expected"),
        (event(mdp.reset_root_state_uniform, pose_range=[1.0]), "bad: pose_range is [1.0], expected a dictionary"),
        (event(mdp.push_by_setting_velocity, "step", velocity_range={"x": 1.0}), "velocity_range.x is 1.0, expected"),
        (event(mdp.randomize_encoder_bias, bias_range=(0.1, -0.1)), "bad: bias_range is (0.1, -0.1), expected two"),
        (reward(mdp.upright, std=0.0), "rewards/bad: std is 0.0, expected a finite number above 0"),
        (reward(mdp.upright, std=NAN), "rewards/bad: std is nan, expected a finite number above 0"),
        (reward(mdp.posture, std={".*": -1.0}), "rewards/bad: std..* is -1.0, expected a finite number above 0"),
        (reward(mdp.undesired_contacts, sensor_names=()), "bad: sensor_names is (), expected at least one name"),
        (reward(mdp.undesired_contacts, sensor_names="feet"), "sensor_names is 'feet', expected at least one name"),
        (put("terminations.bad", TerminationTermCfg(mdp.joint_pos_out_of_manual_limit, {"bounds": (1.0, -1.0)})),
         "terminations/bad: bounds is (1.0, -1.0), expected two numbers (low, high) with low < high"),
        (put("curriculum.bad", CurriculumTermCfg(
            mdp.reward_weight, {"reward_name": "alive", "weight_stages": [{"step": 5, "weight": NAN}]})),
         "curriculum/bad: weight_stages[0]: weight is nan, expected a finite number"),
        (put("commands.bad", mdp.UniformVelocityCommandCfg(ranges=mdp.VelocityRanges(lin_vel_x=(1.0, -1.0)))),
         "commands.bad.ranges.lin_vel_x is (1.0, -1.0), expected two finite numbers, low <= high"),
        (put("commands.bad", mdp.UniformVelocityCommandCfg(rel_standing_envs=1.5)),
         "commands.bad.rel_standing_envs is 1.5, expected a share from 0 to 1"),
    ],
)  # fmt: skip
def test_parameters_of_shipped_terms_are_within_bounds(change, text):
    assert text in refused(change)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda env, env_ids: None, "takes 'env_ids', but tickgraph passes a mask, one bool a world, and no ids"),
        (lambda env, ids, mask: None, "takes 'ids', but tickgraph passes a mask"),
        (lambda env: None, "takes (env), expected (env, mask) and its parameters"),
        (lambda env, rng: None, "takes 'rng' where 'mask' is passed; write it as (env, mask, rng, ...)"),
    ],
)
def test_an_event_takes_a_mask(function, text):
    assert f"term events/bad: <lambda> {text}" in refused(event(function))


def test_a_lambda_may_draw():
    cfg = Slider().cfg()
    cfg.events["draw"] = EventTermCfg(lambda env, mask, rng: rng.uniform("", 1))
    cfg.rewards["draw"] = RewardTermCfg(lambda env, rng: rng.uniform("", 1)[:, 0])
    Env(cfg, num_envs=2, execution="eager").close()


@pytest.mark.parametrize(
    ("mode", "seconds", "text"),
    [
        ("interval", None, "events.bad has mode 'interval' and no interval_range_s; give the seconds between"),
        ("reset", (1.0, 2.0), "events.bad has interval_range_s, which goes with mode 'interval', and mode 'reset'"),
    ],
)
def test_an_interval_goes_with_its_mode(mode, seconds, text):
    bad = EventTermCfg(lambda env, mask: None, mode, interval_range_s=seconds)
    assert text in refused(lambda cfg: cfg.events.update(bad=bad))


@pytest.mark.parametrize(
    ("path", "cfg"),
    [
        ("rewards.bad", RewardTermCfg(lambda env: env.reward.to_sparse())),
        ("curriculum.bad", CurriculumTermCfg(lambda env, mask: env.reward.to_sparse())),
        ("metrics.bad", MetricTermCfg(lambda env: env.reward.to_sparse())),
        ("recorders.bad", RecorderTermCfg(lambda env: env.reward.to_sparse())),
        ("terminations.bad", TerminationTermCfg(lambda env: env.done.to_sparse())),
        ("observations.actor.terms.bad", ObservationTermCfg(lambda env: env.reward[:, None].to_sparse())),
    ],
)
def test_a_term_returns_a_plain_tensor(path, cfg):
    assert "/bad returned a sparse tensor (torch.sparse_coo), expected a" in refused(put(path, cfg))


@pytest.mark.parametrize(
    ("path", "cfg", "text"),
    [
        ("observations.actor.terms.bad", ObservationTermCfg(lambda env: env.reward[:, None] + 0j), "a tensor of"),
        ("observations.actor.terms.bad", ObservationTermCfg(lambda env: env.reward[:, None][:, :0]), "(2, 0), expect"),
        ("recorders.bad", RecorderTermCfg(lambda env: env.reward + 0j), "a tensor of torch.complex64, expected"),
        ("curriculum.bad", CurriculumTermCfg(lambda env, mask: 0.5), "float, expected a tensor, or nothing"),
    ],
)  # fmt: skip
def test_numbers_are_real_and_there_is_one(path, cfg, text):
    assert f"/bad returned {text}" in refused(put(path, cfg))


def test_an_environment_has_so_many_threads():
    with pytest.raises(TickgraphError, match="threads is 100000, expected a whole number of threads from 1 to 1024"):
        Env(Slider().cfg(), num_envs=2, threads=100_000)


def test_what_is_unusual_but_means_something_is_taken():
    cfg = Slider().cfg()
    cfg.diverged_speed = INF
    terms = cfg.observations["actor"].terms
    terms["half"] = ObservationTermCfg(joint_pos, copy.deepcopy(terms["x"].params), clip=(0.0, INF), scale=None)
    terms["still"] = ObservationTermCfg(joint_pos, copy.deepcopy(terms["x"].params), noise=UniformNoiseCfg(0.0, 0.0))
    cfg.rewards["off"] = RewardTermCfg(alive, 0)
    obs, *_ = Env(cfg, num_envs=2, execution="eager").step(torch.zeros(2, 1))
    assert obs["actor"].shape == (2, 3)
