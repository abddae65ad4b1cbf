"""Learning curves: thinned to a bounded number of points whose means are those of all rows."""

from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import MetricsLog
from tickgraph.run.plot import POINTS, Thinned, plot_learning_curve


def test_few_rows_are_drawn_as_they_are() -> None:
    thinned = Thinned(["a", "b"])
    thinned.add(1, {"a": 1.0, "b": None})
    thinned.add(2, {"a": 3.0, "b": 5.0})
    assert thinned.curve("a") == ([1, 2], [1.0, 3.0])
    assert thinned.curve("b") == ([2], [5.0])


def test_many_rows_keep_their_mean_in_bounded_memory() -> None:
    thinned = Thinned(["a"])
    rows = POINTS * 32
    for index in range(rows):
        thinned.add(index, {"a": float(index)})
    x, y = thinned.curve("a")
    assert POINTS <= len(x) <= 2 * POINTS
    assert sum(y) / len(y) == pytest.approx((rows - 1) / 2)
    assert x[-1] == rows - 1


def test_a_run_without_rows_says_so(tmp_path: Path) -> None:
    with pytest.raises(TickgraphError, match="no rows yet"):
        plot_learning_curve(RunFolder(tmp_path), "empty")


def test_a_title_in_any_script_is_drawn(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    run = RunFolder(tmp_path)
    log = MetricsLog(run)
    log.write({"iteration": 1, "env_steps": 10, "episode_return": 1.0})
    log.close()
    for title in ("机器人 $x_ 🤖", "L\udcc3\udca4ufe"):  # the second as a C locale reads Läufe
        path = plot_learning_curve(run, title)
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
