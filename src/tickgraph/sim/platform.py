"""Which device and which backend are used: what was asked for, and what this machine has."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.install import install_extra
from tickgraph.sim.backend import backends

AUTO = "auto"
DEVICES = (AUTO, "cpu", "cuda")


@dataclass(frozen=True)
class _Traits:
    """Where a backend runs, its own ground first, and the modules that it needs beside the usual ones."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    modules: tuple[str, ...] = ()
    extra: str = ""


_TRAITS = {
    "mujoco": _Traits(("cpu",)),
    "mjwarp": _Traits(("cuda", "cpu"), ("mujoco_warp", "warp"), "gpu"),
}

BACKENDS = (AUTO, *_TRAITS)
_CALLED = {"gpu": "cuda", "nvidia": "cuda"}  # what people say


@dataclass(frozen=True)
class Platform:
    """The device and the backend that run, and a line to say where something better could not be had.

    `device` is where policy and learner are, `worlds` where the backend is: the same, except for a backend that runs on
    the CPU alone beside a learner on a GPU.
    """

    device: str
    backend: str
    note: str | None = None
    worlds: str = ""

    def __post_init__(self) -> None:
        if not self.worlds:
            object.__setattr__(self, "worlds", self.device)

    @property
    def bridged(self) -> bool:
        """True where actions and observations have to cross between two devices."""
        return self.worlds != self.device


def resolve_platform(device: str = AUTO, backend: str = AUTO) -> Platform:
    """Decide on a device and a backend that fit each other.

    Where neither is named, a GPU with a backend of its own comes first, then the CPU. A device that is named brings its
    backend along, and a backend the best device that it runs on here. A backend for the CPU beside a GPU, both named,
    keeps the worlds on the CPU and the learner on the GPU.

    Args:
        device: auto, cpu, cuda or cuda:N.
        backend: auto, or one of `backends()`.

    Raises:
        TickgraphError: something is unknown, not on this machine, or the two do not fit; one line says what does.
    """
    kind = _checked_kind(device)
    if backend != AUTO:
        device = _device_of(backend, device, kind)
        kinds = _TRAITS.get(backend, _Traits()).devices
        return Platform(device, backend, worlds=device if device.partition(":")[0] in kinds else kinds[0])
    if kind == AUTO and torch.cuda.is_available():
        name, missing = _native("cuda")
        if name is not None and missing is None:
            return Platform("cuda", name)
        note = f"this machine has a GPU, but {missing or 'no backend runs on it'}; the CPU is used"
        return Platform("cpu", _require("cpu", device), note)
    kind = "cpu" if kind == AUTO else kind
    return Platform("cpu" if device == AUTO else device, _require(kind, device))


def torch_device(device: torch.device | str) -> torch.device:
    """Return the device with its index.

    Raises:
        TickgraphError: it is unknown, or not on this machine.
    """
    unknown = TickgraphError(f"device {device!r} is unknown; use cpu, cuda or cuda:N")
    if not isinstance(device, str | torch.device):
        raise unknown
    try:
        device = torch.device(device)
    except RuntimeError:
        raise unknown from None
    if device.type not in ("cpu", "cuda", "meta"):
        raise unknown
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda is not None
            why = "no CUDA device is present" if built else f"torch {torch.__version__} is built without CUDA"
            raise TickgraphError(f"device {str(device)!r} cannot be used: {why}; use cpu")
        if device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        if device.index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise TickgraphError(f"device {str(device)!r} cannot be used: the last one is cuda:{last}")
    return device


def _checked_kind(device: str) -> str:
    """Return auto, cpu or cuda."""
    if device in (AUTO, "cpu"):
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or (":" in device and not index.isdigit()):
        meant = _CALLED.get(kind.lower())
        hint = f"did you mean {meant!r}?" if meant else nearby(device, DEVICES) or f"use one of {', '.join(DEVICES)}"
        raise TickgraphError(f"device {device!r} is unknown; {hint}")
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise TickgraphError(f"device {device!r} cannot be had: {why}; use --device cpu, or see `tickgraph doctor`")
    if int(index or 0) >= torch.cuda.device_count():
        raise TickgraphError(f"device {device!r} cannot be had: this machine has {torch.cuda.device_count()} GPUs")
    return kind


def _device_of(backend: str, device: str, kind: str) -> str:
    """Return the device for a backend that was named."""
    known = backends()
    if backend not in known:
        hint = nearby(backend, (AUTO, *known)) or f"the backends are {', '.join(known)}"
        raise TickgraphError(f"backend {backend!r} is unknown; {hint}")
    if missing := _missing(backend):
        raise TickgraphError(f"backend {backend!r} cannot be had: {missing}")
    devices = _TRAITS.get(backend, _Traits()).devices
    if kind == AUTO:
        return next((name for name in devices if name == "cpu" or torch.cuda.is_available()), devices[0])
    return device


def _native(kind: str) -> tuple[str | None, str | None]:
    """Return the backend whose own ground a device is, and what is missing for it; None where there is none."""
    names = [name for name in backends() if _TRAITS.get(name, _Traits()).devices[0] == kind]
    ready = [name for name in names if _missing(name) is None]
    if ready or not names:
        return (ready[0] if ready else None), None
    return names[0], _missing(names[0])


def _require(kind: str, device: str) -> str:
    name, missing = _native(kind)
    if name is None or missing is not None:
        raise TickgraphError(f"device {device!r} cannot be had: {missing or 'no backend runs on it'}")
    return name


def _missing(backend: str) -> str | None:
    """Return what a backend lacks on this machine, and how to get it."""
    traits = _TRAITS.get(backend, _Traits())
    absent = [name for name in traits.modules if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f"{' and '.join(absent)} {verb} not installed; {install_extra(traits.extra)}"
