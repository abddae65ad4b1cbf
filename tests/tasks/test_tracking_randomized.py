"""Motion tracking with SAC's settings: robots that differ, encoders that read too much, and pushes."""

from itertools import pairwise

import pytest
import torch
from tracking_toys import motion_of, quiet, split

from tickgraph import mdp
from tickgraph.env.config import RecorderTermCfg
from tickgraph.env.env import Env
from tickgraph.run.config import Task
from tickgraph.run.settings import apply_overrides, dump, fit, read_config, write_config
from tickgraph.tasks.registry import load

TASKS = ("g1_motion_tracking", "g1_motion_tracking_blind")
EVENTS = {"base_com": "startup", "encoder_bias": "startup", "foot_friction": "startup", "push_robot": "interval"}
REACH = torch.tensor([0.025, 0.05, 0.05])  # m


def sac(name: str = TASKS[0]) -> Task:
    task = load(name)
    task.use("sac")
    return task


def sac_env(worlds: int = 4, backend: str = "mujoco", seed: int = 1) -> Env:
    task = sac()
    quiet(task.env)
    task.env.recorders["com"] = RecorderTermCfg(lambda env: env.scene["robot"].data.body_com_pos_w)
    return Env(task.env, worlds, backend=backend, execution="eager", seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_only_sac_is_randomised(name):
    task = load(name)
    before, env = dump(task), task.env
    task.use("sac")
    seen = {event: cfg.mode for event, cfg in task.env.events.items()}
    assert seen == EVENTS and task.env.events["push_robot"].interval_range_s == (1.0, 3.0)
    assert task.env.observations["actor"].terms["joint_pos"].params == {"biased": True}
    assert task.env.observations["critic"].terms["joint_pos"].params == {}
    changed = dump(task)["env"]
    assert {key for key, value in changed.items() if value != before["env"][key]} == {"events", "observations"}
    assert changed["observations"]["critic"] == before["env"]["observations"]["critic"]
    task.use("flashsac")
    assert task.env is env and dump(task) == before and before["env"]["events"] == {}
    plain = Env(env, 2, execution="eager")
    assert not [tensor for tensor in plain.arena.names() if tensor.startswith(("sim/field", "scene/robot/encoder"))]


@pytest.mark.parametrize("name", TASKS)
def test_no_blockers(name):
    assert Env(sac(name).env, 2, "meta", "mujoco", "eager").blockers() == []


@pytest.mark.parametrize("backend", ["mujoco", "mjwarp"])
def test_each_robot_is_another_within_the_ranges(backend):
    worlds = 64 if backend == "mujoco" else 8
    env = sac_env(worlds, backend)
    scene = env.sim.scene
    index = scene.entity("robot")
    torso = int(index.body_ids[index.body_names.index("torso_link")])
    offset = env.sim.field("body_ipos") - env.sim.default_field("body_ipos")
    others = [body for body in range(scene.mjmodel.nbody) if body != torso]
    assert (offset[:, others] == 0.0).all() and (offset[:, torso].abs() <= REACH + 1e-7).all()
    assert (offset[:, torso].abs().amax(dim=0) > 0.6 * REACH).all()
    assert offset[:, torso].unique(dim=0).shape[0] == worlds
    friction, own = env.sim.field("geom_friction"), env.sim.default_field("geom_friction")
    soles = [int(index.geom_ids[i]) for i, name in enumerate(index.geom_names) if "_foot" in name]
    assert len(soles) == 14
    sliding = friction[:, soles, 0]
    assert (sliding == sliding[:, :1]).all() and sliding.min() >= 0.3 - 1e-6 and sliding.max() <= 1.2 + 1e-6
    assert sliding[:, 0].min() < 0.5 and sliding[:, 0].max() > 0.9 and sliding[:, 0].unique().numel() == worlds
    rest = torch.ones(own.shape, dtype=torch.bool)
    rest[soles, 0] = False
    assert (friction[:, rest] == own[rest]).all()
    bias = env.arena["scene/robot/encoder_bias"]
    assert bias.shape == (worlds, 29) and 0.009 < bias.abs().max() <= 0.01
    # The simulation has taken it over: the torso's centre of mass is where the field says.
    arm = env.sim.view("xipos")[:, torso] - env.sim.view("xpos")[:, torso]
    torch.testing.assert_close(arm.norm(dim=1), env.sim.field("body_ipos")[:, torso].norm(dim=1), rtol=1e-4, atol=1e-6)
    # The encoders' errors are what the actor sees of them, and all that it sees otherwise than the critic.
    seen = {group: split(env, value, group) for group, value in env.obs.items()}
    torch.testing.assert_close(seen["actor"]["joint_pos"] - seen["critic"]["joint_pos"], bias, rtol=0, atol=1e-6)
    for term, value in seen["actor"].items():
        assert term == "joint_pos" or torch.equal(value, seen["critic"][term]), term


def test_robots_stay_who_they_are_and_pushes_come_every_one_to_three_seconds(monkeypatch):
    task = sac()
    motion = quiet(task.env)
    motion.clips, motion.sampler.mode, motion.truncate_on_clip_end = ("march",), "start", False
    for name in ("anchor_pos", "anchor_ori", "ee_body_pos"):
        del task.env.terminations[name]
    task.env.scene.gravity = (0.0, 0.0, 0.0)
    env = Env(task.env, 8, execution="eager", seed=3)
    kept = ("sim/field/body_ipos", "sim/field/geom_friction", "scene/robot/encoder_bias")
    before = {name: env.arena[name].clone() for name in kept}
    timer, pushes, jumps = env.arena["events/push_robot/time_left"], [[] for _ in range(8)], []
    assert (timer >= 1.0).all() and (timer <= 3.0).all()
    staged, write = {}, env.sim.write_state

    def spy(written, restarted):
        staged["jump"] = env.sim.staging_qvel[:, :6] - env.sim.view("qvel")[:, :6]
        staged["pushed"] = written & ~restarted
        write(written, restarted)

    monkeypatch.setattr(env.sim, "write_state", spy)
    for step in range(180):
        due = timer - env.step_dt <= 0.5 * env.step_dt
        env.step(torch.zeros(8, 29))
        assert torch.equal(staged["pushed"], due & ~env.restarted)
        for world in staged["pushed"].nonzero()[:, 0].tolist():
            pushes[world].append(step)
            jumps.append(staged["jump"][world])
    assert sum(map(len, pushes)) > 8
    gaps = [(later - sooner) * env.step_dt for world in pushes for sooner, later in pairwise(world)]
    assert all(0.99 <= gap <= 3.01 for gap in gaps)
    moved = torch.stack(jumps).abs()
    assert (moved[:, :3] <= torch.tensor([0.5, 0.5, 0.2]) + 1e-5).all() and moved[:, :2].max() > 0.3
    # Angular velocity is staged in the root's frame, so that of the world's it keeps the length alone.
    assert (moved[:, 3:].norm(dim=1) <= (2 * 0.52**2 + 0.78**2) ** 0.5 + 1e-5).all() and moved[:, 3:].max() > 0.3
    for name, value in before.items():
        assert torch.equal(env.arena[name], value), name


def test_a_checkpoint_goes_on_to_the_bit_with_its_own_robots():
    actions = 0.3 * torch.randn(12, 4, 29, generator=torch.Generator().manual_seed(0))
    env = sac_env()
    for action in actions[:6]:
        env.step(action)
    saved = {name: value.clone() for name, value in env.state_dict().items()}
    again = sac_env(seed=9)
    assert not torch.equal(again.sim.field("body_ipos"), env.sim.field("body_ipos"))
    again.load_state_dict(saved)
    for action in actions[6:]:
        env.step(action)
        again.step(action)
    for name, value in env.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_evaluation_is_of_the_plain_robot():
    task = sac()
    cfg = task.env
    task.evaluation.edit(cfg)
    env = Env(cfg, 2, execution="eager")
    assert env.event_manager.names == [] and motion_of(env).cfg.sampler.mode == "each"
    assert (env.arena["scene/robot/encoder_bias"] == 0.0).all()


def test_the_randomisation_is_set_on_the_command_line_and_kept_by_a_run(tmp_path):
    task = sac()
    apply_overrides(task, ["--env.events.base_com.params.ranges.0", "-0.1", "0.1"])
    assert task.env.events["base_com"].params["ranges"][0] == (-0.1, 0.1)
    write_config(tmp_path / "config.yaml", task)
    again = load(TASKS[0])
    fit(again, read_config(tmp_path / "config.yaml"), tmp_path / "config.yaml")
    assert dump(again) == dump(task) and again.env.events["encoder_bias"].func is mdp.randomize_encoder_bias
