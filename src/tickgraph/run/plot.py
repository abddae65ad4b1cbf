"""The learning curve of a run as a picture, from its log, in bounded memory however long the log is."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import make_folder, write_atomically
from tickgraph.run.folder import RunFolder
from tickgraph.run.log import iter_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 2000  # more than a picture has columns
CURVES = (
    ("episode_return", "return of an episode"),
    ("episode_length", "length of an episode (control steps)"),
    ("loss/critic_loss", "critic loss"),
    ("env_steps_per_s", "env steps per second"),
)


class Thinned:
    """Curves of at most 2 * POINTS points: when they are full, neighbours are averaged and later rows too."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(keys)
        self._points: list[tuple[float, dict[str, tuple[float, int]]]] = []
        self._stride, self._open = 1, 0

    def add(self, x: float, row: dict[str, Any]) -> None:
        """Take one row; keys that it lacks, or has as null, leave a gap."""
        sums = {key: (float(row[key]), 1) for key in self.keys if row.get(key) is not None}
        if self._open:
            self._points[-1] = (x, _merged(self._points[-1][1], sums))
        else:
            self._points.append((x, sums))
        self._open = (self._open + 1) % self._stride
        if len(self._points) >= 2 * POINTS and not self._open:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [(second[0], _merged(first[1], second[1])) for first, second in pairs]
            self._stride *= 2

    def curve(self, key: str) -> tuple[list[float], list[float]]:
        """Return x and the mean of `key` at each x that has one."""
        found = [(x, sums[key][0] / sums[key][1]) for x, sums in self._points if key in sums]
        return [x for x, _ in found], [y for _, y in found]


def _merged(a: dict[str, tuple[float, int]], b: dict[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    keys = {**a, **b}
    zero = (0.0, 0)
    return {k: (a.get(k, zero)[0] + b.get(k, zero)[0], a.get(k, zero)[1] + b.get(k, zero)[1]) for k in keys}


def plot_learning_curve(run: RunFolder, title: str) -> Path:
    """Draw return, length, loss and speed over env steps into plots/learning_curve.png; returns the file.

    Raises:
        TickgraphError: the log has no rows yet, or the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    thinned = Thinned(key for key, _ in CURVES)
    for row in iter_rows(run.metrics) if run.metrics.exists() else ():
        thinned.add(row.get("env_steps") or row["iteration"], row)
    curves = [(name, *thinned.curve(key)) for key, name in CURVES]
    if not any(x for _, x, _ in curves):
        raise TickgraphError(f"{run.metrics} has no rows yet; train a little longer")
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), parse_math=False)
    for axes, (name, x, y) in zip(figure.subplots(2, 2).flat, curves, strict=True):
        axes.plot(x, y, linewidth=1.2, marker="." if len(x) < 30 else "")
        axes.set(xlabel="env steps", ylabel=name)
        axes.grid(alpha=0.3)
    return save_figure(figure, run.plots / "learning_curve.png")


def drawable(name: str) -> str:
    """Return a name as a picture can show it: bytes that are no text in this locale are escaped, as on a terminal."""
    return name.encode("utf-8", "backslashreplace").decode()


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> Path:
    """Write a figure as a png, whose folder is made; returns the file."""
    make_folder(path.parent)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in scripts that the font lacks: boxes will do
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=dpi))
    return path
