"""Programs: which mode runs, what is reported, and that nothing about it is silent."""

import gc
import importlib.util
import logging
import shutil
import weakref
from typing import NamedTuple

import pytest
import torch

from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.core.program import GUARDED_EVERY, Program, Reason, Resolution, first_line, resolve_execution

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


@pytest.fixture
def triton(monkeypatch):
    """Say whether Triton is installed; returns the setter."""
    find = importlib.util.find_spec

    def install(there: bool) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: (there or None) if name == "triton" else find(name, *rest)
        )

    return install


def test_on_a_gpu_modes_fall_back_one_by_one_each_with_its_reason(triton, caplog):
    cuda = torch.device("cuda")
    backend = Reason("backend cannot", "backend 'stones' cannot be captured into a CUDA graph", ("graph",))
    term = Reason("term not static", "rewards/bad calls .item()")
    triton(True)
    assert resolve_execution("auto", cuda) == Resolution("auto", "graph", None, cuda, "compile")
    assert resolve_execution("graph", cuda) == Resolution("graph", "graph", None, cuda, "compile")
    assert resolve_execution("compile", cuda, [backend]) == Resolution("compile", "compile", None, cuda, "compile")
    assert not caplog.records
    assert resolve_execution("auto", cuda, [backend]) == Resolution("auto", "compile", str(backend), cuda, "compile")
    assert "falls back from graph to compile: backend cannot: backend 'stones'" in caplog.records[-1].message
    both = f"{backend}; {term}"
    assert resolve_execution("auto", cuda, [backend, term]) == Resolution("auto", "eager", both, cuda, "eager")
    assert f"falls back from graph to eager: {both}" in caplog.records[-1].message
    assert len(caplog.records) == 2
    with pytest.raises(ExecutionError, match="'graph' cannot be had on cuda: backend cannot: backend 'stones'"):
        resolve_execution("graph", cuda, [backend])


def test_without_triton_a_graph_is_of_eager_programs(triton, caplog):
    cuda, reason = torch.device("cuda"), "backend cannot: Triton is not installed"
    triton(False)
    for requested in ("auto", "graph"):
        assert resolve_execution(requested, cuda) == Resolution(requested, "graph", reason, cuda, "eager")
    assert [record.message for record in caplog.records] == [f"the programs inside the graph run eager: {reason}"] * 2
    program = Program("p", lambda: None, Resolution("graph", "graph", reason, CPU, "eager"))
    program()
    report = program.report()
    assert (report["requested"], report["enabled"], report["disable_reason"]) == ("graph", "eager", reason)
    with pytest.raises(ExecutionError, match="Triton is not installed"):
        resolve_execution("compile", cuda)
    backend = Reason("backend cannot", "no capture", ("graph",))
    both = f"{backend}; {reason}"
    assert resolve_execution("auto", cuda, [backend]) == Resolution("auto", "eager", both, cuda, "eager")


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


class Walker:
    """State in tensors as terms keep it, and a Python number that the compiler takes for a constant."""

    def __init__(self) -> None:
        self.length = torch.zeros(4, dtype=torch.int64)
        self.total = torch.zeros(4)
        self.gain = 1.0

    def tick(self) -> None:
        self.length += 1
        self.total.add_(self.length * self.gain)

    def look(self) -> torch.Tensor:
        return self.total * self.gain

    def rebind(self) -> None:
        self.total = self.total + self.gain


@needs_compiler
@pytest.mark.slow
def test_calls_without_guards_do_the_same_and_a_changed_value_is_noticed_within_fifty(caplog):
    plain, walker = Walker(), Walker()
    program = Program("walk", walker.tick, as_mode("compile", "compile"))
    guarded = count_guarded(program)
    for _ in range(2 * GUARDED_EVERY + 2):
        plain.tick()
        program()
    assert torch.equal(walker.total, plain.total) and torch.equal(walker.length, plain.length)
    assert walker.total.tolist() == [102 * 103 / 2] * 4
    report = program.report()
    assert (report["captures"], report["replays"], report["recompiles"]) == (1, 101, 0)
    assert guarded == [1, 2, 52, 102]
    walker.gain = 0.0
    with caplog.at_level(logging.WARNING):
        for _ in range(GUARDED_EVERY):
            program()
    assert walker.total.tolist() == [sum(range(1, 102 + GUARDED_EVERY))] * 4  # all but the last with the old gain
    assert program.report()["recompiles"] == 1
    assert "'walk' was compiled again" in caplog.text and "gain" in caplog.text
    assert f"up to {GUARDED_EVERY - 1} calls have run without the change" in caplog.text


def count_guarded(program: Program) -> list[int]:
    """Return a list that will hold the numbers of the calls that went through torch's guards."""
    guarded: list[int] = []
    compiled = program._compiled

    def count(*args: object) -> object:
        report = program.report()
        guarded.append(report["captures"] + report["replays"] + 1)
        return compiled(*args)

    program._compiled = count
    return guarded


@needs_compiler
@pytest.mark.slow
def test_each_number_of_threads_has_code_of_its_own(caplog):
    walker = Walker()
    program = Program("walk", walker.tick, as_mode("compile", "compile"))
    guarded = count_guarded(program)
    threads = torch.get_num_threads()
    try:
        for count in (threads, threads + 1, threads, threads + 1):
            torch.set_num_threads(count)
            for _ in range(5):
                program()
    finally:
        torch.set_num_threads(threads)
    # Twice for the first number and twice for the second; then neither needs to be asked again.
    assert guarded == [1, 2, 6, 7]
    assert (program.report()["captures"], program.report()["recompiles"]) == (2, 1)
    assert walker.length.tolist() == [20] * 4
    assert "num_threads" in caplog.text and "without the change" not in caplog.text


@needs_compiler
@pytest.mark.slow
def test_what_a_shortcut_cannot_do_stays_guarded():
    walker = Walker()
    look = Program("look", walker.look, as_mode("compile", "compile"))
    rebind = Program("rebind", walker.rebind, as_mode("compile", "compile"))
    for _ in range(5):
        rebind()
        assert torch.equal(look(), walker.total)
    assert walker.total.tolist() == [5.0] * 4
    walker.gain = 2.0
    assert look().tolist() == [10.0] * 4  # at once
    tick = Program("tick", walker.tick, as_mode("compile", "compile"))
    for _ in range(3):
        tick()
    old, walker.length = walker.length, torch.zeros(4, dtype=torch.int64)
    for _ in range(GUARDED_EVERY):
        tick()
    assert old.tolist() == [3 + GUARDED_EVERY - 2] * 4 and walker.length.tolist() == [2] * 4
    tick.invalidate()
    tick()
    assert walker.length.tolist() == [3] * 4


class Step(NamedTuple):
    """What a steady program returns."""

    moved: torch.Tensor
    given: torch.Tensor
    total: torch.Tensor


class Mover:
    def __init__(self) -> None:
        self.gain = 2.0
        self.total = torch.zeros(4)

    def move(self, pair: tuple[torch.Tensor, torch.Tensor], by: torch.Tensor) -> tuple[Step, torch.Tensor]:
        self.total.add_(by)
        return Step(pair[0] * self.gain + pair[1], by, self.total), pair[1] - by


@needs_compiler
@pytest.mark.slow
def test_a_steady_program_skips_guards_with_new_arguments_and_gives_what_they_give():
    plain, mover = Mover(), Mover()
    program = Program("move", mover.move, as_mode("compile", "compile"), steady=True)
    guarded = count_guarded(program)
    for call in range(GUARDED_EVERY + 10):
        x, y, by = (torch.full((4,), float(call + more)) for more in range(3))
        (expected, rest), (found, left) = plain.move((x, y), by), program((x, y), by)
        assert isinstance(found, Step) and found.given is by and found.total is mover.total
        assert torch.equal(found.moved, expected.moved) and torch.equal(left, rest), call
    assert guarded == [1, 2, GUARDED_EVERY + 2]
    assert torch.equal(mover.total, plain.total)
    # Arguments of another kind are never given to code that was built without them.
    for kind in (torch.ones(4, dtype=torch.float64), torch.ones(4, 2)[:, 0]):
        pair = (kind, torch.empty_strided(kind.shape, kind.stride(), dtype=kind.dtype).fill_(1.0))
        found, _ = program(pair, torch.ones(4))
        assert torch.equal(found.moved, torch.full_like(kind, 3.0))
    assert program.report()["captures"] == 3
    before = len(guarded)
    program((x, y), by)
    assert len(guarded) == before  # the first kind still has its shortcut


@needs_compiler
@pytest.mark.slow
def test_guards_are_asked_where_skipping_them_is_not_said_or_not_safe():
    same = torch.ones(4)
    by_itself = Program("move", Mover().move, as_mode("compile", "compile"))
    twice = Program("move", Mover().move, as_mode("compile", "compile"), steady=True)
    learning = Program("move", Mover().move, as_mode("compile", "compile"), steady=True, grad=True)
    counts = [count_guarded(program) for program in (by_itself, twice, learning)]
    for _ in range(5):
        by_itself((torch.ones(4), torch.ones(4)), torch.ones(4))
        twice((same, same), torch.ones(4))  # one tensor for two arguments: torch asks whether it is one
        learning((torch.ones(4), torch.ones(4)), torch.ones(4))
    assert counts == [[1, 2, 3, 4, 5]] * 3


@needs_compiler
@pytest.mark.slow
def test_a_shortcut_keeps_no_argument_and_no_result():
    program = Program("move", Mover().move, as_mode("compile", "compile"), steady=True)
    for _ in range(3):
        x, y, by = (torch.ones(4) for _ in range(3))
        found = program((x, y), by)
    held = [weakref.ref(value) for value in (x, y, by, found[0].moved, found[1])]
    del x, y, by, found
    assert [one() for one in held] == [None] * 5


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


def test_an_error_without_a_message_is_told_by_its_kind():
    error = NotImplementedError('\n\nfrom user code:\n   File "task.py", line 7, in reward')
    assert first_line(error) == "NotImplementedError without a message (task.py:7)"
    assert first_line(AssertionError()) == "AssertionError without a message"
    assert first_line(ValueError("no\nmore")) == "no"
