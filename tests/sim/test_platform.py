"""Device and backend: what auto takes on machines with and without a GPU, and one line for what cannot be had."""

import importlib.util

import pytest
import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.sim import backend as sim_backend
from tickgraph.sim import platform
from tickgraph.sim.platform import resolve_platform


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes this machine one with or without a GPU and the gpu extra."""

    def make(gpus: int = 0, extra: bool = True) -> None:
        monkeypatch.setitem(sim_backend._BACKENDS, "mjwarp", "tickgraph.sim.mujoco_warp:MujocoWarpBackend")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        real = importlib.util.find_spec
        warp = ("mujoco_warp", "warp")
        spec = importlib.machinery.ModuleSpec
        monkeypatch.setattr(
            platform.importlib.util,
            "find_spec",
            lambda name: real(name) if name not in warp else spec(name, None) if extra else None,
        )

    return make


@pytest.mark.parametrize(
    ("gpus", "extra", "device", "backend", "expected"),
    [
        (0, True, "auto", "auto", ("cpu", "mujoco")),
        (1, True, "auto", "auto", ("cuda", "mjwarp")),
        (1, True, "cpu", "auto", ("cpu", "mujoco")),
        (1, True, "cuda", "auto", ("cuda", "mjwarp")),
        (2, True, "cuda:1", "auto", ("cuda:1", "mjwarp")),
        (1, True, "auto", "mujoco", ("cpu", "mujoco")),
        (1, True, "auto", "mjwarp", ("cuda", "mjwarp")),
        (0, True, "auto", "mjwarp", ("cpu", "mjwarp")),
        (1, True, "cpu", "mjwarp", ("cpu", "mjwarp")),
    ],
)
def test_what_is_taken(machine, gpus, extra, device, backend, expected):
    machine(gpus, extra)
    found = resolve_platform(device, backend)
    assert (found.device, found.backend, found.note) == (*expected, None)


def test_a_gpu_without_its_backend_is_not_passed_over_in_silence(machine):
    machine(1, extra=False)
    found = resolve_platform()
    assert (found.device, found.backend) == ("cpu", "mujoco")
    assert "mujoco_warp and warp are not installed; pip install -e '" in found.note and "[gpu]'" in found.note


def test_a_backend_for_the_cpu_keeps_its_worlds_there_beside_a_gpu(machine):
    machine(2, extra=False)
    found = resolve_platform("cuda:1", "mujoco")
    assert (found.device, found.worlds, found.bridged) == ("cuda:1", "cpu", True)
    assert not resolve_platform("cpu", "mujoco").bridged


@pytest.mark.parametrize(
    ("gpus", "extra", "device", "backend", "reason"),
    [
        (0, True, "cuda", "auto", "device 'cuda' cannot be had: torch"),
        (1, True, "cuda:1", "auto", "this machine has 1 GPUs"),
        (1, False, "cuda", "auto", "device 'cuda' cannot be had: mujoco_warp and warp are not installed"),
        (0, False, "auto", "mjwarp", "backend 'mjwarp' cannot be had: mujoco_warp and warp are not installed"),
        (1, True, "gpu", "auto", "device 'gpu' is unknown; did you mean 'cuda'"),
        (1, True, "cuda:x", "auto", "device 'cuda:x' is unknown"),
        (0, True, "auto", "mujco", "backend 'mujco' is unknown; did you mean 'mujoco'"),
    ],
)
def test_what_cannot_be_had_is_one_line(machine, gpus, extra, device, backend, reason):
    machine(gpus, extra)
    with pytest.raises(TickgraphError, match=reason) as error:
        resolve_platform(device, backend)
    assert "\n" not in str(error.value)
