"""Domain randomisation: events that draw model fields anew, always from the model's own values, never compounding.

Encoders are no model field: what they read wrongly is drawn here too, and observations add it where they are asked to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.masked import assign_rows
from tickgraph.env.config import SceneEntityCfg
from tickgraph.env.scene import PARTS, SceneEntity
from tickgraph.mdp.matching import find_actuators
from tickgraph.mdp.observations import ROBOT
from tickgraph.mdp.ranges import Range, check_range

if TYPE_CHECKING:
    from tickgraph.env.env import Env


OPERATIONS = ("scale", "add", "abs")
DISTRIBUTIONS = ("uniform", "log_uniform")
# What each kind of field has one row of: the part of an entity, and its ids in the model.
_OWNERS = {
    "body": ("body", "body_ids"),
    "geom": ("geom", "geom_ids"),
    "site": ("site", "site_ids"),
    "jnt": ("joint", "joint_ids"),
    "dof": ("joint", "dof_adr"),
    "actuator": ("actuator", "actuator_ids"),
}


class _Draw:
    """Writes ``operation(default, draw)`` into some rows and columns of one field for the worlds of a mask.

    Args:
        env, path: owner of the arena, of the random words and of the tensors' names.
        field: MjModel field.
        ids: rows of the field.
        axes: columns of the field, None for a field without; each has draws of its own unless ``sign`` is given.
        ranges: low and high, or a pair of them for each column.
        operation: scale (default * draw), add (default + draw) or abs (draw).
        distribution: uniform or log_uniform.
        shared: one draw for all rows of a world.
        sign: factor of each column for one common draw; for fields that repeat a number with another sign.
        draw: name of the draw; two of the same name get the same numbers.
    """

    def __init__(
        self,
        env: Env,
        path: str,
        field: str,
        ids: list[int],
        axes: list[int] | None,
        ranges: Range | Sequence[Range],
        operation: str,
        distribution: str,
        shared: bool = False,
        sign: list[float] | None = None,
        draw: str = "",
    ) -> None:
        _check(path, ranges, operation, distribution)
        constant = env.arena.constant
        self._env, self._operation, self._log = env, operation, distribution == "log_uniform"
        self._rng, self.draw = env.rng.stream(path), draw
        self._field = env.sim.field(field)
        env.sim.check_rows(field, ids)
        default = env.sim.default_field(field)
        name = f"{path}/{field}{draw and '_'}{draw}"
        self._low, self._high = self._ends(constant, name, ranges, 1 if shared else len(ids))
        self._ids = constant(f"{name}_ids", ids, torch.int64, "rows of the field that are drawn")
        self._shared, self._axes = shared, axes
        if axes is not None:
            self._columns = constant(f"{name}_axes", axes, torch.int64, "columns of the field that are drawn")
            self._default = default[self._ids[:, None], self._columns]
        else:
            self._default = default[self._ids]
        if default.device.type != "meta":
            self._default = constant(f"{name}_default", self._default, torch.float32, "the model's own values")
        self._sign = None if sign is None else constant(f"{name}_sign", sign, torch.float32, "factor of each column")

    def _ends(self, constant: Any, name: str, ranges: Any, rows: int) -> tuple[Any, Any]:
        """Return the low and the high end of the draws: numbers, or tensors of one number for each draw of a world."""
        end = (lambda value: float(np.log(value))) if self._log else float
        if not isinstance(ranges[0], Sequence):
            return end(ranges[0]), end(ranges[1])
        low, high = ([end(pair[i]) for pair in ranges] * rows for i in (0, 1))
        why = "an end of each draw's range"
        return constant(f"{name}_low", low, why=why), constant(f"{name}_high", high, why=why)

    def __call__(self, mask: Tensor) -> None:
        self.write(mask, self.numbers())

    def numbers(self) -> Tensor:
        """Return this tick's draw."""
        rows, columns = self._default.shape[0], 1 if self._axes is None else len(self._axes)
        rows = 1 if self._shared else rows
        per_row = 1 if self._sign is not None else columns
        draw = self._rng.uniform(self.draw, rows * per_row, self._low, self._high)
        if self._log:
            draw = torch.exp(draw)
        return draw if self._axes is None else draw.reshape(-1, rows, per_row)

    def write(self, mask: Tensor, draw: Tensor) -> None:
        """Write what follows from a draw to the field's rows, in the worlds of a mask."""
        if self._operation == "scale":
            value = self._default * draw
        elif self._sign is not None:
            value = draw * self._sign if self._operation == "abs" else self._default + draw * self._sign
        else:
            value = self._default + draw if self._operation == "add" else draw
        value = value.expand(-1, *self._default.shape)
        if self._axes is None:
            old = self._field[:, self._ids]
            self._field[:, self._ids] = torch.where(mask[:, None], value, old)
        else:
            old = self._field[:, self._ids[:, None], self._columns]
            self._field[:, self._ids[:, None], self._columns] = torch.where(mask[:, None, None], value, old)
        self._env.mark_written(mask)


class randomize_field:
    """Draw rows of any model field anew from its default: mass, friction, centre of mass, damping, ...

    Params:
        field: a per-world MjModel field whose name begins with body_, geom_, site_, jnt_, dof_ or actuator_.
        ranges: low and high of the draw, or {column: (low, high)} for columns with ranges of their own.
        operation: "scale" (default * draw), "add" (default + draw) or "abs" (draw).
        asset_cfg: the entity and its bodies, geoms, sites, joints or actuators, as the field's name says.
        axes: columns of the field that are drawn, each by itself; by default all, and of geom_friction the sliding one.
        shared: one draw for all parts of a world (feet with one friction).
        distribution: "uniform" or "log_uniform".
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        params = cfg.params
        field, asset_cfg = params["field"], params.get("asset_cfg", SceneEntityCfg())
        ids = _rows(env, path, field, asset_cfg)
        shape = tuple(env.sim.default_field(field).shape[1:])
        axes, ranges = params.get("axes"), params["ranges"]
        if isinstance(ranges, Mapping):
            if axes is not None or not ranges:
                raise TickgraphError(
                    f"{path}: ranges are {dict(ranges)} and axes {axes}; ranges by column name the columns, so give at "
                    "least one and leave axes out"
                )
            for column, pair in ranges.items():  # two numbers would pass for one range of both columns
                check_range(pair, f"{path}: ranges of column {column}")
            axes, ranges = tuple(ranges), list(ranges.values())
        if len(shape) > 1:
            raise TickgraphError(
                f"{path}: field {field} has {len(shape)} axes a row; randomize_field takes at most one"
            )
        if not shape and axes is not None:
            raise TickgraphError(f"{path}: field {field} has no columns, given axes {axes}; leave axes out")
        if shape and axes is None:
            axes = (0,) if field == "geom_friction" else range(shape[0])
        if shape and not all(0 <= a < shape[0] for a in axes):
            raise TickgraphError(f"{path}: axes {tuple(axes)} given, field {field} has columns 0 to {shape[0] - 1}")
        self._draw = _Draw(
            env, path, field, ids, None if axes is None else list(axes), ranges,
            params.get("operation", "scale"), params.get("distribution", "uniform"), params.get("shared", False),
        )  # fmt: skip

    def __call__(
        self,
        env: Env,
        mask: Tensor,
        field: str,
        ranges: Range | Mapping[int, Range],
        operation: str = "scale",
        asset_cfg: SceneEntity = ROBOT,
        axes: tuple[int, ...] | None = None,
        shared: bool = False,
        distribution: str = "uniform",
    ) -> None:
        self._draw(mask)


class randomize_body_mass:
    """Draw the masses of bodies anew from their defaults, and scale their inertias by the same factor.

    Isaac Lab's ``randomize_rigid_body_mass``; mjlab's ``body_mass`` leaves the inertia, as `randomize_field` does.

    Params:
        ranges: low and high; a factor for "scale", else kg.
        operation: "scale" (default * draw), "add" (default + draw) or "abs" (draw).
        asset_cfg: the entity and its bodies.
        distribution: "uniform" or "log_uniform".
        recompute_inertia: False leaves the inertia.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        params = cfg.params
        asset_cfg = params.get("asset_cfg", SceneEntityCfg())
        ids = _rows(env, path, "body_mass", asset_cfg)
        operation, distribution = params.get("operation", "scale"), params.get("distribution", "uniform")
        self._draw = _Draw(env, path, "body_mass", ids, None, params["ranges"], operation, distribution)
        default = env.sim.default_field("body_mass")[ids]
        low, high = params["ranges"]
        least = {"scale": default * low, "add": default + low, "abs": torch.full_like(default, low)}[operation]
        if default.device.type != "meta" and not bool((least > 0.0).all()):
            raise TickgraphError(
                f"{path}: ranges are {(low, high)} by {operation!r}, which leaves {float(default.min()):g} kg "
                "no mass; make the low end larger, or select heavier bodies"
            )
        self._inertia = None
        if params.get("recompute_inertia", True):
            self._inertia = env.sim.field("body_inertia")
            env.sim.check_rows("body_inertia", ids)
            constant = env.arena.constant
            self._ids = constant(f"{path}/body_inertia_ids", ids, torch.int64, "bodies that are drawn")
            self._default_inertia = env.sim.default_field("body_inertia")[self._ids]
            self._default_mass = env.sim.default_field("body_mass")[self._ids]
            if default.device.type != "meta":
                self._default_inertia = constant(f"{path}/body_inertia_default", self._default_inertia, torch.float32)
                self._default_mass = constant(f"{path}/mass_default", self._default_mass, torch.float32)

    def __call__(
        self,
        env: Env,
        mask: Tensor,
        ranges: Range,
        operation: str = "scale",
        asset_cfg: SceneEntity = ROBOT,
        distribution: str = "uniform",
        recompute_inertia: bool = True,
    ) -> None:
        self._draw(mask)
        if self._inertia is None:
            return
        factor = env.sim.field("body_mass")[:, self._ids] / self._default_mass
        value = self._default_inertia * factor[:, :, None]
        self._inertia[:, self._ids] = torch.where(mask[:, None, None], value, self._inertia[:, self._ids])


class randomize_pd_gains:
    """Draw the stiffness and damping of position actuators anew from their defaults.

    Damping is drawn where the model has it: in the actuator, or, where that has none, in the joint that it drives.

    Params:
        kp_range, kd_range: low and high; factors for "scale", else N m/rad and N m s/rad. None leaves the gain.
        operation: "scale", "add" or "abs".
        asset_cfg: the entity and its actuators, by their own names or by those of the joints that they drive.
        distribution: "uniform" or "log_uniform".
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        params = cfg.params
        asset_cfg = params.get("asset_cfg", SceneEntityCfg())
        index = env.scene[asset_cfg.name].index
        chosen = find_actuators(index, asset_cfg)
        wrong = [index.actuator_names[a] for a in chosen if index.actuator_kind[a] != "position"]
        if wrong:
            raise TickgraphError(f"{path}: {wrong[0]!r} is not a position actuator; choose others by actuator_names")
        operation, distribution = params.get("operation", "scale"), params.get("distribution", "uniform")
        self._draws: list[_Draw] = []

        def add(
            field: str, ids: list[int], axes: list[int] | None, key: str, sign: list[float] | None, draw: str
        ) -> None:
            if ids and params.get(key) is not None:
                self._draws.append(
                    _Draw(env, path, field, ids, axes, params[key], operation, distribution, sign=sign, draw=draw)
                )

        # MuJoCo has a position actuator's stiffness twice: as gain, and with the opposite sign as bias.
        # Both are written from one draw.
        own = [a for a in chosen if index.actuator_kd[a] > 0.0]
        passive = [a for a in chosen if index.actuator_kd[a] <= 0.0 and index.actuator_joint[a] >= 0]
        add("actuator_gainprm", [int(index.actuator_ids[a]) for a in chosen], [0], "kp_range", [1.0], "kp")
        add("actuator_biasprm", [int(index.actuator_ids[a]) for a in chosen], [1], "kp_range", [-1.0], "kp")
        add("actuator_biasprm", [int(index.actuator_ids[a]) for a in own], [2], "kd_range", [-1.0], "kd")
        dofs = [int(index.dof_adr[index.actuator_joint[a]]) for a in passive]
        add("dof_damping", dofs, None, "kd_range", None, "damping" if own else "kd")
        if not self._draws:
            raise TickgraphError(f"{path}: neither kp_range nor kd_range is given; give at least one")

    def __call__(
        self,
        env: Env,
        mask: Tensor,
        kp_range: Range | None = None,
        kd_range: Range | None = None,
        operation: str = "scale",
        asset_cfg: SceneEntity = ROBOT,
        distribution: str = "uniform",
    ) -> None:
        drawn: dict[str, Tensor] = {}
        for draw in self._draws:
            if draw.draw not in drawn:
                drawn[draw.draw] = draw.numbers()
            draw.write(mask, drawn[draw.draw])


class randomize_effort_limits:
    """Scale the force limits of actuators, from their defaults; both ends of a limit by one factor.

    Params:
        ranges: low and high of the factor.
        asset_cfg: the entity and its actuators, by their own names or by those of the joints that they drive.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        asset_cfg = cfg.params.get("asset_cfg", SceneEntityCfg())
        ids = _rows(env, path, "actuator_forcerange", asset_cfg)
        self._draw = _Draw(
            env, path, "actuator_forcerange", ids, [0, 1], cfg.params["ranges"], "scale", "uniform", sign=[1.0, 1.0]
        )

    def __call__(self, env: Env, mask: Tensor, ranges: Range, asset_cfg: SceneEntity = ROBOT) -> None:
        self._draw(mask)


class randomize_encoder_bias:
    """Draw what each joint's encoder reads too much. Meant for mode ``startup``: a robot keeps its encoders.

    The simulation knows nothing of it: `joint_pos` and `joint_pos_rel` show it where they are asked for ``biased``.

    Params:
        bias_range: low and high, rad or m; each joint of each world has a draw of its own.
        asset_cfg: the entity and its joints.
    """

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        asset_cfg = cfg.params.get("asset_cfg", SceneEntityCfg())
        check_range(cfg.params["bias_range"], f"{path}: bias_range")
        data = env.scene[asset_cfg.name].data
        self._bias, self._rng = data.encoder_bias, env.rng.stream(path)
        index = env.scene[asset_cfg.name].index
        chosen = index.find("joint", asset_cfg.joint_names or ".*")
        drawn = [joint in chosen for joint in range(self._bias.shape[1])]
        self._drawn = env.arena.constant(f"{path}/drawn", drawn, torch.bool, "joints whose encoder is drawn")

    def __call__(self, env: Env, mask: Tensor, bias_range: Range, asset_cfg: SceneEntity = ROBOT) -> None:
        bias = self._rng.uniform("", self._bias.shape[1], *bias_range)
        assign_rows(self._bias, mask, torch.where(self._drawn, bias, self._bias))


def _check(path: str, ranges: Range | Sequence[Range], operation: str, distribution: str) -> None:
    if operation not in OPERATIONS:
        hint = nearby(operation, OPERATIONS) or f"choose one of {', '.join(OPERATIONS)}"
        raise TickgraphError(f"{path}: operation {operation!r} is unknown; {hint}")
    if distribution not in DISTRIBUTIONS:
        hint = nearby(distribution, DISTRIBUTIONS) or f"choose one of {', '.join(DISTRIBUTIONS)}"
        raise TickgraphError(f"{path}: distribution {distribution!r} is unknown; {hint}")
    for pair in ranges if isinstance(ranges[0], Sequence) else [ranges]:
        check_range(pair, f"{path}: ranges")
        if distribution == "log_uniform" and pair[0] <= 0.0:
            raise TickgraphError(f"{path}: ranges are {tuple(pair)}, expected (low, high) with 0 < low <= high")


def _rows(env: Env, path: str, field: str, asset_cfg: SceneEntityCfg) -> list[int]:
    """Return the rows of a model field that belong to the selected parts of an entity."""
    prefix = field.split("_")[0]
    if prefix not in _OWNERS:
        raise TickgraphError(
            f"{path}: field {field!r} belongs to no part of an entity; expected a name that begins with one of "
            f"{', '.join(f'{owner}_' for owner in _OWNERS)}"
        )
    part, ids = _OWNERS[prefix]
    named = [other for other in PARTS if getattr(asset_cfg, f"{other}_names") is not None]
    if named and part not in named and (part, named) != ("actuator", ["joint"]):
        raise TickgraphError(
            f"{path}: field {field} has a row for each {part}, but asset_cfg names {named[0]}_names alone; select by "
            f"{part}_names"
        )
    index = env.scene[asset_cfg.name].index
    if part == "actuator":
        return [int(index.actuator_ids[a]) for a in find_actuators(index, asset_cfg)]
    found = index.find(part, getattr(asset_cfg, f"{part}_names") or ".*")
    return [int(getattr(index, ids)[i]) for i in found]
