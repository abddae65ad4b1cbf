"""MuJoCo Warp on its CPU device, where its arithmetic is the same as on a GPU: what is beyond the shared contract."""

import builtins
import contextlib
import copy

import mujoco
import numpy as np
import pytest
import torch
from sim_toys import ball_scene, go2_robot, go2_scene, make, slider_scene

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.robots.go2 import FOOT_GEOMS
from tickgraph.sim.backend import FRESH, make_backend
from tickgraph.sim.model import Scene, build_scene
from tickgraph.sim.scene import CapacityCfg, EntityCfg, SceneCfg, SensorCfg

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def mask(*bits: int, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.bool, device=device)


def copies(sim, names=FRESH) -> dict[str, torch.Tensor]:
    return {name: sim.view(name).clone() for name in names}


def test_views_are_those_of_the_new_state_and_forces_those_of_the_last_substep(device):
    """As plain MuJoCo has them: after 8 substeps from one state, within float32 and the solver's tolerance."""
    scene = go2_scene()
    sim, _ = make(scene, num_envs=3, backend="mjwarp", device=device)
    plain = mujoco.MjData(scene.mjmodel)
    plain.qpos[:] = np.float32(scene.default_qpos)
    home = scene.entity("robot").default_joint_pos[scene.entity("robot").actuator_joint]
    ctrl = np.float32(home + 0.1 * np.arange(12) - 0.5)
    sim.ctrl[1] = torch.from_numpy(ctrl)
    plain.ctrl[:] = ctrl
    for _ in range(2):
        sim.advance_and_refresh(4)
    mujoco.mj_step(scene.mjmodel, plain, nstep=8)
    last = {name: np.array(getattr(plain, name)) for name in ("qacc", "actuator_force", "sensordata")}
    mujoco.mj_forward(scene.mjmodel, plain)
    for name in FRESH:
        expected = np.array(last[name] if name in ("qacc", "actuator_force") else getattr(plain, name))
        if name == "sensordata":
            expected = np.where(scene.last_substep_columns, last[name], expected)
        view = sim.view(name)[1].cpu().numpy()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(view, expected.reshape(view.shape), atol=2e-4 * scale, err_msg=name)
    assert (sim.view("sensordata")[1, 3:] != 0).any()  # feet were on the ground


def test_a_step_leaves_out_what_the_refresh_has_computed_and_keeps_every_number(device, monkeypatch):
    sims = [make(go2_scene(), num_envs=3, backend="mjwarp", device=device)[0] for _ in range(2)]
    monkeypatch.setattr(sims[1], "_known_positions", contextlib.nullcontext)
    calls = []
    for sim in sims:
        sim.ctrl[1] = 0.3
        sim.stage_from_state()
        sim.staging_qvel[2] = 1.0
        sim.write_state(mask(0, 0, 1, device=device), mask(0, 0, 0, device=device))
        sim.refresh(mask(0, 0, 1, device=device))
        with monkeypatch.context() as counted:
            for name in ("kinematics", "com_pos", "com_vel"):
                run = getattr(sim._smooth, name)
                counted.setattr(sim._smooth, name, lambda *a, name=name, run=run: (calls.append(name), run(*a)))
            sim.advance_and_refresh(2 if device == "cpu" else 1)
        if device == "cpu":
            sim.advance_and_refresh(3)
        calls.append("end")
    short, whole = calls[: calls.index("end")], calls[calls.index("end") + 1 : -1]
    assert len(whole) == len(short) + 3 and set(whole) == {"kinematics", "com_pos", "com_vel"}
    for name in FRESH:
        left_out, computed = (sim.view(name) for sim in sims)
        if device == "cpu":
            assert torch.equal(left_out, computed), name
        else:  # where an atomic counter numbers contacts, so that sums over them may round otherwise in each run
            scale = max(1.0, computed.abs().max().item())
            torch.testing.assert_close(
                left_out, computed, rtol=0.0, atol=1e-4 * scale, msg=lambda text, n=name: n + text
            )


@pytest.mark.parametrize("reader", ["nobody", "a term", "a sensor"])
def test_the_refresh_behind_a_step_leaves_to_the_next_step_what_only_that_reads(reader, monkeypatch):
    feet = (SensorCfg("place", "framepos", FOOT_GEOMS[0], "geom"),) if reader == "a sensor" else ()
    scene = build_scene(SceneCfg({"robot": go2_robot()}, sensors=feet))
    read = ("qpos", "qvel", "xpos", "cvel", "sensordata", *(("geom_xpos",) if reader == "a term" else ()))
    sims = [make(scene, num_envs=3, backend="mjwarp", views=read)[0] for _ in range(2)]
    monkeypatch.setattr(sims[1], "_step_alone", [])
    nobody, second = mask(0, 0, 0), mask(0, 1, 0)
    seen, launched = [], []
    for sim in sims:
        with monkeypatch.context() as counted:
            launch = sim._smooth.wp.launch

            def count(kernel, *args, launch=launch, **options):
                launched.append(kernel.key)
                launch(kernel, *args, **options)

            counted.setattr(sim._smooth.wp, "launch", count)
            for again in range(2):
                sim.ctrl[1] = 0.3
                sim.advance_and_refresh(2)
                seen.append(copies(sim, read))
                sim.advance_and_refresh(1)  # no refresh came in between
                seen.append(copies(sim, read))
                sim.staging_qvel[:] = 1.0 + again
                sim.write_state(second, nobody)
                sim.refresh(second)
                seen.append(copies(sim, read))
        launched.append("end")
    short, whole = launched[: launched.index("end")], launched[launched.index("end") + 1 :]
    # Of the four refreshes behind a step two are followed by a refresh of all, and two by a step.
    assert whole.count("_cinert") - short.count("_cinert") == 2
    assert whole.count("_geom_local_to_global") - short.count("_geom_local_to_global") == (reader == "nobody") * 2
    for mine, full in zip(seen[:6], seen[6:], strict=True):
        assert all(torch.equal(mine[name], full[name]) for name in read)


def test_whatever_was_played_a_replay_begins_with_nothing_left_out(device):
    """A replay runs no Python that could ask: played here as where graphs are replayed, on a CPU by its own methods."""
    sim, _ = make(go2_scene(), num_envs=3, backend="mjwarp", views=("qpos",), device=device)
    sim._leaves_out = False
    nobody, second, read = mask(0, 0, 0, device=device), mask(0, 1, 0, device=device), sim._wp.to_torch
    stream = torch.cuda.Stream() if device == "cuda" else None
    enqueued = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)

    def left_out() -> bool:
        arrays = [read(array) for array in (sim._data.cinert, sim._data.geom_xpos)]
        before = [array.clone() for array in arrays]
        sim.refresh(nobody)
        return not all(map(torch.equal, arrays, before))

    def tick() -> None:
        sim.advance_and_refresh(1)
        sim.advance_and_refresh(1)
        sim.stage_from_state()
        sim.staging_qpos[:, 2] += 0.1
        sim.write_state(second, nobody)
        sim.refresh(second)

    def scoped(play):
        def run() -> None:
            with sim.capture_scope(stream):
                play()

        return run

    def step() -> None:
        sim.advance_and_refresh(1)

    pieces = [step, scoped(tick), step, scoped(step), tick, scoped(step), step]
    with enqueued:
        if device == "cuda":
            for play in (tick, step):
                scoped(play)()
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    scoped(play)()
                pieces += [graph.replay, graph.replay, step, graph.replay]
        for number, piece in enumerate(pieces):
            piece()
            assert not left_out(), number
        with sim.capture_scope(stream):  # within, something is
            step()
            inside = read(sim._data.cinert).clone()
        assert not torch.equal(inside, read(sim._data.cinert)) and not left_out()


def test_a_view_of_geoms_that_is_declared_behind_a_step_is_of_its_state():
    sim = make_backend("mjwarp", go2_scene(), 2, "cpu", Arena("cpu"))
    places = sim._wp.to_torch(sim._data.geom_xpos)
    sim.ctrl[:] = 0.3
    sim.advance_and_refresh(5)
    stale = places.clone()
    view = sim.view("geom_xpos").clone()
    sim.refresh(mask(0, 0))
    assert torch.equal(view, sim.view("geom_xpos")) and not torch.equal(view, stale)


def test_a_refresh_of_all_worlds_gives_unwritten_ones_the_same_bytes(device):
    sim, _ = make(go2_scene(), backend="mjwarp", device=device)
    sim.ctrl[:] = 0.3
    for _ in range(5):
        sim.advance_and_refresh(4)
    before = copies(sim)
    nobody = mask(0, 0, 0, 0, device=device)
    sim.refresh(nobody)
    for name in FRESH:
        assert torch.equal(sim.view(name), before[name]), name


@pytest.mark.parametrize("scene", [go2_scene, pytest.param("g1", id="g1, sparse Jacobian")])
@pytest.mark.parametrize("poison", [1e30, float("nan"), float("inf")])
def test_an_explosion_stays_in_its_world_and_leaves_no_trace(scene, poison):
    """A world that held a NaN goes on, once restarted, bit for bit like one that never did."""
    sims = []
    for _ in range(2):
        sims.append(make(g1_scene() if scene == "g1" else scene(), backend="mjwarp", num_envs=3)[0])
    sick, sound = sims
    noise = torch.Generator().manual_seed(1)
    for tick in range(12):
        ctrl = 0.3 * torch.randn(3, sick.scene.nu, generator=noise)
        for sim in sims:
            sim.ctrl.copy_(ctrl)
            sim.advance_and_refresh(3)
        if tick == 5:
            sick.stage_from_state()
            sick.staging_qvel[1] = poison
            sick.write_state(mask(0, 1, 0), mask(0, 0, 0))
            sick.refresh(mask(0, 1, 0))
            sick.advance_and_refresh(3)
            sound.advance_and_refresh(3)
            assert not (sick.view("qvel")[1].abs() < 1e10).all()
            assert torch.equal(sick.view("qvel")[[0, 2]], sound.view("qvel")[[0, 2]])
            for sim in sims:
                sim.stage_from_state()
                sim.staging_qpos[1], sim.staging_qvel[1] = sim.default_qpos, 0.0
                sim.write_state(mask(0, 1, 0), mask(0, 1, 0))
                sim.refresh(mask(0, 1, 0))
    for name in FRESH:
        assert torch.isfinite(sick.view(name)).all(), name
        assert torch.equal(sick.view(name), sound.view(name)), name
    assert sum(sick.overflow().values()) == 0


def g1_scene() -> Scene:
    from tickgraph.tasks.registry import load

    return build_scene(load("g1_walk_flat").env.scene)


def test_a_new_backend_continues_to_the_bit():
    scene, names = go2_scene(), ("body_mass", "geom_friction", "opt.gravity")
    noise = torch.Generator().manual_seed(2)
    controls = 0.5 * torch.randn(20, 4, 12, generator=noise)

    def play(sim, ticks):
        for tick in ticks:
            sim.ctrl.copy_(controls[tick])
            sim.advance_and_refresh(4)
        return copies(sim)

    first, _ = make(scene, fields=names, backend="mjwarp")
    for name in names:
        first.field(name)[1:3].mul_(1.3)
    first.stage_from_state()
    first.write_state(mask(1, 1, 1, 1), mask(1, 1, 1, 1))
    play(first, range(10))
    saved, middle = first.state_dict(), copies(first, ("qpos", "qvel", "xpos", "cvel"))
    expected = play(first, range(10, 20))
    again, _ = make(scene, fields=names, backend="mjwarp")
    again.load_state_dict(saved)
    for name, value in middle.items():
        assert torch.equal(again.view(name), value), name
    for name, value in play(again, range(10, 20)).items():
        assert torch.equal(value, expected[name]), name


def test_masses_of_a_world_bring_their_derived_values_along():
    """Inverse weights and subtree masses are those of MuJoCo's own mj_setConst on a model with these masses."""
    scene = go2_scene()
    names = ("body_mass", "body_inertia", "body_ipos", "dof_armature")
    sim, _ = make(scene, num_envs=2, backend="mjwarp", fields=names)
    model = copy.copy(scene.mjmodel)
    model.body_mass[2:] *= np.linspace(0.7, 1.6, model.nbody - 2)
    model.body_inertia[2:] *= np.linspace(1.5, 0.6, model.nbody - 2)[:, None]
    model.body_ipos[2:] += 0.02
    model.dof_armature[6:] *= 2.0
    for name in names:
        sim.field(name)[1] = torch.from_numpy(np.array(getattr(model, name)))
    mujoco.mj_setConst(model, mujoco.MjData(model))
    sim.stage_from_state()
    sim.write_state(mask(0, 1), mask(0, 1))
    for name in ("body_subtreemass", "body_invweight0", "dof_invweight0"):
        for world, expected in enumerate((scene.mjmodel, model)):
            given = getattr(sim._model, name).numpy()[world]
            np.testing.assert_allclose(given, getattr(expected, name), rtol=2e-4, atol=1e-6, err_msg=name)
    assert not np.allclose(model.body_invweight0, scene.mjmodel.body_invweight0, rtol=0.1)


def test_a_field_that_cannot_differ_is_refused_when_it_is_asked_for():
    with pytest.raises(TickgraphError, match="its own 'geom_size'.*it has .*actuator_biasprm"):
        make(ball_scene(), backend="mjwarp", fields=("geom_size",))


@pytest.mark.parametrize("count", [2, 9], ids=["dense", "sparse"])
def test_rows_of_a_diverged_world_do_not_haunt_it_after_a_restart(count):
    """A ball at minus infinity is in contact, and leaves what is not finite in rows that are later multiplied by 0."""
    sick, sound = (make(nine_balls(count, nconmax=16, njmax=64), num_envs=2, backend="mjwarp")[0] for _ in range(2))
    for sim in (sick, sound):
        sim.advance_and_refresh(2)
    sick.stage_from_state()
    sick.staging_qpos[1].view(count, 7)[:, 2] = -float("inf")
    sick.write_state(mask(0, 1), mask(0, 0))
    sick.advance_and_refresh(1)
    sound.advance_and_refresh(1)
    assert not torch.isfinite(sick.view("qpos")[1]).all()
    for sim in (sick, sound):  # all but one ball start high up, so that fewer rows are in use than before
        sim.stage_from_state()
        sim.staging_qpos[1], sim.staging_qvel[1] = sim.default_qpos, 0.0
        sim.staging_qpos[1].view(count, 7)[1:, 2] = 5.0
        sim.write_state(mask(0, 1), mask(0, 1))
        sim.refresh(mask(0, 1))
        sim.advance_and_refresh(5)
    for name in FRESH:
        assert torch.isfinite(sick.view(name)).all(), name
        assert torch.equal(sick.view(name), sound.view(name)), name


def nine_balls(count: int = 9, **capacity: int) -> Scene:
    """Balls on a grid that touch the ground: of nine, 9 contacts and 36 rows in every world."""
    places = [f"{0.2 * (i % 3)} {0.2 * (i // 3)} 0.049" for i in range(count)]
    ball = '<freejoint/><geom size="0.05" mass="1"/></body>'
    balls = "".join(f'<body name="b{i}" pos="{place}">{ball}' for i, place in enumerate(places))
    robot = EntityCfg(f"<mujoco><worldbody>{balls}</worldbody></mujoco>")
    return build_scene(SceneCfg({"robot": robot}, timestep=0.002, capacity=CapacityCfg(**capacity)))


def play_a_second(scene: Scene, device: str, aloft: bool = False):
    sim, _ = make(scene, num_envs=4, backend="mjwarp", views=("qpos",), device=device)
    if aloft:  # in the last world all balls but the first start 50 m up
        sim.stage_from_state()
        sim.staging_qpos[3].view(9, 7)[1:, 2] = 50.0
        sim.write_state(*2 * [mask(0, 0, 0, 1, device=device)])
        sim.refresh(mask(0, 0, 0, 1, device=device))
    for _ in range(50):
        sim.advance_and_refresh(10)
    return sim


@pytest.mark.parametrize(
    ("capacity", "aloft", "limit", "option", "need"),
    [
        ({"nconmax": 4, "njmax": 64}, False, "contacts", "nconmax", 9),
        ({"nconmax": 64, "njmax": 20}, False, "constraints", "njmax", 36),
        ({"nconmax": 4, "njmax": 64}, True, "contacts", "nconmax", 9),
    ],
    ids=["a pool for 4 of 9", "20 of 36 rows", "a world that shares the pool"],
)
def test_too_small_a_capacity_is_counted_and_following_the_advice_helps(
    capacity, aloft, limit, option, need, device, capfd
):
    sim = play_a_second(nine_balls(**capacity), device, aloft)
    counts, advice = sim.overflow(), sim.overflow_advice()
    assert counts[limit] > 0 and [name for name, count in counts.items() if count] == [limit]
    assert sim.overflow_counts().tolist() == list(counts.values())
    [line] = advice
    assert line.startswith(f"{limit}: ") and f"scene.capacity.{option} to " in line
    assert str(capacity[option]) in line and str(need) in line, line
    raised = int(line.rpartition(" ")[2])
    assert raised >= need
    if limit == "contacts":  # the pool is everybody's, so that a world that needed little of it is counted too
        assert counts[limit] % 4 == 0
    out, err = capfd.readouterr()
    assert "overflow" not in out + err  # MuJoCo Warp prints a line per world and step unless told not to
    again = play_a_second(nine_balls(**{**capacity, option: raised}), device, aloft)
    assert sum(again.overflow().values()) == 0 and again.overflow_advice() == []
    heights = again.view("qpos").view(4, 9, 7)[:3, :, 2]
    assert ((heights - 0.05).abs() < 0.002).all()


def test_enough_capacity_gives_no_false_alarm(device):
    sim = play_a_second(nine_balls(nconmax=64, njmax=64), device)
    assert sum(sim.overflow().values()) == 0 and sim.overflow_advice() == []
    needed = sim.diagnostics()["needed"]
    assert needed["contacts_of_one"] == 9 and needed["constraints_of_one"] == 36


def test_the_views_are_the_engines_own_memory(device):
    sim, arena = make(go2_scene(), backend="mjwarp", device=device)
    for name in FRESH:
        assert getattr(sim._data, name).ptr == arena[f"sim/{name}"].data_ptr(), name
    before = sim.pointers()
    assert before["data.qpos"] == arena["sim/qpos"].data_ptr() and "model.body_mass" in before
    for _ in range(3):
        sim.advance_and_refresh(2)
        sim.stage_from_state()
        sim.write_state(mask(1, 0, 1, 0, device=device), mask(1, 0, 0, 0, device=device))
        sim.refresh(mask(1, 0, 1, 0, device=device))
    assert sim.pointers() == before


def test_the_scenes_own_model_is_left_as_it_was():
    scene = slider_scene()
    flags = int(scene.mjmodel.opt.disableflags)
    make(scene, backend="mjwarp", views=())
    assert int(scene.mjmodel.opt.disableflags) == flags
    assert flags & int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)


def test_what_it_cannot_do_is_refused_in_one_line(monkeypatch):
    sensor = "<sensor><actuatorpos name='length' actuator='push'/></sensor></mujoco>"
    scene = ball_scene()
    xml = scene.cfg.entities["robot"].model.replace("</mujoco>", sensor)
    with pytest.raises(TickgraphError, match="sensor 'robot/length' .actuatorpos. is not refreshed"):
        make(build_scene(SceneCfg({"robot": EntityCfg(xml)})), backend="mjwarp")
    pgs = ball_scene()
    pgs.mjmodel.opt.solver = mujoco.mjtSolver.mjSOL_PGS
    with pytest.raises(TickgraphError, match="MuJoCo Warp cannot run this scene: mjSOL_PGS is unsupported"):
        make(pgs, backend="mjwarp")
    if not torch.cuda.is_available():
        with pytest.raises(TickgraphError, match="device 'cuda:1' is not there: torch finds 0 usable GPUs"):
            make_backend("mjwarp", scene, 1, "cuda:1", Arena("cpu"))

    real = builtins.__import__

    def absent(name, *rest, **more):
        if name.partition(".")[0] == "mujoco_warp":
            raise ModuleNotFoundError("No module named 'mujoco_warp'", name="mujoco_warp")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TickgraphError, match=r"pip install -e '.*\[gpu\]'") as caught:
        make_backend("mjwarp", scene, 1, "cpu", Arena("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("scene", [go2_scene, g1_scene])
def test_a_captured_tick_does_what_an_eager_one_does(scene):
    """Physics, write and refresh in one CUDA graph; contacts are found in another order, so not to the bit."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    sims = [make(scene(), backend="mjwarp", num_envs=64, device="cuda")[0] for _ in range(2)]
    written = [torch.zeros(64, dtype=torch.bool, device="cuda") for _ in sims]

    def tick(i: int) -> None:
        sim = sims[i]
        sim.advance_and_refresh(3)
        sim.stage_from_state()
        sim.staging_qpos.copy_(torch.where(written[i][:, None], sim.default_qpos, sim.staging_qpos))
        sim.write_state(written[i], written[i])
        sim.refresh(written[i])

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), sims[1].capture_scope(stream):
        tick(1), tick(1)
    torch.cuda.synchronize()
    with (
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        sims[1].capture_scope(stream),
    ):
        tick(1)
    tick(0), tick(0)
    for step in range(6):
        for mask_ in written:
            mask_.fill_(False)
            mask_[step::7] = True
        torch.cuda.synchronize()
        tick(0)
        graph.replay()
        torch.cuda.synchronize()
    assert torch.isfinite(sims[1].view("qpos")).all()
    close = (sims[0].view("qpos") - sims[1].view("qpos")).abs().amax(dim=1) < 1e-3
    assert close.float().mean() > 0.9
    assert torch.equal(sims[0].view("qpos")[written[0]], sims[1].view("qpos")[written[1]])
