"""How a tick runs: the device, what is asked for and reported, and a tick as a part of the caller's graph."""

import pytest
import torch
from toys import Slider

from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Resolution, resolve_execution
from tickgraph.env import env as shell
from tickgraph.env.env import Env


def test_a_device_that_cannot_be_used_is_one_line(monkeypatch):
    with pytest.raises(TickgraphError, match="device 'gpu' is unknown; use cpu, cuda or cuda:N"):
        Env(Slider().cfg(), num_envs=2, device="gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(TickgraphError, match=r"device 'cuda' cannot be used: torch .* is built without CUDA; use cpu"):
        Env(Slider().cfg(), num_envs=2, device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(TickgraphError, match="'cuda:1' cannot be used: no CUDA device is present"):
        Env(Slider().cfg(), num_envs=2, device="cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(TickgraphError, match="'cuda:1' cannot be used: the last one is cuda:0"):
        Env(Slider().cfg(), num_envs=2, device="cuda:1")


def test_a_tick_body_is_a_tick_and_every_array_is_named():
    one, other = (Env(Slider(v=(1.0,)).cfg(), num_envs=2, execution="eager") for _ in range(2))
    pointers = one.pointers()
    for _ in range(5):
        one.tick()
        other.tick_body()
    assert all(torch.equal(value, other.arena[name]) for name, value in one.arena.snapshot().items())
    assert one.pointers() == pointers and pointers["env.reward"] == one.reward.data_ptr()
    assert set(one.execution_report()) == {"tick/act_and_apply", "tick/judge_to_restart", "tick/observe"}
    one.reward = torch.zeros(2)  # behind the program's back
    one.obs["actor"] = one.obs["actor"].clone()
    moved = [name for name, address in one.pointers().items() if address != pointers[name]]
    assert moved == ["env.reward", "env.obs['actor']"]


def test_a_backend_that_cannot_be_captured_says_so(monkeypatch):
    """The environment lies on the CPU; its resolution is asked for as if it did not."""
    env = Env(Slider().cfg(), num_envs=2, execution="eager")
    given = []

    def resolve(requested: str, device: torch.device, reasons: list) -> Resolution:
        given.extend(map(str, reasons))
        return resolve_execution("eager", device)

    monkeypatch.setattr(shell, "resolve_execution", resolve)
    monkeypatch.setattr(env, "blockers", lambda host_state_too: [])
    env.device = torch.device("cuda", 0)
    env._resolve("graph")
    assert given == ["backend cannot: backend 'mujoco' cannot be captured into a CUDA graph"]
    given.clear()
    monkeypatch.setattr(type(env.sim), "capabilities", env.sim.capabilities | {"graph"})
    env._resolve("graph")
    assert given == []
