#!/usr/bin/env python3
"""Everything that tickgraph says of its speed and of what it learns, measured anew by one command.

    python benchmarks/run_all.py --out results            all steps, on one GPU
    python benchmarks/run_all.py --list                   what there is, with the time that each may take
    python benchmarks/run_all.py --only collector,learner steps whose names begin so
    python benchmarks/run_all.py --tiny                   small sizes on a CPU: does every command still run?

Each step is one command, of the command line or of this folder, in a process of its own, with its JSON and its log in
the output folder. A step that fails or takes too long does not keep the next one from running. `run_all.json` holds
each command, how it ended, its time, and the bars that it met or missed; it is written anew after every step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WALK, TRACK = "g1_walk_flat", "g1_motion_tracking"
ALGOS = ("flashsac", "sac")
TASKS = ("cartpole_swingup", "go2_walk_flat", WALK, TRACK)
TINY_TRAIN = (
    "--num-envs 16 --iterations 6 --train.replay-slots 32 --train.learning-starts 3 --train.log-interval 1 "
    "--train.algo.batch-size 32 --evaluation.episodes 2 --evaluation.episode-s 0.2 --no-video --execution eager"
).split()
TINY_COLLECTOR = (
    "--num-envs 8 --blocks 2 --ticks-per-block 2 --memory-ticks 101 --backend mujoco --execution eager".split()
)
TINY_BENCH = (
    "--num-envs 8 --blocks 1 --iterations 4 --batch-size 16 --arms eager --learning-starts 3 --replay-n 32 --no-proofs"
).split()
# Of a run's command line, what the optimisation report of a public FlashSAC used.
REPORT = (
    "--backend mujoco --num-envs 256 --batch-size 256 --updates 2,8 --policy-frequency 2 --replay-n 32 "
    "--learning-starts 8 --iterations 1000 --summary-last 500 --arms eager,compile-loss,compile,graph --blocks 1"
).split()


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: of its files.
        words: after the program, on a GPU.
        tiny: after the program, with --tiny; None leaves the step out.
        limit_s: seconds until it is stopped.
        result: the option that names its JSON file, if it writes one.
        script: the program, a file of this folder; without it `tickgraph`.
    """

    name: str
    words: tuple[str, ...]
    tiny: tuple[str, ...] | None
    limit_s: int
    result: str | None = "--json"
    script: str | None = None

    @property
    def program(self) -> str:
        """What a reader types before the words."""
        return f"python benchmarks/{self.script}" if self.script else "tickgraph"


def steps() -> list[Step]:
    """Return all steps, those first that the others rest on."""
    found = []
    for algo in ALGOS:
        verify = ("verify", "learner", WALK, "--algo", algo)
        found.append(Step(f"verify_{algo}", verify, (*verify, "--replays", "4", "--paths", "eager"), 600))
    for algo in ALGOS:
        words = ("bench", "learner", WALK, "--algo", algo)
        tiny = (*words, "--updates", "2", "--batch-size", "32", "--blocks", "1", "--cycles", "1", "--paths", "eager")
        found.append(Step(f"learner_{algo}", words, tiny, 900))
    for task, scenario in itertools.product((WALK, TRACK), ("normal", "reset-heavy")):
        words = ("bench", "collector", task, "--scenario", scenario)
        full = (*words, "--backend", "mjwarp", "--num-envs", "1024,4096,8192")
        if scenario == "reset-heavy":
            full += ("--arms", "graph,physics,tick_aa")
        found.append(Step(f"collector_{task}_{scenario}", full, (*words, *TINY_COLLECTOR), 600))
    for task, algo in itertools.product((WALK, TRACK), ALGOS):
        words = ("bench", "train", task, "--algo", algo)
        full = (*words, "--arms", "eager,compile,graph", "--blocks", "3", "--num-envs", "1024,4096")
        found.append(Step(f"train_{task}_{algo}", full, (*words, *TINY_BENCH), 900))
    words = ("bench", "train", WALK, *REPORT)
    tiny = ("bench", "train", WALK, "--backend", "mujoco", *TINY_BENCH)
    found.append(Step("train_bridged", (*words, "--device", "cuda"), tiny, 1200))
    profile = ("profile", WALK, "--ticks")
    tiny = (*profile, "2", "--num-envs", "8", "--backend", "mujoco", "--device", "cpu")
    found.append(Step("profile", (*profile, "30", "--num-envs", "4096", "--backend", "mjwarp"), tiny, 300, None))
    for task, algo in itertools.product((WALK, TRACK), ALGOS):
        words = ("train", task, "--algo", algo, "--run-name", f"full_{algo}")
        found.append(Step(f"run_{task}_{algo}", words, (*words, *TINY_TRAIN), 1500, None))
    full = ("--out", "seeds", "--gpus", "0", "--side-by-side", "10", "--iterations", "2500", "--limit-s", "1500")
    found.append(Step("seeds", full, ("--out", "seeds", "--tiny"), 1560, script="seeds.py"))
    for task, backend, algo in itertools.product(TASKS, ("mujoco", "mjwarp"), ALGOS):
        words = ("train", task, "--algo", algo, "--backend", backend, "--run-name", f"entry_{backend}_{algo}")
        full = (*words, "--iterations", "50", "--evaluation.episodes", "8", "--evaluation.episode-s", "1", "--no-video")
        small = (*words, *TINY_TRAIN) if backend == "mujoco" else None
        found.append(Step(f"entry_{task}_{backend}_{algo}", full, small, 400, None))
    return found


def play(step: Step, words: Sequence[str], out: Path, limit_s: float) -> dict[str, Any]:
    """Run a step; returns what `run_all.json` says of it."""
    program = ["-m", "tickgraph"] if step.script is None else [str(Path(__file__).resolve().with_name(step.script))]
    command = [sys.executable, *program, *words]
    result = out / f"{step.name}.json"
    if step.result is not None:
        result.unlink(missing_ok=True)
        command += [step.result, str(result)]
    began = time.monotonic()
    with open(out / f"{step.name}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=out, start_new_session=True)
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    facts: dict[str, Any] = {
        "command": " ".join([step.program, *words]),
        "exit_code": code,
        "stopped_after_s": limit_s if code is None else None,
        "wall_s": round(time.monotonic() - began, 1),
    }
    if step.result is not None and result.exists():
        ratios = json.loads(result.read_text(encoding="utf-8")).get("ratios", [])
        facts["bars"] = [bars for bars in map(bars_of, ratios) if bars]
    if step.words[0] == "train":
        facts |= run_facts(out, words)
    return facts


def bars_of(ratio: dict[str, Any]) -> dict[str, Any]:
    """Return the bars of one case, with what they are held against."""
    met = {name: value for name, value in ratio.items() if name.endswith("_met") and value is not None}
    if not met:
        return {}
    case = {name: ratio[name] for name in ("task", "num_envs", "scenario") if name in ratio}
    return {**case, "tick_over_physics": ratio.get("tick_over_physics"), **met}


def run_facts(out: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return the summary of the run that a step has made."""
    name, task = words[words.index("--run-name") + 1], words[1]
    path = out / "runs" / task / name / "run_summary.json"
    if not path.exists():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    keys = ("status", "reason", "iteration", "env_steps", "wall_s", "tail_env_steps_per_sec", "startup_s")
    return {"run": {key: summary.get(key) for key in keys}, "evaluation": summary.get("evaluation")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; returns 0 where every command ended with exit code 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="folder of all results")
    parser.add_argument("--only", default="", metavar="A,B", help="steps whose names begin with one of these")
    parser.add_argument("--skip", default="", metavar="A,B", help="steps to leave out, likewise")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds after which no step begins or goes on")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU, to see that every command runs")
    parser.add_argument("--list", action="store_true", help="show the steps and run nothing")
    options = parser.parse_args(argv)

    known = [step for step in steps() if not options.tiny or step.tiny is not None]
    only, skip = (tuple(filter(None, text.split(","))) for text in (options.only, options.skip))
    for begin in (*only, *skip):
        if not any(step.name.startswith(begin) for step in known):
            parser.error(f"no step begins with {begin!r}; --list shows them")
    chosen = [
        step for step in known if (not only or step.name.startswith(only)) and not (skip and step.name.startswith(skip))
    ]
    if options.list:
        for step in chosen:
            print(f"{step.name:<42} at most {step.limit_s} s")
        return 0
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    began, done = time.monotonic(), {}
    for step in chosen:
        left = step.limit_s if options.budget is None else options.budget - (time.monotonic() - began)
        if left <= 0:
            print(f"the budget of {options.budget:g} s is spent before {step.name}", flush=True)
            break
        words = step.tiny if options.tiny and step.tiny is not None else step.words
        print(f"{step.name}: {step.program} {' '.join(words)}", flush=True)
        done[step.name] = play(step, words, out, min(left, step.limit_s))
        (out / "run_all.json").write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"  {ending(done[step.name])}", flush=True)
    return int(any(facts["exit_code"] != 0 for facts in done.values()) or len(done) < len(chosen))


def ending(facts: dict[str, Any]) -> str:
    """Return one line about how a step ended."""
    if facts["exit_code"] is None:
        return f"stopped after {facts['stopped_after_s']:g} s"
    text = f"exit code {facts['exit_code']} in {facts['wall_s']:g} s"
    for bars in facts.get("bars", []):
        missed = [name.removesuffix("_met") for name, met in bars.items() if name.endswith("_met") and not met]
        text += f"; {bars.get('num_envs', '')} worlds: " + (f"missed {', '.join(missed)}" if missed else "bars met")
    return text


if __name__ == "__main__":
    sys.exit(main())
