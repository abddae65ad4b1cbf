"""Clips of our own making for the G1: each starts and ends at rest in the standing pose, its feet where they belong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tickgraph.core.rotation import quat_from_euler_xyz
from tickgraph.motion.clip import Clip, make_clip
from tickgraph.motion.legs import solve_legs
from tickgraph.motion.skeleton import Skeleton, g1_skeleton
from tickgraph.motion.stepping import Step, balanced, ease, rise_and_fall, steps_from
from tickgraph.robots.g1 import HOME_HEIGHT, HOME_JOINT_POS

FPS = 50.0
_BALANCE_ROUNDS = 4  # the limbs move the centre of mass that the root is placed by
_STRIDE = 0.15  # m, from one foot to the other
_DTYPE = torch.float64


@dataclass
class Plan:
    """What a clip shall be like; the legs and the root's place follow. T frames from rest to rest, the robot standing.

    Attributes:
        time: (T,) s.
        place, height: (T, 2, 3) x, y, yaw and (T, 2) of left and right foot above where they stand, m and rad.
        share: (T, 2) each foot's share of the weight.
        shift: (T, 2) m, of the weight in x and y, on top.
        drop, pitch, yaw: (T,) m that the root is below standing, rad that it leans forward, rad of its heading.
        joint_pos: (T, J) rad; the legs' are where their search begins.
    """

    time: Tensor
    place: Tensor
    height: Tensor
    share: Tensor
    shift: Tensor
    drop: Tensor
    pitch: Tensor
    yaw: Tensor
    joint_pos: Tensor


class Maker:
    """Turns plans into clips. The robot stands with flat feet on the ground, where its centre of mass is over them."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        self.home = torch.zeros(len(skeleton.joint_names), dtype=_DTYPE)
        for pattern, value in HOME_JOINT_POS.items():
            for i, name in enumerate(skeleton.joint_names):
                if re.fullmatch(pattern, name):
                    self.home[i] = value
        root = torch.tensor([[0.0, 0.0, HOME_HEIGHT]], dtype=_DTYPE)
        identity = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=_DTYPE)
        body_pos, body_quat = skeleton.forward(root, identity, self.home[None])
        feet = body_pos[0, list(skeleton.feet)]
        centre = skeleton.centre_of_mass(body_pos, body_quat)[0]
        # Of the ankle above the ground: the foot is flat, and its sole's lowest point touches.
        self.ankle = max(float((points[:, 3] - points[:, 2]).max()) for points in skeleton.soles)
        self.root_height = HOME_HEIGHT - float(feet[:, 2].mean()) + self.ankle
        self.centre_height = self.root_height - HOME_HEIGHT + float(centre[2])
        self.places = [(float(foot[0]), float(foot[1]), 0.0) for foot in feet]
        self.reach = float(centre[0] - feet[0, 0])  # of the weight ahead of the ankle

    def plan(self, seconds: float, steps: list[Step] | None = None, start: float = 1.0) -> Plan:
        """Return a plan that stands still, or that takes steps from `start` s on."""
        time = torch.arange(round(seconds * FPS) + 1, dtype=_DTYPE) / FPS
        zero = torch.zeros_like(time)
        place, height, share = steps_from(time, self.places, steps or [], start)
        return Plan(
            time,
            place,
            height,
            share,
            torch.zeros(len(time), 2, dtype=_DTYPE),
            zero,
            zero.clone(),
            zero.clone(),
            self.home.expand(len(time), -1).clone(),
        )

    def joint(self, name: str) -> int:
        """Return the index of a joint, given without its ending."""
        return self.skeleton.joint_names.index(f"{name}_joint")

    def make(self, name: str, plan: Plan) -> Clip:
        """Return the clip of a plan, its centre of mass where the weight's place asks for."""
        foot_yaw = plan.place[..., 2]
        ahead = torch.stack((torch.cos(foot_yaw), torch.sin(foot_yaw)), dim=-1) * self.reach
        pressure = ((plan.place[..., :2] + ahead) * plan.share[..., None]).sum(dim=1)
        centre = balanced(pressure, FPS, self.centre_height) + plan.shift
        zero = torch.zeros_like(plan.time)
        foot_pos = torch.cat((plan.place[..., :2], (plan.height + self.ankle)[..., None]), dim=-1)
        foot_quat = quat_from_euler_xyz(torch.zeros_like(foot_yaw), torch.zeros_like(foot_yaw), foot_yaw)
        root_quat = quat_from_euler_xyz(zero, plan.pitch, plan.yaw)
        root = torch.cat((centre - centre[:1], (self.root_height - plan.drop)[:, None]), dim=1)
        joint_pos = plan.joint_pos
        for _ in range(_BALANCE_ROUNDS):
            joint_pos = solve_legs(self.skeleton, root, root_quat, joint_pos, foot_pos, foot_quat)
            actual = self.skeleton.centre_of_mass(*self.skeleton.forward(root, root_quat, joint_pos))
            root[:, :2] += centre - actual[:, :2]
        joint_pos = solve_legs(self.skeleton, root, root_quat, joint_pos, foot_pos, foot_quat)
        return make_clip(name, self.skeleton, root, root_quat, joint_pos, FPS)


def sway(maker: Maker) -> Clip:
    """Hips and weight from side to side, four times, feet planted, arms a little out."""
    plan = maker.plan(10.0)
    envelope = rise_and_fall(plan.time, 0.6, 9.4, 1.5)
    wave = torch.sin(2.0 * math.pi * 0.45 * (plan.time - 0.6)) * envelope
    plan.shift[:, 1] = 0.06 * wave
    plan.drop = 0.02 * envelope
    plan.joint_pos[:, maker.joint("waist_roll")] -= 0.12 * wave
    plan.joint_pos[:, maker.joint("left_shoulder_roll")] += 0.25 * envelope
    plan.joint_pos[:, maker.joint("right_shoulder_roll")] -= 0.25 * envelope
    return maker.make("sway", plan)


def squat(maker: Maker) -> Clip:
    """Three squats of 0.2 m, arms stretched forward."""
    plan = maker.plan(9.0)
    depth = sum((rise_and_fall(plan.time, start, start + 2.4, 1.1) for start in (0.6, 3.3, 6.0)), torch.zeros(()))
    plan.drop = 0.2 * depth
    plan.pitch = 0.3 * depth
    for side in ("left", "right"):
        plan.joint_pos[:, maker.joint(f"{side}_shoulder_pitch")] -= 1.1 * depth
        plan.joint_pos[:, maker.joint(f"{side}_elbow")] += 0.3 * depth
    return maker.make("squat", plan)


def march(maker: Maker) -> Clip:
    """Twelve steps on the spot, arms swinging."""
    steps = [Step(i % 2, maker.places[i % 2], lift=0.08) for i in range(12)]
    plan = maker.plan(10.0, steps)
    for side, other in (("left", 1), ("right", 0)):
        plan.joint_pos[:, maker.joint(f"{side}_shoulder_pitch")] -= 4.0 * _smooth(plan.height[:, other])
    plan.drop = 0.02 * rise_and_fall(plan.time, 0.4, 9.6, 0.8)
    return maker.make("march", plan)


def arm_wave(maker: Maker) -> Clip:
    """The right arm is lifted sideways, waves four times, and is lowered."""
    plan = maker.plan(7.0)
    up = rise_and_fall(plan.time, 0.6, 6.4, 1.4)
    wave = torch.sin(2.0 * math.pi * 1.25 * (plan.time - 2.0)) * rise_and_fall(plan.time, 1.9, 5.1, 0.4)
    for name, target in (("shoulder_pitch", 0.0), ("shoulder_roll", -1.5), ("shoulder_yaw", -1.4), ("elbow", 0.3)):
        joint = maker.joint(f"right_{name}")
        plan.joint_pos[:, joint] = torch.lerp(plan.joint_pos[:, joint], torch.full_like(up, target), up)
    plan.joint_pos[:, maker.joint("right_elbow")] += 0.4 * wave
    plan.joint_pos[:, maker.joint("waist_yaw")] -= 0.15 * up
    return maker.make("arm_wave", plan)


def turn(maker: Maker) -> Clip:
    """Half a turn to the left on the spot, in twelve steps."""
    steps = []
    for i in range(12):
        foot, yaw = i % 2, math.radians(30.0) * (i // 2 + 1)
        steps.append(Step(foot, _about(maker, foot, yaw)))
    plan = maker.plan(10.0, steps)
    plan.yaw = balanced(plan.place[..., 2].mean(dim=1), FPS, maker.centre_height)
    plan.drop = 0.02 * rise_and_fall(plan.time, 0.4, 9.6, 0.8)
    return maker.make("turn", plan)


def walk(maker: Maker) -> Clip:
    """A metre and a half straight ahead in twelve steps, slowly; the last one brings the feet together."""
    steps = []
    for i in range(12):
        x, y, _ = maker.places[i % 2]
        steps.append(Step(i % 2, (x + _STRIDE * min(i + 1, 11), y, 0.0)))
    plan = maker.plan(10.0, steps)
    apart = _smooth(plan.place[:, 1, 0] - plan.place[:, 0, 0])
    plan.joint_pos[:, maker.joint("left_shoulder_pitch")] -= 1.2 * apart
    plan.joint_pos[:, maker.joint("right_shoulder_pitch")] += 1.2 * apart
    plan.drop = 0.04 * rise_and_fall(plan.time, 0.4, 9.6, 0.8)
    return maker.make("walk", plan)


CLIPS: dict[str, Callable[[Maker], Clip]] = {
    "sway": sway,
    "squat": squat,
    "march": march,
    "arm_wave": arm_wave,
    "turn": turn,
    "walk": walk,
}


def synthesize(name: str) -> Clip:
    """Return one of CLIPS for the G1; the same numbers every time."""
    return CLIPS[name](Maker(g1_skeleton()))


def _about(maker: Maker, foot: int, yaw: float) -> tuple[float, float, float]:
    """Return where a foot stands when the robot has turned by yaw about the middle of its weight."""
    x, y, _ = maker.places[foot]
    centre = x + maker.reach
    c, s = math.cos(yaw), math.sin(yaw)
    return (centre - c * maker.reach - s * y, c * y - s * maker.reach, yaw)


def _smooth(values: Tensor) -> Tensor:
    """Return (T,) values blurred over a third of a second, unchanged where they are constant at the ends."""
    width = round(0.16 * FPS)
    kernel = ease(1.0 - torch.arange(-width, width + 1, dtype=_DTYPE).abs() / (width + 1))
    padded = torch.cat((values[:1].expand(width), values, values[-1:].expand(width)))
    return torch.nn.functional.conv1d(padded[None, None], (kernel / kernel.sum())[None, None])[0, 0]
