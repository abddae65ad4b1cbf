"""What this machine can do and why not: one finding a line, each with what it means."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.core.install import install_extra
from tickgraph.run.manifest import machine, result_header, versions
from tickgraph.run.packages import CACHE, compiler_cache_fault
from tickgraph.run.panel import one_line

# With what torch gives the compiler of its own code: the standard library, OpenMP, a shared library.
_TRIAL = '#include <cmath>\n#include <omp.h>\nextern "C" int trial() { return omp_get_num_threads(); }\n'
_TRIAL_WORDS = ("-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fopenmp")
_TRIAL_S = 60  # seconds after which a compiler that says nothing is none


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
    from tickgraph.core.program import resolve_execution

    eager = "runs go eager, several times slower"
    resolution = resolve_execution("auto", "cpu")
    if resolution.disable_reason:
        return Finding(_COMPILING, False, resolution.disable_reason, eager)
    names = ("clang++",) if sys.platform == "darwin" else ("g++", "clang++")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or names[0], *names))), "")
    refused = compile_fault(compiler) if sys.platform == "linux" else None
    if refused is not None:
        return Finding(_COMPILING, False, f"{compiler} compiles nothing: {refused}", f"{eager}; install g++ or set CXX")
    return Finding(_COMPILING, True, compiler or "found", "--execution compile works, and auto takes it")


def compile_fault(compiler: str) -> str | None:
    """Return why a C++ compiler does not make a shared library of three lines, or None where it does."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "trial.cpp"), Path(folder, "trial.so")
        source.write_text(_TRIAL)
        command = [compiler, *_TRIAL_WORDS, str(source), "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TRIAL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return one_line(error)
        if done.returncode == 0 and library.exists():
            return None
        said = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip() or "nothing said"
        )
        return f"exit code {done.returncode}, {said.splitlines()[0]}"


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
