"""How an environment is built: every tensor that it declares, its managers, and one rehearsal of a tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.rng import Rng
from tickgraph.core.verdict import Verdicts
from tickgraph.env import tick as transition
from tickgraph.env.kept import check_written
from tickgraph.env.managers import (
    ActionManager,
    CommandManager,
    CurriculumManager,
    EventManager,
    MetricManager,
    RecorderManager,
    RewardManager,
    SubstepManager,
    TerminationManager,
)
from tickgraph.env.observations import ObservationManager
from tickgraph.env.scene import SceneView
from tickgraph.env.selected import every_selector_read
from tickgraph.env.stats import EpisodeStats
from tickgraph.env.term import calling
from tickgraph.sim.backend import FRESH, make_backend
from tickgraph.sim.model import build_scene

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def build(env: Env, threads: int | None) -> None:
    """Give an environment its arena, simulation, random words, tensors and managers, as its configuration says."""
    cfg, n = env.cfg, env.num_envs
    env.arena = arena = Arena(env.device)
    # First: it knows what worlds take, and refuses too many of them before anything is made.
    env.sim = make_backend(env.backend_name, build_scene(cfg.scene), n, env.device, arena, threads)
    env.rng = Rng(arena, n, env.seed)
    env.verdicts = Verdicts(arena)

    def flag(name: str, why: str) -> Tensor:
        return arena.new(f"env/{name}", (n,), torch.bool, why)

    yes, no = torch.tensor([[True], [False]]).expand(2, n)  # views: of many worlds a list would take gigabytes
    env.all_worlds = arena.constant("env/all_worlds", yes, torch.bool, "mask of every world")
    env.no_worlds = arena.constant("env/no_worlds", no, torch.bool, "mask of no world")
    env.episode_length = arena.new("env/episode_length", (n,), torch.int64, "control steps of the episode so far")
    env.reward = arena.new("env/reward", (n,), why="reward of this tick")
    env.terminated = flag("terminated", "ended by a fall or as invalid: no bootstrap")
    env.truncated = flag("truncated", "ended by a time limit: bootstrap from final_obs")
    env.invalid = flag("invalid", "had something non-finite and was ended for it")
    env.done = flag("done", "terminated or truncated")
    env.rewrite = flag("rewrite", "a command rewrote the state without an end of the episode")
    env.restarted = flag("restarted", "done or rewritten: the next observation is not a successor")
    env.written = flag("written", "staged state or fields that the simulation must take over")
    env.causes = transition.CAUSES
    env.cause_counts = arena.new("env/cause_counts", (len(env.causes),), torch.int64, "non-finite worlds by cause")
    env.invalid_verdicts = [
        env.verdicts.declare(f"non_finite/{cause}", f"a world's {cause} was not finite; the world was reset")
        for cause in env.causes
    ]
    env.scene = SceneView(env)
    env.command_manager = CommandManager(env, cfg.commands)
    env.action_manager = ActionManager(env, cfg.actions)
    env.event_manager = EventManager(env, cfg.events)
    env.reward_manager = RewardManager(env, cfg.rewards)
    env.termination_manager = TerminationManager(env, cfg.terminations)
    env.curriculum_manager = CurriculumManager(env, cfg.curriculum)
    env.metric_manager = MetricManager(env, cfg.metrics)
    env.recorder_manager = RecorderManager(env, cfg.recorders)
    env.substep_manager = SubstepManager(env, {**env.scene.substep_terms(), **cfg.substeps})
    # Last: observations are called once for their width, and may read what any other term remembers.
    env.observation_manager = ObservationManager(env, cfg.observations)
    env.managers = [
        env.observation_manager,
        env.action_manager,
        env.command_manager,
        env.reward_manager,
        env.termination_manager,
        env.event_manager,
        env.curriculum_manager,
        env.metric_manager,
        env.recorder_manager,
        env.substep_manager,
    ]
    # Commands restart before these.
    env.managers_with_memory = [manager for manager in env.managers if manager is not env.command_manager]
    dims = env.observation_manager.dims
    env.action = arena.new("env/action", (n, env.action_manager.total_dim), why="raw action of this tick")
    env.obs = {g: arena.new(f"env/obs/{g}", (n, d), why="what the policy sees") for g, d in dims.items()}
    env.final_obs = {
        g: arena.new(f"env/final_obs/{g}", (n, d), why="obs as it would have been without a reset")
        for g, d in dims.items()
    }
    env.stats = EpisodeStats(env)


@torch.no_grad()
def rehearse(env: Env) -> None:
    """Play the torch part of a tick once, for what it asks for on the way: views, recorded signals, draws."""
    if env.device.type == "meta":
        for name in FRESH:
            env.sim.view(name)
        return
    before = env.arena.snapshot()
    for manager in env.managers:
        manager.rehearse()
        for call in manager.calls():
            path, versions = f"{call.manager}/{call.term}", env.arena.versions()
            with calling(path), env.rng.each_draw_once(), every_selector_read(call):
                call.fn()
            check_written(env, path, versions, call.kept)
    for part in transition.PARTS:
        part(env)
    for substep in range(env.cfg.decimation):
        env.substep_manager.apply(substep)
    env.event_manager.apply("startup", env.no_worlds)
    for name, value in before.items():
        env.arena[name].copy_(value)
    env.rng.reserve(env.rng.draws())
