"""What a person sees while a run trains: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

from tickgraph.core.errors import TickgraphError
from tickgraph.run.output import audience, say_at_once
from tickgraph.run.packages import missing_package


@dataclass(frozen=True)
class Progress:
    """Where a run stands. `left_s` is None as long as nothing tells."""

    iteration: int
    iterations: int
    wall_s: float
    left_s: float | None


class Panel(Protocol):
    """Shows rows of the log as they come."""

    def update(self, row: dict[str, Any], progress: Progress) -> None:
        """Show a new row."""

    def note(self, text: str) -> None:
        """Say one line that stays."""

    def say_at_once(self, text: str) -> None:
        """Do that from a signal's handler, which may have interrupted any other writing."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def make_panel(title: str, stream: IO[str] | None = None) -> Panel:
    """Return the live panel on a terminal, plain lines elsewhere."""
    stream = sys.stdout if stream is None else stream
    return LivePanel(title, stream) if stream.isatty() else PlainLines(title, stream)


class PlainLines:
    """One line a row, for files and pipes; a reader that goes away stops the lines, not the run."""

    def __init__(self, title: str, stream: IO[str]) -> None:
        self._stream = stream
        self.note(title)

    def update(self, row: dict[str, Any], progress: Progress) -> None:
        """Write the row's figures on one line."""
        self.note(
            f"iteration {progress.iteration}/{progress.iterations}"
            f"  steps/s {number(row.get('env_steps_per_s'))}"
            f"  return {number(row.get('episode_return'))}  length {number(row.get('episode_length'))}"
            f"  critic {number(row.get('loss/critic_loss'))}  actor {number(row.get('loss/actor_loss'))}"
            f"  left {duration(progress.left_s)}"
        )

    def note(self, text: str) -> None:
        """Write one line."""
        tell(text, self._stream)

    say_at_once = staticmethod(say_at_once)  # a line among figures in a file would be overlooked

    def close(self) -> None:
        """Nothing to put back."""


class LivePanel:
    """A table that is drawn anew with each row; it has no thread, so it takes no time between rows."""

    def __init__(self, title: str, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title, self._stream = title, stream
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._drawing = False
        self._waiting: list[str] = []
        # They hold the stream itself, which the panel takes the place of.
        self._log_handlers = [h for h in logging.getLogger().handlers if getattr(h, "stream", None) is sys.stderr]
        with self._draws():
            self._live.start()
            self._live.update(f"{title}: building and compiling, this takes up to a few minutes", refresh=True)
        self._lead_log_to_stderr()

    def update(self, row: dict[str, Any], progress: Progress) -> None:
        """Draw the row."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel as Box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        head = Table.grid(padding=(0, 3))
        head.add_row(
            f"iteration [bold]{progress.iteration:,}[/] of {progress.iterations:,}",
            f"env steps [bold]{number(row.get('env_steps'))}[/]",
            f"env steps/s [bold]{number(row.get('env_steps_per_s'))}[/]",
            f"time {duration(progress.wall_s)}, left [bold]{duration(progress.left_s)}[/]",
        )
        groups = [
            ("episodes", ("episode_return", "episode_length", "episodes", "terminated", "truncated", "invalid")),
            ("reward terms", [key for key in row if key.startswith("reward/")]),
            ("learner", [key for key in row if key.startswith("loss/")]),
            ("metrics", [key for key in row if key.startswith(("metric/", "curriculum/"))]),
        ]
        tables = Columns([_figures(name, keys, row) for name, keys in groups if keys], padding=(0, 3))
        total = progress.wall_s + progress.left_s if progress.left_s is not None else None
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=total or 1.0, completed=progress.wall_s if total else 0.0))
        # Two columns less than there are, for the ^C behind it: in a line of its own it would shift what is drawn next.
        box = Box(Group(head, bar, tables), title=self._title, width=self._console.width - 2)
        with self._draws():
            self._live.update(box, refresh=True)

    def note(self, text: str) -> None:
        """Print one line above the panel."""
        with self._draws():
            self._console.print(text, markup=False, highlight=False)

    def say_at_once(self, text: str) -> None:
        """Print one line above the panel from a signal's handler: now, or behind the drawing that it interrupted."""
        if self._drawing:
            self._waiting.append(text)
        else:
            try:
                self.note(text)
            except RuntimeError:  # the stream is in the middle of another's line
                say_at_once(text)

    def close(self) -> None:
        """Stop drawing; the last panel stays on the screen."""
        with self._draws():
            self._live.stop()
        self._lead_log_to_stderr()

    def _lead_log_to_stderr(self) -> None:
        for handler in self._log_handlers:
            handler.setStream(sys.stderr)

    @contextmanager
    def _draws(self) -> Iterator[None]:
        self._drawing = True
        try:
            with audience(self._stream):
                yield
        finally:
            self._drawing = False
        while self._waiting:
            self.note(self._waiting.pop(0))


def _figures(name: str, keys: Any, row: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(name, "", box=None, padding=(0, 1), header_style="bold")
    for key in keys:
        table.add_row(key.rpartition("/")[2], number(row.get(key)))
    return table


def number(value: Any) -> str:
    """Return a figure as people read it; "-" where there is none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return seconds as h:mm:ss or m:ss; "-" where unknown."""
    if seconds is None:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def tell(text: str, stream: IO[str] | None = None) -> None:
    """Say one line on `stream`, by default stdout; a reader that has gone is no reason to stop a run."""
    stream = sys.stdout if stream is None else stream
    with audience(stream):
        print(text, file=stream, flush=True)


def warn(text: str) -> None:
    """Say one line on stderr."""
    tell(f"warning: {text}", sys.stderr)


def one_line(error: BaseException) -> str:
    """Return an error as one line: its own text for the user's errors, with its type for others."""
    error = missing_package(error) or error
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, TickgraphError)
        else f"{type(error).__name__}: {text}"
        if text
        else type(error).__name__
    )
