#!/usr/bin/env python3
"""Everything that tickgraph says of its speed and of what it learns, measured anew by one command.

    python benchmarks/run_all.py --out results            all steps, one after another on one GPU
    python benchmarks/run_all.py --gpus 0,1 --out results one step at a time on each of two GPUs
    python benchmarks/run_all.py --gpus 0,1 --together 6  up to six of the steps that time nothing at a time on a GPU
    python benchmarks/run_all.py --resume --out results   the steps that failed, were stopped or never began
    python benchmarks/run_all.py --list                   what there is, with the time that each may take
    python benchmarks/run_all.py --only collector,learner steps whose names begin so
    python benchmarks/run_all.py --also seeds             and an experiment that is shown once beside them
    python benchmarks/run_all.py --tiny                   small sizes on a CPU: does every command still run?

Each step is one command, of the command line or of this folder, in a process of its own, with its JSON and its log in
the output folder. A step that fails or takes too long does not keep the next one from running. `run_all.json` holds
each command, how it ended, its time, commit and GPU, and the bars that it met or missed, in the order of `--list`; it
is written anew after every step.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tickgraph.bench._options import Parser, counts, run_script
from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import make_folder, read_json, write_json
from tickgraph.run.manifest import source_state

WALK, TRACK = "g1_walk_flat", "g1_motion_tracking"
ALGOS = ("flashsac", "sac")
HERE = Path(__file__).resolve().parent
RESULT = "run_all.json"
POLL_S = 0.05
TASKS = ("cartpole_swingup", "go2_walk_flat", WALK, TRACK)
TINY_TRAIN = (
    "--num-envs 16 --iterations 6 --train.replay-slots 32 --train.learning-starts 3 --train.log-interval 1 "
    "--train.algo.batch-size 32 --evaluation.episodes 2 --evaluation.episode-s 0.2 --evaluation.ignore-s 0 "
    "--no-video --execution eager"
).split()
BRIEF = "--evaluation.episodes 8 --evaluation.episode-s 1 --evaluation.ignore-s 0 --no-video".split()
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
        timed: it measures times, so that nothing else is played on its GPU.
        extra: an experiment beside what is measured anew, played where it is named.
    """

    name: str
    words: tuple[str, ...]
    tiny: tuple[str, ...] | None
    limit_s: int
    result: str | None = "--json"
    script: str | None = None
    timed: bool = True
    extra: bool = False

    @property
    def program(self) -> str:
        """What a reader types before the words."""
        return f"python benchmarks/{self.script}" if self.script else "tickgraph"


def steps() -> list[Step]:
    """Return all steps: of those that are timed, and of the others, those first that say the most in their time."""
    found = []
    for algo in ALGOS:
        verify = ("verify", "learner", WALK, "--algo", algo)
        tiny = (*verify, "--replays", "4", "--paths", "eager")
        found.append(Step(f"verify_{algo}", verify, tiny, 900, timed=False))
    for task, backend, algo in itertools.product(TASKS, ("mujoco", "mjwarp"), ALGOS):
        words = ("train", task, "--algo", algo, "--backend", backend, "--run-name", f"entry_{backend}_{algo}")
        full = (*words, "--iterations", "50", *BRIEF)
        small = (*words, *TINY_TRAIN) if backend == "mujoco" else None
        found.append(Step(f"entry_{task}_{backend}_{algo}", full, small, 600, None, timed=False))
    if importlib.util.find_spec("uni_rl") is not None:  # a peer's package, which tickgraph does not install
        full = ("--precision", "bf16", "--batch-size", "2048", "--updates", "8", "--limit", "700")
        tiny = ("--device", "cpu", "--batch-size", "8", "--updates", "2")
        found.append(Step("peer_unilab", full, tiny, 1200, script="peer_unilab.py", extra=True))
    for task, algo in itertools.product((WALK, TRACK), ALGOS):
        words = ("train", task, "--algo", algo, "--run-name", f"full_{algo}")
        found.append(Step(f"run_{task}_{algo}", words, (*words, *TINY_TRAIN), 1500, None))
    for task, algo in itertools.product((WALK, TRACK), ALGOS):
        words = ("bench", "train", task, "--algo", algo)
        full = (*words, "--arms", "eager,graph", "--blocks", "3", "--num-envs", "1024,4096")
        found.append(Step(f"train_{task}_{algo}", full, (*words, *TINY_BENCH), 900))
    for task, scenario in itertools.product((WALK, TRACK), ("normal", "reset-heavy")):
        words = ("bench", "collector", task, "--scenario", scenario)
        full = (*words, "--backend", "mjwarp", "--num-envs", "1024,4096,8192", "--arms", "graph,physics,tick_aa")
        found.append(Step(f"collector_{task}_{scenario}", full, (*words, *TINY_COLLECTOR), 900))
    for algo in ALGOS:
        words = ("bench", "learner", WALK, "--algo", algo)
        tiny = (*words, "--updates", "2", "--batch-size", "32", "--blocks", "1", "--cycles", "1", "--paths", "eager")
        full = (*words, "--paths", "graph", "--blocks", "10")
        found.append(Step(f"learner_{algo}", full, tiny, 900))
    words = ("bench", "train", WALK, *REPORT)
    tiny = ("bench", "train", WALK, "--backend", "mujoco", *TINY_BENCH)
    found.append(Step("train_bridged", (*words, "--device", "cuda"), tiny, 1200, extra=True))
    profile = ("profile", WALK, "--ticks")
    tiny = (*profile, "2", "--num-envs", "8", "--backend", "mujoco", "--device", "cpu")
    found.append(Step("profile", (*profile, "30", "--num-envs", "4096", "--backend", "mjwarp"), tiny, 300, None))
    # Without --gpus its runs see what the step sees; with it they would see that GPU, whichever the step has.
    full = ("--out", "seeds", "--side-by-side", "10", "--iterations", "2500", "--limit-s", "1500")
    found.append(Step("seeds", full, ("--out", "seeds", "--tiny"), 1560, script="seeds.py", timed=False, extra=True))
    return found


# Steps on their GPUs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where steps are played: on a GPU with a share of the processors, or, without --gpus, as we are."""

    gpu: int | None = None
    processors: tuple[int, ...] = ()


@dataclass
class Playing:
    """A step under way.

    Args:
        step: what is played.
        words: after its program.
        out: folder of all results, in which it runs.
        place: its GPU and processors.
        limit_s: seconds until it is stopped.
    """

    step: Step
    words: tuple[str, ...]
    out: Path
    place: Place
    limit_s: float
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    stopped: bool = False
    source: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        """Start it in a process of its own."""
        step = self.step
        program = ["-m", "tickgraph"] if step.script is None else [str(HERE / step.script)]
        command = [sys.executable, *program, *self.words]
        if step.result is not None:
            self.result.unlink(missing_ok=True)
            command += [step.result, str(self.result)]
        environment = dict(os.environ)
        if self.place.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.place.gpu)
        self.source = source_state()
        ours = os.sched_getaffinity(0) if self.place.processors else None
        self.began = time.monotonic()
        try:
            if ours is not None:
                # A process has the processors of the thread that starts it, from its first instruction on.
                os.sched_setaffinity(0, self.place.processors)
            with open(self.out / f"{step.name}.log", "wb") as log:
                settings: dict[str, Any] = {"cwd": self.out, "env": environment, "start_new_session": True}
                self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **settings)
        finally:
            if ours is not None:
                os.sched_setaffinity(0, ours)

    @property
    def result(self) -> Path:
        """The JSON file of a step that writes one."""
        return self.out / f"{self.step.name}.json"

    def over(self) -> bool:
        """Return whether it has ended; it is stopped where its time is up."""
        if self.process is None or self.process.poll() is not None:
            return True
        if time.monotonic() - self.began < self.limit_s:
            return False
        self.kill()
        self.process.wait()
        self.stopped = True
        return True

    def kill(self) -> None:
        """End it and all that it has started: `seeds.py` gives each of its runs a process group of its own."""
        if self.process is None or self.process.poll() is not None:
            return
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def facts(self) -> dict[str, Any]:
        """Return what `run_all.json` says of it, once it has ended."""
        facts: dict[str, Any] = {
            "command": command_of(self.step, self.words),
            "exit_code": None if self.stopped or self.process is None else self.process.returncode,
            "stopped_after_s": self.limit_s if self.stopped else None,
            "wall_s": round(time.monotonic() - self.began, 1),
            **self.source,
        }
        if self.place.gpu is not None:
            facts["gpu"] = self.place.gpu
        if self.step.result is not None and self.result.exists():
            ratios = json.loads(self.result.read_text(encoding="utf-8")).get("ratios", [])
            facts["bars"] = [bars for bars in map(bars_of, ratios) if bars]
        folder = folder_of(self.out, self.words)
        return facts if folder is None else facts | run_facts(folder)


def next_step(
    place: Place, waiting: Sequence[Step], active: Sequence[Playing], places: Sequence[Place], together: int
) -> Step | None:
    """Return the step that a place may begin now, None where it is to wait.

    A timed step is alone in its place; of the others up to `together` are there at a time. Of several places the last
    one takes what is not timed first, the others what is timed, so that neither kind waits for the other's end.
    """
    here = [one.step for one in active if one.place is place]
    untimed = [step for step in waiting if not step.timed]
    if here:
        shared = len(here) < together and not any(step.timed for step in here)
        return untimed[0] if shared and untimed else None
    if together > 1 and len(places) > 1:
        first = untimed if place is places[-1] else [step for step in waiting if step.timed]
        return next(iter(first or waiting), None)
    return next(iter(waiting), None)


def is_named(step: Step, names: tuple[str, ...]) -> bool:
    """Return whether a step's name begins with one of these, or is one where it is an experiment's."""
    return step.name in names if step.extra else step.name.startswith(names)


def command_of(step: Step, words: Sequence[str]) -> str:
    """Return a step's command as a reader types it, without the file of its result."""
    return " ".join([step.program, *words])


def descendants(pid: int) -> list[int]:
    """Return a process and all that come from it, a parent before its children."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # PID (NAME) STATE PARENT ..., and a name may hold brackets and blanks.
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            children[int(parent)].append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def gpu_count() -> int:
    """Return the GPUs that torch can use."""
    import torch

    return torch.cuda.device_count()


def places_of(gpus: Sequence[int]) -> list[Place]:
    """Return the GPUs, each with an even share of this process's processors; the two halves of a core stay together."""
    processors = sorted(os.sched_getaffinity(0), key=lambda number: (core_of(number), number))
    ends = [len(processors) * index // len(gpus) for index in range(len(gpus) + 1)]
    shares = [processors[first:last] for first, last in itertools.pairwise(ends)]
    # With fewer processors than GPUs all share all.
    return [Place(gpu, tuple(share if all(shares) else processors)) for gpu, share in zip(gpus, shares, strict=True)]


def core_of(processor: int) -> int:
    """Return the first processor of the same core, or `processor` itself where the system does not tell."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:
        return processor
    first = re.match(r"\d+", text)
    return int(first[0]) if first else processor


def folder_of(out: Path, words: Sequence[str]) -> Path | None:
    """Return the folder that a step fills and would not fill a second time, if it has one."""
    if words[0] == "train":
        return out / "runs" / words[1] / words[words.index("--run-name") + 1]
    return out / words[words.index("--out") + 1] if "--out" in words else None


# What is kept of them ----------------------------------------------------------------------------------------------


def results_in(out: Path) -> dict[str, Any]:
    """Return what `run_all.json` in a folder holds, by step; nothing where there is none.

    Raises:
        TickgraphError: it cannot be read.
    """
    path, what = out / RESULT, "results of steps"
    if not path.exists():
        return {}
    try:
        found = read_json(path, what)
        if not all(isinstance(facts, dict) for facts in found.values()):
            raise TickgraphError(f"{path} ({what}) does not hold an object for each step")
    except TickgraphError as error:
        raise TickgraphError(f"{error}; mend or remove it, or name another --out") from error
    return found


def bars_of(ratio: dict[str, Any]) -> dict[str, Any]:
    """Return the bars of one case, with what they are held against."""
    met = {name: value for name, value in ratio.items() if name.endswith("_met") and value is not None}
    if not met:
        return {}
    case = {name: ratio[name] for name in ("task", "num_envs", "scenario") if name in ratio}
    return {**case, "tick_over_physics": ratio.get("tick_over_physics"), **met}


def run_facts(folder: Path) -> dict[str, Any]:
    """Return the summary of the run that a step has made, if it is one."""
    path = folder / "run_summary.json"
    if not path.exists():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    keys = ("status", "reason", "iteration", "env_steps", "wall_s", "tail_env_steps_per_sec", "startup_s")
    return {"run": {key: summary.get(key) for key in keys}, "evaluation": summary.get("evaluation")}


# The command -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; returns 0 where every command ended with exit code 0."""
    parser = Parser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="folder of all results")
    parser.add_argument("--only", default="", metavar="A,B", help="steps whose names begin so, or experiments")
    parser.add_argument("--skip", default="", metavar="A,B", help="steps to leave out, likewise")
    parser.add_argument("--also", default="", metavar="A,B", help="experiments, beside the steps; see --list")
    parser.add_argument(
        "--gpus", metavar="A,B", help="a step at a time on each of these GPUs, each with its share of the processors"
    )
    parser.add_argument(
        "--together", type=int, default=1, metavar="N",
        help="of the steps that time nothing, up to N at a time in one place (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="keep the steps in --out that ended with exit code 0, play the others"
    )
    parser.add_argument("--budget", type=float, metavar="S", help="seconds after which no step begins or goes on")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU, to see that every command runs")
    parser.add_argument("--list", action="store_true", help="show the steps and run nothing")
    options = parser.parse_args(argv)
    gpus = () if options.gpus is None else counts("--gpus", options.gpus, least=0)
    if len(set(gpus)) < len(gpus):
        parser.error(f"--gpus is {options.gpus!r}, expected each GPU once")
    if gpus and not options.tiny and max(gpus) >= (count := gpu_count()):
        parser.error(f"--gpus is {options.gpus!r}, and this machine has {count or 'none'}; they count from 0")
    if options.together < 1:
        parser.error(f"--together is {options.together}, expected at least 1")
    if options.budget is not None and not 0.0 <= options.budget < math.inf:
        parser.error(f"--budget is {options.budget:g}, expected a number of seconds")

    known = [step for step in steps() if not options.tiny or step.tiny is not None]
    given = (options.only, options.skip, options.also)
    only, skip, also = (tuple(filter(None, text.split(","))) for text in given)
    for name in (*only, *skip):
        if not any(is_named(step, (name,)) for step in known):
            parser.error(f"no step begins with {name!r}, and no experiment is of this name; --list shows them")
    extra = {step.name: step for step in known if step.extra}
    for name in also:
        if name not in extra:
            parser.error(f"--also has {name!r}, and the experiments here are: {', '.join(extra) or 'none'}")
    chosen = [
        step
        for step in known
        if ((is_named(step, only) if only else not step.extra) or step.name in also) and not is_named(step, skip)
    ]
    if not chosen:
        parser.error("--only and --skip leave no step; --list shows them")
    if options.list:
        beside = [] if only else [step for step in extra.values() if step not in chosen]
        for step in (*chosen, *beside):
            how = f", with --also {step.name}" if step in beside else ""
            print(f"{step.name:<42} at most {step.limit_s} s{how}")
        return 0
    out = options.out.resolve()
    done = results_in(out)
    if done and not options.resume:
        raise TickgraphError(f"{out} already holds results of {len(done)} steps; --resume to go on, or another --out")
    make_folder(out)
    words = {step: step.tiny if options.tiny and step.tiny is not None else step.words for step in chosen}
    if options.resume:
        ended = {name: facts.get("command") for name, facts in done.items() if facts.get("exit_code") == 0}
        words = {step: its for step, its in words.items() if ended.get(step.name) != command_of(step, its)}
        print(f"{len(chosen) - len(words)} of {len(chosen)} steps are kept as they are in {out / RESULT}", flush=True)
        for step in words:
            done.pop(step.name, None)
    try:
        play(words, out, done, places_of(gpus) if gpus else [Place()], options)
    except KeyboardInterrupt:
        print("interrupted; --resume plays what has not ended", flush=True)
        return 130
    return int(any(done.get(step.name, {}).get("exit_code") != 0 for step in chosen))


def play(
    words: dict[Step, tuple[str, ...]],
    out: Path,
    done: dict[str, Any],
    places: Sequence[Place],
    options: argparse.Namespace,
) -> None:
    """Play steps in their order, each as soon as it finds a place, until they or the budget are over.

    Args:
        words: of each step, after its program.
        out: folder of all results.
        done: what is known of steps by name; what each one that ends leaves is added and kept in `run_all.json`.
        places: where they are played.
        options: of the command line.
    """
    order = {step.name: index for index, step in enumerate(steps())}
    began, waiting = time.monotonic(), list(words)
    active: list[Playing] = []
    try:
        while waiting or active:
            for one in [one for one in active if one.over()]:
                active.remove(one)
                done[one.step.name] = one.facts()
                names = sorted(done, key=lambda name: order.get(name, len(order)))
                write_json(out / RESULT, {name: done[name] for name in names})
                print(f"  {one.step.name}: {ending(done[one.step.name])}", flush=True)
            left = math.inf if options.budget is None else options.budget - (time.monotonic() - began)
            if waiting and left <= 0:
                print(f"the budget of {options.budget:g} s is spent before {waiting[0].name}", flush=True)
                waiting.clear()
            for place in places:
                while (step := next_step(place, waiting, active, places, options.together)) is not None:
                    waiting.remove(step)
                    one = Playing(step, words[step], out, place, min(left, step.limit_s))
                    on = "" if place.gpu is None else f" (GPU {place.gpu})"
                    print(f"{step.name}{on}: {command_of(step, words[step])}", flush=True)
                    folder = folder_of(out, words[step]) if options.resume else None
                    if folder is not None and folder.exists():
                        shutil.rmtree(folder)  # half of a run, or one of another command
                    active.append(one)
                    one.begin()
            time.sleep(POLL_S)
    finally:
        for one in active:
            one.kill()
        for one in active:
            if one.process is not None:
                one.process.wait()


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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_script(main))
