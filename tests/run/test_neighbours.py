"""Processors that other processes take: what is measured, and when a person hears of it."""

import os
from pathlib import Path

import pytest

from tickgraph.run import manifest, neighbours, trainer
from tickgraph.run.neighbours import Neighbours, advice, busy_seconds, warn_of_threads


class Machine:
    """Two processors, on which this process and others spend seconds."""

    def __init__(self) -> None:
        self.wall, self.own, self.others = 100.0, 7.0, 50.0

    def pass_time(self, wall: float, own: float, others: float) -> None:
        self.wall, self.own, self.others = self.wall + wall, self.own + own, self.others + others

    def neighbours(self) -> Neighbours:
        return Neighbours(10.0, lambda: self.wall, lambda: self.own, lambda: self.own + self.others)


def test_what_others_took_is_counted_by_windows_and_as_a_mean() -> None:
    machine = Machine()
    found = machine.neighbours()
    machine.pass_time(9.0, 18.0, 0.0)
    assert found.look() is None and found.mean() is None
    machine.pass_time(1.0, 2.0, 0.0)
    assert found.look() == 0.0
    machine.pass_time(10.0, 10.0, 10.0)
    assert found.look() == pytest.approx(1.0)
    assert found.mean() == pytest.approx(0.5)


def test_a_system_that_does_not_tell_is_no_fault() -> None:
    found = Neighbours(0.0, lambda: 1.0, lambda: 0.0, lambda: None)
    assert found.look() is None and found.mean() is None


def test_only_the_processors_of_this_process_count(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))[0]
    stat = tmp_path / "stat"
    stat.write_text(
        f"cpu 1 2 3 4 5 6 7 8 9 0\ncpu{mine} 100 20 30 4000 500 6 7 37 90 0\ncpu99999 1 1 1 1 1 1 1 1 1 1\n"
    )
    assert busy_seconds(stat) == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    stat.write_text(f"cpu{mine} 0 0 0 0 0 0 0 0 0 0\n")
    assert busy_seconds(stat) is None
    assert busy_seconds(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("taken", "threads", "own", "said"),
    [
        (0.1, 2, 2, None),  # a quiet machine has its daemons
        (1.2, 16, 16, None),
        (
            1.0,
            2,
            2,
            "keep 1.0 of the 2 processors busy that this run may use: training may be several",
        ),
        (0.7, 1, 2, "keep 0.7 of the 2 processors"),
        (3.0, 16, 16, "keep 3.0 of the 16 processors"),
    ],
)
def test_advice_is_for_those_who_share(taken: float, threads: int, own: int, said: str | None) -> None:
    text = advice(taken, threads, own)
    assert (text is None) == (said is None)
    if text is not None and said is not None:
        assert said in text
        assert ("--train.update-threads 1" in text) == (threads > 1)


def test_a_run_says_it_once_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from run_toys import train

    class Busy:
        def look(self) -> float:
            return 1.0

        def mean(self) -> float:
            return 0.75

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "Neighbours", Busy)
    monkeypatch.setattr("tickgraph.run.neighbours.processors", lambda: 2)
    run = train("one", "--iterations", "8")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: other processes keep 1.0 of the 2 processors busy")
    assert manifest.read_summary(run)["other_processes"] == 0.75


def test_many_threads_on_few_processors_are_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    neighbours._warn_once.cache_clear()
    monkeypatch.setattr(neighbours, "processors", lambda: 2)
    warn_of_threads(8, 1, None)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        warn_of_threads(None, 1000, 1)
    assert capsys.readouterr().err == ("warning: 1000 threads on 2 processors: they wait for one another; use fewer\n")
