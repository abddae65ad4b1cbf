"""Settings that fit their type and mean nothing are refused in one line, from a file as from the command line."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tickgraph import mdp
from tickgraph.cli import main
from tickgraph.core import room
from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import CurriculumTermCfg, EnvCfg, RecorderTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.env import Env
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.sac import SacCfg
from tickgraph.learn.update import UpdateCycle
from tickgraph.run import trainer
from tickgraph.run.config import EvaluationCfg, Task, TrainCfg, VideoCfg
from tickgraph.run.describe import check_gpu, describe
from tickgraph.run.evaluate import check_figures, evaluation_env_cfg
from tickgraph.run.folder import RunFolder
from tickgraph.run.schedule import Ending
from tickgraph.run.settings import apply_overrides, settings
from tickgraph.run.signals import Interrupts
from tickgraph.sim.platform import Platform
from tickgraph.sim.scene import SceneCfg
from tickgraph.tasks import registry

ENV = EnvCfg(SceneCfg({}))
# By the sampler, against the clips' lengths.
BOUND_WHERE_THEY_ARE_USED = ("env.commands.motion.sampler.kernel", "env.commands.motion.sampler.frames_left")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--train.tick-threads 100000", "tick_threads is 100000, expected a whole number of threads from 1 to 1024"),
        ("--train.update-threads 0", "train.update_threads is 0, expected a whole number of threads from"),
        ("--train.physics-threads 2000", "physics_threads is 2000, expected a whole number of threads"),
        ("--env.scene.solver.iterations 3000000000", "iterations is 3000000000, expected a whole number of at most 2^"),
        ("--env.scene.solver.ls-iterations 3000000000", "ls_iterations is 3000000000, expected a whole number of at"),
        ("--env.scene.solver.ccd-iterations 3000000000", "ccd_iterations is 3000000000, expected a whole number of at"),
        ("--env.scene.capacity.nconmax 1000000000000", "capacity.nconmax is 1000000000000, expected a whole number of"),
        ("--env.scene.capacity.njmax 1000000000000", "capacity.njmax is 1000000000000, expected a whole number of"),
        ("--env.scene.capacity.njmax-nnz 2147483648", "njmax_nnz is 2147483648, expected a whole number of at most 2^"),
        ("--env.scene.capacity.sensor-contacts 2147483648", "contacts is 2147483648, expected a whole number of at"),
        ("--train.algo.lr-warmup 9999999999999999999999", "lr_warmup is 9999999999999999999999; it must be at most"),
        ("--train.ticks-per-iteration 1000000000000", "ticks_per_iteration is 1000000000000, expected a whole number"),
        ("--train.updates-per-iteration 1000001", "updates_per_iteration is 1000001, expected a whole number of at"),
        ("--video.seconds 1e9", "video.seconds is 1000000000.0, expected more than 0 and at most 3600 seconds"),
        ("--video.width 1000000", "video.width is 1000000, expected a whole number of pixels from 1 to 16384"),
        ("--video.fps 3000000000", "video.fps is 3000000000, expected a whole number from 1 to 1000"),
        ("--train.iterations 99999999999999999", "is 99999999999999999, expected a whole number of at most 2^53"),
        ("--train.learning-starts -1", "train.learning_starts is -1, expected a whole number of at least 0"),
        ("--train.algo.batch-size 100000000000", "batch_size is 100000000000; it must be at most 2147483648"),
        ("--train.algo.noise-max-repeat 1000000", "noise_max_repeat is 1000000; it must be at most 10000"),
        ("--train.algo.noise-exponent -2000", "noise_exponent is -2000.0; it must not be negative"),
        ("--train.algo.n-step 1000000", "n_step is 1000000; it must be at most 10000"),
        ("--evaluation.ignore-s -1", "evaluation.ignore_s is -1.0, expected a finite number of at least 0"),
        ("--evaluation.episode-s inf", "evaluation.episode_s is inf, expected a finite number above 0"),
        ("--env.episode-length-s 1e300", "env.episode_length_s is 1e+300, expected a finite number above 0"),
        ("--env.scene.timestep 1e-9", "env.scene.timestep is 1e-09, expected seconds from 1e-6 to 0.1"),
        ("--env.scene.solver.iterations -1", "env.scene.solver.iterations is -1, expected a whole number"),
        ("--env.rewards.upright.weight inf", "env.rewards.upright.weight is inf, expected a finite number"),
        ("--env.decimation 100000000", "env.decimation is 100000000, expected a whole number of physics steps from 1"),
        ("--env.num-envs 0", "env.num_envs is 0, expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_the_command_line_is_held_to_bounds(words: str, text: str) -> None:
    with pytest.raises(TickgraphError) as caught:
        apply_overrides(registry.load("cartpole_swingup"), words.split())
    assert text in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Task(5), r"Task.env is 5, expected EnvCfg\(...\)"),
        (lambda: Task(ENV, {"iterations": 5}), r"Task.train is {'iterations': 5}, expected TrainCfg\(...\)"),
        (lambda: Task(ENV, presets=[TrainCfg()]), "Task.presets is a list, expected a dictionary of TrainCfg"),
        (lambda: Task(ENV, edits={"sac": 5}), "Task.edits.sac is 5, expected a function or a class"),
        (lambda: TrainCfg(algo="sac"), r"train.algo is 'sac', expected AlgoCfg\(...\)"),
        (lambda: EvaluationCfg(recorders=[5]), r"recorders is \[5\], expected a dictionary of RecorderTermCfg"),
        (lambda: EvaluationCfg(figures=5), "evaluation.figures is 5, expected a function or a class or None"),
        (lambda: VideoCfg(fps=0), "video.fps is 0, expected a whole number from 1 to 1000"),
        (lambda: SacCfg(gamma=math.nan), "SacCfg.gamma is nan, expected a number"),
    ],
)  # fmt: skip
def test_so_is_a_file(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TickgraphError, match=text):
        make()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("task.env.rewards = [1]", "env.rewards is [1], expected a dictionary of RewardTermCfg(...) by name"),
        ("task.env.rewards = {}", "env.rewards has no term: a policy learns nothing from rewards of 0"),
        ("task.env.rewards = dict.fromkeys(task.env.rewards)", "env.rewards has no term"),
        ("task.env.observations = [1]", "env.observations is [1], expected a dictionary of ObservationGroupCfg(...)"),
        (
            "task.env.observations['actor'].terms['cart_pos'].noise = 0.1",
            "terms.cart_pos.noise is 0.1, expected Uniform",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "describe"])
def test_every_command_says_it_in_one_line(
    tmp_path: Path, command: str, change: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.py"
    lines = ("def make():", "    task = cartpole_swingup()", f"    {change}", "    return task")
    file.write_text("from tickgraph.tasks.cartpole import cartpole_swingup\n" + "\n".join(lines))
    assert main([command, f"{file}:make"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tickgraph: ") and text in said and said.count("\n") == 1


def test_rewards_that_all_weigh_nothing_are_refused() -> None:
    task = registry.load("cartpole_swingup")
    words = [word for name in task.env.rewards for word in (f"--env.rewards.{name}.weight", "0")]
    with pytest.raises(TickgraphError, match="env.rewards has no term whose weight is not 0, and there is no curric"):
        apply_overrides(task, words)
    task = registry.load("cartpole_swingup")
    task.env.curriculum["later"] = CurriculumTermCfg(
        mdp.reward_weight, {"reward_name": "upright", "weight_stages": [{"step": 9, "weight": 1.0}]}
    )
    apply_overrides(task, words)


@pytest.mark.parametrize("value", [3.0, None, torch.tensor(1.0), torch.zeros(1, 2, 3)[0, 0]])
def test_what_a_recorder_returns_is_looked_at_before_the_training(value: object) -> None:
    task = registry.load("cartpole_swingup")
    task.evaluation.recorders["mine"] = RecorderTermCfg(lambda env: value)
    with pytest.raises(TickgraphError, match=r"^term recorders/mine returned .*, expected a tensor \(2, \.\.\.\)$"):
        check_figures(task, "mujoco")


def test_something_of_an_episode_is_left_to_judge() -> None:
    task = registry.load("cartpole_swingup")
    task.evaluation.ignore_s = task.env.episode_length_s
    with pytest.raises(
        TickgraphError, match="evaluation.ignore_s is 10, expected less than an evaluated episode, 10 s"
    ):
        evaluation_env_cfg(task)
    task.evaluation.figures = None  # said before the training, whatever is evaluated
    with pytest.raises(TickgraphError, match="evaluation.ignore_s is 10"):
        check_figures(task, "mujoco")
    task.evaluation.edit = lambda cfg: setattr(cfg, "episode_length_s", 20.0)
    assert evaluation_env_cfg(task).episode_length_s == 20.0


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has 1 GiB left."""
    monkeypatch.setattr(room, "free_memory", lambda device: 1 << 30)


def test_worlds_are_counted_before_they_are_made(small: None) -> None:
    cfg = registry.load("cartpole_swingup").env
    text = r"out of memory: an environment of 100000 worlds needs 1[0-9]\.[0-9] GiB, 1.0 GiB is free: use fewer worlds"
    with pytest.raises(TickgraphError, match=text):
        Env(cfg, num_envs=100_000, execution="eager")
    env = Env(cfg, num_envs=2, execution="eager")
    with pytest.raises(TickgraphError, match=text):
        env.sim.check_room(100_000)


def test_a_history_says_what_to_make_smaller(small: None) -> None:
    cfg = registry.load("cartpole_swingup").env
    cfg.observations["actor"].terms["cart_pos"].history_length = 10**9
    with pytest.raises(TickgraphError, match="cart_pos/history' .* GiB is free: make its history_length smaller"):
        Env(cfg, num_envs=2, execution="eager")
    cfg.observations["actor"].terms["cart_pos"].history_length = 0
    cfg.observations["actor"].terms["cart_pos"].delay_max_lag = 10**9
    with pytest.raises(TickgraphError, match="cart_pos/delay' .* GiB is free: make its delay_max_lag smaller"):
        Env(cfg, num_envs=2, execution="eager")


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        (FlashSacCfg(batch_size=2**30), "update of batch_size 1073741824 needs 2,048.0 GiB.*: make train.algo.batch"),
        (SacCfg(batch_size=2**30), "update of batch_size 1073741824 needs 6,144.0 GiB.*: make train.algo.batch"),
        (FlashSacCfg(actor_width=2**20), "a network of width 1048576 needs 8,192.0 GiB.*: make actor_width and c"),
    ],
)  # fmt: skip
def test_sizes_of_a_learner_are_named(small: None, cfg: FlashSacCfg | SacCfg, text: str) -> None:
    with pytest.raises(TickgraphError, match=text):
        make_learner(cfg, {"actor": 3, "critic": 3}, 2, 4, Arena("cpu"), 0)


def test_so_is_the_number_of_updates(small: None) -> None:
    learner = make_learner(FlashSacCfg(batch_size=8), {"actor": 3, "critic": 3}, 2, 4, Arena("cpu"), 0)
    ring = make_ring(learner, 8, 4)
    with pytest.raises(
        TickgraphError, match=r"random words for 100000000 updates .*: make train.updates_per_iteration"
    ):
        UpdateCycle(learner, ring, 10**8, "eager")


def _long(cfg: EnvCfg) -> None:
    cfg.episode_length_s = 1e12


def _selector_of_nothing(cfg: EnvCfg) -> None:
    cfg.events["joints"].params["asset_cfg"] = SceneEntityCfg("robot", joint_names="wing")


def _slow(cfg: EnvCfg) -> None:
    cfg.scene.timestep = 5.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"episode_s": 1e12}, r"^evaluation\.episode_s is 1e\+12: 5e\+13 control steps of 0\.02 s, expected at most"),
        ({"edit": _long}, r"^evaluation\.edit: env\.episode_length_s is 1e\+12: .* expected at most 1e\+08"),
        ({"edit": _slow}, r"^evaluation\.edit: env\.scene\.timestep is 5\.0, expected seconds from"),
        ({"edit": _selector_of_nothing, "figures": None, "recorders": {}}, r"'wing'"),
    ],
)
def test_what_an_evaluation_s_environment_refuses_is_refused_before_the_training(changes: dict, text: str) -> None:
    task = registry.load("cartpole_swingup")
    for name, value in changes.items():
        setattr(task.evaluation, name, value)
    with pytest.raises(TickgraphError, match=text):
        check_figures(task, "mujoco")


@pytest.mark.parametrize("worlds", ["cuda", "cpu"])
def test_a_gpu_is_asked_for_all_tensors_of_a_training_before_one_is_made(
    worlds: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**33))
    monkeypatch.setattr(trainer, "resolve_platform", lambda *given: Platform("cuda", "mujoco", worlds=worlds))
    monkeypatch.setattr(trainer, "set_precision", lambda *given: {})
    monkeypatch.setattr(trainer, "Env", lambda *given, **more: pytest.fail("the worlds were built first"))
    task = registry.load("cartpole_swingup")
    task.train.num_envs, task.train.replay_slots = 1000, 20_000
    value = describe(task)
    replay = sum(row["bytes"] for row in value["learner"] if row["name"].startswith("ring/"))
    total = value["learner_bytes"] + (value["arena_bytes"] if worlds == "cuda" else 0)
    parts = [f"1000 worlds {room.size(value['arena_bytes'])}"] if worlds == "cuda" else []
    parts += [f"a replay of 20000 slots {room.size(replay)}"]
    parts += [f"networks {room.size(value['learner_bytes'] - replay)}"]
    with pytest.raises(TickgraphError) as caught:
        trainer.Trainer(task, RunFolder(tmp_path), Interrupts(), Ending())
    line = f"out of GPU memory: training ({', '.join(parts)}) needs {room.size(total)}, 1.0 GiB is free: use fewer "
    assert str(caught.value) == line + "worlds (num_envs), or a smaller replay (replay_slots), batch or network"


def test_a_training_that_fits_and_one_whose_terms_need_values_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (2**30, 2**33))
    task, gpu = registry.load("cartpole_swingup"), Platform("cuda", "mujoco")
    task.train.num_envs, task.train.replay_slots = 1000, 4000
    check_gpu(task, gpu)
    assert asked

    class Reads:
        def __init__(self, cfg: object, env: Env, path: str) -> None:
            self.value = float(env.sim.default_qpos[0])  # of shapes alone there is none

        def __call__(self, env: Env) -> torch.Tensor:
            return env.reward + self.value

    task.train.replay_slots = 10**9
    task.env.rewards["reads"] = RewardTermCfg(Reads, 1.0)
    check_gpu(task, gpu)


def test_many_worlds_are_described_from_shapes_alone() -> None:
    task = registry.load("cartpole_swingup")
    task.train.num_envs = 10**9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value = describe(task)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (masks,) = [tensor for tensor in value["arena"] if tensor["name"] == "env/all_worlds"]
    assert masks["bytes"] == 10**9
    assert value["learner_bytes"] > 10**9 * task.train.replay_slots
    assert grown < 2**19  # KiB


def test_too_many_worlds_are_refused_before_a_tensor_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: 2**30)
    made: list[str] = []
    new = Arena.new
    monkeypatch.setattr(Arena, "new", lambda *given, **more: made.append(given[1]) or new(*given, **more))
    with pytest.raises(TickgraphError, match=r"out of memory: an environment of 100000000 worlds needs .* use fewer"):
        Env(registry.load("cartpole_swingup").env, 10**8, execution="eager")
    assert made == []


@pytest.mark.parametrize("name", ["cartpole_swingup", "g1_motion_tracking"])
@pytest.mark.parametrize("algo", ["flashsac", "sac"])
def test_every_whole_number_of_a_task_has_an_upper_bound(name: str, algo: str) -> None:
    without = []
    task = registry.load(name)
    task.use(algo)
    for setting in settings(task):
        if setting.type not in (int, int | None) or setting.path in BOUND_WHERE_THEY_ARE_USED:
            continue
        task = registry.load(name)
        task.use(algo)
        try:
            apply_overrides(task, [f"--{setting.path}", str(10**22)])
        except TickgraphError:
            continue
        without.append(setting.path)
    assert without == []
