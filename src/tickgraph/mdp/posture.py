"""Reward terms about the distance of joints from their initial positions, (N,) float32 of N worlds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.bounds import Finite, NotNegative, Positive
from tickgraph.env.config import SceneEntityCfg
from tickgraph.env.scene import SceneEntity
from tickgraph.mdp.commanded import commanded_speed, planar_speed
from tickgraph.mdp.matching import match_values
from tickgraph.mdp.observations import ROBOT

if TYPE_CHECKING:
    from tickgraph.env.env import Env


def joint_deviation_l1(env: Env, asset_cfg: SceneEntity = ROBOT) -> Tensor:
    """Absolute distance of the selected joints from their initial positions, summed, rad or m."""
    data = env.scene[asset_cfg.name].data
    return torch.sum((data.joint_pos - data.default_joint_pos).abs()[:, asset_cfg.joint_ids], dim=1)


def stand_still_joint_deviation_l1(
    env: Env, command_name: str, command_threshold: NotNegative = 0.06, asset_cfg: SceneEntity = ROBOT
) -> Tensor:
    """`joint_deviation_l1` where the commanded planar velocity is below ``command_threshold``, m/s (Isaac Lab)."""
    still = planar_speed(env, command_name) < command_threshold
    return torch.where(still, joint_deviation_l1(env, asset_cfg), 0.0)


class _Deviation:
    """Base: the squared distance of all joints of an entity, weighted by numbers of the selected ones, 0 for others."""

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        asset_cfg = cfg.params.get("asset_cfg", SceneEntityCfg())
        entity = env.scene[asset_cfg.name]
        self._arena, self._path, self._data = env.arena, path, entity.data
        self._names = entity.index.joint_names
        self._chosen = entity.index.find("joint", asset_cfg.joint_names or ".*")

    def _by_joint(self, given: Any, what: str, default: float) -> list[float]:
        """Return one number for each selected joint, in the order of the joints."""
        chosen = [self._names[j] for j in self._chosen]
        return match_values(given, chosen, f"{self._path}: {what} by joint", default=default)

    def _by_entity(self, what: str, values: list[float], why: str) -> Tensor:
        """Return (J,) float32 of all joints from one number for each selected joint."""
        row = dict(zip(self._chosen, values, strict=True))
        weights = [row.get(joint, 0.0) for joint in range(len(self._names))]
        return self._arena.constant(f"{self._path}/{what}", weights, torch.float32, why)

    def _inverse_squares(self, what: str, std: Positive | Mapping[str, Positive]) -> Tensor:
        """Return (J,) float32: 1 / (count * std^2) of the ``count`` selected joints that have a std, 0 of others."""
        values = self._by_joint(std, what, float("inf"))
        count = sum(value != float("inf") for value in values)
        weights = [1.0 / (count * value * value) if value != float("inf") else 0.0 for value in values]
        return self._by_entity("weights" if what == "std" else what, weights, "1 / (joints * std^2)")

    def _weighted_sum(self, weight: Tensor) -> Tensor:
        """Return (N,), the sum of weight (J,) or (N, J) times the squared distance."""
        deviation = self._data.joint_pos - self._data.default_joint_pos
        return torch.sum(weight * deviation * deviation, dim=1)


class joint_deviation_l2(_Deviation):
    """Sum of ``weights * (joint_pos - default)^2`` over the selected joints.

    Params:
        weights: by regular expression of joint names (0 where none matches), or one for all.
        asset_cfg: the joints; by default all of the robot.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        values = self._by_joint(cfg.params.get("weights", 1.0), "weights", 0.0)
        self._weights = self._by_entity("weights", values, "weight of each joint's deviation")

    def __call__(self, env: Env, weights: Finite | dict[str, Finite] = 1.0, asset_cfg: SceneEntity = ROBOT) -> Tensor:
        return self._weighted_sum(self._weights)


class posture(_Deviation):
    """exp(-mean of ((joint_pos - default) / std)^2) over the selected joints that have a std (mjlab).

    Params:
        std: rad or m, by regular expression of joint names, or one for all.
        asset_cfg: the joints; by default all of the robot.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        self._weights = self._inverse_squares("std", cfg.params["std"])

    def __call__(self, env: Env, std: Positive | dict[str, Positive], asset_cfg: SceneEntity = ROBOT) -> Tensor:
        return torch.exp(-self._weighted_sum(self._weights))


class variable_posture(_Deviation):
    """`posture` with a std that depends on the commanded speed, |v_xy| + |w_z| (mjlab).

    Params:
        std_standing, std_walking, std_running: rad or m, by regular expression of joint names, or one for all: below
            ``walking_threshold``, from there on, and from ``running_threshold`` on.
        command_name: a velocity command: forward, lateral (m/s), yaw rate (rad/s).
        walking_threshold, running_threshold: m/s + rad/s.
        asset_cfg: the joints; by default all of the robot.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        self._standing, self._walking, self._running = (
            self._inverse_squares(what, cfg.params[what]) for what in ("std_standing", "std_walking", "std_running")
        )

    def __call__(
        self,
        env: Env,
        std_standing: Positive | dict[str, Positive],
        std_walking: Positive | dict[str, Positive],
        std_running: Positive | dict[str, Positive],
        command_name: str,
        walking_threshold: Finite = 0.5,
        running_threshold: Finite = 1.5,
        asset_cfg: SceneEntity = ROBOT,
    ) -> Tensor:
        speed = commanded_speed(env, command_name)[:, None]
        moving = torch.where(speed < running_threshold, self._walking, self._running)
        weight = torch.where(speed < walking_threshold, self._standing, moving)
        return torch.exp(-self._weighted_sum(weight))
