"""A world whose centre of mass or friction differs moves as a model does that MuJoCo compiled with those values."""

import mujoco
import numpy as np
import pytest
import torch
from sim_toys import BALL, ball_scene, make

from tickgraph.core.errors import TickgraphError
from tickgraph.robots.g1 import FOOT_GEOMS, HOME_JOINT_POS, TORSO_BODY, g1_spec
from tickgraph.sim.model import Scene, build_scene
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg

OFFSET = (0.025, -0.05, 0.05)
FRICTION = 0.3
STEPS = 12
# MuJoCo works in float64 and takes float32 fields; MuJoCo Warp works in float32 and its solver ends at 1e-6 at best.
TOLERANCE = {"mujoco": 2e-5, "mjwarp": 2e-3}
DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0")
# The inertia of the base has the frame of the base, the capsule that of the arm's inertia: MuJoCo takes them for one.
BALANCED = """
<mujoco>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <inertial pos="{pos}" mass="2" diaginertia="0.02 0.03 0.04"/>
      <geom name="pad" type="box" size="0.2 0.1 0.05"/>
      <site name="centre"/>
      <body name="arm" pos="0.2 0 0">
        <joint name="arm" axis="0 1 0" damping="0.5"/>
        <inertial pos="{arm}" quat="1 0 1 0" mass="0.3" diaginertia="0.001 0.001 0.0005"/>
        <geom name="tip" type="capsule" pos="0.05 0 0" quat="1 0 1 0" size="0.02 0.05"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="arm" kp="5"/></actuator>
</mujoco>
"""


@pytest.fixture(params=["mujoco", "mjwarp"])
def backend(request) -> str:
    return request.param


def mask(*bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.bool)


def g1_scene(offset=(0.0, 0.0, 0.0), friction=None) -> Scene:
    """Return a G1 in its home pose on the ground, compiled with a displaced torso or other soles."""

    def spec() -> mujoco.MjSpec:
        made = g1_spec()
        torso = made.body(TORSO_BODY)
        torso.ipos = np.array(torso.ipos) + offset
        for name in FOOT_GEOMS if friction is not None else ():
            made.geom(name).friction[0] = friction
        return made

    robot = EntityCfg(spec, InitialStateCfg(pos=(0.0, 0.0, 0.754), joint_pos=dict(HOME_JOINT_POS)))
    return build_scene(SceneCfg({"robot": robot}, timestep=1.0 / 150.0))


def derived(sim, name: str) -> np.ndarray:
    """Return what the engine has of a field that MuJoCo derives, (N, ...); the batch keeps one of all worlds alike."""
    if sim.name == "mjwarp":
        return getattr(sim._model, name).numpy()
    own = sim._batch.expanded(name)
    return np.stack([getattr(sim._batch.model, name)] * sim.num_envs) if own is None else own


def play(sim, *worlds: int) -> dict[str, torch.Tensor]:
    """Begin anew in some worlds, slide off sideways and fall; returns the views of that."""
    written = torch.zeros(sim.num_envs, dtype=torch.bool)
    written[list(worlds)] = True
    sim.stage_from_state()
    sim.staging_qpos[:], sim.staging_qvel[:] = sim.default_qpos, sim.default_qvel
    sim.staging_qvel[:, 1] = 1.0
    sim.write_state(written, written)
    sim.refresh(written)
    for _ in range(STEPS):
        sim.advance_and_refresh(3)
    return {name: sim.view(name).clone() for name in ("qpos", "qvel", "xipos", "subtree_com")}


def test_a_g1_with_its_own_torso_and_one_with_its_own_soles(backend):
    scene, names = g1_scene(), ("body_ipos", "geom_friction")
    torso = scene.entity("robot")
    body = int(torso.body_ids[torso.body_names.index(TORSO_BODY)])
    soles = [int(torso.geom_ids[torso.geom_names.index(name)]) for name in FOOT_GEOMS]
    sim, _ = make(scene, num_envs=3, backend=backend, fields=names)
    untouched, _ = make(scene, num_envs=3, backend=backend, fields=names)
    sim.field("body_ipos")[1, body] += torch.tensor(OFFSET)
    sim.field("geom_friction")[2, soles, 0] = FRICTION
    seen, plain = play(sim, 0, 1, 2), play(untouched, 0, 1, 2)
    for name, value in seen.items():
        assert torch.equal(value[0], plain[name][0]), name  # world 0 has the model's own values: not a bit is another
    compiled = (scene, g1_scene(offset=OFFSET), g1_scene(friction=FRICTION))
    for world, other in enumerate(compiled):
        for name in DERIVED:
            given, expected = derived(sim, name)[world], getattr(other.mjmodel, name)
            np.testing.assert_allclose(given, expected, rtol=2e-4, atol=1e-6, err_msg=f"{name} of world {world}")
        own = play(make(other, num_envs=1, backend=backend)[0], 0)
        for name, value in own.items():
            torch.testing.assert_close(seen[name][world], value[0], rtol=0, atol=TOLERANCE[backend], msg=name)
    # Both differ from the plain robot by far more than that, and the inverse weights follow the displaced torso.
    assert (seen["qvel"][1] - seen["qvel"][0]).abs().max() > 100 * TOLERANCE[backend]
    assert (seen["qvel"][2] - seen["qvel"][0]).abs().max() > 100 * TOLERANCE[backend]
    assert np.abs(derived(sim, "body_invweight0")[1, body] / scene.mjmodel.body_invweight0[body] - 1.0).max() > 0.01


def test_a_field_written_in_a_world_that_is_not_marked_is_not_taken(backend):
    scene = g1_scene()
    sim, _ = make(scene, num_envs=2, backend=backend, fields=("body_ipos",))
    untouched, _ = make(scene, num_envs=2, backend=backend, fields=("body_ipos",))
    sim.field("body_ipos")[:, 17] += 0.05
    seen, plain = play(sim, 0), play(untouched, 0)
    for name, value in seen.items():
        assert torch.equal(value[1], plain[name][1]), name
        assert not torch.equal(value[0], plain[name][0]), name


def test_a_body_that_mujoco_takes_for_balanced(backend):
    """Its frame and its inertia's are one in the compiled model, and no longer where a world displaces the latter."""

    def scene(pos: str, arm: str) -> Scene:
        robot = EntityCfg(BALANCED.format(pos=pos, arm=arm), InitialStateCfg(pos=(0.0, 0.0, 1.0)))
        return build_scene(SceneCfg({"robot": robot}, terrain=None))

    plain, moved = scene("0 0 0", "0.05 0 0"), scene("0.03 0.01 0", "0.05 0.02 0")
    same, model = mujoco.mjtSameFrame, plain.mjmodel
    assert model.body_sameframe[1] == int(same.mjSAMEFRAME_BODY)
    assert model.geom_sameframe[1] == int(same.mjSAMEFRAME_INERTIA)
    sim, _ = make(plain, num_envs=2, backend=backend, fields=("body_ipos",))
    sim.field("body_ipos")[1] = torch.from_numpy(moved.mjmodel.body_ipos)
    seen = {}
    for name, made in (("own", sim), ("compiled", make(moved, num_envs=2, backend=backend)[0])):
        made.stage_from_state()
        made.write_state(mask(0, 1), mask(0, 1))
        made.refresh(mask(0, 1))
        made.ctrl.fill_(1.0)
        for _ in range(20):
            made.advance_and_refresh(2)
        seen[name] = {view: made.view(view)[1].clone() for view in ("qpos", "qvel", "xipos", "geom_xpos", "site_xpos")}
    for name, value in seen["compiled"].items():
        torch.testing.assert_close(seen["own"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert sim.view("qvel")[1].abs().max() > 0.5


def test_a_mass_matrix_without_room_for_it_is_refused_in_one_line(backend):
    sim, _ = make(ball_scene(), num_envs=2, backend=backend, fields=("body_ipos",))
    with pytest.raises(TickgraphError, match="body_ipos of body 'robot/ball' cannot differ .* simple='false'"):
        sim.check_rows("body_ipos", [2])
    sim.check_rows("body_mass", [2])
    sim.check_rows("geom_friction", [1])
    # The advice serves.
    robot = EntityCfg(BALL.replace('<body name="ball"', '<body name="ball" simple="false"'))
    sim, _ = make(build_scene(SceneCfg({"robot": robot})), num_envs=2, backend=backend, fields=("body_ipos",))
    sim.check_rows("body_ipos", [2])
    sim.field("body_ipos")[1, 2, 0] = 0.02
    sim.stage_from_state()
    sim.write_state(mask(0, 1), mask(0, 1))
    sim.refresh(mask(0, 1))
    assert sim.view("xipos")[:, 2, 0].tolist() == pytest.approx([0.0, 0.02])
