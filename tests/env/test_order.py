"""The tick against a step written by hand: one transition for every row of the contract's table."""

import numpy as np
import pytest
import reference
import torch
from reference import World
from toys import (
    BOX,
    SLIDER,
    LaunchByWorld,
    TargetCfg,
    TimeOutByWorld,
    X,
    alive,
    by_world,
    joint_pos,
    joint_vel,
    position,
)

from tickgraph.core.masked import assign_rows
from tickgraph.env.config import (
    CommandTermCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.managers import CommandTerm
from tickgraph.sim.scene import EntityCfg, SceneCfg

SEED, TICKS = 0x1234_5678_9ABC, 40
NEVER = 1.0e9
# fmt: off
WORLDS = [  # what each is there for
    {"speed": 1.0, "limit": 50, "fall": 0.07},               # a fall
    {"speed": 1.0, "limit": 50, "fall": 0.051},              # a fall and a push together
    {"speed": -0.5, "limit": 5},                             # a time limit
    {"speed": 0.2, "limit": 5, "fall": 0.032},               # sometimes a fall and the limit together
    {"speed": 0.3, "limit": 50, "nan_at": 7},                # not finite
    {"speed": 0.9, "limit": 50, "wrap": 0.06},               # a wrap
    {"speed": -0.2, "limit": 50},                            # pushes
    {"speed": 0.95, "limit": 50, "wrap": 0.05},              # a wrap and a push together
    {"speed": 0.4, "limit": 3},                              # a time limit and a push together
    {"speed": 0.9, "limit": 4, "wrap": 0.05, "fall": 0.09},  # everything
    {"speed": 0.1, "limit": 6, "nan_at": 6},                 # not finite at the time limit
]
# fmt: on


def column(name, default=NEVER):
    return [world.get(name, default) for world in WORLDS]


def efforts(env):
    data = env.scene["robot"].data
    return torch.cat((data.joint_acc[:, 1:], data.actuator_force), dim=1)


def command(env):
    return env.command_manager.get_command("speed")


def age(env):
    return env.episode_length[:, None].to(torch.float32)


def box(env):
    data = env.scene["box"].data
    parts = (data.root_link_pos_w, data.root_link_lin_vel_b, data.root_link_ang_vel_b, data.projected_gravity_b)
    return torch.cat(parts, dim=1)


def track(env, asset_cfg=X):
    return torch.exp(-torch.square(joint_vel(env, asset_cfg)[:, 0] - command(env)[:, 0]))


class NanAt:
    def __init__(self, cfg, env, path):
        self.when = by_world(env, f"{path}/when", column("nan_at", -1), torch.int64)

    def __call__(self, env):
        return torch.where(env.rng.tick == self.when, torch.nan, 0.0)


class Beyond:
    def __init__(self, cfg, env, path):
        self.limit = by_world(env, f"{path}/limit", column("fall"))

    def __call__(self, env, asset_cfg=X):
        return position(env, asset_cfg) > self.limit


class Speed(CommandTerm):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1))
        self.rewrite = env.arena.new(f"{path}/rewrite", (env.num_envs,), torch.bool)
        self.limit = by_world(env, f"{path}/wrap", column("wrap"))
        self.speed = by_world(env, f"{path}/speed", column("speed"))
        self.robot = env.scene["robot"]

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        assign_rows(self.value, mask, self.rng.uniform("value", 1, -1.0, 1.0))

    def update(self):
        self.rewrite.copy_(self.robot.data.joint_pos[:, 0] > self.limit)

    def write_state(self, mask):
        pos, vel = self.robot.staged_joint_pos(), self.robot.staged_joint_vel()
        x, y = pos.unbind(1)
        self.robot.write_joint_state_to_sim(
            torch.stack((x - reference.WRAP, y), dim=1), torch.stack((self.speed, vel[:, 1]), dim=1), mask
        )


class Launch(LaunchByWorld):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.rng = env.rng.stream(path)

    def __call__(self, env, mask, v):
        start = self.rng.uniform("", 1, -reference.START, reference.START)
        pos = torch.cat((start, self.pos[:, 1:]), dim=1)
        env.scene["robot"].write_joint_state_to_sim(pos, self.vel, mask)


class Push:
    def __init__(self, cfg, env, path):
        self.x = env.arena.constant(f"{path}/x", [reference.PUSH, 0.0])
        self.box = env.arena.constant(f"{path}/box", reference.PUSH_BOX)

    def __call__(self, env, mask):
        robot, flying = env.scene["robot"], env.scene["box"]
        robot.write_joint_state_to_sim(robot.staged_joint_pos(), robot.staged_joint_vel() + self.x, mask)
        flying.write_root_link_velocity_to_sim(flying.staged_root_velocity() + self.box, mask)


def order_cfg():
    free = '<geom name="box" type="box" size="0.1 0.07 0.05" mass="1"'
    actor = {
        "x": ObservationTermCfg(
            joint_pos,
            {"asset_cfg": X},
            noise=UniformNoiseCfg(-reference.NOISE, reference.NOISE),
            history_length=reference.HISTORY,
        ),
        "v": ObservationTermCfg(joint_vel, {"asset_cfg": X}, delay_min_lag=1, delay_max_lag=1),
        "efforts": ObservationTermCfg(efforts),
        "command": ObservationTermCfg(command),
        "last_action": ObservationTermCfg(lambda env: env.action_manager.action),
        "age": ObservationTermCfg(age),
        "box": ObservationTermCfg(box),
    }
    return EnvCfg(
        scene=SceneCfg(
            {
                "robot": EntityCfg(SLIDER),
                "box": EntityCfg(BOX.replace(free, free + ' contype="0" conaffinity="0"')),
            },
            terrain=None,
            timestep=0.005,
            gravity=(0.0, 0.0, 0.0),
        ),
        decimation=reference.SUBSTEPS,
        num_envs=len(WORLDS),
        observations={"actor": ObservationGroupCfg(actor, enable_corruption=True)},
        actions={"dummy": TargetCfg(delay_max_lag=reference.ACTION_LAG)},
        rewards={
            "alive": RewardTermCfg(alive),
            "track": RewardTermCfg(track, 2.0),
            "x": RewardTermCfg(position, -0.5, {"asset_cfg": X}),
            "nan": RewardTermCfg(NanAt),
        },
        terminations={
            "fall": TerminationTermCfg(Beyond),
            "time_out": TerminationTermCfg(TimeOutByWorld, {"steps": column("limit")}),
        },
        commands={"speed": CommandTermCfg(Speed, reference.COMMAND_S)},
        events={
            "launch": EventTermCfg(Launch, "reset", {"v": column("speed")}),
            "push": EventTermCfg(Push, "interval", interval_range_s=(reference.PUSH_EVERY * reference.DT,) * 2),
        },
        metrics={"x": MetricTermCfg(position, {"asset_cfg": SceneEntityCfg("robot", joint_names="x")})},
    )


class Ring:
    """Takes what a replay takes."""

    def __init__(self):
        self.rows = []

    def write(self, obs, action, reward, terminated, truncated, boundary, final_obs):
        row = (obs["actor"], action, reward, terminated, truncated, boundary, final_obs["actor"])
        self.rows.append([value.clone().numpy() for value in row])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=3e-6)


@pytest.fixture(scope="module")
def played():
    """Play both; return the environment, its ring, the worlds and their transitions [tick][world]."""
    env = Env(order_cfg(), execution="eager", seed=SEED)
    ring = Ring()
    env.attach(ring=ring)
    worlds = [World(row, SEED, **world) for row, world in enumerate(WORLDS)]
    close(env.obs["actor"].numpy(), np.stack([world.obs for world in worlds]))
    transitions = []
    for tick in range(TICKS):
        actions = np.sin(0.7 * np.arange(len(WORLDS)) + 0.9 * tick).astype(np.float32)
        before = [world.obs for world in worlds]
        steps = [world.step(float(action)) for world, action in zip(worlds, actions, strict=True)]
        obs, reward, terminated, truncated, extras = env.step(torch.from_numpy(actions[:, None]))
        where = f"tick {tick + 1}"
        for name, flags in (("terminated", terminated), ("truncated", truncated), ("invalid", extras["invalid"])):
            assert flags.tolist() == [getattr(step, name) for step in steps], f"{name} at {where}"
        assert env.restarted.tolist() == [step.boundary for step in steps], where
        assert env.written.tolist() == [step.boundary or step.pushed for step in steps], where
        close(obs["actor"].numpy(), np.stack([step.obs for step in steps]))
        close(extras["final_obs"]["actor"].numpy(), np.stack([step.final_obs for step in steps]))
        close(reward.numpy(), [step.reward for step in steps])
        close(env.action_manager.action[:, 0].numpy(), [world.action for world in worlds])
        assert env.episode_length.tolist() == [world.age for world in worlds]
        assert env.arena["actions/dummy/lag"].tolist() == [world.lag for world in worlds]
        close(ring.rows[-1][0], np.stack(before))
        transitions.append(steps)
    return env, ring, worlds, transitions


def test_every_row_of_the_table_was_played(played):
    *_, transitions = played
    steps = [step for steps in transitions for step in steps]
    seen = {(s.terminated, s.truncated, s.boundary, s.invalid, s.pushed) for s in steps}
    fall, limit, wrap, push = ((True, False, True, False), (False, True, True, False), (False, False, True, False),
                               (False, False, False, False))  # fmt: skip
    for row in (fall, limit, wrap, push):
        assert (*row, False) in seen and (*row, True) in seen
    assert sum(s.invalid for s in steps) == 2 and all(s.terminated and s.reward == 0.0 for s in steps if s.invalid)
    # A fall and the limit in one step: terminated alone.
    both = [s for s in steps if s.terminated and not s.invalid and s.final_obs[8] == 5]
    assert both and not any(s.truncated for s in both)


def test_what_a_learner_bootstraps_from(played):
    _, ring, _, transitions = played
    for tick, steps in enumerate(transitions[:-1]):
        _, _, _, terminated, _, boundary, final_obs = ring.rows[tick]
        following = ring.rows[tick + 1][0]  # the obs of the next record is the successor, but for a boundary
        next_obs = np.where(boundary[:, None], final_obs, following)
        for row, step in enumerate(steps):
            assert (step.next_obs is None) == terminated[row]
            if step.next_obs is not None:
                close(next_obs[row], step.next_obs)


def test_last_action_and_history_are_cleared_or_kept(played):
    *_, transitions = played
    for tick, steps in enumerate(transitions):
        for row, step in enumerate(steps):
            done = step.terminated or step.truncated
            x, action = step.obs[:3], step.obs[7]
            if done:
                assert x[0] == x[1] == x[2] and action == 0.0 and step.obs[8] == 0.0
            elif tick > 3:
                assert action != 0.0
            if step.boundary and not done:  # a wrap: the history goes on, across the teleport
                earlier = transitions[tick - 1][row].obs
                close(x[:2], earlier[1:3])
                assert x[2] < x[1] and step.obs[8] > 0.0


def test_statistics_close_with_the_episode_and_go_on_across_wraps_and_pushes(played):
    env, _, worlds, transitions = played
    row = env.stats.drain()
    episodes = [episode for world in worlds for episode in world.episodes]
    steps = [step for steps in transitions for step in steps]
    assert row["episodes"] == len(episodes)
    assert row["terminated"] == sum(e["terminated"] for e in episodes)
    assert row["truncated"] == sum(not e["terminated"] for e in episodes)
    assert row["invalid"] == row["invalid/reward"] == sum(e["invalid"] for e in episodes) == 2
    assert row["episode_length"] == np.mean([e["length"] for e in episodes])
    names = ("alive", "track", "x", "nan")
    for name in names:
        assert row[f"reward/{name}"] == pytest.approx(np.mean([e[name] for e in episodes]), rel=1e-5, abs=1e-7)
    total = sum(row[f"reward/{name}"] for name in names)
    assert row["episode_return"] == pytest.approx(total, rel=1e-6)
    assert sum(s.boundary for s in steps) > len(episodes)  # wraps close nothing
