"""Tiny runs of the cart-pole for tests: begun, resumed, and read back."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tickgraph import cli
from tickgraph.run import checkpoint
from tickgraph.run.folder import RunFolder

TINY = (
    "--device cpu --num-envs 4 --execution eager --no-video --train.replay-slots 64 --train.learning-starts 5 "
    "--train.log-interval 1 --train.checkpoint-interval 5 --train.algo.batch-size 16 --train.algo.actor-width 8 "
    "--train.algo.critic-width 8 --env.episode-length-s 0.2 --evaluation.episodes 2"
).split()
TIMES = ("time", "wall_s", "env_steps_per_s")
TASK = "cartpole_swingup"


def train(name: str, *words: str, task: str = TASK, code: int = 0) -> RunFolder:
    """Train a tiny run in this process; returns its folder."""
    assert cli.main(["train", task, "--run-name", name, *TINY, *words]) == code
    return RunFolder(next(Path("runs").glob(f"*/{name}")))


def resume(run: RunFolder, *words: str, code: int = 0) -> None:
    assert cli.main(["train", "--resume", str(run.path), *words]) == code


def rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return the log without its times; fails on anything that strict JSON does not know."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


def state(run: RunFolder) -> dict[str, torch.Tensor]:
    """Return every tensor of the newest checkpoint."""
    found, problems = checkpoint.load_newest(run, TASK)
    assert found is not None
    assert not problems
    return {f"{part}/{name}": tensor for part, tensors in found.state.items() for name, tensor in tensors.items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that differ in any byte."""
    assert a.keys() == b.keys()
    return [
        name
        for name in a
        if not torch.equal(a[name].reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8))
    ]


def start(name: str, *words: str) -> "subprocess.Popen[str]":
    """Start a long run in a process of its own; returns it when it has written some rows."""
    command = [sys.executable, "-m", "tickgraph", "train", TASK, "--run-name", name, *TINY, "--iterations", "1000000"]
    command += words
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = Path("runs") / TASK / name / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 7):
        time.sleep(0.05)
    return process


def heard(err: str) -> str:
    """Return what a run said on stderr, but for what it says of a machine on which others are busy."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("warning: other processes"))
