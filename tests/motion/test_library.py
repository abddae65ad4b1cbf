"""The table of clips: what is gathered is the clip's own frame, and never another clip's."""

import pytest
import torch
from motion_toys import SKELETON, still

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall, judge_calls
from tickgraph.motion.library import MotionLibrary
from tickgraph.motion.synth import CLIPS, Maker
from tickgraph.robots.g1 import TRACKED_BODIES


def build(lengths: list[int], device: str = "cpu") -> tuple[MotionLibrary, Arena]:
    arena = Arena(device)
    clips = [still(length, f"clip{i}", x=float(i)) for i, length in enumerate(lengths)]
    return MotionLibrary(clips, arena, "motion", body_names=TRACKED_BODIES), arena


def test_a_gather_never_reads_past_its_clip() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        count = int(torch.randint(1, 6, (), generator=generator))
        lengths = torch.randint(2, 40, (count,), generator=generator)
        library, _ = build(lengths.tolist())
        clip = torch.randint(0, count, (500,), generator=generator)
        index = torch.randint(-5, 60, (500,), generator=generator)
        frames = library.frame(clip, index)
        # The root's x is the clip's number and the first joint's angle the frame's, so that a row says whose it is.
        assert torch.equal(frames.root_pos[:, 0], clip.float())
        expected = torch.minimum(index.clamp(min=0), lengths[clip] - 1)
        assert torch.equal(frames.joint_pos[:, 0], expected.float())
        assert torch.equal(library.ended(clip, index), index >= lengths[clip] - 1)


def test_every_part_of_a_row_is_the_clips() -> None:
    clip = CLIPS["arm_wave"](Maker(SKELETON))
    arena = Arena("cpu")
    names = ("torso_link", "left_ankle_roll_link")
    joints = tuple(reversed(SKELETON.joint_names))
    library = MotionLibrary([clip], arena, "motion", joints, names)
    at = torch.tensor([0, 77, 200])
    frames = library.frame(torch.zeros(3, dtype=torch.int64), at)
    bodies = [SKELETON.body_names.index(name) for name in names]
    assert torch.equal(frames.joint_pos, clip.joint_pos[at].flip(1))
    assert torch.equal(frames.joint_vel, clip.joint_vel[at].flip(1))
    for part in ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w"):
        whole = getattr(clip, part)[at]
        assert torch.equal(getattr(frames, part), whole[:, bodies])
        root = "root" + part.removeprefix("body").removesuffix("_w")
        assert torch.equal(getattr(frames, root), whole[:, 0])
    assert library.table.is_contiguous() and library.nbytes == clip.frames * (2 * 29 + 13 + 2 * 13) * 4
    assert "1 clip, 351 frames at 50 fps (7.0 s), 2 bodies: 0.1 MiB on cpu" == library.summary()


def test_the_gather_is_static() -> None:
    library, arena = build([5, 9], "meta")
    clip, index = (arena.new(name, (7,), torch.int64) for name in ("clip", "index"))

    def gather() -> object:
        return library.frame(clip, index), library.ended(clip, index)

    assert judge_calls([JudgedCall("commands", "motion", gather, gather, (library,), arena)]) == []


@pytest.mark.parametrize(
    ("lengths", "names", "reason"),
    [
        ([], None, "at least one clip"),
        ([5, 1], None, "clip 'clip1' holds 1 frame"),
        ([5], ("torso",), "no body 'torso'"),
    ],
)
def test_what_does_not_fit_is_refused(lengths: list[int], names: tuple[str, ...] | None, reason: str) -> None:
    clips = [still(length, f"clip{i}") for i, length in enumerate(lengths)]
    with pytest.raises(TickgraphError, match=reason):
        MotionLibrary(clips, Arena("cpu"), "motion", body_names=names)


def test_clips_of_two_rates_are_refused() -> None:
    from dataclasses import replace

    with pytest.raises(TickgraphError, match="differ in fps"):
        MotionLibrary([still(5), replace(still(5), fps=30.0)], Arena("cpu"), "motion")
