"""The C++ compiler: what torch takes, what keeps it from making a program, and how often that is said."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch._inductor.cpp_builder import cpp_compiler_search
from torch._inductor.exc import InvalidCxxCompiler

from tickgraph.core import compiler
from tickgraph.core.errors import ExecutionError
from tickgraph.core.program import Program, resolve_execution

EMPTY = "CXX is set and empty, so no C++ compiler is taken; unset it, or name one in it"


@pytest.fixture
def half(tmp_path: Path) -> str:
    """A compiler that has a version, and no OpenMP."""
    file = tmp_path / "half"
    file.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 1.0 && exit\n"
        "echo note >&2\necho 'a.cpp:1: fatal error: omp.h: No such file' >&2\nexit 4\n"
    )
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("", EMPTY),
        ("nothere", "the C++ compiler 'nothere' was not found; install it or set CXX"),
        ("ccache g++", "the C++ compiler 'ccache g++' was not found; install it or set CXX"),
        (
            "/bin/false",
            "'/bin/false' is no C++ compiler: --version ends with exit code 1; name another in CXX, or unset",
        ),
    ],
)
def test_what_torch_takes_for_no_compiler_is_none(given: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", given)
    assert str(compiler.compiler_fault()).startswith(fault) and compiler.compiling_fault() == compiler.compiler_fault()
    with pytest.raises((InvalidCxxCompiler, PermissionError)):
        cpp_compiler_search.__wrapped__((None, given))
    assert resolve_execution("auto", "cpu").disable_reason == f"backend cannot: {compiler.compiler_fault()}"
    with pytest.raises(ExecutionError, match="CXX"):
        resolve_execution("compile", "cpu")


def test_a_command_without_a_version_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/echo")
    assert compiler.compiler_fault() is None  # who says something may be one
    silent = shutil.which("true") or ""
    monkeypatch.setattr(compiler, "_run", lambda *words: compiler.subprocess.CompletedProcess(words, 0, "", ""))
    compiler._version_fault.cache_clear()
    monkeypatch.setenv("CXX", silent)
    assert "is no C++ compiler: --version says nothing; name another in CXX" in str(compiler.compiler_fault())
    compiler._version_fault.cache_clear()


def test_why_a_compiler_compiles_nothing(half: str, tmp_path: Path) -> None:
    assert compiler.trial_fault("/bin/false") == "exit code 1, nothing said"
    assert compiler.trial_fault("/bin/true") == "exit code 0, nothing said"  # it says yes and makes nothing
    assert "No such file" in str(compiler.trial_fault(str(tmp_path / "absent")))
    assert compiler.trial_fault(half) == "exit code 4, a.cpp:1: fatal error: omp.h: No such file"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_compiler_that_works_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.cpp_compiler() == "g++"
    assert compiler.compiler_fault() is None and compiler.compiling_fault() is None


def test_what_is_the_compilers_fault_is_said_once_for_all_programs(
    half: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("C++ compile error of this very program")

    # torch has read CXX when it was loaded, and keeps what it has compiled.
    monkeypatch.setattr("tickgraph.core.program._inductor", broken)
    monkeypatch.setenv("CXX", half)
    x = torch.zeros(3)
    reason = (
        f"backend cannot: {half} compiles nothing: exit code 4, a.cpp:1: fatal error: omp.h: No such file; install g++"
    )
    with caplog.at_level(logging.WARNING):
        for name in ("one", "two"):
            program = Program(name, lambda: x.add_(1), resolve_execution("auto", "cpu"))
            program()
            assert str(program.report()["disable_reason"]).startswith(reason)
    assert x.tolist() == [2.0] * 3
    (said,) = (record.message for record in caplog.records if record.name.startswith("tickgraph"))
    assert said == f"all programs fall back from compile to eager: {reason} or set CXX"
    with pytest.raises(ExecutionError, match=r"program 'p' cannot run as 'compile': backend cannot: .* set CXX"):
        Program("p", lambda: x.add_(1), resolve_execution("compile", "cpu"))()


def test_a_reason_that_was_told_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "nothere")
    with caplog.at_level(logging.WARNING):
        assert resolve_execution("auto", "cpu", told=True) == resolve_execution("auto", "cpu")
    assert len(caplog.records) == 1
