"""Streams: results on standard output, readers that have gone, streams that were closed."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tickgraph.run.files import check_result, write_json
from tickgraph.run.output import audience, descriptor_of, is_stream

COMMAND = f"{sys.executable} -m tickgraph"
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "learner_h200.json"


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of bash, with output unbuffered or not as a process of its own has it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True)


FULL = "tickgraph: could not write to standard output: the disk is full"


@pytest.mark.parametrize("target", ["-", "/dev/stdout", "/dev/fd/1"])
@pytest.mark.parametrize("command", ["list", "describe cartpole_swingup", "motion info squat"])
def test_a_result_on_standard_output_is_all_that_is_there(target: str, command: str, tmp_path: Path) -> None:
    done = shell(f"{COMMAND} {command} --json {target}", tmp_path)
    assert done.returncode == 0
    assert {"machine", "versions"} <= set(json.loads(done.stdout))
    assert done.stderr and not done.stderr.startswith("{")  # what people read is there
    assert not list(tmp_path.iterdir())


def test_a_redirected_result_and_a_pipe_of_its_own(tmp_path: Path) -> None:
    done = shell(
        f"{COMMAND} list --json /dev/stdout > a.json; {COMMAND} list --json >(cat > b.json); sleep 0.2", tmp_path
    )
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())
    assert done.stdout.startswith("cartpole_swingup ")


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("{c} list | head -n 0; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("PYTHONUNBUFFERED=1 {c} list | head -n 0; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{c} list --json - 2>/dev/null | head -n 0; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{c} bench report {r} | head -n 0; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{c} list >&-", 0, ""),
        ("{c} train --help >&- 2>&-", 0, ""),
        ("{c} absent >&- 2>&-", 2, ""),
        ("{c} list > /dev/full", 2, f"{FULL}; free some space\n"),
        ("PYTHONUNBUFFERED=1 {c} list > /dev/full", 2, FULL),
        ("{c} list --json - > /dev/full", 2, FULL),
        ("{c} list --json /dev/fd/77", 2, "tickgraph: could not write /dev/fd/77: Bad file descriptor"),
        ("{c} play absent --video -", 2, "tickgraph: could not write -: a stream takes only results"),
    ],
)
def test_streams_that_take_nothing_leave_no_traceback(script: str, code: int, said: str, tmp_path: Path) -> None:
    done = shell(script.format(c=COMMAND, r=RESULT), tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    shown = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("tickgraph:")]
    assert "".join(shown).startswith(said) and bool(shown) == bool(said)


def test_a_script_that_began_without_standard_error_gets_the_result_and_code_0(tmp_path: Path) -> None:
    # bash then has the script itself, open for reading, where standard error belongs, and the command inherits it.
    (tmp_path / "list.sh").write_text(f"exec {COMMAND} list --json -\n")
    done = shell("bash list.sh 2>&-", tmp_path)
    assert done.returncode == 0
    assert {"machine", "tasks"} <= set(json.loads(done.stdout))


def test_what_is_open_for_reading_alone_takes_words_without_a_fault(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("kept")
    for script in (f"{COMMAND} list 1< read", f"{COMMAND} absent 2< read"):
        done = shell(script, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2 if "absent" in script else 0, "", "")
    assert (tmp_path / "read").read_text() == "kept"


def test_a_closed_terminal_stops_the_lines_and_not_the_run() -> None:
    controller, terminal = os.openpty()
    stream = open(terminal, "w")
    os.close(controller)
    for _ in range(2):
        with audience(stream):
            print("nobody reads this", file=stream, flush=True)
    stream.close()


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    write_json(check_result(Path(os.devnull)), {})
    assert is_stream(os.devnull) and not is_stream(tmp_path / "new.json") and not is_stream(tmp_path)
    assert descriptor_of("/dev/stderr") == 2 and descriptor_of("stdout") is None
    assert not Path(os.devnull).is_file()


def test_writing_without_a_descriptor_is_fine() -> None:
    with audience(io.StringIO()) as nothing:
        assert nothing is None
