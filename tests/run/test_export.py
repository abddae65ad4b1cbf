"""An exported policy computes what the run's does, and says all that a controller needs: one walks by it alone."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from run_toys import TASK, train

from tickgraph import Env, cli, load_task
from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.env.commands import CommandTerm
from tickgraph.env.config import ActionTermCfg, CommandTermCfg, EnvCfg, ObservationTermCfg
from tickgraph.env.scene import SceneEntityCfg
from tickgraph.learn.build import make_learner
from tickgraph.mdp import JointEffortActionCfg, JointVelocityActionCfg, observations
from tickgraph.run import export
from tickgraph.run.config import Task
from tickgraph.run.controller import controller_facts, flat_facts
from tickgraph.run.evaluate import load_policy
from tickgraph.run.files import plain
from tickgraph.run.folder import RunFolder
from tickgraph.run.session import newest_policy
from tickgraph.sim.scene import EntityCfg
from tickgraph.tasks.rebuild import task_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the runs that the tests share, one of each algorithm, each in a folder of its own."""
    runs = {algo: tmp_path_factory.mktemp(algo) for algo in ("flashsac", "sac")}
    for algo, folder in runs.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            train("a", "--iterations", "15", "--algo", algo, "--evaluation.untrained", "False")
    return runs


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_of(trained: dict[str, Path], algo: str = "flashsac") -> RunFolder:
    """Return a copy of a trained run, in this test's own folder."""
    shutil.copytree(trained[algo] / "runs", "runs")
    return RunFolder(Path("runs") / TASK / "a")


def actions_of(file: Path, obs: torch.Tensor) -> list[np.ndarray]:
    """Return the file's actions by ONNX Runtime, and by the reference that is part of ONNX."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return [each.run(["actions"], {"obs": obs.numpy()})[0] for each in (session, ReferenceEvaluator(str(file)))]


def greedy(task: Task, policy: dict[str, Any], dims: dict[str, int], actions: int) -> Callable[[torch.Tensor], Any]:
    """Return a policy's deterministic actions, by its learner."""
    arena = Arena("cpu")
    learner = make_learner(task.train.algo, dims, actions, 4, arena, 0)
    arena.seal()
    load_policy(arena, policy)
    return torch.no_grad()(lambda obs: torch.tanh(learner.gaussian(obs)[0]))


@pytest.mark.parametrize("algo", ["flashsac", "sac"])
def test_the_file_computes_what_the_run_does(
    algo: str, trained: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(trained, algo)
    assert cli.main(["export", "cartpole_swingup/a", "--json", "facts.json"]) == 0
    file = run.path / "policy.onnx"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{file}: iteration 15, obs (batch, 5) to actions (batch, 1), 50 Hz"
    assert said[1].startswith("checked with ONNX Runtime on 40 observations of its own episodes: largest difference ")
    assert "  pole_angle  1:3  joint_pos_sin_cos" in said
    model = onnx.load(file)
    onnx.checker.check_model(model)
    (given,), (made,) = model.graph.input, model.graph.output
    assert [given.name, made.name] == ["obs", "actions"]
    assert [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim] == ["batch", 5]
    task = task_of(run)
    acts = greedy(task, newest_policy(task, run)[0], {"actor": 5, "critic": 5}, 1)
    for rows in (1, 7, 1000):  # far from what the policy observes too: the normalisation is inside
        obs = 3.0 * torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows)) + 1.0
        for found in actions_of(file, obs):
            np.testing.assert_allclose(found, acts(obs).numpy(), atol=1e-5)
        assert acts(obs).abs().max() > 1e-3  # it acts
    for place in (b"export.py", b"runs/", bytes(run.path.resolve().parent.parent)):  # no path of this machine
        assert place not in file.read_bytes()
    assert model.ir_version == 8 and [entry.version for entry in model.opset_import] == [18]
    written = {entry.key: entry.value for entry in model.metadata_props}
    facts = json.loads(written["tickgraph"])
    assert facts["task"] == TASK and facts["iteration"] == 15 and facts["algo"] == algo
    assert facts["run"] == written["run_path"] == f"{TASK}/a"
    value = json.loads(Path("facts.json").read_text())
    assert {key: value[key] for key in facts} == facts
    assert value["checked"]["observations"] == 40 and value["checked"]["largest_difference"] <= export.TOLERANCE
    assert value["bytes"] == file.stat().st_size
    example = deploy()
    with pytest.raises(SystemExit, match="follows no reference"):
        example.Controller(str(file), motion="squat.npz")
    controller, sensed = example.Controller(str(file)), example.Sensed(*np.zeros((4, 4)))
    with pytest.raises(SystemExit, match="how to make 'cart_pos' by joint_pos"):
        controller.observe(sensed)
    facts["observations"][0] |= {"function": "builtin_sensor", "params": {"sensor_name": "pelvis_local_linvel"}}
    controller.facts = facts  # no gyroscope
    with pytest.raises(SystemExit, match="how to make 'cart_pos' by builtin_sensor"):
        controller.observe(sensed)


def deploy() -> Any:
    spec = importlib.util.spec_from_file_location("deploy", ROOT / "examples" / "deploy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deploy"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def begun(task: Task, dims: dict[str, int], actions: int) -> dict[str, torch.Tensor]:
    """Return a policy of a task that acts on what it observes, and was never trained."""
    arena = Arena("cpu")
    make_learner(task.train.algo, dims, actions, 1, arena, 0)
    noise = torch.Generator().manual_seed(0)
    policy = {name: arena[name].clone() for name in arena.names() if name.startswith("policy/")}
    policy["policy/parameters"] += 0.1 * torch.randn(policy["policy/parameters"].shape, generator=noise)
    return policy


@pytest.mark.parametrize("name", ["go2_walk_flat", "g1_walk_flat", "g1_motion_tracking_blind"])
def test_a_controller_that_knows_the_file_alone_does_what_the_environment_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, example = load_task(name), deploy()
    cfg, tracks = task.env, "motion" in task.env.commands
    cfg.events, cfg.episode_length_s, cfg.observations["actor"].enable_corruption = {}, 20.0, False
    task.train.algo.actor_width = task.train.algo.critic_width = 8
    if name == "go2_walk_flat":  # what no shipped task has
        terms = cfg.observations["actor"].terms
        terms["joint_vel"].clip, terms["joint_vel"].history_length = (-math.inf, 0.2), 3
        terms["joint_pos"].params = {"asset_cfg": SceneEntityCfg("robot", joint_names=("RR.*", "FL.*"))}
        cfg.actions["joint_pos"].clip = {".*calf.*": (-1.6, -1.4)}
        cfg.scene.timestep, cfg.decimation = 0.005, 4
    if tracks:
        cfg.commands["motion"].clips = ("squat",)
        assert cli.main(["motion", "convert", "squat", "squat.npz"]) == 0
    with Env(cfg, 1, "cpu", "mujoco", "eager", seed=5) as env:
        dims, actions = dict(env.observation_manager.dims), env.action_manager.total_dim
        policy = begun(task, dims, actions)
        monkeypatch.setattr(export, "newest_policy", lambda task, run: (policy, 0))
        monkeypatch.setattr(export, "STEPS", 10)
        export.export_policy(task, RunFolder(Path("runs") / name / "b"), Path("b.onnx"))
        acts = greedy(task, policy, dims, actions)
        told = {key: env.command_manager.get_command(key)[0].tolist() for key in cfg.commands if key != "motion"}
        frame = int(env.command_manager.term("motion").frame) if tracks else 1
        controller = example.Controller(
            *("b.onnx", tuple(told.get("twist", ())), told.get("gait", [0.0])[0]),
            *("squat.npz" if tracks else None, frame),
        )
        robot = example.SimulatedRobot(controller.facts)
        robot.data.qpos[:], robot.data.qvel[:] = env.sim.view("qpos")[0].numpy(), env.sim.view("qvel")[0].numpy()
        obs, moved = env.obs["actor"].clone(), 0.0
        for _ in range(12):
            np.testing.assert_allclose(controller.observe(robot.sense()), obs[0].numpy(), atol=1e-3)
            targets = controller.step(robot.sense())
            obs = env.step(acts(obs))[0]["actor"].clone()
            assert not env.done.any()
            term = env.action_manager.terms["joint_pos"]
            np.testing.assert_allclose(targets, term.processed_actions[0].numpy(), atol=1e-3)
            robot.obey(controller.actuator_names, targets)
            moved = max(moved, float(robot.sense().joint_vel.max()))
        assert moved > 0.5  # rad/s: it was no robot that stands still
    if tracks:
        with pytest.raises(SystemExit, match="has 50 frames a second, the policy takes 100; convert it with --to-fps"):
            example.Reference("squat.npz", {**controller.facts, "step_dt": 0.01})
    assert isinstance(example.main("b.onnx", seconds=0.1, motion="squat.npz" if tracks else None), float)


def test_the_go2s_damping_is_that_of_its_joints_and_gains_are_by_name() -> None:
    with Env(load_task("go2_walk_flat").env, 1, execution="eager") as env:
        facts = controller_facts(env)
    flat = flat_facts(facts)
    assert flat["joint_damping"] == ",".join(["0.5"] * 12) and flat["joint_stiffness"] == ",".join(["35"] * 12)
    assert flat["joint_names"].startswith("FL_hip_joint,FL_thigh_joint") and flat["action_scale"].startswith("0.4,")
    assert flat["default_joint_pos"] == "0,0.8,-1.5,0,0.8,-1.5,0,1,-1.5,0,1,-1.5"
    by_joint = {a["joint"]: a["force_range"] for a in facts["entities"]["robot"]["actuators"]}
    assert by_joint["FL_calf_joint"] == [-45.43, 45.43] and by_joint["FL_hip_joint"] == [-23.7, 23.7]
    assert next(c for c in facts["commands"] if c["name"] == "gait")["frequency"] == 2.0


def test_scale_clip_history_and_selection_are_said() -> None:
    cfg = load_task("g1_walk_flat").env
    cfg.observations["actor"].terms = {
        "speed": ObservationTermCfg(
            observations.base_ang_vel, scale=(0.5, 1.0, 2.0), clip=(-1.0, 1.0), history_length=3
        ),
        "ankles": ObservationTermCfg(
            observations.joint_pos_rel, {"asset_cfg": SceneEntityCfg("robot", joint_names=(".*ankle_pitch.*",))}
        ),
    }
    cfg.observations["actor"].terms["ankles"].clip = (-math.inf, 0.5)
    cfg.actions["joint_pos"].clip = {".*knee.*": (-math.inf, 1.5)}
    with Env(cfg, 1, execution="eager") as env:
        facts = plain(controller_facts(env))
    (speed, ankles), checked = facts["observations"], {"observations": 1, "largest_difference": 0.0}
    said = export.lines({**facts, "file": "a", "iteration": 1, "checked": checked})
    assert "  speed   0:9   base_ang_vel, clip -1 to 1, scale 0.5, 1, 2, last 3 frames, oldest first" in said
    assert said[-1].endswith("JointPositionAction of robot, position target = offset + scale * action, clipped")
    assert "  ankles  9:11  joint_pos_rel, clip -inf to 0.5" in said and ankles["clip"] == [None, 0.5]
    assert (speed["start"], speed["dim"], speed["history_length"]) == (0, 9, 3)
    assert speed["scale"] == [0.5, 1.0, 2.0] and speed["clip"] == [-1.0, 1.0]
    assert speed["selected"] == {"asset_cfg": {"entity": "robot"}}
    assert (ankles["start"], ankles["dim"], ankles["function"]) == (9, 2, "joint_pos_rel")
    chosen = ["left_ankle_pitch_joint", "right_ankle_pitch_joint"]
    assert ankles["selected"] == {"asset_cfg": {"entity": "robot", "joint_names": chosen}}


ARM = """<mujoco><worldbody><body name="upper">
  <joint name="shoulder" type="hinge" damping="0.1"/><geom size="0.1"/><body name="lower" pos="0 0 0.5">
  <joint name="elbow" type="hinge" damping="0.2"/><geom size="0.1"/></body></body></worldbody><actuator>
  <motor name="torque" joint="shoulder" gear="7" ctrllimited="true" ctrlrange="-1 0.5"/>
  <position name="spring" joint="elbow" kp="3" gear="2"/><velocity name="brake" joint="elbow" kv="0.5"/>
</actuator></mujoco>"""


def test_gear_limits_of_targets_and_gains_of_several_actuators_are_said() -> None:
    cfg = load_task("cartpole_swingup").env
    cfg.scene.entities = {"arm": EntityCfg(ARM)}
    arm = {"asset_cfg": SceneEntityCfg("arm")}
    for group in cfg.observations.values():
        group.terms = {"joint_pos": ObservationTermCfg(observations.joint_pos, arm)}
    cfg.rewards, cfg.events = {}, {}
    cfg.actions = {
        "torque": JointEffortActionCfg(entity_name="arm", actuator_names="torque"),
        "brake": JointVelocityActionCfg(entity_name="arm", actuator_names="brake", scale=4.0),
    }
    with Env(cfg, 1, execution="eager") as env:
        facts = controller_facts(env)
    flat, torque = flat_facts(facts), facts["entities"]["arm"]["actuators"][0]
    assert torque["gear"] == 7.0 and torque["ctrl_range"] == [-1.0, 0.5] and torque["force_range"] is None
    assert [(action["start"], action["actuator_kinds"]) for action in facts["actions"]] == [
        (0, ["motor"]),
        (1, ["velocity"]),
    ]
    # MuJoCo's force on the joint is gear * kp * (target - gear * q): 2 * 3 * 2 N m/rad.
    assert flat["joint_stiffness"] == "0,12" and flat["joint_damping"] == "0.1,0.7" and flat["action_scale"] == "1,4"


def test_the_file_tells_of_the_training_and_of_a_folder_whose_name_is_no_unicode(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, name = run_of(trained), os.fsdecode(b"caf\xe9")
    monkeypatch.chdir(run.path.rename(run.path.with_name(name)))
    task = task_of(RunFolder(Path()))

    def edit(cfg: EnvCfg) -> None:
        cfg.observations["actor"].terms["cart_vel"].scale = 0.5
        cfg.actions["force"].scale = 0.25

    task.evaluation.edit = edit
    export.export_policy(task, RunFolder(Path()), Path("policy.onnx"))
    written = {entry.key: entry.value for entry in onnx.load("policy.onnx").metadata_props}
    facts = json.loads(written["tickgraph"])
    assert [term["scale"] for term in facts["observations"]] == [1.0] * 4
    assert facts["actions"][0]["scale"] == [1.0]
    assert facts["run"] == f"{TASK}/{name}" and written["run_path"] == f"{TASK}/caf\\udce9"


@dataclass
class GoalCfg(CommandTermCfg):
    """A command that calls something else its name."""

    name: str = "goal of the day"
    radius: tuple[float, float] = (0.1, float("inf"))


class Goal(CommandTerm):
    @property
    def command(self) -> torch.Tensor:
        return self.time_left[:, None]

    def resample(self, mask: torch.Tensor) -> None:
        pass


def test_a_command_keeps_its_name_and_a_thing_without_joints_is_an_entity() -> None:
    cfg = load_task("cartpole_swingup").env
    cfg.commands = {"goal": GoalCfg(Goal)}
    box = '<mujoco><worldbody><body name="box"><freejoint/><geom size="0.1" contype="0"/></body></worldbody></mujoco>'
    cfg.scene.entities["box"] = EntityCfg(box)
    with Env(cfg, 1, execution="eager") as env:
        facts = plain(controller_facts(env))
    (command,), thing = facts["commands"], facts["entities"]["box"]
    assert (command["name"], command["function"], command["radius"]) == ("goal", "Goal", [0.1, None])
    assert thing["floating"] and thing["actuators"] == thing["joint_names"] == []
    assert flat_facts(facts)["command_names"] == "goal"


class Push:
    """An action term of an author's own, without base class or facts."""

    dim = 1

    def __init__(self, cfg: Any, env: Any, path: str) -> None:
        self.env = env

    def process(self, raw: torch.Tensor) -> None:
        self.env.sim.ctrl.copy_(raw)

    def apply(self) -> None:
        pass

    def reset(self, mask: torch.Tensor) -> None:
        pass


class Told(Push):
    def facts(self) -> Any:
        return {"scale": torch.tensor([3.0]), "shape": math.sin}


@pytest.mark.parametrize(
    ("kind", "entity", "scale"), [(Push, "robot", "1"), (Push, "absent", "1"), (Told, "robot", "3")]
)
def test_an_action_term_needs_no_base_class_and_no_facts(kind: Any, entity: str, scale: str) -> None:
    cfg = load_task("cartpole_swingup").env
    cfg.actions = {"push": ActionTermCfg(kind, entity_name=entity)}
    with Env(cfg, 1, execution="eager") as env:
        facts = controller_facts(env)
    (action,), flat = facts["actions"], flat_facts(facts)
    known = entity if entity == "robot" else None
    assert (action["function"], action["start"], action["dim"], action["entity"]) == (kind.__name__, 0, 1, known)
    assert flat["action_scale"] == scale and ("joint_names" in flat) == (known is not None)
    assert action.get("shape") == ("sin" if kind is Told else None)
    said = {"file": "a", "iteration": 1, "checked": {"observations": 1, "largest_difference": 0.0}}
    assert export.lines({**facts, **said})[-1] == f"  push  0:1  {kind.__name__}{' of robot' if known else ''}"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (None, "facts() returned NoneType, expected a dictionary of plain data"),
        ({"dim": 2}, "facts() returned 'dim', which is said of every action; choose another name"),
        ({"scale": 2.0}, "facts() returned scale 2.0, expected a list of 1 number, one a column"),
        ({"scale": [float("nan")]}, "facts() returned scale [nan], expected"),
        (1 / 3, "facts() returned float"),
        (ZeroDivisionError("none"), "facts(): ZeroDivisionError: none at facts ("),
    ],
)
def test_facts_that_say_nothing_are_refused_in_one_line(said: Any, line: str) -> None:
    class Silent(Push):
        def facts(self) -> Any:
            if isinstance(said, Exception):
                raise said
            return said

    cfg = load_task("cartpole_swingup").env
    cfg.actions = {"push": ActionTermCfg(Silent)}
    with Env(cfg, 1, execution="eager") as env, pytest.raises(TickgraphError) as error:
        controller_facts(env)
    assert str(error.value).startswith(f"term actions/push: {line}")


class Constant:
    """An observation that is an object, as an author may write one."""

    def __call__(self, env: Any, gain: float = 2.0) -> torch.Tensor:
        return torch.full((env.num_envs, 1), gain, device=env.device)


class Built(Constant):
    """One that the environment builds."""

    def __init__(self, cfg: Any, env: Any, path: str) -> None:
        pass


def table(
    env: Any, values: torch.Tensor, k: int, most: float = float("inf"), others: Any = None, shape: Any = torch.sin
) -> torch.Tensor:
    return (k * values).expand(env.num_envs, -1)


def test_terms_of_every_kind_have_names_and_numbers_and_no_address() -> None:
    cfg = load_task("cartpole_swingup").env
    row, clamp = torch.tensor([[1.0, 0.5]]), functools.partial(torch.clamp, min=0.0)
    others = {"a": (np.float32(1.5), np.array([[1, 2]])), 5: {2, 1}, "file": Path(__file__), "topic": "/imu/data"}
    cfg.observations["actor"].terms = {
        "object": ObservationTermCfg(Constant()),
        "class": ObservationTermCfg(Built),
        "method": ObservationTermCfg(Constant().__call__, {"gain": 3.0}),
        "partial": ObservationTermCfg(functools.partial(table, k=2), {"values": row}),
        "array": ObservationTermCfg(table, {"values": row, "k": 1, "others": others, "shape": clamp}),
        "large": ObservationTermCfg(table, {"values": row, "k": 1, "others": np.zeros(20_000)}),
        "lambda": ObservationTermCfg(lambda env: torch.zeros(env.num_envs, 1)),
    }
    with Env(cfg, 2, execution="eager") as env:
        terms = {term["name"]: term for term in plain(controller_facts(env))["observations"]}
        described = env.describe()["terms"]["observations"]
    functions = ["Constant", "Built", "__call__", "table", "table", "table", "<lambda>"]
    assert [term["function"] for term in terms.values()] == functions
    assert [row["function"] for row in described if row["group"] == "actor"] == functions
    assert [term["start"] for term in terms.values()] == [0, 1, 2, 3, 5, 7, 9]
    assert [terms[name]["params"] for name in ("object", "class", "method")] == [{"gain": g} for g in (2.0, 2.0, 3.0)]
    rest = {"most": None, "others": None, "shape": "sin"}
    assert terms["partial"]["params"] == {"k": 2, "values": [[1.0, 0.5]], **rest}
    assert terms["array"]["params"]["shape"] == "clamp" and terms["large"]["params"]["others"] == "20000 numbers"
    told = {"a": [1.5, [[1, 2]]], "5": [1, 2], "file": "test_export.py", "topic": "/imu/data"}
    assert terms["array"]["params"]["others"] == told


def another(width: int) -> onnx.ModelProto:
    """Return a file whose action is the sum of the magnitudes that are observed, far from the run's."""
    obs = onnx.helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, ["batch", width])
    actions = onnx.helper.make_tensor_value_info("actions", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("ReduceL1", ["obs", "axes"], ["actions"])
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    graph = onnx.helper.make_graph([node], "another", [obs], [actions], [axes])
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 18)])


def test_what_goes_wrong_is_one_line_and_leaves_the_old_file(
    trained: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(trained)
    for words, line in (
        ("export", "`tickgraph export` needs RUN; see `tickgraph export --help`"),
        ("export b", "there is no run 'b'"),
        (
            "export cartpole_swingup/a --onnx absent/a.onnx",
            "could not write absent/a.onnx: there is no folder absent; make it",
        ),
        ("export cartpole_swingup/a --onnx .", "could not write .: it is a folder; name a file"),
        ("export cartpole_swingup/a --onnx b --json ./b", "--json names b, which is the policy's file; name another"),
        (
            "export cartpole_swingup/a --json runs/cartpole_swingup/a/policy.onnx",
            "--json names runs/cartpole_swingup/a/policy.onnx, which is the policy's file; name another",
        ),
        ("export cartpole_swingup/a --epizodes 3", "has no option --epizodes"),
    ):
        assert cli.main(words.split()) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert line in said
    file = run.path / "policy.onnx"
    file.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(export, "_model", lambda network, width: another(width))
        assert cli.main(["export", "cartpole_swingup/a"]) == 2
    assert "differs by" in capsys.readouterr().err and file.read_bytes() == b"old"
    policy, iteration = newest_policy(task_of(run), run)
    policy["policy/parameters"][-1] = math.inf  # of the deviation, which no deterministic action shows
    with monkeypatch.context() as patch:
        patch.setattr(export, "newest_policy", lambda task, run: (policy, iteration))
        assert cli.main(["export", "cartpole_swingup/a"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "has numbers that are not finite, in policy/parameters: nothing to export" in said
    assert file.read_bytes() == b"old"
    for saved in (run.path / "checkpoints").iterdir():
        saved.unlink()
    assert cli.main(["export", "cartpole_swingup/a"]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_machine_without_the_extra_is_told_how_to_get_it(trained: dict[str, Path]) -> None:
    run = run_of(trained)
    blocked = (
        "import sys; sys.modules['onnxscript'] = None; from tickgraph.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", blocked, "export", str(run.path)], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"'onnxscript' is not installed in this Python; run: pip install -e '{ROOT}[export]'" in done.stderr
