"""Compiled plays as eager does, tick by tick, at fixed addresses, compiled once."""

import pytest
import torch
from toys import Slider, X, joint_vel, last_action

from tickgraph.core.masked import assign_rows
from tickgraph.env.config import (
    CommandTermCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.managers import CommandTerm

pytestmark = pytest.mark.slow  # compiles three programs

N = 8


class Speed(CommandTerm):
    """A speed to keep; every now and then it asks for the mass to be put back to 0 without an end of the episode."""

    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1), why="speed to keep")
        self.rewrite = env.arena.new(f"{path}/rewrite", (env.num_envs,), torch.bool, "worlds to be put back")
        self.entity = env.scene["robot"]

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        assign_rows(self.value, mask, self.rng.uniform("value", 1, -1.0, 1.0))

    def update(self):
        self.rewrite.copy_(self.entity.data.joint_pos[:, 0] > 0.06)

    def write_state(self, mask):
        self.entity.write_joint_state_to_sim(self.entity.staged_joint_pos() * 0.0, self.entity.staged_joint_vel(), mask)


def keeps_speed(env, std, asset_cfg=X):
    error = joint_vel(env, asset_cfg)[:, 0] - env.command_manager.get_command("speed")[:, 0]
    return torch.exp(-torch.square(error) / std**2)


def push(env, mask, rng):
    entity = env.scene["robot"]
    entity.write_joint_state_to_sim(entity.staged_joint_pos(), rng.uniform("", 2, -0.5, 0.5), mask)


def cfg():
    task = Slider(v=(1.0, 0.4), limit=(9, 14), fall=0.3, history=2, see_action=True, delay=(0, 2)).cfg()
    task.observations["actor"].enable_corruption = True
    task.observations["actor"].terms["v"] = ObservationTermCfg(
        joint_vel, {"asset_cfg": X}, noise=GaussianNoiseCfg(0.1), clip=(-5.0, 5.0), delay_max_lag=2
    )
    task.rewards["speed"] = RewardTermCfg(keeps_speed, 2.0, {"std": 0.5})
    task.commands = {"speed": CommandTermCfg(Speed, (0.06, 0.2))}
    task.events["push"] = EventTermCfg(push, "interval", interval_range_s=(0.06, 0.2))
    task.metrics = {"speed": MetricTermCfg(keeps_speed, {"std": 0.5})}
    # A tensor of state itself, which a reset changes later in the same program: what is kept is from before.
    task.recorders = {"action": RecorderTermCfg(last_action)}
    return task


def actions(env, tick):
    world = torch.arange(env.num_envs, dtype=torch.float32)
    return torch.sin(0.7 * world + 0.3 * tick)[:, None]


@pytest.fixture(scope="module")
def compiled():
    env = Env(cfg(), num_envs=N, execution="compile", seed=3)
    for tick in range(2):
        env.step(actions(env, tick))
    yield env
    env.close()


def test_compiled_equals_eager_from_each_of_its_states(compiled):
    eager = Env(cfg(), num_envs=N, execution="eager", seed=3)
    seen = {"done": 0, "rewrite": 0, "written": 0}
    for tick in range(100):
        compiled.load_state_dict(eager.state_dict())
        action = actions(eager, tick)
        eager.step(action)
        compiled.step(action)
        a, b = eager.arena.snapshot(), compiled.arena.snapshot()
        for name in a:
            if name.startswith("publish/"):
                continue
            if a[name].is_floating_point():
                torch.testing.assert_close(b[name], a[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
            else:
                assert torch.equal(a[name], b[name]), name  # flags, words, counters
        for name in seen:
            seen[name] += int(a[f"env/{name}"].sum())
    # The rows of the table of the contract have all been there.
    assert seen["done"] > 50 and seen["rewrite"] > 20 and seen["written"] > seen["done"] + seen["rewrite"]


def test_nothing_moves_grows_or_is_compiled_again(compiled):
    pointers, names = compiled.arena.pointers(), compiled.arena.names()
    handed = set()
    with torch.compiler.set_stance("fail_on_recompile"):
        for tick in range(30):
            obs, *_ = compiled.step(actions(compiled, tick))
            handed.add(obs["actor"].data_ptr())
        with torch.inference_mode():
            compiled.step(actions(compiled, 30))
        with torch.enable_grad():
            compiled.step(actions(compiled, 31))
        compiled.reset()
        compiled.step(actions(compiled, 0))
    assert compiled.arena.pointers() == pointers and compiled.arena.names() == names
    assert len(handed) == 2  # the ring of publication
    for name, report in compiled.execution_report().items():
        assert (report["requested"], report["enabled"], report["disable_reason"]) == ("compile", "compile", None), name
        assert (report["captures"], report["recompiles"]) == (1, 0), name
        assert report["replays"] >= 30


def test_episodes_come_out_the_same(compiled):
    eager = Env(cfg(), num_envs=N, execution="eager", seed=3)
    rows = []
    for env in (eager, compiled):
        env.reset(seed=11)
        for tick in range(60):
            env.step(actions(env, tick))
        rows.append(env.stats.drain())
    assert rows[0]["episodes"] > 20
    for name, value in rows[0].items():
        assert rows[1][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
