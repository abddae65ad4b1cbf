"""A backend of shapes without memory or physics, on which the judge runs every term."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.sim.backend import Backend
from tickgraph.sim.model import Scene


class MetaBackend(Backend):
    """Declares the same tensors as a real backend, on device "meta"; advancing and writing do nothing."""

    name: ClassVar[str] = "meta"
    capabilities: ClassVar[frozenset[str]] = frozenset({"fields"})

    def __init__(
        self, scene: Scene, num_envs: int, device: torch.device, arena: Arena, threads: int | None = None
    ) -> None:
        super().__init__(scene, num_envs, device, arena)

    def advance_and_refresh(self, n: int) -> None:
        """Do nothing."""

    def write_state(self, written: Tensor, restarted: Tensor) -> None:
        """Do nothing."""

    def refresh(self, written: Tensor) -> None:
        """Do nothing."""

    def overflow(self) -> dict[str, int]:
        """Return an empty dict."""
        return {}

    def diagnostics(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _attach_view(self, name: str, tensor: Tensor) -> None:
        pass

    def _attach_field(self, name: str, tensor: Tensor) -> None:
        pass
