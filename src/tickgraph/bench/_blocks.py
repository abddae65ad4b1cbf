"""The loop over blocks of the collector's benchmark: record a trace, then let every arm play it, in turning order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from tickgraph.bench import _replay as replay
from tickgraph.bench._case import Collector
from tickgraph.bench._replay import TracedTick
from tickgraph.core.room import check_room

State = dict[str, Tensor]
Play = Callable[[str, list[TracedTick], State, State], list[float]]
Record = Callable[[int], list[TracedTick]]


@dataclass
class Played:
    """What the arms took."""

    samples: dict[str, list[float]]
    """Milliseconds of each tick of each arm."""
    sums: dict[str, list[float]]
    """Milliseconds of each block of each arm."""
    resets: int
    """Worlds that began an episode in the recorded ticks."""


def play_blocks(
    collector: Collector, arms: Sequence[str], blocks: int, ticks: int, record: Record, play: Play
) -> Played:
    """Play blocks of `ticks` ticks; every second block has the arms in the opposite order.

    Args:
        collector: goes on from its state, by one recorded trace a block.
        arms: names in their order.
        blocks, ticks: how many, and how long each is.
        record: plays that many of the collector's ticks and returns their trace.
        play: (arm, trace, state before, state after) -> milliseconds of each tick of the trace. Its first tick leads
            in, with cold caches and a state just restored, and does not count.
    """
    env = collector.env
    advice = "use fewer worlds (--num-envs) or shorter blocks (--ticks-per-block)"
    what = f"a recording of {1 + ticks} ticks of {env.num_envs} worlds"
    check_room(replay.record_bytes(env, 1 + ticks), env.device, what, advice)
    played = Played({name: [] for name in arms}, {name: [] for name in arms}, 0)
    for block in range(blocks):
        start = collector.state()
        trace = record(1 + ticks)
        end = collector.state()
        played.resets += sum(tick.rows.size for tick in trace[1:])
        for name in arms if block % 2 == 0 else reversed(arms):
            durations = play(name, trace, start, end)[1:]
            played.samples[name] += durations
            played.sums[name].append(sum(durations))
        collector.load(end)
        del trace
    return played
