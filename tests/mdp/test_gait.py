"""The gait clock at points that can be checked by hand."""

import math

import torch

from tickgraph.mdp.gait import cycle_fraction, gait_foot_height, wrap_to_pi


def test_foot_height_at_hand_checked_points():
    # x = (phase + pi) / 2 pi. At x = 1/8: t = 1/4, t^3 + 3 t^2 (1 - t) = 1/64 + 9/64 = 10/64.
    phase = torch.tensor([-math.pi, -0.75 * math.pi, -0.5 * math.pi, 0.0, 0.5 * math.pi, 0.75 * math.pi])
    expected = torch.tensor([0.0, 0.09 * 10 / 64, 0.045, 0.09, 0.045, 0.09 * 10 / 64])
    torch.testing.assert_close(gait_foot_height(phase, 0.09), expected, atol=1e-7, rtol=0)


def test_foot_height_does_not_depend_on_full_turns():
    phase = torch.linspace(-3.0, 3.0, 13)
    torch.testing.assert_close(
        gait_foot_height(phase + 2 * math.pi, 0.1), gait_foot_height(phase, 0.1), atol=1e-6, rtol=0
    )


def test_feet_half_a_cycle_apart_share_the_height():
    phase = torch.linspace(-3.0, 3.0, 13)
    torch.testing.assert_close(
        gait_foot_height(phase, 0.09) + gait_foot_height(wrap_to_pi(phase + math.pi), 0.09), torch.full((13,), 0.09)
    )


def test_wrap_and_cycle():
    angle = torch.tensor([0.0, 3.0, 4.0, -4.0, 7.0])
    turn = 2 * math.pi
    torch.testing.assert_close(wrap_to_pi(angle), torch.tensor([0.0, 3.0, 4.0 - turn, turn - 4.0, 7.0 - turn]))
    torch.testing.assert_close(
        cycle_fraction(torch.tensor([0.0, math.pi / 2, -math.pi / 2])), torch.tensor([0.0, 0.25, 0.75])
    )
