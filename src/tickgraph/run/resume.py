"""What may change when a run goes on, and when it cannot: nothing is left, or what it had learned is not there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.run import checkpoint, manifest
from tickgraph.run.config import Task
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import iter_rows
from tickgraph.run.settings import apply_overrides
from tickgraph.run.trained import edits, lost_rows, told

# On how many threads, how long, how often it reports, how it is judged. Anything else is another run.
TORCH_THREADS = ("train.tick_threads", "train.update_threads")
RESUMABLE = (
    *("train.iterations", "train.lr_iterations", "train.time_budget_s", "train.log_interval"),
    *("train.checkpoint_interval", "train.checkpoint_replay", "train.keep_checkpoints", "train.video"),
    *("train.physics_threads", *TORCH_THREADS),
)
RESUMABLE_ROOTS = ("evaluation.", "video.")


def prepare_resume(task: Task, overrides: Sequence[str], run: RunFolder, say: Callable[[str], object]) -> bool:
    """Apply what may change in a resumed run, and say what that does to its numbers; False where nothing is left of it.

    Args:
        task: as the run's config.yaml has it; changed in place.
        overrides: of the command line.
        run: the run's folder.
        say: takes lines for the person who resumes it.

    Raises:
        TickgraphError: an override, or what was edited in config.yaml, would make it another run, or its checkpoints
            are gone.
    """
    lines, edited = _of_edits(run)
    iterations, horizon = (
        edited.get(f"train.{name}", (None, getattr(task.train, name)))[1] for name in ("iterations", "lr_iterations")
    )
    changed = apply_overrides(task, overrides)
    for path in changed:
        if not _may_change(path):
            raise TickgraphError(
                f"--{path} cannot change when a run is resumed; only {', '.join(RESUMABLE)} can. Start a new run for it"
            )
    changed += edited
    threads = [path for path in TORCH_THREADS if path in changed]
    if threads:
        lines.append(f"other {' and '.join(threads)}: sums may round otherwise, so the run goes on, not bit for bit")
    lines += _of_rate(task, iterations, horizon or iterations, changed)
    _check_checkpoints(run)
    if _nothing_left(task, run, say):
        return False  # what a change would do is of no interest
    for line in lines:
        say(line)
    return True


def _may_change(path: str) -> bool:
    return path in RESUMABLE or path.startswith(RESUMABLE_ROOTS)


def _of_edits(run: RunFolder) -> tuple[list[str], dict[str, tuple[Any, Any]]]:
    """Return lines on what was edited in config.yaml since the newest checkpoint, and the edits, which may all be.

    Raises:
        TickgraphError: something was edited that may not change.
    """
    saved = checkpoint.files(run)
    if not saved:
        return [], {}  # nothing was trained yet
    edited = edits(run)
    if edited is None:
        return [
            f"not known: whether {run.config} has been edited; {run.manifest.name} does not keep what was trained"
        ], {}
    head = f"{run.config} has been edited since iteration {checkpoint.iteration_of(saved[-1])}"
    refused = {path: values for path, values in edited.items() if not _may_change(path)}
    if refused:
        what = "it" if len(refused) == 1 else "them"
        raise TickgraphError(f"{head}: {told(refused)}; put {what} back, or start a new run")
    return [f"{head}: {told(edited, len(edited))}; the run goes on with that"] if edited else [], edited


def _of_rate(task: Task, iterations: int, horizon: int, changed: Sequence[str]) -> list[str]:
    """Return lines that say what a change does to the learning rate.

    Args:
        task: with the change; its horizon is kept where that was not changed.
        iterations: of the run before.
        horizon: iterations over which the rate fell before.
        changed: paths that were set.
    """
    train = task.train
    if "train.lr_iterations" in changed and (train.lr_iterations or train.iterations) != horizon:
        over = train.lr_iterations or train.iterations
        return [f"the learning rate now falls over {counted(over, 'iteration')}: it jumps to that curve"]
    if train.iterations == iterations:
        return []
    train.lr_iterations = horizon
    if train.iterations > horizon:
        rest = "iterations beyond it run at the schedule's final rate"
    else:
        rest = "the run ends before the schedule does"
    return [
        f"{counted(train.iterations, 'iteration')} instead of {iterations}: the learning rate keeps its horizon of "
        f"{counted(horizon, 'iteration')}, and {rest} (--train.lr-iterations sets another horizon)"
    ]


def reached(run: RunFolder) -> tuple[int, str]:
    """Return the last iteration that a run's summary or log tells of, 0 for none, and the name of the file."""
    logged = 0
    if run.metrics.is_file():
        for row in iter_rows(run.metrics):
            logged = row["iteration"]
    try:
        summed = int(manifest.read_summary(run)["iteration"])
    except TickgraphError:
        summed = 0
    return max((logged, run.metrics.name), (summed, run.summary.name))


def _check_checkpoints(run: RunFolder) -> None:
    """Refuse to begin a run anew, over its log, when all that is missing is its checkpoints.

    Raises:
        TickgraphError: it has iterations behind it and no checkpoint.
    """
    if checkpoint.files(run):
        return
    iteration, told = reached(run)
    if iteration:
        raise TickgraphError(
            f"{run.path} has {iteration:,} iterations behind it ({told}), but no checkpoint is in {run.checkpoints}; "
            "put them back there, or start a new run"
        )


def _nothing_left(task: Task, run: RunFolder, say: Callable[[str], object]) -> bool:
    """Say so and return True when a completed run has no iteration and no second of its budget left."""
    try:
        summary = manifest.read_summary(run)
    except TickgraphError:
        return False
    if summary["status"] != "completed":
        return False
    budget, spent = task.train.time_budget_s, float(summary.get("wall_s") or 0.0)
    if summary["iteration"] >= task.train.iterations:
        say(f"{run.path}: nothing is left, all {task.train.iterations} iterations are done; --iterations N goes on")
        if summary.get("files") is None:
            say(f"it was killed before its pictures were drawn: {drawn_by(run)}")
        return True
    if budget is not None and spent >= budget:
        used = f"the time budget of {budget:g} s ({spent:.0f} s used)"
        say(f"{run.path}: nothing is left of {used}, which counts the whole run; --time-budget S goes on")
        return True
    return False


def drawn_by(run: RunFolder) -> str:
    """Return which commands draw what a run's end leaves out."""
    where = shlex.quote(str(run.path))
    return f"`tickgraph plot {where}` draws the curve, `tickgraph play {where} --video FILE` makes the film"


def resumed_lines(task: Task, run: RunFolder, saved: checkpoint.Checkpoint) -> list[str]:
    """Return what a person is told of where a run goes on, and what its limits count."""
    lines = [f"resumed {saved.path} at iteration {saved.iteration}"]
    last, told = reached(run)
    if last > saved.iteration:
        lines[0] += f"; {told} tells of iteration {last}: what came after {saved.iteration} is trained again"
    budget, spent = task.train.time_budget_s, float(saved.extra["wall_s"])
    if budget is not None:
        left = max(0.0, budget - spent)
        lines.append(f"the time budget of {budget:g} s counts the whole run: {spent:.0f} s are used, {left:.0f} s left")
    return lines


def lost_lines(run: RunFolder, sessions: Sequence[Any], iteration: int) -> list[str]:
    """Return one line on the rows that the log has lost of the iterations up to the checkpoint's, or none."""
    lost = lost_rows(run, sessions, iteration)
    if not lost:
        return []
    words = [f"{first} to {last}" if first < last else f"{first}" for first, last in lost]
    more = f" and {len(words) - 3} more gaps" if len(words) > 3 else ""
    where = f"{run.metrics} has lost its rows of iterations {', '.join(words[:3])}{more}"
    return [f"{where}: the run goes on without them"]


def check_stop(run: RunFolder, stop_after: int | None, iteration: int) -> None:
    """Refuse to stop after what is over already.

    Raises:
        TickgraphError: the run has as many iterations behind it, or more.
    """
    if stop_after is not None and stop_after <= iteration:
        raise TickgraphError(
            f"--stop-after is {stop_after}, but {run.path} has {iteration} iterations behind it, and the number counts "
            "the whole run; give a larger one"
        )
