"""`tickgraph verify learner`: whether every way of running a learner computes the same thing, and keeps on doing so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from tickgraph.bench import _verify_checks as checks
from tickgraph.bench import _verify_stability as stability
from tickgraph.bench._learner_paths import PATHS, PRECISIONS, BenchPath, check_precision, chosen, fastest
from tickgraph.bench._learner_rig import LearnerSpec, spec_of, with_algo
from tickgraph.bench._options import MOST_BATCH, Parser, count, names, say, target, value_name
from tickgraph.bench._result import write_result
from tickgraph.bench._verify_checks import MOMENT_LIMITS, STATE_LIMITS, References, Row, Subject
from tickgraph.run.arguments import table
from tickgraph.run.manifest import result_header
from tickgraph.sim.platform import resolve_platform
from tickgraph.tasks.registry import load

UPDATES, PERIODS = (1, 2, 8), (1, 2)
CYCLES = (1, 10)
REPLAYS = {"cuda": 1000, "cpu": 200}
WORLDS, SLOTS = 64, 64
ROWS_A_DRAW = 4  # recorded rows for each that a batch draws, at least
LEAST_BATCH = 16  # fewer rows, of which some are bad in one check, are never all good
SMALL = {"actor_width": 8, "critic_width": 12, "atoms": 21, "batch_size": 64}

Say = Callable[[str], None]


@dataclass
class Case:
    """What is verified, and how far."""

    spec: LearnerSpec
    device: torch.device
    paths: Sequence[BenchPath]
    precisions: Sequence[str] = ("fp32",)
    replays: int = 200
    updates: Sequence[int] = UPDATES
    periods: Sequence[int] = PERIODS


def verify(
    case: Case, say: Say = lambda text: None, keep: Callable[[list[Row]], None] = lambda rows: None
) -> list[Row]:
    """Run every check; returns their rows.

    Every path is held against the reference in every precision. The numbers of updates and policy periods are all tried
    eager and on the fastest path, where also the checks of stability run.

    Args:
        case: what is verified.
        say: told of progress, and of a check that fails.
        keep: given the rows so far, path by path.
    """
    references, rows, told = References(), list[Row](), 0

    def tell() -> None:
        nonlocal told
        for row in rows[told:]:
            if not row.ok:
                say(f"FAILED: {row.check}, {row.path}, {row.case}: {row.note}")
        told = len(rows)
        keep(rows)

    best = fastest(case.paths)
    first = Subject(case.spec, case.paths[0], case.device)
    rows += checks.projection(first)
    rows.append(checks.ends_present(first))
    for precision in case.precisions:
        for path in case.paths:
            subject = replace(first, path=path, precision=precision)
            say(f"{precision}, {path.name}: the reference beside it")
            rows += checks.parity(subject, references, CYCLES)
            if precision == "fp32" and path in (case.paths[0], best):
                rows.append(checks.temperature(subject))
                single = replace(subject, spec=with_algo(replace(case.spec, updates=1), policy_period=1))
                rows += checks.parity(single, references, (1,), scrambled=False)
                say(f"{precision}, {path.name}: {case.updates} updates, policy periods {case.periods}")
                rows += checks.matrix(subject, references, case.updates, case.periods)
            tell()
    rows += stability.stability(replace(first, path=best), case.replays, say)
    tell()
    return rows


def small(spec: LearnerSpec) -> LearnerSpec:
    """Return a spec with networks and batches that a CPU takes milliseconds for; what is computed stays the same."""
    widths = {name: value for name, value in SMALL.items() if hasattr(spec.algo, name)}
    return with_algo(replace(spec, num_envs=16), **widths)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tickgraph verify learner` with the words after it; returns 0, or 1 where a check failed.

    Raises:
        TickgraphError: an argument is wrong, or a path cannot be had.
    """
    options = _parser().parse_args(argv)
    place = resolve_platform(options.device, "auto")
    device = torch.device(place.device)
    on_gpu = device.type == "cuda"
    task = load(options.task)
    if options.algo is not None:
        task.use(options.algo)
    spec = replace(spec_of(task), num_envs=WORLDS, slots=SLOTS, updates=2)
    size = ("task" if on_gpu else "small") if options.size == "auto" else options.size
    if size == "small":
        spec = small(spec)
    if options.batch_size is not None:
        spec = with_algo(spec, batch_size=count("--batch-size", options.batch_size, LEAST_BATCH, MOST_BATCH))
    # Many times what a batch draws, so that with a few bad rows most batches have none.
    spec = replace(spec, num_envs=max(spec.num_envs, -(-ROWS_A_DRAW * spec.algo.batch_size // checks.FILLED)))
    if not on_gpu:
        torch.set_num_threads(1)
    paths = chosen(options.paths, device, task.algo)
    if options.paths is None and not on_gpu:  # twenty learners are built, and a CPU compiles each for half a minute
        paths = [path for path in paths if path.execution == "eager"]
    case = Case(
        spec=with_algo(spec, policy_period=2, bf16=False),
        device=device,
        paths=paths,
        precisions=_precisions(options.precision, device),
        replays=REPLAYS[device.type] if options.replays is None else count("--replays", options.replays),
    )
    began = time.monotonic()

    def write(rows: list[Row], complete: bool) -> None:
        if options.json is not None:
            seconds = time.monotonic() - began
            write_result(options.json, result(case, rows, task.name, task.algo, seconds, complete), whole=complete)

    rows = verify(case, say, lambda rows: write(rows, complete=False))
    ok = all(row.ok for row in rows)
    write(rows, complete=True)
    show(rows, f"{task.algo} of {task.name}, {size} size, on {device}, {time.monotonic() - began:.0f} s")
    return 0 if ok else 1


def result(
    case: Case, rows: Sequence[Row], task: str, algorithm: str, seconds: float, complete: bool = True
) -> dict[str, Any]:
    """Return the machine-readable result; `ok` only where no check is left and none failed."""
    limits = {
        "state": STATE_LIMITS, "moments": MOMENT_LIMITS, "own_factor": checks.OWN_FACTOR,
        "temperature": checks.TEMPERATURE_LIMIT, "projection": checks.PROJECTION_LIMIT,
    }  # fmt: skip
    return {
        **result_header(),
        "verify": "learner",
        "complete": complete,
        "ok": complete and all(row.ok for row in rows),
        "task": task,
        "algorithm": algorithm,
        "device": str(case.device),
        "paths": [path.name for path in case.paths],
        "algo": asdict(case.spec.algo),
        "tolerances": limits,
        "seconds": seconds,
        "checks": [_plain(row) for row in rows],
    }


def _plain(row: Row) -> dict[str, Any]:
    """Return a row as strict JSON can hold it: a figure that is not finite as a word."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }


def show(rows: Sequence[Row], title: str) -> None:
    """Print a line for each check, with its worst figure, its limit and where that was."""
    lines = [("", "check", "path", "case", "error", "at most", "largest", "where")]
    for row in rows:
        figures = ("" if value is None else f"{value:.1e}" for value in (row.figure, row.limit, row.max_abs))
        lines.append(("ok" if row.ok else "FAILED", row.check, row.path, row.case, *figures, row.note))
    failed = sum(not row.ok for row in rows)
    print(title, *table(lines, indent=""), sep="\n")
    print("error: relative L2 of the worst tensor against the float32 reference; largest: greatest error of a number")
    print(f"{len(rows)} checks, {failed or 'none'} failed")


def _precisions(text: str | None, device: torch.device) -> tuple[str, ...]:
    if text is None:
        return PRECISIONS if device.type == "cuda" else ("fp32",)
    return tuple(check_precision(name, device) for name in names(text))


def _parser() -> Parser:
    parser = Parser(
        prog="tickgraph verify learner",
        description="Hold every way of running a learner against a plain float32 reference on the same batches and "
        "noise, and check what it does over time. The exit code is 0 where all checks pass, 1 where one fails.",
    )
    known = ", ".join(PATHS)
    parser.add_argument(
        "task", metavar="TASK", nargs="?", default="g1_walk_flat",
        help="whose sizes and settings to take (default: g1_walk_flat)",
    )  # fmt: skip
    for name, default, text in (
        ("algo", None, "flashsac or sac, with the task's settings for it (default: the task's)"),
        ("device", "auto", "cpu, cuda or auto (a GPU where one can be used)"),
        ("paths", None, f"of {known} or all (default: on a GPU those without graph's parts, on a CPU eager ones)"),
        ("precision", None, f"of {','.join(PRECISIONS)} (default: all on a GPU, fp32 on a CPU)"),
        ("batch-size", None, "transitions in an update (default: the task's)"),
        ("replays", None, "cycles over which memory must not grow (default: 1000 on a GPU, 200 on a CPU)"),
    ):
        parser.add_argument(f"--{name}", default=default, metavar=value_name(name), help=text)
    parser.add_argument(
        "--size", choices=("auto", "task", "small"), default="auto",
        help="networks and batches of the task, or small ones (default: small on a CPU)",
    )  # fmt: skip
    parser.add_argument("--json", type=target, metavar="FILE", help="write the result; - is standard output")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    return parser
