"""Models from strings, files and functions, on odd paths too."""

import os
import subprocess
import sys

import mujoco
import pytest
from sim_toys import BALL

from tickgraph.core.errors import TickgraphError
from tickgraph.sim.model import build_scene
from tickgraph.sim.scene import EntityCfg, SceneCfg

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n"
WITH_FILES = """<?xml version="1.0" encoding="utf-8"?>
<mujoco>
  <compiler meshdir="maillages"/>
  <include file="corps/inclus.xml"/>
  <asset><mesh name="pyramid" file="pyramide é.obj"/></asset>
  <worldbody><body name="body"><freejoint/><geom type="mesh" mesh="pyramid"/></body></worldbody>
</mujoco>
"""
INCLUDED = '<mujoco><worldbody><body name="included"><geom name="g" size="0.1"/></body></worldbody></mujoco>'


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "ma thèse" / "机器人 走路"
    (folder / "maillages").mkdir(parents=True)
    (folder / "corps").mkdir()
    (folder / "maillages" / "pyramide é.obj").write_text(TETRAHEDRON)
    (folder / "corps" / "inclus.xml").write_text(INCLUDED, encoding="utf-8")
    (folder / "modèle.xml").write_text(WITH_FILES, encoding="utf-8")
    return folder


def scene_of(model):
    return build_scene(SceneCfg({"robot": EntityCfg(model)}))


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_file_with_assets_on_a_path_of_other_scripts(folder, kind):
    scene = scene_of(kind(folder / "modèle.xml"))
    assert scene.entity("robot").body_names == ("included", "body")
    assert scene.mjmodel.nmesh == 1


def test_such_a_path_relative_to_the_working_folder_under_the_c_locale(folder):
    code = (
        "from tickgraph.sim.model import build_scene; from tickgraph.sim.scene import *; import glob; "
        "print(build_scene(SceneCfg({'robot': EntityCfg(glob.glob('mod*.xml')[0])})).nq)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.returncode) == ("7", 0), done.stderr


def test_a_string_and_a_function():
    assert scene_of(BALL).nq == scene_of(lambda: mujoco.MjSpec.from_string(BALL.strip())).nq == 7


def test_what_is_missing_is_named(folder):
    with pytest.raises(TickgraphError, match="cannot read the MJCF file.*nothing.xml.*entity 'robot'.*check the path"):
        scene_of(folder / "nothing.xml")
    (folder / "maillages" / "pyramide é.obj").unlink()
    with pytest.raises(TickgraphError, match="cannot read mesh 'pyramide é.obj'"):
        scene_of(folder / "modèle.xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<mujoco><worldbody><bdy/></worldbody></mujoco>", "unrecognized element.*'bdy'.*line 1"),
        ("<mujoco", "MuJoCo refuses the MJCF string of entity 'robot'"),
        ("<mujoco><worldbody><body><geom size='-1'/></body></worldbody></mujoco>", "size 0 must be positive"),
        ("<mujoco/>", "has no body"),
    ],
)
def test_a_wrong_document_is_one_line(text, message):
    with pytest.raises(TickgraphError, match=message) as caught:
        scene_of(text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_xml(folder):
    (folder / "broken.xml").write_text("<mujoco><oops></mujoco>")
    with pytest.raises(TickgraphError, match="broken.xml.*not well-formed"):
        scene_of(folder / "broken.xml")


def test_a_function_that_returns_something_else():
    with pytest.raises(TickgraphError, match="returned dict, expected a mujoco.MjSpec"):
        scene_of(dict)


def test_a_function_may_read_a_file_with_assets_and_return_the_same_spec_twice(folder):
    spec = mujoco.MjSpec.from_file(str(folder / "modèle.xml"))
    for _ in range(2):
        assert scene_of(lambda: spec).mjmodel.nmesh == 1
