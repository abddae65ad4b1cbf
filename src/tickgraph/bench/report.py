"""Shows results of benchmarks: a table on the terminal, a plot in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import isfile  # unlike Path's, False for a name that is too long
from pathlib import Path
from typing import Any

from tickgraph.bench import _report_other
from tickgraph.bench._bars import BAR_BLOCKS
from tickgraph.bench._options import Parser, picture
from tickgraph.bench._result import finite, read_result, whole
from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.run.files import read_json
from tickgraph.run.plot import drawable

_KEY = ("task", "backend", "device", "num_envs", "scenario")
# What is written over a group of bars, by benchmark, and what a bar is the time of.
_DRAWN = {
    "collector": ("tick_over_physics", "tick / physics", "a tick"),
    "train": ("graph_over_eager", "graph / eager", "an iteration"),
    "learner": ("over_floor", "fastest / floor", "a cycle"),
}
_COLORS = {
    "physics": "#9aa5b1",
    "advance": "#5b8def",
    "tick": "#1f4e9c",
    "graph": "#1f4e9c",
    "tick_aa": "#c3d4f5",
    "captured_eager": "#5b8def",
    "captured-eager": "#a9c0f2",
    "graph-autograd": "#5b8def",
    "eager-written": "#d99a86",
    "compile-loss": "#efc98f",
    "compile": "#e0a458",
    "eager": "#b5573f",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tickgraph bench report` with the words after it; returns the exit code.

    Raises:
        TickgraphError: a file is missing or malformed.
    """
    parser = Parser(
        prog="tickgraph bench report",
        description="Show results that `tickgraph bench ... --json` wrote, summaries of runs, and the runs, seeds, "
        "searches and traces that are kept in benchmarks/results.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw them (png, svg or pdf)")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")
    options = parser.parse_args(argv)
    others = {path: value for path in options.files if (value := _other(path)) is not None}
    results = {path: read_result(path) for path in options.files if path not in others}
    said, groups = list[Any](), list[_Group]()
    for path, result in results.items():
        with whole(path):
            said += _shown(result)
            groups += _groups(result)
    for path, value in others.items():
        with whole(path):
            said.append(f"{path.name}: {_measured_on(value)}")
        said += _report_other.lines(value, path)
    if options.plot is not None:
        if others and results:
            raise TickgraphError(f"{next(iter(others))} is no result of `bench` as the others are: draw them apart")
        if others:
            _report_other.draw(
                [panel for path, it in others.items() for panel in _report_other.panels(it, path)], options.plot
            )
        else:
            _draw(groups, [result["benchmark"] for result in results.values()], options.plot)
    _say(said)
    return 0


def _other(path: Path) -> dict[str, Any] | None:
    """Return what a file holds that is no result of `bench` but known beside them, or None.

    Raises:
        TickgraphError: another command wrote it.
    """
    if isfile(path) and _report_other.is_log(path):
        raise TickgraphError(
            f"{path} is a run's log, not a result of `tickgraph bench`; give run_summary.json, which is beside it, or "
            "draw the log with `tickgraph plot RUN`"
        )
    value = read_json(path, "result") if isfile(path) else {}
    if (foreign := _report_other.elsewhere(value, path)) is not None:
        raise TickgraphError(foreign)
    return {**_report_other.made_on(value, path), **value} if _report_other.known(value) else None


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print every result: for each case a table of its arms and one of its ratios."""
    for result in results:
        _say(list(_shown(result)))


def _say(parts: Sequence[Any]) -> None:
    """Print lines and tables, each as wide as it is: what is cut or wrapped cannot be read or searched in a file."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for part in parts:
        if not isinstance(part, str):
            console.width = max(
                console.width, console.measure(part, options=console.options.update(width=1000)).maximum
            )
        console.print(part)


def _shown(result: dict[str, Any]) -> Iterator[Any]:
    """Yield what is said of a result, as lines and tables."""
    yield _measured_on(result)
    for ratio in result["ratios"]:
        rows = [row for row in result["results"] if all(row[key] == ratio[key] for key in _KEY)]
        kind = result["benchmark"]
        title = f"{ratio['task']}, {counted(ratio['num_envs'], 'world')}, {ratio['scenario']}, {ratio['backend']}"
        if kind == "learner":
            title = f"{ratio['task']}, {ratio['scenario']}, {ratio['device']}"
        elif said := _learner_of(rows):
            title += f", {said}"
        yield f"\n{title}"
        yield {"train": _train_arms, "learner": _learner_arms}.get(kind, _arms)(rows)
        ratios = _ratios(ratio)
        if ratios.row_count:
            yield ratios
        for row in rows:
            if row.get("parts"):
                yield _parts(row["parts"])
        yield from _facts(ratio, rows)
        if not ratio.get("aa_within_2_percent", True):
            yield "The machine was too busy: a tick differs from itself by more than 2%. Measure again."


def _learner_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the algorithm and the batch of a measurement of training, which its scenario does not say; else ""."""
    row = rows[0] if rows else {}
    return f"{row['algo']}, batch {row['batch_size']}" if {"algo", "batch_size"} <= set(row) else ""


def _measured_on(result: dict[str, Any]) -> str:
    """Return machine, versions and commit of a result."""
    machine, versions = result.get("machine") or {}, result.get("versions") or {}
    commit = (result.get("commit") or "no commit")[:10] + (" with changes" if result.get("dirty") else "")
    mujoco = versions.get("mujoco-core") or versions.get("mujoco")
    processor, cores = machine.get("processor") or machine.get("system"), machine.get("cores")
    facts = [
        f"{processor or 'unknown machine'}" + (f", {cores} cores" if cores else ""),
        *machine.get("gpus", []),
        f"torch {versions.get('torch')}, MuJoCo {mujoco}",
        *(f"{name} {versions[name]}" for name in ("mujoco-warp", "warp-lang") if name in versions),
    ]
    return "; ".join([*facts, commit])


def _arms(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("arm", box=None)
    for name in ("mean ms", "median", "p90", "p95", "ticks", "env steps/s", "memory"):
        table.add_column(name, justify="right")
    for row in rows:
        memory = row["allocated_bytes_delta"]
        table.add_row(
            str(row["arm"]),
            *(f"{row[key]:.3f}" for key in ("mean_ms", "median_ms", "p90_ms", "p95_ms")),
            str(row["ticks"]),
            f"{row['num_envs'] * 1e3 / row['mean_ms']:,.0f}",
            "" if memory is None else f"{memory / 1e6:+.2f} MB",
        )
    return table


def _train_arms(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("arm", box=None)
    for name in ("mean ms", "median", "p90", "p95", "ticks", "updates", "overlap", "enqueue", "steps/s"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["arm"]),
            *(f"{row[key]:.2f}" for key in ("mean_ms", "median_ms", "p90_ms", "p95_ms", "collector_ms", "learner_ms")),
            "" if row["overlap_share"] is None else f"{row['overlap_share']:.0%}",
            "" if row["enqueue_ms"] is None else f"{row['enqueue_ms']:.3f}",
            f"{row['tail_env_steps_per_sec']:,.0f}",
        )
    return table


def _learner_arms(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None)
    table.add_column("path", no_wrap=True)
    for name in ("mean ms", "median", "p90", "p95", "cycles", "nodes", "/ floor"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["arm"]),
            *(f"{row[key]:.3f}" for key in ("mean_ms", "median_ms", "p90_ms", "p95_ms")),
            str(row["ticks"]),
            "" if row["graph_nodes"] is None else f"{row['graph_nodes']:,}",
            f"{row['over_floor']:.2f}",
        )
    return table


def _parts(parts: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("part of a tick", box=None)
    for name in ("mean ms", "median", "share"):
        table.add_column(name, justify="right")
    for part in parts:
        table.add_row(str(part["part"]), f"{part['mean_ms']:.3f}", f"{part['median_ms']:.3f}", f"{part['share']:.1%}")
    return table


_COUNTS = {
    "host_syncs_per_tick": "host synchronisations",
    "graph_launches_per_tick": "graph launches",
    "kernel_launches_per_tick": "kernel launches",
    "graph_nodes": "graph nodes",
}


def _facts(ratio: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a measurement says beside its times, as lines."""
    lines = _learner_facts(ratio) if "fastest" in ratio else []
    for key, unit in (("solver", "solver"), ("capacities", "backend")):
        if key in ratio:
            lines.append(f"{unit}: " + ", ".join(f"{name} {value}" for name, value in ratio[key].items()))
    lines += _iteration_facts(ratio, rows)
    blocks = min((row.get("blocks", BAR_BLOCKS) for row in rows), default=BAR_BLOCKS)
    if any(ratio.get(f"{name}_bar") is not None for name in ("tick", "advance")) and blocks < BAR_BLOCKS:
        lines.append(f"too few blocks for a verdict on a bar: {blocks}, which takes at least {BAR_BLOCKS}")
    for row in rows:
        if row.get("host_syncs_per_tick") is not None:
            counts = [f"{row[key]:g} {words}" for key, words in _COUNTS.items() if row.get(key) is not None]
            lines.append(f"{row['arm']}, a tick: {', '.join(counts)}")
        if row.get("memory_growth"):
            lines.append(
                f"memory from tick {row['memory_ticks'][0]} to {row['memory_ticks'][1]}: {_grown(row['memory_growth'])}"
            )
    proof = ratio.get("capture_proof")
    if proof:
        calls = ", ".join(f"{name} {count}" for name, count in proof["api_calls"].items())
        said = "holds" if proof["holds"] else "BROKEN (" + "; ".join(proof["violations"]) + ")"
        what = "iterations" if "memory_proof" in ratio else "ticks"
        lines.append(f"capture over {proof['iterations']} {what} {said}: {calls}")
    memory = ratio.get("memory_proof")
    if memory:
        first, last = memory["iterations"]
        lines.append(f"memory from iteration {first} to {last}: {_grown(memory['growth'])}")
    return lines


def _grown(growth: dict[str, int | None]) -> str:
    """Return by how much each figure of memory grew, as words."""
    return ", ".join(
        f"{name} {value:+,}" if value is not None else f"{name} not judged, as others use the device"
        for name, value in growth.items()
    )


def _learner_form(config: dict[str, Any]) -> str:
    """Return how an arm's learner computed, as far as its result says."""
    said = [f"{name} {config[name]}" for name in ("learner_kernels", "gradients") if name in config]
    return "".join(f"; {words}" for words in said)


def _iteration_facts(ratio: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a measurement of training says of the parts of an iteration, as lines; for other results none."""
    lines = []
    for row in rows:
        if "training_config" not in row:
            continue
        config = row["training_config"]
        parts = ", ".join(
            f"{name.removesuffix('_ms')} {row[name]['mean']:.3f} (p95 {row[name]['p95']:.3f})"
            for name in ("learner_train_ms", "collector_cycle_ms", "iter_ms")
        )
        counts = ", ".join(f"{config[f'{name}_updates']:g} {name}" for name in ("critic", "actor", "temperature"))
        share = ratio.get(f"{row['arm']}_learner_over_eager")
        over = "" if share is None else f"; learner over eager {share:.3f}"
        lines.append(
            f"{row['arm']}, last {counted(config['summary_last'], 'iteration')}, mean ms: {parts}; {counts} updates"
            f"{over}{_learner_form(config)}"
        )
    for name, words in (
        ("compile_learner", "compiled learner over eager"),
        ("iter_mean", "mean ms of an iteration"),
        ("iter_p95", "p95 ms of an iteration"),
    ):
        if f"{name}_bar" in ratio:
            met = "met" if ratio[f"{name}_met"] else "MISSED"
            lines.append(f"{words}: at most {ratio[f'{name}_bar']}: {met}")
    if "graph_learner_met" in ratio:
        lines.append(f"graph's learner at most the compiled one's: {'met' if ratio['graph_learner_met'] else 'MISSED'}")
    return lines


def _few_digits(number: float) -> str:
    return f"{number:,.1f}" if number >= 100.0 else f"{number:.3g}"


def _learner_facts(ratio: dict[str, Any]) -> list[str]:
    lines = [
        f"floor {ratio['floor_ms']:.3f} ms: {_few_digits(ratio['gflop'])} GFLOP at "
        f"{ratio['matmul_tflops']:.3g} TFLOP/s take {ratio['floor_flops_ms']:.3f} ms, "
        f"{_few_digits(ratio['gbyte'])} GB at {ratio['copy_gb_per_s']:.4g} GB/s "
        f"{ratio['floor_bytes_ms']:.3f} ms",
        f"fastest: {ratio['fastest']}, {ratio['fastest_ms']:.3f} ms, {ratio['over_floor']:.2f} times the floor",
    ]
    for what in ("bar", "aim"):
        if ratio.get(f"learner_{what}") is not None:
            met = "met" if ratio[f"learner_{what}_met"] else "MISSED"
            lines.append(f"{what}: at most {ratio[f'learner_{what}']} ms: {met}")
    return lines


def _ratios(row: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("ratio", "median", "95% interval", "", box=None)
    modes = [name for name in ("captured_eager", "compile", "eager") if name != row.get("tick_arm")]
    known = (
        ("tick_over_physics", "ci95", "tick_bar", "tick_bar_met"),
        *((f"{mode}_over_physics", f"{mode}_ci95", "", "") for mode in modes),
        ("advance_over_physics", "advance_ci95", "advance_bar", "advance_bar_met"),
        ("aa", "aa_ci95", None, "aa_within_2_percent"),
        ("non_physics_ms", "non_physics_ci95", "", ""),
        ("graph_over_eager", "graph_over_eager_ci95", "graph_over_eager_bar", "graph_over_eager_met"),
    )
    # Between what arms and paths there were, each has its interval beside it.
    others = [name for name in row if f"{name}_ci95" in row and name not in [other for other, *_ in known]]
    for name, interval, bar, met in (*known, *((name, f"{name}_ci95", "", "") for name in others)):
        if name in row:
            low, high = row[interval]
            table.add_row(name, f"{row[name]:.4f}", f"{low:.4f} to {high:.4f}", _verdict(row, bar, met))
    if row.get("enqueue_bar") is not None:
        table.add_row(
            "enqueue ms", "", "", f"at most {row['enqueue_bar']}: {'met' if row['enqueue_met'] else 'MISSED'}"
        )
    if row.get("speed_bar") is not None:
        said = f"at least {row['speed_bar']:,.0f}: {'met' if row['speed_bar_met'] else 'MISSED'}"
        table.add_row("env steps/s", f"{row['env_steps_per_s']:,.0f}", "", said)
    return table


def _verdict(row: dict[str, Any], bar: str | None, met: str) -> str:
    if bar is None:
        return "within 2%" if row.get(met) else "NOT within 2%"
    if row.get(bar) is None:
        return ""
    words = "at least" if bar == "graph_over_eager_bar" else "at most"
    return f"{words} {row[bar]}: {'met' if row[met] else 'MISSED'}"


@dataclass
class _Group:
    """Bars of one case of one result."""

    label: str
    over: str
    """What stands over them."""
    bars: dict[str, float]
    """Median milliseconds by arm."""
    floor: float | None


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the milliseconds of each arm, grouped by case, with the ratio over each group.

    Raises:
        TickgraphError: they are of different benchmarks, or matplotlib cannot write such a file.
    """
    groups = [group for result in results for group in _groups(result)]
    _draw(groups, [result["benchmark"] for result in results], path)


def _groups(result: dict[str, Any]) -> Iterator[_Group]:
    """Yield what is drawn of a result, case by case."""
    key, words, _ = _DRAWN[result["benchmark"]]
    beside = "{scenario}" if key == "over_floor" else "{num_envs} worlds, {scenario}"
    for ratio in result["ratios"]:
        mine = [row for row in result["results"] if all(row[name] == ratio[name] for name in _KEY)]
        if not mine:
            raise ValueError(f"no row of results is of the case {', '.join(str(ratio[name]) for name in _KEY)}")
        said = "" if key == "over_floor" else _learner_of(mine)
        yield _Group(
            f"{ratio['task']}\n{beside.format(**ratio)}" + (said and f"\n{said}"),
            f"{words}\n{ratio[key]:.3f}" if ratio.get(key) is not None else "",
            {str(row["arm"]): finite(row["median_ms"]) for row in mine},
            finite(ratio["floor_ms"]) if "floor_ms" in ratio else None,
        )


def _draw(groups: Sequence[_Group], kinds: Sequence[str], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if len(set(kinds)) > 1:
        names = " and of ".join(f"`bench {kind}`" for kind in sorted(set(kinds)))
        raise TickgraphError(f"results of {names} are different things: draw them apart")
    key, _, unit = _DRAWN[kinds[0]]
    arms = list(dict.fromkeys(arm for group in groups for arm in group.bars))
    figure = Figure(figsize=(2.0 + 2.2 * len(groups), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / len(arms)
    named = set[str]()  # arms that have their place in the legend
    for position, group in enumerate(groups):
        for number, arm in enumerate(arms):
            if arm in group.bars:
                place = position + (number - (len(arms) - 1) / 2) * width
                label = None if arm in named else arm
                axes.bar(place, group.bars[arm], width * 0.92, color=_COLORS.get(arm, f"C{number}"), label=label)
                named.add(arm)
        if group.floor is not None:
            ends = (position - 0.42, position + 0.42)
            label = "floor" if position == 0 else None
            axes.plot(ends, [group.floor] * 2, color="#222222", linewidth=1.2, label=label)
        axes.text(position, max(group.bars.values()), group.over, ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(groups)), [drawable(group.label) for group in groups], fontsize=9, parse_math=False)
    axes.set_ylabel(f"median ms {unit}")
    axes.margins(y=0.18)
    if key == "over_floor":
        axes.set_yscale("log")  # the slowest path takes twenty times as long as the fastest
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise TickgraphError(f"cannot write the plot {str(path)!r}: {' '.join(str(error).split())}") from error
