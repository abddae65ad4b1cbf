"""docs/terms.md has a row for every term, with its parameters and the first line of its docstring."""

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from mdp_toys import robot_env

from tickgraph import mdp
from tickgraph.env.scene import EntityData
from tickgraph.env.sensors import Sensor
from tickgraph.sim.model import build_scene

PAGE = Path(__file__).parents[2] / "docs" / "terms.md"
# The environment, what a manager passes, and what a term is given without being asked.
PASSED = ("self", "env", "mask", "rng")


def group_of(name: str) -> str:
    """Return the table that a name belongs into: its module, and one table for all of motion tracking."""
    module = getattr(mdp, name).__module__.rpartition(".")[2]
    return "motion" if module.startswith("motion") else module


def parameters(name: str) -> list[str]:
    """Return the parameters of a term, or the fields of a configuration, each with its default."""
    item = getattr(mdp, name)
    if is_dataclass(item):
        return [field.name for field in fields(item) if field.name not in ("class_type", "entity_name")]
    call = item.__call__ if inspect.isclass(item) else item
    known = inspect.signature(call).parameters.values()
    return [f"{p.name}?" if p.default is not p.empty else p.name for p in known if p.name not in PASSED]


def row(name: str) -> str:
    """Return the row of a name."""
    what = (inspect.getdoc(getattr(mdp, name)) or "").partition("\n")[0].replace("|", "\\|").replace("``", "`")
    given = ", ".join(f"`{p}`" for p in parameters(name))
    return f"| `{name}` | {given} | {what} |".replace("|  |", "| |")


NAMES = [name for name in mdp.__all__ if not (inspect.isclass(getattr(mdp, name)) and hasattr(mdp, f"{name}Cfg"))]


@pytest.mark.parametrize("name", NAMES)
def test_each_term_has_its_row(name):
    assert row(name) in PAGE.read_text().splitlines()


def test_no_row_is_of_a_term_that_is_gone():
    text = PAGE.read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text[text.index("## All terms") :], flags=re.M)
    assert sorted(listed) == sorted(NAMES)


def test_a_name_from_elsewhere_leads_to_what_is_here():
    for name, here in mdp._HERE.items():
        for term in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", here):
            if term.startswith(("randomize_", "push_", "reward_", "contact_", "site_", "last_")):
                assert hasattr(mdp, term), (name, term)
    with pytest.raises(AttributeError, match=r"no 'foot_contact'; use contact_found \(docs/terms.md lists all\)"):
        mdp.foot_contact  # noqa: B018
    with pytest.raises(AttributeError, match=r"no 'feet_slid'; did you mean 'feet_slide'"):
        mdp.feet_slid  # noqa: B018


def test_all_that_entities_and_sensors_have_is_listed():
    text = PAGE.read_text()
    data = robot_env(1).scene["robot"].data
    names = {*dir(EntityData), *vars(data), *dir(Sensor)}
    missing = [name for name in sorted(names) if not name.startswith("_") and f"`{name}`" not in text]
    assert missing == []


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    names: dict = {}
    exec(blocks[0] + blocks[1].removesuffix(",\n"), names)
    scene = build_scene(names["SceneCfg"]({"robot": names["g1_robot"]()}, sensors=names["sensors"]))
    assert scene.sensor_names == ("imu_ang_vel", "root_angmom", "left_foot", "self_collision")
