"""The registry: names, files in any folder, packages' entry points, and errors that name file, line and message."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.tasks import registry

TASK = """
from tickgraph.env.config import EnvCfg
from tickgraph.run.config import Task, TrainCfg
from tickgraph.sim.scene import SceneCfg
import neighbour

def make_env():
    return EnvCfg(scene=SceneCfg(entities={}), decimation=neighbour.DECIMATION)

def make_task():
    return Task(make_env(), TrainCfg(iterations=7))

def make_nothing():
    return 5

def make_trouble():
    return {}["absent"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "ma thèse" / "机器人 走路"
    folder.mkdir(parents=True)
    (folder / "neighbour.py").write_text("DECIMATION = 3\n")
    path = folder / "tâche.py"
    path.write_text(TASK, encoding="utf-8")
    return path


def test_listing_loads_neither_torch_nor_mujoco() -> None:
    code = (
        "import sys, tickgraph; from tickgraph.tasks import registry\n"
        "names = [entry.name for entry in registry.entries()]\n"
        "assert {'cartpole_swingup', 'go2_walk_flat', 'g1_walk_flat'} <= set(names), names\n"
        "assert not {'torch', 'mujoco', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_shipped_task_loads() -> None:
    for entry in registry.entries():
        if entry.source == "tickgraph":
            task = registry.load(entry.name)
            assert task.name == entry.name
            assert entry.description
            assert entry.algos == task.algos == ("flashsac", "sac")
            task.use("sac")
            assert task.algo == "sac" and task.train.iterations > 1000


def test_a_file_gives_a_task_or_an_environment_alone(file: Path) -> None:
    task = registry.load(f"{file}:make_task")
    assert task.train.iterations == 7
    assert task.name == "tâche.make_task"
    assert task.reference == f"{file}:make_task"
    alone = registry.load(f"{file}:make_env")
    assert alone.env.decimation == 3
    assert registry.load(alone.reference).env == alone.env


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("make_tsk", "no function 'make_tsk'; did you mean 'make_task'"),
        ("make_nothing", "returned int; return a Task or an EnvCfg"),
        ("make_trouble", r"tâche\.py:17: KeyError: 'absent'"),
        ("", "no function's name; give .*it has make_env, make_task"),
    ],
)
def test_a_factory_that_does_not_serve_is_named(file: Path, function: str, reason: str) -> None:
    with pytest.raises(TickgraphError, match=reason):
        registry.load(f"{file}:{function}")


def test_a_file_without_its_factory_lists_them(file: Path) -> None:
    with pytest.raises(TickgraphError, match=r"lacks its factory; .*make_env, make_task"):
        registry.load(str(file))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os\nimport not_there_at_all\n", r"bad\.py:2: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def f(:\n", r"bad\.py:1: SyntaxError: "),
        ("\n\nx = 1 / 0\n", r"bad\.py:3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)\n", r"bad\.py:2: it ends the program \(sys\.exit\); keep what is a script"),
        ("def make():\n    raise SystemExit\n", r"bad\.py:2: it ends the program \(sys\.exit\)"),
    ],
)
def test_a_file_that_does_not_import_is_named_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(TickgraphError, match=reason) as caught:
        registry.load(f"{tmp_path / 'bad.py'}:make")
    assert "\n" not in str(caught.value)


def test_unknown_names_come_with_similar_ones(tmp_path: Path) -> None:
    with pytest.raises(TickgraphError, match="did you mean 'go2_walk_flat'"):
        registry.resolve("go2_walk_flt")
    with pytest.raises(TickgraphError, match="no task file"):
        registry.resolve(f"{tmp_path}/absent.py:make")


def test_packages_offer_tasks_by_entry_points(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "offered_tasks.py").write_text(TASK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(file.parent))
    points = EntryPoints([EntryPoint("offered", "offered_tasks:make_task", registry.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.ENTRY_POINT_GROUP else [])
    assert registry.resolve("offered").factory == "offered_tasks:make_task"
    assert registry.load("offered").train.iterations == 7
    (file.parent / "offered_tasks.py").write_text("raise SystemExit\n")
    monkeypatch.delitem(sys.modules, "offered_tasks")
    with pytest.raises(TickgraphError, match=r"'offered' does not import: .*offered_tasks\.py:1: it ends the program"):
        registry.load("offered")


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    registry.register("mine", "module:function", "a task of mine")
    assert registry.resolve("mine").description == "a task of mine"
    with pytest.raises(TickgraphError, match="registered already"):
        registry.register("mine", "module:other")
    with pytest.raises(TickgraphError, match="module:function"):
        registry.register("other", "module")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "task.env.rewards['upright'].weight = 'heavy'",
            "env.rewards.upright.weight is 'heavy', expected a finite number",
        ),
        ("task.train.iterations = 10.5", "train.iterations is 10.5, expected a whole number"),
        ("task.env.decimation = 2.5", "env.decimation is 2.5, expected a whole number"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_path(tmp_path: Path, change: str, text: str) -> None:
    file = tmp_path / "typed.py"
    lines = ("def make():", "    task = cartpole_swingup()", f"    {change}", "    return task")
    file.write_text("from tickgraph.tasks.cartpole import cartpole_swingup\n" + "\n".join(lines))
    with pytest.raises(TickgraphError, match=text):
        registry.load(f"{file}:make")


def test_a_field_that_a_configuration_has_not_is_told_with_those_it_has(file: Path) -> None:
    code = "from tickgraph import mdp\ndef made():\n    return mdp.UniformVelocityCommandCfg({})\n"
    for given, text in (
        ("rel_standing_env=0.1", "unexpected keyword argument 'rel_standing_env'; did you mean 'rel_standing_envs'"),
        (
            "heading_command=True",
            "unexpected keyword argument 'heading_command'; it has class_type, resampling_time_range",
        ),
    ):
        file.write_text(code.format(given))
        with pytest.raises(TickgraphError, match=text):
            registry.load(f"{file}:made")


def test_a_relative_import_is_told_how_it_goes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from .beside import thing\n")
    with pytest.raises(
        TickgraphError, match=r"mine\.py:1: ImportError: .*; a task's file is no part of a package: import"
    ):
        registry.load(f"{tmp_path}/mine.py:make")
