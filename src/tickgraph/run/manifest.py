"""What ran, on what and with which versions, and how it ended: run_manifest.json and run_summary.json."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import read_json, write_json
from tickgraph.run.folder import RunFolder

FORMAT = 1
STATUSES = ("completed", "interrupted", "failed")
_PACKAGES = ("tickgraph", "torch", "mujoco-core", "mujoco", "numpy", "tyro", "safetensors", "warp-lang", "mujoco-warp")
_MANIFEST_KEYS = ("format", "task", "reference", "machine", "versions", "commit", "dirty", "seeds", "programs")
_SUMMARY_KEYS = ("format", "status", "reason", "iteration", "env_steps", "evaluation")
# What is read by more than people, where it is there.
_TYPES: dict[str, tuple[str, type | UnionType]] = {
    "sessions": ("a list", list),
    "config": ("text", str),
    "iteration": ("a whole number", int),
    "wall_s": ("a number", int | float),
}


def processors() -> int:
    """Return how many processors this process may use (its affinity, not the machine's count)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Return the machine in plain values: system, processor, cores, memory in bytes, GPUs if torch is loaded."""
    model, memory = platform.processor() or platform.machine(), None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        pass  # not Linux: the fallbacks stand
    torch = sys.modules.get("torch")
    gpus = []
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "processor": model,
        "cores": processors(),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": memory,
        "gpus": gpus,
    }


def device_name(device: Any) -> str:
    """Return what a torch device is called: the GPU's name, or the processor's."""
    torch = sys.modules["torch"]
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine()["processor"]


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None where the system does not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None


def versions() -> dict[str, str]:
    """Return the installed version of Python and of each package that results depend on; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.__version__
        if torch.version.cuda is not None:
            found["cuda"] = torch.version.cuda
    return found


def source_state() -> dict[str, Any]:
    """Return {commit, dirty} of the tree that tickgraph runs from; both None when it is not a git checkout."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    tracked = git("ls-files", "--error-unmatch", Path(__file__).name)
    commit = git("rev-parse", "HEAD") if tracked else None
    if commit is None:
        return {"commit": None, "dirty": None}
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def result_header() -> dict[str, Any]:
    """Return what every machine-readable result carries: machine, versions, commit, dirty."""
    return {"machine": machine(), "versions": versions(), **source_state()}


def write_manifest(run: RunFolder, **facts: Any) -> dict[str, Any]:
    """Write run_manifest.json from `facts` and what can be read off the machine; returns what was written."""
    value = {"format": FORMAT, "created": now(), "command": sys.argv, **result_header(), **facts}
    write_json(run.manifest, value)
    return value


def read_manifest(run: RunFolder) -> dict[str, Any]:
    """Read run_manifest.json.

    Raises:
        TickgraphError: it is missing, malformed, or of another format.
    """
    return _checked(read_json(run.manifest, "what ran"), run.manifest, _MANIFEST_KEYS)


def write_summary(
    run: RunFolder,
    status: str,
    reason: str | None = None,
    iteration: int = 0,
    env_steps: int = 0,
    evaluation: dict[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Write run_summary.json; `evaluation` holds the figures of the trained and of an untrained policy, or None."""
    assert status in STATUSES, status
    value = {"format": FORMAT, "status": status, "reason": reason, "written": now(), "iteration": iteration}
    write_json(run.summary, {**value, "env_steps": env_steps, **facts, "evaluation": evaluation})


def read_summary(run: RunFolder) -> dict[str, Any]:
    """Read run_summary.json.

    Raises:
        TickgraphError: it is missing, malformed, or of another format.
    """
    summary = _checked(read_json(run.summary, "how it ended"), run.summary, _SUMMARY_KEYS)
    if summary["status"] not in STATUSES:
        raise TickgraphError(f"{run.summary}: status is {summary['status']!r}, expected one of {', '.join(STATUSES)}")
    return summary


def now() -> str:
    """Return the local time as ISO 8601 with its offset."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _checked(value: dict[str, Any], path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    missing = [key for key in keys if key not in value]
    if missing:
        raise TickgraphError(f"{path} lacks {', '.join(missing)}; it is not a file that tickgraph wrote")
    if value["format"] != FORMAT:
        raise TickgraphError(f"{path} has format {value['format']!r}, this version reads {FORMAT}")
    for key, (name, kind) in _TYPES.items():
        if value.get(key) is not None and not isinstance(value[key], kind):
            raise TickgraphError(f"{path}: {key} is {value[key]!r}, expected {name}; put the file back as it was")
    return value
