"""What the documentation shows is run here: converted terms are static and compute, lists are those of the code."""

import re
from pathlib import Path

import pytest
import torch

from tickgraph.core.masked import fill_rows
from tickgraph.env.config import (
    CurriculumTermCfg,
    EventTermCfg,
    MetricTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
)
from tickgraph.env.env import Env
from tickgraph.env.scene import SceneEntity
from tickgraph.sim.backend import FRESH
from tickgraph.tasks.registry import load

ROOT = Path(__file__).parents[2]
DOCS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])


def code(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.S))


@pytest.fixture(scope="module")
def converted():
    """The terms of the page; the "before" versions come first and are replaced by those of the same name."""
    names = {"torch": torch, "SceneEntity": SceneEntity, "SceneEntityCfg": SceneEntityCfg, "fill_rows": fill_rows}
    names["ManagerTermBase"] = object
    exec(code("convert-a-term.md"), names)
    return names


def test_the_converted_terms_run_and_are_static(converted):
    task = load("go2_walk_flat")
    contacts = tuple(sensor.name for sensor in task.env.scene.sensors)
    thighs = SceneEntityCfg("robot", joint_names=".*thigh.*")
    task.env.rewards = {
        "joint_speed": RewardTermCfg(converted["joint_speed_l2"], -0.1, {"asset_cfg": thighs}),
        "air_time": RewardTermCfg(converted["feet_air_time"], 1.0, {"sensors": contacts}),
        "action_rate_l2": RewardTermCfg(task.env.rewards["action_rate"].func, -0.5),
    }
    task.env.events = {"position": EventTermCfg(converted["reset_root_position"], "reset")}
    task.env.curriculum = {"ramp": CurriculumTermCfg(converted["ramp_action_rate"], {"step": 0.25})}
    task.env.metrics = {"air_time": MetricTermCfg(converted["feet_air_time"], {"sensors": contacts})}
    env = Env(task.env, 3, execution="eager")
    assert env.blockers() == []
    start = env.scene["robot"].data.root_link_pos_w[:, :2].clone()
    assert bool((start.abs() <= 0.5).all()) and start[:, 0].unique().numel() == 3
    weight = env.reward_manager.weights[2]
    before = float(weight)
    env.episode_length.copy_(torch.tensor([env.max_episode_length, 0, 0]))
    air = env.arena["rewards/air_time/air_time"]
    air.fill_(7.0)
    env.tick()
    assert env.done.tolist() == [True, False, False]
    assert float(weight) == before - 0.25
    assert air[0].tolist() == [0.0] * 4 and bool((air[1:] != 7.0).all())
    assert torch.equal(env.scene["robot"].data.root_link_pos_w[0, :2], env.sim.view("qpos")[0, :2])
    env.close()


def test_the_list_of_fresh_fields_is_the_codes_own():
    text = (ROOT / "docs" / "transition.md").read_text()
    listed = re.search(r"`(qpos qvel [^`]*)`", text, flags=re.S)
    assert tuple(listed[1].split()) == FRESH


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if not t.startswith(("http", "mailto")) and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)`", page.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_the_first_task_shows_its_own_file():
    source = (ROOT / "examples" / "reach.py").read_text()
    for page in ("docs/first-task.md", "README.md"):
        shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
        assert shown and [block for block in shown if block not in source] == []
