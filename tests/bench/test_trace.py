"""Traces: which call is of which kind, what belongs to a window, and what breaks the proof of capture."""

import pytest
import torch

from tickgraph.bench import _proof as proof
from tickgraph.bench import _trace as trace


def event(name, category, ts, dur=1.0, correlation=None):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "args": args}


def iterations(count, *extra):
    """A window with two graph launches, an event and a wait an iteration; the profiler's own wait comes after it."""
    events = [event(trace.WINDOW, "user_annotation", 100.0, 1000.0), event("cudaDeviceSynchronize", "cuda_runtime", 5)]
    for i in range(count):
        at = 110.0 + 5 * i
        events += [
            event("cudaGraphLaunch", "cuda_runtime", at, correlation=10 * i),
            event("cudaEventRecord", "cuda_runtime", at + 1, correlation=10 * i + 1),
            event("cudaStreamWaitEvent", "cuda_runtime", at + 2, correlation=10 * i + 2),
            event("cudaGraphLaunch", "cuda_runtime", at + 3, correlation=10 * i + 3),
            event("physics", "kernel", 2000.0 + i, 3.0, correlation=10 * i),
        ]
    events += [event("cudaDeviceSynchronize", "cuda_runtime", 1500.0), {"ph": "M", "name": "process_name"}, *extra]
    found = trace.parse(events)
    return found.during(found.range(trace.WINDOW))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaGraphLaunch", "graph launch"),
        ("cuGraphLaunch", "graph launch"),
        ("cudaGraphInstantiateWithFlags", "capture"),
        ("cudaStreamBeginCapture", "capture"),
        ("cudaLaunchKernel", "kernel launch"),
        ("cuLaunchKernelEx", "kernel launch"),
        ("cudaLaunchKernelExC", "kernel launch"),
        ("cudaLaunchCooperativeKernel", "kernel launch"),
        ("cudaStreamSynchronize", "synchronisation"),
        ("cuCtxSynchronize", "synchronisation"),
        ("cudaEventSynchronize", "event synchronisation"),
        ("cudaEventRecordWithFlags", "event"),
        ("cudaStreamWaitEvent", "event"),
        ("cudaMemcpy", "blocking copy"),
        ("cuMemcpyDtoH_v2", "blocking copy"),
        ("cudaMemcpyAsync", "copy"),
        ("cudaMemsetAsync", "copy"),
        ("cudaMalloc", "allocation"),
        ("cudaMallocAsync", "allocation"),
        ("cudaHostAlloc", "allocation"),
        ("cudaFree", "allocation"),
        ("cuMemAlloc_v2", "allocation"),
        ("cudaMemGetInfo", "other"),
        ("cudaStreamIsCapturing", "other"),
    ],
)
def test_calls_are_told_apart(name, kind):
    assert trace.kind(name) == kind and kind in trace.KINDS


def test_a_window_leaves_out_what_comes_before_and_after():
    found = iterations(3)
    assert found.kinds() == {"graph launch": 6, "event": 6}
    assert found.names() == {"cudaGraphLaunch": 6, "cudaEventRecord": 3, "cudaStreamWaitEvent": 3}
    # Work on the device belongs to the call that launched it, however late it runs.
    assert [work.name for work in found.work] == ["physics"] * 3


def test_graph_launches_and_events_alone_hold():
    verdict = proof.judge(iterations(4), graphs=2, iterations=4)
    assert verdict["holds"] and verdict["violations"] == [] and verdict["host_syncs"] == 0
    assert verdict["graph_launches"] == 8 and verdict["api_calls"]["cudaGraphLaunch"] == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("cudaStreamSynchronize", "1 x synchronisation"),
        ("cudaLaunchKernel", "1 x kernel launch"),
        ("cudaMemcpy", "1 x blocking copy"),
        ("cudaMemcpyAsync", "1 x copy"),
        ("cudaMalloc", "1 x allocation"),
        ("cudaGraphLaunch", "9 graph launches, expected 8"),
    ],
)
def test_any_other_call_breaks_the_proof(call, words):
    verdict = proof.judge(iterations(4, event(call, "cuda_runtime", 300.0, correlation=999)), 2, 4)
    assert not verdict["holds"] and verdict["violations"] == [words]


def test_one_event_synchronisation_an_iteration_is_allowed():
    waits = [event("cudaEventSynchronize", "cuda_runtime", 300.0 + i) for i in range(5)]
    verdict = proof.judge(iterations(4, *waits[:4]), 2, 4)
    assert verdict["holds"] and verdict["host_syncs"] == 4
    assert proof.judge(iterations(4, *waits), 2, 4)["violations"] == ["5 event synchronisations in 4 iterations"]


def test_memory_that_grows_is_seen_and_free_memory_counts_the_other_way():
    before = {"torch_bytes": 100, "warp_bytes": None, "device_free_bytes": 1000}
    assert proof.growth(before, dict(before))["holds"]
    after = {"torch_bytes": 100, "warp_bytes": 5, "device_free_bytes": 900}
    assert proof.growth(before, after) == {"holds": False, "growth": {"torch_bytes": 0, "device_free_bytes": 100}}
    crowd = {"device_other_bytes": 3 << 30}
    found = proof.growth(before | {"device_other_bytes": 1 << 30}, after | crowd)
    assert found == {"holds": True, "growth": {"torch_bytes": 0, "device_free_bytes": None}}
    assert not proof.growth(before | crowd, after | crowd | {"torch_bytes": after["torch_bytes"] + 1})["holds"]


def test_a_recorded_trace_reads_back(tmp_path):
    def work():
        with torch.profiler.record_function("part"):
            torch.ones(8).sum()

    found = trace.record(work, tmp_path / "trace.json", cuda=False)
    assert [span.name for span in found.ranges] == ["part"] and found.calls == []
    assert (tmp_path / "trace.json").stat().st_size > 100
