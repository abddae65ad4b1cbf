"""One `tickgraph train` from lock to summary: start or resume, train, then evaluation, plot and video."""

from __future__ import annotations

import os
import shlex
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.memory import memory_for
from tickgraph.core.words import counted
from tickgraph.env.late import of_term
from tickgraph.run import checkpoint, folder, manifest
from tickgraph.run.config import Task
from tickgraph.run.evaluate import POLICY, check_figures, evaluate
from tickgraph.run.files import files_below
from tickgraph.run.folder import RunFolder
from tickgraph.run.judged import check_held
from tickgraph.run.log import MetricsLog
from tickgraph.run.motion_notes import motion_notes, note_lines
from tickgraph.run.output import say_at_once
from tickgraph.run.panel import make_panel, number, one_line, tell, warn
from tickgraph.run.plot import plot_learning_curve
from tickgraph.run.resume import check_stop, drawn_by, lost_lines, resumed_lines
from tickgraph.run.schedule import Ending
from tickgraph.run.settings import write_config
from tickgraph.run.signals import EXIT_INTERRUPTED, Interrupts
from tickgraph.run.startup import StartUp
from tickgraph.run.trained import edits, told
from tickgraph.run.trainer import Trainer
from tickgraph.run.video import record_video
from tickgraph.sim.platform import resolve_platform


def run_training(
    task: Task,
    run: RunFolder,
    interrupts: Interrupts,
    ending: Ending,
    resume: bool = False,
    stop_after: int | None = None,
    say: Callable[[str], object] = tell,
    began: float | None = None,
    started: Callable[[], object] | None = None,
) -> int:
    """Train in a run's folder; returns the exit code.

    Args:
        task: with all settings applied.
        run: a folder that this process has just made, or one to resume.
        interrupts: installed already.
        ending: is kept up to date, for whoever writes the summary of an interrupt.
        resume: go on from the newest checkpoint that is whole.
        stop_after: iterations of the whole run after which to stop, keeping the schedule.
        say: takes lines for the person who started it.
        began: when the command began, on the clock of `time.monotonic`; by default now.
        started: called once, when the first tick is over.

    Raises:
        TickgraphError: something that a person can mend; the summary says so too.
    """
    startup = StartUp(say, began, started)
    platform = resolve_platform(task.train.device, task.train.backend)
    # What auto means here is what the run was trained with, wherever it is resumed or judged.
    task.train.device, task.train.backend = platform.device, platform.backend
    if platform.note:
        warn(platform.note)
    lock = folder.lock(run)
    try:
        with memory_for("this run"), files_below(run.path):
            return _train(task, run, interrupts, ending, resume, stop_after, say, startup)
    except (Exception, SystemExit) as error:
        if not ending.begun:
            raise  # nothing has changed: an older summary stays true
        named = of_term(error)
        ending.status, ending.reason = "failed", one_line(named or error)
        if not isinstance(error, TickgraphError):
            with suppress(OSError):
                trace = run.path / "traceback.txt"
                trace.write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
        try:
            manifest.write_summary(run, **ending.facts())
        except TickgraphError:
            pass  # the same full disk; the error itself is on its way
        if named is not None:
            raise named from error
        raise
    finally:
        os.close(lock)


def _train(
    task: Task,
    run: RunFolder,
    interrupts: Interrupts,
    ending: Ending,
    resume: bool,
    stop_after: int | None,
    say: Callable[[str], object],
    startup: StartUp,
) -> int:
    saved = None
    if not resume:
        ending.begun = True
        config = write_config(run.config, task)
    else:
        saved, problems = checkpoint.load_newest(run, task.name)
        for problem in problems:
            warn(problem)
        if saved is None:
            say(f"{run.path} has no checkpoint yet; it starts from the first iteration")
        check_stop(run, stop_after, saved.iteration if saved is not None else 0)
    sessions = _sessions(run)
    check_figures(task, task.train.backend)
    startup.reached("loaded_s")  # Python, libraries and the task's settings
    trainer = Trainer(task, run, interrupts, ending, startup)
    trainer.env.sim.check_room(task.evaluation.episodes)  # now, and not behind the training
    if trainer.schedule.warmup >= task.train.iterations:
        warn(
            f"all {task.train.iterations} iterations lie within the {trainer.schedule.warmup} of random actions "
            f"({trainer.schedule.warmup_reason}): nothing is learned"
        )
    elif trainer.schedule.warmup_is_forced and not resume:
        say(f"updates begin after {trainer.schedule.warmup} iterations: {trainer.schedule.warmup_reason}")
    if not resume and not any(trainer.env.termination_manager.is_time_out.values()):
        say(
            "note: no termination is a time limit, so an episode lasts until something else ends it; "
            "TerminationTermCfg(mdp.time_out) ends it after env.episode_length_s"
        )
    notes = motion_notes(task, trainer.env.step_dt)
    said = manifest.read_manifest(run).get("motion_notes") if resume and run.manifest.exists() else None
    for line in note_lines({name: those for name, those in notes.items() if those != (said or {}).get(name)}):
        say(line)
    trainer.prepare()
    if saved is not None:
        trainer.resume(saved)
    if resume:
        config = write_config(run.config, task)
    if saved is not None:
        for line in resumed_lines(task, run, saved):
            say(line)
        for line in lost_lines(run, sessions, saved.iteration):
            warn(line)
    # The summary says how the run ended, and now it has not: a kill from here on leaves none that says "completed".
    ending.begun = True
    run.summary.unlink(missing_ok=True)
    log = MetricsLog(run, after=ending.iteration)
    if saved is None:
        trainer.start()
    del saved
    session = _begin_manifest(trainer, run, sessions, ending.iteration, motion_notes=notes, config=config)
    panel = make_panel(f"{task.name}: {run.path}")
    try:
        panel.note(_how(trainer))
        startup.say, interrupts.say = panel.note, panel.say_at_once
        trainer.train(log, panel, stop_after)
    finally:
        startup.say = say
        panel.close()
        interrupts.say = say_at_once
        log.close()
    startup.reached("wall_command_s")  # the trained policy is saved
    ending.startup_s = startup.seconds
    manifest.write_manifest(run, **session, **trainer.manifest_facts())
    if not ending.finished:
        manifest.write_summary(run, **ending.facts())
        stopped = interrupts.requested is not None
        say(f"{ending.reason}; go on with: tickgraph train --resume {shlex.quote(str(run.path))}")
        return EXIT_INTERRUPTED if stopped else 0
    policy = trainer.policy()
    trainer.close()
    del trainer  # the replay's memory, before other environments are built
    return _close(task, run, ending, interrupts, policy, say)


def _close(
    task: Task,
    run: RunFolder,
    ending: Ending,
    interrupts: Interrupts,
    policy: dict[str, Any],
    say: Callable[[str], object],
) -> int:
    """Judge, plot and film the trained policy. Nothing here can lose the training, which is saved."""
    interrupts.defer(False)
    if interrupts.requested:  # it came with the last iteration; the closing can be had by resuming
        ending.reason = f"{interrupts.requested} after the last iteration, before the evaluation"
        manifest.write_summary(run, **ending.facts())
        say(f"{ending.reason}; go on with: tickgraph train --resume {shlex.quote(str(run.path))}")
        return EXIT_INTERRUPTED
    say(f"trained {counted(ending.iteration, 'iteration')}; evaluating {counted(task.evaluation.episodes, 'episode')}")
    judged: dict[str, Any] = {"trained": evaluate(task, policy)}
    if task.evaluation.untrained:
        judged["untrained"] = evaluate(task, None)
    ending.status = "completed"
    files: dict[str, str] = {}
    manifest.write_summary(run, **ending.facts(), evaluation=judged)
    for line in [*figures_table(judged), *report_lines(task, judged["trained"])]:
        say(line)
    drawings: list[tuple[str, Callable[[], Path]]] = [
        ("plot", lambda: plot_learning_curve(run, f"{task.name}, {run.path.name}"))
    ]
    if task.evaluation.report:
        drawings.append(("report", lambda: plot_report(task, run, judged["trained"])))
    if task.train.video:
        drawings.append(("video", lambda: record_video(task, run.videos / "final.mp4", policy)))
    cut = None
    try:
        with interrupts.breaking():
            for name, make in drawings:
                try:
                    files[name] = str(make().relative_to(run.path))
                except Exception as error:  # a picture is never worth a trained run
                    warn(f"no {name}: {one_line(error)}")
    except KeyboardInterrupt as signal:
        cut = str(signal)
    manifest.write_summary(run, **ending.facts(), evaluation=judged, files=files)
    if cut is not None:
        say(f"{cut}: the run is complete but for what was not drawn yet; {drawn_by(run)}")
    say(f"run folder: {run.path}" + (f" ({', '.join(files.values())})" if files else ""))
    return EXIT_INTERRUPTED if cut is not None else 0


def figures_table(judged: dict[str, dict[str, Any]]) -> list[str]:
    """Return evaluation figures as lines, one a figure, one column a policy."""
    names = list(dict.fromkeys(name for figures in judged.values() for name in figures if name != "report"))
    width = max(map(len, names), default=0)
    lines = [f"  {'':<{width}}  " + "".join(f"{column:>12}" for column in judged)]
    for name in names:
        cells = "".join(f"{number(figures.get(name)):>12}" for figures in judged.values())
        lines.append(f"  {name:<{width}}  {cells}")
    return lines


def report_lines(task: Task, figures: dict[str, Any]) -> list[str]:
    """Return what the task's own report says of evaluation figures, behind an empty line; nothing without one."""
    return [] if task.evaluation.report is None else ["", *task.evaluation.report.lines(figures["report"])]


def plot_report(task: Task, run: RunFolder, figures: dict[str, Any]) -> Path:
    """Draw the task's own report of evaluation figures into the run's plots/; returns the file."""
    assert task.evaluation.report is not None
    return task.evaluation.report.plot(figures["report"], f"{task.name}, {run.path.name}", run.plots)


def evaluate_run(task: Task, run: RunFolder) -> tuple[dict[str, Any], int]:
    """Judge the newest checkpoint of a run; returns its figures and the checkpoint's iteration.

    Raises:
        TickgraphError: the run has no checkpoint that is whole and fits the task.
    """
    policy, iteration = newest_policy(task, run)
    return evaluate(task, policy), iteration


def newest_policy(task: Task, run: RunFolder) -> tuple[dict[str, Any], int]:
    """Return the policy's tensors in the newest whole checkpoint, and its iteration.

    Warns where config.yaml has been edited, or terms or motion files hold other numbers than those it was trained with.
    """
    saved, problems = checkpoint.load_newest(run, task.name)
    for problem in problems:
        warn(problem)
    if saved is None:
        raise TickgraphError(f"{run.path} has no checkpoint yet; train a little longer")
    try:
        edited = edits(run)
    except TickgraphError as error:  # a damaged manifest takes nothing from the policy
        warn(f"not known: whether {run.config} has been edited ({error})")
        edited = None
    if edited:
        warn(f"{run.config} has been edited since it was trained: {told(edited)}; what is judged is what it says now")
    check_held(task, saved.extra.get("held"))
    learn = saved.state.get("learn", {})
    return {name: value for name, value in learn.items() if name.startswith(POLICY)}, saved.iteration


def _sessions(run: RunFolder) -> list[Any]:
    """Return the list of a run's sessions so far; asked before anything is written, as its manifest may be damaged."""
    return list(manifest.read_manifest(run).get("sessions") or []) if run.manifest.exists() else []


def _begin_manifest(
    trainer: Trainer, run: RunFolder, sessions: list[Any], iteration: int, **kept: Any
) -> dict[str, Any]:
    """Write the manifest as the run begins or goes on; returns its sessions, this one included, and what is kept.

    `kept` has `config`, the text of config.yaml: somebody may edit the file, and this is what is trained.
    """
    state = manifest.source_state()
    interval = trainer.task.train.log_interval
    begun = {"started": manifest.now(), "from_iteration": iteration, "log_interval": interval}
    session = {"sessions": [*sessions, {**begun, "versions": manifest.versions(), **state}], **kept}
    manifest.write_manifest(run, **session, **trainer.manifest_facts())
    return session


def _how(trainer: Trainer) -> str:
    facts = trainer.manifest_facts()
    modes = sorted({str(report["enabled"]) for report in facts["programs"].values()})
    threads = facts["threads"]
    overlap = ", updates beside ticks" if facts["overlap"] else ""
    return (
        f"{counted(facts['num_envs'], 'world')} on {facts['device']}, backend {facts['backend']}, "
        f"execution {', '.join(modes)}{overlap}, "
        f"threads: physics {threads['physics']}, tick {threads['tick']}, update {threads['update']}"
    )
