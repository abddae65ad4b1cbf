"""Proofs about a stretch of iterations on a GPU: nothing but graph launches, and memory that does not grow."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from tickgraph.bench._trace import Trace, record

OWN_CONTEXT = 2 << 30  # bytes that one process holds at most on a device beside torch's and Warp's: context and kernels
ITERATIONS = 100
_FORBIDDEN = ("kernel launch", "synchronisation", "blocking copy", "copy", "allocation", "capture")


def capture_proof(run: Callable[[], object], graphs: int, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Trace iterations between two log points, and judge what the host asked of the driver.

    Args:
        run: enqueues one iteration; everything is captured already.
        graphs: graph launches that belong to an iteration.
        iterations: how many are traced.

    Returns:
        What `judge` returns, with `iterations`.
    """

    def play() -> None:
        for _ in range(iterations):
            run()

    return judge(record(play), graphs, iterations)


def judge(trace: Trace, graphs: int, iterations: int) -> dict[str, Any]:
    """Judge a trace of iterations.

    Returns:
        {holds, violations, iterations, graph_launches, host_syncs, kernel_launches, api_calls}: it holds when there are
        exactly the expected graph launches, at most one event synchronisation an iteration, and no other
        synchronisation, copy, allocation, capture or kernel launch; recording events and waiting for them on the device
        is free.
    """
    kinds = trace.kinds()
    launches, waits = kinds.get("graph launch", 0), kinds.get("event synchronisation", 0)
    violations = [f"{kinds[name]} x {name}" for name in _FORBIDDEN if kinds.get(name)]
    if launches != graphs * iterations:
        violations.append(f"{launches} graph launches, expected {graphs * iterations}")
    if waits > iterations:
        violations.append(f"{waits} event synchronisations in {iterations} iterations")
    return {
        "holds": not violations,
        "violations": violations,
        "iterations": iterations,
        "graph_launches": launches,
        "host_syncs": waits + kinds.get("synchronisation", 0) + kinds.get("blocking copy", 0),
        "kernel_launches": kinds.get("kernel launch", 0),
        "api_calls": trace.names(),
    }


def device_memory() -> dict[str, int | None]:
    """Return the bytes that torch has allocated, that Warp's pool uses, that the device has free, and that are in use
    there beyond what torch and Warp hold.

    Waits for the device. Warp's are None where Warp is not loaded.
    """
    import torch

    gc.collect()
    torch.cuda.synchronize()
    warp, pool = sys.modules.get("warp"), None
    if warp is not None and warp.is_mempool_supported(f"cuda:{torch.cuda.current_device()}"):
        pool = int(warp.get_mempool_used_mem_current(f"cuda:{torch.cuda.current_device()}"))
    free, total = torch.cuda.mem_get_info()
    return {
        "torch_bytes": int(torch.cuda.memory_allocated()),
        "warp_bytes": pool,
        "device_free_bytes": int(free),
        "device_other_bytes": int(total - free - torch.cuda.memory_reserved() - (pool or 0)),
    }


def memory_proof(run: Callable[[], object], first: int, last: int) -> dict[str, Any]:
    """Play iterations and compare memory after `first` of them with memory after `last`.

    Returns:
        {holds, iterations: [first, last], before, after, growth}, see `growth`.
    """
    for _ in range(first):
        run()
    before = device_memory()
    for _ in range(last - first):
        run()
    after = device_memory()
    return {"iterations": [first, last], "before": before, "after": after, **growth(before, after)}


def growth(before: dict[str, int | None], after: dict[str, int | None]) -> dict[str, Any]:
    """Return {holds, growth}: by how many bytes each figure of memory in use grew; it holds when all stand still.

    What is free on the device is None, and not judged, where other processes have work there too.
    """
    grown: dict[str, int | None] = {}
    shared = any((figures.get("device_other_bytes") or 0) > OWN_CONTEXT for figures in (before, after))
    for name, was in before.items():
        now = after[name]
        if was is None or now is None or name == "device_other_bytes":
            continue
        grown[name] = now - was
        if name == "device_free_bytes":
            grown[name] = None if shared else was - now
    return {"holds": not any(grown.values()), "growth": grown}
