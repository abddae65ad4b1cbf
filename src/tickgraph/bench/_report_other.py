"""What is kept beside the results of `bench`: runs with their curves, seeds, searches, kernels of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tickgraph.bench._result import finite, is_number, whole
from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.run.files import read_json
from tickgraph.run.plot import drawable

KERNELS = 15  # bars of a trace, those first that took longest
_COLORS = {"fast": "#1f4e9c", "reference": "#b5573f", "trained": "#1f4e9c", "untrained": "#b5573f"}
_CURVES = {
    "episode_return": "return of an episode",
    "episode_length": "length of an episode (control steps)",
    "metric/lin_vel_error": "error of planar velocity (m/s)",
    "metric/yaw_rate_error": "error of yaw rate (rad/s)",
    "env_steps_per_s": "env steps per second",
}
_SEARCHED = {"err": "mean error of forward speed (m/s)", "surv": "survival"}
_COUNTS = ("episodes", "length", "length_s", "return", "invalid")  # of an evaluation, in other units than the rest


@dataclass
class Panel:
    """One pair of axes: curves by name, or bars by name and group."""

    label: str
    x: str = ""
    title: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    bars: dict[str, dict[str, float]] = field(default_factory=dict)


def known(value: dict[str, Any]) -> bool:
    """Return whether a file is one of these, by what it holds."""
    return value.get("benchmark") in ("seeds", "peer_unilab") or (
        "benchmark" not in value
        and any(_looks(value, name) for name in ("curve", "kernels", "profiles", "runs", "run"))
    )


# What other commands write, by keys that only they have together.
_ELSEWHERE = (
    (("sessions", "programs", "seeds"), "a run's manifest", "give run_summary.json, which is beside it"),
    (
        ("evaluation", "run", "iteration"),
        "what `tickgraph eval --json` wrote",
        "the run's summary can be shown",
    ),
    (("tasks",), "what `tickgraph list --json` wrote", ""),
    (("task", "blockers"), "what `tickgraph check --json` wrote", ""),
    (("terms", "observations", "step_dt"), "what `tickgraph describe --json` wrote", ""),
    (("findings",), "what `tickgraph doctor --json` wrote", ""),
    (("verify", "tolerances"), "what `tickgraph verify learner --json` wrote", "the command itself prints it"),
    (("tick_ms", "stages", "mode"), "what `tickgraph profile` wrote", "profile.png is beside it"),
    (("feet", "joints", "jumps"), "what `tickgraph motion info --json` wrote", ""),
    (("traceEvents",), "a trace of `tickgraph profile`", "open it in Perfetto"),
    (
        ("status", "iteration", "env_steps"),
        "the summary of a run that was not evaluated",
        "`tickgraph plot RUN` draws it",
    ),
    (("format", "what", "machine"), "a note of trials, kept to be read", ""),
)


def is_log(path: Path) -> bool:
    """Return whether a file is a run's log: rows of JSON, a line each, by its first one."""
    try:
        with open(path, encoding="utf-8") as file:
            row = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(row, dict) and {"iteration", "env_steps", "time"} <= set(row)


def made_on(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return machine, versions and commit of a run's summary, which its manifest has; nothing for other files."""
    beside = path.with_name("run_manifest.json")
    if "machine" in value or "status" not in value or not beside.is_file():
        return {}
    try:
        manifest = read_json(beside, "manifest of a run")
    except TickgraphError:
        return {}  # the summary can be shown all the same
    return {key: manifest.get(key) for key in ("machine", "versions", "commit", "dirty")}


def elsewhere(value: dict[str, Any], path: Path) -> str | None:
    """Return one line that says what a file is that another command wrote; None for what is known or strange."""
    if "benchmark" in value or (known(value) and not _of_eval(value)):
        return None
    for keys, what, instead in _ELSEWHERE:
        if all(key in value for key in keys):
            tail = f"; {instead}" if instead else ""
            return f"{path} is {what}, not a result of `tickgraph bench`{tail}"
    if value and all(isinstance(step, dict) and {"command", "exit_code"} <= set(step) for step in value.values()):
        return (
            f"{path} is what benchmarks/run_all.py wrote of its {counted(len(value), 'step')}, not a result of "
            "`tickgraph bench`; give a step's own, STEP.json, which was written beside it"
        )
    return None


def _of_eval(value: dict[str, Any]) -> bool:
    return "run" in value and "evaluation" in value


def _looks(value: dict[str, Any], name: str) -> bool:
    if name == "run":
        return isinstance(_summary(value).get("evaluation"), dict)
    return isinstance(value.get(name), dict if name == "profiles" else list)


def _summary(value: dict[str, Any]) -> dict[str, Any]:
    """Return the run's summary that a file holds or is."""
    summary = value.get("summary", value)
    return summary if isinstance(summary, dict) else {}


def panels(value: dict[str, Any], path: Path) -> list[Panel]:
    """Return what is drawn of a file.

    Raises:
        TickgraphError: something in it is not as these files have it.
    """
    with whole(path):
        found = list(_panels(value))
    if not found:
        raise TickgraphError(f"{path} holds nothing that could be drawn")
    return found


def _panels(value: dict[str, Any]) -> Iterator[Panel]:
    if value.get("benchmark") == "seeds":
        yield from _of_seeds(value)
    elif value.get("benchmark") == "peer_unilab":
        yield from _of_peer(value)
    elif _looks(value, "curve"):
        for key, label in _CURVES.items():
            points = [_point(row["env_steps"], row[key]) for row in value["curve"] if row.get(key) is not None]
            if points:
                yield Panel(label, "env steps", curves={"": points})
    elif _looks(value, "kernels"):
        spans = [(finite(length), str(name)) for _, length, name in value["kernels"]]
        yield _of_kernels(spans, f"{len(spans)} kernels, {sum(length for length, _ in spans):,.0f} us")
    elif _looks(value, "profiles"):
        for name, profile in value["profiles"].items():
            spans = [(finite(length), str(kernel)) for length, _, kernel in profile["kernels"]]
            yield _of_kernels(spans, f"{name}: {profile['cycle_ms']:g} ms a cycle")
    elif _looks(value, "runs"):
        for key, label in _SEARCHED.items():
            curves = {
                str(run["run"]): [_point(row["tick"], row[key]) for row in run["evaluations"]] for run in value["runs"]
            }
            yield Panel(label, "ticks", curves=curves)
    else:
        judged = _summary(value)["evaluation"]
        figures = {name: {k: v for k, v in one.items() if _is_figure(k, v)} for name, one in judged.items()}
        yield Panel("figures of the evaluation", bars=figures)


def _point(x: object, y: object) -> tuple[float, float]:
    return finite(x), finite(y)


def _is_figure(name: str, value: object) -> bool:
    return is_number(value) and name not in _COUNTS


def _of_seeds(value: dict[str, Any]) -> Iterator[Panel]:
    for key, label in _CURVES.items():
        rows = [row for row in value["results"] if key in row["curves"]]
        curves = {f"{row['family']} {row['seed']}": [_point(x, y) for x, y in row["curves"][key]] for row in rows}
        if curves:
            yield Panel(label, "env steps", curves=curves)


def _of_peer(value: dict[str, Any]) -> Iterator[Panel]:
    for scenario in dict.fromkeys(row["scenario"] for row in value["results"]):
        rows = [row for row in value["results"] if row["scenario"] == scenario and row.get("median_ms") is not None]
        if rows:
            yield Panel(
                "median ms a cycle",
                title=str(scenario),
                bars={"": {str(row["arm"]): finite(row["median_ms"]) for row in rows}},
            )


def _of_kernels(spans: Sequence[tuple[float, str]], title: str) -> Panel:
    """Return the kernels' microseconds by name, the longest first."""
    sums: dict[str, float] = {}
    for length, name in spans:
        sums[name] = sums.get(name, 0.0) + length
    longest = sorted(sums.items(), key=lambda item: -item[1])[:KERNELS]
    return Panel("microseconds", title=title, bars={"": dict(longest)})


def lines(value: dict[str, Any], path: Path) -> list[str]:
    """Return what is said of a file, behind where it was measured.

    Raises:
        TickgraphError: something in it is not as these files have it.
    """
    with whole(path):
        return _lines(value, path)


def _lines(value: dict[str, Any], path: Path) -> list[str]:
    summary = _summary(value)
    said = [str(value[key]) for key in ("what", "command") if value.get(key)]
    if summary.get("status"):
        said.append(
            f"{summary['status']} after {summary['iteration']:,} iterations, {summary['env_steps']:,} env steps"
        )
        said += [str(summary["reason"])] if summary.get("reason") else []
    if isinstance(summary.get("evaluation"), dict):
        for name, judged in summary["evaluation"].items():
            numbers = [f"{key} {number:.4g}" for key, number in judged.items() if isinstance(number, int | float)]
            said.append(f"{name}: " + ", ".join(numbers))
    for ratio in value.get("ratios", []) if value.get("benchmark") == "seeds" else []:
        text = "ratio -" if ratio["ratio"] is None else f"ratio {ratio['ratio']:.3f}"
        means = f"fast {ratio['fast_mean']:.4g}, reference {ratio['reference_mean']:.4g}"
        met = {True: ", bar met", False: ", bar MISSED"}.get(ratio.get("unharmed_met"), "")
        said.append(f"{ratio['figure']}: {means}, {text}{met}")
    for panel in panels(value, path):
        said += [panel.title] if panel.title else []
        for bars in panel.bars.values() if "evaluation" not in summary else ():
            said += [f"  {number:10.3f}  {name}" for name, number in bars.items()]
        for name, points in panel.curves.items() if "evaluations" not in value else ():
            said.append(f"{name or 'last'} {panel.label}: {points[-1][1]:.4g} at {points[-1][0]:,.0f} {panel.x}")
    return said


def draw(found: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, four in a row.

    Raises:
        TickgraphError: matplotlib cannot write such a file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(found), 2 if any(panel.bars for panel in found) else 4)
    rows = -(-len(found) // columns)
    figure = Figure(
        figsize=(5.2 * columns + (2.5 if any(p.bars for p in found) else 0), 4.2 * rows), layout="constrained"
    )
    FigureCanvasAgg(figure)
    for panel, axes in zip(found, figure.subplots(rows, columns, squeeze=False).flat, strict=False):
        for number, (name, points) in enumerate(panel.curves.items()):
            x, y = zip(*points, strict=True)
            axes.plot(x, y, linewidth=1.1, color=_COLORS.get(name.partition(" ")[0], f"C{number}"), label=name)
        if panel.bars:
            _draw_bars(panel, axes)
        else:
            axes.set(xlabel=panel.x, ylabel=panel.label)
        axes.set_title(drawable(panel.title), fontsize=9, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        if len(panel.curves) > 1 or len(panel.bars) > 1:
            axes.legend(frameon=False, fontsize=7)
    for axes in figure.axes[len(found) :]:
        axes.set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TickgraphError(f"cannot write the plot {str(path)!r}: {' '.join(str(error).split())}") from error


def _draw_bars(panel: Panel, axes: Any) -> None:
    names = list(dict.fromkeys(name for bars in panel.bars.values() for name in bars))
    height = 0.8 / len(panel.bars)
    for number, (group, bars) in enumerate(panel.bars.items()):
        places = [names.index(name) + (number - (len(panel.bars) - 1) / 2) * height for name in bars]
        axes.barh(places, list(bars.values()), height * 0.9, color=_COLORS.get(group, f"C{number}"), label=group)
    axes.set_yticks(range(len(names)), [name if len(name) < 48 else name[:45] + "..." for name in names], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(panel.label)
