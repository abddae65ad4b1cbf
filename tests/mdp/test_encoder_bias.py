"""Encoders that read too much: drawn by world and joint, seen where an observation asks for it, and nowhere else."""

import pytest
import torch
from mdp_toys import JOINT_POS, robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EventTermCfg, ObservationGroupCfg, ObservationTermCfg, SceneEntityCfg

HALF = 0.01


def biased_env(worlds=64, seed=0, mode="startup", **params):
    """Return an environment whose actor reads its encoders and whose critic knows the truth."""
    seen = {
        "actor": ObservationGroupCfg(
            {
                "joint_pos": ObservationTermCfg(mdp.joint_pos, {"biased": True}),
                "joint_pos_rel": ObservationTermCfg(mdp.joint_pos_rel, {"biased": True}),
            }
        ),
        "critic": ObservationGroupCfg({"joint_pos": ObservationTermCfg(mdp.joint_pos)}),
    }
    event = EventTermCfg(mdp.randomize_encoder_bias, mode, {"bias_range": (-HALF, HALF), **params})
    return robot_env(worlds, seed, events={"encoder_bias": event}, observations=seen)


def test_the_actor_reads_what_the_encoders_say_and_the_critic_the_truth():
    env = biased_env()
    bias = env.arena["scene/robot/encoder_bias"]
    assert bias.shape == (64, 2) and bias.abs().max() <= HALF and bias.abs().max() > 0.9 * HALF
    assert bias.std(dim=0).min() > 0.4 * HALF and (bias[:, 0] != bias[:, 1]).all()
    start = torch.tensor([list(JOINT_POS.values())])
    torch.testing.assert_close(env.obs["critic"], start.expand(64, 2))
    before = bias.clone()
    for _ in range(5):  # beyond the end of an episode, which is three steps long
        env.step(torch.zeros(64, 2))
        truth = env.sim.view("qpos")[:, 7:]
        assert torch.equal(env.obs["critic"], truth)
        assert torch.equal(env.obs["actor"], torch.cat((truth + bias, truth + bias - start), dim=1))
        assert torch.equal(bias, before)  # a robot keeps its encoders


def test_a_draw_belongs_to_seed_and_world():
    bias = {n: biased_env(n).arena["scene/robot/encoder_bias"] for n in (4, 8)}
    assert torch.equal(bias[4], bias[8][:4])
    other = biased_env(4, seed=1).arena["scene/robot/encoder_bias"]
    assert (other != bias[4]).all()


def test_it_survives_a_checkpoint():
    env = biased_env(4)
    for _ in range(2):
        env.step(0.1 * torch.ones(4, 2))
    saved = {name: value.clone() for name, value in env.state_dict().items()}
    again = biased_env(4, seed=7)
    again.load_state_dict(saved)
    for _ in range(4):
        given, expected = (one.step(0.1 * torch.ones(4, 2))[0]["actor"] for one in (again, env))
        assert torch.equal(given, expected)
    assert torch.equal(again.arena["scene/robot/encoder_bias"], saved["arena/scene/robot/encoder_bias"])


def test_joints_that_are_not_chosen_read_the_truth():
    bias = biased_env(8, asset_cfg=SceneEntityCfg("robot", joint_names="b")).arena["scene/robot/encoder_bias"]
    assert (bias[:, 0] == 0.0).all() and (bias[:, 1] != 0.0).all()


def test_at_a_reset_only_worlds_that_begin_an_episode_get_other_encoders():
    env = biased_env(4, mode="reset")
    bias, before = env.arena["scene/robot/encoder_bias"], env.arena["scene/robot/encoder_bias"].clone()
    env.rng.advance()
    env.event_manager.apply("reset", torch.tensor([True, False, True, False]))
    assert torch.equal(bias[1::2], before[1::2]) and (bias[::2] != before[::2]).all()


def test_without_an_event_encoders_are_true_and_who_does_not_ask_has_none():
    seen = {"actor": ObservationGroupCfg({"joint_pos": ObservationTermCfg(mdp.joint_pos, {"biased": True})})}
    env = robot_env(2, observations=seen)
    assert torch.equal(env.obs["actor"], env.sim.view("qpos")[:, 7:])
    assert "scene/robot/encoder_bias" not in robot_env(2).arena


def test_nothing_blocks_compilation_and_a_wrong_range_is_one_line():
    assert biased_env(2).blockers() == []
    with pytest.raises(
        TickgraphError,
        match=r"events/encoder_bias: bias_range is \(0.1, 0.0\), expected two finite numbers, low <= high",
    ):
        biased_env(2, bias_range=(0.1, 0.0))
