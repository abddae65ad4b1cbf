"""A trained policy on film: an mp4 of some worlds, played in an environment of its own so that no run changes by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.robots.cartpole import cartpole_robot
from tickgraph.run.config import Task
from tickgraph.run.evaluate import Player
from tickgraph.run.files import make_folder
from tickgraph.run.film import film
from tickgraph.sim.model import build_scene
from tickgraph.sim.render import Renderer
from tickgraph.sim.scene import SceneCfg


@torch.no_grad()
def record_video(task: Task, path: Path, policy: Mapping[str, Tensor] | None) -> Path:
    """Play the first worlds of an evaluation and write them as an mp4, one after the other; returns the file.

    The policy is played on the task's device and backend; the pictures are always drawn by MuJoCo on the CPU. The pose
    that a command wants (``ghost_qpos() -> (N, nq)``), if one does, is drawn over the robot, translucent.

    Args:
        task: its `video` says how many worlds, how long, how large and how many pictures a second.
        path: the file; its folder is made, which is a run's own.
        policy: tensors by arena name ("policy/..."), or None for an untrained policy.

    Raises:
        TickgraphError: nothing can be drawn here (`RenderingUnavailable` says why), or the file cannot be written.
    """
    if path.suffix.lower() != ".mp4":
        raise TickgraphError(f"the video is to be written to {str(path)!r}; give a name that ends in .mp4")
    cfg = task.video
    player = Player(task, cfg.worlds, policy)
    env = player.env
    size = cfg.width, cfg.height
    try:
        make_folder(path.parent)
        with Renderer(env.sim.scene, *size) as renderer, film(path, size, cfg.fps) as add:
            follow = next(iter(task.env.scene.entities))
            qpos = env.sim.view("qpos")
            ghosts = [term.ghost_qpos for term in env.command_manager.terms.values() if hasattr(term, "ghost_qpos")]
            poses = []
            for frame in range(max(1, round(cfg.seconds * cfg.fps))):
                # The picture shows the newest control step that has begun by its time.
                while (env.rng.tick.item() + 1) * env.step_dt <= frame / cfg.fps + 1e-9:
                    player.tick()
                wanted = ghosts[0]() if ghosts else None
                poses.append([None if value is None else value.cpu().numpy().copy() for value in (qpos, wanted)])
            for world in range(cfg.worlds):
                for pose, ghost in poses:
                    drawn = None if ghost is None else ghost[world]
                    add(renderer.render(pose[world], follow=follow, ghost=drawn))
    finally:
        player.close()
    return path


def rendering() -> str:
    """Draw one small picture; returns what was drawn with.

    Raises:
        RenderingUnavailable: it cannot be done here, and why.
    """
    scene = build_scene(SceneCfg(entities={"robot": cartpole_robot()}, terrain=None))
    with Renderer(scene, 64, 48) as renderer:
        renderer.render(scene.default_qpos)
    return "a picture was drawn without a display"
