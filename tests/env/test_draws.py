"""What terms draw: by names of their own while they run, and the same whatever the run while they are built."""

import random

import numpy as np
import pytest
import torch
from toys import Slider, TargetCfg, alive, foot_cfg

from tickgraph.core.errors import TickgraphError
from tickgraph.core.masked import assign_rows
from tickgraph.env.config import EventTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.env import Env
from tickgraph.tasks import registry


def twice(env, mask, rng):
    slow, fast = rng.uniform("speed", 1, 0.0, 0.1), rng.uniform("speed", 1, 1.0, 2.0)
    env.scene["robot"].write_joint_state_to_sim(slow.expand(-1, 2), fast.expand(-1, 2), mask)


def in_two_widths(env, rng):
    return rng.normal("", 1)[:, 0] + rng.normal("", 2)[:, 1]


def by_two_names(env, rng):
    return rng.normal("a", 1)[:, 0] + rng.normal("b", 1)[:, 0]


class CallAndReset:
    """Draws by one name in its call and at a reset: two calls, which a tick may make of one episode's end."""

    def __init__(self, cfg, env, path):
        self.rng = env.rng.stream(path)
        self.kept = env.arena.new(f"{path}/kept", (env.num_envs,))

    def reset(self, mask):
        assign_rows(self.kept, mask, self.rng.uniform("level", 1)[:, 0])

    def __call__(self, env):
        return self.kept + self.rng.uniform("level", 1)[:, 0]


def test_a_draw_that_is_made_twice_in_one_call_is_refused_while_building():
    cfg = Slider().cfg()
    cfg.events["twice"] = EventTermCfg(twice, "reset")
    text = "the draw 'events/twice/speed' is made twice in one call and gives the same numbers both times; give each"
    with pytest.raises(TickgraphError, match=text):
        Env(cfg, num_envs=2, execution="eager")
    cfg = Slider(rewards={"wide": RewardTermCfg(in_two_widths)}).cfg()
    with pytest.raises(TickgraphError, match="the draw 'rewards/wide' is made twice in one call"):
        Env(cfg, num_envs=2, execution="eager")
    [blocker] = Env(cfg, 2, "meta", execution="eager").blockers()
    line = in_two_widths.__code__.co_firstlineno + 1
    assert (blocker.manager, blocker.term, blocker.file, blocker.line) == ("rewards", "wide", __file__, line)
    assert blocker.reason.startswith("the draw 'rewards/wide' is made twice in one call")


def test_other_draws_are_legal():
    cfg = foot_cfg()
    cfg.rewards |= {"names": RewardTermCfg(by_two_names), "state": RewardTermCfg(CallAndReset)}
    env = Env(cfg, num_envs=2, execution="eager")
    assert env.blockers() == []
    env.step(torch.zeros(2, 1))


class Network:
    """A fixed random function of the state, as a style reward or a random target has it."""

    def __init__(self, cfg, env, path):
        self.net = torch.nn.Linear(2, 1).requires_grad_(False).to(env.device)
        self.gain, self.shift = random.random(), float(np.random.rand())

    def __call__(self, env):
        entity = env.scene["robot"]
        return self.net(entity.data.joint_pos)[:, 0] * self.gain + self.shift


def numbers_of(env, name):
    term = env.reward_manager.term(name)
    return [*term.net.weight.flatten().tolist(), term.gain, term.shift]


def test_what_a_term_draws_while_it_is_built_follows_from_its_path():
    cfg = Slider(rewards={"one": RewardTermCfg(Network), "other": RewardTermCfg(Network)}).cfg()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Env(cfg, num_envs=2, execution="eager", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7), random.random(), np.random.rand()
    del cfg.rewards["other"]
    cfg.rewards = {"alive": RewardTermCfg(alive), **cfg.rewards}
    second = Env(cfg, num_envs=4, execution="eager", seed=2)
    assert numbers_of(first, "one") == numbers_of(second, "one") != numbers_of(first, "other")
    assert first.blockers() == []


TASK = """
import random
import numpy as np
import torch
from toys import Slider
GAIN = torch.rand(1).item(), random.random(), float(np.random.rand())
def task():
    cfg = Slider().cfg()
    cfg.rewards["alive"].weight = torch.rand(1).item()
    cfg.episode_length_s = 1.0 + GAIN[0]
    return cfg
"""


def test_a_tasks_file_and_its_factory_draw_the_same_in_every_run(tmp_path):
    file = tmp_path / "drawing.py"
    file.write_text(TASK)
    tasks = []
    for seed in (1, 2):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        tasks.append(registry.load(f"{file}:task"))
    one, other = (task.env for task in tasks)
    assert one.rewards["alive"].weight == other.rewards["alive"].weight != one.episode_length_s - 1.0
    assert one.episode_length_s == other.episode_length_s


def test_a_robots_function_draws_the_same_in_every_run():
    import mujoco

    def model():
        spec = mujoco.MjSpec()
        body = spec.worldbody.add_body(name="slider")
        body.add_joint(name="x", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[1, 0, 0])
        body.add_geom(size=[0.05, 0, 0], mass=1.0 + random.random())
        actuator = spec.add_actuator(name="x", target="x", trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.set_to_position(kp=1.0)
        return spec

    masses = []
    for seed in (1, 2):
        random.seed(seed)
        cfg = Slider(v=(0.0,)).cfg()
        cfg.scene.entities["robot"].model = model
        cfg.actions = {"x": TargetCfg()}
        cfg.observations["actor"].terms["x"].params["asset_cfg"] = SceneEntityCfg("robot")
        masses.append(float(Env(cfg, num_envs=2, execution="eager").sim.scene.mjmodel.body_mass[1]))
    assert masses[0] == masses[1] > 1.0
