"""A run whose task's file has been edited since it began is not silently another."""

import importlib
import sys
from pathlib import Path

import pytest
from test_training import TINY

from tickgraph import cli
from tickgraph.run import manifest
from tickgraph.run.code_change import FILE, changed_code, code_sums
from tickgraph.run.folder import RunFolder
from tickgraph.tasks.registry import load

MODEL = """<mujoco><worldbody><body><joint name="x" type="slide"/><geom size="0.1"/></body></worldbody></mujoco>"""
TASK = """
import helper
import torch
from tickgraph import mdp
from tickgraph.env.config import CommandTermCfg, RewardTermCfg
from tickgraph.env.managers import CommandTerm
from tickgraph.sim.scene import EntityCfg
from tickgraph.tasks.cartpole import cartpole_swingup

class Target(CommandTerm):
    @property
    def command(self):
        return torch.zeros(self._env.num_envs, 1, device=self._env.device)
    def resample(self, mask):
        pass

def near(env, std=0.5):
    def inner():
        return 1.0  # a remark
    return helper.scaled(env.reward) * inner() + float(std in {"a", "b"})

def task():
    made = cartpole_swingup()
    made.env.rewards["near"] = RewardTermCfg(near, weight=2.0)
    made.env.commands["target"] = CommandTermCfg(class_type=Target)
    made.env.scene.entities["box"] = EntityCfg("MODEL")
    return made
"""
HELPER = "def scaled(x):\n    return 0.0 * x\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.xml").write_text(MODEL)
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    path = tmp_path / "mine.py"
    path.write_text(TASK.replace("MODEL", str(tmp_path / "model.xml")))
    return path


REACHED = """
import functools
from pathlib import Path
from tickgraph.env.config import RewardTermCfg
from tickgraph.tasks.cartpole import cartpole_swingup
COUNT, NAMES, HERE = 3, ("a", "b"), str(Path(__file__).parent)

def helper(x):
    return x * 1.0

class Kernel:
    LAG = 4

    def __call__(self, x):
        return x * 2.0

KERNEL = Kernel()
TABLE = {"of": lambda x: x * 3.0}

def scaled(function):
    @functools.wraps(function)
    def inner(env):
        return function(env) * 4.0
    return inner

def make(n):
    return lambda env: env.reward * n

@scaled
def decorated(env):
    return env.reward

def listed(env):
    return sum([helper(env.reward) for _ in range(2)])

def by_instance(env):
    return KERNEL(env.reward)

def by_table(env):
    return TABLE["of"](env.reward)

def by_value(env):
    return env.reward * COUNT if HERE else NAMES

def by_tuple(env, k=(1.5, 2)):
    return env.reward * k[0]

def by_parameter(env, function):
    return function(env)

def by_partial(env, k):
    return env.reward * k

def task():
    made = cartpole_swingup()
    for function in (decorated, listed, by_instance, by_table, by_value, by_tuple):
        made.env.rewards[function.__name__] = RewardTermCfg(function)
    made.env.rewards["by_parameter"] = RewardTermCfg(by_parameter, params={"function": helper})
    made.env.rewards["by_partial"] = RewardTermCfg(functools.partial(by_partial, k=5))
    made.env.rewards["by_closure"] = RewardTermCfg(make(6))
    return made
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("x * 1.0", "x * 1.5", ["by_parameter.params.function", "listed.func"]),
        ("x * 2.0", "x * 2.5", ["by_instance.func"]),
        ("LAG = 4", "LAG = 5", ["by_instance.func"]),
        ("x * 3.0", "x * 3.5", ["by_table.func"]),
        ("(env) * 4.0", "(env) * 4.5", ["decorated.func"]),
        ("HERE = 3", "HERE = 4", ["by_value.func"]),
        ('("a", "b")', '("a", "c")', ["by_value.func"]),
        ("(1.5, 2)", "(1.5, 3)", ["by_tuple.func"]),
        ("(1.5, 2)", "(2.5, 2)", ["by_tuple.func"]),
        ("k=5", "k=6", ["by_partial.func"]),
        ("make(6)", "make(7)", ["by_closure.func"]),
        ("return x * 1.0", "'''Of x.'''\n    return (x *\n        1.0)", []),
        ("def listed(env):", "def listed(env):\n    '''A docstring.'''", []),
        ("def helper(x):\n    return x", "def helper(y):\n    return y", []),
    ],
)
def test_code_counts_however_a_term_reaches_it(tmp_path: Path, old: str, new: str, changed: list[str]) -> None:
    file, moved = tmp_path / "reached.py", tmp_path / "moved" / "reached.py"
    file.write_text(REACHED)
    moved.parent.mkdir()
    moved.write_text(REACHED)
    before = code_sums(load(f"{file}:task"))
    assert changed_code(before, code_sums(load(f"{moved}:task"))) == []
    assert old in REACHED
    file.write_text(REACHED.replace(old, new))
    found = changed_code(before, code_sums(load(f"{file}:task")))
    assert sorted(path for path in found if path != FILE) == [f"env.rewards.{path}" for path in changed]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("# a remark", "# another one\n\n", []),
        ("return 1.0", "return 1.5", ["env.rewards.near.func", FILE]),
        ('{"a", "b"}', '{"b", "a"}', [FILE]),
        ("std=0.5", "std=0.25", ["env.rewards.near.func", FILE]),
        ("        pass", "        mask = ~mask", ["env.commands.target.class_type", FILE]),
        ("weight=2.0", "weight=3.0", [FILE]),
    ],
)
def test_what_of_a_file_is_another_one(file: Path, old: str, new: str, changed: list[str]) -> None:
    before = code_sums(load(f"{file}:task"))
    assert changed_code(before, code_sums(load(f"{file}:task"))) == []
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    now = code_sums(load(f"{file}:task"))
    assert sorted(changed_code(before, now)) == changed
    assert changed_code({}, now) == changed_code({**before, "python": 0x302}, now) == []


def test_so_is_what_is_called_in_a_module_of_ones_own(file: Path) -> None:
    before = code_sums(load(f"{file}:task"))
    Path("helper.py").write_text(HELPER.replace("0.0", "0.125"))
    importlib.reload(sys.modules["helper"])
    assert changed_code(before, code_sums(load(f"{file}:task"))) == ["env.rewards.near.func"]


def test_a_folder_that_has_moved_is_no_edit(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_sums(load(f"{file}:task"))
    (tmp_path / "moved").mkdir()
    for name in ("mine.py", "helper.py"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    monkeypatch.chdir("moved")
    del sys.modules["helper"]
    importlib.invalidate_caches()
    assert changed_code(before, code_sums(load(f"{tmp_path / 'moved' / 'mine.py'}:task"))) == []


def test_a_file_with_a_very_long_sum_has_one_too(file: Path) -> None:
    file.write_text(f"LONG = {'+'.join(['1'] * 2000)}\n{file.read_text()}")
    before = code_sums(load(f"{file}:task"))
    file.write_text(file.read_text().replace("weight=2.0", "weight=3.0"))
    assert changed_code(before, code_sums(load(f"{file}:task"))) == [FILE]


def test_so_is_a_robots_file(file: Path) -> None:
    before = code_sums(load(f"{file}:task"))
    Path("model.xml").write_text(MODEL.replace("0.1", "0.2"))
    assert changed_code(before, code_sums(load(f"{file}:task"))) == ["env.scene.entities.box.model"]
    assert list(code_sums(load("g1_motion_tracking"))) == ["python"]


def test_a_run_says_so_where_it_goes_on_or_is_judged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "EntityCfg" not in line))
    words = ["--run-name", "one", *TINY, "--iterations", "9", "--stop-after"]
    assert cli.main(["train", f"{file}:task", *words, "1"]) == 0
    run = RunFolder(Path("runs/mine.task/one"))
    resumed = ["train", "--resume", str(run.path), "--stop-after"]
    assert cli.main([*resumed, "2"]) == cli.main(["eval", str(run.path)]) == 0
    assert "has been edited" not in "".join(capsys.readouterr())
    assert manifest.read_manifest(run)["exact_resume"] is True
    file.write_text(file.read_text().replace("weight=2.0", "weight=3.0"))
    assert cli.main([*resumed, "3"]) == 0
    shown = capsys.readouterr()
    said = "the task's file has been edited since the run began, which goes on with its own config.yaml's values"
    assert said in shown.out and "edited" not in shown.err
    assert "weight: 2.0" in run.config.read_text() and manifest.read_manifest(run)["exact_resume"] is True
    file.write_text(file.read_text().replace("return 1.0", "return 1.5"))
    said = "the code of env.rewards.near.func has been edited since the run began: what is"
    for iteration in ("4", "5"):  # and it stays so
        assert cli.main([*resumed, iteration]) == 0
        assert f"{said} resumed is another task" in capsys.readouterr().err
        assert manifest.read_manifest(run)["exact_resume"] is False
    assert cli.main(["eval", str(run.path)]) == 0
    assert f"{said} judged is another task" in capsys.readouterr().err
