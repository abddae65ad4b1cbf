"""Declaring and compiling scenes: names, indices, initial state, options, errors."""

import subprocess
import sys

import mujoco
import numpy as np
import pytest
from sim_toys import BALL, SLIDER, ball_scene, go2_scene, slider_scene

from tickgraph.core.errors import TickgraphError
from tickgraph.robots.entity import InitialStateCfg
from tickgraph.robots.go2 import go2_robot
from tickgraph.sim.index import UNLIMITED
from tickgraph.sim.model import build_scene
from tickgraph.sim.scene import EntityCfg, SceneCfg, SensorCfg, SolverCfg, TerrainCfg


def test_declarations_load_no_engine():
    code = "import sys, tickgraph.sim.scene; print('mujoco' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_an_entity_is_indexed_without_its_prefix():
    entity = slider_scene().entity("robot")
    assert entity.joint_names == ("x", "dummy")
    assert entity.body_names == ("slider", "dummy")
    assert entity.body_root_ids.tolist() == entity.body_ids.tolist()  # two trees of one body each
    assert entity.actuator_joint.tolist() == [1]
    assert entity.actuator_kind == ("position",)
    assert (entity.actuator_kp.tolist(), entity.actuator_kd.tolist()) == ([10.0], [1.0])
    assert entity.ctrl_range.tolist() == [[-UNLIMITED, UNLIMITED]]
    assert not entity.floating and entity.root_qpos_adr == -1


def test_world_options_of_a_model_are_kept_and_the_solver_is_the_scenes():
    option = slider_scene(timestep=0.004, solver=SolverCfg(iterations=7)).mjmodel.opt
    assert option.gravity.tolist() == [0, 0, 0]
    assert (option.timestep, option.iterations, option.ls_iterations) == (0.004, 7, 20)
    assert option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert option.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert option.disableflags & mujoco.mjtDisableBit.mjDSBL_AUTORESET
    assert build_scene(SceneCfg({"a": EntityCfg(SLIDER)}, gravity=(0, 0, -1))).gravity.tolist() == [0, 0, -1]


def test_entities_that_disagree_on_gravity_are_refused():
    entities = {"a": EntityCfg(SLIDER), "b": EntityCfg(BALL)}
    with pytest.raises(TickgraphError, match=r"'a' has gravity \[0.0, 0.0, 0.0\], entity 'b'.*SceneCfg.gravity"):
        build_scene(SceneCfg(entities))
    scene = build_scene(SceneCfg(entities, gravity=(0, 0, -9.81)))
    assert scene.entity_names == ("a", "b") and scene.nq == 9
    assert scene.entity("b").root_qpos_adr == 2


def test_initial_state_of_a_floating_base():
    half = np.sqrt(0.5)
    init = InitialStateCfg(pos=(1, 2, 3), rot=(2 * half, 0, 0, 2 * half), lin_vel=(1, 0, 0), ang_vel=(1, 0, 0))
    scene = build_scene(SceneCfg({"robot": EntityCfg(BALL, init)}))
    # The quaternion is normalised: 90 degrees about z, so that the world's x is minus the body's y.
    np.testing.assert_allclose(scene.default_qpos, [1, 2, 3, half, 0, 0, half], atol=1e-12)
    np.testing.assert_allclose(scene.default_qvel, [1, 0, 0, 0, -1, 0], atol=1e-12)
    assert scene.entity("robot").default_root_state[7:].tolist() == [1, 0, 0, 1, 0, 0]


def test_a_fixed_base_is_placed_at_its_initial_position():
    scene = build_scene(SceneCfg({"robot": EntityCfg(SLIDER, InitialStateCfg(pos=(0, 0, 2), joint_pos={"x": 0.5}))}))
    entity = scene.entity("robot")
    assert scene.mjmodel.body_pos[entity.root_body_id].tolist() == [0, 0, 2]
    assert scene.default_qpos.tolist() == [0.5, 0]
    with pytest.raises(TickgraphError, match="fixed base"):
        build_scene(SceneCfg({"robot": EntityCfg(SLIDER, InitialStateCfg(lin_vel=(1, 0, 0)))}))


@pytest.mark.parametrize(
    ("model", "init", "text"),
    [
        (SLIDER, {"joint_pos": {"x": np.nan}}, "scene.entities.robot.init_state.joint_pos.x is nan, expected a finite"),
        (SLIDER, {"joint_vel": {"x": np.inf}}, "init_state.joint_vel.x is inf, expected a finite"),
        (BALL, {"pos": (0.0, np.nan, 1.0)}, r"robot.init_state.pos is \(0.0, nan, 1.0\), expected 3 finite numbers"),
    ],
)
def test_an_initial_state_is_finite(model, init, text):
    with pytest.raises(TickgraphError, match=text):
        build_scene(SceneCfg({"robot": EntityCfg(model, InitialStateCfg(**init))}))


def test_names_are_found_by_full_match_in_the_asked_order():
    entity = go2_scene().entity("robot")
    assert entity.find("joint", ".*_hip_joint") == [0, 3, 6, 9]
    assert entity.find("joint", ("RR_hip_joint", "FL_.*"), preserve_order=True) == [9, 0, 1, 2]
    assert entity.find("joint", ("RR_hip_joint", "FL_.*")) == [0, 1, 2, 9]
    with pytest.raises(TickgraphError, match="did you mean 'FL_hip_joint'"):
        entity.find("joint", "FL_hip_joit")
    with pytest.raises(TickgraphError, match="not a regular expression"):
        entity.find("joint", "(")


def test_a_model_in_degrees_and_with_options_of_its_own_compiles_without_warnings(recwarn):
    limited = SLIDER.replace('<option gravity="0 0 0"/>', '<option gravity="0 0 0" timestep="0.1" integrator="RK4"/>')
    limited = limited.replace('<joint name="x" type="slide" axis="1 0 0"/>', '<joint name="x" range="-90 90"/>')
    scene = build_scene(SceneCfg({"robot": EntityCfg(limited)}))
    np.testing.assert_allclose(scene.entity("robot").joint_range[0], [-np.pi / 2, np.pi / 2])
    assert scene.timestep == 0.005
    assert list(recwarn) == []


def test_sensors_say_where_and_when():
    scene = ball_scene()
    ground, position, velocity = (scene.sensor(name) for name in ("ground", "position", "velocity"))
    assert (ground.adr, ground.dim, ground.stage) == (0, 4, "acc")
    assert (position.adr, position.dim, position.stage) == (4, 3, "pos")
    assert velocity.stage == "vel"
    assert scene.last_substep_columns.tolist() == [True] * 4 + [False] * 6


def test_the_frame_of_a_sensor_is_a_site_on_request():
    up = SensorCfg("up", "framezaxis", "world", "xbody", ref="centre", reftype="site")
    init = InitialStateCfg(rot=(np.sqrt(0.5), np.sqrt(0.5), 0, 0))  # rolled by 90 degrees: up is the ball's y
    scene = build_scene(SceneCfg({"robot": EntityCfg(BALL, init)}, sensors=(up,)))
    data = mujoco.MjData(scene.mjmodel)
    data.qpos[:] = scene.default_qpos
    mujoco.mj_forward(scene.mjmodel, data)
    np.testing.assert_allclose(data.sensordata, [0, 1, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.sensors.append(SensorCfg("s", "giro", "centre")),
            "kind is 'giro', expected one of .*; did you mean 'gyro'",
        ),
        (lambda c: c.sensors.append(SensorCfg("s", "gyro", "center")), "no site 'center'; did you mean 'centre'"),
        (lambda c: c.sensors.append(SensorCfg("position", "gyro", "centre")), "2 sensors named 'position'"),
        (lambda c: setattr(c, "terrain", None), "refers to the terrain, but SceneCfg.terrain is None"),
        (
            lambda c: setattr(c, "terrain", TerrainCfg(kind="planet")),
            "scene.terrain.kind is 'planet', expected one of plane",
        ),
        (lambda c: setattr(c, "solver", SolverCfg(solver="newtn")), "did you mean 'newton'"),
        (lambda c: setattr(c, "timestep", 0.0), "timestep is 0.0"),
        (lambda c: c.entities.clear(), "no entities"),
        (lambda c: c.entities.update({"a/b": EntityCfg(BALL)}), "scene.entities has the name 'a/b', expected letters"),
        (lambda c: c.entities["robot"].init_state.joint_pos.update(knee=1.0), "no joint of entity 'robot' matches"),
        (lambda c: setattr(c.entities["robot"].init_state, "rot", (0, 0, 0, 0)), "expected a quaternion"),
    ],
)
def test_mistakes_are_one_clear_line(change, message):
    sensors = [SensorCfg("position", "framepos", "centre"), SensorCfg("g", "contact", "ball", "geom", ref="terrain")]
    cfg = SceneCfg({"robot": EntityCfg(BALL)}, sensors=sensors)
    change(cfg)
    with pytest.raises(TickgraphError, match=message) as caught:
        build_scene(cfg)
    assert "\n" not in str(caught.value)


def test_a_contact_sensor_of_the_model_needs_force_among_its_data():
    bare = BALL.replace("<actuator>", '<sensor><contact name="c" geom1="ball" data="found"/></sensor><actuator>')
    with pytest.raises(TickgraphError, match="'robot/c' has no force"):
        build_scene(SceneCfg({"robot": EntityCfg(bare)}))
    scene = build_scene(SceneCfg({"robot": EntityCfg(bare.replace('"found"', '"found force"'))}))
    assert scene.sensor("robot/c").dim == 4


def test_unknown_names_offer_nearby_ones():
    scene = ball_scene()
    with pytest.raises(TickgraphError, match="did you mean 'robot'"):
        scene.entity("robt")
    with pytest.raises(TickgraphError, match="did you mean 'position'"):
        scene.sensor("positon")
    with pytest.raises(TickgraphError, match="did you mean 'body_mass'"):
        scene.model_field("body_mas")
    with pytest.raises(TickgraphError, match="whole numbers"):
        scene.model_field("geom_condim")
    assert scene.model_field("opt.gravity").tolist() == [0, 0, -9.81]


def test_contact_of_a_body_its_subtree_and_anything():
    sensors = tuple(
        SensorCfg(kind, "contact", "FL_calf" if kind != "below" else "FL_thigh", objtype, ref=ref)
        for kind, objtype, ref in (("body", "body", "terrain"), ("below", "subtree", "terrain"), ("any", "xbody", None))
    )
    knee = SensorCfg("knee", "contact", "FL_thigh", "body", ref="terrain")
    scene = build_scene(SceneCfg({"robot": go2_robot()}, sensors=(*sensors, knee)))
    data = mujoco.MjData(scene.mjmodel)
    data.qpos[:] = scene.default_qpos
    mujoco.mj_step(scene.mjmodel, data, nstep=100)
    below, on = np.array([0, 1, 2]), data.sensordata.reshape(4, 4)
    assert on[below, 0].tolist() == [1, 1, 1] and (on[below, 3] > 10).all()
    np.testing.assert_array_equal(on[0], on[1])
    assert on[3].tolist() == [0, 0, 0, 0]  # the thigh itself touches nothing
