"""A controller that knows an exported policy and nothing else, here in plain MuJoCo instead of a robot.

Run it with `python examples/deploy.py policy.onnx`, where `tickgraph export RUN` wrote policy.onnx of a run of
go2_walk_flat or g1_walk_flat; for one of g1_motion_tracking_blind add `--motion squat.npz`, which `tickgraph motion
convert squat squat.npz` writes. docs/deploy.md explains it. On a robot `sense` reads its sensors, and `obey` sends
targets to its motors.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import onnxruntime
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class Sensed:
    """What a robot measures: rate (3,) rad/s and attitude (4,) w x y z of its IMU, joints (J,) rad and rad/s."""

    ang_vel: Vector
    attitude: Vector
    joint_pos: Vector
    joint_vel: Vector


class Reference:
    """The frames of a motion for a robot to follow, from an npz of `tickgraph motion convert`.

    Args:
        path: the file.
        facts: of the policy, for the order of joints and the anchor.
        frame: which the state behind the first step is to match.
    """

    def __init__(self, path: str, facts: dict[str, Any], frame: int = 1) -> None:
        motion, anchor = np.load(path), command(facts, "MotionCommand")["anchor_body_name"]
        fps, rate = float(motion["fps"].item()), 1.0 / facts["step_dt"]
        if not math.isclose(fps, rate, rel_tol=1e-6):
            raise SystemExit(f"{path} has {fps:g} frames a second, the policy takes {rate:g}; convert it with --to-fps")
        columns = [list(motion["joint_names"]).index(name) for name in facts["entities"]["robot"]["joint_names"]]
        self.joints = motion["joint_pos"][:, columns], motion["joint_vel"][:, columns]
        self.attitude = motion["body_quat_w"][:, list(motion["body_names"]).index(anchor)].astype(float)
        self.frame = frame

    def go_on(self) -> None:
        """Take the next frame; the last one stays."""
        self.frame = min(self.frame + 1, len(self.attitude) - 1)


class Controller:
    """Observations from measurements, joint targets from actions, by what the file says of itself.

    Args:
        path: an ONNX file that `tickgraph export` wrote.
        velocity: forward and lateral velocity (m/s) and yaw rate (rad/s) that are wanted.
        phase: of the gait's first foot at the start, rad.
        motion: npz with a reference, for a policy that tracks one.
        frame: of the reference to begin with.
    """

    def __init__(
        self,
        path: str,
        velocity: tuple[float, ...] = (0.6, 0.0, 0.0),
        phase: float = 0.0,
        motion: str | None = None,
        frame: int = 1,
    ) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.facts = json.loads(self.session.get_modelmeta().custom_metadata_map["tickgraph"])
        (action,) = self.facts["actions"]
        robot = self.facts["entities"]["robot"]
        self.joint_names, self.default = robot["joint_names"], np.array(robot["default_joint_pos"])
        self.action = np.zeros(action["dim"])
        self.scale, self.offset = np.array(action["scale"]), np.array(action["offset"])
        self.actuator_names, self.clip = action["actuator_names"], action["clip"]
        self.velocity, self.phase = np.array(velocity), phase
        self.frames: dict[str, list[Vector]] = {}  # by term, the last ones that the policy saw
        follows = command(self.facts, "MotionCommand") is not None
        if follows and motion is None:
            raise SystemExit(
                "this policy follows a reference; give --motion FILE, which `tickgraph motion convert` writes"
            )
        if motion is not None and not follows:
            raise SystemExit("this policy follows no reference; leave --motion out")
        self.reference = None if motion is None else Reference(motion, self.facts, frame)

    def observe(self, sensed: Sensed) -> Vector:
        """Return the observation (O,), the terms in the file's order."""
        return np.concatenate([frame for frames in self._frames(sensed).values() for frame in frames])

    def step(self, sensed: Sensed) -> Vector:
        """Return the targets (J,) rad of the next control step, in the order of `actuator_names`."""
        obs = self.observe(sensed).astype(np.float32)
        self.frames = self._frames(sensed)
        (actions,) = self.session.run(["actions"], {"obs": obs[None]})
        self.action = actions[0].astype(float)
        if (gait := command(self.facts, "GaitPhase")) is not None:
            self.phase += 2.0 * math.pi * gait["frequency"] * self.facts["step_dt"]
        if self.reference is not None:
            self.reference.go_on()
        return limited(self.offset + self.scale * self.action, self.clip)

    def _frames(self, sensed: Sensed) -> dict[str, list[Vector]]:
        """Return each term's frames, the oldest first and what is sensed now last; at the start all are the same."""
        frames = {}
        for term in self.facts["observations"]:
            frame = limited(self._term(term, sensed), term["clip"]) * term["scale"]
            past = self.frames.get(term["name"], [frame] * max(1, term["history_length"]))
            frames[term["name"]] = [*past[1:], frame]
        return frames

    def _term(self, term: dict[str, Any], sensed: Sensed) -> Vector:
        told = self._command(term)
        match term["function"]:
            case "base_ang_vel":
                return sensed.ang_vel
            case "builtin_sensor" if term["params"]["sensor_name"] == "torso_gyro":
                return sensed.ang_vel
            case "up_vector":
                return rotation(sensed.attitude)[2]
            case "projected_gravity":
                return -rotation(sensed.attitude)[2]
            case "joint_pos_rel":
                return (sensed.joint_pos - self.default)[self._joints(term)]
            case "joint_vel_rel":
                return sensed.joint_vel[self._joints(term)]
            case "last_action":
                return self.action
            case "gait_clock":
                return np.array([math.sin(self.phase), math.cos(self.phase)])
            case "gait_phase":
                return (self.phase + np.array(told["offsets"]) + math.pi) % (2.0 * math.pi) - math.pi
            case "generated_commands" if told["function"] == "UniformVelocityCommand":
                return self.velocity
            case "generated_commands" if told["function"] == "MotionCommand":
                assert self.reference is not None
                return np.concatenate([part[self.reference.frame] for part in self.reference.joints])
            case "motion_anchor_ori_b":
                assert self.reference is not None
                wanted = rotation(self.reference.attitude[self.reference.frame])
                return (rotation(sensed.attitude).T @ wanted)[:, :2].flatten()
        raise SystemExit(f"this controller does not know how to make {term['name']!r} by {term['function']}")

    def _command(self, term: dict[str, Any]) -> dict[str, Any]:
        """Return what the file says of the command that a term reads, nothing where it reads none."""
        name = term["params"].get("command_name")
        return next((each for each in self.facts["commands"] if each["name"] == name), {})

    def _joints(self, term: dict[str, Any]) -> list[int]:
        """Return the columns of the joints that a term observes."""
        chosen = term["selected"]["asset_cfg"].get("joint_names", self.joint_names)
        return [self.joint_names.index(name) for name in chosen]


def limited(values: Vector, limits: Any) -> Vector:
    """Return values held to (low, high), for all of them or for each; a limit that is None is none."""
    if limits is None:
        return values
    low, high = np.array(limits, dtype=float).T  # NaN for None, which fmax and fmin leave out
    return np.fmin(np.fmax(values, low), high)


def command(facts: dict[str, Any], function: str) -> Any:
    """Return what the file says of the command of a kind, None where there is none."""
    return next((each for each in facts["commands"] if each["function"] == function), None)


def rotation(quat: Vector) -> Vector:
    """Return the matrix (3, 3) of a quaternion w x y z, from the body's frame to the world's."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)


class SimulatedRobot:
    """The task's robot in plain MuJoCo, one physics step after the other."""

    def __init__(self, facts: dict[str, Any]) -> None:
        from tickgraph import load_task
        from tickgraph.sim.model import compile_model

        self.model = compile_model(load_task(facts["task"]).env.scene)
        self.model.opt.timestep = facts["physics_dt"]
        self.data = mujoco.MjData(self.model)
        joints = [self.model.joint(f"robot/{name}") for name in facts["entities"]["robot"]["joint_names"]]
        self.qpos = np.array([joint.qposadr[0] for joint in joints])
        self.qvel = np.array([joint.dofadr[0] for joint in joints])
        self.substeps = round(facts["step_dt"] / facts["physics_dt"])
        # The G1's IMU is in its torso, the Go2's in its base.
        sensors = [self.model.sensor(i).name for i in range(self.model.nsensor)]
        self.gyro = "torso_gyro" if "torso_gyro" in sensors else None
        self.data.qpos[self.qpos] = facts["entities"]["robot"]["default_joint_pos"]
        mujoco.mj_forward(self.model, self.data)

    def sense(self) -> Sensed:
        """Return what sensors would measure now."""
        data = self.data
        mujoco.mj_forward(self.model, data)
        if self.gyro is None:
            ang_vel, attitude = data.qvel[3:6].copy(), data.qpos[3:7].copy()
        else:
            ang_vel, attitude = data.sensor(self.gyro).data.copy(), data.body("robot/torso_link").xquat.copy()
        return Sensed(ang_vel, attitude, data.qpos[self.qpos], data.qvel[self.qvel])

    def obey(self, names: list[str], targets: Vector) -> None:
        """Let the motors pull towards targets for one control step."""
        for name, target in zip(names, targets, strict=True):
            self.data.ctrl[self.model.actuator(f"robot/{name}").id] = target
        for _ in range(self.substeps):
            mujoco.mj_step(self.model, self.data)


def main(path: str, forward: float = 0.6, seconds: float = 10.0, motion: str | None = None) -> float:
    """Walk, or follow a motion, for some seconds; print and return the mean forward speed, m/s."""
    controller = Controller(path, (forward, 0.0, 0.0), motion=motion)
    robot = SimulatedRobot(controller.facts)
    start = robot.data.qpos[0]
    for _ in range(max(1, round(seconds / controller.facts["step_dt"]))):
        robot.obey(controller.actuator_names, controller.step(robot.sense()))
    speed = float(robot.data.qpos[0] - start) / robot.data.time
    asked = f", asked for {forward:.2f}" if motion is None else ""
    print(f"{speed:.2f} m/s forward{asked}; height of the base {robot.data.qpos[2]:.2f} m")
    return speed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="policy.onnx")
    parser.add_argument("--forward", type=float, default=0.6, help="m/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--motion", help="npz of a reference, for a policy that tracks motion")
    given = parser.parse_args()
    main(given.path, given.forward, given.seconds, given.motion)
