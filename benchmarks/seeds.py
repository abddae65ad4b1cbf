#!/usr/bin/env python3
"""Does the fast path learn as the plain one does? Several seeds of each, and the areas under their learning curves.

    python benchmarks/seeds.py --gpus 0,1 --side-by-side 5 --limit-s 230 --out seeds    five runs on each of two GPUs
    python benchmarks/seeds.py --gpus 0,1 --reference-gpus 1,1,1,1,0 ...                the slower family on both
    python benchmarks/seeds.py --report-only seeds                                      JSON and plot again, from runs
    python benchmarks/seeds.py --tiny                                                   on a CPU: does it still run?

`fast` is `tickgraph train g1_walk_flat` with the task's own settings. `reference` has the same worlds, sizes, schedule
and seeds; its updates are the plain ones that `tickgraph verify learner` holds the fast ones against: gradients by
autograd, no kernels, float32 products without TF32, where fast updates multiply in bfloat16. On a GPU both run in CUDA
graphs, which change no maths; with `--reference eager` the reference has none, neither for its ticks nor for its
updates.

What is compared is the mean return of the episodes that ended in an interval of the log (`episode_return`) over env
steps; beside it their length (`episode_length`) and the errors of the planar velocity and of the yaw rate
(`metric/...`, over all worlds and ticks, so without regard to which episodes ended). Rows in which no episode ended
are left out. The curve between two rows is a straight line. An area is the integral of that by trapezoids, over the
range of env steps that all counted runs have in common, divided by the range's length: the mean level, in the units
of the curve. The range begins at the last of the runs' third rows and ends at the first of their last rows. Of a run
that failed, or did not come half as far as its family's median run, nothing is counted, and the comparison is then
marked as incomplete.

The bar: the mean areas of the return differ by at most 15%, and each lies between the least and the greatest area of
the other family. Few seeds may miss such a bar, or meet it, by luck; so the ratio has a 95% interval (of Student's t,
from the spread of the areas, with the degrees of freedom of the smaller family), and `p` is the share of all ways to
deal the runs to two families that set the means at least as far apart. A ratio of means is given where both are
positive. `rise` is the mean of a family's last tenth of the range over that of its first: where the reference's return
has not doubled, nothing was learned yet, and the bar is not met whatever the areas say.

Each run ends with the task's own evaluation; of its figures the least, the mean and the greatest of a family are
given (`judged`), to tell what one run is worth.

The exit code is 0 where every run counted, whatever the bar; a run that fails does not keep the others from running.
`seeds.json` is written anew all the time, with what there is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tickgraph.bench._options import MOST_WORLDS, Parser, count, counts, run_script
from tickgraph.bench._result import is_number
from tickgraph.core.bounds import MOST_REPEATS
from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.run.files import check_target, make_folder, read_json, write_json
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import iter_rows
from tickgraph.run.manifest import processors, read_manifest, read_summary
from tickgraph.tasks.registry import load

TASK = "g1_walk_flat"
FAMILIES = ("fast", "reference")
FIGURES = ("episode_return", "episode_length", "metric/lin_vel_error", "metric/yaw_rate_error")
BAR = 0.15
SKIPPED_ROWS = 2  # worlds begin in the middle of an episode: the first rows know the ends of those alone
LEAST_RISE = 2.0  # of the reference's return, for a comparison that says something
TENTHS = ("first_tenth", "last_tenth")
POINTS = 200  # of a curve in the JSON
ROWS = 150  # of a run's log
GRACE_S = 20.0  # from SIGINT, for the iteration and the checkpoint
EXITS = (0, 130, -signal.SIGKILL)  # whole, stopped and saved, or ended at the limit: the log is as good as any
# Student's t for 95% of both sides, for 1, 2, ... degrees of freedom; with more than ten, ten are on the safe side.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
MOST_DEALS = 200_000

COMMON = "--no-video --train.no-checkpoint-replay --train.keep-checkpoints 1 --evaluation.no-untrained".split()
PLAIN = "--train.learner-kernels autograd --train.matmul-precision highest --train.algo.bf16 False".split()
REFERENCES = {
    "graph": (
        PLAIN,
        "gradients by autograd, no kernels, float32 products without TF32; ticks and updates in the CUDA graphs of the "
        "fast path where there are any; `verify learner` holds this form to the eager reference",
    ),
    "graph-tf32": (
        "--train.learner-kernels autograd --train.algo.bf16 False".split(),
        "gradients by autograd, no kernels, products in TF32 as the task says; ticks and updates in the CUDA graphs of "
        "the fast path where there are any; `verify learner` holds this form to the eager reference",
    ),
    "eager": (
        [*PLAIN, "--execution", "eager"],
        "gradients by autograd, no kernels, float32 products without TF32; ticks and updates eager, one after the "
        "other",
    ),
}
TINY = (
    "--device cpu --execution eager --updates 1 --env.episode-length-s 0.2 --train.algo.critic-width 32 "
    "--train.algo.actor-width 32 --train.replay-slots 64 --train.learning-starts 3 --train.algo.batch-size 32 "
    "--evaluation.episodes 1 --evaluation.episode-s 0.1 --evaluation.ignore-s 0"
).split()
Points = list[tuple[float, float]]


# Curves ------------------------------------------------------------------------------------------------------------


def points_of(rows: Iterable[dict[str, Any]], figure: str) -> Points:
    """Return (env steps, value) of the rows of a log that have the figure."""
    return [(float(row["env_steps"]), float(row[figure])) for row in rows if row.get(figure) is not None]


def value_at(points: Points, x: float) -> float:
    """Return the curve's value at `x`, on the straight line between two points; at its ends outside of them."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def mean_level(points: Points, low: float, high: float) -> float:
    """Return the area under the curve from `low` to `high`, by trapezoids, over `high - low`."""
    inner = [(x, y) for x, y in points if low < x < high]
    line = [(low, value_at(points, low)), *inner, (high, value_at(points, high))]
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(line)) / (high - low)


def common_range(curves: Sequence[Points]) -> tuple[float, float] | None:
    """Return the env steps that all curves have behind their first rows, or None where there are none."""
    if not curves or any(len(points) <= SKIPPED_ROWS for points in curves):
        return None
    low, high = max(points[SKIPPED_ROWS][0] for points in curves), min(points[-1][0] for points in curves)
    return (low, high) if low < high else None


def thinned(points: Points, most: int = POINTS) -> Points:
    """Return at most `most` points, each the mean of as many neighbours."""
    stride = math.ceil(len(points) / most) or 1
    blocks = [points[first : first + stride] for first in range(0, len(points), stride)]
    return [(statistics.fmean(x for x, _ in block), statistics.fmean(y for _, y in block)) for block in blocks]


# The comparison ----------------------------------------------------------------------------------------------------


def compare(fast: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return what the areas of two families say: means, ranges, ratio with its interval, and whether the bar is met."""
    means = statistics.fmean(fast), statistics.fmean(reference)
    spreads = [statistics.stdev(areas) if len(areas) > 1 else None for areas in (fast, reference)]
    ratio, interval = None, None
    if min(means) > 0:
        ratio = means[0] / means[1]
        if None not in spreads:
            parts = zip(spreads, means, (fast, reference), strict=True)
            error = math.sqrt(sum((spread / mean) ** 2 / len(areas) for spread, mean, areas in parts))
            width = T95[min(len(fast), len(reference), len(T95) + 1) - 2] * error * ratio
            interval = [ratio - width, ratio + width]
    inside = min(reference) <= means[0] <= max(reference) and min(fast) <= means[1] <= max(fast)
    return {
        "fast_mean": means[0],
        "reference_mean": means[1],
        "fast_range": [min(fast), max(fast)],
        "reference_range": [min(reference), max(reference)],
        "fast_stdev": spreads[0],
        "reference_stdev": spreads[1],
        "ratio": ratio,
        "ratio_ci95": interval,
        "p": p_value(fast, reference),
        "within": ratio is not None and abs(ratio - 1) <= BAR,
        "inside": inside,
    }


def p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the share of all ways to deal the values to two groups whose means are at least as far apart.

    None where there are too many ways.
    """
    values, size = [*a, *b], len(a)
    deals = math.comb(len(values), size)
    if deals > MOST_DEALS:
        return None
    total = sum(values)

    def apart(first: float) -> float:
        return abs(first / size - (total - first) / len(b))

    seen = apart(sum(a)) * (1 - 1e-9)
    return sum(apart(sum(group)) >= seen for group in itertools.combinations(values, size)) / deals


# Runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training run of a family."""

    out: Path
    task: str
    family: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder and its log."""
        return f"{self.family}_{self.seed}"

    @property
    def folder(self) -> RunFolder:
        """Where `tickgraph train` writes."""
        return RunFolder(self.out / "runs" / self.task / self.name)

    @property
    def ended(self) -> Path:
        """Holds the exit code, once there is one."""
        return self.out / f"{self.name}.exit"

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the run is under way."""
        return int(self.ended.read_text()) if self.ended.exists() else None


@dataclass
class Job:
    """A run that is to be played on a GPU, or on the CPU."""

    run: Run
    gpus: tuple[str, ...]
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    gpu: str | None = None

    def begin(self, gpu: str, threads: int) -> None:
        """Start it in a process of its own."""
        self.gpu = gpu
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), **os.environ}
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        with open(self.run.out / f"{self.run.name}.log", "wb") as log:
            self.process = subprocess.Popen(
                *(self.command,), stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def over(self) -> bool:
        """Return whether it has ended; its exit code is then kept."""
        if self.process is None or self.process.poll() is None:
            return False
        self.run.ended.write_text(f"{self.process.returncode}\n")
        return True

    def kill(self) -> None:
        """End it and what it has started."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.over()


def jobs_of(options: argparse.Namespace, out: Path) -> list[Job]:
    """Return the runs to play, a seed of every family before the next seed."""
    gpus = tuple(options.gpus.split(",")) if options.gpus else ("",)
    half = len(gpus) // 2 if len(options.families) > 1 else 0
    places = {"fast": gpus[:half] or gpus, "reference": gpus[half:]}
    chosen = options.reference_gpus.split(",") if options.reference_gpus else []
    jobs = []
    for seed, family in itertools.product(range(options.seeds), options.families):
        run = Run(out, options.task, family, seed)
        words = ["train", options.task, *words_of(options, family), "--seed", str(seed), "--run-name", run.name]
        command = [sys.executable, "-m", "tickgraph", *words, "--runs", str(out / "runs")]
        own = (chosen[seed % len(chosen)],) if chosen and family == "reference" else places[family]
        jobs.append(Job(run, own, command))
    return jobs


def words_of(options: argparse.Namespace, family: str) -> list[str]:
    """Return the options of `tickgraph train` for a family, without seed and name."""
    size = ["--num-envs", str(options.num_envs), "--iterations", str(options.iterations)]
    size += ["--train.lr-iterations", str(horizon(options))]
    rows = ["--train.log-interval", str(max(1, options.iterations // ROWS))]
    rows += ["--train.checkpoint-interval", str(options.iterations)]
    words = [*size, *rows, *(["--algo", options.algo] if options.algo else []), *COMMON]
    words += TINY if options.tiny else []
    return words + (REFERENCES[options.reference][0] if family == "reference" else [])


def horizon(options: argparse.Namespace) -> int:
    """Return the iterations over which the learning rate falls: the task's, however early the runs end."""
    task = load(options.task)
    if options.algo:
        task.use(options.algo)
    return task.train.lr_iterations or max(task.train.iterations, options.iterations)


def play(jobs: list[Job], options: argparse.Namespace, report: Any) -> None:
    """Play all runs, as many side by side on a GPU as asked for, until they or the time are over."""
    began, said, stopped = time.monotonic(), 0.0, None
    waiting, active = list(jobs), []  # type: list[Job], list[Job]
    places = len({gpu for job in jobs for gpu in job.gpus})
    threads = max(1, processors() // min(len(jobs), places * options.side_by_side))
    try:
        while waiting or active:
            now = time.monotonic() - began
            for job in [job for job in active if job.over()]:
                active.remove(job)
                code = job.run.exit_code()
                print(f"{now:5.0f} s: {job.run.name} ended with exit code {code}", flush=True)
                if code not in EXITS:
                    print(last_lines(job.run.out / f"{job.run.name}.log"), flush=True)
                report()
            if stopped is None and options.limit_s is not None and now >= options.limit_s:
                stopped = now
                print(f"{now:5.0f} s: the time is over; what still runs saves and ends", flush=True)
                stop(active)
                waiting.clear()
            if stopped is not None and now >= stopped + GRACE_S:
                for job in active:
                    job.kill()
            for job in list(waiting):
                load = {gpu: sum(other.gpu == gpu for other in active) for gpu in job.gpus}
                gpu = min(load, key=load.__getitem__)
                if load[gpu] < options.side_by_side:
                    waiting.remove(job)
                    job.begin(gpu, threads)
                    active.append(job)
            if now - said >= 15:
                said = now
                report()
                print(f"{now:5.0f} s: {progress(jobs)}", flush=True)
            time.sleep(0.2)
    except KeyboardInterrupt:
        print("interrupted; the runs save and end", flush=True)
        stop(active)
        until = time.monotonic() + GRACE_S
        with suppress(KeyboardInterrupt):
            while time.monotonic() < until and not all(job.over() for job in active):
                time.sleep(0.2)
    finally:
        for job in active:
            job.kill()


def stop(jobs: Sequence[Job]) -> None:
    """Let runs finish their iteration, save and end."""
    for job in jobs:
        if job.process is not None:
            job.process.send_signal(signal.SIGINT)


def progress(jobs: Sequence[Job]) -> str:
    """Return how far the families are."""
    found = []
    for family in dict.fromkeys(job.run.family for job in jobs):
        reached = [
            rows[-1]["env_steps"] if (rows := rows_of(job.run)) else 0 for job in jobs if job.run.family == family
        ]
        found.append(f"{family} {min(reached):,} to {max(reached):,}")
    return ", ".join(found) + " env steps"


def rows_of(run: Run) -> list[dict[str, Any]]:
    """Return the rows of a run's log; none before there is one."""
    return list(iter_rows(run.folder.metrics)) if run.folder.metrics.exists() else []


def last_lines(path: Path, count: int = 4) -> str:
    """Return the end of a log, indented."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"        {line}" for line in lines[-count:])


# The result --------------------------------------------------------------------------------------------------------


def result_of(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the runs in a folder, as far as they have come."""
    runs = [
        Run(out, settings["task"], family, seed)
        for family in settings["families"]
        for seed in range(settings["families"][family]["seeds"])
    ]
    logs = {run: rows_of(run) for run in runs}
    curves = {run: points_of(rows, FIGURES[0]) for run, rows in logs.items()}
    why = {run: left_out(run, curves[run]) for run in runs}
    for family in settings["families"]:
        ends = {run: curves[run][-1][0] for run in runs if run.family == family and why[run] is None}
        for run, end in ends.items():
            if end < statistics.median(ends.values()) / 2:
                why[run] = f"ended after {end:,.0f} env steps, before half of its family's median run"
    counted = [run for run in runs if why[run] is None]
    span = common_range([curves[run] for run in counted])
    rows = [row_of(run, logs[run], why[run], span) for run in runs]
    manifests = [read_manifest(run.folder) for run in runs if run.folder.manifest.exists()]
    header = {key: manifests[0][key] if manifests else None for key in ("machine", "versions", "commit", "dirty")}
    families = {}
    for family, given in settings["families"].items():
        mine = [read_manifest(run.folder) for run in runs if run.family == family and run.folder.manifest.exists()]
        families[family] = {**given, **(facts_of(mine[0]) if mine else {})}
    places = {(value["commit"], value["dirty"], json.dumps(value["versions"])) for value in manifests}
    return {
        "format": 1,
        "benchmark": "seeds",
        **header,
        "mixed": len(places) > 1,
        "settings": {key: value for key, value in settings.items() if key != "families"},
        "families": families,
        "range_env_steps": span,
        "bar": BAR,
        "results": rows,
        "judged": judged_of(rows),
        "ratios": ratios_of(rows, manifests[0] if manifests else {}, settings["task"], len(counted) == len(runs)),
    }


def left_out(run: Run, points: Points) -> str | None:
    """Return why a run is not counted, or None."""
    code = run.exit_code()
    status = read_summary(run.folder) if run.folder.summary.exists() else {}
    if code not in (None, *EXITS) or status.get("status") == "failed":
        return f"failed (exit code {code}): {status.get('reason') or f'see {run.name}.log'}"
    if len(points) <= SKIPPED_ROWS:
        return f"{len(points)} rows of its log have a return"
    return None


def row_of(run: Run, rows: list[dict[str, Any]], why: str | None, span: tuple[float, float] | None) -> dict[str, Any]:
    """Return what the result says of one run."""
    summary = read_summary(run.folder) if run.folder.summary.exists() else {}
    row: dict[str, Any] = {
        "family": run.family,
        "seed": run.seed,
        "counted": why is None,
        "left_out": why,
        "exit_code": run.exit_code(),
        **{key: summary.get(key) for key in ("status", "reason", "wall_s", "tail_env_steps_per_sec", "startup_s")},
        "iteration": rows[-1]["iteration"] if rows else 0,
        "env_steps": rows[-1]["env_steps"] if rows else 0,
        "evaluation": numbers_of((summary.get("evaluation") or {}).get("trained") or {}),
        "area": {},
        "first_tenth": {},
        "last_tenth": {},
        "curves": {},
    }
    for figure in FIGURES:
        points = points_of(rows, figure)
        if not points:
            continue
        row["curves"][figure] = [[round(x), float(f"{y:.5g}")] for x, y in thinned(points)]
        if why is None and span is not None:
            low, high = span
            tenth = (high - low) / 10
            row["area"][figure] = mean_level(points, low, high)
            row["first_tenth"][figure] = mean_level(points, low, low + tenth)
            row["last_tenth"][figure] = mean_level(points, high - tenth, high)
    return row


def ratios_of(rows: list[dict[str, Any]], manifest: dict[str, Any], task: str, whole: bool) -> list[dict[str, Any]]:
    """Return the comparison of each figure that both families have; the bar is the return's."""
    found = []
    for figure in FIGURES:
        mine = {
            family: [row for row in rows if row["family"] == family and figure in row["area"]] for family in FAMILIES
        }
        if not all(mine.values()):
            continue
        case = {"task": task, **{key: manifest.get(key) for key in ("backend", "device", "num_envs", "algo")}}
        value = {
            **case,
            "scenario": "seeds",
            "figure": figure,
            "runs": {name: len(all_) for name, all_ in mine.items()},
        }
        value |= compare(*([row["area"][figure] for row in mine[family]] for family in FAMILIES))
        for family, all_ in mine.items():
            first, last = (statistics.fmean(row[part][figure] for row in all_) for part in TENTHS)
            value[f"{family}_rise"] = last / first if first > 0 else None
        if figure == FIGURES[0]:
            # Here first and last are the reference's, the second of the families.
            value |= {"complete": whole, "learned": last > max(0.0, LEAST_RISE * first)}
            value |= {"ratio_met": value["within"], "inside_met": value["inside"]}
            value["unharmed_met"] = whole and value["learned"] and value["within"] and value["inside"]
        found.append(value)
    return found


def numbers_of(figures: dict[str, Any]) -> dict[str, float]:
    """Return those figures of an evaluation that are numbers."""
    return {name: value for name, value in figures.items() if is_number(value)}


def judged_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the least, the mean and the greatest of each figure of the evaluations, by family."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family in FAMILIES:
        judged = [row["evaluation"] for row in rows if row["family"] == family and row["evaluation"]]
        for name in judged[0] if judged else ():
            values = [figures[name] for figures in judged if name in figures]
            spread = {"least": min(values), "mean": statistics.fmean(values), "greatest": max(values)}
            found.setdefault(family, {})[name] = {"runs": len(values), **spread}
    return found


def facts_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what tells the families apart, of a run's manifest."""
    keys = ("algo", "device", "device_name", "driver", "backend", "precision", "policy", "policy_lag", "overlap")
    keys += ("num_envs", "ticks_per_iteration", "updates_per_iteration", "total_updates")
    programs = {
        name: report.get("enabled") for name, report in manifest["programs"].items() if isinstance(report, dict)
    }
    return {**{key: manifest.get(key) for key in keys}, "programs": programs}


def show(result: dict[str, Any]) -> None:
    """Print the areas of each run and the comparison."""
    for row in result["results"]:
        area = "  ".join(f"{figure} {value:.4g}" for figure, value in row["area"].items())
        text = area if row["counted"] else f"not counted: {row['left_out']}"
        print(f"{row['family']:<10}seed {row['seed']}  {row['env_steps']:>11,} env steps  {text}")
    for family, figures in result["judged"].items():
        for name, value in figures.items():
            text = f"{value['mean']:.4g} ({value['least']:.4g} to {value['greatest']:.4g})"
            print(f"{family:<10}{name}: {text}, {counted(value['runs'], 'run')} judged")
    for ratio in result["ratios"]:
        print(text_of(ratio))
    if not result["ratios"]:
        print("nothing to compare: both families need a run with rows in a common range of env steps")


def text_of(ratio: dict[str, Any]) -> str:
    """Return a comparison as one line."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    low, high = ratio["ratio_ci95"] or (None, None)
    text = f"{ratio['figure']}: fast {ratio['fast_mean']:.4g}, reference {ratio['reference_mean']:.4g}, "
    text += f"ratio {number(ratio['ratio'])} ({number(low)} to {number(high)}), p {number(ratio['p'])}, "
    text += f"each mean inside the other's range: {'yes' if ratio['inside'] else 'no'}, "
    text += f"rise {number(ratio['fast_rise'])} and {number(ratio['reference_rise'])}"
    if "unharmed_met" in ratio:
        text += f"; bar {'met' if ratio['unharmed_met'] else 'MISSED'}" + ("" if ratio["complete"] else ", INCOMPLETE")
        text += "" if ratio["learned"] else ", NOTHING LEARNED YET"
    return text


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw all runs, with the mean of each family over the common range."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    colors = {"fast": "#1f4e9c", "reference": "#b5573f"}
    names = ("return of an episode", "length of an episode (control steps)")
    names += ("error of planar velocity (m/s)", "error of yaw rate (rad/s)")
    span = result["range_env_steps"]
    for axes, key, name in zip(figure.subplots(1, len(FIGURES)), FIGURES, names, strict=True):
        for family, color in colors.items():
            rows = [row for row in result["results"] if row["family"] == family and key in row["curves"]]
            for row in rows:
                x, y = zip(*row["curves"][key], strict=True)
                axes.plot(x, y, color=color, linewidth=0.7, alpha=0.5, linestyle="-" if row["counted"] else ":")
            counted = [[tuple(point) for point in row["curves"][key]] for row in rows if row["counted"]]
            if span is not None and counted:
                grid = [span[0] + (span[1] - span[0]) * step / 100 for step in range(101)]
                mean = [statistics.fmean(value_at(points, x) for points in counted) for x in grid]
                axes.plot(grid, mean, color=color, linewidth=2.2, label=f"{family}, mean of {len(counted)}")
        for x in span or ():
            axes.axvline(x, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="env steps", ylabel=name)
        axes.spines[["top", "right"]].set_visible(False)
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.axes[0].legend(frameon=False, fontsize=9)
    title = next((text_of(ratio) for ratio in result["ratios"]), "nothing to compare")
    figure.suptitle(f"{result['settings']['task']}, {title}", fontsize=9, parse_math=False)
    figure.savefig(path, dpi=130)


# The command -------------------------------------------------------------------------------------------------------


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, with the sizes of --tiny where none are given."""
    parser = Parser(prog="seeds.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/seeds"), help="folder of runs and results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the result (default: seeds.json in that folder)")
    parser.add_argument("--task", default=TASK, help=f"what is trained (default: {TASK})")
    parser.add_argument("--algo", help="flashsac or sac (default: the task's)")
    parser.add_argument("--seeds", metavar="N", help="runs of each family (default: 5)")
    parser.add_argument("--iterations", metavar="N", help="of each run (default: 1500)")
    parser.add_argument("--num-envs", metavar="N", help="worlds of each run (default: 4096)")
    parser.add_argument("--gpus", default="", metavar="A,B", help="GPUs; the fast runs get the first half of them")
    parser.add_argument(
        "--reference-gpus", default="", metavar="A,B", help="the GPU of each reference run, by seed (they take longer)"
    )
    parser.add_argument("--side-by-side", metavar="N", help="runs at once on a GPU (default: 1)")
    parser.add_argument("--limit-s", type=float, metavar="S", help="seconds after which all runs save and end")
    parser.add_argument("--reference", choices=REFERENCES, default="graph", help="how the reference runs")
    parser.add_argument("--only", choices=FAMILIES, help="play the runs of one family; both are reported")
    parser.add_argument("--report-only", type=Path, metavar="DIR", help="play nothing, report the runs of this folder")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU, to see that it runs")
    options = parser.parse_args(argv)
    small = {"seeds": 2, "iterations": 12, "num_envs": 16, "side_by_side": 2}
    full = {"seeds": 5, "iterations": 1500, "num_envs": 4096, "side_by_side": 1}
    for name, value in (small if options.tiny else full).items():
        given = getattr(options, name)
        most = MOST_WORLDS if name == "num_envs" else MOST_REPEATS
        setattr(options, name, value if given is None else count(f"--{name.replace('_', '-')}", given, most=most))
    for name in ("gpus", "reference_gpus"):
        if given := getattr(options, name):
            setattr(options, name, ",".join(map(str, counts(f"--{name.replace('_', '-')}", given, least=0))))
    if options.limit_s is not None and not 0.0 < options.limit_s < math.inf:
        parser.error(f"argument --limit-s: {options.limit_s} is no time, expected more than 0 seconds")
    options.families = (options.only,) if options.only else FAMILIES
    return options


def settings_of(options: argparse.Namespace, out: Path, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what is played; a family that was played before into the same folder stays in it."""
    path = out / "settings.json"
    before = read_json(path, "what was played")["families"] if path.exists() else {}
    keys = ("task", "algo", "iterations", "num_envs", "gpus", "side_by_side", "limit_s", "tiny")
    families = dict(before)
    for family in options.families:
        note = "the task's own settings" if family == "fast" else REFERENCES[options.reference][1]
        gpus = sorted({gpu for job in jobs if job.run.family == family for gpu in job.gpus})
        words = " ".join(["tickgraph train", options.task, *words_of(options, family)])
        families[family] = {"seeds": options.seeds, "note": note, "command": words, "gpus": list(filter(None, gpus))}
    return {
        **{key: getattr(options, key) for key in keys},
        "families": {f: families[f] for f in FAMILIES if f in families},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Play and compare; returns 0 where every run counted."""
    options = parsed(argv)
    out = (options.report_only or options.out).resolve()
    if options.report_only is None:
        make_folder(out)
    # A picture is drawn beside it, so it is a file.
    target = check_target(options.json).resolve() if options.json else out / "seeds.json"
    if options.report_only is None:
        jobs = jobs_of(options, out)
        there = [job.run.name for job in jobs if job.run.folder.path.exists()]
        if there:
            raise TickgraphError(f"{out} has run {there[0]} already; name another --out, or report it by --report-only")
        settings = settings_of(options, out, jobs)
        write_json(out / "settings.json", settings)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        play(jobs, options, lambda: write_json(target, result_of(out, settings)))
    result = result_of(out, read_json(out / "settings.json", "what was played"))
    write_json(target, result)
    draw(result, target.with_suffix(".png"))
    show(result)
    return int(not all(row["counted"] for row in result["results"]))


if __name__ == "__main__":
    sys.exit(run_script(main))
