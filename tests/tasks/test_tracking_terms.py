"""Every term of motion tracking against plain MuJoCo, rotation matrices and NumPy; and cases worked out by hand."""

import math
from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch
from tracking_toys import motion_of, observations, place, put_on_reference, rewards, show, terminations, tracking_env

from tickgraph.core.errors import TickgraphError
from tickgraph.env.env import Env
from tickgraph.mdp.motion_command import ERRORS
from tickgraph.mdp.motion_terms import motion_error
from tickgraph.robots.g1 import TRACKED_BODIES
from tickgraph.tasks.tracking_g1 import g1_motion_tracking, g1_motion_tracking_blind

N = 4
TRACKING = (
    *("motion_global_root_pos", "motion_global_root_ori", "motion_body_pos"),
    *("motion_body_ori", "motion_body_lin_vel", "motion_body_ang_vel"),
)
ANCHOR = TRACKED_BODIES.index("torso_link")


@pytest.fixture(scope="module")
def env():
    made = tracking_env(N)
    yield made
    made.close()


def frames(env: Env, *at: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(N) % 2, torch.tensor(at)


# By hand ------------------------------------------------------------------------------------------------------------


def test_a_robot_that_is_on_the_reference_earns_everything(env):
    for at in ((0, 0, 450, 500), (17, 333, 250, 100)):
        put_on_reference(env, *frames(env, *at))
        values = rewards(env)
        for name in TRACKING:
            torch.testing.assert_close(values[name], torch.ones(N), atol=2e-6, rtol=0)
        assert motion_of(env)._measure().abs().max() < 2e-5
        assert not any(fired.any() for name, fired in terminations(env).items() if name != "motion_clip_end")
        seen = observations(env)
        assert seen["motion_anchor_pos_b"].abs().max() < 2e-6
        identity = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
        torch.testing.assert_close(seen["motion_anchor_ori_b"], identity.expand(N, 6), atol=2e-6, rtol=0)


def test_a_shift_on_the_ground_is_seen_by_the_anchor_alone(env):
    put_on_reference(env, *frames(env, 100, 120, 140, 160))
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    qpos[:, 0] += 0.3
    place(env, qpos, qvel)
    values = rewards(env)
    torch.testing.assert_close(values["motion_global_root_pos"], torch.full((N,), math.exp(-1.0)), atol=1e-5, rtol=0)
    for name in TRACKING[1:]:
        torch.testing.assert_close(values[name], torch.ones(N), atol=1e-5, rtol=0)


def test_a_lift_counts_for_anchor_and_bodies_and_ends_the_episode_beyond_half_a_metre(env):
    put_on_reference(env, *frames(env, 100, 120, 140, 160))
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    qpos[:, 2] += torch.tensor([0.3, 0.3, 0.49, 0.51])
    place(env, qpos, qvel)
    values = rewards(env)
    for name in ("motion_global_root_pos", "motion_body_pos"):
        torch.testing.assert_close(values[name][:2], torch.full((2,), math.exp(-1.0)), atol=1e-5, rtol=0)
    ended = terminations(env)
    assert ended["anchor_pos"].tolist() == ended["ee_body_pos"].tolist() == [False, False, False, True]


def test_a_turn_about_the_vertical_is_seen_by_the_anchor_alone(env):
    put_on_reference(env, *frames(env, 0, 0, 0, 0))
    motion = motion_of(env)
    turn = torch.tensor([math.cos(0.2), 0.0, 0.0, math.sin(0.2)])  # by 0.4 rad, std of the orientation rewards
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    w, x, y, z = qpos[:, 3:7].unbind(1)
    c, s = turn[0], turn[3]
    qpos[:, 3:7] = torch.stack((c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w), dim=1)
    place(env, qpos, qvel)
    values = rewards(env)
    torch.testing.assert_close(values["motion_global_root_ori"], torch.full((N,), math.exp(-1.0)), atol=1e-5, rtol=0)
    torch.testing.assert_close(values["motion_body_ori"], torch.ones(N), atol=1e-5, rtol=0)
    # The torso stands over the pelvis, so that its place hardly moves, and re-anchored the bodies fit.
    torch.testing.assert_close(values["motion_body_pos"], torch.ones(N), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        motion._measure()[:, ERRORS.index("anchor_rot")], torch.full((N,), 0.4), atol=1e-5, rtol=0
    )


def test_lying_down_is_a_bad_orientation(env):
    put_on_reference(env, *frames(env, 0, 0, 0, 0))
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    for world, degrees in enumerate((0, 70, 85, 180)):
        half = math.radians(degrees) / 2
        qpos[world, 3:7] = torch.tensor([math.cos(half), 0.0, math.sin(half), 0.0])
    place(env, qpos, qvel)
    # From upright, |1 - cos| > 0.8 is beyond 78.5 degrees.
    assert terminations(env)["anchor_ori"].tolist() == [False, False, True, True]


def test_joints_and_low_bodies_are_counted(env):
    put_on_reference(env, *frames(env, 0, 0, 0, 0))
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    limits = env.scene["robot"].data.joint_pos_limits
    qpos[1, 7] = limits[0, 1] + 0.3
    qpos[2, 7 + 5] = limits[5, 0] - 0.2
    qpos[2, 7] = limits[0, 1] + 0.1
    qpos[3, 2] -= 0.3  # hips at 0.4 m, knees at 0.05 m
    place(env, qpos, qvel)
    values = rewards(env)
    assert values["joint_limit"].tolist() == pytest.approx([0.0, 0.09, 0.05, 0.0], abs=1e-5)
    low = (env.scene["robot"].data.body_link_pos_w[3, :, 2] < 0.05).tolist()
    names = [name for name, is_low in zip(env.scene["robot"].index.body_names, low, strict=True) if is_low]
    watched = [n for n in names if n.endswith(("hip_roll_link", "knee_link", "shoulder_roll_link", "elbow_link"))]
    assert values["undesired_contacts"].tolist() == [0.0, 0.0, 0.0, len(watched)] and len(watched) == 2


# Against plain MuJoCo -----------------------------------------------------------------------------------------------


class Plain:
    """A robot and a reference pose, by MuJoCo, rotation matrices and float64."""

    def __init__(self, env: Env, qpos: np.ndarray, qvel: np.ndarray) -> None:
        model = env.sim.scene.mjmodel
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(model, data)
        ids = [model.body(f"robot/{name}").id for name in TRACKED_BODIES]
        self.pos = data.xpos[ids].copy()
        self.mat = data.xmat[ids].reshape(-1, 3, 3).copy()
        self.lin, self.ang = np.zeros((len(ids), 3)), np.zeros((len(ids), 3))
        for row, body in enumerate(ids):
            both = np.zeros(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, both, 0)
            self.ang[row], self.lin[row] = both[:3], both[3:]
        self.low = {model.body(i).name.removeprefix("robot/"): data.xpos[i, 2] < 0.05 for i in range(1, model.nbody)}


def angle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the angles between rotation matrices (..., 3, 3)."""
    trace = np.einsum("...ij,...ij->...", a, b)
    return np.arccos(np.clip((trace - 1.0) / 2.0, -1.0, 1.0))


def expected(robot: Plain, ref: Plain) -> dict[str, object]:
    a = ANCHOR
    between = robot.mat[a] @ ref.mat[a].T
    yaw = math.atan2(between[1, 0], between[0, 0])
    turn = np.array([[math.cos(yaw), -math.sin(yaw), 0], [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]])
    place = np.array([*robot.pos[a, :2], ref.pos[a, 2]])
    moved, turned = place + (ref.pos - ref.pos[a]) @ turn.T, turn @ ref.mat
    pos, rot = np.linalg.norm(moved - robot.pos, axis=1), angle(turned, robot.mat)
    lin, ang = np.linalg.norm(ref.lin - robot.lin, axis=1), np.linalg.norm(ref.ang - robot.ang, axis=1)
    anchor = ref.pos[a] - robot.pos[a]
    anchor_rot = float(angle(ref.mat[a], robot.mat[a]))
    ends = [
        TRACKED_BODIES.index(f"{side}_{part}")
        for side in ("left", "right")
        for part in ("ankle_roll_link", "wrist_yaw_link")
    ]
    return {
        "rewards": {
            "motion_global_root_pos": math.exp(-(anchor @ anchor) / 0.09),
            "motion_global_root_ori": math.exp(-(anchor_rot**2) / 0.16),
            "motion_body_pos": math.exp(-np.mean(pos**2) / 0.09),
            "motion_body_ori": math.exp(-np.mean(rot**2) / 0.16),
            "motion_body_lin_vel": math.exp(-np.mean(lin**2)),
            "motion_body_ang_vel": math.exp(-np.mean(ang**2) / 3.14**2),
        },
        "errors": {
            "anchor_pos": np.linalg.norm(anchor), "anchor_rot": anchor_rot,
            "anchor_lin_vel": lin[a], "anchor_ang_vel": ang[a],
            "body_pos": pos.mean(), "body_rot": rot.mean(), "body_lin_vel": lin.mean(), "body_ang_vel": ang.mean(),
        },
        "observations": {
            "motion_anchor_pos_b": robot.mat[a].T @ anchor,
            "motion_anchor_ori_b": (robot.mat[a].T @ ref.mat[a])[:, :2].reshape(-1),
            "body_pos": ((robot.pos - robot.pos[a]) @ robot.mat[a]).reshape(-1),
            "body_ori": (robot.mat[a].T @ robot.mat)[:, :, :2].reshape(-1),
        },
        "terminations": {
            "anchor_pos": abs(anchor[2]) > 0.5,
            "anchor_ori": abs(ref.mat[a][2, 2] - robot.mat[a][2, 2]) > 0.8,
            "ee_body_pos": bool((np.abs(moved - robot.pos)[ends, 2] > 0.5).any()),
        },
    }  # fmt: skip


def test_every_term_equals_plain_mujoco_in_arbitrary_states(env):
    generator = torch.Generator().manual_seed(5)
    motion, fired = motion_of(env), {name: set() for name in ("anchor_pos", "anchor_ori", "ee_body_pos")}
    for scale in (0.05, 0.2, 0.5, 1.0):
        clip = torch.arange(N) % 2
        frame = torch.randint(0, 451, (N,), generator=generator)
        put_on_reference(env, clip, frame)
        ref_qpos, ref_qvel = (env.sim.view(name).clone() for name in ("qpos", "qvel"))
        qpos = ref_qpos + scale * torch.randn(ref_qpos.shape, generator=generator)
        qpos[:, 3:7] /= torch.linalg.vector_norm(qpos[:, 3:7], dim=1, keepdim=True)
        qvel = ref_qvel + 2 * scale * torch.randn(ref_qvel.shape, generator=generator)
        place(env, qpos, qvel)
        show(env, clip, frame)
        values, seen, ended, errors = rewards(env), observations(env), terminations(env), motion._measure()
        for world in range(N):
            robot = Plain(env, qpos[world].double().numpy(), qvel[world].double().numpy())
            ref = Plain(env, ref_qpos[world].double().numpy(), ref_qvel[world].double().numpy())
            plain = expected(robot, ref)
            for name, value in plain["rewards"].items():
                assert values[name][world].item() == pytest.approx(value, abs=3e-5), name
            for name, value in plain["errors"].items():
                assert errors[world, ERRORS.index(name)].item() == pytest.approx(value, abs=2e-4, rel=1e-4), name
            for name, value in plain["observations"].items():
                np.testing.assert_allclose(seen[name][world].numpy(), value, atol=1e-5, err_msg=name)
            for name, value in plain["terminations"].items():
                assert bool(ended[name][world]) == value, name
                fired[name].add(bool(value))
            joints = motion.reference.joint_pos[world], motion.reference.joint_vel[world]
            torch.testing.assert_close(seen["command"][world], torch.cat(joints))
            difference = (ref_qpos - qpos)[world, 7:].abs().mean()
            assert errors[world, ERRORS.index("joint_pos")].item() == pytest.approx(difference.item(), abs=1e-5)
            watched = ("pelvis", "hip_roll_link", "knee_link", "torso_link", "shoulder_roll_link", "elbow_link")
            low = sum(is_low for name, is_low in robot.low.items() if name.endswith(watched))
            assert values["undesired_contacts"][world].item() == low
    assert all(seen == {False, True} for seen in fired.values()), fired


def test_some_bodies_alone_and_joint_rewards():
    from tickgraph import mdp
    from tickgraph.env.config import RewardTermCfg

    feet = ("left_ankle_roll_link", "right_ankle_roll_link")

    def edit(cfg):
        params = {"command_name": "motion", "std": 0.3}
        cfg.rewards = {
            "feet": RewardTermCfg(mdp.motion_relative_body_position_error_exp, 1.0, {**params, "body_names": feet}),
            "joints": RewardTermCfg(mdp.motion_joint_position_error_exp, 1.0, {**params, "std": 0.2}),
            "speeds": RewardTermCfg(mdp.motion_joint_velocity_error_exp, 1.0, {**params, "std": 1.0}),
        }

    env = tracking_env(N, edit=edit)
    put_on_reference(env, *frames(env, 10, 20, 30, 40))
    qpos, qvel = env.sim.view("qpos").clone(), env.sim.view("qvel").clone()
    elbow = env.scene["robot"].index.joint_names.index("left_elbow_joint")
    qpos[:, 7 + elbow] += 0.2 * math.sqrt(29)
    qvel[:, 6 + elbow] += math.sqrt(29)
    place(env, qpos, qvel)
    values = rewards(env)
    assert values["feet"].tolist() == pytest.approx([1.0] * N, abs=1e-5)
    assert values["joints"].tolist() == pytest.approx([math.exp(-1.0)] * N, abs=1e-4)
    assert values["speeds"].tolist() == pytest.approx([math.exp(-1.0)] * N, abs=1e-4)

    def wrong(cfg):
        edit(cfg)
        cfg.rewards["feet"].params["body_names"] = ("left_ankle_rol_link",)

    with pytest.raises(TickgraphError, match="left_ankle_rol_link.*not tracked; did you mean 'left_ankle_roll_link'"):
        tracking_env(N, edit=wrong)
    with pytest.raises(TickgraphError, match="no error 'anchor_poss'; did you mean 'anchor_pos'"):
        motion_error(env, "motion", "anchor_poss")


# The tasks ----------------------------------------------------------------------------------------------------------


def test_layout_and_numbers(env):
    widths = {name: term.dim for name, term in env.observation_manager.groups["actor"].items()}
    assert widths == {
        **{"command": 58, "motion_anchor_pos_b": 3, "motion_anchor_ori_b": 6, "base_lin_vel": 3, "base_ang_vel": 3},
        **{"joint_pos": 29, "joint_vel": 29, "last_action": 29},
    }
    assert env.observation_manager.dims == {"actor": 160, "critic": 289}
    assert env.step_dt == pytest.approx(0.02) and env.physics_dt == pytest.approx(1 / 150)
    assert env.max_episode_length == 500 and env.action_manager.total_dim == 29
    assert env.action_manager.term("joint_pos").scale.tolist() == [2.0] * 29
    weights = dict(zip(env.reward_manager.names, env.reward_manager.weights.tolist(), strict=True))
    assert weights == pytest.approx(
        {
            **dict(zip(TRACKING, (1.0, 0.5, 2.0, 1.0, 1.0, 1.0), strict=True)),
            **{"action_rate": -0.1, "joint_limit": -2.0, "undesired_contacts": -0.1},
        }
    )
    noise = {
        name: (term.noise.n_min, term.noise.n_max)
        for name, term in g1_motion_tracking().env.observations["actor"].terms.items()
        if term.noise
    }
    assert noise == {
        **{"base_lin_vel": (-0.1, 0.1), "base_ang_vel": (-0.2, 0.2)},
        **{"joint_pos": (-0.01, 0.01), "joint_vel": (-1.5, 1.5)},
    }
    assert env.termination_manager.is_time_out == {
        **{"time_out": True, "motion_clip_end": True},
        **{"anchor_pos": False, "anchor_ori": False, "ee_body_pos": False},
    }


def test_training_settings_are_those_of_the_public_task():
    task = g1_motion_tracking()
    assert task.num_envs == 2048 and task.algos == ("flashsac", "sac")
    flashsac, algo = task.train, task.train.algo
    assert (algo.batch_size, algo.gamma, algo.tau, algo.atoms, algo.policy_period) == (2048, 0.99, 0.05, 101, 2)
    assert (flashsac.updates_per_iteration, flashsac.iterations) == (4, 25_000)
    assert (flashsac.learning_starts, flashsac.replay_slots) == (98, 512)
    task.use("sac")
    sac, algo = task.train, task.train.algo
    assert (algo.batch_size, algo.gamma, algo.tau, algo.atoms, algo.policy_period) == (8192, 0.99, 0.05, 501, 2)
    assert (algo.alpha_init, algo.target_entropy_ratio, algo.max_grad_norm) == (0.1, 0.5, 10.0)
    assert (sac.updates_per_iteration, sac.iterations, sac.learning_starts, sac.replay_slots) == (4, 25_000, 4, 512)
    # The reward's sum over 1 / (1 - gamma) steps is within the support of the returns.
    most = sum(weight for weight in (1.0, 0.5, 2.0, 1.0, 1.0, 1.0)) * 0.02 / (1.0 - algo.gamma)
    assert most < algo.v_max


def test_the_blind_variant_does_not_see_what_the_robot_does_not_know():
    cfg = g1_motion_tracking_blind().env
    assert {"motion_anchor_pos_b", "base_lin_vel"}.isdisjoint(cfg.observations["actor"].terms)
    blind = Env(cfg, 2, execution="eager")
    assert blind.observation_manager.dims == {"actor": 154, "critic": 289}
    assert blind.blockers() == []


def test_no_blockers(env):
    assert env.blockers() == []


def test_noise_of_a_start_stays_in_its_ranges():
    def noisy(cfg):
        cfg.commands["motion"] = replace(g1_motion_tracking().env.commands["motion"], clips=("squat",))
        cfg.commands["motion"].sampler.mode = "start"

    env = tracking_env(256, edit=noisy)
    state = motion_of(env).library.frame(motion_of(env).clip, torch.zeros(256, dtype=torch.int64))
    qpos, qvel = env.sim.view("qpos"), env.sim.view("qvel")
    moved = qpos[:, :3] - state.root_pos
    for axis, half in enumerate((0.05, 0.05, 0.01)):
        assert 0.9 * half < moved[:, axis].abs().max() <= half + 1e-6
    for axis, half in enumerate((0.5, 0.5, 0.2)):
        assert 0.9 * half < (qvel[:, axis] - state.root_lin_vel[:, axis]).abs().max() <= half + 1e-5
    limits = env.scene["robot"].data.joint_pos_limits
    free = torch.clamp(state.joint_pos, limits[:, 0] + 0.1, limits[:, 1] - 0.1) == state.joint_pos
    noise = (qpos[:, 7:] - state.joint_pos)[free]
    assert 0.099 < noise.abs().max() <= 0.1 + 1e-6 and noise.mean().abs() < 0.005
    assert (qpos[:, 7:] >= limits[:, 0]).all() and (qpos[:, 7:] <= limits[:, 1]).all()
    torch.testing.assert_close(qvel[:, 6:], state.joint_vel)
    # Roll, pitch and yaw of the start, which is upright: about the world's axes.
    x, y, z = (2.0 * qpos[:, i] * torch.sign(qpos[:, 3]) for i in (4, 5, 6))
    assert 0.08 < x.abs().max() < 0.12 and 0.08 < y.abs().max() < 0.12 and 0.18 < z.abs().max() < 0.21
