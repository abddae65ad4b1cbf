"""What a person sees: plain lines for files, a live table on a terminal, and a reader that goes away."""

import io
import os

import pytest

from tickgraph.run.panel import LivePanel, PlainLines, Progress, duration, make_panel, number

ROW = {"iteration": 5, "env_steps": 640, "env_steps_per_s": 12345.6, "episode_return": None, "loss/critic": 0.5}


def test_plain_lines_say_where_the_run_stands() -> None:
    stream = io.StringIO()
    panel = make_panel("toy: runs/toy/1", stream)
    panel.update(ROW, Progress(5, 10, 61.0, 3700.0))
    panel.close()
    title, line = stream.getvalue().splitlines()
    assert title == "toy: runs/toy/1"
    assert "iteration 5/10" in line
    assert "steps/s 12,346" in line
    assert "return -" in line
    assert "left 1:01:40" in line


def test_a_reader_that_goes_away_does_not_stop_the_run() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        panel = PlainLines("title", stream)
        panel.update(ROW, Progress(5, 10, 1.0, None))


def test_the_live_panel_shows_every_group() -> None:
    stream = io.StringIO()
    panel = LivePanel("toy", stream)
    panel.update({**ROW, "reward/alive": 0.25, "metric/seven": 7.0}, Progress(5, 10, 61.0, None))
    panel.note("[a note] that stays")
    panel.close()
    shown = stream.getvalue()
    for text in ("iteration 5 of 10", "reward terms", "alive", "0.25", "seven", "[a note] that stays"):
        assert text in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1234567, "1,234,567"), (1234.56, "1,235"), (0.123456, "0.1235"), (0.0, "0"), (-3.2e30, "-3.2e+30")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (59.9, "0:59"), (61, "1:01"), (3661, "1:01:01")])
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
