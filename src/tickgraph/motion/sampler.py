"""Where in the clips an episode starts: anywhere, at the start, or where failures are; whole numbers on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rng import Stream
from tickgraph.motion.library import MotionLibrary

_MODES = ("uniform", "start", "each", "adaptive")
_HIT = 1 << 20  # what one failure adds to its bin
_DECAY_BITS = 16
_KERNEL_BITS = 10
_COUNT_SHIFT = 10  # what is dropped of the counts before they are weighed: less than a thousandth of a failure
_TOTAL = 1 << 30  # of all weights; a choice by weight allows twice as much
_SCALED = 1 << 31
_MAX_KERNEL = 64
_MAX_BINS = 1 << 20


@dataclass
class SamplerCfg:
    """How start frames are drawn.

    Args:
        mode: ``uniform`` over all frames, ``start`` (every clip's first frame, clips alike), ``each`` (the first frame
            of the clip whose turn it is by the world's number, for evaluation), or ``adaptive``: a share ``floor``
            uniform, the rest in proportion to the failures that were seen.
        bin_s: s, length of the bins in which failures are counted.
        floor: share of the uniform part, in (0, 1].
        decay: share by which the counts fade each tick, in (0, 1).
        kernel: bins, at least 1: a failure also counts for the kernel - 1 bins before its own, where the mistake may
            have begun.
        kernel_decay: how much less the bin before counts, in (0, 1].
        frames_left: no episode starts with fewer frames of its clip ahead, at least 1.
    """

    mode: Literal["uniform", "start", "each", "adaptive"] = "adaptive"
    bin_s: float = 1.0
    floor: float = 0.1
    decay: float = 0.001
    kernel: int = 3
    kernel_decay: float = 0.8
    frames_left: int = 1


class StartSampler:
    """Draws (clip, frame) for every world; the caller takes what its mask selects.

    Counts are fixed-point whole numbers, so that they and the choice are the same on every device. K bins.

    Args:
        library: the clips.
        cfg: see `SamplerCfg`.
        arena: takes counts and weights (state) and the bins (constants).
        path: folder of their names.
        clip_weights: of each clip, more than 0: one of weight 2 is drawn as if it were there twice. Empty: all alike.

    Attributes:
        weights: (K,) int64 that bins are chosen by, none of which is 0 unless the mode is ``start`` or ``each``.
        failures: (K,) int64, failures a bin, fading; one failure is 2^20. Only if the mode is ``adaptive``.
        bin_clip, bin_start, bin_frames: (K,) int64, each bin's clip, its first frame in it, and how many frames may be
            drawn from it.

    Raises:
        TickgraphError: a value of `cfg` cannot be, or a clip has no frame to start from.
    """

    def __init__(
        self,
        library: MotionLibrary,
        cfg: SamplerCfg,
        arena: Arena,
        path: str,
        clip_weights: Sequence[float] = (),
    ) -> None:
        _check(cfg)
        self.cfg, self.library = cfg, library
        size = max(1, round(cfg.bin_s * library.fps))
        clip, start, frames, offset, count = _bins(library, size, cfg.frames_left)
        if len(clip) > _MAX_BINS:
            raise TickgraphError(f"the clips make {len(clip):,} bins, the limit is {_MAX_BINS:,}; raise bin_s")
        ints = torch.int64
        self.bin_clip = arena.constant(f"{path}/bin_clip", clip, ints, "clip of each bin")
        self.bin_start = arena.constant(f"{path}/bin_start", start, ints, "first frame of each bin in its clip")
        self.bin_frames = arena.constant(f"{path}/bin_frames", frames, ints, "frames that may be drawn from each bin")
        self._offset = arena.constant(f"{path}/offset", offset, ints, "first bin of each clip")
        self._count = arena.constant(f"{path}/count", count, ints, "bins of each clip")
        self._size, self._clips = size, len(count)
        base = (start == 0).to(ints) if cfg.mode in ("start", "each") else frames
        if clip_weights:
            base = _weighted(base, torch.tensor(clip_weights, dtype=torch.float64)[clip])
        self.weights = arena.new(f"{path}/weights", (len(clip),), ints, "weight by which each bin is chosen")
        if cfg.mode != "adaptive":
            self.weights.copy_(base)
            return
        self._floor_total = round(cfg.floor * _TOTAL)
        floor = _share(base, self._floor_total).clamp(min=1)
        self._floor = arena.constant(f"{path}/floor", floor, ints, "weight of each bin without any failure")
        taps = torch.arange(cfg.kernel)[:, None]
        following = torch.minimum(torch.arange(len(clip)) + taps, (offset + count - 1)[clip])
        self._following = arena.constant(f"{path}/following", following, ints, "bins whose failures count for each")
        self._kernel = arena.constant(f"{path}/kernel", _kernel(cfg), ints, "how much each of them counts")
        self._decay = max(1, round(cfg.decay * (1 << _DECAY_BITS)))
        self.failures = arena.new(f"{path}/failures", (len(clip),), ints, "failures a bin, fading, in 2^-20")
        # As if one world had failed in each tick, evenly: the first failures of a run do not take over.
        self.failures.copy_(_share(base, _HIT * (1 << _DECAY_BITS) // self._decay))
        self._weigh()

    def draw(self, stream: Stream, name: str = "start") -> tuple[Tensor, Tensor]:
        """Return a clip and a frame of it for every world, both (N,) int64.

        Args:
            stream: of the owner; N rows.
            name: name of the draw within its owner; it takes two.
        """
        if self.cfg.mode == "each":
            clip = stream.rng.row % self._clips
            return clip, torch.zeros_like(clip)
        chosen = stream.choice(f"{name}/bin", self.weights)
        if self.cfg.mode == "start":
            return self.bin_clip[chosen], torch.zeros_like(chosen)
        frames = self.bin_frames[chosen]
        within = stream.integers(f"{name}/frame", 1, 0, frames[:, None])[:, 0]
        return self.bin_clip[chosen], self.bin_start[chosen] + within

    def bin_of(self, clip: Tensor, frame: Tensor) -> Tensor:
        """Return (N,) int64 bins of frames of clips; past a clip's ends it is its first or last bin."""
        clip = clip.clamp(0, self._clips - 1)
        place = _divide(frame.clamp(min=0), self._size)
        return self._offset[clip] + torch.minimum(place, self._count[clip] - 1)

    def update(self, clip: Tensor, frame: Tensor, failed: Tensor) -> None:
        """Count a tick's failures and bring the weights up to date; call it once a tick.

        Args:
            clip, frame: (N,) int64, where each world was.
            failed: (N,) bool, worlds whose episode ended by a failure; ends of time or of a clip are none.
        """
        if self.cfg.mode != "adaptive":
            return
        hits = _count(self.bin_of(clip, frame), failed, self.failures.shape[0])
        faded = (self.failures * self._decay) >> _DECAY_BITS
        self.failures.add_(hits * _HIT - faded)
        self._weigh()

    def _weigh(self) -> None:
        """Write the weights that follow from the failures. No intermediate exceeds 63 bits."""
        counts = self.failures >> _COUNT_SHIFT
        blurred = (counts[self._following] * self._kernel[:, None]).sum(dim=0)
        scaled = _divide(blurred, _divide(blurred.sum(), _SCALED) + 1)
        share = _divide(scaled * (_TOTAL - self._floor_total), scaled.sum().clamp(min=1))
        self.weights.copy_(self._floor + share)

    def probabilities(self) -> Tensor:
        """Return (K,) float32, how likely each bin is."""
        return self.weights.to(torch.float32) / self.weights.sum().to(torch.float32)


def _check(cfg: SamplerCfg) -> None:
    wrong = {
        f"mode is {cfg.mode!r}, expected one of {', '.join(_MODES)}": cfg.mode not in _MODES,
        f"bin_s is {cfg.bin_s:g}, expected more than 0 and finite": not 0.0 < cfg.bin_s < math.inf,
        f"floor is {cfg.floor:g}, expected more than 0 and at most 1": not 0.0 < cfg.floor <= 1.0,
        f"decay is {cfg.decay:g}, expected more than 0 and less than 1": not 0.0 < cfg.decay < 1.0,
        f"kernel is {cfg.kernel}, expected 1 to {_MAX_KERNEL}": not 1 <= cfg.kernel <= _MAX_KERNEL,
        f"kernel_decay is {cfg.kernel_decay:g}, expected more than 0 and at most 1": not 0.0 < cfg.kernel_decay <= 1.0,
        f"frames_left is {cfg.frames_left}, expected at least 1": cfg.frames_left < 1,
    }
    for text, broken in wrong.items():
        if broken:
            raise TickgraphError(f"SamplerCfg.{text}")


def _bins(library: MotionLibrary, size: int, frames_left: int) -> tuple[Tensor, ...]:
    """Return clip, first frame and frames of each bin, then the first bin and the number of bins of each clip."""
    clip, start, frames, offset, count = [], [], [], [], []
    for number, (name, length) in enumerate(zip(library.clip_names, library.lengths, strict=True)):
        usable = length - frames_left
        if usable < 1:
            raise TickgraphError(
                f"clip {name!r} has {length} frames, so that none has {frames_left} more ahead; lower frames_left"
            )
        bins = max(1, round(usable / size))  # the last one takes what is left, from half a bin to one and a half
        offset.append(len(clip))
        count.append(bins)
        clip += [number] * bins
        start += [i * size for i in range(bins)]
        frames += [size] * (bins - 1) + [usable - (bins - 1) * size]
    return tuple(torch.tensor(values, dtype=torch.int64) for values in (clip, start, frames, offset, count))


def _count(bins: Tensor, mask: Tensor, size: int) -> Tensor:
    """Return (size,) int64: how often each bin comes up in the worlds of a mask.

    Worlds outside the mask have a place each, as those that add to one place wait for each other; and the counts are of
    32 bits, as compilers for GPUs have no atomic addition of 64 and would sort the bins instead.
    """
    n = bins.shape[0]
    place = torch.where(mask, bins, size + torch.arange(n, device=bins.device))
    empty = torch.zeros(size + n, dtype=torch.int32, device=bins.device)
    return empty.index_add(0, place, torch.ones_like(place, dtype=torch.int32))[:size].to(torch.int64)


def _divide(a: Tensor, b: Tensor | int) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _share(base: Tensor, total: int) -> Tensor:
    """Return (K,) int64 in proportion to `base`, with a sum of at most `total`."""
    whole = int(base.sum())
    return torch.tensor([value * total // whole for value in base.tolist()], dtype=torch.int64)


def _weighted(base: Tensor, weights: Tensor) -> Tensor:
    """Return (K,) int64 in proportion to `base` times weights (K,) float64, with a sum of about _TOTAL; 0 stays 0."""
    share = base * (weights / weights.max())
    share = torch.round(share * (_TOTAL / share.sum())).to(torch.int64)
    return torch.where(base > 0, share.clamp(min=1), 0)


def _kernel(cfg: SamplerCfg) -> Tensor:
    """Return (kernel,) int64 weights with a sum of about 2^10."""
    taps = [cfg.kernel_decay**i for i in range(cfg.kernel)]
    return torch.tensor([max(1, round((1 << _KERNEL_BITS) * tap / sum(taps))) for tap in taps], dtype=torch.int64)
