"""Model fields that differ between worlds, for MuJoCo Warp, and what MuJoCo derives from masses and armatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warp as wp
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.robots.mj import load_mujoco
from tickgraph.sim import warp_kernels as kernels

# Fields that a step reads as they are, and fields from which inverse weights and subtree masses follow. Others either
# do not exist per world in MuJoCo Warp, or change what it has worked out for all worlds together when it was built.
_PLAIN = {
    *(f"actuator_{name}" for name in ("gainprm", "biasprm", "dynprm", "forcerange", "ctrlrange", "actrange", "gear")),
    *(f"jnt_{name}" for name in ("stiffness", "range", "margin", "solref", "solimp", "actfrcrange")),
    *(f"dof_{name}" for name in ("damping", "frictionloss", "solref", "solimp")),
    *(f"geom_{name}" for name in ("friction", "solref", "solimp", "solmix", "margin", "gap")),
    *(f"pair_{name}" for name in ("friction", "solref", "solreffriction", "solimp", "margin", "gap")),
    *("site_pos", "site_quat", "opt.gravity", "opt.magnetic"),
}
_DERIVED_FROM = {"body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature"}
SERVED = tuple(sorted(_PLAIN | _DERIVED_FROM))


class WorldFields:
    """The fields of one backend: the step's own arrays, expanded to N worlds, fed from the tensors that events write.

    Args:
        model: the ``mujoco_warp.Model``; arrays of fields that differ are replaced, so declare before any capture.
        mjmodel: the ``mujoco.MjModel`` that it was made from.
        num_envs: N.
        device: of the tensors. Warp's device must be the current one in every call.
    """

    def __init__(self, model: Any, mjmodel: Any, num_envs: int, device: torch.device) -> None:
        self._model = model
        self._mjmodel = mjmodel
        self._n = num_envs
        self._device = device
        self._rows: list[tuple[Any, Any, Any]] = []  # (given, live, which worlds are told that something changed)
        self.live: dict[str, Tensor] = {}
        self._changed = wp.zeros(num_envs, dtype=wp.bool)
        self._unnoticed = wp.zeros(num_envs, dtype=wp.bool)
        self._derivation: _Derivation | None = None

    def add(self, name: str, given: Tensor) -> None:
        """Let the rows of ``given`` (N, ...), filled with the model's own values, reach the model by `take`.

        Raises:
            TickgraphError: the field cannot differ between worlds here.
        """
        owner, attribute = (self._model.opt, name[4:]) if name.startswith("opt.") else (self._model, name)
        if name not in _PLAIN | _DERIVED_FROM:
            hint = nearby(name, SERVED)
            raise TickgraphError(
                f"backend 'mjwarp' cannot give each world its own {name!r}{f' ({hint})' if hint else ''}; it has "
                f"{', '.join(SERVED)}"
            )
        derived = name in _DERIVED_FROM
        if derived and self._derivation is None:
            self._derivation = _Derivation(self._model, self._mjmodel, self._n)
        array = getattr(owner, attribute)
        live = given.clone()
        setattr(owner, attribute, wp.from_torch(live, dtype=array.dtype))
        self.live[name] = live
        if live.numel():
            rows = (wp.from_torch(tensor.view(self._n, -1)) for tensor in (given, live))
            self._rows.append((*rows, self._changed if derived else self._unnoticed))
        if derived:
            self.derive_all()

    def take(self, written: Any) -> None:
        """Take over the rows of the worlds of a mask, and what follows from them; ``written`` is a Warp array (N,)."""
        for given, live, changed in self._rows:
            wp.launch(kernels.take_rows, dim=(self._n, kernels.THREADS), inputs=[written, given, live, changed])
        if self._derivation is not None:
            self._derivation.run(self._changed)
            self._changed.zero_()

    def derive_all(self) -> None:
        """Work out everything derived, in every world, from the live fields."""
        if self._derivation is not None:
            self._changed.fill_(True)
            self._derivation.run(self._changed)
            self._changed.zero_()


class _Derivation:
    """Inverse weights and subtree masses of each world, as mj_setConst works them out, at qpos0.

    The geometry at qpos0 is the same in all worlds, as no field that `WorldFields` serves moves a joint or a body; so
    its Jacobians are computed once, by MuJoCo.
    """

    def __init__(self, model: Any, mjmodel: Any, num_envs: int) -> None:
        mujoco = load_mujoco()
        m, nv, nbody = mjmodel, mjmodel.nv, mjmodel.nbody
        if m.ntendon or (m.actuator_dyntype == mujoco.mjtDyn.mjDYN_MUSCLE).any():
            raise TickgraphError("backend 'mjwarp' cannot give worlds their own masses beside tendons or muscles")
        data = mujoco.MjData(m)
        mujoco.mj_kinematics(m, data)
        mujoco.mj_comPos(m, data)
        translation, rotation = np.zeros((nbody, 3, nv)), np.zeros((nbody, 3, nv))
        for body in range(nbody):
            mujoco.mj_jac(m, data, translation[body], rotation[body], data.xpos[body], body)
        mujoco.mj_crb(m, data)
        full = np.zeros((nv, nv))
        mujoco.mj_fullM(m, data, full)
        frames = data.xmat.reshape(nbody, 3, 3)
        offset = np.einsum("bij,bj->bi", frames, m.body_ipos)
        linear = translation + np.cross(rotation, offset[:, :, None], axis=1)
        axes = np.array([_rotation(mujoco, quat) for quat in m.body_iquat])
        local = np.einsum("bki,bkj->bij", np.einsum("bij,bjk->bik", frames, axes), rotation)
        bodies = np.einsum("b,bki,bkj->ij", m.body_mass, linear, linear)
        bodies += np.einsum("bki,bk,bkj->ij", local, m.body_inertia, local)
        rest = full - bodies - np.diag(m.dof_armature)
        rest[np.abs(rest) < 1e-9 * np.abs(full).max()] = 0.0
        first, count = np.arange(nv), np.ones(nv, dtype=int)
        for joint in range(m.njnt):
            dof = m.jnt_dofadr[joint]
            if m.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                first[dof : dof + 6], count[dof : dof + 6] = [dof] * 3 + [dof + 3] * 3, 3
            elif m.jnt_type[joint] == mujoco.mjtJoint.mjJNT_BALL:
                first[dof : dof + 3], count[dof : dof + 3] = dof, 3
        self._model, self._n, self._nv, self._nbody = model, num_envs, nv, nbody
        self._rotation = wp.array(rotation.transpose(0, 2, 1), dtype=wp.vec3)
        self._translation = wp.array(translation.transpose(0, 2, 1), dtype=wp.vec3)
        self._frame, self._rest = wp.array(frames, dtype=wp.mat33), wp.array(rest, dtype=float)
        self._first, self._count = wp.array(first, dtype=int), wp.array(count, dtype=int)
        self._matrix = wp.zeros((num_envs, nv, nv), dtype=float)
        self._scratch = wp.zeros((num_envs, max(nbody, nv), nv), dtype=float)
        for name in ("body_subtreemass", "body_invweight0", "dof_invweight0"):
            array = getattr(model, name)
            setattr(model, name, wp.array(np.repeat(array.numpy()[:1], num_envs, axis=0), dtype=array.dtype))

    def run(self, changed: Any) -> None:
        m = self._model
        wp.launch(
            kernels.inertia_matrix,
            dim=(self._n, self._nv, self._nv),
            inputs=[
                *(changed, self._rotation, self._translation, self._frame, self._rest),
                *(m.body_mass, m.body_inertia, m.body_ipos, m.body_iquat, m.dof_armature, self._matrix),
            ],
        )
        wp.launch(kernels.factorize, dim=self._n, inputs=[changed, self._matrix])
        wp.launch(
            kernels.body_weights,
            dim=(self._n, self._nbody),
            inputs=[
                *(changed, self._rotation, self._translation, self._frame, m.body_weldid, m.body_parentid),
                *(m.body_mass, m.body_ipos, self._matrix, self._scratch, m.body_invweight0, m.body_subtreemass),
            ],
        )
        wp.launch(
            kernels.dof_weights,
            dim=(self._n, self._nv),
            inputs=[changed, self._first, self._count, self._matrix, self._scratch, m.dof_invweight0],
        )


def _rotation(mujoco: Any, quat: Any) -> Any:
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)
