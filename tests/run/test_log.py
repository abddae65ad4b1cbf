"""The log: strict JSON rows, resumed without a double or a gap, readable though cut short; TensorBoard alike."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tickgraph.core.errors import TickgraphError
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import MetricsLog, iter_rows


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def _write(run: RunFolder, first: int, last: int, after: int = 0) -> None:
    log = MetricsLog(run, after)
    for iteration in range(first, last + 1):
        log.write({"iteration": iteration, "time": float(iteration), "episode_return": 0.5 * iteration, "none": None})
    log.close()


def _strict(path: Path) -> list[dict[str, object]]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def _events(run: RunFolder) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("episode_return")]


def test_what_is_not_finite_is_null(run: RunFolder) -> None:
    log = MetricsLog(run)
    log.write({"iteration": 1, "a": math.nan, "b": math.inf, "c": 1.5, "d": None, "name": "é"})
    log.close()
    assert _strict(run.metrics) == [{"iteration": 1, "a": None, "b": None, "c": 1.5, "d": None, "name": "é"}]


def test_a_row_is_readable_as_soon_as_it_is_written(run: RunFolder) -> None:
    log = MetricsLog(run)
    log.write({"iteration": 1})
    assert [row["iteration"] for row in iter_rows(run.metrics)] == [1]
    log.close()


def test_resuming_drops_what_the_checkpoint_does_not_know(run: RunFolder) -> None:
    _write(run, 1, 7)
    _write(run, 6, 9, after=5)
    assert [row["iteration"] for row in _strict(run.metrics)] == list(range(1, 10))
    assert _events(run) == [(i, 0.5 * i) for i in range(1, 10)]


def test_a_line_cut_by_a_kill_troubles_nobody(run: RunFolder) -> None:
    _write(run, 1, 3)
    whole = run.metrics.read_bytes()
    for cut in (b'{"iteration": 4, "ti', b'{"iteration": 4}', b"\xff\xfe"):
        run.metrics.write_bytes(whole + cut)
        assert [row["iteration"] for row in iter_rows(run.metrics)] == [1, 2, 3]
    _write(run, 4, 4, after=3)
    assert [row["iteration"] for row in _strict(run.metrics)] == [1, 2, 3, 4]


def test_a_broken_line_inside_is_named(run: RunFolder) -> None:
    _write(run, 1, 3)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text(lines[0] + "oops\n" + lines[2])
    with pytest.raises(TickgraphError, match=r"metrics\.jsonl:2 is not a row"):
        list(iter_rows(run.metrics))


def test_nulls_leave_gaps_in_tensorboard(run: RunFolder) -> None:
    log = MetricsLog(run)
    log.write({"iteration": 1, "time": 1.0, "episode_return": None})
    log.write({"iteration": 2, "time": 2.0, "episode_return": 3.0})
    log.close()
    assert _events(run) == [(2, 3.0)]


def test_reading_a_long_log_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    row = json.dumps({"iteration": 1, "env_steps": 5, "episode_return": 1.0, **{f"reward/{i}": 0.1 for i in range(20)}})
    path.write_text((row + "\n") * 50_000)
    # VmHWM, for ru_maxrss of a child starts at what its parent held, here all of pytest.
    code = (
        "import re, sys; from pathlib import Path; from tickgraph.run.folder import RunFolder\n"
        "from tickgraph.run.plot import plot_learning_curve\n"
        "plot_learning_curve(RunFolder(Path(sys.argv[1])), 'long')\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500 * 1024  # KiB, of which Python and matplotlib take most
    assert (tmp_path / "plots" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
