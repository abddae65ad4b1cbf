"""Figures of benchmarks, against values that can be checked by hand."""

import subprocess
import sys

import numpy as np
import pytest

from tickgraph.bench._figures import median_with_interval, resident_bytes, times


def test_times_are_the_percentiles_of_the_samples():
    figures = times(list(range(1, 102)))  # 1 to 101 ms
    assert figures == {"mean_ms": 51.0, "median_ms": 51.0, "p90_ms": 91.0, "p95_ms": 96.0}


def test_equal_ratios_leave_no_interval():
    assert median_with_interval([1.25] * 30) == (1.25, (1.25, 1.25))


def test_the_interval_is_that_of_a_median():
    ratios = np.arange(1, 32) / 31.0
    median, (low, high) = median_with_interval(ratios)
    assert median == pytest.approx(16 / 31)
    # The exact 95% interval of a median of 31 sorted values lies between the 10th and the 22nd (binomial, p = 1/2).
    assert 9 / 31 <= low <= 12 / 31
    assert 20 / 31 <= high <= 23 / 31


def test_one_outlier_moves_neither_median_nor_interval_much():
    calm = [1.0 + 0.001 * i for i in range(30)]
    median, interval = median_with_interval([*calm, 50.0])
    assert median == pytest.approx(1.015)
    assert interval[1] < 1.03


def test_resident_memory_sees_an_allocation():
    if resident_bytes() is None:
        pytest.skip("this system does not say how much memory a process holds")
    # A process of its own, and pages straight from the system: neither an allocator nor other tests' memory counts.
    script = """
import mmap
from tickgraph.bench._figures import resident_bytes
before = resident_bytes()
block = mmap.mmap(-1, 16 * 2**20)
for page in range(0, len(block), mmap.PAGESIZE):
    block[page] = 1
print(resident_bytes() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)
    assert 15 * 2**20 < grown < 18 * 2**20
