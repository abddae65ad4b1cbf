"""How long contact sensors have been in contact and in the air, step by step."""

import dataclasses
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch
from toys import alive

from tickgraph import mdp
from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import (
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.sensors import ContactTimes, Sensor
from tickgraph.sim.scene import EntityCfg, SceneCfg, SensorCfg, SolverCfg

BALL = """
<mujoco>
  <worldbody>
    <body name="ball" pos="0 0 0.1">
      <freejoint/>
      <geom name="ball" type="sphere" size="0.1" mass="1"/>
      <body name="weight">
        <joint name="weight" axis="0 0 1"/>
        <inertial pos="0 0 0" mass="0.1" diaginertia="1 1 1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="weight" joint="weight"/></actuator>
</mujoco>
"""


def sensor(times):
    env = SimpleNamespace(num_envs=1, step_dt=0.02, arena=Arena("cpu"), sim=None)
    cfg = SensorCfg("foot", "contact", "foot", track_air_time=times, force_threshold=2.0)
    return Sensor(env, "foot", 0, 4, cfg)


def test_a_phase_counts_the_step_on_which_it_ends():
    foot = sensor(times=True)
    rows = []
    for force in (3.0, 3.0, 2.0, 0.0, 3.0, 3.0, 0.0):  # 2 N is not above the threshold
        foot.memory.times.update([torch.tensor([[0.0, 0.0, force]])], 0.02)
        numbers = (foot.current_air_time, foot.last_air_time, foot.current_contact_time, foot.last_contact_time)
        rows.append([round(float(value) / 0.02) for value in numbers] + [bool(foot.first_contact)])
    assert rows == [
        [0, 0, 1, 0, False],  # it stands from the first step on: no landing
        [0, 0, 2, 0, False],
        [1, 0, 0, 3, False],
        [2, 0, 0, 3, False],
        [0, 3, 1, 3, True],
        [0, 3, 2, 3, False],
        [1, 3, 0, 3, False],
    ]


def test_substeps_count_one_by_one():
    times = ContactTimes(SimpleNamespace(num_envs=1, arena=Arena("cpu")), "foot", 1.0)
    rows = []
    for step in ((0, 0, 5, 5), (5, 0, 5, 0), (0, 0, 0, 5), (5, 0, 0, 0), (0, 5, 0, 5)):  # N in each substep of 5 ms
        times.update([torch.tensor([[0.0, 0.0, float(force)]]) for force in step], 0.005)
        numbers = (times.current_air, times.last_air, times.current_contact, times.last_contact)
        rows.append([round(float(value) / 0.005) for value in numbers] + [bool(times.landed)])
    assert rows == [
        [0, 3, 2, 0, True],  # a phase counts the substep on which it ends
        [1, 2, 0, 2, False],  # it landed between, and is in the air again
        [0, 5, 1, 2, True],
        [3, 5, 0, 3, False],
        [0, 2, 1, 2, True],
    ]


def test_a_reset_forgets_in_its_worlds_alone():
    env = SimpleNamespace(num_envs=2, arena=Arena("cpu"))
    times = ContactTimes(env, "foot", 1.0)
    for force in (0.0, 5.0, 0.0, 5.0):
        times.update([torch.tensor([[0.0, force, 0.0]] * 2)], 0.02)
    assert float(times.last_air[0]) > 0.0 and float(times.current_contact[0]) > 0.0
    before = times.last_air.clone(), times.last_contact.clone(), times.current_contact.clone()
    times.reset(torch.tensor([True, False]))
    for now, old in zip((times.last_air, times.last_contact, times.current_contact), before, strict=True):
        assert now.tolist() == [0.0, float(old[1])]


def ball(every_substep=False, **parts):
    names = {"sensor_names": ("ball",)}
    return EnvCfg(
        scene=SceneCfg(
            {"robot": EntityCfg(BALL)},
            timestep=0.005,
            solver=SolverCfg(cone="elliptic"),
            sensors=(
                SensorCfg(
                    *("ball", "contact", "ball"),
                    objtype="geom",
                    ref="terrain",
                    track_air_time=True,
                    every_substep=every_substep,
                ),
            ),
        ),
        decimation=4,
        episode_length_s=1.0,
        observations={"actor": ObservationGroupCfg({"air": ObservationTermCfg(mdp.foot_air_time, names)})},
        actions={"weight": mdp.JointEffortActionCfg()},
        rewards={
            "alive": RewardTermCfg(alive),
            "landing": RewardTermCfg(mdp.soft_landing, 1.0, names),
        },
        terminations={"time_out": TerminationTermCfg(mdp.time_out)},
        events={"throw": EventTermCfg(mdp.reset_root_state_uniform, params={"velocity_range": {"z": (1.0, 1.0)}})},
        **parts,
    )


def test_a_thrown_ball_flies_lands_and_begins_anew():
    env = Env(ball(), 2, execution="eager")
    foot = env.scene["ball"]
    air, landings = [], []
    for step in range(50):
        env.step(torch.zeros(2, 1))
        if step < 49:
            air.append(float(env.obs["actor"][0, 0]))
        landings.append(float(env.reward_manager.values[0, 1]))
    # At 1 m/s it is in the air for 2 v / g = 0.204 s: it touches at the end of step 11 (0.22 s) or, in the last substep
    # of it alone, one step later.
    touch = next(step for step, value in enumerate(landings) if value > 0.0)
    assert touch in (10, 11)
    assert air[:touch] == pytest.approx([0.02 * (step + 1) for step in range(touch)], abs=1e-6)
    assert air[touch] == 0.0
    assert sum(value > 0.0 for value in landings) == sum(
        a > 0.0 and b == 0.0 for a, b in zip(air, air[1:], strict=False)
    )
    # The last step ended the episode: in the new one nothing is known of the old.
    assert bool(env.truncated.all()) and env.obs["actor"].tolist() == [[0.0], [0.0]]
    assert foot.last_air_time.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("every_substep", [False, True])
def test_compiled_code_counts_the_same(every_substep):
    worlds = [Env(ball(every_substep), 2, execution=mode) for mode in ("eager", "compile")]
    for _ in range(14):
        for env in worlds:
            env.step(torch.zeros(2, 1))
        torch.testing.assert_close(worlds[0].obs["actor"], worlds[1].obs["actor"])
        torch.testing.assert_close(worlds[0].scene["ball"].forces, worlds[1].scene["ball"].forces)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("every_substep", [False, True])
def test_captured_ticks_count_the_same(every_substep):
    flown(every_substep, [("cuda", "eager"), ("cuda", "graph")])


@pytest.mark.parametrize("every_substep", [False, True])
def test_warps_contacts_count_as_mujocos(every_substep):
    pytest.importorskip("mujoco_warp")
    flown(every_substep, [("cpu", "eager")])


def flown(every_substep, runs):
    """Hold MuJoCo Warp's ball, thrown on a device in a mode, against MuJoCo's, until the episode has ended."""
    worlds = [Env(ball(every_substep), 2, device, "mjwarp", mode) for device, mode in runs]
    plain = Env(ball(every_substep), 2, execution="eager")
    landed = 0
    for step in range(50):
        for env in (plain, *worlds):
            env.step(torch.zeros(2, 1, device=env.device))
        landed += int(plain.reward_manager.values[0, 1] > 0.0)
        for env in worlds:
            what = f"{env.device} step {step}"
            for name in ("current_air_time", "last_air_time", "current_contact_time"):
                found, wanted = (getattr(one.scene["ball"], name).cpu() for one in (env, plain))
                torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0.0, msg=f"{what}: {name} {found} {wanted}")
            forces = env.scene["ball"].forces.cpu()
            assert torch.equal(forces != 0.0, plain.scene["ball"].forces != 0.0), what
    assert landed and bool(plain.truncated.all()) and all(bool(env.truncated.all()) for env in worlds)
    for env in worlds:
        env.close()


def test_a_sensor_that_looks_at_every_substep_has_what_mujoco_has_in_each():
    env = Env(ball(every_substep=True), 2, execution="eager")
    ball_sensor, info = env.scene["ball"], env.sim.scene.sensor("ball")
    model = env.sim.scene.mjmodel
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = env.sim.view("qpos")[0].numpy(), env.sim.view("qvel")[0].numpy()
    flights, air, seen = [], 0.0, 0
    for step in range(40):
        env.step(torch.zeros(2, 1))
        forces = []
        for _ in range(4):
            mujoco.mj_step(model, data)
            forces.append(data.sensordata[info.adr + 1 : info.adr + 4].copy())
            touches = np.linalg.norm(forces[-1]) > 1.0
            air += 0.005
            if touches:
                flights += [air] if air > 0.006 else []
                air = 0.0
            seen += touches
        np.testing.assert_allclose(ball_sensor.forces[0].numpy(), forces, rtol=1e-3, atol=1e-2, err_msg=str(step))
        assert torch.equal(ball_sensor.forces[:, -1], ball_sensor.force)
        assert float(ball_sensor.current_air_time[0]) == pytest.approx(air, abs=1e-5)
        if flights:
            assert float(ball_sensor.last_air_time[0]) == pytest.approx(flights[-1], abs=1e-5)
    assert flights and seen > 1
    assert [row["name"] for row in env.substep_manager.describe()] == ["_sensors"]
    while not bool(env.truncated.all()):
        env.step(torch.zeros(2, 1))
    assert not ball_sensor.forces.any()  # nothing is known of the episode that ended


def test_terms_read_sensors_of_both_kinds_beside_each_other():
    cfg = ball(every_substep=True)
    (looks,) = cfg.scene.sensors
    cfg.scene.sensors = (looks, dataclasses.replace(looks, name="last", every_substep=False))
    both = {"sensor_names": ("ball", "last")}
    cfg.rewards = {
        "touches": RewardTermCfg(mdp.undesired_contacts, 1.0, both),
        "forces": RewardTermCfg(mdp.contact_forces, 1.0, {"threshold": 1.0, **both}),
    }
    env, counted = Env(cfg, 2, execution="eager"), set()
    for _ in range(30):
        env.step(torch.zeros(2, 1))
        in_any, in_last = (
            torch.linalg.vector_norm(env.scene[name].forces, dim=-1).amax(dim=1) for name in ("ball", "last")
        )
        wanted = (in_any > 1.0).float() + (in_last > 1.0).float()
        over = (in_any - 1.0).clamp_min(0.0) + (in_last - 1.0).clamp_min(0.0)
        torch.testing.assert_close(env.reward_manager.values / env.step_dt, torch.stack((wanted, over), dim=1))
        counted |= set(wanted.tolist())
    assert {0.0, 2.0} <= counted


def test_a_sensor_that_counts_nothing_says_how_it_would():
    with pytest.raises(TickgraphError, match="'foot' does not count .* say track_air_time=True in its SensorCfg"):
        sensor(times=False).current_air_time  # noqa: B018
    cfg = ball()
    cfg.scene.sensors[0].track_air_time = False
    with pytest.raises(TickgraphError, match="observations/actor/air.*say track_air_time=True"):
        Env(cfg, 2, execution="eager")


def test_only_contacts_have_times():
    cfg = ball()
    cfg.scene.sensors = (*cfg.scene.sensors, SensorCfg("height", "framepos", "ball", "xbody", track_air_time=True))
    with pytest.raises(TickgraphError, match="sensors.* has track_air_time and kind 'framepos'"):
        Env(cfg, 2, execution="eager")
