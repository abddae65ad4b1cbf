"""How motion tracking is judged and configured: figures of made-up episodes, the table, the plot, clips by name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tracking_toys import motion_of, write_clips

from tickgraph import cli
from tickgraph.core.errors import TickgraphError
from tickgraph.env.env import Env
from tickgraph.run import plot
from tickgraph.run.evaluate import EvalTrace, evaluation_env_cfg
from tickgraph.run.plot import save_figure
from tickgraph.run.session import figures_table
from tickgraph.run.settings import apply_overrides, read_config, write_config
from tickgraph.tasks.registry import load
from tickgraph.tasks.tracking_figures import CURVES, TrackingReport, tracking_figures

STEPS, DT = 6, 0.02


def made_up() -> EvalTrace:
    """Three worlds: clip 0 of 5 frames is lasted, clip 1 of 7 frames is lasted once and lost in step 2 once."""
    lengths = torch.tensor([4, 6, 2])
    counted = torch.arange(STEPS)[:, None] < lengths
    clip = torch.tensor([[0, 5], [1, 7], [1, 7]]).expand(STEPS, 3, 2).clone()
    clip[4:, 0, 0] = 1  # what a world does after its episode is not looked at
    level = torch.tensor([0.1, 0.2, 0.4])[:, None]
    joint = (level * torch.tensor([1.0, 3.0])).expand(STEPS, 3, 2).clone()
    body = (level * torch.tensor([1.0, 2.0, 3.0])).expand(STEPS, 3, 3).clone()
    offset = torch.zeros(STEPS, 3, 3)
    offset[:, 0, 0] = 0.01 * (torch.arange(STEPS) + 1)  # drifts by 1 cm a step
    offset[:, 1, 2] = -0.5  # too low, but at its place
    for signal in (joint, body, offset):
        signal[~counted] = 100.0
    signals = {
        "clip": clip,
        "joint_error": joint,
        "body_error": body,
        "body_error_from_root": body / 2,
        "anchor_offset": offset,
    }
    survived = torch.tensor([True, True, False])
    return EvalTrace(DT, counted, survived, ~survived & False, torch.zeros(3), lengths, signals)


def library() -> SimpleNamespace:
    motion = SimpleNamespace(
        library=SimpleNamespace(
            clip_names=("short", "long", "unplayed"),
            lengths=(5, 7, 9),
            body_names=("pelvis", "torso", "foot"),
            joint_names=("hip", "knee"),
        )
    )
    return SimpleNamespace(command_manager=SimpleNamespace(term={"motion": motion}.__getitem__))


def test_figures_by_hand():
    assert tracking_figures(made_up()) == pytest.approx(
        {
            "success": 2 / 3,
            "played": (1 + 1 + 2 / 6) / 3,
            "body_error": (0.2 + 0.4 + 0.8) / 3,
            "body_error_from_root": (0.1 + 0.2 + 0.4) / 3,
            "joint_error": (0.2 + 0.4 + 0.8) / 3,
            "anchor_error": (0.025 + 0.5 + 0.0) / 3,
            "anchor_drift": (0.04 + 0.0 + 0.0) / 3,
        },
        rel=1e-5,
    )


def test_the_report_of_each_clip(tmp_path):
    report = TrackingReport("motion")
    value = report.make(made_up(), library())
    json.dumps(value, allow_nan=False)
    short, long, unplayed = value["clips"]
    assert (short["clip"], short["episodes"], short["success"], short["played"]) == ("short", 1, 1.0, 1.0)
    assert (long["episodes"], long["success"]) == (2, 0.5) and long["played"] == pytest.approx(4 / 6)
    assert short["clip_s"] == pytest.approx(0.08) and long["clip_s"] == pytest.approx(0.12)
    assert short["bodies"]["foot"] == pytest.approx({"body_error": 0.3, "body_error_from_root": 0.15})
    assert long["joints"] == pytest.approx({"hip": 0.3, "knee": 0.9})
    assert unplayed["episodes"] == 0 and unplayed["success"] is None and unplayed["curves"]["seconds"] == []
    # Over time: the mean over the episodes that still go on. Both of the long clip's play steps 1 and 2.
    assert long["curves"]["seconds"] == pytest.approx([0.02 * k for k in range(1, 7)])
    assert long["curves"]["body_error"] == pytest.approx([0.6, 0.6, 0.4, 0.4, 0.4, 0.4])
    assert short["curves"]["anchor_error"] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    lines = report.lines(value)
    assert lines[0].split()[:5] == ["clip", "s", "episodes", "success", "played"]
    assert lines[1].split() == ["short", "0.1", "1", "100%", "100%", "0.200", "0.100", "0.200", "0.025", "0.040"]
    assert lines[3].split() == ["unplayed", "0.2", "0", *["-"] * 7]
    assert lines[4].startswith("note: 1 of 3 clips had no episode and are in no figure: an evaluation plays each clip")
    value["clips"].pop()
    assert not [line for line in report.lines(value) if "note" in line]
    path = report.plot(value, "a title", tmp_path)
    assert path.name == "tracking.png" and path.read_bytes()[:4] == b"\x89PNG"


def test_names_of_clips_are_drawn_as_they_are(tmp_path, monkeypatch, recwarn):
    drawn = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: (drawn.append(figure), save_figure(figure, path))[1])
    curves = {"seconds": [0.02, 0.04]} | dict.fromkeys(CURVES, [0.1, 0.2])
    names = ["_hidden", "$x^{2$", "走"]
    report = {"clips": [{"clip": name, "curves": curves} for name in names]}
    assert TrackingReport("motion").plot(report, "a title", tmp_path).stat().st_size > 1000
    for axes in drawn[0].axes:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_an_evaluation_without_its_command_is_one_line():
    task = load("g1_motion_tracking")
    task.env.commands["dance"] = task.env.commands.pop("motion")
    with pytest.raises(TickgraphError, match="judges the motion command 'motion', but the task's commands are dance;"):
        evaluation_env_cfg(task)


def test_a_report_is_no_row_of_the_table():
    lines = figures_table({"trained": {"survival": 1.0, "report": {"clips": []}}})
    assert len(lines) == 2 and "survival" in lines[1]


def test_evaluation_plays_every_clip_from_its_first_frame_to_its_last(tmp_path):
    task = load("g1_motion_tracking")
    task.env.commands["motion"].clips = write_clips(tmp_path, [5, 9, 7])
    task.env.commands["motion"].truncate_on_clip_end = False
    cfg = evaluation_env_cfg(task)
    env = Env(cfg, 5, execution="eager", seed=1)
    motion = motion_of(env)
    assert motion.clip.tolist() == [0, 1, 2, 0, 1] and motion.frame.tolist() == [1] * 5
    assert env.max_episode_length == 9 and motion.rewrite is None
    assert env.observation_manager.groups["actor"]["joint_vel"].noise is None
    # Starts keep their noise, so that episodes of one clip differ.
    assert not torch.equal(env.sim.view("qpos")[0], env.sim.view("qpos")[3])
    assert task.env.commands["motion"].sampler.mode == "adaptive"  # the task itself is as it was
    env.tick()
    shapes = {name: tuple(env.recorder_manager[name].shape) for name in env.recorder_manager.names}
    assert shapes == {
        **{"clip": (5, 2), "joint_error": (5, 29), "body_error": (5, 14), "body_error_from_root": (5, 14)},
        "anchor_offset": (5, 3),
    }
    assert env.recorder_manager["clip"].tolist() == [[0, 5], [1, 9], [2, 7], [0, 5], [1, 9]]
    # What is recorded is what the state was judged by: means over bodies and joints are the metrics.
    errors = motion.errors
    anchor = env.recorder_manager["anchor_offset"].norm(dim=1)
    alive = ~env.done
    torch.testing.assert_close(anchor[alive], errors[alive, 0])
    torch.testing.assert_close(env.recorder_manager["joint_error"].mean(dim=1)[alive], errors[alive, -2])
    whole, from_root = (env.recorder_manager[f"body_error{name}"][alive] for name in ("", "_from_root"))
    assert from_root[:, 0].abs().max() < 1e-6  # the pelvis is the root
    assert (whole[:, 0] > 0.0).all()


# Clips by name --------------------------------------------------------------------------------------------------------


def test_clips_are_chosen_on_the_command_line_and_kept_by_their_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clips(tmp_path, [5])
    task = load("g1_motion_tracking")
    apply_overrides(task, ["--env.commands.motion.clips", "walk", "clip00.npz"])
    assert task.env.commands["motion"].clips == ("walk", str(tmp_path / "clip00.npz"))
    write_config(tmp_path / "config.yaml", task)
    assert read_config(tmp_path / "config.yaml")["env"]["commands"]["motion"]["clips"][1] == str(
        tmp_path / "clip00.npz"
    )
    monkeypatch.chdir("/")
    env = Env(task.env, 2, execution="eager")
    assert motion_of(env).library.clip_names == ("walk", "clip00")


def test_a_folders_weight_is_that_of_each_of_its_clips(tmp_path):
    (tmp_path / "mine").mkdir()
    write_clips(tmp_path / "mine", [5, 9])
    task = load("g1_motion_tracking")
    words = f"--env.commands.motion.clips squat {tmp_path}/mine --env.commands.motion.weights 1 3"
    apply_overrides(task, [*words.split(), "--env.commands.motion.sampler.mode", "start"])
    motion = motion_of(Env(task.env, 2, execution="eager"))
    shares = motion.sampler.probabilities()[motion.sampler.bin_start == 0]
    torch.testing.assert_close(shares, torch.tensor([1.0, 3.0, 3.0]) / 7.0)
    # An evaluation plays every clip as often, and may play others than the run's.
    task.env.commands["motion"].clips = ("walk", "turn", "squat")
    assert motion_of(Env(evaluation_env_cfg(task), 4, execution="eager")).clip.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--env.commands.motion.clips", "sqat"], "there is no clip and no file 'sqat'; did you mean 'squat'?"),
        (["--env.commands.motion.clips"], "clips is empty"),
        (["--env.commands.motion.clips", "squat", ""], "'' names no clip"),
        (["--env.commands.motion.clip", "walk"], "did you mean 'clips'"),
        (["--env.commands.motion.sampler.mode", "adaptiv"], "expected one of uniform, start, each, adaptive"),
    ],
)
def test_a_wrong_choice_is_one_line(words, reason):
    with pytest.raises(TickgraphError) as error:
        apply_overrides(load("g1_motion_tracking"), words)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"anchor_body_name": "torso"}, "'torso', which is not tracked; did you mean 'torso_link'"),
        ({"body_names": ("pelvis", "torso_lnk")}, "no body of entity 'robot' matches 'torso_lnk'"),
        ({"body_names": ()}, "body_names is empty"),
        ({"pose_range": {"yew": (0.0, 1.0)}}, "no axis 'yew'; did you mean 'yaw'"),
        ({"joint_position_range": (0.1, -0.1)}, "expected two finite numbers, low <= high"),
        (
            {"joint_position_range": (float("nan"), 0.1)},
            "(nan, 0.1), expected two finite numbers, low <= high",
        ),
        ({"velocity_range": {"x": (0.0, float("inf"))}}, "velocity_range.x is (0.0, inf)"),
        ({"resampling_time_range": (1.0, 2.0)}, "leave it out"),
        ({"weights": (1.0,)}, "weights is 1, expected 2, one for each of clips"),
        ({"weights": (1.0, 0.0)}, "weights is 1, 0, expected 2, one for each of clips, more than 0; leave out a clip"),
        ({"weights": (1.0, float("inf"))}, "weights is 1, inf, expected 2"),
    ],
)
def test_what_a_motion_cannot_be_is_one_line(change, reason):
    cfg = load("g1_motion_tracking").env
    for name, value in change.items():
        setattr(cfg.commands["motion"], name, value)
    with pytest.raises(TickgraphError) as error:
        Env(cfg, 2, execution="eager")
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["anchor_pos", "anchor_ori", "ee_body_pos"])
def test_a_distance_that_every_state_exceeds_is_refused(name):
    cfg = load("g1_motion_tracking").env
    cfg.terminations[name].params["threshold"] = -0.5
    with pytest.raises(TickgraphError, match=f"{name}: threshold is -0.5, expected a finite number of at least 0"):
        Env(cfg, 2, execution="eager")


def test_training_on_a_clip_of_one_frame_is_refused_in_one_line(tmp_path, capsys):
    """Case G02 d: the first row of a retargeted motion alone."""
    row = np.zeros(36)
    row[2], row[6], row[7 + 3] = 0.78, 1.0, 0.5
    file = tmp_path / "one.csv"
    file.write_text(",".join(f"{value:.9f}" for value in row) + "\n")
    words = ["train", "g1_motion_tracking", "--env.commands.motion.clips", str(file), "--runs", str(tmp_path / "runs")]
    assert cli.main([*words, "--num-envs", "2", "--device", "cpu"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1 and "one.csv holds 1 frame at 50 fps; a clip needs at least 2" in lines[0]
