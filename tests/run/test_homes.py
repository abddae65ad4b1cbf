"""Paths that begin with ~ of which nobody knows the home are paths that do not exist, told in one line."""

from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.motion.load import find as find_motion
from tickgraph.run.folder import find as find_run
from tickgraph.tasks.registry import resolve

CASES = [
    (find_run, "~nobody_here/run", "there is no run '~nobody_here/run'"),
    (find_motion, "~nobody_here/a.npz", r"there is no motion file /.*/~nobody_here/a\.npz"),
    (resolve, "~nobody_here/task.py:make", r"there is no task file '~nobody_here/task\.py'"),
]


@pytest.mark.parametrize(("find", "path", "line"), CASES)
def test_an_unknown_home_is_one_line(find, path: str, line: str) -> None:
    with pytest.raises(TickgraphError, match=line):
        find(path)


def test_a_known_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "task.py").write_text("def make(): ...\n")
    assert resolve("~/task.py:make").factory == f"{tmp_path / 'task.py'}:make"
