"""The command of motion tracking: which frame of which clip each world is to match, and the state it starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os.path import expanduser  # unlike Path's, leaves what has no home as it is
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core import rotation
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_fields
from tickgraph.core.masked import assign_rows
from tickgraph.env.config import CommandTermCfg
from tickgraph.env.managers import CommandTerm
from tickgraph.mdp.events import SixRanges
from tickgraph.mdp.ranges import Range
from tickgraph.motion.library import Frames, MotionLibrary
from tickgraph.motion.load import find, load_clips, shipped
from tickgraph.motion.sampler import SamplerCfg, StartSampler

if TYPE_CHECKING:
    from tickgraph.env.env import Env

# Columns of `MotionCommand.errors`, each a mean over bodies or joints where there are several.
ERRORS = (
    "anchor_pos", "anchor_rot", "anchor_lin_vel", "anchor_ang_vel",
    "body_pos", "body_rot", "body_lin_vel", "body_ang_vel",
    "joint_pos", "joint_vel",
)  # fmt: skip


class MotionCommand(CommandTerm):
    """Reference motion: B tracked bodies and J joints of one robot in N worlds.

    ``frame`` is the frame that the state behind the coming control step is to match. A world that starts at frame s of
    a clip has the state of frame s, and the policy sees frame s + 1; the step's rewards and terminations compare the
    new state with that frame; then the frame goes on by one. Behind the last frame's step the clip has ended: the world
    is truncated (term ``motion_clip_end``), or its state is rewritten to a newly drawn start while the episode goes on.
    The frame never passes the clip's last one; there the last observation shows it once more.

    Attributes:
        clip, frame: (N,) int64.
        judged: (N,) int64, the frame that the newest state was compared with.
        errors: (N, len(ERRORS)) float32 of that comparison: m, rad, m/s, rad/s; bodies re-anchored, joints in rad.
        library, sampler: the clips, and where worlds start in them.
        body_names, anchor: names of the B bodies, and the anchor's index in them.
    """

    cfg: MotionCommandCfg

    def __init__(self, cfg: MotionCommandCfg, env: Env, path: str) -> None:
        super().__init__(cfg, env, path)
        if tuple(cfg.resampling_time_range) != CommandTermCfg.resampling_time_range:
            raise TickgraphError(
                f"{path}: resampling_time_range is {cfg.resampling_time_range}, but a motion goes on to its clip's "
                "end; leave it out"
            )
        self._entity = entity = env.scene[cfg.entity_name]
        self._data, index, arena, n = entity.data, entity.index, env.arena, env.num_envs
        if not index.floating:
            raise TickgraphError(f"{path}: entity {cfg.entity_name!r} has a fixed base; motions move a floating one")
        if not cfg.body_names:
            raise TickgraphError(f"{path}: body_names is empty, expected the bodies to track, the anchor among them")
        bodies = index.find("body", tuple(cfg.body_names), preserve_order=True)
        self.body_names = tuple(index.body_names[i] for i in bodies)
        self.anchor = self.body_columns((cfg.anchor_body_name,), "anchor_body_name")[0]
        self._anchor_body = bodies[self.anchor]
        self._bodies = arena.constant(f"{path}/body_ids", bodies, torch.int64, "tracked bodies of the entity")
        # The rate of the control steps, free of the last digit of decimation * timestep.
        clips = load_clips(cfg.clips, fps=round(1.0 / env.step_dt, 6))
        self.library = MotionLibrary(clips, arena, path, index.joint_names, self.body_names)
        self.sampler = StartSampler(self.library, cfg.sampler, arena, f"{path}/sampler", _clip_weights(cfg, path))
        self._pose = SixRanges(env, path, "pose_range", cfg.pose_range)
        self._velocity = SixRanges(env, path, "velocity_range", cfg.velocity_range)
        self.clip = arena.new(f"{path}/clip", (n,), torch.int64, "clip of each world")
        self.frame = arena.new(f"{path}/frame", (n,), torch.int64, "frame that the next state is to match", fill=1)
        self.judged = arena.new(f"{path}/judged", (n,), torch.int64, "frame that the newest state was compared with")
        self.errors = arena.new(f"{path}/errors", (n, len(ERRORS)), why="how far the newest state was from it")
        width = self.library.table.shape[1]
        self._rows = arena.new(f"{path}/reference", (n, width), why="the library's row of each world's frame")
        self._rows.copy_(self.library.rows(self.clip, self.frame))
        if not cfg.truncate_on_clip_end:
            self.rewrite = arena.new(f"{path}/rewrite", (n,), torch.bool, "clips that ended and wrap")

    # The reference, under which the next state is judged -----------------------------------------------------------

    @property
    def command(self) -> Tensor:
        """(N, 2 J) rad and rad/s: joint positions, then velocities, as a policy sees them."""
        return self._rows[:, : 2 * len(self.library.joint_names)]

    @property
    def reference(self) -> Frames:
        """Everything of the frame, as views."""
        return self.library.split(self._rows)

    @property
    def anchor_pos_w(self) -> Tensor:
        """(N, 3) m."""
        return self.reference.body_pos_w[:, self.anchor]

    @property
    def anchor_quat_w(self) -> Tensor:
        """(N, 4)."""
        return self.reference.body_quat_w[:, self.anchor]

    @property
    def body_pos_relative_w(self) -> Tensor:
        """(N, B, 3) m, reference bodies moved to where the robot is: see `turn_to_robot`."""
        offset = self.reference.body_pos_w - self.anchor_pos_w[:, None]
        place = torch.cat((self.robot_anchor_pos_w[:, :2], self.anchor_pos_w[:, 2:]), dim=1)
        return place[:, None] + rotation.quat_apply(self.turn_to_robot()[:, None], offset)

    @property
    def body_quat_relative_w(self) -> Tensor:
        """(N, B, 4), reference bodies turned to where the robot faces."""
        return rotation.quat_mul(self.turn_to_robot()[:, None], self.reference.body_quat_w)

    def turn_to_robot(self) -> Tensor:
        """Return (N, 4): the heading of the rotation from the reference's anchor to the robot's.

        Re-anchoring turns the reference by it about the vertical through its anchor, and moves it in x and y until the
        anchors meet; heights stay the reference's (BeyondMimic, arXiv 2508.08241).
        """
        between = rotation.quat_mul(self.robot_anchor_quat_w, rotation.quat_conjugate(self.anchor_quat_w))
        return rotation.yaw_quat(between)

    def judged_frame(self) -> Frames:
        """Return the reference that the newest state was compared with; good until worlds start anew."""
        return self.library.frame(self.clip, self.judged)

    @property
    def clip_end(self) -> Tensor:
        """(N,) bool: the frame is the last of its clip."""
        return self.library.ended(self.clip, self.frame)

    # The robot -----------------------------------------------------------------------------------------------------

    @property
    def robot_joint_pos(self) -> Tensor:
        """(N, J) rad."""
        return self._data.joint_pos

    @property
    def robot_joint_vel(self) -> Tensor:
        """(N, J) rad/s."""
        return self._data.joint_vel

    @property
    def robot_root_pos_w(self) -> Tensor:
        """(N, 3) m."""
        return self._data.root_link_pos_w

    @property
    def robot_anchor_pos_w(self) -> Tensor:
        """(N, 3) m."""
        return self._data.body_link_pos_w[:, self._anchor_body]

    @property
    def robot_anchor_quat_w(self) -> Tensor:
        """(N, 4)."""
        return self._data.body_link_quat_w[:, self._anchor_body]

    @property
    def robot_body_pos_w(self) -> Tensor:
        """(N, B, 3) m."""
        return self._data.body_link_pos_w[:, self._bodies]

    @property
    def robot_body_quat_w(self) -> Tensor:
        """(N, B, 4)."""
        return self._data.body_link_quat_w[:, self._bodies]

    @property
    def robot_body_lin_vel_w(self) -> Tensor:
        """(N, B, 3) m/s, of the bodies' origins."""
        return self._data.body_link_lin_vel_w[:, self._bodies]

    @property
    def robot_body_ang_vel_w(self) -> Tensor:
        """(N, B, 3) rad/s."""
        return self._data.body_link_ang_vel_w[:, self._bodies]

    # The tick ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Behind the rewards: count failures, keep the errors, ask for wraps, go on to the next frame."""
        self.sampler.update(self.clip, self.frame, self._env.terminated)
        self.judged.copy_(self.frame)
        self.errors.copy_(self._measure())
        if self.rewrite is not None:
            self.rewrite.copy_(self.clip_end)
        last = self.library.length[self.clip] - 1
        self.frame.copy_(torch.minimum(self.frame + 1, last))
        self._rows.copy_(self.library.rows(self.clip, self.frame))

    def resample(self, mask: Tensor) -> None:
        """Draw where the worlds of a mask start, and stage the robot's state there, with noise."""
        # A wrap and a reset in one tick draw the same words: no world takes both.
        clip, start = self.sampler.draw(self.rng)
        self.put(mask, clip, start)

    def reset(self, mask: Tensor) -> None:
        self.resample(mask)

    def write_state(self, mask: Tensor) -> None:
        """A clip wraps: like a new start, but the episode goes on."""
        self.resample(mask)

    def put(self, mask: Tensor, clip: Tensor, start: Tensor) -> None:
        """Start the worlds of a mask at a frame of a clip: stage the state of that frame, show the next one.

        Args:
            mask: (N,) bool.
            clip, start: (N,) int64.
        """
        state = self.library.frame(clip, start)
        assign_rows(self.clip, mask, clip)
        assign_rows(self.frame, mask, torch.minimum(start + 1, self.library.length[clip] - 1))
        assign_rows(self._rows, mask, self.library.rows(clip, start + 1))
        move = self._pose.draw()
        turn = rotation.quat_from_euler_xyz(move[:, 3], move[:, 4], move[:, 5])
        pose = torch.cat((state.root_pos + move[:, :3], rotation.quat_mul(turn, state.root_quat)), dim=1)
        velocity = torch.cat((state.root_lin_vel, state.root_ang_vel), dim=1) + self._velocity.draw()
        joints = state.joint_pos + self.rng.uniform(
            "joint_pos", state.joint_pos.shape[1], *self.cfg.joint_position_range
        )
        joints = torch.clamp(joints, *self._data.joint_pos_limits.unbind(dim=1))
        self._entity.write_root_link_pose_to_sim(pose, mask)
        self._entity.write_root_link_velocity_to_sim(velocity, mask)
        self._entity.write_joint_state_to_sim(joints, state.joint_vel, mask)

    def _measure(self) -> Tensor:
        """Return (N, len(ERRORS)), in the order of ERRORS."""
        reference, anchor, norm = self.reference, self.anchor, torch.linalg.vector_norm
        pos = norm(self.body_pos_relative_w - self.robot_body_pos_w, dim=-1)
        rot = rotation.quat_error_magnitude(self.body_quat_relative_w, self.robot_body_quat_w)
        linear = norm(reference.body_lin_vel_w - self.robot_body_lin_vel_w, dim=-1)
        angular = norm(reference.body_ang_vel_w - self.robot_body_ang_vel_w, dim=-1)
        columns = (
            norm(self.anchor_pos_w - self.robot_anchor_pos_w, dim=-1),
            rotation.quat_error_magnitude(self.anchor_quat_w, self.robot_anchor_quat_w),
            linear[:, anchor], angular[:, anchor],
            pos.mean(dim=1), rot.mean(dim=1), linear.mean(dim=1), angular.mean(dim=1),
            (reference.joint_pos - self.robot_joint_pos).abs().mean(dim=1),
            (reference.joint_vel - self.robot_joint_vel).abs().mean(dim=1),
        )  # fmt: skip
        return torch.stack(columns, dim=1)

    # For terms and pictures ----------------------------------------------------------------------------------------

    def body_columns(self, names: Sequence[str], what: str = "body_names") -> list[int]:
        """Return the places of names among the tracked bodies.

        Raises:
            TickgraphError: one is not tracked; with nearby names.
        """
        for name in names:
            if name not in self.body_names:
                hint = nearby(name, self.body_names) or f"tracked are {', '.join(self.body_names)}"
                raise TickgraphError(f"{self.path}: {what} has {name!r}, which is not tracked; {hint}")
        return [self.body_names.index(name) for name in names]

    def ghost_qpos(self) -> Tensor:
        """Return (N, nq), the scene with the robot in the pose of the frame that its present state is to match."""
        state, index = self.library.frame(self.clip, self.frame - 1), self._entity.index
        qpos = self._env.sim.view("qpos").clone()
        root = int(index.root_qpos_adr)
        qpos[:, root : root + 7] = torch.cat((state.root_pos, state.root_quat), dim=1)
        qpos[:, torch.as_tensor(index.qpos_adr, device=qpos.device)] = state.joint_pos
        return qpos


@dataclass
class MotionCommandCfg(CommandTermCfg):
    """Reference motion for one robot.

    Args:
        clips: names of shipped clips, motion files, or folders of them.
        anchor_body_name: the body by which the reference is re-anchored, one of ``body_names``.
        body_names: the bodies to track.
        weights: one for each of ``clips``, more than 0: a clip of weight 2 is drawn as if it were named twice, and so
            is each of a folder's. Empty: all alike. An evaluation plays every clip as often.
        sampler: where episodes start.
        pose_range: noise of a start's root pose: {axis: (low, high)} of x y z, m, and roll pitch yaw, rad, all in the
            world.
        velocity_range: the same for its velocity, m/s and rad/s.
        joint_position_range: rad, noise of its joints, which stay within their range.
        truncate_on_clip_end: the term ``motion_clip_end`` ends the episode behind the clip's last frame (without that
            term the reference stays there). If not, the state is rewritten to a new start and the episode goes on.
        entity_name: the robot.
    """

    class_type: Callable[..., Any] | None = MotionCommand
    clips: tuple[str, ...] = ()
    anchor_body_name: str = ""
    body_names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    sampler: SamplerCfg = field(default_factory=SamplerCfg)
    pose_range: dict[str, Range] = field(default_factory=dict)
    velocity_range: dict[str, Range] = field(default_factory=dict)
    joint_position_range: Range = (0.0, 0.0)
    truncate_on_clip_end: bool = True
    entity_name: str = "robot"

    def __post_init__(self) -> None:
        check_fields(self, "MotionCommandCfg")
        if not self.clips:
            raise TickgraphError("MotionCommandCfg.clips is empty, expected names of clips, motion files or folders")
        # A run's configuration is read again from other folders, so that files are kept by their full path.
        self.clips = tuple(name if name in shipped() else _full_path(name) for name in self.clips)


def _clip_weights(cfg: MotionCommandCfg, path: str) -> list[float]:
    """Return the weight of every clip, a folder's for each of its files; empty where all are alike."""
    if not cfg.weights:
        return []
    if len(cfg.weights) != len(cfg.clips) or not all(0.0 < weight < math.inf for weight in cfg.weights):
        given = ", ".join(f"{weight:g}" for weight in cfg.weights)
        raise TickgraphError(
            f"{path}: weights is {given}, expected {len(cfg.clips)}, one for each of clips, more than 0; "
            "leave out a clip that shall not be drawn"
        )
    return [weight for name, weight in zip(cfg.clips, cfg.weights, strict=True) for _ in find(name)]


def _full_path(reference: str) -> str:
    find(reference)
    return str(Path(expanduser(reference)).absolute())
