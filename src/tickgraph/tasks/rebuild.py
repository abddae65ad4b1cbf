"""From the words of a command to its task: a new one's, or a run's as its config.yaml has it.

What takes time to load is imported by the functions: the command line imports this file before it can be interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickgraph.core.errors import TickgraphError
from tickgraph.run.arguments import Parsed
from tickgraph.run.packages import check_compiler_cache

if TYPE_CHECKING:
    from tickgraph.run.config import Task
    from tickgraph.run.folder import RunFolder


def load(parsed: Parsed) -> Task:
    """Return the task that a command names, with its algorithm and overrides."""
    from tickgraph.learn.algos import check_algo
    from tickgraph.tasks import registry

    algo = parsed.get("algo")
    if algo is not None:
        check_algo(algo)  # before seconds of loading, which `use` comes behind
    check_compiler_cache()
    task = registry.load(str(parsed.subject))
    if algo is not None:
        task.use(algo)
    from tickgraph.run.settings import apply_overrides

    apply_overrides(task, parsed.overrides)
    return task


def prepare(parsed: Parsed, run: RunFolder) -> Task | None:
    """Return the task with all its settings; None where a run that is to go on has nothing left."""
    if parsed.get("resume") is None:
        return load(parsed)
    from tickgraph.run.panel import tell
    from tickgraph.run.resume import prepare_resume

    task = task_of(run)
    if parsed.subject is not None:
        from tickgraph.tasks import registry

        given = registry.resolve(parsed.subject).name
        if given != task.name:
            raise TickgraphError(f"{run.path} is a run of {task.name!r}, not of {given!r}; leave the task out")
    algo = parsed.get("algo")
    if algo is not None and algo != task.algo:
        raise TickgraphError(f"{run.path} is a run of {task.algo}, not of {algo}; leave --algo out")
    return task if prepare_resume(task, parsed.overrides, run, tell) else None


def task_of(run: RunFolder, check: bool = True) -> Task:
    """Rebuild a run's task from its config.yaml; unchecked where values are set behind it."""
    from tickgraph.run.settings import fit, read_config
    from tickgraph.tasks import registry

    check_compiler_cache()
    config = read_config(run.config)
    task = registry.load(str(config["reference"]))
    fit(task, config, run.config, check)
    return task


def judged(parsed: Parsed, run: RunFolder) -> tuple[Task, list[str]]:
    """Rebuild a run's task, to be played on the run's device and backend unless the command names others.

    Returns:
        The task, and which values of its environment are others than the run's.
    """
    from tickgraph.run.settings import apply_overrides

    task = task_of(run, check=not parsed.overrides)
    changed = apply_overrides(task, parsed.overrides)
    others = [path for path in changed if path.startswith("env.")]
    if others:
        from tickgraph.run.motion_notes import motion_notes, note_lines

        notes = motion_notes(task, task.env.decimation * task.env.scene.timestep)
        for line in note_lines(notes, "are told by `tickgraph motion info`"):
            print(line)
    for given, other in (("device", "backend"), ("backend", "device")):
        if f"train.{given}" in changed and f"train.{other}" not in changed:
            setattr(task.train, other, "auto")  # the one that goes with what was named
    return task, others
