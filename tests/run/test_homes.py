"""Paths that begin with ~ of which nobody knows the home, and names too long for any file, are told in one line."""

from pathlib import Path

import pytest

from tickgraph.bench._result import read_result
from tickgraph.core.errors import TickgraphError
from tickgraph.motion.load import find as find_motion
from tickgraph.run.files import check_result
from tickgraph.run.folder import find as find_run
from tickgraph.tasks.registry import resolve

CASES = [
    (find_run, "~nobody_here/run", "there is no run '~nobody_here/run'"),
    (find_motion, "~nobody_here/a.npz", r"there is no motion file /.*/~nobody_here/a\.npz"),
    (resolve, "~nobody_here/task.py:make", r"there is no task file '~nobody_here/task\.py'"),
]
LONG = "a" * 300
TOO_LONG = [
    (find_run, LONG, f"{LONG}: File name too long"),
    (find_motion, f"{LONG}.npz", rf"^{LONG}\.npz cannot be read: File name too long"),
    (resolve, f"{LONG}.py:make", rf"there is no task file '{LONG}\.py'"),
    (lambda name: read_result(Path(name)), LONG, f"there is no file '{LONG}'"),
    (lambda name: check_result(Path(name)), LONG, f"could not write {LONG}: File name too long"),
]


@pytest.mark.parametrize(("find", "path", "line"), [*CASES, *TOO_LONG])
def test_a_path_that_nobody_has_is_one_line(find, path: str, line: str) -> None:
    with pytest.raises(TickgraphError, match=line):
        find(path)


def test_a_known_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "task.py").write_text("def make(): ...\n")
    assert resolve("~/task.py:make").factory == f"{tmp_path / 'task.py'}:make"
