"""The contract of views, staged writes and fields, on MuJoCo's batch and on the backend of shapes."""

import logging

import mujoco
import numpy as np
import pytest
import torch
from sim_toys import ball_scene, go2_scene, make, slider_scene

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.robots.mj import load_mujoco
from tickgraph.sim.backend import FRESH, backends, make_backend


@pytest.fixture(params=["mujoco", "mjwarp"])
def backend(request) -> str:
    return request.param


def mask(*bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.bool)


def inner(sim, name: str):
    """What the engine itself holds of a field."""
    return sim._batch.bind(name) if sim.name == "mujoco" else getattr(sim._data, name).numpy()


def rows(sim, name: str) -> bytes:
    return sim.view(name).numpy().tobytes()


def test_a_mass_without_force_keeps_its_speed(backend):
    sim, _ = make(slider_scene(), backend=backend, num_envs=2, views=("qpos",))
    sim.staging_qvel[:, 0] = torch.tensor([1.0, -0.5])
    sim.write_state(mask(1, 1), mask(1, 1))
    for _ in range(5):
        sim.advance_and_refresh(4)
    np.testing.assert_allclose(sim.view("qpos")[:, 0], [0.1, -0.05], atol=1e-9 if backend == "mujoco" else 1e-7)


def test_views_are_those_of_the_new_state_and_forces_those_of_the_last_substep():
    scene = go2_scene()
    sim, _ = make(scene, num_envs=3)
    plain = mujoco.MjData(scene.mjmodel)
    plain.qpos[:] = np.float32(scene.default_qpos)
    home = scene.entity("robot").default_joint_pos[scene.entity("robot").actuator_joint]
    ctrl = np.float32(home + 0.1 * np.arange(12))
    sim.ctrl[1] = torch.from_numpy(ctrl)
    for _ in range(30):
        sim.advance_and_refresh(4)
        plain.ctrl[:] = ctrl
        mujoco.mj_step(scene.mjmodel, plain, nstep=4)
    forces = {name: np.array(getattr(plain, name)) for name in ("qacc", "actuator_force", "sensordata")}
    mujoco.mj_forward(scene.mjmodel, plain)
    for name in FRESH:
        expected = np.array(getattr(plain, name))
        if name in ("qacc", "actuator_force"):
            expected = forces[name]
        elif name == "sensordata":
            expected = np.where(scene.last_substep_columns, forces[name], expected)
        view = sim.view(name)[1].numpy()
        assert (view == np.float32(expected).reshape(view.shape)).all(), name
    assert (sim.view("sensordata")[1, 3:] != 0).any()  # feet were on the ground


def test_a_resting_ball_is_carried_by_its_weight_upwards(backend):
    sim, _ = make(ball_scene(), backend=backend, num_envs=2, views=("sensordata",))
    for _ in range(100):
        sim.advance_and_refresh(4)
    found, force = sim.view("sensordata")[:, 0], sim.view("sensordata")[:, 1:4]
    assert found.tolist() == [1, 1]
    np.testing.assert_allclose(force, [[0, 0, 9.81]] * 2, atol=1e-3)


def test_only_fresh_fields_can_be_read_and_only_while_building(backend):
    sim, arena = make(ball_scene(), backend=backend, views=("xpos",))
    assert sim.view("xpos") is arena["sim/xpos"] and sim.view("ctrl") is sim.ctrl
    with pytest.raises(
        TickgraphError, match="'qfrc_actuator' is not fresh after a step.*; the fresh fields are qpos, qvel"
    ):
        sim.view("qfrc_actuator")
    with pytest.raises(TickgraphError, match="sealed"):
        sim.view("geom_xpos")
    with pytest.raises(TickgraphError, match="did you mean 'body_mass'"):
        sim.field("body_mas")


def test_a_write_reaches_the_written_worlds_alone(backend):
    sim, _ = make(go2_scene(), backend=backend)
    sim.ctrl[:] = 0.3
    for _ in range(5):
        sim.advance_and_refresh(4)
    sim.stage_from_state()
    sim.staging_qpos[:, 0] += 1.0  # only world 2 is said to be written
    sim.staging_qvel[:, 1] = 0.5
    before = {name: sim.view(name).clone() for name in FRESH}
    sim.write_state(mask(0, 0, 1, 0), mask(0, 0, 0, 0))
    sim.refresh(mask(0, 0, 1, 0))
    for name in FRESH:
        same = (sim.view(name) == before[name]).flatten(1).all(dim=1).tolist()
        moved = name not in ("ctrl", "qacc", "actuator_force", "xquat", "site_xmat", "geom_xmat", "sensordata")
        assert same == [True, True, not moved, True], name
    torch.testing.assert_close(sim.view("xpos")[2, 2:, 0], before["xpos"][2, 2:, 0] + 1.0)
    assert sim.view("qvel")[2, 1] == 0.5


def test_a_push_keeps_what_it_does_not_change_in_full_precision(backend):
    quiet, _ = make(go2_scene(), backend=backend, num_envs=1)
    nudged, _ = make(go2_scene(), backend=backend, num_envs=1)
    for _ in range(10):
        for sim in (quiet, nudged):
            sim.ctrl[:] = 0.3
            sim.advance_and_refresh(4)
        nudged.stage_from_state()
        nudged.write_state(mask(1), mask(0))
        nudged.refresh(mask(1))
    for name, value in quiet.state_dict().items():
        assert (value == nudged.state_dict()[name]).all(), name


def test_nothing_written_touches_nothing(backend):
    sim, _ = make(ball_scene(), backend=backend, num_envs=2)
    sim.advance_and_refresh(1)
    before = {name: rows(sim, name) for name in FRESH}
    sim.staging_qpos.fill_(7.0)
    sim.write_state(mask(0, 0), mask(0, 0))
    sim.refresh(mask(0, 0))
    assert before == {name: rows(sim, name) for name in FRESH}


def test_a_restart_clears_forces_controls_and_time(backend):
    sim, _ = make(ball_scene(), backend=backend, num_envs=2)
    sim.ctrl.fill_(3.0)
    for _ in range(10):
        sim.advance_and_refresh(4)
    sim.staging_qpos.copy_(sim.default_qpos.expand(2, -1))
    sim.staging_qvel.zero_()
    sim.write_state(mask(1, 0), mask(1, 0))
    sim.refresh(mask(1, 0))
    assert sim.ctrl.tolist() == [[0.0], [3.0]]
    for name in ("qacc", "actuator_force"):
        assert (sim.view(name)[0] == 0).all() and (sim.view(name)[1] != 0).any(), name
    assert sim.view("sensordata")[0, :4].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(sim.view("sensordata")[0, 4:7], [0, 0, 0.05], atol=1e-7)
    inside = {name: torch.as_tensor(inner(sim, name)) for name in ("time", "qacc_warmstart", "ctrl")}
    assert inside["time"].tolist() == [0.0, pytest.approx(0.2)]
    assert (inside["qacc_warmstart"][0] == 0).all() and (inside["ctrl"][0] == 0).all()


@pytest.mark.parametrize("poison", ["huge", "nan", "inf"])
def test_an_explosion_stays_in_its_world_and_leaves_no_trace(poison, caplog):
    load_mujoco()
    sick, _ = make(go2_scene(), threads=2)
    sound, _ = make(go2_scene(), threads=2)
    value = {"huge": 1e30, "nan": float("nan"), "inf": float("inf")}[poison]
    noise = torch.Generator().manual_seed(1)
    for tick in range(30):
        ctrl = torch.randn(4, 12, generator=noise)
        for sim in (sick, sound):
            sim.ctrl.copy_(ctrl)
            sim.advance_and_refresh(4)
        if tick == 5:
            sick.stage_from_state()
            sick.staging_qvel[1] = value
            with caplog.at_level(logging.DEBUG, logger="tickgraph.mujoco"):
                sick.write_state(mask(0, 1, 0, 0), mask(0, 0, 0, 0))
                sick.refresh(mask(0, 1, 0, 0))
                sick.advance_and_refresh(4)
                sound.advance_and_refresh(4)
            assert any("unstable" in record.message for record in caplog.records)
            assert not (sick.view("qvel")[1].abs() < 1e10).all()
            assert (sick.view("qvel")[[0, 2, 3]] == sound.view("qvel")[[0, 2, 3]]).all()
            for sim in (sick, sound):
                sim.stage_from_state()
                sim.staging_qpos[1], sim.staging_qvel[1] = sim.default_qpos, 0.0
                sim.write_state(mask(0, 1, 0, 0), mask(0, 1, 0, 0))
                sim.refresh(mask(0, 1, 0, 0))
    for name in FRESH:
        assert rows(sick, name) == rows(sound, name), name
    assert sick.state_dict()["state"].numpy().tobytes() == sound.state_dict()["state"].numpy().tobytes()
    assert sum(sick.diagnostics()["warnings"].values()) > 0


def nine_balls(memory: str):
    """A scene with too little memory for nine balls that touch the ground."""
    from tickgraph.sim.model import Scene
    from tickgraph.sim.scene import EntityCfg, SceneCfg

    places = [f"{0.2 * (i % 3)} {0.2 * (i // 3)} 50" for i in range(9)]
    ball = '<freejoint/><geom size="0.05" mass="1"/></body>'
    balls = "".join(f'<body name="robot/b{i}" pos="{place}">{ball}' for i, place in enumerate(places))
    xml = f"<mujoco><size memory='{memory}'/><option><flag autoreset='disable'/></option><worldbody>"
    model = mujoco.MjModel.from_xml_string(f'{xml}<geom type="plane" size="0 0 1"/>{balls}</worldbody></mujoco>')
    return Scene(SceneCfg({"robot": EntityCfg("<mujoco/>")}), model)


def touch_down(sim, world: int) -> None:
    sim.stage_from_state()
    sim.staging_qpos[world].view(9, 7)[:, 2] = 0.049
    bits = torch.arange(sim.num_envs) == world
    sim.write_state(bits, bits)
    sim.refresh(bits)


def test_a_world_in_which_mujoco_raises_reads_as_not_finite_and_the_others_go_on():
    sim, _ = make(nine_balls("40K"), num_envs=2, views=("qpos",))
    touch_down(sim, 1)
    sim.advance_and_refresh(4)
    assert sim.view("qvel")[1].isnan().all() and sim.view("qvel")[0].isfinite().all()
    assert sim.view("qpos")[0, 2] < 50
    assert sim.diagnostics()["raised"] >= 1 and "stack overflow" in sim.diagnostics()["last_error"]
    sim.stage_from_state()
    sim.staging_qpos[1], sim.staging_qvel[1] = sim.default_qpos, 0.0
    sim.write_state(mask(0, 1), mask(0, 1))
    sim.refresh(mask(0, 1))
    sim.advance_and_refresh(4)
    assert sim.view("qvel").isfinite().all()


def test_lost_constraints_are_counted_also_after_a_restart():
    sim, _ = make(nine_balls("20K"), num_envs=2, views=("qpos",))
    assert sim.overflow() == {"contacts": 0, "constraints": 0}
    touch_down(sim, 1)
    sim.advance_and_refresh(1)
    count = sim.overflow()["constraints"]
    assert count > 0
    sim.staging_qpos[1], sim.staging_qvel[1] = sim.default_qpos, 0.0
    sim.write_state(mask(0, 1), mask(0, 1))
    sim.advance_and_refresh(1)
    assert sim.overflow()["constraints"] == count


@pytest.mark.parametrize("fields", [(), ("body_mass", "geom_friction", "opt.gravity")])
def test_a_new_backend_continues_to_the_bit(fields):
    scene = go2_scene()
    noise = torch.Generator().manual_seed(2)
    controls = torch.randn(40, 4, 12, generator=noise) * 0.5

    def play(sim, ticks):
        for tick in ticks:
            sim.ctrl.copy_(controls[tick])
            sim.advance_and_refresh(4)
        return {name: rows(sim, name) for name in FRESH} | {"state": sim.state_dict()["state"].numpy().tobytes()}

    first, _ = make(scene, fields=fields, threads=2)
    for name in fields:
        first.field(name)[1:3].mul_(1.3)
    first.stage_from_state()
    first.write_state(mask(1, 1, 1, 1), mask(1, 1, 1, 1))
    play(first, range(20))
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    middle = {name: rows(first, name) for name in ("qpos", "qvel", "xpos", "cvel")}
    expected = play(first, range(20, 40))
    again, _ = make(scene, fields=fields)
    again.load_state_dict(saved)
    assert middle == {name: rows(again, name) for name in middle}
    assert play(again, range(20, 40)) == expected
    first.load_state_dict(saved)
    assert play(first, range(20, 40)) == expected


def test_a_state_of_another_task_or_width_is_refused(backend):
    sim, _ = make(ball_scene(), backend=backend, num_envs=2)
    with pytest.raises(TickgraphError, match="differs in field/body_mass"):
        sim.load_state_dict(make(ball_scene(), backend=backend, num_envs=2, fields=("body_mass",))[0].state_dict())
    with pytest.raises(TickgraphError, match="as many worlds"):
        sim.load_state_dict(make(ball_scene(), backend=backend, num_envs=3)[0].state_dict())


def test_the_number_of_threads_changes_no_bit():
    results = []
    for threads in (1, 2):
        sim, _ = make(go2_scene(), num_envs=8, threads=threads)
        noise = torch.Generator().manual_seed(3)
        for tick in range(20):
            sim.ctrl.copy_(torch.randn(8, 12, generator=noise))
            sim.advance_and_refresh(4)
            if tick % 5 == 4:
                bits = torch.arange(8) % 3 == tick % 3
                sim.stage_from_state()
                sim.staging_qpos[:] = sim.default_qpos
                sim.write_state(bits, bits)
                sim.refresh(bits)
        results.append({name: rows(sim, name) for name in FRESH})
        assert sim.diagnostics()["threads"] == threads
    assert results[0] == results[1]


def test_a_field_differs_between_worlds_from_the_next_write_on(backend):
    sim, _ = make(ball_scene(), backend=backend, num_envs=3, fields=("body_mass", "actuator_gear"))
    mass, ball = sim.field("body_mass"), 2
    assert mass.shape == (3, 3) and mass[:, ball].tolist() == [1, 1, 1]
    mass[:, ball] = torch.tensor([1.0, 2.0, 4.0])
    sim.stage_from_state()
    sim.write_state(mask(1, 1, 0), mask(1, 1, 0))  # world 2 is not written yet
    sim.refresh(mask(1, 1, 0))
    sim.ctrl.fill_(0.01)
    sim.advance_and_refresh(1)
    speed = sim.view("qvel")[:, 0]
    np.testing.assert_allclose(speed[1] / speed[0], 0.5, rtol=1e-3)
    np.testing.assert_allclose(speed[2] / speed[0], 1.0, rtol=1e-3)
    derived = sim._batch.expanded if backend == "mujoco" else lambda name: getattr(sim._model, name).numpy()
    assert derived("body_subtreemass")[:, ball].tolist() == [1, 2, 1]  # what MuJoCo derives from the mass followed
    assert sim.default_field("body_mass")[ball] == 1


def test_a_registered_field_that_nobody_writes_changes_nothing_between_worlds(backend):
    sim, _ = make(go2_scene(), backend=backend, num_envs=2, fields=("body_mass", "dof_damping"))
    sim.ctrl.fill_(0.2)
    sim.stage_from_state()
    sim.write_state(mask(1, 0), mask(1, 0))
    sim.ctrl.fill_(0.2)
    for _ in range(10):
        sim.advance_and_refresh(4)
    assert (sim.view("qpos")[0] == sim.view("qpos")[1]).all()


def test_memory_stays_where_it_is(backend):
    sim, arena = make(go2_scene(), backend=backend)
    before = arena.pointers()
    for _ in range(5):
        sim.advance_and_refresh(2)
        sim.stage_from_state()
        sim.write_state(mask(1, 0, 1, 0), mask(1, 0, 0, 0))
        sim.refresh(mask(1, 0, 1, 0))
    assert arena.pointers() == before


def test_shapes_alone_for_the_judge(backend):
    scene = go2_scene()
    real, _ = make(scene, backend=backend, fields=("body_mass",))
    arena = Arena("meta")
    meta = make_backend(backend, scene, 4, "meta", arena)
    for name in FRESH:
        assert meta.view(name).shape == real.view(name).shape and meta.view(name).is_meta, name
    assert meta.field("body_mass").shape == real.field("body_mass").shape
    assert meta.default_field("body_mass").is_meta
    meta.advance_and_refresh(4)
    meta.stage_from_state()
    meta.write_state(torch.ones(4, dtype=torch.bool, device="meta"), torch.ones(4, dtype=torch.bool, device="meta"))
    with pytest.raises(TickgraphError, match="not fresh"):
        meta.view("qfrc_bias")


def test_wrong_requests():
    scene = ball_scene()
    assert "mujoco" in backends()
    with pytest.raises(TickgraphError, match="'mujco' is unknown; did you mean 'mujoco'"):
        make_backend("mujco", scene, 1, "cpu", Arena("cpu"))
    with pytest.raises(TickgraphError, match="threads is 0"):
        make_backend("mujoco", scene, 1, "cpu", Arena("cpu"), threads=0)
    with pytest.raises(TickgraphError, match="runs on device 'cpu', not on 'cuda"):
        make_backend("mujoco", scene, 1, "cuda", Arena("cpu"))


def test_mujoco_writes_no_file_and_logs_each_kind_of_warning_once(tmp_path, monkeypatch, caplog):
    from tickgraph.robots import mj

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mj, "_seen", set())
    sim, _ = make(ball_scene(), num_envs=8, threads=2)
    with caplog.at_level(logging.WARNING, logger="tickgraph.mujoco"):
        sim._live["qvel"][:] = np.nan
        sim.advance_and_refresh(2)
    kinds = {record.message.split(" at ")[0] for record in caplog.records}
    assert len(caplog.records) == len(kinds) > 0
    assert list(tmp_path.iterdir()) == []


def test_closing_frees_the_batch_and_keeps_the_views():
    sim, _ = make(ball_scene(), num_envs=1)
    sim.advance_and_refresh(1)
    height = float(sim.view("qpos")[0, 2])
    sim.close()
    sim.close()
    assert float(sim.view("qpos")[0, 2]) == height
