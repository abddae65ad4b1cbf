"""Whether a run's motion files still hold the frames that it began with: a sum for each clip, kept in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tickgraph.core.held import differing, sums_of
from tickgraph.env.config import EnvCfg
from tickgraph.mdp.motion_command import MotionCommandCfg
from tickgraph.motion.load import load_clips

Motions = dict[str, dict[str, Any]]
"""Command -> ``clips``, as its configuration names them, ``fps``, and ``sums`` of each clip by its name. Plain JSON."""


def motion_sums(cfg: EnvCfg) -> Motions:
    """Return what tells the clips of an environment's motion commands apart from others of their names."""
    fps = round(1.0 / (cfg.scene.timestep * cfg.decimation), 6)
    return {
        name: {
            "clips": list(command.clips),
            "fps": fps,
            "sums": {clip.name: sums_of(clip.qpos) for clip in load_clips(command.clips, fps)},
        }
        for name, command in cfg.commands.items()
        if isinstance(command, MotionCommandCfg)
    }


def changed_motions(before: Mapping[str, Mapping[str, Any]], now: Motions) -> list[str]:
    """Return a line for each command whose files hold other frames; none where it asks for other clips, or a rate."""
    lines = []
    for command, value in now.items():
        then = before.get(command)
        if then is None or any(then[what] != value[what] for what in ("clips", "fps")):
            continue
        old, new = then["sums"], value["sums"]
        found = [f"{name} has other frames" for name in new if name in old and _differ(old[name], new[name])]
        found += [f"{name} is new" for name in new if name not in old]
        found += [f"{name} is gone" for name in old if name not in new]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            lines.append(
                f"the clips of commands/{command} are not those that the run began with: {', '.join(found[:3])}{more}"
            )
    return lines


def _differ(a: list[Any], b: list[Any]) -> bool:
    return a[0] != b[0] or bool(differing({"": {"": a}}, {"": {"": b}}))
