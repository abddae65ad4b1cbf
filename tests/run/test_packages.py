"""A required package that is not installed is one line that says what to run, whatever command lacks it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tickgraph.run.packages import PACKAGES, missing_package

BLOCKED = "import sys; sys.modules[sys.argv[1]] = None; from tickgraph.cli import main; sys.exit(main(sys.argv[2:]))"


def test_every_declared_dependency_is_known() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=]", text)[0] for text in declared} <= set(PACKAGES.values())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("mujoco", "check cartpole_swingup"),
        ("numpy", "check cartpole_swingup"),
        ("tyro", "describe cartpole_swingup --num-envs 4"),
        ("yaml", "train cartpole_swingup --num-envs 4 --iterations 2"),
        ("tensorboard", "train cartpole_swingup --num-envs 4 --iterations 2 --train.execution eager"),
    ],
)
def test_a_missing_package_is_one_line(module: str, words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, module, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"tickgraph: the package for '{module}' is not installed in this Python; run: pip install '{PACKAGES[module]}'"
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())  # nothing ran


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "check cartpole_swingup"),
        ("x = 1", "doctor"),
        ("raise ImportError('no')", "check cartpole_swingup"),
    ],
)
def test_a_module_in_the_place_of_a_package_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(text)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from tickgraph.cli import main; sys.exit(main(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(tmp_path), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tickgraph: {tmp_path}/torch.py stands in the place of the package 'torch', which is in /")
    assert line.endswith("torch/__init__.py; rename it, or take its folder out of PYTHONPATH")


@pytest.mark.parametrize("words", ["check cartpole_swingup", "eval a", "train cartpole_swingup", "doctor"])
def test_a_current_folder_that_was_deleted_is_one_line(words: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from tickgraph.cli import main; "
    command = [sys.executable, "-c", f"{code}sys.exit(main(sys.argv[1:]))", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == "tickgraph: the current folder was deleted; change into one that is there\n"
    assert done.returncode == 2


def test_what_a_task_of_ones_own_imports_keeps_its_message() -> None:
    try:
        import yaml.absent  # noqa: F401
    except ModuleNotFoundError as error:
        assert missing_package(error) is None  # it is installed: another version, or a typo
    try:
        sys.modules["warp"], before = None, sys.modules.get("warp")
        import warp  # noqa: F401
    except ModuleNotFoundError as error:
        assert missing_package(error) is None  # imported here, which is no file of ours
    finally:
        sys.modules["warp"] = before
        if before is None:
            del sys.modules["warp"]
    assert missing_package(ValueError("yaml")) is None
