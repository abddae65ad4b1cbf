"""The closing re-run: its steps are commands that exist, and a step that fails does not keep the next from running."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError

FILE = Path(__file__).parents[2] / "benchmarks" / "run_all.py"


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("run_all", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_all", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_steps_cover_both_tasks_scenarios_algorithms_and_backends(run_all, capsys):
    names = [step.name for step in run_all.steps()]
    assert len(names) == len(set(names))
    assert run_all.main(["--list", "--only", "collector"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert sum(name.startswith("entry_") for name in names) == 4 * 2 * 2
    with pytest.raises(SystemExit) as stop:
        run_all.main(["--only", "colector"])
    assert stop.value.code == 2
    assert "no step begins with 'colector'" in capsys.readouterr().err


def test_what_fails_or_takes_too_long_is_recorded_and_the_rest_goes_on(run_all, monkeypatch, tmp_path, capsys):
    step = run_all.Step
    endless = ("train", "cartpole_swingup", "--run-name", "long", "--device", "cpu")
    monkeypatch.setattr(
        run_all,
        "steps",
        lambda: [
            step("wrong", ("bench", "collector", "g1_walk"), None, 60),
            step("long", endless, None, 1, None),
            step("list", ("list",), None, 60),
            step("seeds", ("--seeds", "0"), None, 60, script="seeds.py"),
        ],
    )
    assert run_all.main(["--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "run_all.json").read_text())
    assert [facts["exit_code"] for facts in found.values()] == [2, None, 0, 2]
    assert "did you mean 'g1_walk_flat'" in (tmp_path / "wrong.log").read_text()
    assert any(task["name"] == "g1_walk_flat" for task in json.loads((tmp_path / "list.json").read_text())["tasks"])
    assert "--seeds is 0, expected at least 1" in (tmp_path / "seeds.log").read_text()
    assert found["seeds"]["command"] == "python benchmarks/seeds.py --seeds 0"
    assert "stopped after 1 s" in capsys.readouterr().out


# The README's table ------------------------------------------------------------------------------------------------

PLACE = {
    "machine": {"gpus": ["Toy GPU"], "cores": 4, "processor": "Toy CPU"},
    "versions": {"torch": "2.11", "warp-lang": "1.19", "mujoco": "4.0"},
    "commit": "0123456789abcdef",
    "dirty": False,
}
CASE = {"task": "g1_walk_flat", "backend": "mjwarp", "device": "cuda:0", "num_envs": 4096, "scenario": "normal"}


def collector(task: str = "g1_walk_flat", scenario: str = "normal", **changed) -> dict:
    case = {**CASE, "task": task, "scenario": scenario, **changed}
    rows = [
        {**case, "arm": "physics", "median_ms": 9.0, "mean_ms": 9.0},
        {**case, "arm": "graph", "median_ms": 7.5, "mean_ms": 8.0},
    ]
    return {
        **PLACE,
        "benchmark": "collector",
        "results": rows,
        "ratios": [{**case, "tick_arm": "graph", "tick_over_physics": 1.0625}],
    }


def training(algo: str, updates: int = 8, backend: str = "mjwarp") -> dict:
    case = {**CASE, "scenario": f"training, {updates} updates", "backend": backend}
    row = {**case, "arm": "graph", "algo": algo, "updates_per_iteration": updates, "tail_env_steps_per_sec": 380_000.4}
    other = {**row, "arm": "eager", "tail_env_steps_per_sec": 1.0}
    ratios = [{**case, "graph_over_eager": 2.26}]
    return {**PLACE, "commit": "feed", "dirty": True, "benchmark": "train", "results": [other, row], "ratios": ratios}


def updates(precision: str) -> dict:
    shape = {"algo": "flashsac", "updates": 8, "batch_size": 2048, "policy_period": 2, "precision": precision}
    rows = [{**CASE, **shape, "arm": "graph", "median_ms": 4.25}, {**CASE, **shape, "arm": "eager", "median_ms": 99.0}]
    return {**PLACE, "benchmark": "learner", "results": rows, "ratios": []}


def run_files(folder: Path, algo: str, **changed) -> None:
    folder.mkdir(parents=True)
    manifest = {**PLACE, "task": "g1_motion_tracking", "algo": algo, "device": "cuda"}
    summary = {
        "status": "completed",
        "env_steps": 32_300_000,
        "tail_env_steps_per_sec": 255_000.0,
        "startup_s": {"wall_command_s": 229.4},
        "evaluation": {"trained": {"episodes": 100, "survival": 1.0, "success": 0.98}},
    }
    (folder / "run_manifest.json").write_text(json.dumps(manifest))
    (folder / "run_summary.json").write_text(json.dumps(summary | changed))


@pytest.fixture
def readme_table(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("readme_table", FILE.with_name("readme_table.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme_table", module)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_each_number_with_its_place_and_a_dash_for_what_is_missing(readme_table, tmp_path):
    for name, value in (
        ("any.json", collector()),
        ("name.json", collector("g1_motion_tracking", "reset-heavy")),
        ("on_a_cpu.json", collector(device="cpu", scenario="reset-heavy")),
        ("iterations.json", training("flashsac")),
        ("more_updates.json", training("sac", updates=2)),  # not what the task ships
        ("bridged.json", training("sac", backend="mujoco")),
        ("cycles.json", updates("bf16")),
        ("in_another_precision.json", updates("tf32")),
        ("no_result.json", [1, 2]),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "trace.json").write_text("{")
    runs = tmp_path / "runs" / "g1_motion_tracking"
    run_files(runs / "full", "flashsac")
    run_files(runs / "stopped", "sac", status="interrupted")
    run_files(runs / "short", "sac", evaluation={"trained": {"episodes": 8, "survival": 1.0}})
    text = readme_table.table(readme_table.gather([tmp_path]), [4096])
    run = "229 s, 32.3 M steps, 255,000 steps/s at the end, success 98% of 100 episodes"
    assert text.splitlines() == [
        "| | `g1_walk_flat` | `g1_motion_tracking` |",
        "|---|---|---|",
        "| control step of 4,096 worlds | 7.50 ms, 1.062 times its physics, 512,000 steps/s (a) | – |",
        "| control step of 4,096 worlds, 5% of the worlds restart | – | "
        "7.50 ms, 1.062 times its physics, 512,000 steps/s (a) |",
        "| step and updates, 4,096 worlds, FlashSAC | 380,000 steps/s, 2.3 times eager (b) | – |",
        "| step and updates, 4,096 worlds, SAC | – | – |",
        "| 8 critic and 4 actor updates, batch 2048, FlashSAC | 4.25 ms (a) | – |",
        "| 8 critic and 4 actor updates, batch 2048, SAC | – | – |",
        f"| `tickgraph train`, command to saved policy, FlashSAC | – | {run} (a) |",
        "| `tickgraph train`, command to saved policy, SAC | – | – |",
        "",
        "- (a) Toy GPU, 4 cores of Toy CPU, PyTorch 2.11, Warp 1.19, MuJoCo 4.0, commit 0123456789",
        "- (b) Toy GPU, 4 cores of Toy CPU, PyTorch 2.11, Warp 1.19, MuJoCo 4.0, commit feed with changes",
    ]


def test_the_table_says_where_eager_had_the_plain_learner(readme_table):
    value = training("flashsac")
    eager, graph = value["results"]
    for kernels, ending in (("auto", "2.3 times eager"), ("autograd", "2.3 times eager with the plain learner")):
        eager["training_config"], graph["training_config"] = {"learner_kernels": kernels}, {"learner_kernels": "auto"}
        ((_, text),) = readme_table.of_train(value["results"], value["ratios"])
        assert text == f"380,000 steps/s, {ending}"


def test_of_two_files_with_one_number_the_later_named_is_taken_and_a_folder_with_both_is_refused(
    readme_table, tmp_path
):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    slow = collector()
    slow["results"][1]["median_ms"] = 70.0
    first.write_text(json.dumps(slow))
    second.write_text(json.dumps(collector()))
    (number,) = readme_table.gather([first, second]).values()
    assert number.text.startswith("7.50 ms")
    with pytest.raises(TickgraphError, match=r"a\.json and .*b\.json both have tick g1_walk_flat normal 4096"):
        readme_table.gather([tmp_path])
    (tmp_path / "before").mkdir()
    first.rename(tmp_path / "before" / "a.json")
    assert [number.path for number in readme_table.gather([tmp_path]).values()] == [second]
    (tmp_path / "before" / "a.json").rename(first)
    del slow["results"][0]["device"]
    first.write_text(json.dumps(slow))
    with pytest.raises(TickgraphError, match=r"a\.json is not whole: KeyError 'device'"):
        readme_table.gather([first])
    with pytest.raises(TickgraphError, match="there is no"):
        readme_table.gather([tmp_path / "nowhere"])


def test_the_table_stands_between_the_markers_and_is_replaced_there(readme_table, tmp_path, capsys):
    result, readme = tmp_path / "result.json", tmp_path / "README.md"
    result.write_text(json.dumps(collector()))
    text = FILE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
    readme.write_text(text)
    words = [str(result), "--readme", str(readme)]
    assert readme_table.main(words) == 0
    once = readme.read_text()
    assert "7.50 ms" in once and once.startswith(text.partition(readme_table.BEGIN)[0])
    assert once.endswith(text.partition(readme_table.END)[2])
    assert readme_table.main(words) == 0
    assert readme.read_text() == once
    assert readme_table.main([*words, "--print", "--num-envs", "1024"]) == 0
    assert readme.read_text() == once and "1,024 worlds | – | – |" in capsys.readouterr().out
    readme.write_text("# nothing\n")
    with pytest.raises(TickgraphError, match="the README is to have the line"):
        readme_table.main(words)
