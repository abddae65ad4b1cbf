"""A controller that knows an exported policy and nothing else, here in plain MuJoCo instead of a robot.

Run it with `python examples/deploy.py policy.onnx`, where `tickgraph export RUN` wrote policy.onnx of a run of
go2_walk_flat; docs/deploy.md explains it. On a robot `sense` reads its sensors, and `obey` sends targets to its motors.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass

import mujoco
import numpy as np
import onnxruntime
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class Sensed:
    """What the robot measures: body-frame rate (3,) rad/s and gravity's direction (3,), joints (J,) rad and rad/s."""

    ang_vel: Vector
    gravity: Vector
    joint_pos: Vector
    joint_vel: Vector


class Controller:
    """Observations from measurements, joint targets from actions, by what the file says of itself.

    Args:
        path: an ONNX file that `tickgraph export` wrote.
        command: forward and lateral velocity (m/s) and yaw rate (rad/s).
        phase: of the gait's first foot at the start, rad.
    """

    def __init__(self, path: str, command: tuple[float, float, float], phase: float = 0.0) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.facts = json.loads(self.session.get_modelmeta().custom_metadata_map["tickgraph"])
        self.command, self.phase = np.array(command), phase
        robot, (action,) = self.facts["entities"]["robot"], self.facts["actions"]
        self.default = np.array(robot["default_joint_pos"])
        self.action = np.zeros(action["dim"])
        self.scale, self.offset = np.array(action["scale"]), np.array(action["offset"])
        self.actuator_names = action["actuator_names"]
        gait = next(command for command in self.facts["commands"] if command["name"] == "gait")
        self.turn = 2.0 * math.pi * gait["frequency"] * self.facts["step_dt"]

    def observe(self, sensed: Sensed) -> Vector:
        """Return the observation (O,), the terms in the file's order."""
        made = {
            "base_ang_vel": sensed.ang_vel,
            "projected_gravity": sensed.gravity,
            "joint_pos_rel": sensed.joint_pos - self.default,
            "joint_vel_rel": sensed.joint_vel,
            "last_action": self.action,
            "generated_commands": self.command,
            "gait_clock": np.array([math.sin(self.phase), math.cos(self.phase)]),
        }
        return np.concatenate(
            [np.multiply(made[term["function"]], term["scale"]) for term in self.facts["observations"]]
        )

    def step(self, sensed: Sensed) -> Vector:
        """Return the targets (J,) rad of the next control step, in the order of `actuator_names`."""
        obs = self.observe(sensed).astype(np.float32)
        (actions,) = self.session.run(["actions"], {"obs": obs[None]})
        self.action = actions[0].astype(float)
        self.phase += self.turn
        return self.offset + self.scale * self.action


class SimulatedRobot:
    """The task's robot in plain MuJoCo, one physics step after the other."""

    def __init__(self, facts: dict) -> None:
        from tickgraph import load_task
        from tickgraph.sim.model import compile_model

        self.model = compile_model(load_task(facts["task"]).env.scene)
        self.data = mujoco.MjData(self.model)
        self.names = facts["entities"]["robot"]["joint_names"]
        joints = [self.model.joint(f"robot/{name}") for name in self.names]
        self.qpos = np.array([joint.qposadr[0] for joint in joints])
        self.qvel = np.array([joint.dofadr[0] for joint in joints])
        self.substeps = round(facts["step_dt"] / facts["physics_dt"])
        self.data.qpos[self.qpos] = facts["entities"]["robot"]["default_joint_pos"]
        mujoco.mj_forward(self.model, self.data)

    def sense(self) -> Sensed:
        """Return what sensors would measure now."""
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, self.data.qpos[3:7])
        up = rotation.reshape(3, 3)[2]
        return Sensed(self.data.qvel[3:6].copy(), -up, self.data.qpos[self.qpos], self.data.qvel[self.qvel])

    def obey(self, names: list[str], targets: Vector) -> None:
        """Let the motors pull towards targets for one control step."""
        for name, target in zip(names, targets, strict=True):
            self.data.ctrl[self.model.actuator(f"robot/{name}").id] = target
        for _ in range(self.substeps):
            mujoco.mj_step(self.model, self.data)


def main(path: str, forward: float = 0.6, seconds: float = 10.0) -> float:
    """Walk for some seconds; print and return the mean forward speed, m/s."""
    controller = Controller(path, (forward, 0.0, 0.0))
    robot = SimulatedRobot(controller.facts)
    start = robot.data.qpos[0]
    for _ in range(round(seconds / controller.facts["step_dt"])):
        robot.obey(controller.actuator_names, controller.step(robot.sense()))
    speed = (robot.data.qpos[0] - start) / seconds
    print(f"{speed:.2f} m/s forward, asked for {forward:.2f}; height of the base {robot.data.qpos[2]:.2f} m")
    return speed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="policy.onnx of a run of go2_walk_flat")
    parser.add_argument("--forward", type=float, default=0.6, help="m/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    main(given.path, given.forward, given.seconds)
