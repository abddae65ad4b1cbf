"""What `tickgraph doctor` finds, where it depends on more than this machine."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

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
