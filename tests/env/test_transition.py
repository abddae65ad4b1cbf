"""Ends of episodes, memory and statistics of the sliding mass, against numbers worked out by hand."""

import json

import pytest
import torch
from toys import Slider, X, alive, beyond, joint_pos, last_action, position

from tickgraph.env.config import (
    MetricTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env


def controls(env):
    return env.sim.ctrl


def lags(env):
    return env.arena["actions/dummy/lag"]


def seven(env):
    return torch.full_like(env.reward, 7.0)


def test_a_time_limit_is_not_a_fall_and_the_last_observation_survives():
    # x after k steps is 0.02 k v. By world mod 3: falls at step 4 (0.08 > 0.07); limit at 5; both at 5 (0.08).
    speeds = (1.0, 0.5, 0.8)
    ends = {1.0: (4, True, 0.08), 0.5: (5, False, 0.05), 0.8: (5, True, 0.08)}
    env = Env(Slider(v=speeds, limit=(5,), fall=0.07).cfg(), num_envs=6, execution="eager")
    age = [0] * 6
    ended = 0
    for _ in range(20):
        obs, _, terminated, truncated, extras = env.step(torch.zeros(6, 1))
        for world in range(6):
            v = speeds[world % 3]
            age[world] += 1
            step, fall, final = ends[v]
            over = age[world] == step
            assert bool(terminated[world]) == (over and fall)
            assert bool(truncated[world]) == (over and not fall)
            assert bool(extras["time_outs"][world]) == (over and not fall)
            x = final if over else 0.02 * age[world] * v
            assert extras["final_obs"]["actor"][world, 0].item() == pytest.approx(x, abs=1e-6)
            assert obs["actor"][world, 0].item() == pytest.approx(0.0 if over else x, abs=1e-6)
            if over:
                age[world] = 0
                ended += 1
    assert ended == 2 * (5 + 4 + 4)


def test_first_observation_comes_from_the_reset_event():
    env = Env(Slider(x0=0.3).cfg(), num_envs=2, execution="eager")
    obs, _ = env.reset()
    assert obs["actor"][:, 0].tolist() == pytest.approx([0.3, 0.3])


@pytest.mark.parametrize("limits", [(5,), (5, 7)], ids=["all at 5", "half at 7"])
@pytest.mark.parametrize("delay", [(2, 2), (0, 2)], ids=["delay 2", "delay 0 to 2"])
def test_nothing_of_the_last_episode_leaks(limits, delay):
    worlds = 32
    cfg = Slider(v=(1.0,), x0=1.0, limit=limits, history=3, see_action=True, delay=delay).cfg()
    cfg.recorders = {"ctrl": RecorderTermCfg(controls), "lag": RecorderTermCfg(lags)}
    env = Env(cfg, num_envs=worlds, execution="eager")
    first, _ = env.reset()
    for world in range(worlds):
        assert first["actor"][world].tolist() == pytest.approx([1.0, 1.0, 1.0, 0.0])
    seen_lags = set()
    start = [0] * worlds
    for k in range(20):
        obs, _, _, truncated, extras = env.step(torch.full((worlds, 1), k / 10))
        target, lag = env.recorder_manager["ctrl"][:, 0].tolist(), env.recorder_manager["lag"].tolist()
        for world in range(worlds):
            age = k + 1 - start[world]  # steps played in this episode
            x = [1.0 + 0.02 * max(0, age - back) for back in (2, 1, 0)]
            seen_lags.add(lag[world])
            sent = k - lag[world]
            assert target[world] == pytest.approx(sent / 10 if sent >= start[world] else 0.0, abs=1e-6)
            assert extras["final_obs"]["actor"][world].tolist() == pytest.approx([*x, k / 10], abs=1e-6)
            over = age == limits[world % len(limits)]
            assert bool(truncated[world]) == over
            expected = [1.0, 1.0, 1.0, 0.0] if over else [*x, k / 10]
            assert obs["actor"][world].tolist() == pytest.approx(expected, abs=1e-6)
            if over:
                start[world] = k + 1
    assert seen_lags == set(range(delay[0], delay[1] + 1))


def test_a_delayed_observation_reads_the_frame_that_is_due():
    cfg = Slider(v=(1.0,), x0=1.0, limit=(5,)).cfg()
    cfg.observations["actor"].terms = {
        "late": ObservationTermCfg(joint_pos, {"asset_cfg": X}, delay_min_lag=2, delay_max_lag=2),
        "late_history": ObservationTermCfg(
            joint_pos, {"asset_cfg": X}, delay_min_lag=1, delay_max_lag=1, history_length=2
        ),
    }
    env = Env(cfg, num_envs=1, execution="eager")
    rows, finals = [], []
    for _ in range(6):
        obs, _, _, _, extras = env.step(torch.zeros(1, 1))
        rows.append(obs["actor"][0].tolist())
        finals.append(extras["final_obs"]["actor"][0].tolist())
    # x is 1.02 ... 1.10 after steps 1 to 5; before the first frame that is due, the first of the episode stands in.
    assert rows[1] == pytest.approx([1.0, 1.0, 1.02])
    assert rows[3] == pytest.approx([1.04, 1.04, 1.06])
    assert finals[4] == pytest.approx([1.06, 1.06, 1.08])
    assert rows[4] == pytest.approx([1.0, 1.0, 1.0])
    assert rows[5] == pytest.approx([1.0, 1.0, 1.0])


def test_the_numbers_in_the_log_are_those_of_the_episodes():
    # World 0: v = 1, ended by the limit after 5 steps. World 1: v = 2, ends at step 3, x = 0.12.
    cfg = Slider(
        v=(1.0, 2.0),
        limit=(5,),
        fall=0.11,
        rewards={"alive": RewardTermCfg(alive, 2.0), "pos": RewardTermCfg(position, -0.5, {"asset_cfg": X})},
    ).cfg()
    cfg.metrics = {"seven": MetricTermCfg(seven)}
    env = Env(cfg, num_envs=2, execution="eager")
    for _ in range(30):
        env.step(torch.zeros(2, 1))
    row = env.stats.drain()
    json.dumps(row, allow_nan=False)
    # Six episodes of world 0: alive 5 * 2 * 0.02 = 0.2, pos -0.5 * 0.02 * (0.02 + ... + 0.10) = -0.003.
    # Ten of world 1: alive 0.12, pos -0.5 * 0.02 * (0.04 + 0.08 + 0.12) = -0.0024. Means are over the 16 episodes.
    assert row["episodes"] == 16
    assert (row["truncated"], row["terminated"], row["invalid"]) == (6, 10, 0)
    assert (row["ended_by/time_out"], row["ended_by/fall"]) == (6, 10)
    assert row["episode_length"] == 3.75
    assert row["reward/alive"] == pytest.approx(0.150, abs=1e-7)
    assert row["reward/pos"] == pytest.approx(-0.002625, abs=1e-7)
    assert row["episode_return"] == pytest.approx(0.147375, abs=1e-7)
    assert row["metric/seven"] == 7.0
    for _ in range(2):
        env.step(torch.zeros(2, 1))
    row = env.stats.drain()
    json.dumps(row, allow_nan=False)
    assert row["episodes"] == 0
    for name in ("episode_length", "episode_return", "reward/alive", "reward/pos"):
        assert row[name] is None
    assert row["metric/seven"] == 7.0
    empty = env.stats.drain()
    json.dumps(empty, allow_nan=False)
    assert empty["metric/seven"] is None


def test_staggered_worlds_count_the_steps_that_they_played():
    env = Env(Slider(limit=(50,)).cfg(), num_envs=16, execution="eager", seed=3)
    env.stagger()
    begun = env.episode_length.tolist()
    assert len(set(begun)) > 8 and max(begun) < 50
    for _ in range(50):
        env.step(torch.zeros(16, 1))
    row = env.stats.drain()
    assert row["episodes"] == 16
    assert row["episode_length"] == pytest.approx(sum(50 - age for age in begun) / 16)


def test_rewards_without_the_step_length():
    cfg = Slider(limit=(5,), rewards={"alive": RewardTermCfg(alive, 2.0)}).cfg()
    cfg.scale_rewards_by_dt = False
    env = Env(cfg, num_envs=1, execution="eager")
    _, reward, _, _, _ = env.step(torch.zeros(1, 1))
    assert reward.tolist() == [2.0]


def test_time_out_of_a_term_that_does_not_say_so_is_declared_by_its_configuration():
    cfg = Slider(limit=(50,)).cfg()
    cfg.terminations["far"] = TerminationTermCfg(beyond, {"asset_cfg": X, "limit": 0.03}, time_out=True)
    env = Env(cfg, num_envs=1, execution="eager")
    env.step(torch.zeros(1, 1))
    _, _, terminated, truncated, _ = env.step(torch.zeros(1, 1))
    assert (terminated.tolist(), truncated.tolist()) == ([False], [True])


def test_selectors_and_last_action_come_out_in_order():
    cfg = Slider().cfg()
    cfg.observations["actor"].terms = {
        "swapped": ObservationTermCfg(
            joint_pos, {"asset_cfg": SceneEntityCfg("robot", ("dummy", "x"), preserve_order=True)}
        ),
        "last_action": ObservationTermCfg(last_action),
    }
    env = Env(cfg, num_envs=1, execution="eager")
    obs, _, _, _, _ = env.step(torch.ones(1, 1))
    dummy, x, action = obs["actor"][0].tolist()
    assert x == pytest.approx(0.02) and 0.0 < dummy < 0.01 and action == 1.0
