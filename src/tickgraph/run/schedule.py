"""Which iteration of a run does what, and where the run stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tickgraph.core.words import counted
from tickgraph.run.config import TrainCfg


@dataclass
class Ending:
    """Where a run stands, and how it ended once it has."""

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    tail_env_steps_per_sec: float | None = None
    saved_iteration: int | None = None
    """Iteration of the newest checkpoint; None as long as there is none."""
    other_processes: float | None = None
    """Processors, of those that this process may use, that other processes took while it trained steadily."""
    overflow: dict[str, int] = field(default_factory=dict)
    """Capacities of the simulation that were exceeded, with how often."""
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases before training ran steadily; first_tick_s and wall_command_s count from the command's
    beginning to the end of the first tick, and until the trained policy was saved."""
    status: str = "interrupted"
    reason: str | None = None
    begun: bool = False
    """Something of this session has been written into the run's folder."""
    finished: bool = False
    """All iterations, or the whole time budget, are behind it."""

    def lost(self) -> str:
        """Return what ending at once costs, as words behind "which"."""
        saved = self.saved_iteration or 0
        if self.iteration == 0:
            return "loses nothing, as no iteration is over"
        if saved >= self.iteration:
            return f"loses nothing of its {counted(self.iteration, 'iteration')}"
        return f"loses what came after iteration {saved}"

    def facts(self) -> dict[str, Any]:
        """Return what the summary says of it."""
        return {
            "status": self.status,
            "reason": self.reason,
            "iteration": self.iteration,
            "saved_iteration": self.saved_iteration,
            "env_steps": self.env_steps,
            "wall_s": self.wall_s,
            "tail_env_steps_per_sec": self.tail_env_steps_per_sec,
            "other_processes": self.other_processes,
            "overflow": self.overflow,
            "startup_s": self.startup_s,
        }


@dataclass
class Schedule:
    """Which iteration does what."""

    train: TrainCfg
    min_ticks: int
    resumed_blind_at: int | None = None
    """Iteration of a checkpoint without its replay: learning waits until the replay has filled again."""
    warmup: int = field(init=False)

    def __post_init__(self) -> None:
        # The random actions of the warm-up fill the replay at least as far as one sample needs.
        ticks = max(self.train.learning_starts, self.min_ticks)
        self.warmup = math.ceil(ticks / self.train.ticks_per_iteration)

    @property
    def warmup_is_forced(self) -> bool:
        """Return whether the warm-up is longer than was asked for."""
        return self.train.learning_starts < self.min_ticks

    @property
    def warmup_reason(self) -> str:
        """Which setting makes the warm-up as long as it is."""
        asked = f"train.learning_starts is {self.train.learning_starts}"
        return f"{asked}, but one sample takes {self.min_ticks} ticks" if self.warmup_is_forced else asked

    @property
    def total_updates(self) -> int:
        """Critic updates over which the learning rate falls."""
        horizon = self.train.lr_iterations or self.train.iterations
        return max(1, (horizon - self.warmup) * self.train.updates_per_iteration)

    def learns(self, iteration: int) -> bool:
        """Return whether this iteration updates the networks."""
        return iteration > (self.resumed_blind_at or 0) + self.warmup
