"""Pictures of a world, with or without a display: EGL or OSMesa, chosen by trying."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tickgraph.core.errors import TickgraphError
from tickgraph.robots.mj import environment, load_mujoco
from tickgraph.sim.mjcf import one_line
from tickgraph.sim.model import Scene, compile_model

_ANY = ("", "1", "on", "true", "enable", "enabled")
_NONE = ("0", "off", "false", "disable", "disabled")
_PROBE_SECONDS = 60
_LIGHT_DISTANCE = 4.0  # m
_GHOST = (0.25, 0.75, 0.55, 0.35)  # colour and opacity of a ghost
_MARGIN = 2.8  # camera distance over an entity's reach, for a field of view of 45 degrees
# Draws one small picture in a process of its own: a broken driver may crash instead of raising.
_PROBE = """
import importlib, mujoco
gl = importlib.import_module("mujoco.{kind}").GLContext(16, 16)
gl.make_current()
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
if context.currentBuffer != mujoco.mjtFramebuffer.mjFB_OFFSCREEN:
    raise RuntimeError("no offscreen buffer")
context.free()
gl.free()
"""


class RenderingUnavailable(TickgraphError):
    """This machine or this process cannot draw; the text says why, in one line."""


class Renderer:
    """Draws states of a scene, one world at a time. Physics is not touched: it has a model and data of its own.

    Args:
        scene: what to draw.
        width, height: pixels of a picture.

    Raises:
        RenderingUnavailable: no OpenGL could be had, or ``MUJOCO_GL`` asks for one that does not work or for none.
    """

    def __init__(self, scene: Scene, width: int = 640, height: int = 480) -> None:
        if width < 1 or height < 1:
            raise TickgraphError(f"a picture of {width} x {height} pixels was asked for, expected at least 1 x 1")
        self.width, self.height = width, height
        self._mujoco = mujoco = load_mujoco()
        self._model = compile_model(scene.cfg, look=True)
        if self._model.nq != scene.nq:
            raise TickgraphError("a look added joints to its entity; EntityCfg.look may add geoms and sites only")
        screen = self._model.vis.global_
        screen.offwidth, screen.offheight = max(width, screen.offwidth), max(height, screen.offheight)
        self._data = mujoco.MjData(self._model)
        self._ghost: Any = None  # data of a second pose, when first drawn
        self._gl, self._context = _open(self._model, width, height)
        self._scene = mujoco.MjvScene(self._model, maxgeom=10_000)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(self._model, self._camera)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)
        self._scene_index = scene
        self._reach: dict[str, float] = {}  # m from an entity's centre to its farthest geom, when first drawn

    def render(
        self,
        qpos: ArrayLike,
        follow: str | None = "robot",
        distance: float | None = None,
        ghost: ArrayLike | None = None,
    ) -> NDArray[np.uint8]:
        """Return the picture (height, width, 3) of a state.

        Args:
            qpos: (nq,) of one world.
            follow: entity that the camera looks at; ``None`` leaves the camera where it is.
            distance: m from camera to what it looks at; by default such that the followed entity fits in.
            ghost: (nq,) of a second pose, drawn translucent at its own place.
        """
        mujoco = self._mujoco
        self._pose(self._data, qpos)
        mujoco.mj_camlight(self._model, self._data)
        if follow is not None:
            self._look_at(follow)
        if distance is not None:
            self._camera.distance = distance
        self._gl.make_current()
        every = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, self._option, None, self._camera, every, self._scene)
        if ghost is not None:
            self._add_ghost(ghost)
        self._aim_lights()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rect, self._context)
        return np.ascontiguousarray(self._pixels[::-1])

    def close(self) -> None:
        """Give the OpenGL context back; closing twice is fine."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = None

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def _pose(self, data: Any, qpos: ArrayLike) -> None:
        """Put data into the pose of a state (nq,)."""
        state = np.asarray(qpos, dtype=np.float64)
        if state.shape != data.qpos.shape:
            raise TickgraphError(f"qpos has shape {state.shape}, expected {data.qpos.shape} of one world")
        data.qpos[:] = np.nan_to_num(state, posinf=0.0, neginf=0.0)
        self._mujoco.mj_kinematics(self._model, data)
        self._mujoco.mj_comPos(self._model, data)

    def _add_ghost(self, qpos: ArrayLike) -> None:
        """Add what moves, in another pose, to the scene that is about to be drawn."""
        mujoco = self._mujoco
        if self._ghost is None:
            self._ghost = mujoco.MjData(self._model)
        self._pose(self._ghost, qpos)
        first, moving = self._scene.ngeom, mujoco.mjtCatBit.mjCAT_DYNAMIC
        mujoco.mjv_addGeoms(self._model, self._ghost, self._option, mujoco.MjvPerturb(), moving, self._scene)
        for geom in self._scene.geoms[first : self._scene.ngeom]:
            geom.rgba[:] = _GHOST

    def _aim_lights(self) -> None:
        # A directional light casts shadows only about the point that it stands over.
        for light in self._scene.lights[: self._scene.nlight]:
            if light.type == self._mujoco.mjtLightType.mjLIGHT_DIRECTIONAL and not light.headlight:
                light.pos[:] = self._camera.lookat - _LIGHT_DISTANCE * light.dir

    def _look_at(self, entity: str) -> None:
        index = self._scene_index.entity(entity)
        # The look adds geoms only, but it may shift ids: bodies are found by name.
        root = self._model.body(self._scene_index.mjmodel.body(index.root_body_id).name).id
        if entity not in self._reach:
            centre = self._data.subtree_com[root] if index.floating else self._model.body_pos[root]
            own = self._model.body_rootid[self._model.geom_bodyid] == root
            named = [self._model.geom(i).name.startswith(f"{entity}/") for i in range(self._model.ngeom)]
            geoms = np.flatnonzero((own | named) & (self._model.geom_rbound > 0))
            far = np.linalg.norm(self._data.geom_xpos[geoms] - centre, axis=1) + self._model.geom_rbound[geoms]
            self._reach[entity] = float(far.max()) if len(geoms) else 1.0
        self._camera.distance = _MARGIN * self._reach[entity]
        if index.floating:
            self._camera.lookat[:] = self._data.subtree_com[root]
        else:  # what cannot walk away is seen from the front, by a camera at rest
            self._camera.lookat[:] = self._model.body_pos[root]
            self._camera.azimuth, self._camera.elevation = 90.0, -8.0


def _open(model: Any, width: int, height: int) -> tuple[Any, Any]:
    """Return an OpenGL context and MuJoCo's rendering context in it."""
    mujoco = load_mujoco()
    reasons = []
    for kind in _candidates():
        reason = _probe(kind)
        if reason is None:
            try:
                # MuJoCo's library reads MUJOCO_GL to find OpenGL's functions; PyOpenGL reads PYOPENGL_PLATFORM.
                with environment(MUJOCO_GL=kind, PYOPENGL_PLATFORM=None if kind == "glfw" else kind):
                    gl = importlib.import_module(f"mujoco.{kind}").GLContext(width, height)
                    gl.make_current()
                    context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
                mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
                return gl, context
            except Exception as error:  # drivers and PyOpenGL raise whatever they like
                reason = one_line(error) or type(error).__name__
        reasons.append(f"{kind}: {reason}")
    raise RenderingUnavailable(f"no pictures can be drawn here ({'; '.join(reasons)})")


def _candidates() -> tuple[str, ...]:
    """Return what to try, in order, from MUJOCO_GL and the operating system."""
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    system = platform.system()
    if asked in _NONE:
        raise RenderingUnavailable(f"MUJOCO_GL={asked} turns rendering off; unset it to have pictures")
    if asked in _ANY:
        return {"Linux": ("egl", "osmesa"), "Darwin": ("cgl",)}.get(system, ("glfw",))
    known = {"Linux": ("egl", "osmesa", "glfw", "glx"), "Darwin": ("cgl", "glfw")}.get(system, ("glfw", "wgl"))
    if asked not in known:
        raise RenderingUnavailable(f"MUJOCO_GL={asked} is not known here; use one of {', '.join(known)}, or unset it")
    return ("glfw",) if asked in ("glx", "wgl") else (asked,)


@functools.cache
def _probe(kind: str) -> str | None:
    """Return None if this kind of OpenGL works in a process of its own, else why not."""
    windows = platform.system() == "Linux" and kind == "glfw"
    if windows and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        return "there is no display (DISPLAY is not set)"
    with environment(MUJOCO_GL=kind, PYOPENGL_PLATFORM=None if kind == "glfw" else kind):
        variables = dict(os.environ)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE.format(kind=kind)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"drawing took more than {_PROBE_SECONDS} s"
    except OSError as error:
        return f"cannot start a process to try it ({error.strerror})"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.decode("utf-8", errors="replace").splitlines() if line.strip()]
    last = " ".join(lines[-1].split())[:200] if lines else ""
    if done.returncode < 0:
        return f"the driver crashed with signal {-done.returncode}"
    if "'NoneType' object has no attribute" in last:  # how PyOpenGL says it
        return "its library is not installed"
    return last or f"a trial ended with exit status {done.returncode}"
