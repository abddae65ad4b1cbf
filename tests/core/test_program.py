"""Programs: which mode runs, what is reported, and that nothing about it is silent."""

import logging
import shutil

import pytest
import torch

from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.core.program import Program, Reason, Resolution, resolve_execution

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def as_mode(requested: str, enabled: str) -> Resolution:
    return Resolution(requested, enabled, None, CPU)


@needs_compiler
def test_auto_on_a_cpu_with_a_compiler_compiles():
    assert resolve_execution("auto", "cpu") == as_mode("auto", "compile")
    assert resolve_execution("eager", "cpu") == as_mode("eager", "eager")


def test_without_a_compiler_auto_falls_back_and_says_why(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        resolution = resolve_execution("auto", "cpu")
    assert resolution.enabled == "eager"
    assert resolution.disable_reason.startswith("backend cannot: the C++ compiler 'no-such-compiler' was not found")
    assert len(caplog.records) == 1
    program = Program("tick", lambda: None, resolution)
    program()
    assert program.report()["eager_fallbacks"] == 1
    with pytest.raises(ExecutionError, match="no-such-compiler"):
        resolve_execution("compile", "cpu")


def test_every_reason_is_listed_with_its_kind(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    reasons = [Reason("term not static", "rewards/bad calls .item()"), Reason("configuration illegal", "two of them")]
    with pytest.raises(ExecutionError) as caught:
        resolve_execution("compile", "cpu", reasons)
    text = str(caught.value)
    for part in ("term not static: rewards/bad", "configuration illegal: two", "backend cannot: the C++ compiler"):
        assert part in text
    assert "\n" not in text


def test_modes_that_cannot_be_had():
    with pytest.raises(ExecutionError, match="backend cannot: CUDA graphs need a CUDA device"):
        resolve_execution("graph", "cpu")
    with pytest.raises(TickgraphError, match="did you mean 'compile'"):
        resolve_execution("compiled", "cpu")
    assert resolve_execution("auto", "meta").enabled == "eager"


def test_eager_sets_gradient_mode_and_autocast():
    weight = torch.ones(4, 4, requires_grad=True)
    seen = {}

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen["autocast"] = torch.is_autocast_enabled("cpu")
        return x @ weight

    x = torch.ones(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = Program("p", fn, as_mode("eager", "eager"))(x)
    assert not out.requires_grad and out.dtype == torch.float32 and seen["autocast"] is False
    out = Program("p", fn, as_mode("eager", "eager"), grad=True, autocast=torch.bfloat16)(x)
    assert out.requires_grad and out.dtype == torch.bfloat16
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


class Counter:
    """State in a tensor, and a Python number that the compiler takes for a constant."""

    def __init__(self) -> None:
        self.total = torch.zeros(3)
        self.step = 1.0

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x * self.step)
        return self.total.sum()


@needs_compiler
@pytest.mark.slow
def test_compile_replays_and_reports_a_recompile(caplog):
    counter = Counter()
    program = Program("count", counter.add, as_mode("compile", "compile"))
    for _ in range(3):
        program(torch.ones(3))
    report = program.report()
    assert (report["captures"], report["replays"], report["recompiles"]) == (1, 2, 0)
    assert counter.total.tolist() == [3.0] * 3
    counter.step = 2.0
    with caplog.at_level(logging.WARNING):
        program(torch.ones(3))
    assert counter.total.tolist() == [5.0] * 3
    assert (program.report()["captures"], program.report()["recompiles"]) == (2, 1)
    assert "'count' was compiled again" in caplog.text and "step" in caplog.text
    program.invalidate()
    program(torch.ones(3))
    report = program.report()
    assert (report["version"], report["captures"], report["recompiles"]) == (2, 3, 1)


def host_read(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum().item() if x.sum() > 0 else x


@needs_compiler
def test_a_failed_compilation_falls_back_once_in_auto_only(caplog):
    x = torch.ones(3)
    program = Program("bad", host_read, as_mode("auto", "compile"))
    with caplog.at_level(logging.WARNING):
        assert program(x).tolist() == [4.0] * 3
        program(x)
    report = program.report()
    assert report["enabled"] == "eager" and report["eager_fallbacks"] == 2 and report["captures"] == 0
    assert report["disable_reason"].startswith("capture failed: ") and "test_program.py:" in report["disable_reason"]
    assert len([record for record in caplog.records if "falls back" in record.message]) == 1
    with pytest.raises(ExecutionError, match="capture failed"):
        Program("bad", host_read, as_mode("compile", "compile"))(x)


def test_a_stance_that_forbids_compiling_is_not_silent():
    program = Program("stance", Counter().add, as_mode("auto", "compile"))
    with torch.compiler.set_stance("force_eager"):
        program(torch.ones(3))
    assert program.report()["enabled"] == "eager"
    assert program.report()["disable_reason"].startswith("capture failed: torch.compile ran the function as it is")


@needs_compiler
def test_a_compiled_program_can_be_freed():
    import gc
    import weakref

    class Owner:
        def __init__(self):
            self.total = torch.zeros(3)
            self.program = Program("owner", lambda: self.total.add_(1.0), resolve_execution("compile", "cpu"))

    owner = Owner()
    owner.program()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
