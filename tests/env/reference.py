"""One control step of one world, written by hand in plain MuJoCo and NumPy: the order that the tick must have."""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, field

import mujoco
import numpy as np

DT, SUBSTEPS = 0.02, 4
PUSH_EVERY = 3  # steps
PUSH = 0.3  # m/s on x
PUSH_BOX = (0.01, 0.02, -0.03, 0.1, -0.2, 0.3)  # m/s and rad/s on the box, world frame
WRAP = 0.06  # m that a wrap goes back
NOISE, START = 1e-3, 0.01  # half widths of the noise on x and of the start position
COMMAND_S = (0.06, 0.1)  # s between two commands
HISTORY = 3
ACTION_LAG = 2  # largest, steps; the observed velocity is one step late, always

MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast" gravity="0 0 0"><flag autoreset="disable"/></option>
  <worldbody>
    <body>
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
    <body>
      <joint name="dummy" type="slide" axis="0 1 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
    <body name="box" pos="1 0 0.3">
      <freejoint/>
      <geom type="box" size="0.1 0.07 0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><position joint="dummy" kp="10" kv="1"/></actuator>
</mujoco>
"""


def philox(seed: int, path: str, tick: int, row: int, lanes: int) -> list[int]:
    """Return 32-bit words by Philox4x32-10: key = seed, counter = (crc32 of the path, tick, world, block of lanes)."""
    words: list[int] = []
    for block in range((lanes + 3) // 4):
        c, k = [zlib.crc32(path.encode()), tick, row, block], [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        words += c
    return words[:lanes]


@dataclass
class Transition:
    """What one step gives; ``next_obs`` is what a learner may bootstrap from, None for nothing."""

    obs: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    invalid: bool
    boundary: bool
    pushed: bool
    final_obs: np.ndarray
    next_obs: np.ndarray | None


@dataclass
class World:
    """Scenario and state of one world."""

    row: int
    seed: int
    speed: float
    limit: int
    fall: float = np.inf
    wrap: float = np.inf
    nan_at: int = -1
    tick: int = 0
    episodes: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.lag = 0
        self.begin()
        self.obs = self.observe(fresh=True)

    # Random words ----------------------------------------------------------------------------------------------

    def uniform(self, path: str, lanes: int, low: float, high: float) -> np.ndarray:
        words = np.array(philox(self.seed, path, self.tick, self.row, lanes))
        return low + (words >> 8) * 2.0**-24 * (high - low)

    # The step --------------------------------------------------------------------------------------------------

    def step(self, action: float) -> Transition:
        self.tick += 1
        before = self.obs
        # Apply, delayed; neutral until the first action of the episode is due.
        self.action = action
        self.sent.append(action)
        self.data.ctrl[0] = self.sent[-1 - self.lag] if len(self.sent) > self.lag else 0.0
        # Advance. Accelerations and forces are those of the last substep, positions and velocities the new ones.
        mujoco.mj_step(self.model, self.data, SUBSTEPS)
        self.accelerations = (float(self.data.qacc[1]), float(self.data.actuator_force[0]))
        # Judge, under the command that the policy saw.
        self.age += 1
        x, v = self.data.qpos[0], self.data.qvel[0]
        terminated = bool(x > self.fall)
        truncated = self.age >= self.limit and not terminated
        terms = {"alive": 1.0 * DT, "track": 2.0 * DT * np.exp(-((v - self.command) ** 2)), "x": -0.5 * DT * x}
        terms["nan"] = np.nan if self.tick == self.nan_at else 0.0
        # The command advances.
        self.command_left -= DT
        if self.command_left <= 0.5 * DT:
            self.new_command()
        rewrite = bool(x > self.wrap)
        # The last observation, as it would be if the episode went on; nothing of it is kept.
        final_obs = copy.deepcopy(self).observe(fresh=False, noise="final_noise")
        reward = sum(terms.values())
        invalid = not np.isfinite(reward)
        if invalid:
            final_obs, reward, terminated, truncated = before, 0.0, True, False
            terms = dict.fromkeys(terms, 0.0)
        done = terminated or truncated
        rewrite = rewrite and not done
        # Record.
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        if done:
            ended = {"length": self.age, "invalid": invalid, "terminated": terminated, **self.sums}
            self.episodes.append(ended)
        # Restart: push, then rewrite, then reset; the later one wins.
        self.push_left -= 1
        pushed = self.push_left == 0
        if pushed:
            self.push()
            self.push_left = PUSH_EVERY
        if rewrite:
            self.data.qpos[0] -= WRAP
            self.data.qvel[0] = self.speed
        if done:
            self.begin()
        if done or rewrite:
            self.accelerations = (0.0, 0.0)
            self.data.qacc_warmstart[:] = 0.0
        self.obs = self.observe(fresh=done)
        boundary = done or rewrite
        next_obs = None if terminated else final_obs if boundary else self.obs
        return Transition(self.obs, reward, terminated, truncated, invalid, boundary, pushed, final_obs, next_obs)

    # Parts -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0] = self.uniform("events/launch", 1, -START, START)[0]
        self.data.qvel[0] = self.speed
        self.accelerations = (0.0, 0.0)
        self.age, self.push_left, self.sums = 0, PUSH_EVERY, {}
        self.new_command()
        self.action, self.sent = 0.0, []
        self.lag = philox(self.seed, "actions/dummy/lag", self.tick, self.row, 1)[0] * (ACTION_LAG + 1) >> 32

    def new_command(self) -> None:
        self.command = self.uniform("commands/speed/value", 1, -1.0, 1.0)[0]
        self.command_left = self.uniform("commands/speed/time_left", 1, *COMMAND_S)[0]

    def push(self) -> None:
        self.data.qvel[0] += PUSH
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, self.data.qpos[5:9])
        self.data.qvel[2:5] += PUSH_BOX[:3]
        self.data.qvel[5:8] += rotation.reshape(3, 3).T @ PUSH_BOX[3:]

    def observe(self, fresh: bool, noise: str = "noise") -> np.ndarray:
        look = mujoco.MjData(self.model)
        look.qpos[:], look.qvel[:] = self.data.qpos, self.data.qvel
        mujoco.mj_forward(self.model, look)
        x = look.qpos[0] + self.uniform(f"observations/actor/x/{noise}", 1, -NOISE, NOISE)[0]
        v = look.qvel[0]
        self.xs = [x] * HISTORY if fresh else [*self.xs[1:], x]
        self.vs = [v] * 2 if fresh else [self.vs[1], v]
        velocity = np.zeros(6)
        box = self.model.body("box").id
        mujoco.mj_objectVelocity(self.model, look, mujoco.mjtObj.mjOBJ_XBODY, box, velocity, 1)  # in the box's frame
        down = look.xmat[box].reshape(3, 3).T @ [0.0, 0.0, -1.0]
        parts = (self.xs, [self.vs[0]], self.accelerations, [self.command, self.action, self.age])
        return np.concatenate((*parts, look.xpos[box], velocity[3:], velocity[:3], down))
