"""The loop over blocks: every arm plays every trace, in turning order, and the collector goes on from the recording."""

from types import SimpleNamespace

import pytest
import torch

from tickgraph.bench import _blocks


def test_arms_take_turns_and_the_first_tick_does_not_count(monkeypatch):
    class Stub:
        env, at, loaded = SimpleNamespace(num_envs=3, device=torch.device("cpu")), 0, []

        def state(self):
            return {"tick": self.at}

        def load(self, state):
            self.loaded.append(state["tick"])

    stub, calls = Stub(), []

    def record(ticks):
        stub.at += ticks
        return [SimpleNamespace(rows=SimpleNamespace(size=2)) for _ in range(ticks)]

    def play(arm, trace, start, end):
        calls.append((arm, start["tick"], end["tick"]))
        return [100.0, *(float(number + len(arm)) for number in range(len(trace) - 1))]

    monkeypatch.setattr(_blocks.replay, "record_bytes", lambda env, ticks: 1)
    played = _blocks.play_blocks(stub, ("a", "bb"), blocks=2, ticks=3, record=record, play=play)
    assert calls == [("a", 0, 4), ("bb", 0, 4), ("bb", 4, 8), ("a", 4, 8)]
    assert played.samples["a"] == [1.0, 2.0, 3.0] * 2 and played.sums["bb"] == pytest.approx([9.0, 9.0])
    assert played.resets == 2 * 3 * 2 and stub.loaded == [4, 8]
