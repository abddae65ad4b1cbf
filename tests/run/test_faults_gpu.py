"""Faults as a user meets them: a command line in a process of its own, what it says, and what it leaves behind.

On a GPU as a graph; on the CPU, with MuJoCo Warp on its CPU device and eager, as far as there is something to see. The
processes of a device run side by side. Programs are not compiled: compiling changes none of what is asked here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fault_tasks
import pytest
import torch
import torch._dynamo

import tickgraph
from tickgraph import cli
from tickgraph.bench._proof import OWN_CONTEXT, device_memory
from tickgraph.core.errors import TickgraphError
from tickgraph.core.graph import DEBUG
from tickgraph.env.env import Env
from tickgraph.run import checkpoint, manifest
from tickgraph.run.folder import RunFolder
from tickgraph.tasks.cartpole import cartpole_swingup

FILE = Path(fault_tasks.__file__)
WORLDS = 16
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SMALL = (
    "--backend mjwarp --num-envs 16 --iterations 30 --env.episode-length-s 0.2 "
    "--no-video --evaluation.no-untrained --evaluation.episodes 2 "
    "--train.replay-slots 64 --train.learning-starts 5 --train.log-interval 1 --train.checkpoint-interval 1000 "
    "--train.learner-kernels torch --train.algo.batch-size 16 --train.algo.actor-width 8 --train.algo.critic-width 8"
).split()
# Random actions and no episode that ends by itself.
ALIKE = (
    "--train.learning-starts 1000 --iterations 40 --train.no-stagger --env.episode-length-s 10 "
    "--evaluation.episode-s 0.2 --evaluation.ignore-s 0"
).split()
FEW = ("--num-envs", "4", "--iterations", "12")
# By name: what is asked for by name and cannot be had is refused. On a CPU nothing but eager can be had here.
NAMED = {"cpu": "compile", "cuda": "graph"}
SECONDS = 300.0


@dataclass
class Case:
    """One command: the task's function in FILE, whether the mode is asked for by name, more words, variables."""

    task: str
    words: tuple[str, ...] = ()
    named: bool = False
    environ: dict[str, str] = field(default_factory=dict)


BOTH = {
    "sound": Case("sound", tuple(ALIKE)),
    "poisoned": Case("poisoned", tuple(ALIKE)),
    "waits, refused": Case("waits_openly", named=True),
    "waits": Case("waits_openly"),
    "counts, refused": Case("counts_openly", named=True),
    "few contacts": Case("nine_balls", (*FEW, "--env.scene.capacity.nconmax", "4")),
    "few rows": Case("nine_balls", (*FEW, "--env.scene.capacity.njmax", "20")),
    "huge replay": Case("sound", ("--train.replay-slots", "100000000000")),
}
ON_GPU = {
    "hidden wait, refused": Case("waits_hidden", named=True),
    "hidden wait": Case("waits_hidden"),
    "illegal, refused": Case("illegal", named=True),
    "illegal": Case("illegal"),
    "swapped": Case("swapped", environ={DEBUG: "1"}),
}


class Command:
    """A `tickgraph train` in a process and a folder of its own."""

    def __init__(self, folder: Path, device: str, case: Case) -> None:
        folder.mkdir(parents=True)
        self.folder, self.mark = folder, uuid.uuid4().hex
        mode = NAMED[device] if case.named else "auto"
        words = [f"{FILE}:{case.task}", "--device", device, "--execution", mode, *SMALL, *case.words]
        environ = {"TICKGRAPH_TEST_MARK": self.mark, "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        source = str(Path(tickgraph.__file__).parents[1])  # also where it is not installed
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tickgraph", "train", *words],
            cwd=folder,
            env=os.environ | environ | case.environ,
            stdout=(folder / "out").open("w"),
            stderr=(folder / "err").open("w"),
            start_new_session=True,
        )

    def finish(self) -> int:
        """Wait for the end; returns the exit code. Nothing that it started may be left."""
        try:
            code = self.process.wait(timeout=SECONDS)
            assert self.left() == [], "processes are left behind"
        finally:
            self.stop()
        assert "Traceback" not in self.err, self.err
        return code

    def left(self) -> list[str]:
        """Return what still runs of it, by command line: in its session, or with its mark in the environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                mine = int(stat[3]) == self.process.pid or self.mark.encode() in (entry / "environ").read_bytes()
                if mine and stat[0] != "Z":
                    found.append((entry / "cmdline").read_text())
            except (OSError, IndexError, ValueError):  # no process, gone meanwhile, or somebody else's
                continue
        return found

    def stop(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def line(self) -> str:
        """The one line that says why it ended."""
        lines = [line for line in self.err.splitlines() if line.startswith("tickgraph: ")]
        assert len(lines) == 1, self.err
        return lines[0]

    def warnings(self, *words: str) -> list[str]:
        lines = [line for line in self.err.splitlines() if line.startswith("warning: ")]
        return [line for line in lines if all(word in line for word in words)]

    @property
    def runs(self) -> list[Path]:
        return list(self.folder.glob("runs/*/*"))

    @property
    def run(self) -> RunFolder:
        [path] = self.runs
        return RunFolder(path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run.metrics.read_text(encoding="utf-8").splitlines()]


@dataclass
class Started:
    device: str
    folder: Path
    commands: dict[str, Command]

    def __getitem__(self, name: str) -> Command:
        return self.commands[name]

    def one(self, name: str, case: Case) -> Command:
        """Run one more, alone."""
        return Command(self.folder / name.replace(" ", "_"), self.device, case)


# On a CPU a dozen processes take minutes, and their parts are tested one by one elsewhere: for `-m long`.
@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.long), pytest.param("cuda", marks=GPU)])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Start every command; on a GPU behind the first, which builds the physics' kernels where nobody has yet."""
    folder = tmp_path_factory.mktemp(request.param)
    found = Started(request.param, folder, {})
    on_gpu = request.param == "cuda"
    try:
        for name, case in (BOTH | ON_GPU if on_gpu else BOTH).items():
            found.commands[name] = found.one(name, case)
            if name == "sound" and on_gpu:
                found.commands[name].process.wait(timeout=SECONDS)
        yield found
    finally:
        for command in found.commands.values():
            command.stop()


def skip_without_graphs(started: Started) -> None:
    if started.device != "cuda":
        pytest.skip("there is no graph on a CPU")


def place(function: Any, offset: int) -> str:
    return f"{FILE.name}:{function.__code__.co_firstlineno + offset}"


def facts(command: Command) -> dict[str, Any]:
    return manifest.read_manifest(command.run)


# Sound ----------------------------------------------------------------------------------------------------------------


def test_a_sound_run_completes_in_the_mode_of_its_device(started: Started) -> None:
    command = started["sound"]
    assert command.finish() == 0, command.err
    assert manifest.read_summary(command.run)["status"] == "completed"
    programs = facts(command)["programs"]
    if started.device == "cuda":
        assert (programs["collect"]["enabled"], programs["collect"]["captures"]) == ("graph", 1)
    assert {report["enabled"] for report in programs.values() if "nodes" not in report} == {"eager"}
    assert all(row["invalid"] == 0 for row in command.rows)


# What waits for the device --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "function"), [("waits", "reads"), ("counts", "counts")])
def test_a_term_that_waits_is_refused_by_name_where_the_mode_was(started: Started, name: str, function: str) -> None:
    command = started[f"{name}, refused"]
    assert command.finish() == 2, command.err
    assert f"execution {NAMED[started.device]!r} cannot be had on {started.device}" in command.line
    assert "term not static: rewards/fault" in command.line
    assert place(getattr(fault_tasks, function), 1) in command.line
    assert command.runs == []  # nothing ran


def test_a_term_that_waits_runs_eager_where_it_may_and_the_run_says_so(started: Started) -> None:
    command = started["waits"]
    assert command.finish() == 0, command.err
    assert len(command.warnings("falls back from", "to eager", place(fault_tasks.reads, 1))) >= 1
    assert manifest.read_summary(command.run)["status"] == "completed"
    ticks = [report for name, report in facts(command)["programs"].items() if name.startswith("tick/")]
    assert ticks and all(report["enabled"] == "eager" for report in ticks)
    assert all("term not static: rewards/fault" in report["disable_reason"] for report in ticks)


def test_a_wait_that_no_dry_run_sees_is_found_before_the_capture(started: Started) -> None:
    skip_without_graphs(started)
    named = "term not static: waits for the device at reads_hidden ("
    where = place(fault_tasks.reads_hidden, 2)
    refused, free = started["hidden wait, refused"], started["hidden wait"]
    assert refused.finish() == 2, refused.err
    assert f"graph 'collect' cannot run as 'graph': {named}" in refused.line
    assert where in refused.line and "in program 'tick/judge_to_restart'" in refused.line
    summary = manifest.read_summary(refused.run)
    assert (summary["status"], summary["iteration"]) == ("failed", 1) and named in summary["reason"]
    assert checkpoint.load_newest(refused.run, refused.run.path.parent.name)[0] is not None

    assert free.finish() == 0, free.err
    assert len(free.warnings("graph 'collect' falls back from graph to eager", named, where)) == 1
    assert manifest.read_summary(free.run)["status"] == "completed"
    collect = facts(free)["programs"]["collect"]
    assert (collect["enabled"], collect["captures"]) == ("eager", 0) and named in collect["disable_reason"]
    assert collect["eager_fallbacks"] == 30 - 2


# What cannot be captured ----------------------------------------------------------------------------------------------


def test_an_illegal_operation_in_the_capture_is_named_and_nothing_is_broken_after_it(started: Started) -> None:
    """With the physics' own kernels in the broken capture."""
    skip_without_graphs(started)
    where = place(fault_tasks.halts, 2)
    refused, free = started["illegal, refused"], started["illegal"]
    assert refused.finish() == 2, refused.err
    assert "graph 'collect' cannot run as 'graph': capture failed: " in refused.line
    assert f"at halts ({FILE}" in refused.line and where in refused.line
    summary = manifest.read_summary(refused.run)
    assert (summary["status"], summary["iteration"]) == ("failed", 2)

    assert free.finish() == 0, free.err
    assert len(free.warnings("graph 'collect' falls back from graph to eager: capture failed", where)) == 1
    summary = manifest.read_summary(free.run)
    assert (summary["status"], summary["iteration"]) == ("completed", 30)
    collect = facts(free)["programs"]["collect"]
    assert (collect["enabled"], collect["captures"], collect["eager_fallbacks"]) == ("eager", 0, 30 - 2)
    assert facts(free)["programs"]["update"]["enabled"] == "graph"  # the other graph is none the worse
    rows = free.rows
    assert [row["iteration"] for row in rows] == list(range(1, 31))
    assert all(row["invalid"] == 0 for row in rows) and rows[-1]["loss/critic_loss"] is not None


# An array swapped behind the program's back ---------------------------------------------------------------------------


def test_an_array_that_a_term_swaps_is_refused_by_name(started: Started) -> None:
    skip_without_graphs(started)
    command = started["swapped"]
    assert command.finish() == 2, command.err
    assert "graph 'collect' was built with other arrays: env.rewrite was replaced" in command.line
    assert manifest.read_summary(command.run)["status"] == "failed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("which", ["tensor", "array of the physics"])
def test_an_array_swapped_after_the_capture_is_refused_before_the_next_launch(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    with torch._dynamo.config.patch(disable=True):
        env = Env(cartpole_swingup().env, WORLDS, "cuda", "mjwarp", "graph")
    action = torch.zeros(WORLDS, env.action_manager.total_dim, device="cuda")
    for _ in range(5):
        env.step(action)
    assert env.execution_report()["tick"]["replays"] == 3
    ticks = int(env.rng.tick)
    _, data = env.sim.physics()
    kept = env.reward if which == "tensor" else data.qfrc_bias
    if which == "tensor":
        owner, name, shown, other = env, "reward", "env.reward", kept.clone()
    else:
        owner, name, shown = data, "qfrc_bias", "sim/data.qfrc_bias"
        other = type(kept)(kept.numpy(), dtype=kept.dtype, device=kept.device)
    setattr(owner, name, other)
    for _ in range(2):
        with pytest.raises(TickgraphError, match=f"graph 'tick' was built with other arrays: .*{shown} was replaced"):
            env.step(action)
    assert int(env.rng.tick) == ticks  # nothing was launched
    setattr(owner, name, kept)
    env.step(action)
    assert int(env.rng.tick) == ticks + 1 and not env.invalid.any()
    env.close()


# A NaN in one world's state -------------------------------------------------------------------------------------------


def test_a_nan_in_one_worlds_state_ends_that_world_and_is_counted(started: Started) -> None:
    sick, sound = started["poisoned"], started["sound"]
    assert sick.finish() == 0, sick.err
    assert sound.finish() == 0, sound.err
    assert manifest.read_summary(sick.run)["status"] == "completed"
    rows = sick.rows
    ended = [row["iteration"] for row in rows if row["invalid"]]
    assert ended == [fault_tasks.WHEN + 1]  # the first tick that computes with it
    row = rows[fault_tasks.WHEN]
    assert (row["invalid"], row["invalid/state"], row["check/non_finite/state"]) == (1, 1, 1)
    assert [row["check/non_finite/state"] for row in rows[fault_tasks.WHEN :]] == [1] * (40 - fault_tasks.WHEN)
    assert len(sick.warnings("non_finite/state", "1 world so far")) == 1
    assert sick.warnings("non_finite/action") == sick.warnings("non_finite/observation") == []

    others = [i for i in range(WORLDS) if i != fault_tasks.SICK]
    states = []
    for command in (sick, sound):
        found, problems = checkpoint.load_newest(command.run, command.run.path.parent.name)
        assert found is not None and not problems
        states.append(found.state["env"])
    by_world = [name for name, value in states[0].items() if value.ndim and value.shape[0] == WORLDS]
    assert "sim/qpos" in by_world and "arena/env/obs/actor" in by_world and len(by_world) > 20
    for name in by_world:
        mine, theirs = (state[name] for state in states)
        assert torch.equal(mine[others].nan_to_num(), theirs[others].nan_to_num()), name
    for name in ("sim/qpos", "sim/qvel", "arena/env/obs/actor", "arena/env/reward"):
        assert states[0][name].isfinite().all(), name


# A capacity set too low -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "limit", "option", "need"),
    [("few contacts", "contacts", "nconmax", 9), ("few rows", "constraints", "njmax", 36)],
)
def test_too_small_a_capacity_is_said_once_counted_and_mended_by_the_advice(
    started: Started, name: str, limit: str, option: str, need: int
) -> None:
    command = started[name]
    assert command.finish() == 0, command.err
    [said] = command.warnings(f" {limit}: ")
    assert f"scene.capacity.{option} to " in said and str(need) in said
    raised = re.search(rf"scene\.capacity\.{option} to (\d+)", said)
    assert raised is not None and int(raised[1]) >= need
    text = command.err + (command.folder / "out").read_text()
    assert len([line for line in text.splitlines() if "overflow" in line]) == 0  # the engine's own flood
    rows, summary = command.rows, manifest.read_summary(command.run)
    counts = [row[f"overflow/{limit}"] for row in rows]
    assert counts[0] > 0 and counts == sorted(counts) and counts[-1] > counts[0]
    assert summary["status"] == "completed" and summary["overflow"] == {limit: counts[-1]}

    words = (*FEW, f"--env.scene.capacity.{option}", raised[1])
    mended = started.one(f"{name} mended", Case("nine_balls", words))
    assert mended.finish() == 0, mended.err
    assert mended.warnings(f" {limit}: ") == [] and manifest.read_summary(mended.run)["overflow"] == {}
    assert all(row[f"overflow/{limit}"] == 0 for row in mended.rows)


# Too little memory ----------------------------------------------------------------------------------------------------


def test_a_replay_larger_than_the_memory_is_one_line(started: Started) -> None:
    command = started["huge replay"]
    assert command.finish() == 2, command.err
    on_gpu = started.device == "cuda"
    asked = r"training \(.* a replay of 100000000000 slots .*\)" if on_gpu else "tensor 'ring/.*"
    where = "GPU memory" if on_gpu else "memory"
    assert re.search(rf"out of {where}: {asked} needs [\d.,]+ GiB, [\d.,]+ GiB is free: ", command.line)
    assert "smaller replay (replay_slots)" in command.line
    assert command.runs == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_worlds_that_do_not_fit_beside_others_on_the_gpu_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    """Who holds the rest is the same process."""
    free, alone = torch.cuda.mem_get_info()[0], alone_on_the_gpu()
    command = Command(tmp_path / "crowded", "cuda", Case("crowded", ("--num-envs", "2000000"), named=True))
    assert command.finish() == 2, command.err
    assert "out of GPU memory" in command.line and "fewer worlds (num_envs)" in command.line
    assert re.search(r"[\d.]+ [GM]iB.* [\d.]+ [GM]iB is free[.:]", command.line)
    assert command.runs == []
    end = time.monotonic() + 20
    while torch.cuda.mem_get_info()[0] < free - fault_tasks.GIB and time.monotonic() < end:
        time.sleep(0.2)  # the driver takes a process's memory back a moment after its end
    alone = alone and alone_on_the_gpu()
    assert not alone or torch.cuda.mem_get_info()[0] >= free - fault_tasks.GIB


def alone_on_the_gpu() -> bool:
    """Return whether no other process has work there, whose memory would come and go beside what is looked at."""
    return (device_memory()["device_other_bytes"] or 0) < OWN_CONTEXT


def test_memory_that_warp_cannot_have_while_building_is_one_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Warp says of a GPU, raised where MuJoCo Warp makes its arrays."""
    import mujoco_warp

    def make_data(*args: object, **options: object) -> None:
        raise RuntimeError("Failed to allocate 3221225472 bytes on device 'cuda:0'")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mujoco_warp, "make_data", make_data)
    words = [f"{FILE}:sound", "--device", "cpu", "--execution", "eager", *SMALL]
    assert cli.main(["train", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tickgraph: out of GPU memory for an environment of 16 worlds: 3.0 GiB cannot be had")
    assert "fewer worlds (num_envs)" in line
    assert not list(tmp_path.glob("runs/*/*"))
