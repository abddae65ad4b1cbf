"""Clips of our own making: feet that stand do not move or sink, joints stay within limits, both ends are at rest."""

import mujoco
import numpy as np
import pytest
import torch
from motion_toys import SKELETON

from tickgraph.motion import CLIP_NAMES
from tickgraph.motion.figures import figures
from tickgraph.motion.load import load_clips, read_motion, shipped
from tickgraph.motion.synth import CLIPS, Maker
from tickgraph.robots.g1 import g1_robot
from tickgraph.sim.model import build_scene
from tickgraph.sim.scene import SceneCfg

MAKER = Maker(SKELETON)
SCENE = build_scene(SceneCfg({"robot": g1_robot()}))
# What each one is for: a figure of its middle, and the least it has to be.
GIST = {
    "sway": lambda clip: clip.body_pos_w[:, 0, 1].max() - clip.body_pos_w[:, 0, 1].min() > 0.1,
    "squat": lambda clip: clip.body_pos_w[:, 0, 2].min() < clip.body_pos_w[0, 0, 2] - 0.19,
    "march": lambda clip: bool((clip.body_pos_w[:, list(SKELETON.feet), 2].amax(dim=0) > 0.11).all()),
    "arm_wave": lambda clip: clip.body_pos_w[:, SKELETON.body_names.index("right_wrist_yaw_link"), 2].max() > 1.2,
    "turn": lambda clip: abs(clip.body_quat_w[-1, 0, 3]) > 0.999,
    "walk": lambda clip: clip.body_pos_w[-1, 0, 0] > 1.6,
}


def test_every_clip_has_a_name_and_ships() -> None:
    assert tuple(CLIPS) == CLIP_NAMES == tuple(GIST)
    assert set(shipped()) == set(CLIP_NAMES)


@pytest.mark.parametrize("name", CLIP_NAMES)
def test_a_clip_is_kinematically_sane(name: str) -> None:
    (clip,) = load_clips(name, 50.0)
    value = figures(clip, SKELETON)
    assert value["limit_violations"] == 0 and value["jump_count"] == 0
    assert value["lowest_sole"] > -1e-4
    margin = [min(j["min"] - j["limits"][0], j["limits"][1] - j["max"]) for j in value["joints"]]
    assert min(margin) > 0.02
    assert all(foot["slide_max"] < 1e-3 for foot in value["feet"])  # m/s
    soles = [SKELETON.sole_points(clip.body_pos_w.double(), clip.body_quat_w.double(), i)[..., 2] for i in (0, 1)]
    standing = torch.stack([(sole.amax(dim=1) < 1e-4) for sole in soles])
    assert bool(standing.any(dim=0).all())  # flat on at least one foot all the time
    assert float(clip.joint_vel.abs().max()) < 8.0  # rad/s
    assert float((clip.joint_vel[1:] - clip.joint_vel[:-1]).abs().max()) < 2.0  # rad/s a frame: no kinks
    assert GIST[name](clip)


@pytest.mark.parametrize("name", CLIP_NAMES)
def test_a_clip_begins_and_ends_at_rest_in_one_pose(name: str) -> None:
    (clip,) = load_clips(name, 50.0)
    for frame in (0, -1):
        assert float(clip.joint_vel[frame].abs().max()) < 1e-3
        assert float(clip.body_lin_vel_w[frame].norm(dim=1).max()) < 1e-3
    assert float((clip.joint_pos[-1] - clip.joint_pos[0]).abs().max()) < 1e-3
    assert float((clip.body_pos_w[-1, :, 2] - clip.body_pos_w[0, :, 2]).abs().max()) < 1e-4


@pytest.mark.parametrize("name", CLIP_NAMES)
def test_no_part_of_the_robot_runs_into_another(name: str) -> None:
    (clip,) = load_clips(name, 50.0)
    model, data = SCENE.mjmodel, mujoco.MjData(SCENE.mjmodel)
    for qpos in clip.qpos.double().numpy()[::5]:
        data.qpos[:] = qpos
        mujoco.mj_fwdPosition(model, data)
        for contact in data.contact:
            bodies = [model.body(model.geom_bodyid[geom]).name for geom in (contact.geom1, contact.geom2)]
            assert "terrain" in bodies, bodies
            assert any("ankle_roll" in body for body in bodies), bodies


@pytest.mark.parametrize("name", CLIP_NAMES)
def test_the_weight_stays_over_the_feet(name: str) -> None:
    """The centre of pressure that the motion asks for (inverted pendulum) lies within 5 cm of the feet's outline."""
    (clip,) = load_clips(name, 50.0)
    pose = clip.body_pos_w.double(), clip.body_quat_w.double()
    centre = SKELETON.centre_of_mass(*pose)[:, :2]
    push = (centre[2:] - 2.0 * centre[1:-1] + centre[:-2]) * 2500.0
    pressure = centre[1:-1] - push * MAKER.centre_height / 9.81
    soles = torch.cat([SKELETON.sole_points(*pose, foot) for foot in (0, 1)], dim=1)[1:-1]
    far = torch.where(soles[..., 2:] < 1e-4, 0.0, torch.inf)
    for axis in (0, 1):
        low = (soles[..., axis] + far[..., 0]).amin(dim=1)
        high = (soles[..., axis] - far[..., 0]).amax(dim=1)
        outside = torch.maximum(low - pressure[:, axis], pressure[:, axis] - high)
        # Feet leave the ground in a part of a frame; the mean over a tenth of a second is what counts.
        assert float(outside.unfold(0, 5, 1).mean(dim=1).max()) < 0.05, name


@pytest.mark.parametrize("name", CLIP_NAMES)
def test_what_ships_is_what_is_made(name: str) -> None:
    made, ships = CLIPS[name](MAKER), read_motion(shipped()[name]).clip()
    assert made.fps == ships.fps == 50.0
    assert np.allclose(made.qpos, ships.qpos, atol=1e-5)
