"""Results of benchmarks: written, read again, and refused in one line when malformed."""

import copy
import json
from pathlib import Path

import pytest

from tickgraph.bench import report
from tickgraph.bench._result import RATIO, ROW, new_result, read_result, write_result
from tickgraph.core.errors import TickgraphError

CASE = {"task": "toy", "backend": "mujoco", "device": "cpu", "num_envs": 8, "scenario": "normal"}
TIMES = {"mean_ms": 1.5, "median_ms": 1.4, "p90_ms": 2.0, "p95_ms": 2.5, "ticks": 60}
NOT_MEASURED = {"host_syncs_per_tick": None, "graph_launches_per_tick": None, "allocated_bytes_delta": None}


def result():
    rows = [{**CASE, "arm": arm, **TIMES, **NOT_MEASURED} for arm in ("tick", "physics")]
    return new_result("collector", rows, [{**CASE, "tick_over_physics": 1.07, "ci95": (1.06, 1.08)}])


def test_a_result_has_the_documented_fields_and_reads_back(tmp_path):
    path = tmp_path / "result.json"
    write_result(path, result())
    value = read_result(path)
    assert {"machine", "versions", "commit", "dirty", "results", "ratios"} <= set(value)
    assert set(value["results"][0]) == set(ROW) and set(value["ratios"][0]) == set(RATIO)
    assert value["ratios"][0]["ci95"] == [1.06, 1.08]
    assert value["machine"]["cores"] >= 1 and value["versions"]["python"]


def broken():
    good = json.loads(json.dumps(result()))

    def without(*path):
        value = copy.deepcopy(good)
        node = value
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
        return value

    def changed(new, *path):
        value = copy.deepcopy(good)
        node = value
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = new
        return value

    yield without("machine"), "machine"
    yield without("results", 1, "p95_ms"), r"results\[1\] lacks p95_ms"
    yield without("ratios", 0, "ci95"), "ci95"
    yield changed([], "results"), "results"
    yield changed("fast", "results", 0, "mean_ms"), "mean_ms"
    yield changed(-1.0, "ratios", 0, "tick_over_physics"), "tick_over_physics"
    yield changed([1.0], "ratios", 0, "ci95"), "ci95"
    yield changed(99, "format"), "format"


@pytest.mark.parametrize(("value", "named"), list(broken()))
def test_a_malformed_result_is_refused_in_one_line(tmp_path, value, named):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    with pytest.raises(TickgraphError, match=named) as caught:
        report.main([str(path)])
    assert "\n" not in str(caught.value) and "result.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\x01", '{"a": NaN}'])
def test_other_files_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(TickgraphError) as caught:
        read_result(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TickgraphError, match="nowhere.json"):
        report.main([str(tmp_path / "nowhere.json")])


def test_the_report_shows_ratios_and_draws(tmp_path, capsys):
    path, image = tmp_path / "result.json", tmp_path / "result.png"
    write_result(path, result())
    assert report.main([str(path), "--plot", str(image)]) == 0
    shown = capsys.readouterr().out
    assert "toy, 8 worlds, normal" in shown and "1.0700" in shown and "1.0600 to 1.0800" in shown
    assert image.read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_an_unknown_kind_is_one_line(tmp_path):
    path = tmp_path / "result.json"
    write_result(path, result())
    with pytest.raises(TickgraphError, match="result.xyz") as caught:
        report.main([str(path), "--plot", str(tmp_path / "result.xyz")])
    assert "\n" not in str(caught.value)


KEPT = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))


def test_everything_that_is_kept_of_measurements_is_shown_and_drawn(tmp_path, capsys):
    assert KEPT
    for path in KEPT:
        image = tmp_path / f"{path.stem}.png"
        assert report.main([str(path), "--plot", str(image)]) == 0
        assert image.read_bytes().startswith(b"\x89PNG"), path
        assert "torch 2." in capsys.readouterr().out.splitlines()[0], path


SEEDS = {
    "benchmark": "seeds",
    "results": [{"family": name, "seed": 0, "curves": {"episode_return": [[0, 1], [8, 3]]}} for name in ("fast", "r")],
    "ratios": [
        {"figure": "episode_return", "fast_mean": 2, "reference_mean": 2.5, "ratio": 0.8, "unharmed_met": False},
    ],
}
PEER = {
    "benchmark": "peer_unilab",
    "results": [
        {"scenario": "2 updates", "arm": "graph", "median_ms": 2.0},
        {"scenario": "2 updates", "arm": "peer-graph", "median_ms": None},
    ],
}


def test_seeds_and_peers_are_shown_and_drawn(tmp_path, capsys):
    for name, value, said in (
        ("seeds", SEEDS, "episode_return: fast 2, reference 2.5, ratio 0.800, bar MISSED"),
        ("peer", PEER, "2.000  graph"),
    ):
        path, image = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
        path.write_text(json.dumps(value))
        assert report.main([str(path), "--plot", str(image)]) == 0
        assert said in capsys.readouterr().out
        assert image.read_bytes().startswith(b"\x89PNG")


def test_other_kinds_are_not_drawn_with_results_and_a_damaged_one_is_one_line(tmp_path):
    path, seeds = tmp_path / "result.json", tmp_path / "seeds.json"
    write_result(path, result())
    seeds.write_text(json.dumps(SEEDS))
    with pytest.raises(TickgraphError, match="draw them apart"):
        report.main([str(path), str(seeds), "--plot", str(tmp_path / "both.png")])
    for damaged in ({"curve": [{"episode_return": 1.0}]}, {"profiles": {"a": {}}}, {"kernels": [[1]]}, {"curve": []}):
        seeds.write_text(json.dumps(damaged))
        with pytest.raises(TickgraphError, match="seeds.json") as caught:
            report.main([str(seeds)])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"task": "t", "run": "r", "iteration": 3, "evaluation": {"episodes": 2}}, "`tickgraph eval --json` wrote"),
        ({"tasks": []}, "`tickgraph list --json` wrote"),
        ({"task": "t", "blockers": []}, "`tickgraph check --json` wrote"),
        ({"task": "t", "step_dt": 0.02, "observations": {}, "terms": {}}, "`tickgraph describe --json` wrote"),
        ({"findings": []}, "`tickgraph doctor --json` wrote"),
        ({"verify": "learner", "tolerances": {}}, "`tickgraph verify learner --json` wrote"),
        ({"tick_ms": 1.0, "stages": {}, "mode": "eager"}, "`tickgraph profile` wrote"),
        ({"feet": [], "joints": [], "jumps": []}, "`tickgraph motion info --json` wrote"),
        ({"traceEvents": []}, "a trace of `tickgraph profile`"),
        ({"format": 1, "sessions": [], "programs": {}, "seeds": {}}, "a run's manifest"),
        (
            {"task": "t", "blockers": [], "sessions": [], "programs": {}, "seeds": {}},
            r"is a run's manifest, .*; give run_summary\.json, which is beside it",
        ),
        (
            {"iteration": 3, "env_steps": 24, "time": 1.5, "episodes": 1},
            r"is a run's log, .*; give run_summary\.json, .* `tickgraph plot RUN`",
        ),
        ({"status": "interrupted", "iteration": 3, "env_steps": 9, "evaluation": None}, "run that was not evaluated"),
        ({"evaluation": {"trained": 3}}, "is not whole"),
        ({"colour": "blue"}, "it is not a result that tickgraph wrote"),
    ],
)
def test_the_report_says_what_a_file_of_another_command_is(tmp_path, value, reason):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(value))
    with pytest.raises(TickgraphError, match=reason) as error:
        report.main([str(path)])
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_log_of_many_rows_is_known_by_its_first(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = json.dumps({"iteration": 3, "env_steps": 24, "time": 1.5})
    path.write_text(f"{row}\n{row}\n")
    with pytest.raises(TickgraphError, match="is a run's log"):
        report.main([str(path)])


def test_a_run_s_summary_says_where_the_run_was_made(tmp_path, capsys):
    summary = tmp_path / "run_summary.json"
    summary.write_text(
        json.dumps({"status": "completed", "iteration": 3, "env_steps": 9, "evaluation": {"trained": {"return": 1.0}}})
    )
    report.main([str(summary)])
    assert "unknown machine" in capsys.readouterr().out
    made = {"machine": {"processor": "a Z80", "cores": 1}, "versions": {"torch": "2.11.0"}, "commit": "12345678901"}
    (tmp_path / "run_manifest.json").write_text(json.dumps({**made, "dirty": True}))
    report.main([str(summary)])
    assert "a Z80, 1 cores; torch 2.11.0, MuJoCo None; 1234567890 with changes" in capsys.readouterr().out
    (tmp_path / "run_manifest.json").write_text("{")
    report.main([str(summary)])
    assert "completed after 3 iterations" in capsys.readouterr().out
