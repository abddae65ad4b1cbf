"""How a walking policy is judged: does it go where it is told to, and does it step?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.env.config import EnvCfg, RecorderTermCfg
from tickgraph.run.config import EvaluationCfg

if TYPE_CHECKING:
    from tickgraph.run.evaluate import EvalTrace

FORWARD_SPEEDS = (0.3, 1.0)  # m/s, commanded, one for each episode
EPISODE_S = 10.0  # s
SETTLING_S = 1.0  # s, left out of the figures
TOUCH_FORCE = 1.0  # N, above which a foot is on the ground


def walking_evaluation(
    contact_sensors: dict[str, str],
    randomized: tuple[str, ...] = (),
    straight_on: bool = True,
    gyro: str | None = None,
) -> EvaluationCfg:
    """Return the evaluation of a task with command "twist", with clean observations and nominal gains.

    Args:
        contact_sensors: the contact sensor of each foot, by the name that the foot has in the figures.
        randomized: events that are left out.
        straight_on: command 0.3 to 1.0 m/s forward for 10 s; else whatever the task commands, for its whole episode.
        gyro: the sensor whose yaw rate is judged, the one that the task rewards; by default the base itself.
    """

    def edit(cfg: EnvCfg) -> None:
        if straight_on:
            cfg.commands["twist"].ranges = mdp.VelocityRanges(FORWARD_SPEEDS, (0.0, 0.0), (0.0, 0.0))
        for group in cfg.observations.values():
            group.enable_corruption = False
        cfg.events = {name: event for name, event in cfg.events.items() if name not in randomized}

    return EvaluationCfg(
        episode_s=EPISODE_S if straight_on else None,
        ignore_s=SETTLING_S,
        edit=edit,
        recorders={
            "command": RecorderTermCfg(mdp.generated_commands, {"command_name": "twist"}),
            "lin_vel": RecorderTermCfg(mdp.base_lin_vel),
            "ang_vel": (
                RecorderTermCfg(mdp.base_ang_vel)
                if gyro is None
                else RecorderTermCfg(mdp.builtin_sensor, {"sensor_name": gyro})
            ),
            "touching": RecorderTermCfg(
                mdp.contact_found, {"sensor_names": tuple(contact_sensors.values()), "force_threshold": TOUCH_FORCE}
            ),
        },
        figures=lambda trace: walking_figures(trace, tuple(contact_sensors)),
    )


def walking_figures(trace: EvalTrace, feet: tuple[str, ...]) -> dict[str, float]:
    """Return the figures of recorded episodes; each is a mean over episodes of means over their counted steps.

    planar_velocity_error: |(forward, lateral) velocity - command|, m/s. yaw_rate_error: |yaw rate - command|, rad/s.
    forward_speed_error: |forward speed - command|, m/s. speed_slope: of the line through (command, mean forward speed)
    of the episodes, 1 if the robot does as told and 0 if it does not care. lateral_speed, yaw_rate: magnitudes, m/s and
    rad/s. air_share/<foot>: share of the time that the foot is off the ground.
    """
    told, lin_vel, ang_vel = (trace.signals[name] for name in ("command", "lin_vel", "ang_vel"))
    command, speed = told[..., 0], lin_vel[..., 0]
    planar = torch.linalg.vector_norm(lin_vel[..., :2] - told[..., :2], dim=-1)
    figures = {
        "planar_velocity_error": _mean(trace, planar).nanmean().item(),
        "yaw_rate_error": _mean(trace, (ang_vel[..., 2] - told[..., 2]).abs()).nanmean().item(),
        "forward_speed_error": _mean(trace, (speed - command).abs()).nanmean().item(),
        "forward_speed": _mean(trace, speed).nanmean().item(),
        "speed_slope": _slope(_mean(trace, command), _mean(trace, speed)),
        "lateral_speed": _mean(trace, lin_vel[..., 1].abs()).nanmean().item(),
        "yaw_rate": _mean(trace, ang_vel[..., 2].abs()).nanmean().item(),
    }
    for column, foot in enumerate(feet):
        air = 1.0 - trace.signals["touching"][..., column]
        figures[f"air_share/{foot}"] = _mean(trace, air).nanmean().item()
    return figures


def _mean(trace: EvalTrace, signal: Tensor) -> Tensor:
    """Return (N,) float64, the mean of a signal (T, N) over each world's counted steps, NaN without any."""
    total = torch.where(trace.counted, signal.to(torch.float64), 0.0).sum(dim=0)
    return total / trace.counted.sum(dim=0)


def _slope(x: Tensor, y: Tensor) -> float:
    """Return the slope of the least-squares line through the pairs that are numbers; NaN where x does not vary."""
    known = torch.isfinite(x) & torch.isfinite(y)
    x, y = x[known], y[known]
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / (x * x).sum()).item()
