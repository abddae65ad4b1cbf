"""Bodies of our tree against MuJoCo's, velocities and interpolation against rotations known in closed form."""

import math

import mujoco
import numpy as np
import pytest
import torch
from motion_toys import SKELETON, J

from tickgraph.core.rotation import quat_error_magnitude
from tickgraph.motion.legs import solve_legs
from tickgraph.motion.resample import angular_rates, continuous, rates, resample, slerp
from tickgraph.robots.g1 import g1_robot
from tickgraph.sim.model import build_scene
from tickgraph.sim.scene import SceneCfg

SCENE = build_scene(SceneCfg({"robot": g1_robot()}))
ROBOT = SCENE.entity("robot")


def turned(angle: torch.Tensor) -> torch.Tensor:
    """Return quaternions (T, 4) of turns about z."""
    zero = torch.zeros_like(angle)
    return torch.stack((torch.cos(angle / 2), zero, zero, torch.sin(angle / 2)), dim=1)


def test_names_are_in_the_models_order() -> None:
    assert SKELETON.joint_names == ROBOT.joint_names
    assert SKELETON.body_names == ROBOT.body_names
    assert np.allclose(SKELETON.joint_range.numpy(), ROBOT.joint_range)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bodies_and_their_velocities_are_those_of_mujoco(seed: int) -> None:
    model, generator = SCENE.mjmodel, np.random.default_rng(seed)
    data = mujoco.MjData(model)
    quat = generator.normal(size=4)
    data.qpos[:] = [*generator.normal(size=3), *(quat / np.linalg.norm(quat)), *generator.uniform(-1.0, 1.0, J)]
    data.qvel[:] = generator.normal(size=model.nv)
    mujoco.mj_forward(model, data)
    root = ROBOT.body_ids[0]
    spin = data.xmat[root].reshape(3, 3) @ data.qvel[3:6]  # a free joint turns in its own frame
    qpos, qvel, spin = (torch.from_numpy(np.array(x))[None] for x in (data.qpos, data.qvel, spin))
    pos, rotation = SKELETON.forward(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])
    linear, angular = SKELETON.velocities(pos, rotation, qvel[:, :3], spin, qvel[:, 6:])
    assert np.allclose(pos[0], data.xpos[ROBOT.body_ids], atol=1e-12)
    assert quat_error_magnitude(rotation[0], torch.from_numpy(data.xquat[ROBOT.body_ids])).max() < 1e-7
    assert np.allclose(SKELETON.centre_of_mass(pos, rotation)[0], data.subtree_com[root], atol=1e-12)
    for i, body in enumerate(ROBOT.body_ids):
        both = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, both, 0)
        assert np.allclose(angular[0, i], both[:3], atol=1e-12) and np.allclose(linear[0, i], both[3:], atol=1e-12)


def test_soles_are_the_feet_that_collide() -> None:
    model, data = SCENE.mjmodel, mujoco.MjData(SCENE.mjmodel)
    data.qpos[:] = SCENE.default_qpos
    mujoco.mj_forward(model, data)
    touching = [
        c.dist for c in data.contact if "foot" in model.geom(c.geom2).name or "foot" in model.geom(c.geom1).name
    ]
    qpos = torch.from_numpy(np.array(data.qpos))[None]
    pose = SKELETON.forward(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])
    lowest = min(float(SKELETON.sole_points(*pose, foot)[..., 2].min()) for foot in (0, 1))
    assert lowest == pytest.approx(min(touching), abs=1e-6)


def test_slerp_turns_evenly_the_shorter_way() -> None:
    a, b = (
        turned(torch.tensor([0.0, 3.0], dtype=torch.float64)),
        -turned(torch.tensor([1.0, -3.0], dtype=torch.float64)),
    )
    # From 3 rad to -3 rad it is 2 pi - 6 further on, not 6 back.
    for fraction in (0.0, 0.25, 1.0):
        got = slerp(a, b, torch.full((2, 1), fraction, dtype=torch.float64))
        want = turned(torch.tensor([fraction, 3.0 + fraction * (2 * math.pi - 6)], dtype=torch.float64))
        assert quat_error_magnitude(got, want).max() < 1e-7


def test_signs_do_not_matter() -> None:
    angle = torch.linspace(0.0, 9.0, 91, dtype=torch.float64)
    flipped = turned(angle) * torch.where(torch.arange(91) % 3 == 0, -1.0, 1.0)[:, None]
    assert ((continuous(flipped)[1:] * continuous(flipped)[:-1]).sum(1) > 0.99).all()
    for quat in (turned(angle), flipped):
        assert torch.allclose(angular_rates(quat, 10.0)[:, 2], torch.ones(91, dtype=torch.float64), atol=1e-9)


def test_resampling_keeps_speed_and_both_ends() -> None:
    time = torch.arange(61, dtype=torch.float64) / 30.0
    pos = torch.stack((time, 2.0 * time, torch.zeros_like(time)), dim=1)
    for target, frames in ((50.0, 101), (30.0, 61), (100.0, 201), (24.0, 49), (7.0, 15)):
        out, quat, joints = resample(pos, turned(time), time[:, None], 30.0, target)
        assert len(out) == len(quat) == frames
        at = torch.arange(frames, dtype=torch.float64) / target
        assert torch.allclose(out[:, 0], at, atol=1e-12) and torch.allclose(joints[:, 0], at, atol=1e-12)
        assert quat_error_magnitude(quat, turned(at)).max() < 1e-7
        assert torch.allclose(rates(out, target)[:, 1], torch.full((frames,), 2.0, dtype=torch.float64), atol=1e-9)


def test_legs_reach_where_they_are_told_and_say_when_they_cannot() -> None:
    qpos = torch.from_numpy(SCENE.default_qpos)[None]
    pos, quat = SKELETON.forward(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])
    feet = list(SKELETON.feet)
    goal = pos[:, feet] + torch.tensor([[[0.1, 0.02, 0.05], [-0.05, -0.02, 0.0]]], dtype=torch.float64)
    joints = solve_legs(SKELETON, qpos[:, :3], qpos[:, 3:7], qpos[:, 7:], goal, quat[:, feet])
    reached, _ = SKELETON.forward(qpos[:, :3], qpos[:, 3:7], joints)
    assert torch.allclose(reached[:, feet], goal, atol=1e-6)
    assert torch.equal(joints[:, 12:], qpos[:, 19:])  # waist and arms stay
    with pytest.raises(ValueError, match="out of reach"):
        solve_legs(SKELETON, qpos[:, :3], qpos[:, 3:7], qpos[:, 7:], goal - 0.5, quat[:, feet])
