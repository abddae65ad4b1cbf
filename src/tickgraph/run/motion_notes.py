"""What `motion convert` and `motion info` say of a motion file, said of those that a run is trained on."""

from __future__ import annotations

from tickgraph.mdp.motion_command import MotionCommandCfg
from tickgraph.motion.figures import figures
from tickgraph.motion.load import load_clips
from tickgraph.motion.skeleton import g1_skeleton
from tickgraph.run.config import Task
from tickgraph.run.motion_report import findings

SHOWN = 8  # notes that are printed; the run's manifest has all


def motion_notes(task: Task, step_dt: float) -> dict[str, list[str]]:
    """Return what a person should know of the clips of a task's motion commands, by clip; nothing of sound ones.

    Args:
        task: its clips are still at hand where its environment is built already.
        step_dt: seconds of a control step.
    """
    found: dict[str, list[str]] = {}
    for cfg in task.env.commands.values():
        if isinstance(cfg, MotionCommandCfg):
            for clip in load_clips(cfg.clips, round(1.0 / step_dt, 6)):
                if notes := [*clip.notes, *findings(figures(clip, g1_skeleton()))]:
                    found[clip.name] = notes
    return found


def note_lines(notes: dict[str, list[str]], rest: str = "are in run_manifest.json") -> list[str]:
    """Return such notes as lines for a terminal, the first few of them, and where the rest is."""
    every = [f"note: motion {name}: {note}" for name, those in notes.items() for note in those]
    more = len(every) - SHOWN
    return every if more <= 0 else [*every[:SHOWN], f"note: {more} more on motions {rest}"]
