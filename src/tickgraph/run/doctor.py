"""What this machine can do and why not: one finding a line, each with what it means."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from tickgraph.core.compiler import compiling_fault, cpp_compiler
from tickgraph.core.errors import TickgraphError
from tickgraph.core.install import install_extra
from tickgraph.run.manifest import machine, result_header, versions
from tickgraph.run.packages import CACHE, compiler_cache_fault
from tickgraph.run.panel import one_line

_COMPILING = "compiling on the CPU"


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``ok`` is False where something that tickgraph could use is missing."""

    what: str
    ok: bool
    found: str
    means: str


def examine() -> list[Finding]:
    """Look at processors, packages, compiler, GPU, rendering and disk; what cannot be looked at is a finding too."""
    found: list[Finding] = []
    fault = compiler_cache_fault()
    if fault is not None:
        found.append(Finding("compiler's cache", False, fault, "no task can be loaded before this is mended"))
        os.environ.pop(CACHE)  # torch would not load with it, and there is more to look at
    looks: dict[str, Callable[[], Finding | list[Finding]]] = {
        "processors": _processors,
        "physics": _physics,
        "torch": _torch,
        "byte code": _byte_code,
        _COMPILING: _compiler,
        "GPU": _gpu,
        "gpu extra": _gpu_extra,
        "export extra": _export_extra,
        "rendering": _rendering,
        "disk here": _disk,
    }
    for what, look in looks.items():
        try:
            seen = look()
        except Exception as error:
            seen = Finding(what, False, one_line(error), "this could not be looked at, and is likely not to work")
        found += seen if isinstance(seen, list) else [seen]
    return found


def report(findings: list[Finding]) -> dict[str, Any]:
    """Return the findings as plain data, with machine and versions."""
    return {**result_header(), "findings": [asdict(finding) for finding in findings]}


def _processors() -> list[Finding]:
    facts = machine()
    cores, memory = facts["cores"], (facts["memory_bytes"] or 0) / 2**30
    means = "physics uses all of them, torch one in a tick and all in an update"
    if cores != facts["cores_of_machine"]:
        means += f"; the machine has {facts['cores_of_machine']}, this process may use {cores}"
    return [
        Finding("processors", True, f"{cores} x {facts['processor']}", means),
        Finding(
            "memory", memory >= 4, f"{memory:.1f} GiB", "the replay is the largest part; train.replay_slots sets it"
        ),
    ]


def _physics() -> Finding:
    try:
        from tickgraph.sim.backend import backends
    except ImportError as error:
        return Finding("physics", False, str(error), "nothing can be simulated; install mujoco-core")
    version = versions().get("mujoco-core") or versions().get("mujoco") or "unknown"
    return Finding("physics", True, f"MuJoCo {version}", f"backends: {', '.join(backends())}")


def _torch() -> list[Finding]:
    import torch

    given = {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ}
    policy = given.get("OMP_WAIT_POLICY", "").lower()
    meaning = {
        "passive": "threads sleep at once: updates on several threads are two to three times slower",
        "active": "waiting threads spin for ever and take cores from the physics; unset it",
    }.get(policy, "waiting threads spin briefly, then leave their core to the physics")
    return [
        Finding(
            "torch", True, f"{torch.__version__} on Python {platform.python_version()}", "networks and task terms run"
        ),
        Finding(
            "OpenMP waiting",
            policy not in ("passive", "active"),
            ", ".join(f"{name} {value}" for name, value in given.items()) or "unset",
            meaning,
        ),
    ]


def _byte_code() -> Finding:
    """Python reads modules from byte code that the first import, or the installer, has left beside them."""
    import torch

    what, cached = "byte code", Path(importlib.util.cache_from_source(torch.__file__))
    if cached.exists():
        return Finding(what, True, "kept", "a start reads its modules compiled")
    cost = "each start compiles some 2,500 modules of torch and others anew, which takes seconds"
    if sys.dont_write_bytecode:
        return Finding(what, False, "none of torch, and PYTHONDONTWRITEBYTECODE or -B is set", f"{cost}; unset it")
    folder = next(path for path in cached.parents if path.exists())
    if os.access(folder, os.W_OK):
        return Finding(what, True, "none of torch yet", "the next start keeps it")
    where = "set PYTHONPYCACHEPREFIX to a folder that can be written"
    return Finding(what, False, f"none of torch, and {folder} cannot be written", f"{cost}; {where}")


def _compiler() -> Finding:
    import torch

    from tickgraph.core.program import limits

    against = [reason for reason in limits(torch.device("cpu")) if "compile" in reason.modes]
    fault = "; ".join(map(str, against)) or compiling_fault()
    if fault:
        return Finding(_COMPILING, False, fault, "runs go eager, several times slower")
    found = shutil.which(cpp_compiler()) or cpp_compiler()
    return Finding(_COMPILING, True, found, "--execution compile works, and auto takes it")


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        from tickgraph.sim.platform import resolve_platform

        names, platform_ = ", ".join(machine()["gpus"]), resolve_platform()
        if platform_.note:
            return Finding("GPU", False, names, platform_.note)
        return Finding(
            "GPU", True, names, f"runs use it, with backend {platform_.backend}; --device cpu keeps them off it"
        )
    why = "torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU or driver"
    return Finding("GPU", False, why, "runs use the CPU; the same tasks run on both")


def _gpu_extra() -> Finding:
    found = {name: version for name in ("mujoco-warp", "warp-lang") if (version := installed(name))}
    if len(found) == 2:
        what = ", ".join(f"{name} {version}" for name, version in found.items())
        return Finding("gpu extra", True, what, "backend mjwarp runs here; beside a GPU it is the one that is used")
    why = f"only {next(iter(found))} is installed" if found else "not installed"
    return Finding("gpu extra", False, why, f"needed on a GPU alone: {install_extra('gpu')}")


def _export_extra() -> Finding:
    found = {name: installed(name) for name in ("onnx", "onnxscript", "onnxruntime")}
    lacking = [name for name, version in found.items() if version is None]
    if not lacking:
        what = ", ".join(f"{name} {version}" for name, version in found.items())
        return Finding("export extra", True, what, "`tickgraph export` writes policies for a robot")
    why = f"without {' and '.join(lacking)}" if len(lacking) < len(found) else "not installed"
    return Finding("export extra", False, why, f"needed by `tickgraph export` alone: {install_extra('export')}")


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, None where there is none."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


def _rendering() -> Finding:
    from tickgraph.run.video import rendering

    try:
        found = rendering()
    except TickgraphError as error:
        return Finding("rendering", False, str(error), "training works and skips its video")
    return Finding("rendering", True, found, "videos can be made, with no display")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    means = "a run's checkpoints hold its replay; see train.keep_checkpoints and train.checkpoint_replay"
    return Finding("disk here", free >= 2, f"{free:.1f} GiB free", means)
