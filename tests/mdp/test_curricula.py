"""Curricula against the rule by hand."""

from types import SimpleNamespace

import pytest
import torch
from mdp_toys import robot_env

from tickgraph import mdp
from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import CurriculumTermCfg, RewardTermCfg

PARAMS = {"initial": 0.1, "low": 0.05, "high": 0.11, "level_down": 150.0, "level_up": 750.0, "degree": 0.01}


def penalty_scale(**params):
    """Return the term and a stand-in for its environment: weights 2, -4 and -0.5, a window of 4 episodes, 8 worlds."""
    rewards = {name: RewardTermCfg(None, weight) for name, weight in (("a", 2.0), ("b", -4.0), ("c", -0.5))}
    env = SimpleNamespace(
        num_envs=8,
        arena=Arena("cpu"),
        cfg=SimpleNamespace(rewards=rewards),
        episode_length=torch.zeros(8, dtype=torch.int64),
        stats=SimpleNamespace(start_length=torch.zeros(8, dtype=torch.int64)),
        reward_manager=SimpleNamespace(weights=torch.zeros(3)),
    )
    params = {**PARAMS, "window": 4.0, **params}
    term = mdp.penalty_scale(SimpleNamespace(params=params), env, "curriculum/penalty_scale")

    def end(lengths):
        env.episode_length[:] = 0
        env.episode_length[: len(lengths)] = torch.tensor(lengths)
        mask = torch.tensor([True] * len(lengths) + [False] * (8 - len(lengths)))
        return float(term(env, mask, **params))

    return term, env, end


def test_average_and_scale_follow_the_rule():
    term, env, end = penalty_scale()
    assert end([]) == pytest.approx(0.1)
    torch.testing.assert_close(env.reward_manager.weights, torch.tensor([2.0, -0.4, -0.05]))
    assert end([800]) == pytest.approx(0.1)  # average 200, between the levels
    assert float(term.average) == pytest.approx(200.0)
    assert end([10, 30]) == pytest.approx(0.099)  # 200 + 2/4 * (20 - 200) = 110
    assert float(term.average) == pytest.approx(110.0)
    assert end([]) == pytest.approx(0.099)  # no episode ended, nothing changes
    assert end([1000] * 8) == pytest.approx(0.099 * 1.01)  # more episodes than the window: their mean alone
    assert float(term.average) == pytest.approx(1000.0)
    torch.testing.assert_close(
        env.reward_manager.weights, torch.tensor([2.0, -4.0, -0.5]) * torch.tensor([1.0, 0.09999, 0.09999])
    )


def test_scale_stays_within_its_limits():
    _, _, end = penalty_scale()
    assert [end([1000] * 4) for _ in range(20)][-1] == pytest.approx(0.11)
    assert [end([10] * 4) for _ in range(200)][-1] == pytest.approx(0.05)


def test_only_played_steps_count():
    term, env, end = penalty_scale()
    env.stats.start_length[0] = 790  # training began in the middle of this episode
    end([800])
    assert float(term.average) == pytest.approx(2.5)


def test_the_first_reset_counts_no_episode():
    env = robot_env(
        rewards={"alive": RewardTermCfg(mdp.alive, 1.0), "rate": RewardTermCfg(mdp.action_rate_l2, -2.0)},
        curriculum={"penalty": CurriculumTermCfg(mdp.penalty_scale, {**PARAMS, "window": 4.0})},
    )
    assert env.reward_manager.weights.tolist() == pytest.approx([1.0, -0.2])
    for _ in range(3):
        env.step(torch.zeros(4, 2))
    assert float(env.curriculum_manager.term("penalty").average) == pytest.approx(3.0)
    assert env.reward_manager.weights.tolist() == pytest.approx([1.0, -2.0 * 0.099])


def test_stages_by_tick():
    env = robot_env(
        rewards={"alive": RewardTermCfg(mdp.alive, 1.0)},
        commands={"twist": mdp.UniformVelocityCommandCfg(ranges=mdp.VelocityRanges((-1, 1), (-1, 1), (-1, 1)))},
        curriculum={
            "weight": CurriculumTermCfg(
                mdp.reward_weight,
                {"reward_name": "alive", "weight_stages": [{"step": 4, "weight": 5.0}, {"step": 2, "weight": 3.0}]},
            ),
            "ranges": CurriculumTermCfg(
                mdp.commands_vel,
                {
                    "command_name": "twist",
                    "velocity_stages": [{"step": 3, "lin_vel_x": (-2.0, 3.0), "lin_vel_y": None}],
                },
            ),
        },
    )
    weights, ranges = [], []
    for _ in range(4):
        env.step(torch.zeros(4, 2))
        weights.append(env.reward_manager.weights.tolist()[0])
        ranges.append(env.command_manager.term("twist").ranges[0].tolist())
    assert weights == [1.0, 3.0, 3.0, 5.0]
    assert ranges == [[-1.0, 1.0], [-1.0, 1.0], [-2.0, 3.0], [-2.0, 3.0]]


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ((3, (0.0, 1.0)), r"velocity_stages\[1\] is \(3, \(0.0, 1.0\)\), expected a dictionary of step, lin_vel_x, "),
        ({"step": 3, "lin_vel": (0.0, 1.0)}, r"velocity_stages\[1\] names 'lin_vel'; expected step, lin_vel_x, "),
        ({"lin_vel_x": (0.0, 1.0)}, r"velocity_stages\[1\] names no step"),
        ({"step": -1, "lin_vel_x": (0.0, 1.0)}, r"velocity_stages\[1\]: step is -1, expected a whole number"),
        ({"step": 3, "lin_vel_x": (1.0, 0.0)}, r"velocity_stages\[1\]: lin_vel_x is \(1.0, 0.0\), expected two finite"),
    ],
)
def test_stages_say_what_is_wrong_with_them(stage, text):
    params = {"command_name": "twist", "velocity_stages": [{"step": 0}, stage]}
    with pytest.raises(TickgraphError, match=text):
        robot_env(
            commands={"twist": mdp.UniformVelocityCommandCfg()},
            curriculum={"ranges": CurriculumTermCfg(mdp.commands_vel, params)},
        )


def test_a_stage_of_a_weight_says_which():
    params = {"reward_name": "alive", "weight_stages": [{"step": 3}]}
    with pytest.raises(TickgraphError, match="weight_stages names no weight from step 3 on; add it"):
        robot_env(
            rewards={"alive": RewardTermCfg(mdp.alive, 1.0)},
            curriculum={"weight": CurriculumTermCfg(mdp.reward_weight, params)},
        )
