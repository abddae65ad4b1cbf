"""Metrics by hand."""

from types import SimpleNamespace

import pytest
import torch
from mdp_toys import fake_env, force_sensor

from tickgraph import mdp


def test_errors_against_the_command():
    env = fake_env(
        commands={"twist": torch.tensor([[1.0, 0.5, -0.5]])},
        root_link_lin_vel_b=torch.tensor([[0.7, 0.1, 9.0]]),
        root_link_ang_vel_b=torch.tensor([[9.0, 9.0, 0.25]]),
    )
    assert mdp.lin_vel_error(env, "twist").tolist() == pytest.approx([0.5])
    assert mdp.yaw_rate_error(env, "twist").tolist() == pytest.approx([0.75])


def test_saturation_and_air():
    env = SimpleNamespace(action_manager=SimpleNamespace(action=torch.tensor([[0.96, -1.0, 0.5, 0.0]])))
    assert mdp.action_saturation(env).tolist() == pytest.approx([0.5])
    env = fake_env(sensors={"l": force_sensor((0, 0, 9.0)), "r": force_sensor((0, 0, 0.5))})
    assert mdp.air_share(env, ("l", "r")).tolist() == pytest.approx([0.5])
