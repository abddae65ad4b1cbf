"""What a task declares: the scene, and one dictionary of named terms for each manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tickgraph.core.bounds import (
    Bound,
    Count,
    Finite,
    Limits,
    Named,
    NotNegative,
    Patterns,
    Positive,
    Seconds,
    Terms,
    Whole,
    within,
)
from tickgraph.core.errors import TickgraphError
from tickgraph.core.fields import join
from tickgraph.sim.scene import SceneCfg

Params = dict[str, Any]
MOST_STEPS = 10**8
"""Control steps of an episode at most: years, which only a mistake asks for."""


@dataclass
class SceneEntityCfg:
    """Selects an entity of the scene and, by regular expressions, some of its parts.

    When an environment is built, each selector in a term's ``params`` is resolved: the term then receives a
    :class:`tickgraph.env.scene.SceneEntity` with index tensors on the device. ``None`` selects every part.
    """

    name: str = "robot"
    joint_names: Patterns = None
    body_names: Patterns = None
    geom_names: Patterns = None
    site_names: Patterns = None
    actuator_names: Patterns = None
    preserve_order: bool = False


@dataclass
class UniformNoiseCfg:
    """Additive uniform noise in ``[n_min, n_max)``, drawn afresh for each value and tick."""

    n_min: Finite = -1.0
    n_max: Finite = 1.0

    def check_together(self, where: str) -> None:
        if self.n_min > self.n_max:
            raise TickgraphError(f"{where} is {self}, expected n_min <= n_max")


@dataclass
class GaussianNoiseCfg:
    """Additive normal noise with standard deviation ``std``."""

    std: NotNegative = 1.0


@dataclass
class ObservationTermCfg:
    """One observation: ``func(env, **params) -> (N, D)``, then noise, clip, scale, delay and history, in this order.

    ``delay_min_lag`` and ``delay_max_lag`` are whole ticks; each world draws its lag at a reset. ``history_length``
    H > 0 stacks H frames, oldest first, flattened to ``(N, H * D)``; a new episode starts with its first frame H times.
    """

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)
    noise: UniformNoiseCfg | GaussianNoiseCfg | None = None
    clip: Limits | None = None
    scale: Finite | tuple[Finite, ...] | None = 1.0
    delay_min_lag: Whole = 0
    delay_max_lag: Whole = 0
    history_length: Whole = 0

    def check_together(self, where: str) -> None:
        _check_lags(self, where)


@dataclass
class ObservationGroupCfg:
    """Terms concatenated in order into one ``(N, D)`` tensor. Noise is applied only where ``enable_corruption``.

    A ``history_length`` holds for each of its terms, whatever they say themselves; ``None`` leaves it to them.
    """

    terms: Terms[ObservationTermCfg] = field(default_factory=dict)
    enable_corruption: bool = False
    history_length: Whole | None = None


@dataclass
class ActionTermCfg:
    """Base of action terms: turns columns of the raw action, nominally in [-1, 1], into controls.

    ``class_type`` is the implementation, built as ``class_type(cfg, env, path)``. ``delay_min_lag`` and
    ``delay_max_lag`` are whole control steps: each world draws its lag at a reset; before the first delayed action
    arrives it is 0 (neutral).
    """

    class_type: Callable[..., Any] | None = None
    entity_name: str = "robot"
    delay_min_lag: Whole = 0
    delay_max_lag: Whole = 0

    def check_together(self, where: str) -> None:
        _check_lags(self, where)


@dataclass
class RewardTermCfg:
    """``func(env, **params) -> (N,)``; the reward adds ``weight * value * step_dt`` (see ``scale_rewards_by_dt``).

    Whole numbers and bools are taken as their value in float32, as those of observations and metrics are.
    """

    func: Callable[..., Any]
    weight: Finite = 1.0
    params: Params = field(default_factory=dict)


@dataclass
class TerminationTermCfg:
    """``func(env, **params) -> (N,) bool``. ``time_out=None`` takes the function's word: ``mdp.time_out`` is one.

    Of whole numbers any but 0 ends the episode; a float is refused, as it lacks its comparison.
    """

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)
    time_out: bool | None = None


@dataclass
class CommandTermCfg:
    """Base of commands, resampled after a time drawn in seconds. ``class_type(cfg, env, path)`` is the term."""

    class_type: Callable[..., Any] | None = None
    resampling_time_range: Seconds = (1.0e9, 1.0e9)


@dataclass
class EventTermCfg:
    """``func(env, mask, **params)``, run for the worlds of a bool mask.

    Modes: ``startup`` once, all worlds; ``reset`` for worlds that begin an episode; ``interval`` after a time drawn
    from ``interval_range_s`` for each world; ``step`` each tick, all worlds.
    """

    func: Callable[..., Any]
    mode: Literal["startup", "reset", "interval", "step"] = "reset"
    params: Params = field(default_factory=dict)
    interval_range_s: Seconds | None = None

    def check_together(self, where: str) -> None:
        if self.mode == "interval" and self.interval_range_s is None:
            raise TickgraphError(
                f"{where} has mode 'interval' and no interval_range_s; give the seconds between two such events, as in "
                "interval_range_s=(5.0, 10.0)"
            )
        if self.mode != "interval" and self.interval_range_s is not None:
            raise TickgraphError(
                f"{where} has interval_range_s, which goes with mode 'interval', and mode {self.mode!r}; change one"
            )


@dataclass
class CurriculumTermCfg:
    """``func(env, mask, **params)``, run before the reset events for worlds whose episode ended.

    A returned tensor is logged as its mean.
    """

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)


@dataclass
class MetricTermCfg:
    """``func(env, **params) -> (N,)``; the log shows its mean over worlds and ticks of the interval."""

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)


@dataclass
class RecorderTermCfg:
    """``func(env, **params) -> (N, D)`` or ``(N,)``, kept each tick before any reset, for evaluation and debugging."""

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)


@dataclass
class SubstepTermCfg:
    """``func(env, substep, **params)``, run before each physics substep (delayed actuators, force history)."""

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)


@dataclass
class EnvCfg:
    """A task: the scene, the control step and the terms of every manager.

    The control step is ``decimation * scene.timestep`` seconds. ``episode_length_s`` is the time limit that
    ``mdp.time_out`` reads. A world in which any ``qvel`` exceeds ``diverged_speed`` (m/s or rad/s) counts as diverged:
    a simulation that explodes passes through large finite numbers first, and one such reward spoils a normaliser for
    good.
    """

    scene: SceneCfg
    decimation: Annotated[int, within(1, 10_000, "a whole number of physics steps")] = 4
    episode_length_s: Positive = 20.0
    num_envs: Count = 256
    scale_rewards_by_dt: bool = True
    diverged_speed: Annotated[float, Bound(lambda value: value > 0.0, "a number above 0")] = 1.0e3
    observations: Named[ObservationGroupCfg] = field(default_factory=dict)
    actions: Terms[ActionTermCfg] = field(default_factory=dict)
    rewards: Terms[RewardTermCfg] = field(default_factory=dict)
    terminations: Terms[TerminationTermCfg] = field(default_factory=dict)
    commands: Terms[CommandTermCfg] = field(default_factory=dict)
    events: Terms[EventTermCfg] = field(default_factory=dict)
    curriculum: Terms[CurriculumTermCfg] = field(default_factory=dict)
    metrics: Terms[MetricTermCfg] = field(default_factory=dict)
    recorders: Terms[RecorderTermCfg] = field(default_factory=dict)
    substeps: Terms[SubstepTermCfg] = field(default_factory=dict)

    def check_together(self, where: str) -> None:
        self.check_length(self.episode_length_s, join(where, "episode_length_s"))

    def check_length(self, seconds: float, path: str) -> None:
        """Refuse an episode shorter than a control step or longer than MOST_STEPS; ``path`` is where it was given."""
        step = self.decimation * self.scene.timestep
        if seconds / step > MOST_STEPS:
            raise TickgraphError(
                f"{path} is {seconds:g}: {seconds / step:.3g} "
                f"control steps of {step:g} s, expected at most {MOST_STEPS:.0e}; make the episode shorter, or "
                "decimation * scene.timestep longer"
            )
        if seconds < step * (1.0 - 1e-9):
            raise TickgraphError(
                f"{path} is {seconds:g}, shorter than a control step of {step:g} s (decimation * scene.timestep); make "
                "the episode longer"
            )


def _check_lags(term: ObservationTermCfg | ActionTermCfg, where: str) -> None:
    low, high = term.delay_min_lag, term.delay_max_lag
    if low > high:
        raise TickgraphError(f"{where}: lags {(low, high)} given, expected 0 <= min <= max in whole ticks")
