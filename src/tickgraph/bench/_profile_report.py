"""Shows a profile: ranked tables on the terminal, a picture of stacked bars in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tickgraph.bench._case import Case
from tickgraph.bench._profile import profile
from tickgraph.core.words import counted
from tickgraph.run.arguments import table
from tickgraph.run.config import Task
from tickgraph.run.files import make_folder, write_json
from tickgraph.run.manifest import result_header
from tickgraph.run.plot import drawable, save_figure
from tickgraph.sim.platform import resolve_platform

SHOWN_SITES = 12  # allocations beyond these are summed up; whatever hurts more is always shown


def run(task: Task, ticks: int, out: str | None, keep: Callable[[dict[str, Any]], object]) -> None:
    """Profile a task with its own settings of worlds, device, backend and seed; write and show what was found.

    Args:
        task: what is played.
        ticks: ticks that are timed.
        out: folder for profile.json, profile.png and trace.json; by default profiles/TASK.
        keep: takes the result before it is shown, which ends where nobody reads.

    Raises:
        TickgraphError: the platform cannot be had, or the folder cannot be written.
    """
    train = task.train
    place = resolve_platform(train.device, train.backend)
    folder = Path(out) if out is not None else Path("profiles") / task.name
    make_folder(folder, parents=out is None)
    case = Case(
        task=task.name,
        num_envs=task.num_envs,
        backend=place.backend,
        device=place.worlds,
        execution="eager",
        physics_threads=train.physics_threads,
        seed=train.seed,
    )
    result = profile(task, case, ticks, folder, lambda text: print(text, file=sys.stderr, flush=True))
    write_json(folder / "profile.json", {**result_header(), **result})
    draw(result, folder / "profile.png")
    keep(result)
    show(result)
    print(f"{folder / 'profile.json'}, profile.png, trace.json")


def show(result: dict[str, Any]) -> None:
    """Print the tables of a `profile` result."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    over = f"{result['tick_ms']:.3f} ms a tick over {counted(result['ticks'], 'tick')}"
    console.print(f"{_case(result)}, eager: {over}, clock: {result['clock']}")
    on_gpu = any("device_ms" in row for row in result["parts"])
    parts = Table("part of a tick", box=None)
    for name in ("mean ms", "median", "p90", "share", *(("kernels' ms", "kernels", "host waits") if on_gpu else ())):
        parts.add_column(name, justify="right")
    for row in result["parts"]:
        cells = [f"{row['mean_ms']:.3f}", f"{row['median_ms']:.3f}", f"{row['p90_ms']:.3f}", f"{row['share']:.1%}"]
        if on_gpu:
            waits = sum(row["calls"].get(kind, 0) for kind in ("synchronisation", "event synchronisation"))
            cells += [f"{row['device_ms']:.3f}", f"{row['kernels']:g}", f"{waits:g}"]
        parts.add_row(row["part"], *cells)
    console.print(parts)
    if result["stages"]:
        stages = Table("physics by stage", box=None)
        stages.add_column("ms", justify="right")
        stages.add_column("share", justify="right")
        for row in result["stages"]:
            stages.add_row(row["stage"], f"{row['ms']:.3f}", f"{row['share']:.1%}")
        console.print(stages)
    print("\n".join(_sites(result["sites"])))


def _sites(sites: list[dict[str, Any]]) -> list[str]:
    """Return the sites as lines that are not wrapped, so that places can be opened from them."""
    allocations = [site for site in sites if site["kind"] == "allocation"]
    hidden = allocations[SHOWN_SITES:]
    rows = [("kind", "a tick", "bytes", "captured", "place and what")]
    for site in sites:
        if site not in hidden:
            size = f"{site['bytes_per_tick']:,.0f}" if site["bytes_per_tick"] else ""
            region = "inside" if site["inside"] else "log point"
            rows.append((site["kind"], f"{site['per_tick']:g}", size, region, f"{site['place']}  {site['what']}"))
    if hidden:
        count, size = (sum(site[key] for site in hidden) for key in ("per_tick", "bytes_per_tick"))
        rows.append(("allocation", f"{count:g}", f"{size:,.0f}", "", f"{len(hidden)} more places, in profile.json"))
    return table(rows, indent=" ")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw a tick as one stacked bar, its physics as another, and on a GPU the kernels' own time as a third."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars = {"tick": [(row["part"], row["mean_ms"]) for row in result["parts"]]}
    if any("device_ms" in row for row in result["parts"]):
        bars["tick, kernels alone"] = [(row["part"], row["device_ms"]) for row in result["parts"]]
    if result["stages"]:
        bars["physics"] = [(row["stage"], row["ms"]) for row in result["stages"]]
    figure = Figure(figsize=(11.0, 1.6 + 1.3 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    palette = (*colormaps["tab20"].colors, *colormaps["tab20b"].colors)
    colors: dict[str, Any] = {}
    widest = max(sum(value for _, value in parts) for parts in bars.values())
    for name, parts in bars.items():
        left = 0.0
        for part, value in parts:
            color = colors.setdefault(part, palette[len(colors) % len(palette)])
            axes.barh(name, value, left=left, color=color, edgecolor="white", linewidth=0.5)
            if value > 0.011 * len(part) * widest:
                text = f"{part}\n{value:.2f}"
                axes.text(left + value / 2, name, text, ha="center", va="center", fontsize=7, parse_math=False)
            left += value
    handles = [axes.barh(0, 0, color=color) for color in colors.values()]
    legend = figure.legend(handles, list(colors), loc="outside right upper", fontsize=7, frameon=False)
    for entry in legend.get_texts():
        entry.set_parse_math(False)  # names of terms are shown as they are, with dollars
    axes.invert_yaxis()
    axes.set_xlabel("mean ms a tick, played eager")
    axes.set_title(drawable(_case(result)), parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, dpi=150)


def _case(result: dict[str, Any]) -> str:
    return f"{result['task']}, {counted(result['num_envs'], 'world')}, {result['backend']} on {result['device']}"
