"""What a long run must keep on a GPU: the schedule, its counters through a resume, and its memory.

Programs run eager inside their graphs, so that nothing is compiled: what is asked is the same. The same bodies run on a
CPU, where there is no graph.
"""

import gc
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from tickgraph import cli
from tickgraph.bench._proof import OWN_CONTEXT, device_memory
from tickgraph.env.env import Env
from tickgraph.run import checkpoint, manifest
from tickgraph.run.evaluate import POLICY
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import iter_rows
from tickgraph.run.trainer import Trainer
from tickgraph.tasks.cartpole import cartpole_swingup

TASK = "cartpole_swingup"
WORLDS = 16
WARMUP = 5  # iterations that only collect
MIB = 1 << 20
BLOCK = 32 * MIB  # the most that torch (20 MiB) or CUDA's own pool (32 MiB) takes from the device at once
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SMALL = (
    "--num-envs 16 --no-video --env.episode-length-s 0.2 --evaluation.episodes 2 --evaluation.no-untrained "
    "--updates 1 --train.replay-slots 64 --train.log-interval 1 --train.learner-kernels torch "
    "--train.algo.batch-size 16 --train.algo.actor-width 8 --train.algo.critic-width 8"
).split()


@dataclass
class Place:
    device: str
    fast: str  # the mode that is asked about
    iterations: int


CPU, CUDA = Place("cpu", "eager", 40), Place("cuda", "graph", 120)
PLACES = [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=GPU)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with torch._dynamo.config.patch(disable=True):
        yield


def train(name: str, place: Place, mode: str, *words: str) -> RunFolder:
    where = ["--device", place.device, "--execution", mode, "--train.learning-starts", str(WARMUP)]
    command = ["train", TASK, "--run-name", name, *SMALL, *where, *words]
    assert cli.main(command) == 0
    return RunFolder(Path("runs") / TASK / name)


def rows(run: RunFolder) -> list[dict[str, Any]]:
    return list(iter_rows(run.metrics))


def weights(run: RunFolder) -> torch.Tensor:
    """Return the policy's numbers in the newest checkpoint, in one row."""
    found, problems = checkpoint.load_newest(run, TASK)
    assert found is not None and not problems
    parts = {name: value for name, value in found.state["learn"].items() if name.startswith(POLICY)}
    return torch.cat([parts[name].reshape(-1).to(torch.float64) for name in sorted(parts)])


# The schedule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_the_schedule_is_that_of_eager_row_by_row_and_goes_on_after_a_resume(place: Place) -> None:
    """A rate that a capture had frozen would be flat, and would end with the weights of a constant rate."""
    length = ("--iterations", str(place.iterations), "--train.checkpoint-interval", "10")
    eager = train("eager", place, "eager", *length)
    whole = train("whole", place, place.fast, *length)
    half = place.iterations // 2
    parts = train("parts", place, place.fast, *length, "--stop-after", str(half))
    assert manifest.read_summary(parts)["status"] == "interrupted"
    assert cli.main(["train", "--resume", str(parts.path)]) == 0
    if place.fast == "graph":
        programs = manifest.read_manifest(whole)["programs"]
        graphs = {name: report for name, report in programs.items() if "nodes" in report}
        assert "collect" in graphs and any(name.startswith("update") for name in graphs)
        assert {(report["enabled"], report["captures"]) for report in graphs.values()} == {("graph", 1)}

    found = {run.path.name: rows(run) for run in (eager, whole, parts)}
    total = place.iterations - WARMUP
    for name, logged in found.items():
        assert [row["iteration"] for row in logged] == list(range(1, place.iterations + 1)), name
        assert [row["env_steps"] for row in logged] == [WORLDS * i for i in range(1, place.iterations + 1)], name
        rates = [row["lr/critic"] for row in logged]
        assert rates[:WARMUP] == [None] * WARMUP, name
        for update, rate in enumerate(rates[WARMUP:]):
            expected = 1.5e-4 + 0.75e-4 * (1.0 + math.cos(math.pi * update / total))
            assert rate == pytest.approx(expected, abs=1e-9), (name, update)
        actor = [row["lr/actor"] for row in logged]
        assert actor == pytest.approx([row["lr/actor"] for row in found["eager"]], abs=1e-9, nan_ok=True), name
    assert [part["from_iteration"] for part in manifest.read_manifest(parts)["sessions"]] == [0, half]


@pytest.mark.parametrize("place", PLACES)
def test_a_schedule_ends_with_other_weights_than_a_constant_rate(place: Place) -> None:
    length = ("--iterations", str(place.iterations), "--train.checkpoint-interval", "1000")
    falling, again = (train(name, place, place.fast, *length) for name in ("falling", "again"))
    constant = train("constant", place, place.fast, *length, "--train.algo.lr-end", "3e-4")
    rates = [row["lr/critic"] for row in rows(constant)]
    assert rates[WARMUP:] == pytest.approx([3e-4] * (place.iterations - WARMUP), abs=1e-9)
    repeat = (weights(falling) - weights(again)).abs().max().item()
    other = (weights(falling) - weights(constant)).abs().max().item()
    print(f"{place.device}: weights differ by {other:.2e} with a constant rate, by {repeat:.2e} when run again")
    assert other > 1e-5 and other > 10.0 * repeat


# Memory ---------------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Return the bytes of this process in main memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_use(device: str) -> int:
    """Return the bytes in use once everything is given back that can be: of the GPU, or of main memory."""
    gc.collect()
    if device != "cuda":
        return resident()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def alone_there(device: str) -> bool:
    """Return whether no other process has work on the GPU, whose free memory then says something of ours."""
    return device != "cuda" or (device_memory()["device_other_bytes"] or 0) < OWN_CONTEXT


@pytest.mark.parametrize(
    "place", [pytest.param(CPU, id="cpu", marks=pytest.mark.long), pytest.param(CUDA, id="cuda", marks=GPU)]
)
def test_environments_built_and_closed_leave_nothing(place: Place) -> None:
    used, alone = [], [alone_there(place.device)]
    for _ in range(30):
        env = Env(cartpole_swingup().env, WORLDS, place.device, "mjwarp", place.fast)
        for _ in range(5):
            env.step(torch.zeros(WORLDS, env.action_manager.total_dim, device=place.device))
        if place.fast == "graph":
            assert env.execution_report()["tick"]["captures"] == 1
        env.close()
        del env
        used.append(in_use(place.device))
    print(f"{place.device}: MiB in use after cycles 1, 5, 9, .. 29: {[used[i] // MIB for i in range(0, 30, 4)]}")
    alone.append(alone_there(place.device))
    assert not all(alone) or used[29] - used[4] <= (BLOCK if place.device == "cuda" else 30 * MIB)


@pytest.mark.parametrize(
    ("place", "iterations"),
    [
        pytest.param(CPU, 6_000, id="cpu", marks=pytest.mark.long),
        pytest.param(CUDA, 10_000, id="cuda", marks=GPU),
    ],
)
def test_ten_thousand_iterations_take_no_more_memory_than_a_hundred(
    place: Place, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row each iteration; memory is looked at each hundred, when nothing is on its way."""
    seen: dict[int, tuple[int, int, int]] = {}
    iterate = Trainer._iterate

    def watched(self: Trainer, iteration: int, steady: bool) -> None:
        done = iteration - 1
        if done and done % 100 == 0:
            self._rows.write(drain=True)
            on_gpu = place.device == "cuda"
            free = torch.cuda.mem_get_info()[0] if on_gpu else 0
            seen[done] = (torch.cuda.memory_allocated() if on_gpu else 0, free, resident())
        iterate(self, iteration, steady)

    monkeypatch.setattr(Trainer, "_iterate", watched)
    # One more, so that the last hundred is looked at.
    words = ("--iterations", str(iterations + 1), "--train.checkpoint-interval", "1000000")
    alone = [alone_there(place.device)]
    run = train("long", place, place.fast, *words)
    assert len(rows(run)) == iterations + 1
    assert sorted(seen) == list(range(100, iterations + 1, 100))
    allocated, free, main = (dict(zip(seen, column, strict=True)) for column in zip(*seen.values(), strict=True))
    late = [i for i in seen if i >= 1_000]
    times, sizes = (torch.tensor(v, dtype=torch.float64) for v in (late, [main[i] for i in late]))
    slope = ((times - times.mean()) * (sizes - sizes.mean())).sum() / (times - times.mean()).square().sum()
    growth = main[iterations] - main[1_000]
    print(
        f"{place.device}: torch's bytes {allocated[100]} at 100, {allocated[iterations]} at {iterations}; free on the "
        f"device {free[100]}, {free[iterations]}; main memory {slope.item():.1f} bytes an iteration, {growth} in all"
    )
    assert allocated[100] == allocated[iterations]
    alone.append(alone_there(place.device))
    assert not all(alone) or free[1_000] - free[iterations] <= (BLOCK if place.device == "cuda" else 0)
    assert slope < 2048 and growth < 16 * MIB
