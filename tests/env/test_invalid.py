"""A world with anything not finite ends as invalid, is counted for its cause, spoils nobody, and is clean again."""

import math

import pytest
import torch
from toys import SLIDER, Slider, X, alive, joint_pos, joint_vel, last_action

from tickgraph.env.config import (
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
)
from tickgraph.env.env import Env

N = 6
BAD = 2  # the world that goes wrong
WHEN = 3  # at this tick
# A motor on x, so strong that a legal action throws the mass out of every number.
CANNON = SLIDER.replace("<actuator>", '<actuator><motor name="cannon" joint="x" gear="1e9"/>')
LAST = 0.02 * (WHEN - 1)  # x of the last finite observation, at speed 1


def hit(env, value):
    """Return (N,) with a value in the bad world at the bad tick, else 0."""
    world = torch.arange(env.num_envs, device=env.device)
    bad = (world == BAD) & (env.rng.tick == WHEN)
    return torch.where(bad, torch.full_like(env.reward, value), torch.zeros_like(env.reward))


def spoilt_reward(env, value):
    return hit(env, value) + 1.0


def spoilt_observation(env, value):
    # Only at the end of the step: the first frame of the next episode, seen in the same tick, is sound.
    return torch.where(env.episode_length > 0, hit(env, value), 0.0)[:, None]


def spoilt_start(env, mask):
    entity = env.scene["robot"]
    pos = entity.staged_joint_pos() + hit(env, math.nan)[:, None]
    entity.write_joint_state_to_sim(pos, entity.staged_joint_vel(), mask)


class Ring:
    """Keeps what a replay would get."""

    def __init__(self):
        self.rows = []

    def write(self, obs, action, reward, terminated, truncated, boundary, final_obs):
        parts = [*obs.values(), *final_obs.values(), action, reward[:, None]]
        self.rows.append(torch.cat(parts, dim=1).clone())


def cfg(limit=(1000,)):
    task = Slider(v=(1.0,), limit=limit, history=2, see_action=True, delay=(1, 1)).cfg()
    task.scene.entities["robot"].model = CANNON
    task.observations["critic"] = ObservationGroupCfg({"v": ObservationTermCfg(joint_vel, {"asset_cfg": X})})
    task.rewards = {"alive": RewardTermCfg(alive), "x": RewardTermCfg(joint_pos_reward, 1.0)}
    return task


def joint_pos_reward(env, asset_cfg=X):
    return joint_pos(env, asset_cfg)[:, 0]


def spoil(cause):
    """Return (task, action of the bad tick in the bad world, cause that must be counted)."""
    task, action = cfg(), [0.0, 0.0]
    if cause.startswith("action"):
        action[0] = {"action nan": math.nan, "action inf": -math.inf, "action huge": 3.0e38}[cause]
        return task, action, "action"
    if cause == "state":
        action[0] = 1.0e9  # legal; the delay brings it to the motor one tick later
        return task, action, "state"
    value = {"nan": math.nan, "inf": math.inf}[cause.split()[1]]
    if cause.startswith("reward"):
        task.rewards["spoilt"] = RewardTermCfg(spoilt_reward, 1.0, {"value": value})
        return task, action, "reward"
    group = "critic" if "critic" in cause else "actor"
    task.observations[group].terms["spoilt"] = ObservationTermCfg(spoilt_observation, {"value": value})
    return task, action, "observation"


CAUSES = [
    "action nan", "action inf", "action huge", "state", "reward nan", "reward inf", "observation nan",
    "observation inf", "observation nan critic",
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_world_that_goes_wrong(cause, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    task, action, counted = spoil(cause)
    env, calm = (Env(task, num_envs=N, execution="eager") for _ in range(2))
    ring = Ring()
    env.attach(ring=ring)
    due = WHEN + (cause == "state")
    for tick in range(1, 8):
        raw = torch.zeros(N, 2)
        if tick == WHEN:
            raw[BAD] = torch.tensor(action)
        before = {group: value.clone() for group, value in env.obs.items()}
        obs, reward, terminated, truncated, extras = env.step(raw)
        others = [i for i in range(N) if i != BAD]
        # The other worlds play on as if nothing had happened.
        quiet = calm.step(torch.zeros(N, 2))
        assert torch.equal(obs["actor"][others], quiet[0]["actor"][others])
        assert torch.equal(reward[others], quiet[1][others])
        assert not truncated.any() and not terminated[others].any()
        bad = tick == due
        assert (bool(terminated[BAD]), bool(extras["invalid"][BAD])) == (bad, bad)
        if bad:
            assert reward[BAD] == 0.0
            for group, value in before.items():
                assert torch.equal(extras["final_obs"][group][BAD], value[BAD])
            # x twice (history), last action (two columns), of the first frame of a new episode.
            assert obs["actor"][BAD][:4].tolist() == [0.0, 0.0, 0.0, 0.0]
            # Every tensor is clean; a recorded reward term may still say what was wrong.
            dirty = [name for name, value in env.arena.snapshot().items() if not value.isfinite().all()]
            assert set(dirty) <= {"rewards/values"}
    assert obs["actor"][BAD][1].item() == pytest.approx(0.02 * (7 - due), abs=1e-6)
    assert all(rows.isfinite().all() for rows in ring.rows)
    row = env.stats.drain()
    assert (row["episodes"], row["terminated"], row["invalid"]) == (1, 1, 1)
    assert {c: row[f"invalid/{c}"] for c in env.causes} == {c: int(c == counted) for c in env.causes}
    assert row["episode_length"] == due
    assert math.isfinite(row["episode_return"])
    played = 0.02 * (due - 1)
    assert row["reward/alive"] == pytest.approx(played, abs=1e-6)  # reward 0 in the tick that went wrong
    [verdict] = env.verdicts.poll()
    assert (verdict["name"], verdict["count"], verdict["first_tick"]) == (f"non_finite/{counted}", 1, due)
    assert list(tmp_path.iterdir()) == []  # MuJoCo writes a log file when it is left to itself
    out, err = capfd.readouterr()
    assert out == "" and "WARNING" not in err


def test_invalid_and_time_limit_together_are_no_time_limit():
    task = cfg(limit=(WHEN,))
    task.rewards["spoilt"] = RewardTermCfg(spoilt_reward, 1.0, {"value": math.nan})
    env = Env(task, num_envs=N, execution="eager")
    for _ in range(WHEN):
        _, _, terminated, truncated, _ = env.step(torch.zeros(N, 2))
    assert terminated.tolist() == [i == BAD for i in range(N)]
    assert truncated.tolist() == [i != BAD for i in range(N)]


def test_a_start_that_is_not_finite_shows_zeros_and_ends_at_once():
    task = cfg(limit=(WHEN,))
    task.events["spoilt"] = EventTermCfg(spoilt_start, "reset")
    env = Env(task, num_envs=N, execution="eager")
    for _ in range(WHEN):
        obs, *_ = env.step(torch.zeros(N, 2))
    assert obs["actor"].isfinite().all() and obs["actor"][BAD].tolist() == [0.0] * 4
    obs, reward, terminated, _, extras = env.step(torch.zeros(N, 2))
    assert extras["invalid"].tolist() == [i == BAD for i in range(N)] == terminated.tolist()
    assert reward[BAD] == 0.0 and extras["final_obs"]["actor"].isfinite().all()
    for _ in range(2):
        obs, _, terminated, _, _ = env.step(torch.zeros(N, 2))
    assert obs["actor"][BAD, 1].item() == pytest.approx(0.04, abs=1e-6) and not terminated[BAD]


def test_a_metric_that_is_not_finite_somewhere_is_the_mean_of_the_rest():
    task = cfg()
    task.metrics = {
        "one": MetricTermCfg(spoilt_reward, {"value": math.nan}),
        "never": MetricTermCfg(lambda env: env.reward * math.nan),
    }
    env = Env(task, num_envs=N, execution="eager")
    for _ in range(5):
        env.step(torch.zeros(N, 2))
    row = env.stats.drain()
    assert row["metric/one"] == 1.0
    assert row["metric/never"] is None


def test_the_state_beside_the_joints_is_clean_too():
    # An entity whose ball joint is neither hinge nor slide: the initial state must cover it.
    task = cfg()
    ball = '<body name="ball" pos="0 0 2"><joint name="ball" type="ball"/><geom size="0.1" mass="1"/></body>'
    task.scene.entities["robot"].model = CANNON.replace("</worldbody>", ball + "</worldbody>")
    task.observations["actor"].terms["all"] = ObservationTermCfg(joint_pos, {"asset_cfg": SceneEntityCfg()})
    task.observations["actor"].terms["last"] = ObservationTermCfg(last_action)
    env = Env(task, num_envs=N, execution="eager")
    env.sim.view("qvel")  # the ball's spin diverges
    env.sim.stage_from_state()
    env.sim.staging_qvel[BAD, -3:] = math.nan
    env.sim.staging_qpos[BAD, -4:] = math.nan
    mask = torch.arange(N) == BAD
    env.sim.write_state(mask, env.no_worlds)
    env.sim.refresh(mask)
    _, _, terminated, _, _ = env.step(torch.zeros(N, 2))
    assert terminated.tolist() == mask.tolist()
    for _ in range(3):
        _, _, terminated, _, _ = env.step(torch.zeros(N, 2))
        assert not terminated.any()
    assert env.sim.view("qpos").isfinite().all() and env.sim.view("qvel").isfinite().all()


def test_a_world_faster_than_anything_real_counts_as_diverged():
    task = Slider(v=(1.0, 2.0), limit=(1000,)).cfg()
    task.diverged_speed = 1.5
    env = Env(task, 4, execution="eager")
    env.step(torch.zeros(4, env.action_manager.total_dim))
    assert env.invalid.tolist() == [False, True, False, True]
    assert env.stats.drain()["invalid/state"] == 2
