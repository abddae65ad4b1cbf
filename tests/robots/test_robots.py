"""The robots against published figures: masses, sizes, orders of names, stance, hardware limits."""

import mujoco
import numpy as np
import pytest

from tickgraph.robots import cartpole, g1, go2
from tickgraph.robots.build import read_description
from tickgraph.sim.index import UNLIMITED
from tickgraph.sim.model import build_scene, compile_model
from tickgraph.sim.scene import SceneCfg

ROBOTS = {"g1": g1.g1_robot, "go2": go2.go2_robot, "cartpole": cartpole.cartpole_robot}


def scene_of(robot, **options):
    return build_scene(SceneCfg({"robot": ROBOTS[robot]()}, **options))


def stand(scene, seconds):
    """Hold the initial joint positions; return the height and the upward share of the root's z axis."""
    model, entity = scene.mjmodel, scene.entity("robot")
    data = mujoco.MjData(model)
    data.qpos[:] = scene.default_qpos
    data.ctrl[:] = entity.default_joint_pos[entity.actuator_joint]
    mujoco.mj_step(model, data, nstep=round(seconds / model.opt.timestep))
    mujoco.mj_forward(model, data)
    return data, data.xpos[entity.root_body_id][2], data.xmat[entity.root_body_id][8]


@pytest.mark.parametrize(("robot", "mass", "tolerance"), [("g1", 33.34, 0.01), ("go2", 15.2064, 1e-4)])
def test_mass(robot, mass, tolerance):
    scene = scene_of(robot)
    assert scene.entity("robot").body_mass.sum() == pytest.approx(mass, abs=tolerance)
    assert scene.mjmodel.body_mass.sum() == pytest.approx(read_description(f"{robot}.json")["total_mass_kg"], abs=1e-3)


@pytest.mark.parametrize(("robot", "sizes"), [("g1", (36, 35, 29)), ("go2", (19, 18, 12)), ("cartpole", (2, 2, 1))])
def test_sizes(robot, sizes):
    scene = scene_of(robot)
    assert (scene.nq, scene.nv, scene.nu) == sizes


def test_g1_stands_for_a_second():
    _, height, up = stand(scene_of("g1", timestep=1 / 150), 1.0)
    assert height > 0.65 and up > 0.95


def test_go2_stands_and_settles_at_its_standing_height():
    data, height, up = stand(scene_of("go2"), 2.0)
    assert height == pytest.approx(go2.STANDING_HEIGHT, abs=0.01) and up > 0.999
    assert np.abs(data.qvel).max() < 0.01


@pytest.mark.parametrize("robot", ["g1", "go2"])
def test_soles_touch_the_ground_at_home(robot):
    scene = scene_of(robot)
    data = mujoco.MjData(scene.mjmodel)
    data.qpos[:] = scene.default_qpos
    mujoco.mj_forward(scene.mjmodel, data)
    entity = scene.entity("robot")
    names = g1.FOOT_GEOMS if robot == "g1" else go2.FOOT_GEOMS
    geoms = [entity.geom_ids[entity.geom_names.index(name)] for name in names]
    lowest = min(data.geom_xpos[g][2] - scene.mjmodel.geom_size[g][0] for g in geoms)
    assert -0.003 < lowest < 0.003


def test_go2_actuators_are_in_another_order_than_its_joints():
    entity = scene_of("go2").entity("robot")
    assert [name[:2] for name in entity.joint_names[::3]] == ["FL", "FR", "RL", "RR"]
    assert [name[:2] for name in entity.actuator_names[::3]] == ["FR", "FL", "RR", "RL"]
    assert entity.actuator_joint.tolist() == [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
    for actuator, joint in zip(entity.actuator_names, entity.actuator_joint, strict=True):
        assert entity.joint_names[joint] == f"{actuator}_joint"


def test_go2_gains_limits_and_feet():
    scene = scene_of("go2")
    entity, model = scene.entity("robot"), scene.mjmodel
    assert set(entity.actuator_kind) == {"position"} and set(entity.actuator_kp) == {35.0}
    assert set(entity.joint_damping) == {0.5} and set(entity.joint_armature) == {0.01}
    assert entity.actuator_force_range[:3, 1].tolist() == [23.7, 23.7, 45.43]
    assert (entity.ctrl_range[:, 1] == UNLIMITED).all()
    assert not model.jnt_actfrclimited.any()
    for name, geom in zip(entity.geom_names, entity.geom_ids, strict=True):
        foot = name in go2.FOOT_GEOMS
        assert (model.geom_condim[geom], model.geom_priority[geom]) == ((6, 1) if foot else (1, 0))
        assert (model.geom_contype[geom], model.geom_conaffinity[geom]) == (1, 2)
        assert model.geom_margin[geom] == (0.005 if foot else 0.001)
    foot = model.geom("robot/FL")
    assert foot.friction.tolist() == [0.4, 0.02, 0.01]
    assert foot.solref.tolist() == [0.01, 1.0] and foot.solimp[:3].tolist() == [0.015, 1.0, 0.023]


def test_g1_gains_follow_from_armature_at_ten_hertz():
    entity = scene_of("g1").entity("robot")
    assert entity.joint_names == entity.actuator_names
    assert entity.actuator_joint.tolist() == list(range(29))
    omega = 2 * np.pi * 10
    np.testing.assert_allclose(entity.actuator_kp, entity.joint_armature * omega**2, rtol=1e-3)
    np.testing.assert_allclose(entity.actuator_kd, 2 * 2 * entity.joint_armature * omega, rtol=1e-3)
    limits = dict(zip(entity.joint_names, entity.actuator_force_range[:, 1], strict=True))
    assert [limits[f"left_{name}_joint"] for name in ("knee", "hip_yaw", "ankle_roll", "elbow", "wrist_yaw")] == [
        139.0,
        88.0,
        50.0,
        25.0,
        5.0,
    ]


def test_g1_contacts_and_sites():
    scene = scene_of("g1")
    entity, model = scene.entity("robot"), scene.mjmodel
    assert model.nexclude == 4 and len(entity.geom_ids) == 33
    for name, geom in zip(entity.geom_names, entity.geom_ids, strict=True):
        foot = name in g1.FOOT_GEOMS
        assert (model.geom_condim[geom], model.geom_priority[geom]) == ((3, 1) if foot else (1, 0))
        assert (model.geom_contype[geom], model.geom_conaffinity[geom]) == (1, 1)
        assert not foot or model.geom_friction[geom][0] == 0.6
    for name in g1.FOOT_SITES:
        assert model.site(f"robot/{name}").pos.tolist() == [0.04, 0.0, -0.037]
        assert model.body(model.site(f"robot/{name}").bodyid[0]).name == f"robot/{name.split('_')[0]}_ankle_roll_link"
    assert model.site(f"robot/{g1.PELVIS_IMU_SITE}").pos.tolist() == [0.04525, 0.0, -0.08339]
    assert model.site(f"robot/{g1.TORSO_IMU_SITE}").pos.tolist() == [-0.03959, -0.00224, 0.14792]


def test_g1_home_pose():
    entity = scene_of("g1").entity("robot")
    pose = dict(zip(entity.joint_names, entity.default_joint_pos, strict=True))
    leg = [pose[f"right_{n}_joint"] for n in ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")]
    assert leg == [-0.312, 0, 0, 0.669, -0.363, 0]
    arm = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
    assert [pose[f"left_{n}_joint"] for n in arm] == [0.2, 0.2, 0, 0.6, 0, 0, 0]
    assert [pose[f"right_{n}_joint"] for n in arm] == [0.2, -0.2, 0, 0.6, 0, 0, 0]
    assert all(pose[f"waist_{n}_joint"] == 0 for n in ("yaw", "roll", "pitch"))


@pytest.mark.parametrize(
    ("module", "part", "names"),
    [
        (g1, "joint", (g1.LEG_JOINTS, g1.WAIST_JOINTS, g1.ARM_JOINTS)),
        (g1, "body", (g1.ROOT_BODY, g1.TORSO_BODY, *g1.FOOT_BODIES, *g1.TRACKED_BODIES)),
        (g1, "site", (*g1.FOOT_SITES, *g1.HAND_SITES)),
        (go2, "joint", (go2.HIP_JOINTS, go2.THIGH_JOINTS, go2.CALF_JOINTS)),
        (go2, "body", (go2.BASE_BODY, *go2.FOOT_BODIES)),
        (go2, "site", (go2.IMU_SITE, *go2.FOOT_SITES)),
    ],
)
def test_constants_name_what_there_is(module, part, names):
    scene = scene_of("g1" if module is g1 else "go2")
    found = scene.entity("robot").find(part, names)
    if part == "joint":  # the groups cover every joint, none twice
        assert len(found) == scene.nu == sum(len(scene.entity("robot").find(part, name)) for name in names)


def test_cartpole_hangs_and_is_pushed_by_ten_newtons():
    scene = scene_of("cartpole")
    entity = scene.entity("robot")
    assert entity.joint_range[0].tolist() == [-1.8, 1.8]
    assert entity.ctrl_range.tolist() == [[-1.0, 1.0]] and entity.actuator_kind == ("motor",)
    data = mujoco.MjData(scene.mjmodel)
    data.qpos[:] = scene.default_qpos
    mujoco.mj_forward(scene.mjmodel, data)
    assert data.site("robot/tip").xpos[2] == pytest.approx(0.0, abs=1e-9)
    data.qpos[1], data.ctrl[0] = 0.0, 1.0
    mujoco.mj_forward(scene.mjmodel, data)
    assert data.site("robot/tip").xpos[2] == pytest.approx(2.0)
    assert data.qfrc_actuator[0] == pytest.approx(cartpole.MAX_FORCE)


@pytest.mark.parametrize("robot", ["g1", "go2"])
def test_a_look_adds_neither_mass_nor_contacts_nor_joints(robot):
    plain = scene_of(robot).mjmodel
    pretty = compile_model(SceneCfg({"robot": ROBOTS[robot]()}), look=True)
    assert pretty.ngeom > plain.ngeom
    assert (pretty.nq, pretty.nbody) == (plain.nq, plain.nbody)
    np.testing.assert_array_equal(pretty.body_mass, plain.body_mass)
    np.testing.assert_array_equal(pretty.body_inertia, plain.body_inertia)
    colliding = (pretty.geom_contype | pretty.geom_conaffinity) != 0
    assert colliding.sum() == plain.ngeom
    assert (pretty.geom_group[~colliding] == 2).all()


def test_descriptions_keep_their_source():
    for robot in ("g1", "go2"):
        assert "BSD 3-Clause" in read_description(f"{robot}.json")["source"]
