"""What a task says beside its environment: how it is trained, how it is judged, and how it is filmed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from tickgraph.core.bounds import (
    MOST_ROWS,
    Bound,
    Count,
    NotNegative,
    Positive,
    Repeats,
    Terms,
    Threads,
    Whole,
    within,
)
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_fields
from tickgraph.core.program import MODES
from tickgraph.core.seeded import seeded_by
from tickgraph.env.config import EnvCfg, RecorderTermCfg
from tickgraph.learn.algos import check_algo
from tickgraph.learn.build import algo_name
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.learner import AlgoCfg
from tickgraph.learn.path import KERNELS
from tickgraph.learn.update import COMPILE_SCOPES
from tickgraph.sim.platform import BACKENDS, DEVICES

if TYPE_CHECKING:
    from tickgraph.env.env import Env
    from tickgraph.run.evaluate import EvalTrace

PRECISIONS = ("highest", "high")


@dataclass
class TrainCfg:
    """How a task is trained. One iteration is ``ticks_per_iteration`` control steps of all worlds, then the updates."""

    algo: AlgoCfg = field(default_factory=FlashSacCfg)
    """Which algorithm, by the class of its configuration, and its hyperparameters."""
    num_envs: Count | None = None
    """Worlds; by default the environment's own number (env.num_envs)."""
    ticks_per_iteration: Repeats = 1
    """Control steps of every world in an iteration."""
    updates_per_iteration: Repeats = 1
    """Critic updates in an iteration."""
    iterations: Count = 10_000
    """Iterations of the whole run, and by default the horizon of the learning rate."""
    lr_iterations: Count | None = None
    """Iterations over which the learning rate falls; by default all. It stays at its end value afterwards."""
    learning_starts: Whole = 50
    """Control steps with uniform random actions before the first update."""
    replay_slots: Count = 4096
    """Control steps that the replay remembers, each of all worlds."""
    time_budget_s: float | None = None
    """Wall time of training after which the run ends as completed; compiling counts, resumed parts add up."""
    log_interval: Count = 100
    """Iterations between two rows of the log."""
    checkpoint_interval: Count = 1000
    """Iterations between two checkpoints; the last iteration always leaves one."""
    checkpoint_replay: bool = True
    """Save the replay too; without it a resumed run collects anew before it learns, and is not exact."""
    keep_checkpoints: Count = 2
    """How many checkpoints stay in the run's folder."""
    stagger: bool = True
    """Spread the worlds over an episode at the start, so that their time limits do not fall together."""
    video: bool = True
    """Film one episode at the end, where the machine can render."""
    seed: int = 0
    """Seed of every random draw."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "device": (*DEVICES, "cuda:N"),
        "backend": BACKENDS,
        "execution": MODES,
        "compile_scope": COMPILE_SCOPES,
        "learner_kernels": KERNELS,
        "matmul_precision": PRECISIONS,
    }
    device: str = "auto"
    """cpu, cuda, or auto: a GPU where one can be used."""
    backend: str = "auto"
    """Physics backend; auto: the one for the device."""
    execution: str = "auto"
    """eager, compile, graph, or auto: the fastest that can be had."""
    compile_scope: str = "objective"
    """What of an update's objectives is compiled, where programs are: objective (networks and loss as one program), or
    loss (what follows the networks alone, to measure what the wider scope buys)."""
    learner_kernels: str = "auto"
    """Triton kernels of the learner and its policy: triton, torch (the same maths without them), auto (those that can
    be had; on a CPU none, and with execution compile only the policy's, as the others cost the host more than they
    save), or autograd (none, and gradients by autograd on every device: the plain learner, to compare with)."""
    overlap: bool | None = None
    """Update beside the ticks of the same iteration, from what was recorded before it (policy_lag 1); by default where
    both are CUDA graphs."""
    matmul_precision: str = "highest"
    """Float32 matrix products on a GPU: highest (float32 throughout), or high (TF32). Of no effect on a CPU, nor on the
    products that `algo.bf16` computes in bfloat16."""
    physics_threads: Threads | None = None
    """Threads of the physics; by default the processors that the process may use."""
    tick_threads: Threads = 1
    """Threads of torch in a tick. More gain little on its small tensors, and take cores from the physics."""
    update_threads: Threads | None = None
    """Threads of torch in an update; by default the processors that the process may use."""

    def __post_init__(self) -> None:
        check_fields(self, "train")
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise TickgraphError(f"train.time_budget_s is {self.time_budget_s}, expected more than 0 seconds")
        for name, options in (
            *(("matmul_precision", PRECISIONS), ("compile_scope", COMPILE_SCOPES)),
            ("learner_kernels", KERNELS),
        ):
            value = getattr(self, name)
            if value not in options:
                hint = nearby(value, options) or f"use one of {', '.join(options)}"
                raise TickgraphError(f"train.{name} is {value!r}; {hint}")
        if not 0 <= self.seed < 2**63:
            raise TickgraphError(f"train.seed is {self.seed}, expected a whole number from 0 to 2^63 - 1")


class EvaluationReport(Protocol):
    """What a task says of an evaluation beyond single numbers, such as a table of its clips."""

    def make(self, trace: EvalTrace, env: Env) -> dict[str, Any]:
        """Return plain data, which JSON takes as it is."""

    def lines(self, report: dict[str, Any]) -> list[str]:
        """Return that as lines for a terminal."""

    def plot(self, report: dict[str, Any], title: str, folder: Path) -> Path:
        """Draw it into a picture in a folder; returns the file."""


@dataclass
class EvaluationCfg:
    """How a policy of this task is judged: deterministic episodes, one a world, with random words of their own.

    Survival, return and length are always reported. A task adds figures of its own from signals that it records:
    ``recorders`` run each tick before any reset, and ``figures`` turns the recorded episodes into numbers. See
    :class:`tickgraph.run.evaluate.EvalTrace`.
    """

    episodes: Count = 100
    """Episodes, all played at once."""
    episode_s: Positive | None = None
    """Longest episode in seconds; by default the task's own."""
    ignore_s: NotNegative = 0.0
    """Seconds at each episode's start that figures leave out."""
    untrained: bool = True
    """Judge an untrained policy too at the end of training, for comparison."""
    edit: Callable[[EnvCfg], None] | None = None
    """Changes the evaluated environment's own copy of the configuration, say its command ranges."""
    recorders: Terms[RecorderTermCfg] = field(default_factory=dict)
    """Signals to record, by name."""
    figures: Callable[[EvalTrace], dict[str, float]] | None = None
    """Turns the recorded episodes into named numbers."""
    report: EvaluationReport | None = None
    """Turns them into more than numbers: "report" in the result, lines on the terminal, a picture in plots/."""

    def __post_init__(self) -> None:
        check_fields(self, "evaluation")
        if self.episodes > MOST_ROWS:
            raise TickgraphError(
                f"evaluation.episodes is {self.episodes}, expected at most {MOST_ROWS} (2^32): each is a world"
            )


Pixels = Annotated[int, within(1, 16384, "a whole number of pixels")]  # what renderers and H.264 can do


@dataclass
class VideoCfg:
    """How an episode is filmed: the first worlds of the evaluation, played by the trained policy."""

    seconds: Annotated[float, Bound(lambda value: 0.0 < value <= 3600.0, "more than 0 and at most 3600 seconds")] = 10.0
    """Of each world."""
    worlds: Annotated[int, within(1, 1000, "a whole number")] = 1
    """How many, one after the other."""
    width: Pixels = 640
    height: Pixels = 480
    fps: Annotated[int, within(1, 1000, "a whole number")] = 25

    def __post_init__(self) -> None:
        check_fields(self, "video")
        for name in ("width", "height"):
            if getattr(self, name) % 2:
                raise TickgraphError(f"video.{name} is {getattr(self, name)}, expected an even number: H.264 needs one")


@dataclass
class Task:
    """Everything that a name on the command line stands for; a factory returns a new one at each call.

    ``train`` is what it is trained with unless another algorithm is asked for; ``presets`` has the settings of these,
    by the algorithm's name. Where such settings go with another environment, say one that is randomised, ``edits`` has
    a function of that name, which changes a copy of ``env`` in place. ``name`` and ``reference`` are set by the
    registry: what run folders and checkpoints are labelled with, and what finds the task again.
    """

    env: EnvCfg
    train: TrainCfg = field(default_factory=TrainCfg)
    evaluation: EvaluationCfg = field(default_factory=EvaluationCfg)
    video: VideoCfg = field(default_factory=VideoCfg)
    presets: dict[str, TrainCfg] = field(default_factory=dict)
    edits: dict[str, Callable[[EnvCfg], None]] = field(default_factory=dict)
    name: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "Task")
        for name, train in self.presets.items():
            if algo_name(train.algo) != check_algo(name):
                raise TickgraphError(f"presets[{name!r}] has a {type(train.algo).__name__}; name it by its algorithm")
        if self.algo in self.presets:
            raise TickgraphError(f"{self.algo!r} is what train is for; presets are for other algorithms")
        for name in self.edits:
            if name not in self.presets:
                hint = nearby(name, self.presets) or f"it has {', '.join(self.presets) or 'none'}"
                raise TickgraphError(f"edits[{name!r}] is for settings that presets does not have; {hint}")
        self._unedited: EnvCfg | None = None  # while env is an edited copy: what it was copied from

    @property
    def algo(self) -> str:
        """Name of the algorithm that it is trained with."""
        return algo_name(self.train.algo)

    @property
    def algos(self) -> tuple[str, ...]:
        """Names of all algorithms that it has settings for, the one it is trained with first."""
        return self.algo, *self.presets

    def use(self, algo: str) -> None:
        """Train with the settings that the task has for an algorithm, in the environment that goes with them.

        What was changed in an edited environment stays behind when other settings are taken.

        Raises:
            TickgraphError: there is no such algorithm, or the task has no settings for it.
        """
        if algo == self.algo:
            return
        if check_algo(algo) not in self.presets:
            raise TickgraphError(
                f"task {self.name!r} has no settings for {algo}, only for {', '.join(self.algos)}; give its Task "
                f"presets={{{algo!r}: TrainCfg(...)}}"
            )
        rest = {name: train for name, train in self.presets.items() if name != algo}
        self.train, self.presets = self.presets[algo], {self.algo: self.train, **rest}
        if self._unedited is not None:
            self.env, self._unedited = self._unedited, None
        if algo in self.edits:
            self.env, self._unedited = copy.deepcopy(self.env), self.env
            with seeded_by(f"{self.name}/edits/{algo}"):
                self.edits[algo](self.env)

    @property
    def num_envs(self) -> int:
        """Worlds to train with."""
        return self.env.num_envs if self.train.num_envs is None else self.train.num_envs
