"""Quaternions (w, x, y, z) and rotation matrices, batched over all leading dimensions."""

import torch
from torch import Tensor

_TINY = 1e-9


def normalize(q: Tensor, eps: float = _TINY) -> Tensor:
    """Return vectors or quaternions (..., D) scaled to length 1; those shorter than `eps` are divided by `eps`."""
    return q / torch.linalg.vector_norm(q, dim=-1, keepdim=True).clamp_min(eps)


def quat_mul(a: Tensor, b: Tensor) -> Tensor:
    """Return the Hamilton product a b of quaternions (..., 4): first rotate by b, then by a."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        dim=-1,
    )


def quat_conjugate(q: Tensor) -> Tensor:
    """Return the conjugate (..., 4), the inverse rotation of a unit quaternion."""
    return torch.cat((q[..., :1], -q[..., 1:]), dim=-1)


def quat_apply(q: Tensor, v: Tensor) -> Tensor:
    """Rotate vectors v (..., 3) by unit quaternions q (..., 4): from the body's frame to the world's."""
    # cross() wants both arguments with one shape where an index list or a constant is broadcast.
    w, u = q[..., :1], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    t = 2.0 * torch.linalg.cross(u, v, dim=-1)
    return v + w * t + torch.linalg.cross(u, t, dim=-1)


def quat_apply_inverse(q: Tensor, v: Tensor) -> Tensor:
    """Rotate vectors v (..., 3) by the inverse of unit quaternions q (..., 4): from the world's frame to the body's."""
    w, u = q[..., :1], q[..., 1:]
    u, v = torch.broadcast_tensors(u, v)
    t = 2.0 * torch.linalg.cross(u, v, dim=-1)
    return v - w * t + torch.linalg.cross(u, t, dim=-1)


def quat_from_euler_xyz(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Return quaternions (..., 4) of a turn by roll about x, then pitch about y, then yaw about z, fixed axes, rad."""
    cr, sr = torch.cos(roll * 0.5), torch.sin(roll * 0.5)
    cp, sp = torch.cos(pitch * 0.5), torch.sin(pitch * 0.5)
    cy, sy = torch.cos(yaw * 0.5), torch.sin(yaw * 0.5)
    return torch.stack(
        (
            cy * cp * cr + sy * sp * sr,
            cy * cp * sr - sy * sp * cr,
            cy * sp * cr + sy * cp * sr,
            sy * cp * cr - cy * sp * sr,
        ),
        dim=-1,
    )


def quat_from_yaw(yaw: Tensor) -> Tensor:
    """Return quaternions (..., 4) of a turn by yaw (...) about the z axis, rad."""
    zero = torch.zeros_like(yaw)
    return torch.stack((torch.cos(yaw * 0.5), zero, zero, torch.sin(yaw * 0.5)), dim=-1)


def yaw_of(q: Tensor) -> Tensor:
    """Return the heading (...) in (-pi, pi] of quaternions (..., 4): where the body's x axis points in the xy plane."""
    w, x, y, z = q.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def yaw_quat(q: Tensor) -> Tensor:
    """Return quaternions (..., 4) that keep only the heading of q (..., 4)."""
    return quat_from_yaw(yaw_of(q))


def quat_to_matrix(q: Tensor) -> Tensor:
    """Return rotation matrices (..., 3, 3) of unit quaternions (..., 4); columns are the body's axes in the world."""
    w, x, y, z = q.unbind(-1)
    rows = (
        1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y),
        2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x),
        2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y),
    )  # fmt: skip
    return torch.stack(rows, dim=-1).reshape(*q.shape[:-1], 3, 3)


def matrix_to_rot6(matrix: Tensor) -> Tensor:
    """Return the first two columns of matrices (..., 3, 3), row after row, as (..., 6): r00 r01 r10 r11 r20 r21."""
    return matrix[..., :2].reshape(*matrix.shape[:-2], 6)


def quat_box_minus(a: Tensor, b: Tensor) -> Tensor:
    """Return the rotation vector (..., 3), rad, world frame, that turns b into a, both unit quaternions (..., 4).

    Its length is in [0, pi]: the shorter way round.
    """
    difference = quat_mul(a, quat_conjugate(b))
    w, u = difference[..., :1], difference[..., 1:]
    # q and -q are one rotation; the one with w >= 0 is the short way.
    sign = torch.where(w < 0.0, -1.0, 1.0)
    w, u = w * sign, u * sign
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    angle = 2.0 * torch.atan2(length, w)
    return u * torch.where(length > _TINY, angle / length.clamp_min(_TINY), 2.0)


def quat_error_magnitude(a: Tensor, b: Tensor) -> Tensor:
    """Return the angle (...) in [0, pi], rad, between the rotations a and b, both unit quaternions (..., 4)."""
    return torch.linalg.vector_norm(quat_box_minus(a, b), dim=-1)
