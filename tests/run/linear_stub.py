"""Physics as a linear map in torch, on any device, so that graphs, streams and modes can be compared bit for bit."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tickgraph import mdp
from tickgraph.core.arena import Arena
from tickgraph.env.config import (
    EnvCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.env import Env
from tickgraph.robots.cartpole import cartpole_robot
from tickgraph.sim import backend
from tickgraph.sim.backend import Backend
from tickgraph.sim.model import Scene
from tickgraph.sim.scene import SceneCfg

NAME = "linear"


class LinearBackend(Backend):
    """v <- 0.99 v + dt (ctrl - 0.1 q), q <- q + dt v, for as many coordinates as the model has."""

    name: ClassVar[str] = NAME
    capabilities: ClassVar[frozenset[str]] = frozenset({"exact_resume", "graph"})

    def __init__(
        self, scene: Scene, num_envs: int, device: torch.device, arena: Arena, threads: int | None = None
    ) -> None:
        super().__init__(scene, num_envs, device, arena)
        self.qpos, self.qvel = self.view("qpos"), self.view("qvel")
        self.dt = scene.cfg.timestep

    def advance_and_refresh(self, n: int) -> None:
        for _ in range(n):
            force = self.ctrl.sum(dim=1, keepdim=True) - 0.1 * self.qpos
            self.qvel.copy_(0.99 * self.qvel + self.dt * force)
            self.qpos.copy_(self.qpos + self.dt * self.qvel)

    def write_state(self, written: Tensor, restarted: Tensor) -> None:
        for live, staged in ((self.qpos, self.staging_qpos), (self.qvel, self.staging_qvel)):
            live.copy_(torch.where(written[:, None], staged, live))
        self.ctrl.copy_(torch.where(restarted[:, None], 0.0, self.ctrl))

    def refresh(self, written: Tensor) -> None:
        pass

    def overflow(self) -> dict[str, int]:
        return {}

    def overflow_counts(self) -> Tensor:
        return torch.zeros(0, dtype=torch.int64, device=self.device)

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass

    def close(self) -> None:
        pass

    def _attach_view(self, name: str, tensor: Tensor) -> None:
        pass

    def _attach_field(self, name: str, tensor: Tensor) -> None:
        raise NotImplementedError(name)


def register(monkeypatch: Any) -> None:
    """Let environments be built with `NAME`."""
    monkeypatch.setitem(backend._BACKENDS, NAME, f"{__name__}:LinearBackend")


def slow(env: Env) -> Tensor:
    """(N,) less the faster it moves."""
    return -env.scene["robot"].data.joint_vel.square().sum(dim=1)


def far(env: Env) -> Tensor:
    return env.scene["robot"].data.joint_pos[:, 0].abs() > 0.6


def toss(env: Env, mask: Tensor, rng: Any) -> None:
    robot = env.scene["robot"]
    robot.write_joint_state_to_sim(rng.uniform("q", 2, -0.5, 0.5), rng.uniform("v", 2, -1.0, 1.0), mask)


def linear_cfg() -> EnvCfg:
    """Two coordinates, one action; some episodes fall, others time out."""
    groups = {
        "actor": ObservationGroupCfg({"q": ObservationTermCfg(mdp.joint_pos), "v": ObservationTermCfg(mdp.joint_vel)}),
        "critic": ObservationGroupCfg({"q": ObservationTermCfg(mdp.joint_pos), "v": ObservationTermCfg(mdp.joint_vel)}),
    }
    return EnvCfg(
        scene=SceneCfg(entities={"robot": cartpole_robot()}, terrain=None),
        episode_length_s=0.3,
        observations=groups,
        actions={"force": mdp.JointEffortActionCfg(actuator_names=".*")},
        rewards={"slow": RewardTermCfg(slow, 1.0)},
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out),
            "far": TerminationTermCfg(far),
        },
        events={"toss": EventTermCfg(toss, "reset")},
    )
