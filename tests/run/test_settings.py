"""Settings by dotted path: typed overrides, errors with similar names, config.yaml out and in again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EnvCfg, ObservationGroupCfg, ObservationTermCfg, RewardTermCfg, UniformNoiseCfg
from tickgraph.run import settings
from tickgraph.run.config import Task
from tickgraph.sim.scene import SceneCfg


def term(env: Any) -> None:
    """Stand for a term; it is never called."""


@dataclass
class Ranges:
    """Nested values of a term."""

    speed: tuple[float, float] = (0.0, 1.0)


def make_task() -> Task:
    """Return a small task that no simulator ever sees."""
    rewards = {
        "alive": RewardTermCfg(term, 2.0),
        "track-speed": RewardTermCfg(term, 1.0, {"std": 0.5, "count": 2, "ranges": Ranges(), "names": ("a", "b")}),
    }
    noisy = ObservationTermCfg(term, noise=UniformNoiseCfg(-0.1, 0.1))
    group = ObservationGroupCfg({"speed": noisy, "gyro": ObservationTermCfg(term)})
    env = EnvCfg(scene=SceneCfg(entities={}), rewards=rewards, observations={"actor": group})
    return Task(env=env, name="toy", reference="toy")


@pytest.fixture
def task() -> Task:
    return make_task()


def test_each_kind_of_value_is_set_with_its_type(task: Task) -> None:
    changed = settings.apply_overrides(
        task,
        "--env.rewards.alive.weight 5 --train.algo.gamma=0.9 --train.time-budget-s 60 --train.no-video "
        "--env.rewards.track_speed.params.ranges.speed -1 2.5 --env.rewards.track-speed.params.count 0.5 "
        "--env.rewards.track-speed.params.names x y --env.scene.solver.cone elliptic "
        "--env.observations.actor.terms.speed.noise.n-max 0.3 --env.observations.actor.terms.gyro.scale 2".split(),
    )
    reward = task.env.rewards["track-speed"].params
    actor = task.env.observations["actor"].terms
    assert task.env.rewards["alive"].weight == 5.0
    assert isinstance(task.env.rewards["alive"].weight, float)
    assert task.train.algo.gamma == 0.9
    assert task.train.time_budget_s == 60.0
    assert task.train.video is False
    assert reward["ranges"].speed == (-1.0, 2.5)
    assert reward["count"] == 0.5
    assert reward["names"] == ("x", "y")
    assert task.env.scene.solver.cone == "elliptic"
    assert actor["speed"].noise == UniformNoiseCfg(-0.1, 0.3)
    assert actor["gyro"].scale == 2.0
    assert changed[0] == "env.rewards.alive.weight"
    assert task.env.rewards["alive"].func is term


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--env.rewards.alve.weight 5", r"env\.rewards has no 'alve'; did you mean 'alive'"),
        ("--env.rewards.alive.wight 5", r"env\.rewards\.alive has no 'wight'; did you mean 'weight'"),
        ("--train.gamma 0.9", r"^--train\.gamma: train has no 'gamma'; did you mean --train\.algo\.gamma\?$"),
        (
            "--train.algo.lr 1",
            r"train\.algo has no 'lr'; did you mean --train\.algo\.lr_start or --train\.algo\.lr_end",
        ),
        ("--env.alive.weight 5", r"env has no 'alive'; did you mean --env\.rewards\.alive\.weight\?$"),
        ("--alive.weight 5", r"no option --alive\.weight; did you mean --env\.rewards\.alive\.weight\?$"),
        ("--env.rewards.alive.weight abc", "weight is 'abc', expected a number"),
        ("--env.rewards.alive.weight", "weight has no value, expected a number"),
        ("--env.rewards.alive.weight 1 2", "weight is '1 2', expected a number"),
        ("--env.rewards.alive.weight nan", "weight is 'nan', expected a number; nan is none"),
        ("--env.rewards.track-speed.params.ranges.speed 0 nan", "speed is '0 nan', expected 2 values"),
        ("--env.rewards.alive 5", r"names a group; give one of its values, such as --env\.rewards\.alive\.weight"),
        ("--env.rewards.alive.func x", "cannot be set on the command line"),
        ("--env.rewards.track-speed.params.ranges.speed 1", "expected 2 values, each a number"),
        ("--train.num-envs 0", r"train\.num_envs is 0, expected a whole number of at least 1"),
        ("--train.seed=", r"^--train\.seed is empty, expected a whole number"),
        ("--train.num-envs -3", r"train\.num_envs is -3"),
        ("--train.num-envs 1.5", r"train\.num_envs is '1.5', expected a whole number"),
        ("--train.algo.gamma 2", "gamma is 2.0; it must be in"),
        ("--video.seconds inf", "video.seconds is inf, expected more than 0 and at most 3600 seconds"),
        ("--video.seconds 0", "video.seconds is 0.0, expected more than 0 and at most 3600 seconds"),
        ("--video.width 641", "video.width is 641, expected an even number"),
        ("--video.worlds 0", "video.worlds is 0, expected a whole number from 1 to 1000"),
        ("--video.fps 0", "video.fps is 0, expected a whole number from 1 to 1000"),
        ("--env.scene.solver.cone flat", "expected one of pyramidal, elliptic"),
        ("--robot.x 5", "no option --robot.x"),
        ("5 --env.decimation 2", "'5' stands where an option was expected"),
    ],
)
def test_mistakes_are_one_line_that_says_what_fits(task: Task, words: str, reason: str) -> None:
    with pytest.raises(TickgraphError, match=reason) as caught:
        settings.apply_overrides(task, words.split())
    assert "\n" not in str(caught.value)


def test_a_run_is_rebuilt_from_its_config(task: Task, tmp_path: Path) -> None:
    settings.apply_overrides(
        task, "--env.rewards.alive.weight 5 --env.rewards.track-speed.params.names x y --train.seed 9".split()
    )
    path = tmp_path / "config.yaml"
    settings.write_config(path, task)
    fresh = make_task()
    settings.fit(fresh, settings.read_config(path), path)
    assert fresh == task


def test_a_task_that_changed_since_its_run_is_refused(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    settings.write_config(path, task)
    fresh = make_task()
    del fresh.env.rewards["alive"]
    with pytest.raises(TickgraphError, match=r"no longer has env\.rewards\.alive"):
        settings.fit(fresh, settings.read_config(path), path)
    fresh = make_task()
    fresh.env.rewards["alive"].func = print
    with pytest.raises(TickgraphError, match=r"env\.rewards\.alive\.func was '.*:term' and is 'builtins:print' now"):
        settings.fit(fresh, settings.read_config(path), path)


@pytest.mark.parametrize("text", ["[", "a: 1", ""])
def test_a_foreign_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(TickgraphError, match=r"config\.yaml is not"):
        settings.read_config(path)


def test_names_that_only_type_checkers_know_spare_the_other_fields(task: Task) -> None:
    paths = {setting.path for setting in settings.settings(task)}
    assert "evaluation.episodes" in paths  # EvaluationCfg.figures mentions such a name
    assert "evaluation.figures" not in paths


@dataclass
class _Listed:
    values: list[int] = field(default_factory=list)


def test_lists_stay_lists(task: Task, tmp_path: Path) -> None:
    task.env.rewards["alive"].params["listed"] = _Listed([1, 2])
    settings.apply_overrides(task, "--env.rewards.alive.params.listed.values 3 4 5".split())
    assert task.env.rewards["alive"].params["listed"].values == [3, 4, 5]


def test_what_a_factory_sets_wrongly_is_named(task: Task) -> None:
    task.env.decimations = 3  # type: ignore[attr-defined]
    with pytest.raises(TickgraphError, match=r"^env has no field 'decimations'; did you mean 'decimation'"):
        settings.check_types(task)
    del task.env.decimations  # type: ignore[attr-defined]
    task.trian = task.train  # type: ignore[attr-defined]
    with pytest.raises(TickgraphError, match=r"^Task has no field 'trian'; did you mean 'train'"):
        settings.check_types(task)
    del task.trian  # type: ignore[attr-defined]
    for wrong in (None, 3, task.train):
        task.env = wrong  # type: ignore[assignment]
        with pytest.raises(TickgraphError, match=r"^env is .*, expected EnvCfg\(\.\.\.\)$"):
            settings.check_types(task)
