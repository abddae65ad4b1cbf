"""Terminations at and around their limits."""

import math
from types import SimpleNamespace

import torch
from mdp_toys import fake_env, force_sensor, robot_env

from tickgraph import mdp


def test_time_out_says_that_it_is_one():
    env = SimpleNamespace(episode_length=torch.tensor([4, 5, 6]), max_episode_length=5)
    assert mdp.time_out(env).tolist() == [False, True, True]
    assert mdp.time_out.is_time_out
    assert robot_env().termination_manager.is_time_out == {"time_out": True}


def test_tilt_and_height():
    def gravity(tilt):
        return [math.sin(tilt), 0.0, -math.cos(tilt)]

    env = fake_env(
        projected_gravity_b=torch.tensor([gravity(1.0), gravity(1.1), gravity(3.0)]),
        root_link_pos_w=torch.tensor([[0.0, 0, 0.31], [0, 0, 0.29], [0, 0, -1.0]]),
    )
    assert mdp.bad_orientation(env, 1.05).tolist() == [False, True, True]
    assert mdp.root_height_below_minimum(env, 0.3).tolist() == [False, True, True]


def test_joints_and_contacts():
    env = fake_env(
        joint_pos=torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, -1.0]]),
        joint_vel=torch.tensor([[9.0, 0.0], [0.0, -11.0], [0.0, 0.0]]),
        soft_joint_pos_limits=torch.tensor([[-0.9, 0.9], [-0.9, 0.9]]),
        sensors={"trunk": force_sensor((0, 0, 0), (0, 0, 0.5), (0, 2.0, 0))},
    )
    assert mdp.joint_pos_out_of_limit(env).tolist() == [False, True, True]
    assert mdp.joint_pos_out_of_manual_limit(env, (-2.0, 0.7)).tolist() == [False, True, False]
    assert mdp.joint_vel_out_of_manual_limit(env, 10.0).tolist() == [False, True, False]
    assert mdp.illegal_contact(env, ("trunk",)).tolist() == [False, False, True]
