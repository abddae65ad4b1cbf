"""What a term that was brought from elsewhere does in another way here is told with what to write instead."""

import pytest
import torch
from toys import Slider, X, joint_pos

from tickgraph.core.errors import TickgraphError, lacking
from tickgraph.env.config import (
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
)
from tickgraph.env.env import Env
from tickgraph.sim.scene import SensorCfg


def old_velocity(env, asset_cfg=None):
    return env.scene["robot"].data.joint_velocity[:, 0]


def old_length(env):
    return env.episode_length_buf * 1.0


def old_log(env):
    return env.extras["log"]["x"]


class two_arguments:
    def __init__(self, cfg, env):
        pass

    def __call__(self, env):
        return env.reward


class no_init:
    def __call__(self, env):
        return env.reward


class needs_std:
    def __init__(self, cfg, env, path):
        self.std = cfg.params["std"]

    def __call__(self, env, std):
        return env.reward * std


class any_arguments:
    def __init__(self, *given):
        self.given = len(given)

    def __call__(self, env):
        return env.reward + self.given


def of_sensor(env, sensor_cfg):
    return env.reward


def event(env, mask, rng):
    pass


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (RewardTermCfg(old_velocity), "object has no attribute 'joint_velocity'; did you mean 'joint_vel'"),
        (RewardTermCfg(old_length), "no attribute 'episode_length_buf'; did you mean 'episode_length'"),
        (RewardTermCfg(old_log), "'Env' object has no attribute 'extras'; docs/terms.md says what there is"),
        (RewardTermCfg(two_arguments), r"two_arguments\(cfg, env, path\), and its __init__ takes \(cfg, env\)"),
        (RewardTermCfg(no_init), r"no_init\(cfg, env, path\), and its __init__ takes \(\); path is the name"),
        (RewardTermCfg(needs_std), "rewards/term: needs_std needs 'std'; add it to params"),
        (RewardTermCfg(needs_std, params={"sd": 1.0}), "needs_std has no parameter 'sd'; did you mean 'std'"),
        (RewardTermCfg(of_sensor, params={"sensor_cfg": SceneEntityCfg("speed")}), "'speed' is a sensor, .* its name"),
        (RewardTermCfg(of_sensor, params={"sensor": SceneEntityCfg("contacts")}), "no parameter 'sensor'; did you"),
    ],
)  # fmt: skip
def test_what_is_otherwise_here_is_said(term, text):
    cfg = Slider().cfg()
    cfg.scene.sensors = (SensorCfg("speed", "framelinvel", "slider", "xbody"),)
    cfg.rewards["term"] = term
    with pytest.raises(TickgraphError, match=text) as error:
        Env(cfg, num_envs=2, execution="eager")
    assert "\n" not in str(error.value)


def test_the_judge_says_it_too():
    cfg = Slider().cfg()
    cfg.rewards["term"] = RewardTermCfg(old_length)
    env = Env(cfg, num_envs=2, device="meta")
    assert any("did you mean 'episode_length'" in blocker.reason for blocker in env.blockers())


def test_only_what_is_ours_is_guessed_at():
    for owner in ({}, torch.zeros(1)):
        with pytest.raises(AttributeError) as error:
            owner.lenght  # noqa: B018
        assert lacking(error.value) == ""
    assert lacking(KeyError("x")) == ""


def test_draws_and_arguments_that_a_term_takes_anyway():
    cfg = Slider().cfg()
    cfg.rewards["term"] = RewardTermCfg(any_arguments)
    cfg.events["event"] = EventTermCfg(event)  # its rng is no parameter that is missing
    cfg.metrics["term"] = MetricTermCfg(any_arguments)
    env = Env(cfg, num_envs=2, execution="eager")
    assert env.reward_manager.terms["term"]().tolist() == [3.0, 3.0]


def test_a_policy_group_of_another_name():
    cfg = Slider().cfg()
    cfg.observations = {"policy": cfg.observations["actor"]}
    with pytest.raises(TickgraphError, match="no observation group 'actor', which the policy sees; it has 'policy'"):
        Env(cfg, num_envs=2, execution="eager")


@pytest.mark.parametrize(("group", "frames"), [(None, (1, 3)), (2, (2, 2)), (0, (1, 1))])
def test_history_of_a_group_holds_for_all_its_terms(group, frames):
    cfg = Slider().cfg()
    terms = {name: ObservationTermCfg(joint_pos, {"asset_cfg": X}) for name in ("one", "three")}
    terms["three"].history_length = 3
    cfg.observations["actor"] = ObservationGroupCfg(terms, history_length=group)
    env = Env(cfg, num_envs=2, execution="eager")
    assert env.obs["actor"].shape == (2, sum(frames))  # X is one joint
    assert terms["three"].history_length == 3  # the task's own configuration stays as it is


class Remembers:
    """Counts its calls."""

    def __init__(self, cfg, env, path):
        self.count = env.arena.new(f"{path}/count", (env.num_envs,))
        self.observes = path.startswith("observations/")

    def __call__(self, env):
        self.count += 1.0
        return self.count[:, None] if self.observes else self.count


def test_an_observation_that_remembers_is_refused():
    cfg = Slider().cfg()
    cfg.observations["actor"].terms["calls"] = ObservationTermCfg(Remembers)
    with pytest.raises(
        TickgraphError, match="actor/calls writes 'observations/actor/calls/count', and .* twice a tick"
    ):
        Env(cfg, num_envs=2, execution="eager")
    cfg.observations["actor"].terms["calls"] = ObservationTermCfg(lambda env: env.arena["metrics/calls/count"][:, None])
    cfg.metrics["calls"] = MetricTermCfg(Remembers)
    env = Env(cfg, num_envs=2, execution="eager")
    env.step(torch.zeros(2, env.action.shape[1]))
    assert env.obs["actor"][:, -1].tolist() == [1.0, 1.0]
