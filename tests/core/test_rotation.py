"""Rotations against hand-checked values and against matrices."""

import math

import torch

from tickgraph.core import rotation as R


def random_quats(n: int) -> torch.Tensor:
    return R.normalize(torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64))


def test_quarter_turn_about_z():
    q = R.quat_from_yaw(torch.tensor(math.pi / 2))
    x = torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(R.quat_apply(q, x), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(R.quat_apply_inverse(q, x), torch.tensor([0.0, -1.0, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(R.yaw_of(q), torch.tensor(math.pi / 2))
    matrix = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(R.quat_to_matrix(q), matrix, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        R.matrix_to_rot6(matrix), torch.tensor([0.0, -1.0, 1.0, 0.0, 0.0, 0.0]), atol=1e-6, rtol=0
    )


def test_apply_and_product_agree_with_matrices():
    a, b = random_quats(32), random_quats(33)[:32]
    v = torch.randn(32, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ma, mb = R.quat_to_matrix(a), R.quat_to_matrix(b)
    torch.testing.assert_close(R.quat_apply(a, v), (ma @ v[..., None])[..., 0])
    torch.testing.assert_close(R.quat_apply_inverse(a, v), (ma.mT @ v[..., None])[..., 0])
    torch.testing.assert_close(R.quat_to_matrix(R.quat_mul(a, b)), ma @ mb)
    torch.testing.assert_close(R.quat_to_matrix(R.quat_conjugate(a)), ma.mT)


def test_leading_dimensions_broadcast():
    q, v = random_quats(5)[:, None, :], torch.ones(3, dtype=torch.float64)
    assert R.quat_apply(q, v).shape == (5, 1, 3)
    assert R.quat_apply(q.expand(5, 7, 4), torch.ones(7, 3, dtype=torch.float64)).shape == (5, 7, 3)
    assert R.quat_mul(q, random_quats(4)).shape == (5, 4, 4)


def test_euler_is_yaw_after_pitch_after_roll():
    roll, pitch, yaw = torch.tensor(0.3), torch.tensor(-0.5), torch.tensor(2.0)
    zero = torch.tensor(0.0)
    parts = [R.quat_from_euler_xyz(zero, zero, yaw), R.quat_from_euler_xyz(zero, pitch, zero)]
    composed = R.quat_mul(R.quat_mul(parts[0], parts[1]), R.quat_from_euler_xyz(roll, zero, zero))
    whole = R.quat_from_euler_xyz(roll, pitch, yaw)
    torch.testing.assert_close(whole, composed)
    torch.testing.assert_close(R.yaw_of(whole), yaw)
    torch.testing.assert_close(R.yaw_quat(whole), R.quat_from_yaw(yaw))


def test_box_minus_is_the_rotation_vector():
    axis = torch.tensor([0.6, 0.0, 0.8])
    for angle in (0.0, 1e-4, 1.0, 3.0):
        q = torch.cat((torch.tensor([math.cos(angle / 2)]), math.sin(angle / 2) * axis))
        base = random_quats(1)[0].float()
        turned = R.quat_mul(q, base)
        torch.testing.assert_close(R.quat_box_minus(turned, base), angle * axis, atol=1e-5, rtol=0)
        torch.testing.assert_close(R.quat_box_minus(-turned, base), angle * axis, atol=1e-5, rtol=0)
        torch.testing.assert_close(R.quat_error_magnitude(turned, base), torch.tensor(angle), atol=1e-5, rtol=0)


def test_normalize_survives_zero():
    assert R.normalize(torch.zeros(2, 4)).eq(0.0).all()
    torch.testing.assert_close(R.normalize(torch.tensor([3.0, 0.0, 4.0])), torch.tensor([0.6, 0.0, 0.8]))
