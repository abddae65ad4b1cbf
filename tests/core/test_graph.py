"""Graphs: the same bits as the work they were captured from, on streams, and nothing that goes wrong is silent."""

import gc
import logging
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tickgraph.bench._proof import device_memory, growth
from tickgraph.core.arena import Arena
from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.core.graph import DEBUG, WARM_UP, Graph
from tickgraph.core.masked import fill_rows
from tickgraph.core.memory import memory_for
from tickgraph.core.program import Program, Resolution
from tickgraph.core.rng import Rng

CPU = torch.device("cpu")
N = 64
DELAY = 20_000_000  # clock cycles, some 10 ms


def gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test))


def mode(enabled: str, inner: str = "", requested: str = "", device: str = "cuda") -> Resolution:
    return Resolution(requested or enabled, enabled, None, torch.device(device), inner)


class Toy:
    """A tick of particles: a random push, a check, a masked reset and a counter, in two programs."""

    def __init__(self, resolution: Resolution) -> None:
        self.arena = arena = Arena(resolution.device)
        self.rng = Rng(arena, N, seed=7)
        self.draw = self.rng.stream("toy/push")
        self.x = arena.new("x", (N, 3))
        self.v = arena.new("v", (N, 3))
        self.done = arena.new("done", (N,), torch.bool)
        self.resets = arena.new("resets", (N,), torch.int64)
        self.move = Program("toy/move", self._move, resolution)
        self.judge = Program("toy/judge", self._judge, resolution)
        self.draw.uniform("v", 3, -1.0, 1.0), self.draw.normal("x", 4)
        self.rng.reserve(self.rng.draws())
        arena.seal()

    def _move(self) -> None:
        self.rng.advance()
        self.v.copy_(0.9 * self.v + self.draw.uniform("v", 3, -1.0, 1.0))
        self.x.add_(torch.tanh(self.v) + 0.1 * self.draw.normal("x", 4)[:, :3])

    def _judge(self) -> None:
        self.done.copy_(self.x.square().sum(dim=1) > 4.0)
        self.resets += self.done
        fill_rows(self.x, self.done, 0.0)
        fill_rows(self.v, self.done, 0.0)

    def tick(self) -> None:
        self.move()
        self.judge()

    def state(self) -> dict[str, Tensor]:
        torch.cuda.synchronize()
        return {name: value.cpu() for name, value in self.arena.snapshot().items()}


def memory_reserved() -> int:
    """Return the bytes that torch's allocator holds when it has given back what it can."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


# Without a graph ---------------------------------------------------------------------------------------------------


def test_without_a_graph_the_work_is_just_called():
    calls = []
    graph = Graph("tick", lambda: calls.append(torch.cuda.is_initialized()), mode("compile", device="cpu"))
    assert not graph.in_use
    for _ in range(4):
        graph()
    graph.prepare()
    graph.invalidate("a width has changed")
    assert len(calls) == 4 and not graph.in_use
    assert graph.report() == {
        "requested": "compile",
        "enabled": "compile",
        "inner": "compile",
        "disable_reason": None,
        "version": 2,
        "captures": 0,
        "replays": 0,
        "eager_fallbacks": 0,
        "nodes": None,
    }


def test_out_of_memory_says_for_what_and_what_to_do():
    with pytest.raises(TickgraphError) as caught, memory_for("tensor 'ring/obs' (4, 2) float32"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB.\nmore lines")
    text = str(caught.value)
    assert text.startswith("out of GPU memory for tensor 'ring/obs' (4, 2) float32: CUDA out of memory. Tried")
    assert "fewer worlds" in text and "smaller replay" in text and "\n" not in text


TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB of which 3.25 MiB is "
    "free. Process 7 has 139.80 GiB memory in use. Of the allocated memory 130.00 GiB is allocated by PyTorch."
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError(TORCH), "out of GPU memory for X: CUDA out of memory. Tried to allocate 20.00 MiB. "
         "GPU 0 has a total capacity of 139.81 GiB of which 3.25 MiB is free. Use fewer"),
        (RuntimeError("Failed to allocate 3221225472 bytes on device 'cuda:0'"), "out of GPU memory for X: 3.0 GiB "
         "cannot be had"),
        (RuntimeError("Failed to allocate 5242880 bytes on device 'cpu'"), "out of memory for X: 5.0 MiB cannot be "
         "had. Use fewer"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "out of GPU memory for X: Triton Error [CUDA]: out of"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out of GPU"),
    ],
)  # fmt: skip
def test_whoever_runs_out_of_memory_is_understood(error, line):
    with pytest.raises(TickgraphError) as caught, memory_for("X"):
        raise error
    text = str(caught.value)
    assert text.startswith(line) and "\n" not in text
    assert text.endswith(". Use fewer worlds (num_envs), or a smaller replay (replay_slots), batch or network")


@pytest.mark.parametrize("size", [1 << 46, 1 << 62])
def test_out_of_main_memory_says_for_what(size):
    with (
        pytest.raises(TickgraphError, match="^out of memory for the batch: .*Use fewer worlds"),
        memory_for("the batch"),
    ):
        torch.empty(size)


def test_what_is_not_about_memory_passes_through():
    with pytest.raises(RuntimeError, match="shape"), memory_for("the batch"):
        raise RuntimeError("shape '[3]' is invalid")


# The same work -----------------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("inner", ["eager", "compile"])
def test_captured_equals_uncaptured_bit_for_bit(inner):
    plain, captured = Toy(mode(inner)), Toy(mode("graph", inner))
    graph = Graph("toy", captured.tick, mode("graph", inner), watch=captured.arena.pointers)
    for tick in range(40):
        plain.tick()
        graph()
        if tick in (0, 1, 2, 39):
            ours, theirs = captured.state(), plain.state()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs), tick
    assert int(captured.resets.sum()) > N
    report = graph.report()
    assert (report["enabled"], report["inner"], report["captures"], report["replays"]) == ("graph", inner, 1, 38)
    assert report["nodes"] > 4 and graph.in_use
    assert captured.move.report()["enabled"] == inner


@gpu
def test_gradients_are_captured_too():
    weight = torch.full((3, 3), 0.5, device="cuda", requires_grad=True)
    rows = torch.ones(4, 3, device="cuda")
    resolution = mode("graph", "eager")
    loss = Program("loss", lambda: (rows @ weight).square().mean(), resolution, grad=True, autocast=torch.bfloat16)

    def step() -> None:
        (grad,) = torch.autograd.grad(loss(), [weight])
        with torch.no_grad():
            weight.sub_(0.1 * grad)

    graph = Graph("update", step, resolution)
    seen = []
    for _ in range(5):
        graph()
        seen.append(float(weight[0, 0]))
    again = torch.full((3, 3), 0.5, device="cuda", requires_grad=True)
    for value in seen:
        with torch.autocast("cuda", torch.bfloat16):
            out = (rows @ again).square().mean()
        (grad,) = torch.autograd.grad(out, [again])
        with torch.no_grad():
            again.sub_(0.1 * grad)
        assert float(again[0, 0]) == value
    assert seen == sorted(seen, reverse=True) and seen[-1] < seen[0]


@gpu
def test_what_products_work_in_stays_the_graphs_own_when_others_clear_it():
    left, right = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((64, 1 << 16), (1 << 16, 64)))
    out = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    graph = Graph("product", lambda: torch.mm(left, right, out=out), mode("graph", "eager"), stream=stream)
    torch.cuda.synchronize()
    for _ in range(4):
        graph()
    torch.cuda.synchronize()
    want = out.clone()
    torch._C._cuda_clearCublasWorkspaces()  # as Inductor's own graphs do
    with torch.cuda.stream(stream):  # what was given back goes to these
        held = [torch.full((1 << 19,), 7.0, device="cuda") for _ in range(64)]
        graph()
    torch.cuda.synchronize()
    assert torch.equal(out, want) and all(bool((piece == 7.0).all()) for piece in held)


@gpu
def test_a_graph_of_its_own_stream_is_ordered_with_the_callers_work():
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    graph = Graph("add", lambda: (torch.cuda._sleep(DELAY), y.add_(x)), mode("graph", "eager"))
    seen = []
    for i in range(6):
        torch.cuda._sleep(DELAY)
        x.fill_(float(i))  # the graph must wait for this, and the copy below for the graph
        graph()
        seen.append(y.clone())
    assert [float(value[0]) for value in seen] == [0.0, 1.0, 3.0, 6.0, 10.0, 15.0]


@gpu
def test_scopes_are_open_around_runs_and_capture_on_the_given_stream():
    entered = []
    stream = torch.cuda.Stream()
    x = torch.zeros(1, device="cuda")

    @contextmanager
    def scope(given):
        assert given == stream == torch.cuda.current_stream()
        entered.append(torch.cuda.is_current_stream_capturing())
        yield

    graph = Graph("scoped", lambda: x.add_(1.0), mode("graph", "eager"), stream=stream, scopes=(scope,))
    with pytest.raises(TickgraphError, match="called 0 times; call it 2 times first"):
        graph.prepare()
    torch.cuda.synchronize()  # a stream of the caller's does not wait for the zeros
    for _ in range(WARM_UP):
        graph()
    graph.prepare()
    assert graph.report()["captures"] == 1
    for _ in range(3):
        graph()
    stream.synchronize()
    assert entered == [False, False, True] and float(x) == 5.0


@gpu
def test_an_event_recorded_in_a_graph_is_waited_for_outside_of_it():
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    head, done = torch.cuda.Event(external=True), torch.cuda.Event()
    x, y = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    seen = torch.zeros(2, 8, device="cuda")

    def collect() -> None:
        torch.cuda._sleep(DELAY)
        x.add_(1.0)
        head.record()
        torch.cuda._sleep(4 * DELAY)
        y.add_(1.0)

    graph = Graph("collect", collect, mode("graph", "eager"), stream=a)
    torch.cuda.synchronize()
    for i in range(8):
        a.wait_event(done)
        graph()
        with torch.cuda.stream(b):
            b.wait_event(head)
            seen[0, i].copy_(x[0])
            seen[1, i].copy_(y[0])
            done.record(b)
        torch.cuda.synchronize()
    heads, tails = seen.tolist()
    assert heads == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]  # after the head of the same launch,
    assert tails == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]  # and beside its tail
    # The same with nobody waiting on the host, as training does.
    seen.zero_()
    for i in range(8):
        a.wait_event(done)
        graph()
        with torch.cuda.stream(b):
            b.wait_event(head)
            seen[0, i].copy_(x[0])
            done.record(b)
    torch.cuda.synchronize()
    assert seen[0].tolist() == [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]


# Faults ------------------------------------------------------------------------------------------------------------


def reads_on_the_host(x: Tensor) -> None:
    x.add_(1.0 if x.sum().item() > 0 else 2.0)  # the wait


@gpu
@pytest.mark.parametrize("requested", ["auto", "graph"])
def test_what_waits_for_the_device_is_named_and_the_tick_is_whole(requested, caplog):
    x, y = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

    def work() -> None:
        program()
        y.add_(1.0)

    resolution = mode("graph", "eager", requested)
    program = Program("toy/bad", lambda: reads_on_the_host(x), resolution)
    graph = Graph("toy", work, resolution)
    graph()
    line = reads_on_the_host.__code__.co_firstlineno + 1
    named = f"term not static: waits for the device at reads_on_the_host ({__file__}:{line}) in program 'toy/bad'"
    if requested == "graph":
        with pytest.raises(ExecutionError) as caught:
            graph()
        assert named in str(caught.value)
    else:
        with caplog.at_level(logging.WARNING):
            graph()
        graph(), graph()
        report = graph.report()
        assert (report["enabled"], report["captures"], report["eager_fallbacks"]) == ("eager", 0, 2)
        assert named in report["disable_reason"] and len(caplog.records) == 1
        assert "falls back from graph to eager" in caplog.text
    # Nothing was left half done.
    assert x.tolist() == ([3.0] * 3 if requested == "graph" else [5.0] * 3)
    assert y.tolist() == ([2.0] * 3 if requested == "graph" else [4.0] * 3)
    assert torch.cuda.get_sync_debug_mode() == 0


@gpu
@pytest.mark.parametrize("requested", ["auto", "graph"])
@pytest.mark.parametrize("kind", ["device", "event", "python"])
def test_an_illegal_operation_in_a_capture_leaves_everything_usable(requested, kind, caplog):
    x = torch.zeros(3, device="cuda")
    reserved = memory_reserved()

    def illegal() -> None:
        x.add_(1.0)
        (2.0 * x).sum()  # takes memory from the capture's pool
        if kind == "device":
            torch.cuda.synchronize()
        elif kind == "event":
            torch.cuda.current_stream().record_event().synchronize()
        elif torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not while capturing")

    graph = Graph("bad", illegal, mode("graph", "eager", requested))
    for _ in range(WARM_UP):
        graph()
    if requested == "graph":
        with pytest.raises(ExecutionError, match=r"'bad' cannot run as 'graph': capture failed: .* at illegal \("):
            graph()
        assert x.tolist() == [2.0] * 3
    else:
        with caplog.at_level(logging.WARNING):
            graph()
        graph()
        assert x.tolist() == [4.0] * 3
        report = graph.report()
        assert (report["enabled"], report["eager_fallbacks"], report["captures"]) == ("eager", 2, 0)
        assert report["disable_reason"].startswith("capture failed: ") and f"{__file__}:" in report["disable_reason"]
        assert len([record for record in caplog.records if "falls back" in record.message]) == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream() and gc.isenabled()
    # The allocator, the generator and another capture go on as if nothing had been.
    assert torch.rand(1000, device="cuda").sum().item() > 0
    toy = Toy(mode("graph", "eager"))
    other = Graph("toy", toy.tick, mode("graph", "eager"))
    for _ in range(5):
        other()
    plain = Toy(mode("eager"))
    for _ in range(5):
        plain.tick()
    assert torch.equal(toy.x, plain.x) and other.report()["replays"] == 3
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.empty(1 << 28, device="cuda")
    del graph, other, toy, plain
    assert memory_reserved() <= reserved + (1 << 26)


@gpu
def test_a_replaced_array_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(DEBUG, "1")
    arrays = {"x": torch.zeros(3, device="cuda"), "y": torch.ones(3, device="cuda")}

    def watch() -> dict[str, int]:
        return {name: value.data_ptr() for name, value in arrays.items()}

    graph = Graph("swap", lambda: arrays["x"].add_(arrays["y"]), mode("graph", "eager"), watch=watch)
    for _ in range(4):
        graph()
    kept, arrays["y"] = arrays["y"], torch.full((3,), 10.0, device="cuda")
    for _ in range(2):
        with pytest.raises(TickgraphError, match="graph 'swap' was built with other arrays: y was replaced"):
            graph()
    assert arrays["x"].tolist() == [4.0] * 3
    graph.invalidate("y was replaced")
    graph()
    arrays["y"] = kept
    with pytest.raises(TickgraphError, match="y was replaced"):  # while warming up as well
        graph()
    graph.invalidate("y was replaced")
    for _ in range(4):
        graph()
    assert arrays["x"].tolist() == [18.0] * 3
    report = graph.report()
    assert (report["version"], report["captures"], report["replays"]) == (3, 2, 4)


@gpu
def test_memory_does_not_grow_over_a_thousand_replays():
    toy = Toy(mode("graph", "compile"))
    graph = Graph("toy", toy.tick, mode("graph", "compile"))
    for _ in range(10):
        graph()
    torch.cuda.synchronize()
    before, reserved = device_memory(), torch.cuda.memory_reserved()
    for _ in range(1000):
        graph()
    after = device_memory()
    assert torch.cuda.memory_reserved() == reserved
    assert growth(before, after)["holds"], (before, after)
    assert graph.report()["replays"] == 1008


@gpu
def test_an_invalidated_graph_gives_its_memory_back():
    x = torch.zeros(1, device="cuda")
    graph = Graph("big", lambda: x.add_(torch.ones(1 << 28, device="cuda").sum()), mode("graph", "eager"))
    for _ in range(3):
        graph()
    held = torch.cuda.memory_reserved()
    graph.invalidate("test")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - (1 << 30)
    assert float(x) == 3.0 * (1 << 28)


@gpu
def test_too_little_memory_is_one_line():
    reserved = memory_reserved()
    with pytest.raises(TickgraphError, match=r"out of GPU memory: tensor 'ring/obs' \(\d+, 99\) float32") as caught:
        Arena("cuda").new("ring/obs", (1 << 36, 99))
    assert "\n" not in str(caught.value) and "fewer worlds" in str(caught.value)
    graph = Graph("huge", lambda: torch.empty(1 << 44, device="cuda"), mode("graph", "eager"))
    with pytest.raises(TickgraphError, match="out of GPU memory for the work of graph 'huge'"):
        graph()
    x = torch.zeros(1, device="cuda")
    graph = Graph("late", lambda: x.add_(torch.ones(size(), device="cuda").sum()), mode("graph", "eager", "auto"))

    def size() -> int:
        return 1 << 44 if torch.cuda.is_current_stream_capturing() else 1

    for _ in range(WARM_UP):
        graph()
    with pytest.raises(TickgraphError, match="out of GPU memory for the capture of graph 'late'"):
        graph()
    assert float(x) == WARM_UP
    assert memory_reserved() <= reserved + (1 << 26)
