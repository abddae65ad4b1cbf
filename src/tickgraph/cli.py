"""The command line; `tickgraph --help` lists its commands."""

from __future__ import annotations

import errno
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickgraph.core.bounds import MOST_REPEATS
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.threads import share_processors
from tickgraph.run.arguments import Parsed, parse, table, usage
from tickgraph.run.commands import COMMANDS
from tickgraph.run.files import write_error
from tickgraph.run.output import UNPRINTED, open_closed_streams, silence, words_beside_result
from tickgraph.run.packages import check_compiler_cache, check_current_folder, import_fault
from tickgraph.run.signals import EXIT_INTERRUPTED, Interrupts, end_as_by_interrupt, interrupted
from tickgraph.run.startup import process_began, rare_collections
from tickgraph.tasks.rebuild import judged, load, prepare, task_of

if TYPE_CHECKING:
    from tickgraph.run.folder import RunFolder

EXIT_FAILED, EXIT_USER_ERROR = 1, 2


def main(argv: Sequence[str] | None = None, interrupts: Interrupts | None = None) -> int:
    """Run one command.

    Args:
        argv: the words behind `tickgraph`; by default those of this process.
        interrupts: installed by a caller that owns the process; otherwise training installs its own and puts back
            what was there.

    Returns:
        The exit code: 0 done, 1 a fault of ours, 2 yours to mend, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        open_closed_streams()
        if words[:1] in (["play"], ["motion"]):  # which make films
            end_as_by_interrupt()
    began = process_began() if argv is None else time.monotonic()
    own = Interrupts().install() if interrupts is None and words[:1] == ["train"] else None
    interrupts = interrupts or own
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names in any script print under any locale, escaped if need be
            stream.reconfigure(errors="backslashreplace")
    share_processors()
    logging.basicConfig(format="warning: %(message)s")
    logging.raiseExceptions = False  # a reader of stderr that has gone is no fault
    try:
        check_current_folder()
        with words_beside_result(words):
            code = _dispatch(words, interrupts, began)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends a process whose reader has gone
            silence(sys.stdout)
            return 0
        named = _of_term(error)
        if named is None:
            raise
        print(f"tickgraph: {named}", file=sys.stderr)
        return EXIT_USER_ERROR
    except Exception as error:
        if interrupted():
            return EXIT_INTERRUPTED
        if isinstance(error, OSError) and error.filename is None and error.errno in UNPRINTED:
            silence(sys.stdout)
            if error.errno == errno.EPIPE:
                return 0  # the reader has gone: there is nobody to tell
            error = write_error(Path("-"), error)
        if "--debug" in words:
            traceback.print_exc()
        error = import_fault(error) or error
        if isinstance(error, MemoryError | RuntimeError):
            from tickgraph.core.memory import out_of_memory

            error = out_of_memory(error, f"`tickgraph {words[0]}`") or error
        error = _of_term(error) or error
        expected = isinstance(error, TickgraphError)
        text = " ".join(str(error).split())
        hint = "" if expected else f"{type(error).__name__}: "
        tail = "" if expected else " (a fault of tickgraph or of the task's code; --debug shows where)"
        print(f"tickgraph: {hint}{text}{tail}", file=sys.stderr)
        return EXIT_USER_ERROR if expected else EXIT_FAILED
    finally:
        if own is not None:
            own.restore()


def _of_term(error: BaseException) -> TickgraphError | None:
    """Return the line that names the term in whose call an error was raised, or None."""
    if "tickgraph.env.env" not in sys.modules:
        return None
    from tickgraph.env.late import of_term

    return of_term(error)


def _dispatch(words: list[str], interrupts: Interrupts | None, began: float) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    name, rest = words[0], words[1:]
    if name == "--version":
        from tickgraph import __version__

        print(f"tickgraph {__version__}")
        return 0
    if name == "bench":
        return _bench(rest)
    if name == "verify":
        return _verify(rest)
    if name == "motion":
        from tickgraph.run.motion import main as motion

        return motion(rest)
    command = COMMANDS.get(name)
    if command is None:
        hint = nearby(name, [*COMMANDS, "motion", "bench", "verify"]) or "see `tickgraph --help`"
        raise TickgraphError(f"there is no command {name!r}; {hint}")
    parsed = parse(command, rest)
    if parsed.help:
        print(usage(command))
        if parsed.subject is not None and command.overrides and command.subject == "TASK":
            print("\n".join(_values(parsed)))
        return 0
    _check_targets(parsed)
    if name == "train":
        assert interrupts is not None
        with rare_collections() as started:
            return _train(parsed, interrupts, began, started)
    run: Callable[[Parsed], int] = {
        "list": _list,
        "describe": _describe,
        "check": _check,
        "eval": _eval,
        "play": _play,
        "export": _export,
        "plot": _plot,
        "profile": _profile,
        "doctor": _doctor,
    }[name]
    return run(parsed)


def _overview() -> str:
    rows = [(command.name, command.subject, command.summary) for command in COMMANDS.values()]
    rows.insert(-1, ("motion", "COMMAND", "convert, judge, film or make reference motion"))
    rows.insert(-1, ("bench", "NAME TASK", "measure speed, with the physics alone as yardstick"))
    rows.insert(-1, ("verify", "learner [TASK]", "prove that every way of running a learner computes the same"))
    return "\n".join(
        [
            "usage: tickgraph COMMAND ...",
            "",
            "Train robots: tasks in plain PyTorch, compiled on a laptop's CPU, the same on a GPU.",
            "",
            "commands:",
            *table(rows),
            "",
            "first steps:",
            "  tickgraph doctor                    what this machine can do",
            "  tickgraph train cartpole_swingup    a few minutes; prints where everything is",
            "  tickgraph COMMAND --help            what a command takes",
        ]
    )


def _list(parsed: Parsed) -> int:
    from tickgraph.tasks import registry

    entries = registry.entries()
    rows = [{"name": e.name, "description": e.description, "source": e.source, "algos": list(e.algos)} for e in entries]
    _write_result(parsed, {"tasks": rows})
    print("\n".join(table(((e.name, ", ".join(e.algos), e.description) for e in entries), indent="")))
    return 0


def _describe(parsed: Parsed) -> int:
    task = load(parsed)
    from tickgraph.run.describe import describe, lines

    value = describe(task)
    _write_result(parsed, value)
    print("\n".join(lines(value)))
    return 0


def _check(parsed: Parsed) -> int:
    from dataclasses import asdict

    task = load(parsed)
    from tickgraph.env.env import Env
    from tickgraph.learn.build import check_groups
    from tickgraph.sim.platform import resolve_platform

    backend = resolve_platform("cpu" if task.train.backend == "auto" else "auto", task.train.backend).backend
    env = Env(task.env, task.num_envs, "meta", backend, "eager")
    check_groups(env.observation_manager.dims)  # before anything is said: the error is all there is to say
    blockers = env.blockers()
    _write_result(parsed, {"task": task.name, "blockers": [asdict(blocker) for blocker in blockers]})
    for blocker in blockers:
        print(blocker)
    print(f"{task.name}: {len(blockers) or 'no'} blocker{'' if len(blockers) == 1 else 's'}")
    return EXIT_USER_ERROR if blockers else 0


def _train(parsed: Parsed, interrupts: Interrupts, began: float, started: Callable[[], None]) -> int:
    from tickgraph.run import folder, manifest
    from tickgraph.run.files import files_below
    from tickgraph.run.interrupted import SignalsOfTraining
    from tickgraph.tasks import registry

    stop_after, resumed = parsed.whole("stop-after"), parsed.get("resume")
    root = Path(parsed.get("runs") or "runs")
    if resumed is None:
        if parsed.subject is None:
            raise TickgraphError("`tickgraph train` needs TASK, or --resume RUN; see `tickgraph train --help`")
        entry = registry.resolve(parsed.subject)
        run = folder.create(root, entry.name, parsed.get("run-name"))
    else:
        if parsed.get("run-name") is not None:
            raise TickgraphError("--run-name names a new run, --resume goes on with an old one; give one of them")
        run = folder.find(resumed, root)
        folder.check_free(run)

    signals = SignalsOfTraining(run, resumed is not None, interrupts)
    try:
        with files_below(run.path):
            task, code = prepare(parsed, run), 0
            if task is not None:
                from tickgraph.run.schedule import Ending
                from tickgraph.run.session import run_training

                signals.ending = ending = Ending()
                resume = resumed is not None
                code = run_training(task, run, interrupts, ending, resume, stop_after, began=began, started=started)
    except (TickgraphError, ModuleNotFoundError):
        if resumed is None and not run.manifest.exists():  # nothing ran: a folder that only holds an error helps nobody
            folder.discard(run)
        raise
    if parsed.get("json") is not None and run.summary.exists():
        _write_result(parsed, manifest.read_summary(run))
    return code


@contextmanager
def _found(parsed: Parsed) -> Iterator[RunFolder]:
    """Give the run that a command names; what the system has against its files inside is one line."""
    from tickgraph.run import folder
    from tickgraph.run.files import files_below

    run = folder.find(str(parsed.subject), Path(parsed.get("runs") or "runs"))
    with files_below(run.path):
        yield run


def _eval(parsed: Parsed) -> int:
    with _found(parsed) as run:
        from tickgraph.run.session import evaluate_run, figures_table, plot_report, report_lines

        task, others = judged(parsed, run)
        figures, iteration = evaluate_run(task, run)
        value = {"task": task.name, "run": str(run.path), "iteration": iteration, "evaluation": figures}
        value["changed"] = parsed.overrides if others else []
        _write_result(parsed, value)
        print(f"{task.name}, {run.path}, iteration {iteration}")
        print("\n".join([*figures_table({"trained": figures}), *report_lines(task, figures)]))
        if others:  # the run's plot is that of its own settings
            print(f"note: judged with another {', '.join(others)} than the run's; no plot is drawn")
        elif task.evaluation.report is not None:
            print(f"plot: {plot_report(task, run, figures)}")
    return 0


def _play(parsed: Parsed) -> int:
    target = parsed.get("video")
    if target is None:
        raise TickgraphError("`tickgraph play` needs --video FILE, the mp4 to write")
    with _found(parsed) as run:
        from tickgraph.run.session import newest_policy
        from tickgraph.run.video import record_video

        task, _ = judged(parsed, run)
        policy, iteration = newest_policy(task, run)
        print(f"{record_video(task, Path(target), policy)}: iteration {iteration}")
    return 0


def _export(parsed: Parsed) -> int:
    with _found(parsed) as run:
        from tickgraph.run.files import check_target

        target = check_target(Path(parsed.get("onnx") or run.path / "policy.onnx"))
        if Path(parsed.get("json") or "-").resolve() == target.resolve():
            raise TickgraphError(f"--json names {target}, which is the policy's file; name another")
        from tickgraph.run.export import export_policy, lines

        value = export_policy(task_of(run), run, target)
        _write_result(parsed, value)
        print("\n".join(lines(value)))
    return 0


def _plot(parsed: Parsed) -> int:
    from tickgraph.run.plot import plot_learning_curve

    with _found(parsed) as run:
        print(plot_learning_curve(run, str(run.path)))
    return 0


def _profile(parsed: Parsed) -> int:
    ticks = parsed.whole("ticks", most=MOST_REPEATS) or 50
    task = load(parsed)
    from tickgraph.bench._profile_report import run

    run(task, ticks, parsed.get("out"), lambda value: _write_result(parsed, value))
    return 0


def _doctor(parsed: Parsed) -> int:
    from tickgraph.run.doctor import examine, report

    findings = examine()
    _write_result(parsed, report(findings))
    print("\n".join(table((("yes" if f.ok else "no", f.what, f"{f.found}: {f.means}") for f in findings), indent="")))
    return 0


def _bench(words: list[str]) -> int:
    import importlib
    import pkgutil

    from tickgraph import bench

    hidden = ("_", "verify_")
    names = [module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith(hidden)]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: tickgraph bench NAME TASK [options]\n\nbenchmarks: {', '.join(names)}")
        return 0
    check_compiler_cache()
    if words[0] in names and words[0] != "report":
        _check_task(words[1:])
    module = importlib.import_module(f"tickgraph.bench.{words[0]}") if words[0] in names else None
    if module is None or not hasattr(module, "main"):
        raise TickgraphError(
            f"there is no benchmark {words[0]!r}; {nearby(words[0], names) or 'see `tickgraph bench --help`'}"
        )
    return int(module.main(words[1:]) or 0)


def _verify(words: list[str]) -> int:
    names = ("learner",)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: tickgraph verify NAME [TASK] [options]\n\nwhat can be verified: {', '.join(names)}")
        return 0
    if words[0] not in names:
        raise TickgraphError(f"there is nothing to verify called {words[0]!r}; it is `tickgraph verify learner`")
    check_compiler_cache()
    _check_task(words[1:])
    from tickgraph.bench.verify_learner import main as verify

    return verify(words[1:])


def _check_task(words: Sequence[str]) -> None:
    """Refuse a task that is not there before its benchmark's parser is loaded, with torch."""
    if words and not words[0].startswith("-"):
        from tickgraph.tasks import registry

        registry.resolve(words[0])


def _values(parsed: Parsed) -> list[str]:
    """Return every value of a task that can be changed, as lines, with its own as they stand without overrides."""
    from tickgraph.run.settings import settings

    task = load(Parsed(parsed.subject, parsed.options))
    rows = ((f"--{s.path.replace('_', '-')}", f"{s.type_name} [{s.shown}]") for s in settings(task))
    head = f"values of {task.name} with {task.algo} that can be changed (its own in brackets):"
    others = [f"(it also has settings for --algo {', '.join(task.presets)})"] if task.presets else []
    return ["", head, *others, *table(rows)]


def _check_targets(parsed: Parsed) -> None:
    """Refuse a result's file that cannot be written before the work, not behind it."""
    from tickgraph.run.files import check_result, check_target

    for option, check in (("json", check_result), ("video", check_target)):
        target = parsed.get(option)
        if target is not None:
            check(Path(target))


def _write_result(parsed: Parsed, value: dict[str, Any]) -> None:
    """Write a command's result where --json says, with machine, versions and commit."""
    target = parsed.get("json")
    if target is None:
        return
    from tickgraph.run.files import write_json
    from tickgraph.run.manifest import result_header

    write_json(Path(target), {**result_header(), **value})
