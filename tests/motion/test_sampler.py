"""Where episodes start: counts by hand, frequencies against the analytic weights, the same on every device."""

import pytest
import torch
from motion_toys import still

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.judge import JudgedCall, judge_calls
from tickgraph.core.rng import Rng
from tickgraph.motion.library import MotionLibrary
from tickgraph.motion.sampler import SamplerCfg, StartSampler

HIT = 1 << 20
TOTAL = 1 << 30


def build(
    lengths: list[int], cfg: SamplerCfg, rows: int = 4, device: str = "cpu", seed: int = 7, clip_weights: tuple = ()
):
    arena = Arena(device)
    clips = [still(length, f"clip{i}") for i, length in enumerate(lengths)]
    library = MotionLibrary(clips, arena, "motion")
    sampler = StartSampler(library, cfg, arena, "motion/sampler", clip_weights)
    rng = Rng(arena, rows, seed)
    return sampler, rng, arena


def draws(sampler: StartSampler, rng: Rng, ticks: int) -> tuple[torch.Tensor, torch.Tensor]:
    stream = rng.stream("motion")
    found = []
    for _ in range(ticks):
        found.append(torch.stack(sampler.draw(stream)))
        rng.advance()
    clip, frame = torch.cat(found, dim=1)
    return clip, frame


def test_bins_cover_every_frame_that_has_one_ahead() -> None:
    # 50 fps and bins of 1 s. 121 frames: 120 usable, bins of 50 and 70; 176: 175, bins of 50, 50, 50, 25 (rounding
    # 3.5 to even); 11: one bin of 10.
    sampler, _, _ = build([121, 176, 11], SamplerCfg())
    assert sampler.bin_clip.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert sampler.bin_start.tolist() == [0, 50, 0, 50, 100, 150, 0]
    assert sampler.bin_frames.tolist() == [50, 70, 50, 50, 50, 25, 10]
    clip = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 9])
    frame = torch.tensor([0, 49, 50, 120, -3, 175, 0, 99, 0])
    assert sampler.bin_of(clip, frame).tolist() == [0, 0, 1, 1, 2, 5, 6, 6, 6]


def test_counts_and_weights_by_hand() -> None:
    # Two bins of 50 frames; the counts fade by half; no blur.
    sampler, _, _ = build([101], SamplerCfg(decay=0.5, kernel=1, floor=0.25))
    assert sampler.failures.tolist() == [HIT, HIT]  # one failure a tick, which halves: two in all, spread evenly
    assert sampler.weights.tolist() == [TOTAL // 2, TOTAL // 2]
    failed = torch.tensor([True, True, True, False])
    sampler.update(torch.zeros(4, dtype=torch.int64), torch.tensor([10, 60, 99, 99]), failed)
    assert sampler.failures.tolist() == [HIT // 2 + HIT, HIT // 2 + 2 * HIT]
    # 1.5 of 4 failures and 2.5 of 4, of three quarters; the rest evenly.
    assert sampler.weights.tolist() == pytest.approx(
        [TOTAL * (0.125 + 0.75 * 1.5 / 4), TOTAL * (0.125 + 0.75 * 2.5 / 4)], abs=2
    )
    for _ in range(100):
        sampler.update(torch.zeros(4, dtype=torch.int64), torch.tensor([10, 60, 99, 99]), failed & False)
    assert sampler.weights.tolist() == [TOTAL // 8, TOTAL // 8]  # nothing fails any more: what is left is the floor


def test_a_failure_counts_for_the_bins_before_it_but_not_for_another_clip() -> None:
    cfg = SamplerCfg(decay=1e-4, kernel=3, kernel_decay=0.5, floor=0.2)
    sampler, _, _ = build([151, 151], cfg)
    sampler.failures.zero_()
    sampler.update(torch.tensor([1]), torch.tensor([120]), torch.tensor([True]))
    assert sampler.failures.tolist() == [0, 0, 0, 0, 0, HIT]
    # The kernel is 4/7, 2/7, 1/7 (585, 293, 146 of 1024); behind the last bin stands the last bin again.
    blurred = torch.tensor([0, 0, 0, 146, 293 + 146, 1024], dtype=torch.float64)
    expected = TOTAL * (0.2 / 6 + 0.8 * blurred / blurred.sum())
    assert sampler.weights.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize("mode", ["uniform", "adaptive"])
def test_frequencies_are_those_of_the_weights(mode: str) -> None:
    sampler, rng, _ = build([171, 301, 32], SamplerCfg(mode=mode, decay=0.02), rows=2000)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        clip = torch.randint(0, 3, (64,), generator=generator)
        frame = torch.randint(0, 200, (64,), generator=generator)
        sampler.update(clip, frame, (clip == 1) & (frame > 100))
    clip, frame = draws(sampler, rng, 100)
    bins = sampler.bin_of(clip, frame)
    count = torch.bincount(bins, minlength=len(sampler.weights)).double()
    expected = sampler.weights.double() / sampler.weights.sum() * len(bins)
    # Chi-squared of K - 1 degrees of freedom: mean K - 1, deviation sqrt(2 (K - 1)); five deviations.
    statistic, freedom = float(((count - expected) ** 2 / expected).sum()), len(expected) - 1
    assert statistic < freedom + 5.0 * (2.0 * freedom) ** 0.5
    if mode == "adaptive":
        assert expected.max() > 3.0 * expected.min()  # the failures tell
    else:  # every frame alike, over clips of unlike lengths
        frames = torch.bincount(sampler.library.start[clip] + frame, minlength=504).double()
        usable = torch.cat([torch.arange(n) < n - 1 for n in (171, 301, 32)])
        assert bool((frames[~usable] == 0).all())
        mean = len(frame) / int(usable.sum())
        statistic, freedom = float(((frames[usable] - mean) ** 2 / mean).sum()), int(usable.sum()) - 1
        assert abs(statistic - freedom) < 5.0 * (2.0 * freedom) ** 0.5


def test_start_mode_begins_every_clip_alike() -> None:
    sampler, rng, _ = build([400, 20], SamplerCfg(mode="start"), rows=1000)
    clip, frame = draws(sampler, rng, 10)
    assert int(frame.abs().max()) == 0
    assert abs(int((clip == 0).sum()) - 5000) < 5 * 50  # 10,000 coins: deviation 50


@pytest.mark.parametrize("mode", ["uniform", "start", "adaptive"])
def test_a_clip_of_weight_2_is_drawn_like_one_that_is_there_twice(mode: str) -> None:
    cfg = SamplerCfg(mode=mode, decay=0.02, floor=0.3)
    weighted, _, _ = build([171, 301, 51], cfg, clip_weights=(1.0, 2.0, 0.5))
    named, _, _ = build([171, 171, 301, 301, 301, 301, 51], cfg)  # the same, by whole numbers
    twins = {0: (0, 1), 1: (2, 3, 4, 5), 2: (6,)}
    for tick in range(60 if mode == "adaptive" else 1):
        for clip, those in twins.items():
            expected = sum(named.weights[named.bin_clip == twin].double() for twin in those) / named.weights.sum()
            share = weighted.weights[weighted.bin_clip == clip].double() / weighted.weights.sum()
            assert torch.allclose(share, expected, rtol=1e-3), (tick, clip)  # counts are weighed in 1024ths
        # Clip 1 fails at frames 120 and 7, clip 2 at 30; the twins share the failures of a clip.
        worlds = 4 * [(1, 120), (1, 7), (2, 30)]
        clip, frame = torch.tensor(worlds).T
        weighted.update(clip, frame, torch.ones(12, dtype=torch.bool))
        clip = torch.tensor([twins[c][i // 3 % len(twins[c])] for i, (c, _) in enumerate(worlds)])
        named.update(clip, frame, torch.ones(12, dtype=torch.bool))
    if mode == "start":
        assert weighted.weights[weighted.bin_start > 0].eq(0).all()


def test_weights_of_clips_of_any_size_leave_every_bin_a_chance() -> None:
    sampler, _, _ = build([171, 301], SamplerCfg(mode="uniform"), clip_weights=(1e300, 1e-300))
    assert int(sampler.weights.min()) == 1 and int(sampler.weights.sum()) < 1 << 31
    assert sampler.weights[:3].tolist() == pytest.approx([TOTAL * n / 170 for n in (50, 50, 70)], abs=2)


def test_start_frames_lie_within_their_clip() -> None:
    generator = torch.Generator().manual_seed(2)
    for left in (1, 10):
        lengths = torch.randint(11, 300, (5,), generator=generator)
        sampler, rng, _ = build(lengths.tolist(), SamplerCfg(frames_left=left), rows=500)
        clip, frame = draws(sampler, rng, 20)
        assert bool((frame >= 0).all()) and bool((frame <= lengths[clip] - 1 - left).all())
        assert set(clip.tolist()) == set(range(5))


def test_weights_stay_sound_where_everything_fails() -> None:
    # The largest numbers: 16384 worlds fail in one bin in every tick and counts fade as slowly as can be.
    sampler, _, _ = build([5001], SamplerCfg(decay=1e-6, kernel=64, kernel_decay=1.0, floor=1e-3))
    sampler.failures.fill_(0)
    sampler.failures[-1] = (1 << 14) * HIT << 16  # where the counts end up
    clip, frame = torch.zeros(1 << 14, dtype=torch.int64), torch.full((1 << 14,), 4999)
    for _ in range(3):
        sampler.update(clip, frame, torch.ones(1 << 14, dtype=torch.bool))
    assert int(sampler.weights.min()) >= 1
    assert 0.99 * TOTAL < int(sampler.weights.sum()) < 1 << 31
    assert int(sampler.weights.argmax()) == len(sampler.weights) - 1
    blurred = torch.zeros(100, dtype=torch.float64)
    blurred[-64:] = torch.arange(1, 65)  # 64 equal taps: the last bin is all of its own followers
    expected = 1e-3 / 100 + 0.999 * blurred / blurred.sum()
    assert torch.allclose(sampler.probabilities().double(), expected, atol=1e-6)


def test_drawing_and_counting_are_static() -> None:
    sampler, rng, arena = build([60, 200], SamplerCfg(), device="meta")
    clip, frame = (arena.new(name, (4,), torch.int64) for name in ("clip", "frame"))
    failed = arena.new("failed", (4,), torch.bool)
    stream = rng.stream("motion")

    def tick() -> None:
        sampler.update(clip, frame, failed)
        new_clip, new_frame = sampler.draw(stream)
        clip.copy_(new_clip)
        frame.copy_(new_frame)

    assert judge_calls([JudgedCall("commands", "motion", tick, tick, (sampler, sampler.library), arena)]) == []


def trace(device: str) -> list[list[int]]:
    """Return counts, weights and draws of 200 ticks in which failures depend on the draws."""
    sampler, rng, arena = build([171, 301, 32], SamplerCfg(), rows=256, device=device)
    arena.seal()
    stream = rng.stream("motion")
    clip, frame = sampler.draw(stream)
    found = []
    for _ in range(200):
        rng.advance()
        sampler.update(clip, frame, (clip == 1) & (frame % 7 < 2))
        clip, frame = sampler.draw(stream)
        found += [x.tolist() for x in (sampler.failures, sampler.weights, clip, frame)]
    return found


def test_compiled_equals_eager() -> None:
    sampler, rng, _ = build([171, 301], SamplerCfg(), rows=64)
    other, _, _ = build([171, 301], SamplerCfg(), rows=64)
    compiled = torch.compile(other.update, fullgraph=True, dynamic=False)
    clip, frame = draws(sampler, rng, 1)
    for _ in range(3):
        sampler.update(clip, frame, frame % 3 == 0)
        compiled(clip, frame, frame % 3 == 0)
    assert torch.equal(sampler.failures, other.failures) and torch.equal(sampler.weights, other.weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_counts_and_draws_are_the_same_on_a_gpu() -> None:
    assert trace("cuda") == trace("cpu")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "adaptiv"}, "mode is 'adaptiv'"),
        ({"bin_s": 0.0}, "bin_s is 0"),
        ({"bin_s": float("inf")}, "bin_s is inf, expected more than 0 and finite"),
        ({"floor": 0.0}, "floor is 0"),
        ({"decay": 1.0}, "decay is 1"),
        ({"kernel": 0}, "kernel is 0"),
        ({"frames_left": 0}, "frames_left is 0"),
        ({"frames_left": 20}, "clip 'clip0' has 20 frames, so that none has 20 more ahead"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(TickgraphError, match=reason):
        build([20], SamplerCfg(**change))


def test_each_world_in_turn_takes_the_next_clip_from_its_first_frame() -> None:
    sampler, rng, _ = build([40, 7, 90], SamplerCfg(mode="each"), rows=8)
    clip, frame = sampler.draw(rng.stream("motion"))
    assert clip.tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and frame.tolist() == [0] * 8
