"""A robot's kinematic tree: poses and velocities of all its bodies, for many frames at once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.core.rotation import normalize, quat_apply, quat_mul
from tickgraph.robots.build import read_description
from tickgraph.robots.g1 import FOOT_BODIES, FOOT_GEOMS


class Skeleton:
    """A floating base and hinge joints, one or none for each body. All tensors are float64 on the CPU.

    T frames, B bodies (the first is the root), J joints, in the order of the description, which is that of the model.

    Args:
        description: a robot description of ours, as `read_description` returns it.
        foot_bodies: names of the feet.
        foot_geoms: names of the capsules that are their soles.

    Attributes:
        body_names, joint_names: B and J names.
        parents: for each body the index of its parent, -1 for the root.
        joint_of: for each body the index of the joint that moves it, -1 for none.
        joint_range: (J, 2) rad.
        feet: index of each foot's body.
        soles: for each foot (P, 4): points in the foot's frame and the radius about each, m.
    """

    def __init__(
        self, description: dict[str, Any], foot_bodies: tuple[str, ...] = (), foot_geoms: tuple[str, ...] = ()
    ) -> None:
        bodies = description["bodies"]
        self.body_names = tuple(body["name"] for body in bodies)
        self.parents = tuple(self.body_names.index(b["parent"]) if b["parent"] != "world" else -1 for b in bodies)
        hinges = [[joint for joint in body["joints"] if joint["type"] != "free"] for body in bodies]
        flat = [joint for joints in hinges for joint in joints]
        for joint in flat:
            if joint["type"] != "hinge" or any(joint["pos"]):
                raise TickgraphError(f"joint {joint['name']!r} is no hinge at its body's origin, which motion needs")
        self.joint_names = tuple(joint["name"] for joint in flat)
        self.joint_of = tuple(self.joint_names.index(joints[0]["name"]) if joints else -1 for joints in hinges)
        self.joint_range = _tensor([joint["range"] for joint in flat])
        self._pos = _tensor([body["pos"] for body in bodies])
        self._quat = normalize(_tensor([body["quat"] for body in bodies]))
        self._axis = _tensor([joints[0]["axis"] if joints else (0.0, 0.0, 0.0) for joints in hinges])
        self._mass = _tensor([body["inertial"]["mass"] for body in bodies])
        self._inertial_pos = _tensor([body["inertial"]["pos"] for body in bodies])
        self.feet = tuple(self.body_names.index(name) for name in foot_bodies)
        self.soles = tuple(_sole(bodies[foot], foot_geoms) for foot in self.feet)

    def forward(self, root_pos: Tensor, root_quat: Tensor, joint_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions (T, B, 3) and quaternions (T, B, 4) of all bodies in the world.

        Args:
            root_pos: (T, 3) m.
            root_quat: (T, 4) w x y z, of length 1.
            joint_pos: (T, J) rad.
        """
        pos, quat = [root_pos], [root_quat]
        half = 0.5 * joint_pos
        for body in range(1, len(self.parents)):
            parent, joint = self.parents[body], self.joint_of[body]
            pos.append(pos[parent] + quat_apply(quat[parent], self._pos[body]))
            turned = quat_mul(quat[parent], self._quat[body])
            if joint >= 0:
                angle = half[:, joint, None]
                turned = quat_mul(turned, torch.cat((torch.cos(angle), torch.sin(angle) * self._axis[body]), dim=-1))
            quat.append(turned)
        return torch.stack(pos, dim=1), normalize(torch.stack(quat, dim=1))

    def velocities(
        self, body_pos: Tensor, body_quat: Tensor, root_lin_vel: Tensor, root_ang_vel: Tensor, joint_vel: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return linear (m/s, of the frame's origin) and angular (rad/s) velocities (T, B, 3) in the world.

        Args:
            body_pos, body_quat: as `forward` returns them.
            root_lin_vel, root_ang_vel: (T, 3) in the world.
            joint_vel: (T, J) rad/s.
        """
        linear, angular = [root_lin_vel], [root_ang_vel]
        for body in range(1, len(self.parents)):
            parent, joint = self.parents[body], self.joint_of[body]
            arm = body_pos[:, body] - body_pos[:, parent]
            linear.append(linear[parent] + torch.linalg.cross(angular[parent], arm))
            turning = angular[parent]
            if joint >= 0:
                turning = turning + quat_apply(body_quat[:, body], self._axis[body]) * joint_vel[:, joint, None]
            angular.append(turning)
        return torch.stack(linear, dim=1), torch.stack(angular, dim=1)

    def centre_of_mass(self, body_pos: Tensor, body_quat: Tensor) -> Tensor:
        """Return the centre of mass (T, 3) of the whole robot, m."""
        centres = body_pos + quat_apply(body_quat, self._inertial_pos)
        return (centres * self._mass[:, None]).sum(dim=1) / self._mass.sum()

    def chain(self, body: int) -> list[int]:
        """Return the bodies from below the root down to `body`."""
        found: list[int] = []
        while body > 0:
            found.insert(0, body)
            body = self.parents[body]
        return found

    def axes(self, body_quat: Tensor, bodies: list[int]) -> Tensor:
        """Return the axes (T, len(bodies), 3) in the world of the joints that move the bodies."""
        return quat_apply(body_quat[:, bodies], self._axis[bodies])

    def sole_points(self, body_pos: Tensor, body_quat: Tensor, foot: int) -> Tensor:
        """Return the lowest points (T, P, 3) of the spheres that end the sole's capsules; `foot` counts `feet`."""
        points, body = self.soles[foot], self.feet[foot]
        world = body_pos[:, body, None] + quat_apply(body_quat[:, body, None], points[:, :3])
        return torch.cat((world[..., :2], world[..., 2:] - points[:, 3:]), dim=-1)

    def breadth_first(self) -> list[int]:
        """Return the bodies level by level, the order in which some simulators list them."""
        order = [0]
        for body in order:
            order += [child for child, parent in enumerate(self.parents) if parent == body]
        return order


@functools.cache
def g1_skeleton() -> Skeleton:
    """Return the tree of our G1."""
    return Skeleton(read_description("g1.json"), FOOT_BODIES, FOOT_GEOMS)


def _tensor(value: Any) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _sole(body: dict[str, Any], names: tuple[str, ...]) -> Tensor:
    """Return (P, 4): both ends of each capsule in the body's frame, and its radius."""
    ends = []
    for geom in body["collision"]:
        if geom["name"] in names:
            radius, half = geom["size"][:2]
            along = quat_apply(normalize(_tensor(geom["quat"])), _tensor([0.0, 0.0, half]))
            centre = _tensor(geom["pos"])
            ends += [torch.cat((centre + sign * along, _tensor([radius]))) for sign in (1.0, -1.0)]
    return torch.stack(ends)
