"""The C++ compiler that torch calls for programs on a CPU: which it is, and what keeps it from making any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

# With what torch gives the compiler of its own code: the standard library, OpenMP, a shared library.
_TRIAL = '#include <cmath>\n#include <omp.h>\nextern "C" int trial() { return omp_get_num_threads(); }\n'
_TRIAL_WORDS = ("-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fopenmp")
_TRIAL_S = 60  # seconds after which a compiler that says nothing is none


def cpp_compiler() -> str:
    """Return the command that torch calls; an empty CXX is one to it, which cannot be run."""
    return os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))


def compiler_fault() -> str | None:
    """Return why torch takes no C++ compiler here, and what to do; None where it takes one.

    As torch, it asks the compiler for its version.
    """
    compiler = cpp_compiler()
    if not compiler:
        return "CXX is set and empty, so no C++ compiler is taken; unset it, or name one in it"
    path = shutil.which(compiler)
    if path is None:
        return f"the C++ compiler {compiler!r} was not found; install it or set CXX"
    said = _version_fault(path) if sys.platform != "win32" else None
    return None if said is None else f"{compiler!r} is no C++ compiler: {said}; name another in CXX, or unset it"


def compiling_fault() -> str | None:
    """Return why torch's C++ compiler does not make a program here, and what to do; None where it makes one."""
    fault = compiler_fault()
    if fault is not None or sys.platform != "linux":
        return fault
    compiler = cpp_compiler()
    refused = trial_fault(compiler)
    return None if refused is None else f"{compiler} compiles nothing: {refused}; install g++ or set CXX"


@lru_cache
def trial_fault(compiler: str) -> str | None:
    """Return why a C++ compiler does not make a shared library of three lines, or None where it does."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "trial.cpp"), Path(folder, "trial.so")
        source.write_text(_TRIAL)
        done = _run(compiler, *_TRIAL_WORDS, str(source), "-o", str(library))
        if isinstance(done, str):
            return done
        if done.returncode == 0 and library.exists():
            return None
        said = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip() or "nothing said"
        )
        return f"exit code {done.returncode}, {said.splitlines()[0]}"


@lru_cache
def _version_fault(path: str) -> str | None:
    done = _run(path, "--version")
    if isinstance(done, str):
        return done
    if done.returncode:
        return f"--version ends with exit code {done.returncode}"
    return None if done.stdout.strip() else "--version says nothing"


def _run(*command: str) -> subprocess.CompletedProcess[str] | str:
    """Return what a command did, or in one line why it did nothing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TRIAL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
