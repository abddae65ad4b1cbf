"""One tick from one state on both backends: the same observations, rewards and flags within stated tolerances."""

import pytest
import torch

from tickgraph.env.env import Env
from tickgraph.tasks.registry import load

TASKS = ("cartpole_swingup", "go2_walk_flat", "g1_walk_flat", "g1_motion_tracking")
WORLDS, SETTLE = 6, 12
# MuJoCo computes in float64, MuJoCo Warp in float32 with a solver tolerance of 1e-6 at best. Relative to the larger of
# 1 and the largest magnitude of the term. Seen on Warp's CPU device: 1.5e-6 and 2e-7.
TOLERANCE = {"observation": 2e-5, "reward": 5e-6}


def build(name: str, backend: str) -> Env:
    cfg = load(name).env
    cfg.events = {k: v for k, v in cfg.events.items() if v.mode == "reset"}  # pushes come on the tick that is compared
    return Env(cfg, num_envs=WORLDS, seed=5, device="cpu", backend=backend, execution="eager")


def put(env: Env, source: Env) -> None:
    """Copy everything a tick reads from one environment into another, simulation included."""
    for name in env.arena.names():
        if name in source.arena and env.arena[name].shape == source.arena[name].shape:
            env.arena[name].copy_(source.arena[name])
    env.sim.staging_qpos.copy_(source.sim.view("qpos"))
    env.sim.staging_qvel.copy_(source.sim.view("qvel"))
    everyone = torch.ones(WORLDS, dtype=torch.bool)
    ctrl = source.sim.ctrl.clone()
    env.sim.write_state(everyone, everyone)
    env.sim.refresh(everyone)
    env.sim.ctrl.copy_(ctrl)


@pytest.mark.parametrize("name", TASKS)
def test_one_tick_from_one_state_is_the_same_on_both_backends(name):
    plain, warp = build(name, "mujoco"), build(name, "mjwarp")
    noise = torch.Generator().manual_seed(3)
    for _ in range(SETTLE):
        plain.step(0.4 * torch.randn(plain.action.shape, generator=noise))
    state = plain.sim.view("qpos").clone(), plain.sim.view("qvel").clone()
    put(plain, plain)  # both start from the written state, without a warm start
    put(warp, plain)
    for env in (plain, warp):
        for given, view in zip(state, ("qpos", "qvel"), strict=True):
            assert torch.equal(env.sim.view(view), given)
    action = 0.4 * torch.randn(plain.action.shape, generator=noise)
    for env in (plain, warp):
        env.step(action)
    for flag in ("terminated", "truncated", "done", "invalid"):
        assert torch.equal(getattr(plain, flag), getattr(warp, flag)), flag
    assert not plain.done.all()

    for group, terms in plain.observation_manager.groups.items():
        widths = [term.dim for term in terms.values()]
        given, expected = (env.final_obs[group].split(widths, dim=1) for env in (warp, plain))
        for term, own, other in zip(terms, given, expected, strict=True):
            close(f"observation {group}/{term}", own, other, TOLERANCE["observation"])
    for column, term in enumerate(plain.reward_manager.terms):
        own, other = (env.reward_manager.values[:, column] for env in (warp, plain))
        close(f"reward {term}", own, other, TOLERANCE["reward"])
    close("reward", warp.reward, plain.reward, TOLERANCE["reward"])


def close(what: str, given: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    scale = max(1.0, float(expected.abs().max()))
    worst = float((given - expected).abs().max()) / scale
    assert worst < tolerance, f"{what}: differs by {worst:.2e} of {scale:.3g}"
