"""What `tickgraph doctor` finds, where it depends on more than this machine."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tickgraph.core.compiler import compiling_fault
from tickgraph.run import doctor


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Python would keep its byte code in a folder that is not there yet."""
    cached = tmp_path / "__pycache__" / "torch.pyc"
    monkeypatch.setattr(importlib.util, "cache_from_source", lambda path: str(cached))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return cached


def test_byte_code_that_is_never_kept_is_found(nothing_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._byte_code().found == "none of torch yet" and doctor._byte_code().ok
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = doctor._byte_code()
    assert not found.ok and f"{nothing_kept.parents[1]} cannot be written" in found.found
    assert "set PYTHONPYCACHEPREFIX" in found.means
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = doctor._byte_code()
    assert not found.ok and "PYTHONDONTWRITEBYTECODE" in found.found and found.means.endswith("unset it")


def test_byte_code_that_an_installer_left_is_used(nothing_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    nothing_kept.parent.mkdir()
    nothing_kept.touch()
    assert doctor._byte_code().ok and doctor._byte_code().found == "kept"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_compiler_that_works_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    found = doctor._compiler()
    assert found.ok and found.found == shutil.which("g++")


def test_the_doctor_says_of_the_compiler_what_a_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "half"  # it has a version, and compiles nothing
    half.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 1.0 && exit\necho 'a.cpp:1: fatal error: no omp.h' >&2; exit 4\n"
    )
    half.chmod(0o755)
    for given in ("", "absent", "/bin/false", str(half)):
        monkeypatch.setenv("CXX", given)
        found = doctor._compiler()
        assert not found.ok and found.found.removeprefix("backend cannot: ") == compiling_fault()


def test_what_cannot_be_looked_at_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> doctor.Finding:
        raise OSError("no such luck")

    monkeypatch.setattr(doctor, "_disk", fails)
    found = doctor.examine()[-1]
    assert (found.what, found.ok, found.found) == ("disk here", False, "OSError: no such luck")


def test_a_folder_that_cannot_be_compiled_in_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file" / "cache")}
    said = "TORCHINDUCTOR_CACHE_DIR is '"

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tickgraph", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    for words in (["train", "cartpole_swingup"], ["check", "cartpole_swingup"], ["bench", "train", "cartpole_swingup"]):
        done = run(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"tickgraph: {said}") and "which cannot be made: Not a directory" in done.stderr
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout and "processors" in done.stdout and "compiling on the CPU" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
