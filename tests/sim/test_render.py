"""Pictures where they can be had, one clear line where not, and an environment left as found."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sim_toys import ball_scene, go2_scene

from tickgraph.core.errors import TickgraphError
from tickgraph.sim import render
from tickgraph.sim.render import Renderer, RenderingUnavailable

CODE = """
import os
before = dict(os.environ)
from tickgraph.robots.go2 import go2_robot
from tickgraph.sim.model import build_scene
from tickgraph.sim.render import Renderer, RenderingUnavailable
from tickgraph.sim.scene import SceneCfg
scene = build_scene(SceneCfg({"robot": go2_robot()}))
try:
    with Renderer(scene, 64, 48) as renderer:
        print("picture", renderer.render(scene.default_qpos).shape)
except RenderingUnavailable as error:
    print("unavailable", error)
print(dict(os.environ) == before)
"""


def drawable() -> bool:
    return render._probe("egl") is None


def run(value: str | None) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")}
    environment |= {} if value is None else {"MUJOCO_GL": value}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("value", [None, "egl", "osmesa", "glfw", "nonsense", "off"])
def test_every_value_of_mujoco_gl_ends_in_a_picture_or_one_line(value):
    lines = run(value)
    assert len(lines) == 2 and lines[1] == "True"
    kind = lines[0].split()[0]
    if value in ("glfw", "nonsense", "off"):
        assert kind == "unavailable"
    if value == "nonsense":
        assert "MUJOCO_GL=nonsense is not known here; use one of" in lines[0]
    if value in (None, "egl") and drawable():
        assert lines[0] == "picture (48, 64, 3)"


def test_a_driver_that_fails_is_named(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(render, "_probe", lambda kind: f"no {kind} today")
    with pytest.raises(RenderingUnavailable, match="egl: no egl today; osmesa: no osmesa today"):
        Renderer(ball_scene())


def test_a_trial_that_crashes_or_raises_says_so(monkeypatch):
    monkeypatch.setattr(render, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)  # {kind}")
    assert render._probe.__wrapped__("egl") == "the driver crashed with signal 11"
    monkeypatch.setattr(render, "_PROBE", "raise RuntimeError('no {kind}')")
    assert render._probe.__wrapped__("egl") == "RuntimeError: no egl"


@pytest.mark.skipif(not drawable(), reason="no EGL")
def test_a_picture_shows_the_state():
    scene = go2_scene()
    with Renderer(scene, 160, 120) as renderer:
        home = renderer.render(scene.default_qpos)
        assert home.shape == (120, 160, 3) and home.dtype == np.uint8
        assert (home == renderer.render(scene.default_qpos)).all()
        assert home[50:70, 60:100].std() > 10  # the robot is in the middle, not only the ground
        bent = scene.default_qpos.copy()
        bent[8] += 1.0
        assert (home != renderer.render(bent)).any()
        away = scene.default_qpos.copy()
        away[:2] = [30.0, -20.0]  # whole tiles, so that the ground looks the same
        assert np.abs(home.astype(int) - renderer.render(away)).mean() < 5
        with pytest.raises(TickgraphError, match=r"qpos has shape \(3,\)"):
            renderer.render(np.zeros(3))
        renderer.render(np.full(scene.nq, np.nan))  # a diverged world still gives a picture


def test_a_picture_without_size_is_refused():
    with pytest.raises(TickgraphError, match="0 x 48"):
        Renderer(ball_scene(), 0, 48)


@pytest.mark.skipif(not drawable(), reason="EGL cannot be used here")
def test_a_ghost_is_drawn_beside_and_leaves_no_trace():
    scene = go2_scene()
    aside = scene.default_qpos.copy()
    aside[1] += 0.5
    with Renderer(scene, 160, 120) as renderer:
        alone = renderer.render(scene.default_qpos)
        both = renderer.render(scene.default_qpos, ghost=aside)
        again = renderer.render(scene.default_qpos)
        with pytest.raises(TickgraphError, match="expected"):
            renderer.render(scene.default_qpos, ghost=aside[:-1])
    assert np.array_equal(alone, again)
    changed = (alone != both).any(axis=-1)
    # A robot's worth of pixels has turned greener: mixed with the ghost's colour, not covered by it.
    assert 0.01 < changed.mean() < 0.4
    green = both[changed].astype(int) - alone[changed]
    assert green[:, 1].mean() > green[:, 0].mean() + 10
