"""How a tracking policy is judged: does it last each clip from the first frame, and how near does it stay?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EnvCfg, RecorderTermCfg
from tickgraph.motion.load import load_clips
from tickgraph.run.arguments import table
from tickgraph.run.config import EvaluationCfg

if TYPE_CHECKING:
    from tickgraph.env.env import Env
    from tickgraph.run.evaluate import EvalTrace

LONGEST_S = 300.0  # s; of longer clips the first part is judged
CURVE_POINTS = 250  # of each curve over time, at most
CURVES = {
    "body_error": "bodies, global (m)",
    "body_error_from_root": "bodies, from the root (m)",
    "anchor_error": "anchor (m)",
    "joint_error": "joints (rad)",
}


def tracking_evaluation(command_name: str, without: tuple[str, ...] = ()) -> EvaluationCfg:
    """Return the evaluation of a task with a motion command: every clip from its first frame to its last.

    Observations are clean; starts keep their noise, so that episodes differ. World i plays clip i, modulo their number.

    Args:
        command_name: the motion command.
        without: events that are for training alone, such as randomisation and pushes.
    """

    def edit(cfg: EnvCfg) -> None:
        motion, step_dt = cfg.commands.get(command_name), cfg.decimation * cfg.scene.timestep
        if not isinstance(motion, mdp.MotionCommandCfg):
            raise TickgraphError(
                f"the evaluation judges the motion command {command_name!r}, but the task's commands are "
                f"{', '.join(cfg.commands) or 'none'}; give it tracking_evaluation(NAME)"
            )
        motion.sampler.mode, motion.weights = "each", ()  # clips may be others than the run's
        motion.truncate_on_clip_end = True
        frames = max(clip.frames for clip in load_clips(motion.clips, fps=round(1.0 / step_dt, 6)))
        cfg.episode_length_s = min(frames * step_dt, LONGEST_S)
        for group in cfg.observations.values():
            group.enable_corruption = False
        cfg.events = {name: event for name, event in cfg.events.items() if name not in without}

    signals = {
        "clip": mdp.motion_clip,
        "joint_error": mdp.motion_joint_error,
        "body_error": mdp.motion_body_error,
        "body_error_from_root": mdp.motion_body_error_from_root,
        "anchor_offset": mdp.motion_anchor_error,
    }
    return EvaluationCfg(
        edit=edit,
        recorders={name: RecorderTermCfg(func, {"command_name": command_name}) for name, func in signals.items()},
        figures=tracking_figures,
        report=TrackingReport(command_name),
    )


def tracking_figures(trace: EvalTrace) -> dict[str, float]:
    """Return means over all episodes.

    success: share of episodes that last their whole clip. played: share of the clip's steps that an episode lasts.
    body_error, body_error_from_root: m, mean over bodies, in the world and with the roots put together. joint_error:
    rad. anchor_error: m. anchor_drift: m, the anchor's horizontal error at the episode's end.
    """
    return {name: values.nanmean().item() for name, values in _episodes(trace).items()}


class TrackingReport:
    """The figures of each clip, of its bodies and joints, and the errors over time."""

    def __init__(self, command_name: str) -> None:
        self.command_name = command_name

    def make(self, trace: EvalTrace, env: Env) -> dict[str, Any]:
        """Return plain data: ``clips``, one entry a clip, with ``bodies``, ``joints`` and ``curves``."""
        library = env.command_manager.term(self.command_name).library
        episodes, of = _episodes(trace), trace.signals["clip"][0, :, 0]
        seen = {name: trace.mean(name) for name in ("joint_error", "body_error", "body_error_from_root")}
        clips = []
        for number, name in enumerate(library.clip_names):
            mine = of == number
            bodies = {
                body: {what: _number(seen[what][mine, i]) for what in ("body_error", "body_error_from_root")}
                for i, body in enumerate(library.body_names)
            }
            clips.append(
                {
                    "clip": name,
                    "clip_s": (library.lengths[number] - 1) * trace.step_dt,
                    "episodes": int(mine.sum()),
                    **{what: _number(values[mine]) for what, values in episodes.items()},
                    "bodies": bodies,
                    "joints": {j: _number(seen["joint_error"][mine, i]) for i, j in enumerate(library.joint_names)},
                    "curves": _curves(trace, mine),
                }
            )
        return {"clips": clips}

    def lines(self, report: dict[str, Any]) -> list[str]:
        """Return the figures of each clip as a table, and a note where some clips had no episode."""
        head = (
            "clip",
            "s",
            "episodes",
            "success",
            "played",
            "body m",
            "from root m",
            "joint rad",
            "anchor m",
            "drift m",
        )
        names = ("body_error", "body_error_from_root", "joint_error", "anchor_error", "anchor_drift")
        rows = [
            (
                clip["clip"],
                f"{clip['clip_s']:.1f}",
                str(clip["episodes"]),
                *(_text(clip[name], "{:.0%}") for name in ("success", "played")),
                *(_text(clip[name], "{:.3f}") for name in names),
            )
            for clip in report["clips"]
        ]
        lines = [line.rstrip() for line in table([head, *rows])]
        unplayed, clips = sum(not clip["episodes"] for clip in report["clips"]), len(report["clips"])
        if unplayed:
            lines.append(
                f"note: {unplayed} of {clips} clips had no episode and are in no figure: an evaluation plays each clip "
                f"from {clips} episodes on (--episodes of `tickgraph eval`, --evaluation.episodes of `tickgraph train`)"
            )
        return lines

    def plot(self, report: dict[str, Any], title: str, folder: Path) -> Path:
        """Draw the errors over time, one curve a clip, into tracking.png; returns the file."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from tickgraph.run.plot import drawable, save_figure

        figure = Figure(figsize=(11, 7), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(drawable(title), parse_math=False)
        for axes, (name, label) in zip(figure.subplots(2, 2).flat, CURVES.items(), strict=True):
            for number, clip in enumerate(report["clips"]):
                values = [math.nan if value is None else value for value in clip["curves"][name]]
                axes.plot(clip["curves"]["seconds"], values, linewidth=1.2, label=str(number))
            axes.set(xlabel="time in the clip (s)", ylabel=label, ylim=(0.0, None))
            axes.grid(alpha=0.3)
            if len(report["clips"]) <= 12:
                for text, clip in zip(axes.legend(fontsize="small").get_texts(), report["clips"], strict=True):
                    text.set_parse_math(False)  # a name is shown as it is, with dollars and a leading underscore
                    text.set_text(drawable(clip["clip"]))
        return save_figure(figure, folder / "tracking.png")


def _episodes(trace: EvalTrace) -> dict[str, Tensor]:
    """Return figures of each episode, (N,) float64."""
    steps = trace.signals["clip"][0, :, 1] - 1
    steps = steps.clamp(max=trace.counted.shape[0])
    last = (trace.lengths - 1).clamp(min=0)
    worlds = torch.arange(len(last))
    offset = trace.signals["anchor_offset"]
    episodes = {
        "success": trace.survived & (trace.lengths >= steps),
        "played": trace.lengths / steps,
        "body_error": trace.mean("body_error").mean(dim=1),
        "body_error_from_root": trace.mean("body_error_from_root").mean(dim=1),
        "joint_error": trace.mean("joint_error").mean(dim=1),
        "anchor_error": _mean(torch.linalg.vector_norm(offset, dim=-1), trace.counted, dim=0),
        "anchor_drift": torch.linalg.vector_norm(offset[last, worlds, :2], dim=-1),
    }
    return {name: values.to(torch.float64) for name, values in episodes.items()}


def _curves(trace: EvalTrace, mine: Tensor) -> dict[str, list[float | None]]:
    """Return means over the clip's episodes that still go on, at evenly spaced steps, and their times."""
    counted = trace.counted[:, mine]
    steps = int(counted.any(dim=1).sum())
    stride = max(1, math.ceil(steps / CURVE_POINTS))
    offset = torch.linalg.vector_norm(trace.signals["anchor_offset"][:, mine], dim=-1)
    whole = {name: trace.signals[name][:, mine].mean(dim=-1) for name in CURVES if name in trace.signals}
    curves: dict[str, list[float | None]] = {
        "seconds": [(step + 1) * trace.step_dt for step in range(0, steps, stride)]
    }
    for name, signal in {**whole, "anchor_error": offset}.items():
        over = _mean(signal, counted, dim=1)[:steps:stride]
        curves[name] = [value if math.isfinite(value) else None for value in over.tolist()]
    return curves


def _mean(signal: Tensor, counted: Tensor, dim: int) -> Tensor:
    """Return the mean of (T, N) over one dimension, of what is counted and a number; NaN where nothing is."""
    return torch.where(counted, signal, math.nan).nanmean(dim=dim)


def _number(values: Tensor) -> float | None:
    mean = values.nanmean().item()
    return mean if math.isfinite(mean) else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
