"""The few figures that benchmarks report: percentiles of times, medians of ratios with their intervals, memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

RESAMPLES = 10_000


def times(samples_ms: Sequence[float]) -> dict[str, float]:
    """Return mean_ms, median_ms, p90_ms and p95_ms of single durations in milliseconds."""
    values = np.asarray(samples_ms, dtype=np.float64)
    p90, p95 = np.percentile(values, (90, 95))
    return {
        "mean_ms": float(values.mean()),
        "median_ms": float(np.median(values)),
        "p90_ms": float(p90),
        "p95_ms": float(p95),
    }


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Return mean, median, p90 and p95 of some samples, whatever their unit."""
    return {name.removesuffix("_ms"): value for name, value in times(samples).items()}


def median_with_interval(ratios: Sequence[float], seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Return the median of block ratios and its 95% bootstrap interval (percentiles of resampled medians)."""
    values = np.asarray(ratios, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, values.size, size=(RESAMPLES, values.size))
    low, high = np.percentile(np.median(values[picks], axis=1), (2.5, 97.5))
    return float(np.median(values)), (float(low), float(high))


def resident_bytes() -> int | None:
    """Return the memory that this process holds in RAM, or None where the system does not say (not Linux)."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
