"""`bench report`: any damage to a file is one line that names it, tables are whole, and results do not mix."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_result import result

from tickgraph.bench import report
from tickgraph.bench._bars import ADVANCE_BAR, BAR_BLOCKS
from tickgraph.bench._report_other import Panel, draw
from tickgraph.bench._result import write_result
from tickgraph.core.errors import TickgraphError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = (
    *("collector_g1_cpu", "collector_g1_h200", "learner_h200", "bench_train_walk_h200", "peer_unilab_h200"),
    *("seeds_h200", "go2_train_cpu", "g1_tracking_h200", "go2_search", "learner_kernels_h200"),
)
GONE = object()


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within a value, five deep and of lists the first two."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:2]) if isinstance(node, list) else ()
    for key, value in items if len(path) < 5 else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.parametrize("name", FILES)
def test_any_damage_is_shown_or_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    kept, draw = json.loads((RESULTS / f"{name}.json").read_text()), random.Random(name)
    path, known = tmp_path / "damaged.json", list(places(kept))
    told = 0
    for _ in range(150):
        value, where = copy.deepcopy(kept), draw.choice(known)
        node = value
        for key in where[:-1]:
            node = node[key]
        new = draw.choice([GONE, None, "x", -1, [], {}, [1], True])
        if new is GONE:
            del node[where[-1]]
        else:
            node[where[-1]] = new
        path.write_text(json.dumps(value))
        try:
            assert report.main([str(path)]) == 0
        except TickgraphError as error:
            told += 1
            assert str(path) in str(error) and "\n" not in str(error), (where, new)
    assert told


def test_a_result_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for name in ("tester", ["train"]):
        write_result(path, result() | {"benchmark": name})
        with pytest.raises(TickgraphError, match="is of the benchmark .*, expected one of collector, train, learner"):
            report.main([str(path)])


def test_two_results_of_one_case_are_drawn_each_with_its_own_times() -> None:
    before, after = result(), result()
    after["results"][0]["median_ms"] = 0.7
    after["ratios"][0]["tick_over_physics"] = 0.5
    (first,), (second,) = (list(report._groups(one)) for one in (before, after))
    assert (first.bars, second.bars) == ({"tick": 1.4, "physics": 1.4}, {"tick": 0.7, "physics": 1.4})
    assert first.over.endswith("1.070") and second.over.endswith("0.500")


def test_names_of_tasks_are_shown_and_drawn_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value, name = result(), "a[b].$x^{2$"
    for row in [*value["results"], *value["ratios"]]:
        row["task"] = name
    path = tmp_path / "result.json"
    write_result(path, value)
    assert report.main([str(path), "--plot", str(tmp_path / "a.png")]) == 0
    assert name in capsys.readouterr().out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw([Panel("ms", title=name, curves={"tick": [(1.0, 2.0)]})], tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_keeps_its_headings_where_nothing_is_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(RESULTS / "bench_train_walk_h200.json")]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown and all(word in shown for word in ("mean ms", "overlap", "enqueue", "steps/s"))
    (line,) = [text for text in shown.splitlines() if text.startswith("graph, last 100 ")][:1]
    assert "training, 8 updates, mjwarp, flashsac, batch 2048" in shown
    assert "learner_train" in line and "temperature updates" in line


def test_every_ratio_of_a_file_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads((RESULTS / "bench_train_walk_h200.json").read_text())
    value["ratios"][0] |= {"graph_over_compile-loss": 3.25, "graph_over_compile-loss_ci95": [3.0, 3.5]}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    report.main([str(path)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["graph_over_compile-loss", "3.2500", "3.0000", "to", "3.5000"] in lines


@pytest.mark.parametrize(("blocks", "few"), [(BAR_BLOCKS - 1, True), (BAR_BLOCKS, False)])
def test_too_few_blocks_for_a_bar_are_told(
    blocks: int, few: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = result()
    for row in value["results"]:
        row["blocks"] = blocks
    interval = {"advance_over_physics": 1.0, "advance_ci95": [1.0, 1.0]}
    value["ratios"][0] |= {**interval, "advance_bar": ADVANCE_BAR, "advance_bar_met": True}
    path = tmp_path / "result.json"
    write_result(path, value)
    assert report.main([str(path)]) == 0
    assert (f"too few blocks for a verdict on a bar: {blocks}" in capsys.readouterr().out) == few


def test_the_floor_of_a_small_learner_has_its_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads((RESULTS / "learner_h200.json").read_text())
    ratio = value["ratios"][0]
    ratio |= {"gflop": 0.00448, "gbyte": 0.00508}
    value["ratios"], value["results"] = (
        [ratio],
        [row for row in value["results"] if row["scenario"] == ratio["scenario"]],
    )
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    report.main([str(path)])
    shown = capsys.readouterr().out
    assert "0.00448 GFLOP" in shown and "0.00508 GB" in shown


def test_the_steps_of_run_all_are_named_for_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run_all.json"
    path.write_text(json.dumps({"one": {"command": "tickgraph doctor", "exit_code": 0}}))
    with pytest.raises(TickgraphError, match=r"is what benchmarks/run_all.py wrote of its 1 step, .*STEP.json"):
        report.main([str(path)])
