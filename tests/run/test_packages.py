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
