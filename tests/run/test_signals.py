"""Signals: at once while nothing can be saved, after the iteration in the loop, at once the second time."""

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

PROGRAM = """
import sys, time
from contextlib import nullcontext
from tickgraph.run.signals import Interrupts, end_as_by_interrupt
interrupts = Interrupts().install()
interrupts.at_exit = lambda name: print("left by", name, flush=True)
interrupts.at_first = lambda name: f"{name} seen"
if sys.argv[1] == "loop":
    interrupts.defer()
if sys.argv[1] == "command":
    interrupts.restore()
    end_as_by_interrupt()
end = time.monotonic() + 30
try:
    with interrupts.breaking() if sys.argv[1] == "film" else nullcontext():
        print("ready", flush=True)
        while time.monotonic() < end and not (interrupts.requested and sys.argv[2] == "obey"):
            time.sleep(0.01)
except KeyboardInterrupt as signal:
    print("removed at", signal, flush=True)
    while sys.argv[2] == "deaf":
        time.sleep(0.01)
print("saved after", interrupts.requested, flush=True)
"""


def _as_at_a_terminal() -> None:
    """Ignore no signal, whatever started these tests does: `nohup`, or a shell's `&`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _run(place: str, obedience: str, *signals: signal.Signals, before: tuple[str, ...] = ()) -> tuple[int, str, str]:
    command = [*before, sys.executable, "-c", PROGRAM, place, obedience]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, preexec_fn=_as_at_a_terminal, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_before_training_a_signal_ends_the_process_at_once() -> None:
    assert _run("start", "obey", signal.SIGINT) == (130, "left by SIGINT\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_in_the_loop_the_first_signal_lets_the_iteration_finish_and_says_so(number: signal.Signals) -> None:
    assert _run("loop", "obey", number) == (0, f"saved after {number.name}\n", f"{number.name} seen\n")


def test_the_second_signal_does_not_wait() -> None:
    assert _run("loop", "deaf", signal.SIGINT, signal.SIGINT) == (130, "left by SIGINT\n", "SIGINT seen\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_where_something_is_half_written_the_first_signal_raises(number: signal.Signals) -> None:
    name = number.name
    assert _run("film", "obey", number) == (0, f"removed at {name}\nsaved after {name}\n", "")
    assert _run("film", "deaf", number, number) == (130, f"removed at {name}\nleft by {name}\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_films_ends_by_each_signal_as_by_the_first(number: signal.Signals) -> None:
    assert _run("command", "obey", number) == (0, "removed at \nsaved after None\n", "")


COMMAND = """
import os, signal, sys
import tickgraph.__main__ as program
how, module = sys.argv.pop(), sys.argv.pop()
class Loading:
    def find_spec(self, name, *_):
        if name == module:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("initialization failed") if how == "made-another-error" else KeyboardInterrupt
sys.meta_path.insert(0, Loading())
sys.exit(program.main())
"""


@pytest.mark.parametrize(
    ("module", "how"),
    [
        ("tickgraph.run.signals", "plainly"),
        ("tickgraph.cli", "plainly"),
        ("tickgraph.tasks.registry", "plainly"),
        ("tickgraph.tasks.registry", "made-another-error"),  # as modules of libraries do that are being loaded
    ],
)
def test_ctrl_c_while_a_command_loads_ends_it_without_a_word(module: str, how: str) -> None:
    command = [sys.executable, "-c", COMMAND, "list", module, how]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, preexec_fn=_as_at_a_terminal, **pipes)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_under_nohup_a_closed_terminal_is_no_reason_to_stop() -> None:
    done = _run("loop", "obey", signal.SIGHUP, signal.SIGTERM, before=("nohup",))
    assert done[:2] == (0, "saved after SIGTERM\n")
