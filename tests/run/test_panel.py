"""What a person sees: plain lines for files, a live table on a terminal, and a reader that goes away."""

import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from tickgraph.run.panel import LivePanel, PlainLines, Progress, duration, make_panel, number
from tickgraph.run.signals import Interrupts

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


class Terminal(io.StringIO):
    """A terminal of 80 columns on which something happens while it is written to for the first time after `at`."""

    def __init__(self) -> None:
        super().__init__()
        self.at: Callable[[], object] | None = None

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        at, self.at = self.at, None
        if at is not None:
            at()
        return super().write(text)


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch) -> Iterator[LivePanel]:
    """Return a live panel whose console remembers what it printed, without the cursor's moves."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    panel = LivePanel("toy", Terminal())
    panel._console.record, panel._console.width = True, 80
    yield panel
    panel.close()


def in_the_loop(panel: LivePanel) -> Interrupts:
    interrupts = Interrupts()
    interrupts.at_first, interrupts.say = (lambda name: f"{name}: [finishing]"), panel.say_at_once
    interrupts.defer()
    return interrupts


def test_what_the_first_signal_says_stands_above_the_live_panel(panel: LivePanel) -> None:
    panel.update(ROW, Progress(5, 10, 61.0, None))
    in_the_loop(panel)._handle(signal.SIGINT, None)
    # From where the panel's last line ends the cursor goes back to its first; it is drawn anew below.
    assert "╯SIGINT: [finishing]\n╭" in panel._console.export_text()


def test_a_signal_while_the_panel_is_drawn_waits_for_the_end_of_the_drawing(panel: LivePanel) -> None:
    panel._stream.at = lambda: in_the_loop(panel)._handle(signal.SIGINT, None)
    panel.update(ROW, Progress(5, 10, 61.0, None))
    text = panel._console.export_text()
    assert "╯SIGINT: [finishing]\n╭" in text
    assert [letter for letter in text if letter in "╭╰"] == ["╭", "╰", "╭", "╰"]


def test_a_signal_while_another_line_is_written_is_told_all_the_same(
    panel: LivePanel, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RuntimeError("reentrant call")

    panel._stream.at = refuse
    in_the_loop(panel)._handle(signal.SIGINT, None)
    assert capfd.readouterr().err.strip() == "SIGINT: [finishing]"


def test_the_live_panel_leaves_the_end_of_a_line_to_the_terminals_own_word_for_ctrl_c(panel: LivePanel) -> None:
    panel.update(ROW, Progress(5, 10, 61.0, None))
    assert max(map(len, panel._console.export_text().splitlines())) == 80 - len("^C")


def test_what_is_logged_stands_above_the_live_panel_and_goes_to_stderr_again_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, stderr, log = Terminal(), sys.stderr, logging.getLogger("tickgraph.test")
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        panel = LivePanel("toy", stream)
        log.warning("falls back")
        shown = stream.getvalue()
        panel.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert "falls back\ntoy: building" in shown
    assert handler.stream is stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1234567, "1,234,567"), (1234.56, "1,235"), (0.123456, "0.1235"), (0.0, "0"), (-3.2e30, "-3.2e+30")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (59.9, "0:59"), (61, "1:01"), (3661, "1:01:01")])
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
