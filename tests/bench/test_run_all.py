"""The closing re-run: its steps are commands that exist, and a step that fails does not keep the next from running."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

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
