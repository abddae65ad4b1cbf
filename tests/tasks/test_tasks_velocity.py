"""The walking tasks: layout and numbers, what a reset leaves, no blockers, and the figures of an evaluation."""

import math

import pytest
import torch

from tickgraph.env.config import SceneEntityCfg
from tickgraph.env.env import Env
from tickgraph.mdp.gait import wrap_to_pi
from tickgraph.run.evaluate import EvalTrace, evaluation_env_cfg
from tickgraph.tasks.velocity import g1_walk_flat, go2_walk_flat
from tickgraph.tasks.velocity_figures import walking_figures
from tickgraph.tasks.velocity_go2 import FOOT_CONTACTS

TASKS = {"go2": go2_walk_flat, "g1": g1_walk_flat}
GAIT_COLUMNS = {"go2": slice(45, 47), "g1": slice(96, 98)}
ACTION_COLUMNS = {"go2": slice(30, 42), "g1": slice(64, 93)}


def small_env(name, worlds=4, seed=3, edit=None):
    cfg = TASKS[name]().env
    if edit is not None:
        edit(cfg)
    return Env(cfg, worlds, execution="eager", seed=seed)


def layout(env, group):
    return {name: term.dim for name, term in env.observation_manager.groups[group].items()}


def test_g1_layout_and_control_step():
    env = small_env("g1")
    assert layout(env, "actor") == {
        **{"torso_gyro": 3, "torso_up": 3, "joint_pos": 29, "joint_vel": 29, "last_action": 29},
        **{"command": 3, "gait_phase": 2},
    }
    assert list(layout(env, "critic").items())[-1] == ("pelvis_lin_vel", 3)
    assert env.observation_manager.dims == {"actor": 98, "critic": 101}
    assert env.step_dt == pytest.approx(0.02) and env.physics_dt == pytest.approx(1 / 150)
    assert env.max_episode_length == 1000 and env.action_manager.total_dim == 29


def test_go2_layout_and_control_step():
    env = small_env("go2")
    assert layout(env, "actor") == {
        **{"base_ang_vel": 3, "projected_gravity": 3, "joint_pos": 12, "joint_vel": 12, "last_action": 12},
        **{"command": 3, "gait_phase": 2},
    }
    assert list(layout(env, "critic").items())[-1] == ("base_lin_vel", 3)
    assert env.observation_manager.dims == {"actor": 47, "critic": 50}
    assert env.step_dt == pytest.approx(0.02) and env.physics_dt == pytest.approx(0.01)
    assert env.max_episode_length == 1000 and env.action_manager.total_dim == 12


def test_g1_scales_and_noise():
    terms = TASKS["g1"]().env.observations["critic"].terms
    assert {name: term.scale for name, term in terms.items() if term.scale != 1.0} == {
        "torso_gyro": 0.25,
        "joint_vel": 0.05,
        "pelvis_lin_vel": 2.0,
    }
    actor = TASKS["g1"]().env.observations["actor"]
    noise = {name: (term.noise.n_min, term.noise.n_max) for name, term in actor.terms.items() if term.noise}
    assert noise == {"joint_pos": (-0.01, 0.01), "joint_vel": (-0.1, 0.1)}
    assert actor.enable_corruption and not TASKS["g1"]().env.observations["critic"].enable_corruption
    env = small_env("g1", worlds=64)
    difference = env.obs["actor"][:, 6:64] - env.obs["critic"][:, 6:64]
    assert 0.0 < difference[:, :29].abs().max() <= 0.01 + 1e-6
    assert 0.0 < difference[:, 29:].abs().max() <= 0.1 * 0.05 + 1e-6
    assert torch.equal(env.obs["actor"][:, 64:], env.obs["critic"][:, 64:98])


def test_g1_penalties_begin_at_a_sixteenth():
    env = small_env("g1")
    weights = dict(zip(env.reward_manager.names, env.reward_manager.weights.tolist(), strict=True))
    assert weights == pytest.approx(
        {
            "tracking_lin_vel": 2.0,
            "tracking_ang_vel": 1.5,
            "penalty_ang_vel_xy": -1.0 / 16,
            "penalty_orientation": -10.0 / 16,
            "penalty_action_rate": -5.0 / 16,
            "pose": -0.5 / 16,
            "penalty_feet_ori": -25.0 / 16,
            "feet_phase": 5.0,
            "alive": 10.0,
        }
    )


def test_g1_standing_still_in_the_home_pose_earns_what_the_formulas_say():
    def still(cfg):
        cfg.events = {}
        cfg.curriculum = {}
        cfg.commands["twist"].ranges.lin_vel_x = cfg.commands["twist"].ranges.lin_vel_y = (0.0, 0.0)
        cfg.commands["twist"].ranges.ang_vel_z = (0.0, 0.0)
        cfg.scene.timestep = 1e-5  # nothing has time to move

    env = small_env("g1", edit=still)
    sites = env.scene["robot"].data.site_pos_w
    feet = [env.scene["robot"].index.site_names.index(name) for name in ("left_foot", "right_foot")]
    phase = env.command_manager.get_command("gait").clone()
    env.step(torch.zeros(4, 29))
    values = dict(zip(env.reward_manager.names, (env.reward_manager.values / env.step_dt).unbind(1), strict=True))
    for name, expected in (("tracking_lin_vel", 2.0), ("tracking_ang_vel", 1.5), ("alive", 10.0), ("pose", 0.0)):
        torch.testing.assert_close(values[name], torch.full((4,), expected), atol=1e-3, rtol=0)
    # The soles of the home pose are level and about on the ground.
    assert values["penalty_feet_ori"].abs().max() < 25.0 * 2e-4
    x = ((phase + math.pi) % (2 * math.pi)) / (2 * math.pi)
    rise, fall = (2 * x) ** 3 + 3 * (2 * x) ** 2 * (1 - 2 * x), 2 * x - 1
    target = 0.09 * torch.where(x <= 0.5, rise, 1 - (fall**3 + 3 * fall**2 * (1 - fall)))
    error = (sites[:, feet, 2] - target).square().sum(dim=1)
    torch.testing.assert_close(values["feet_phase"], 5.0 * torch.exp(-error / 0.005), atol=1e-4, rtol=1e-4)


def test_g1_pose_weights_cover_every_joint():
    env = small_env("g1")
    weights = env.reward_manager.term("pose")._weights.tolist()
    leg = [0.01, 2.0, 5.0, 0.01, 5.0, 5.0]
    assert weights == pytest.approx(leg + leg + [50.0] * 17)


@pytest.mark.parametrize("name", TASKS)
def test_a_reset_clears_the_action_and_draws_the_gait_anew(name):
    # Elsewhere a new episode began with the last one's action, and all worlds with one phase.
    def half_fall(cfg):
        cfg.episode_length_s = 0.1

    env = small_env(name, worlds=8, edit=half_fall)
    gait, action = GAIT_COLUMNS[name], ACTION_COLUMNS[name]
    first = env.obs["actor"].clone()
    assert (first[:, action] == 0.0).all()
    assert first[:, gait.start].unique().numel() == 8
    env.episode_length.copy_(torch.tensor([2, 0] * 4))  # even worlds end after three steps
    ended, goes_on = torch.arange(8) % 2 == 0, torch.arange(8) % 2 == 1
    for _ in range(3):
        before = env.command_manager.get_command("gait").clone()
        env.step(torch.full((8, env.action_manager.total_dim), 0.1))
    assert torch.equal(env.done, ended)
    obs = env.obs["actor"]
    assert (obs[ended][:, action] == 0.0).all() and (env.action_manager.prev_action[ended] == 0.0).all()
    assert (obs[goes_on][:, action] == torch.tensor(0.1)).all()
    frequency = TASKS[name]().env.commands["gait"].frequency
    advance = wrap_to_pi(env.command_manager.get_command("gait") - before - 2 * math.pi * frequency * 0.02).abs()
    assert (advance[goes_on] < 1e-5).all()
    assert (advance[ended] > 1e-3).all()
    assert obs[ended][:, gait.start].unique().numel() == 4
    phase = env.command_manager.get_command("gait")
    torch.testing.assert_close(
        wrap_to_pi(phase[:, 1] - phase[:, 0]).abs(), torch.full((8,), math.pi), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", TASKS)
def test_resets_lie_in_their_ranges(name):
    env = small_env(name, worlds=64)
    qpos, qvel = env.sim.view("qpos"), env.sim.view("qvel")
    default = env.sim.default_qpos
    assert (qpos[:, :2].abs() <= 0.5).all() and torch.equal(qpos[:, 2], default[2].expand(64))
    torch.testing.assert_close(qpos[:, 7:], default[7:].expand(64, -1))
    assert (qvel[:, :3].abs() <= 0.5).all() and (qvel[:, :3].abs().amax(dim=0) > 0.3).all()
    assert (qvel[:, 6:] == 0.0).all()
    twist = env.command_manager.get_command("twist")
    assert (twist >= torch.tensor([-0.6, -0.4, -0.8])).all() and (twist <= torch.tensor([1.0, 0.4, 0.8])).all()


def test_gains_are_drawn_as_stated():
    env = small_env("go2", worlds=32)
    index = env.scene["robot"].index
    kp = env.sim.field("actuator_gainprm")[:, index.actuator_ids.tolist(), 0]
    kd = env.sim.field("dof_damping")[:, index.dof_adr.tolist()]
    assert 31.5 <= kp.min() < 32.0 and 38.0 < kp.max() <= 38.5
    assert 0.45 <= kd.min() < 0.46 and 0.54 < kd.max() <= 0.55
    env = small_env("g1", worlds=32)
    factor = env.sim.field("actuator_gainprm")[..., 0] / env.sim.default_field("actuator_gainprm")[..., 0]
    assert 0.9 - 1e-6 <= factor.min() < 0.91 and 1.09 < factor.max() <= 1.1 + 1e-6


@pytest.mark.parametrize("name", TASKS)
def test_falls_are_terminations(name):
    env = small_env(name, worlds=4)
    limit = {"go2": 60.0, "g1": 65.0}[name]
    for world, tilt in enumerate((limit - 3.0, limit + 3.0)):
        angle = math.radians(tilt) / 2
        env.sim.staging_qpos.copy_(env.sim.view("qpos"))
        env.sim.staging_qpos[world, 2] = 2.0
        env.sim.staging_qpos[world, 3:7] = torch.tensor([math.cos(angle), math.sin(angle), 0.0, 0.0])
        env.sim.staging_qvel.zero_()
        mask = torch.arange(4) == world
        env.sim.write_state(mask, mask)
        env.sim.refresh(mask)
    env.step(torch.zeros(4, env.action_manager.total_dim))
    assert env.terminated.tolist()[:2] == [False, True] and not env.truncated.any()


def test_go2_holds_its_home_pose_on_four_feet():
    def calm(cfg):
        cfg.events = {}

    env = small_env("go2", worlds=2, edit=calm)
    for _ in range(50):
        env.step(torch.zeros(2, 12))
    assert not env.done.any()
    torch.testing.assert_close(env.scene["robot"].data.root_link_pos_w[:, 2], torch.full((2,), 0.3), atol=0.01, rtol=0)
    force = sum(env.scene[sensor].force for sensor in FOOT_CONTACTS.values())
    weight = 9.81 * env.scene["robot"].index.body_mass.sum()
    torch.testing.assert_close(force[:, 2], torch.full((2,), weight, dtype=torch.float32), atol=0, rtol=0.05)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_blocks_compilation(name):
    assert small_env(name, worlds=2).blockers() == []


@pytest.mark.parametrize("name", TASKS)
def test_every_call_returns_settings_of_its_own(name):
    def objects(value, found):
        if isinstance(value, dict):
            found.add(id(value))
            for item in value.values():
                objects(item, found)
        elif isinstance(value, SceneEntityCfg):
            found.add(id(value))
        elif hasattr(value, "__dataclass_fields__"):
            found.add(id(value))
            for item in vars(value).values():
                objects(item, found)
        return found

    one, two = TASKS[name](), TASKS[name]()
    assert not objects(one, set()) & objects(two, set())
    actor, critic = (one.env.observations[group].terms for group in ("actor", "critic"))
    assert not objects(actor, set()) & objects(critic, set())


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_has_nominal_gains_and_commands_of_its_own(name):
    task = TASKS[name]()
    cfg = evaluation_env_cfg(task)
    env = Env(cfg, 64, execution="eager", seed=1)
    command = env.command_manager.get_command("twist")
    if name == "go2":  # straight on
        assert (command[:, 0] >= 0.3).all() and (command[:, 0] <= 1.0).all() and (command[:, 1:] == 0.0).all()
        assert env.max_episode_length == 500
    else:  # whatever the task commands, for its whole episode
        assert command[:, 0].min() < -0.3 and command[:, 0].max() > 0.6 and command[:, 1].abs().max() > 0.2
        assert env.max_episode_length == 1000
    assert not cfg.observations["actor"].enable_corruption and "pd_gains" not in cfg.events
    assert task.env.commands["twist"].ranges.lin_vel_x == (-0.6, 1.0) and "pd_gains" in task.env.events
    env.step(torch.zeros(64, env.action_manager.total_dim))
    feet = {"go2": 4, "g1": 2}[name]
    shapes = {recorder: tuple(env.recorder_manager[recorder].shape) for recorder in env.recorder_manager.names}
    assert shapes == {"command": (64, 3), "lin_vel": (64, 3), "ang_vel": (64, 3), "touching": (64, feet)}


def test_figures_of_a_made_up_walk():
    # Two worlds told 0.4 and 0.8 m/s walk at 0.5 and 0.7; the third fell before anything counts.
    steps, worlds = 4, 3
    counted = torch.ones(steps, worlds, dtype=torch.bool)
    counted[0], counted[:, 2] = False, False
    command, lin_vel, ang_vel = torch.zeros(3, steps, worlds, 3).unbind(0)
    command[..., 0] = torch.tensor([0.4, 0.8, 1.0])
    lin_vel[..., 0] = torch.tensor([0.5, 0.7, 9.0])
    lin_vel[..., 1] = torch.tensor([0.1, -0.1, 9.0]).expand(steps, 3)
    ang_vel[..., 2] = torch.tensor([-0.2, 0.4, 9.0]).expand(steps, 3)
    lin_vel[0] = 100.0
    touching = torch.zeros(steps, worlds, 2)
    touching[:, :, 0] = 1.0
    touching[1, :, 1] = 1.0
    signals = {"command": command, "lin_vel": lin_vel, "ang_vel": ang_vel, "touching": touching}
    zeros = torch.zeros(worlds)
    trace = EvalTrace(0.02, counted, zeros.bool(), zeros.bool(), zeros, zeros.long(), signals)
    assert walking_figures(trace, ("left", "right")) == pytest.approx(
        {
            "planar_velocity_error": 0.1 * math.sqrt(2.0),
            "yaw_rate_error": 0.3,
            "forward_speed_error": 0.1,
            "forward_speed": 0.6,
            "speed_slope": 0.5,
            "lateral_speed": 0.1,
            "yaw_rate": 0.3,
            "air_share/left": 0.0,
            "air_share/right": 2 / 3,
        }
    )
