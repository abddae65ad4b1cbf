"""Worlds on the CPU with a learner elsewhere: the numbers of the direct way, one wait and two copies a tick."""

import pytest
import torch
from linear_stub import NAME, linear_cfg, register

from tickgraph.core.arena import Arena
from tickgraph.core.program import resolve_execution
from tickgraph.env.env import Env
from tickgraph.learn.explore import Explorer
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.iteration import Iteration

WORLDS = 6
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def linear(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


class Rig:
    """Worlds on the CPU, and a learner on `device`; bridged, or directly inside the tick."""

    def __init__(self, bridged, device="cpu", execution="eager", ticks=2, overlap=False, worlds="eager"):
        self.env = Env(linear_cfg(), WORLDS, "cpu", NAME, worlds, seed=3)
        self.arena = Arena(torch.device(device))
        widths = {"actor_width": 8, "actor_blocks": 1, "critic_width": 8, "critic_blocks": 1}
        cfg = FlashSacCfg(**widths, batch_size=16, atoms=21, noise_scope="per_env")
        dims, actions = dict(self.env.observation_manager.dims), self.env.action_manager.total_dim
        self.learner = FlashSac(cfg, dims, actions, WORLDS, self.arena, 0, total_updates=50)
        self.ring = Ring(
            *(self.arena, 64, WORLDS, dims, actions),
            ahead=ticks if overlap else 0,
            boundary_rows=256,
            normalizer=self.learner.normalizer,
        )
        self.explorer = Explorer(self.learner, WORLDS, seed=0)
        mode = resolve_execution(execution, self.arena.device)
        self.cycle = UpdateCycle(self.learner, self.ring, 2, mode)
        self.arena.seal()
        if not bridged:
            self.env.attach(self.explorer, self.ring)
        self.iteration = Iteration(
            *(self.env, self.learner, self.ring, self.cycle, ticks, overlap, mode),
            explorer=self.explorer if bridged else None,
        )

    def play(self, iterations, warmup=3):
        """Collect, then learn; returns every tensor of worlds and learner."""
        self.iteration.drain()
        self.iteration.connect()
        for i in range(iterations):
            if i == warmup:
                with self.iteration.between():
                    self.explorer.set_warmup(False)
            self.iteration.run(i >= warmup)
        self.iteration.drain()
        found = {f"env/{name}": value for name, value in self.env.arena.snapshot().items()}
        return found | {f"learn/{name}": value.cpu() for name, value in self.arena.snapshot().items()}


def differing(first, second):
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(torch.nan_to_num(first[name]), torch.nan_to_num(second[name]))]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_bridge_changes_no_number(overlap):
    direct, bridged = Rig(False, overlap=overlap), Rig(True, overlap=overlap)
    before, after = direct.play(14), bridged.play(14)
    assert int(direct.ring.stored) > 0  # episodes ended
    assert not differing(before, after)
    assert bridged.iteration.bridge.copies == 2 * 28


def test_worlds_that_were_changed_are_shown_anew():
    direct, bridged = Rig(False), Rig(True)
    for rig in (direct, bridged):
        rig.play(4)
        rig.env.reset(seed=9)
    assert not differing(direct.play(4, warmup=0), bridged.play(4, warmup=0))


def test_an_invalid_world_reaches_the_replay_as_zeros():
    rig = Rig(True)
    rig.play(2)
    rig.env.sim.qvel[2] = torch.nan
    seen = rig.iteration.bridge.obs["actor"][2].clone()
    rig.iteration.bridge.tick()
    row = int(rig.ring.written - 1) * WORLDS + 2
    assert bool(rig.ring.terminated[row]) and bool(rig.ring.boundary[row]) and rig.ring.reward[row] == 0.0
    assert not rig.ring.action[row].any()
    place = rig.ring.capacity * WORLDS + int(rig.ring.entry[row]) % rig.ring.boundary_rows
    assert torch.equal(rig.ring.obs["actor"][place], seen)
    assert all(torch.isfinite(value).all() for value in rig.iteration.bridge.obs.values())


def test_compiled_worlds_stage_what_eager_ones_do():
    eager, compiled = Rig(True), Rig(True, worlds="compile")
    first, second = eager.play(2), compiled.play(2)
    for name in ("reward", "terminated", "boundary", "action", "obs/actor", "obs/critic"):
        torch.testing.assert_close(first[f"learn/ring/{name}"], second[f"learn/ring/{name}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("execution", [pytest.param("graph", marks=gpu)])
def test_a_tick_waits_once_and_copies_twice(execution, overlap):
    rig = Rig(True, "cuda", execution, overlap=overlap)
    rig.iteration.rehearse()
    rig.play(6)
    bridge = rig.iteration.bridge
    assert (bridge.waits, bridge.copies) == (12, 24)
    assert {graph["enabled"] for graph in rig.iteration.report().values()} == {"graph"}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(5):
            rig.iteration.run(False)
    calls = {event.key: event.count for event in trace.key_averages()}
    ticks = 10
    assert calls["cudaEventSynchronize"] <= 2 * ticks  # the action's arrival, and the host's run-ahead
    assert sum(count for name, count in calls.items() if name.startswith("Memcpy HtoD")) == ticks
    assert sum(count for name, count in calls.items() if name.startswith("Memcpy DtoH")) == ticks
    assert not {"cudaStreamSynchronize", "cudaMalloc", "cudaFree"} & calls.keys()
