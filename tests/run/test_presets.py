"""A task's settings for each algorithm."""

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EnvCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.run.config import Task, TrainCfg
from tickgraph.sim.scene import SceneCfg


def task(**presets: TrainCfg) -> Task:
    return Task(EnvCfg(scene=SceneCfg(entities={}), decimation=1), presets=presets, name="mine")


def test_settings_change_places() -> None:
    made = task(sac=TrainCfg(algo=SacCfg(), num_envs=7))
    first = made.train
    assert (made.algo, made.algos, made.num_envs) == ("flashsac", ("flashsac", "sac"), made.env.num_envs)
    made.use("flashsac")
    assert made.train is first
    made.use("sac")
    assert (made.algo, made.algos, made.num_envs) == ("sac", ("sac", "flashsac"), 7)
    made.use("flashsac")
    assert made.train is first


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(TickgraphError, match=r"'mine' has no settings for sac, only for flashsac; .*presets=\{'sac'"):
        task().use("sac")
    with pytest.raises(TickgraphError, match="no algorithm 'sak'; did you mean 'sac'"):
        task().use("sak")
    with pytest.raises(TickgraphError, match=r"presets\['sac'\] has a FlashSacCfg"):
        task(sac=TrainCfg())
    with pytest.raises(TickgraphError, match="'flashsac' is what train is for"):
        task(flashsac=TrainCfg())
    with pytest.raises(TickgraphError, match="train.compile_scope is 'losses'; did you mean 'loss'"):
        TrainCfg(compile_scope="losses")


def test_an_algorithm_may_bring_its_own_environment() -> None:
    def longer(env: EnvCfg) -> None:
        env.episode_length_s *= 2.0

    made = task(sac=TrainCfg(algo=SacCfg()))
    made = Task(made.env, presets=made.presets, edits={"sac": longer}, name="mine")
    own, length = made.env, made.env.episode_length_s
    made.use("flashsac")
    assert made.env is own
    own.decimation = 3  # what a task is given after it was made counts for all its settings
    made.use("sac")
    assert (made.env.episode_length_s, made.env.decimation) == (2.0 * length, 3) and own.episode_length_s == length
    made.use("sac")
    assert made.env.episode_length_s == 2.0 * length
    made.use("flashsac")
    assert made.env is own
    made.use("sac")
    assert made.env.episode_length_s == 2.0 * length and made.env is not own


@pytest.mark.parametrize("name", ["flashsac", "sak"])
def test_an_edit_needs_settings(name: str) -> None:
    with pytest.raises(TickgraphError, match=rf"edits\['{name}'\] is for settings that presets does not have"):
        Task(task().env, presets={"sac": TrainCfg(algo=SacCfg())}, edits={name: lambda env: None})
