"""What a task declares: the scene, and one dictionary of named terms for each manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tickgraph.sim.scene import SceneCfg

Params = dict[str, Any]


@dataclass
class SceneEntityCfg:
    """Selects an entity of the scene and, by regular expressions, some of its parts.

    When an environment is built, each selector in a term's ``params`` is resolved: the term then receives a
    :class:`tickgraph.env.scene.SceneEntity` with index tensors on the device. ``None`` selects every part.
    """

    name: str = "robot"
    joint_names: str | tuple[str, ...] | None = None
    body_names: str | tuple[str, ...] | None = None
    geom_names: str | tuple[str, ...] | None = None
    site_names: str | tuple[str, ...] | None = None
    actuator_names: str | tuple[str, ...] | None = None
    preserve_order: bool = False


@dataclass
class UniformNoiseCfg:
    """Additive uniform noise in ``[n_min, n_max)``, drawn afresh for each value and tick."""

    n_min: float = -1.0
    n_max: float = 1.0


@dataclass
class GaussianNoiseCfg:
    """Additive normal noise with standard deviation ``std``."""

    std: float = 1.0


@dataclass
class ObservationTermCfg:
    """One observation: ``func(env, **params) -> (N, D)``, then noise, clip, scale, delay and history, in this order.

    ``delay_min_lag`` and ``delay_max_lag`` are whole ticks; each world draws its lag at a reset. ``history_length``
    H > 0 stacks H frames, oldest first, flattened to ``(N, H * D)``; a new episode starts with its first frame H times.
    """

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)
    noise: UniformNoiseCfg | GaussianNoiseCfg | None = None
    clip: tuple[float, float] | None = None
    scale: float | tuple[float, ...] = 1.0
    delay_min_lag: int = 0
    delay_max_lag: int = 0
    history_length: int = 0


@dataclass
class ObservationGroupCfg:
    """Terms concatenated in order into one ``(N, D)`` tensor. Noise is applied only where ``enable_corruption``."""

    terms: dict[str, ObservationTermCfg] = field(default_factory=dict)
    enable_corruption: bool = False


@dataclass
class ActionTermCfg:
    """Base of action terms: turns columns of the raw action, nominally in [-1, 1], into controls.

    ``class_type`` is the implementation, built as ``class_type(cfg, env, path)``. ``delay_min_lag`` and
    ``delay_max_lag`` are whole control steps: each world draws its lag at a reset; before the first delayed action
    arrives it is 0 (neutral).
    """

    class_type: Callable[..., Any] | None = None
    entity_name: str = "robot"
    delay_min_lag: int = 0
    delay_max_lag: int = 0


@dataclass
class RewardTermCfg:
    """``func(env, **params) -> (N,)``; the reward adds ``weight * value * step_dt`` (see ``scale_rewards_by_dt``)."""

    func: Callable[..., Any]
    weight: float = 1.0
    params: Params = field(default_factory=dict)


@dataclass
class TerminationTermCfg:
    """``func(env, **params) -> (N,) bool``. ``time_out=None`` takes the function's word: ``mdp.time_out`` is one."""

    func: Callable[..., Any]
    params: Params = field(default_factory=dict)
    time_out: bool | None = None


@dataclass
class CommandTermCfg:
    """Base of commands, resampled after a time drawn in seconds. ``class_type(cfg, env, path)`` is the term."""

    class_type: Callable[..., Any] | None = None
    resampling_time_range: tuple[float, float] = (1.0e9, 1.0e9)


@dataclass
class EventTermCfg:
    """``func(env, mask, **params)``, run for the worlds of a bool mask.

    Modes: ``startup`` once, all worlds; ``reset`` for worlds that begin an episode; ``interval`` after a time drawn
    from ``interval_range_s`` for each world; ``step`` each tick, all worlds.
    """

    func: Callable[..., Any]
    mode: Literal["startup", "reset", "interval", "step"] = "reset"
    params: Params = field(default_factory=dict)
    interval_range_s: tuple[float, float] | None = None


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
    decimation: int = 4
    episode_length_s: float = 20.0
    num_envs: int = 256
    scale_rewards_by_dt: bool = True
    diverged_speed: float = 1.0e3
    observations: dict[str, ObservationGroupCfg] = field(default_factory=dict)
    actions: dict[str, ActionTermCfg] = field(default_factory=dict)
    rewards: dict[str, RewardTermCfg] = field(default_factory=dict)
    terminations: dict[str, TerminationTermCfg] = field(default_factory=dict)
    commands: dict[str, CommandTermCfg] = field(default_factory=dict)
    events: dict[str, EventTermCfg] = field(default_factory=dict)
    curriculum: dict[str, CurriculumTermCfg] = field(default_factory=dict)
    metrics: dict[str, MetricTermCfg] = field(default_factory=dict)
    recorders: dict[str, RecorderTermCfg] = field(default_factory=dict)
    substeps: dict[str, SubstepTermCfg] = field(default_factory=dict)
