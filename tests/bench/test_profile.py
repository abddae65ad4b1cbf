"""The profile: it plays the tick that it times, names what would cost a GPU dear, and knows the stages of physics."""

import json
from pathlib import Path

import pytest
import torch

from tickgraph.bench import _profile as profile
from tickgraph.bench import _stages as stages
from tickgraph.bench._case import Case, build
from tickgraph.bench._sites import Watch
from tickgraph.bench._trace import _exported, parse
from tickgraph.cli import main
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import ObservationTermCfg, RewardTermCfg
from tickgraph.tasks.registry import load

TASK = "cartpole_swingup"
CASE = Case(TASK, 8, execution="eager", physics_threads=1)


def event(name, category, ts, dur, correlation=-1):
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "args": {"correlation": correlation}}


@pytest.mark.parametrize("name", [TASK, "go2_walk_flat"])
def test_a_profiled_tick_is_the_tick(name):
    made = build(load(name), Case(name, 8, execution="eager", physics_threads=1))
    start = made.state()
    for _ in range(5):
        made.env.tick()
    plain = made.state()
    made.load(start)
    marks = profile.Marks(cuda=False)
    player = profile.Player(made.env, marks)
    for _ in range(5):
        player()
    assert all(torch.equal(plain[key], value) for key, value in made.state().items())
    taken = marks.take()
    assert set(taken) <= set(profile.PARTS) and min(taken.values()) > 0
    assert {"act", "act/words", "physics", "restart/draws", "restart/values", "restart/write", "observe"} <= set(taken)
    made.env.close()


def test_a_stretch_within_another_is_not_part_of_it(monkeypatch):
    clock = iter([0, 1_000_000, 4_000_000, 10_000_000])
    monkeypatch.setattr(profile.time, "perf_counter_ns", lambda: next(clock))
    marks = profile.Marks(cuda=False)
    with marks("outer"), marks("inner"):
        pass
    assert marks.take() == {"outer": 7.0, "inner": 3.0}
    assert marks.take() == {}


def waits_and_moves(env):
    speed = env.scene["robot"].data.joint_vel
    if float(speed[0, 0]) > 1e9:  # a value that is read on the host
        return speed[:, 0]
    return speed[:, 0] + speed[speed > 1e9].sum()  # a shape that depends on values


def looked_up(env, rows):
    return env.scene["robot"].data.joint_vel[:, rows]  # whole numbers: the shape is known


def test_what_waits_is_named_with_its_place():
    task = load(TASK)
    task.env.rewards["bad"] = RewardTermCfg(waits_and_moves, 1.0)
    rows = torch.tensor([0])
    task.env.observations["actor"].terms["fine"] = ObservationTermCfg(looked_up, {"rows": rows})
    env = build(task, CASE).env
    rows = profile.sites(env, profile.Player(env, profile.Marks(cuda=False)))
    waits = [row for row in rows if row["kind"] == "synchronisation" and row["inside"]]
    line = waits_and_moves.__code__.co_firstlineno
    assert sorted(int(row["place"].rpartition(":")[2]) - line for row in waits) == [2, 4]
    assert all(row["place"].startswith(__file__) and row["per_tick"] == 1 for row in waits)
    assert any(row["kind"] == "synchronisation" and not row["inside"] for row in rows), "a log point reads the device"
    breaks = [row for row in rows if row["kind"] == "graph break"]
    called = {row["what"].split(" ")[0] for row in breaks if "backend" in row["what"]}
    assert called == {"sim.advance_and_refresh", "sim.write_state", "sim.refresh"}
    assert any("rewards/bad" in row["what"] for row in breaks)
    env.close()


def test_new_tensors_are_allocations_and_views_are_not():
    values = torch.zeros(4, 8)
    with Watch() as watch:
        values[1:].t().add_(1.0)
        values + 1.0
    (site,) = watch.sites.values()
    assert (site.kind, site.count, site.bytes, site.inside) == ("allocation", 1, 128, True)


def test_device_work_belongs_to_the_innermost_part():
    trace = parse(
        [
            event("restart/values", "user_annotation", 10, 20),
            event("restart/draws", "user_annotation", 14, 4),
            event("cudaLaunchKernel", "cuda_runtime", 11, 1, 1),
            event("cudaLaunchKernel", "cuda_runtime", 15, 1, 2),
            event("cudaStreamSynchronize", "cuda_runtime", 20, 1, 3),
            event("cudaLaunchKernel", "cuda_runtime", 50, 1, 4),
            event("philox", "kernel", 60, 7, 2),
            event("where", "kernel", 70, 9, 1),
        ]
    )
    parts = profile.by_part(trace)
    assert [work.name for work in parts["restart/draws"].work] == ["philox"]
    assert [work.name for work in parts["restart/values"].work] == ["where"]
    assert parts["restart/values"].kinds() == {"kernel launch": 1, "synchronisation": 1}


MODULES = {
    "_linesearch_iterative_kernel": "solver", "_kinematics_branch": "smooth", "_next_position": "forward",
    "_actuator_force": "forward", "ccd_kernel_builder": "collision_convex", "_efc_contact": "constraint",
    "_sensor_pos": "sensor", "_cfrc": "smooth", "_crb_subtree": "smooth",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "stage"),
    [
        ("_linesearch_iterative_kernel__locals__kernel_0a1b2c3d_cuda_kernel_forward", "solver"),
        ("_kinematics_branch_0a1b2c3d_cuda_kernel_forward", "kinematics"),
        ("_next_position_0a1b2c3d_cuda_kernel_forward", "integration"),
        ("_actuator_force_0a1b2c3d_cuda_kernel_forward", "actuation"),
        ("ccd_kernel_builder__locals__ccd_kernel_0a1b2c3d_cuda_kernel_forward", "collision"),
        ("_efc_contact_0a1b2c3d_cuda_kernel_forward", "constraint"),
        ("_sensor_pos_0a1b2c3d_cuda_kernel_forward", "sensors"),
        ("_cfrc_0a1b2c3d_cuda_kernel_forward", "velocity"),
        ("_crb_subtree_0a1b2c3d_cuda_kernel_forward", "inertia"),
        ("triton_poi_fused_add_0", "other"),
    ],
)
def test_kernels_belong_to_stages(kernel, stage):
    assert stages.stage_of(kernel, MODULES) == stage


def test_mujocos_own_timers_share_out_its_steps():
    env = build(load("go2_walk_flat"), Case("go2_walk_flat", 4, execution="eager", physics_threads=1)).env
    before = env.state_dict()
    shares = stages.mujoco_stages(env)
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0
    assert shares["collision"] > 0 and shares["solver"] > 0
    assert all(torch.equal(before[name], value) for name, value in env.state_dict().items())
    env.close()


def test_names_are_drawn_and_shown_as_they_are(tmp_path, capsys):
    file = tmp_path / "a[b] $x^{2$.py"
    file.write_text("from tickgraph.tasks.cartpole import cartpole_swingup\ntask = lambda: cartpole_swingup()\n")
    assert main(["profile", f"{file}:task", "--num-envs=2", "--ticks=1", f"--out={tmp_path / 'o'}"]) == 0
    assert capsys.readouterr().out.startswith("a[b] $x^{2$.task, 2 worlds")
    assert (tmp_path / "o" / "profile.png").read_bytes().startswith(b"\x89PNG")


class Profiler:
    """Writes a trace as torch does where the disk gets full: a part of it under another name, and no word."""

    def export_chrome_trace(self, path):
        Path(f"{path}.tmp").write_text('{"traceEvents": [')


def test_a_trace_that_cannot_be_kept_is_one_line(tmp_path):
    kept = tmp_path / "trace.json"
    kept.write_text('{"traceEvents": []}')  # of an earlier profile: not to be taken for this one's
    with pytest.raises(TickgraphError, match="trace.json: the profiler's trace is not whole; is the disk full, or"):
        _exported(Profiler(), kept)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_the_command_writes_tables_picture_and_trace(tmp_path, capsys):
    out, copy = tmp_path / "here", tmp_path / "copy.json"
    words = f"profile {TASK} --num-envs 8 --ticks 3 --backend mujoco --out {out} --json {copy}".split()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "physics by stage" in shown and "restart/write" in shown and "graph break" in shown
    value = json.loads((out / "profile.json").read_text())
    assert sum(row["share"] for row in value["parts"]) == pytest.approx(1.0)
    assert value["parts"] == sorted(value["parts"], key=lambda row: -row["mean_ms"]) and value["clock"] == "host"
    assert json.loads(copy.read_text())["parts"] == value["parts"] and value["commit"] is not None
    assert (out / "profile.png").read_bytes().startswith(b"\x89PNG")
    names = {row.get("name") for row in json.loads((out / "trace.json").read_text())["traceEvents"]}
    assert {"act", "physics", "restart/draws"} <= names
