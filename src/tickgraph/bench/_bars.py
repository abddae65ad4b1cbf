"""The figures that measurements are held against; they were fixed before the work and are not moved by it."""

from __future__ import annotations

AA_LIMIT = 0.02
BAR_BLOCKS = 30  # fewer have no interval to hold against a bar of the collector
ADVANCE_BAR = 1.03
# What a task's ratio may grow by when 5% of the worlds end every tick; other tasks have one bar for both scenarios.
RESET_HEAVY_MORE = {"g1_walk_flat": 0.05}
ENQUEUE_MS = 0.3  # host time to enqueue one training iteration
GRAPH_OVER_EAGER = 2.0  # training speed

# (task, backend, worlds): highest whole tick over physics alone, lowest env steps/s
_COLLECTOR: dict[tuple[str, str, int], tuple[float, float | None]] = {
    ("g1_walk_flat", "mujoco", 256): (1.15, None),
    ("g1_walk_flat", "mujoco", 2048): (1.08, None),
    ("g1_walk_flat", "mjwarp", 1024): (1.12, 170_000.0),
    ("g1_walk_flat", "mjwarp", 4096): (1.07, 400_000.0),
    ("g1_walk_flat", "mjwarp", 8192): (1.06, None),
    ("g1_motion_tracking", "mjwarp", 1024): (1.15, None),
    ("g1_motion_tracking", "mjwarp", 4096): (1.09, 350_000.0),
    ("g1_motion_tracking", "mjwarp", 8192): (1.07, None),
}

# (task, algorithm): {(critic updates, batch): highest milliseconds of a cycle, and the aim}, on one GPU
_LEARNER: dict[tuple[str, str], dict[tuple[int, int], tuple[float, float | None]]] = {
    ("g1_walk_flat", "flashsac"): {(8, 256): (3.3, 1.9), (8, 2048): (4.5, 3.5), (2, 2048): (1.1, None)},
}

# (task, backend, worlds, batch): {critic updates: highest time of the compiled learner over the eager one, and highest
# mean and p95 milliseconds of an iteration on the fastest arm}, physics on the CPU and the learner on one GPU
_ITERATION: dict[tuple[str, str, int, int], dict[int, tuple[float, float | None, float | None]]] = {
    ("g1_walk_flat", "mujoco", 256, 256): {2: (0.43, None, None), 8: (0.36, 14.2, 15.9)},
}


def iteration_bars(
    task: str, backend: str, device: str, num_envs: int, batch: int, updates: int
) -> tuple[float | None, float | None, float | None]:
    """Return the highest compiled over eager learner, and the highest mean and p95 of an iteration; None: no bar."""
    found = _ITERATION.get((task, backend, num_envs, batch), {}) if device.startswith("cuda") else {}
    return found.get(updates, (None, None, None))


def learner_bars(task: str, algo: str, device: str, updates: int, batch: int) -> tuple[float | None, float | None]:
    """Return the highest milliseconds of an update cycle and the aim below, None where there is no such bar."""
    found = _LEARNER.get((task, algo), {}) if device == "cuda" else {}
    return found.get((updates, batch), (None, None))


def bars(task: str, backend: str, num_envs: int, scenario: str) -> tuple[float | None, float | None]:
    """Return a case's highest tick over physics and lowest env steps/s, None where there is no such bar."""
    ratio, speed = _COLLECTOR.get((task, backend, num_envs), (None, None))
    if ratio is not None and scenario == "reset-heavy" and task in RESET_HEAVY_MORE:
        return round(ratio + RESET_HEAVY_MORE[task], 4), None
    return ratio, speed
