#!/usr/bin/env python3
"""The README's table of results, drawn from the JSON files that benchmarks and runs have written.

    python benchmarks/readme_table.py results                 a folder of `run_all.py --out results`, with all below it,
                                                              folders named `before`, `trials` left out
    python benchmarks/readme_table.py old.json new.json       single files; of the same case the later one is taken
    python benchmarks/readme_table.py results --print         on the terminal, and the README stays as it is

A file is told by what is in it, not by its name: results of `bench collector`, `bench train` and `bench learner`, a
`run_summary.json` with its manifest beside it, or a kept run with its curve. Only what a GPU did counts, and of
the runs those that one command completed and that were judged by at least 100 episodes. A number without a file is a
dash. Behind each number stands a letter for the machine, the versions and the commit that it is of; those are listed
below the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tickgraph.bench._options import MOST_WORLDS, Parser, run_script, sizes
from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import check_target, read_json, write_atomically
from tickgraph.tasks.registry import load

TASKS = ("g1_walk_flat", "g1_motion_tracking")
ALGOS = {"flashsac": "FlashSAC", "sac": "SAC"}
PRECISIONS = {"flashsac": "bf16", "sac": "tf32"}  # of the products in updates as training takes them on a GPU
UPDATES, BATCH = 8, 2048
EPISODES = 100
BEGIN = "<!-- results: python benchmarks/readme_table.py FOLDER -->"
END = "<!-- end of results -->"
LEFT_OUT = {"before", "trials"}  # folders of results that later ones have replaced, and of parts and single steps
NONE = "–"
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Number:
    """What a cell says, and where it was measured."""

    text: str
    place: str
    path: Path


def numbers_of(path: Path, value: dict[str, Any]) -> Iterator[tuple[Key, Number]]:
    """Yield what a file says for the table, by the cell's key; nothing of other files."""
    kind = value.get("benchmark")
    if kind in ("collector", "train", "learner"):
        place = place_of(value)
        rows = [row for row in value["results"] if str(row["device"]).startswith("cuda")]
        cells: Any = {"collector": of_collector, "train": of_train, "learner": of_learner}[kind]
        for key, text in cells(rows, value["ratios"]):
            yield key, Number(text, place, path)
    elif kind is None and isinstance(value.get("evaluation"), dict) and "status" in value:
        run = value
        if path.name == "run_summary.json":
            run = {**read_json(path.with_name("run_manifest.json"), "what ran"), **value}
        for key, text in of_run(run):
            yield key, Number(text, place_of(run), path)


def place_of(value: dict[str, Any]) -> str:
    """Return the machine, the versions and the commit of a file as text."""
    machine, versions = value["machine"], value["versions"]
    names = {"torch": "PyTorch", "mujoco-warp": "MuJoCo Warp", "warp-lang": "Warp", "mujoco": "MuJoCo"}
    found = [*dict.fromkeys(machine["gpus"]), f"{machine['cores']} cores of {machine['processor']}"]
    found += [f"{name} {versions[package]}" for package, name in names.items() if package in versions]
    commit = f"commit {value['commit'][:10]}" if value["commit"] else "no commit"
    return ", ".join([*found, commit + (" with changes" if value["dirty"] else "")])


def same_case(row: dict[str, Any], ratio: dict[str, Any]) -> bool:
    """Return whether a row of `results` belongs to one of `ratios`."""
    return all(row[key] == ratio[key] for key in ("task", "backend", "device", "num_envs", "scenario"))


def of_collector(rows: Sequence[dict[str, Any]], ratios: Sequence[dict[str, Any]]) -> Iterator[tuple[Key, str]]:
    """Yield a tick's time, what it is times its physics, and its speed, by task, scenario and worlds."""
    for ratio in ratios:
        for row in rows:
            if same_case(row, ratio) and row["arm"] == ratio["tick_arm"]:
                speed = row["num_envs"] * 1e3 / row["mean_ms"]
                over = f"{ratio['tick_over_physics']:.3f} times its physics"
                text = f"{row['median_ms']:.2f} ms, {over}, {speed:,.0f} steps/s"
                yield ("tick", row["task"], row["scenario"], row["num_envs"]), text


def of_train(rows: Sequence[dict[str, Any]], ratios: Sequence[dict[str, Any]]) -> Iterator[tuple[Key, str]]:
    """Yield the speed of whole iterations in graphs and what it is of the eager one, by task, algorithm and worlds."""
    for row in rows:
        if row["arm"] == "graph" and row["updates_per_iteration"] == updates_of(row["task"], row["algo"]):
            ratio = next((ratio for ratio in ratios if same_case(row, ratio)), {})
            text = f"{row['tail_env_steps_per_sec']:,.0f} steps/s"
            if ratio.get("graph_over_eager") is not None:
                text += f", {ratio['graph_over_eager']:.1f} times eager"
                if kernels_of(rows, row, "eager") != kernels_of(rows, row, "graph"):
                    text += " with the plain learner"
            # Worlds on the CPU beside a learner on the GPU are another thing.
            if row["backend"] == "mjwarp":
                yield ("iteration", row["task"], row["algo"], row["num_envs"]), text


def kernels_of(rows: Sequence[dict[str, Any]], like: dict[str, Any], arm: str) -> str | None:
    """Return the `train.learner_kernels` of an arm in the case of another, None where the file does not say."""
    found = (row for row in rows if row["arm"] == arm and row["algo"] == like["algo"] and same_case(row, like))
    return next(found, {}).get("training_config", {}).get("learner_kernels")


def updates_of(task: str, algo: str) -> int | None:
    """Return the critic updates of an iteration as the task ships; of other tasks than the table's None."""
    if task not in TASKS:
        return None
    loaded = load(task)
    loaded.use(algo)
    return loaded.train.updates_per_iteration


def of_learner(rows: Sequence[dict[str, Any]], ratios: Sequence[dict[str, Any]]) -> Iterator[tuple[Key, str]]:
    """Yield the time of an update cycle as training runs it, by task and algorithm."""
    for row in rows:
        shape = row["updates"], row["batch_size"], row["policy_period"], row["precision"]
        if row["arm"] == "graph" and shape == (UPDATES, BATCH, 2, PRECISIONS.get(row["algo"])):
            yield ("updates", row["task"], row["algo"]), f"{row['median_ms']:.2f} ms"


def of_run(run: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield the time of a whole run, its speed and its success, by task and algorithm."""
    judged = run["evaluation"].get("trained") or {}
    if run["status"] != "completed" or judged.get("episodes", 0) < EPISODES or not run["machine"]["gpus"]:
        return
    if "task" in run:
        # Worlds on the CPU are another thing, and a run that was resumed says how long its last command took.
        if (
            not str(run["device"]).startswith("cuda")
            or run.get("backend") == "mujoco"
            or len(run.get("sessions", ())) > 1
        ):
            return
        task, algo = run["task"], run["algo"]
    else:  # kept before files named their task
        words = re.match(r"tickgraph train (\w+)(?:.* --algo (\w+))?", run.get("what", ""))
        if words is None or words[1] not in TASKS:
            return
        task, algo = words[1], words[2] or load(words[1]).algo
    good = "success" if judged.get("success") is not None else "survival"
    said = [f"{run['startup_s']['wall_command_s']:.0f} s", f"{run['env_steps'] / 1e6:.1f} M steps"]
    said.append(f"{run['tail_env_steps_per_sec']:,.0f} steps/s at the end")
    said.append(f"{good} {judged[good]:.0%} of {judged['episodes']} episodes")
    yield ("run", task, algo), ", ".join(said)


def gather(paths: Iterable[Path]) -> dict[Key, Number]:
    """Return all numbers of files and folders.

    Raises:
        TickgraphError: a path is missing, a file is damaged, or a folder has two files for one number.
    """
    found: dict[Key, Number] = {}
    for given in paths:
        if not given.exists():
            raise TickgraphError(f"there is no {given}; give folders or JSON files of results")
        mine: dict[Key, Number] = {}
        inside = (
            path for path in sorted(given.rglob("*.json")) if not LEFT_OUT & {*path.relative_to(given).parts[:-1]}
        )
        for path in inside if given.is_dir() else [given]:
            for key, number in numbers_in(path, named=path == given):
                if key in mine and mine[key].path != path:
                    words = " ".join(map(str, key))
                    raise TickgraphError(
                        f"{mine[key].path} and {path} both have {words}; name the files, the best one last"
                    )
                mine[key] = number
        found |= mine
    return found


def numbers_in(path: Path, named: bool = False) -> list[tuple[Key, Number]]:
    """Return the numbers of one file; none where it is no JSON object, unless it was named.

    Raises:
        TickgraphError: it looks like a result but lacks something.
    """
    try:
        value = read_json(path, "result")
    except TickgraphError:
        if named:
            raise
        return []  # a folder of results may hold other files
    try:
        return list(numbers_of(path, value))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TickgraphError(f"{path} is not whole: {type(error).__name__} {error}") from error


def rows_of(worlds: Sequence[int]) -> list[tuple[str, list[Key]]]:
    """Return the table's rows: a label, and the key of each task's cell."""
    rows: list[tuple[str, list[Key]]] = []
    for n in worlds:
        for scenario, words in (("normal", ""), ("reset-heavy", ", 5% of the worlds restart")):
            rows.append((f"control step of {n:,} worlds{words}", [("tick", task, scenario, n) for task in TASKS]))
    for n in worlds:
        for algo, name in ALGOS.items():
            rows.append((f"step and updates, {n:,} worlds, {name}", [("iteration", task, algo, n) for task in TASKS]))
    for algo, name in ALGOS.items():
        label = f"{UPDATES} critic and {UPDATES // 2} actor updates, batch {BATCH}, {name}"
        rows.append((label, [("updates", task, algo) for task in TASKS]))
    for algo, name in ALGOS.items():
        rows.append((f"`tickgraph train`, command to saved policy, {name}", [("run", task, algo) for task in TASKS]))
    return rows


def table(found: dict[Key, Number], worlds: Sequence[int]) -> str:
    """Return the table in Markdown, and below it where its numbers were measured."""
    places: dict[str, str] = {}

    def cell(key: Key) -> str:
        number = found.get(key)
        if number is None:
            return NONE
        return f"{number.text} ({places.setdefault(number.place, letter(len(places)))})"

    lines = ["| | " + " | ".join(f"`{task}`" for task in TASKS) + " |", "|---|" + "---|" * len(TASKS)]
    lines += [f"| {label} | " + " | ".join(map(cell, keys)) + " |" for label, keys in rows_of(worlds)]
    lines += ["", *(f"- ({name}) {place}" for place, name in places.items())]
    return "\n".join(lines).rstrip() + "\n"


def letter(number: int) -> str:
    """Return a, b, ..., z, a1, b1, ..."""
    return chr(ord("a") + number % 26) + (str(number // 26) if number >= 26 else "")


def put(readme: str, text: str) -> str:
    """Return the README with the table between its markers.

    Raises:
        TickgraphError: it does not have each marker once, in their order.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise TickgraphError(f"the README is to have the line {BEGIN} once, and after it {END} once")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or print the table."""
    parser = Parser(prog="readme_table.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders and files; the later one wins")
    parser.add_argument("--readme", type=Path, default=Path(__file__).parents[1] / "README.md", help="where it goes")
    parser.add_argument("--num-envs", default="4096", metavar="N,N", help="worlds of the rows (default: 4096)")
    parser.add_argument("--print", action="store_true", help="print the table and leave the README alone")
    options = parser.parse_args(argv)
    worlds = sizes("--num-envs", options.num_envs, most=MOST_WORLDS)
    found = gather(options.paths)
    if not found:
        raise TickgraphError(f"{', '.join(map(str, options.paths))}: no number for the table is in there")
    text = table(found, worlds)
    if options.print:
        print(text, end="")
        return 0
    try:
        before = options.readme.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TickgraphError(f"--readme {options.readme} is not readable: {str(error).splitlines()[0]}") from error
    readme = put(before, f"\n{text}\n")
    check_target(options.readme)
    write_atomically(options.readme, lambda file: file.write(readme.encode("utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
