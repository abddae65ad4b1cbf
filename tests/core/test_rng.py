"""Random words: published vectors, independence of width, mode and table, and what the draws are made of."""

import zlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rng import Rng, Stream, normals, philox4x32_10, stream_id

ALL_ONES = 0xFFFFFFFF


# From the known-answer file of Random123.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ALL_ONES] * 4, [ALL_ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, answer):
    assert philox4x32_10(torch.tensor(counter), torch.tensor(key)).tolist() == answer
    batch = philox4x32_10(torch.tensor([counter] * 3), torch.tensor([key] * 3))
    assert batch.tolist() == [answer] * 3


def make(rows: int, seed: int = 11, first_row: int = 0) -> tuple[Rng, Stream]:
    rng = Rng(Arena("cpu"), rows, seed, first_row)
    return rng, rng.stream("events/push")


def draws(stream: Stream, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        stream.words("w", 5),
        stream.uniform("velocity", 3, -1.3, torch.tensor([0.1, 2.7, 9.0])),
        stream.integers("i", 2, -2, 7),
        stream.choice("c", weights),
        stream.normal("n", 3),
    )


def test_words_follow_the_counter_of_the_design():
    rng, stream = make(6, seed=(5 << 32) + 9, first_row=4)
    rng.advance()
    words = stream.words("velocity", 7)
    counter = torch.tensor([zlib.crc32(b"events/push/velocity"), 1, 4 + 2, 1])
    block = philox4x32_10(counter, torch.tensor([9, 5]))
    assert words[2, 4:7].tolist() == block[:3].tolist()
    assert stream.words("velocity", 3).tolist() == words[:, :3].tolist()


def test_a_world_draws_the_same_at_every_width():
    weights = torch.tensor([1, 0, 5])
    narrow, wide = draws(make(8)[1], weights), draws(make(64)[1], weights)
    second_rank = draws(make(4, first_row=4)[1], weights)
    for one, other, shifted in zip(narrow, wide, second_rank, strict=True):
        assert torch.equal(one[7], other[7]) and torch.equal(one[7], shifted[3])


def test_draws_are_pure_and_streams_and_ticks_differ():
    rng, stream = make(8)
    first = stream.words("w", 4)
    assert torch.equal(first, stream.words("w", 4)) and rng.tick.item() == 0
    assert not torch.equal(first, stream.words("other", 4))
    assert not torch.equal(first, rng.stream("events/pull").words("w", 4))
    rng.advance()
    later = stream.words("w", 4)
    assert not torch.equal(first, later)
    rng.set_seed(12)
    assert not torch.equal(later, stream.words("w", 4))


def test_reserved_draws_are_the_same_words():
    weights = torch.tensor([1, 0, 5])
    plain, stream = make(8)
    draws(stream, weights)
    table, reserved = make(8)
    table.reserve(plain.draws())
    for _ in range(2):
        assert reserved.words("w", 5).data_ptr() == table._table.data_ptr()
        for one, other in zip(draws(stream, weights), draws(reserved, weights), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(stream.words("w", 9), reserved.words("w", 9))
        plain.advance(), table.advance()
        plain.set_seed(3), table.set_seed(3)


def test_several_ticks_ahead_are_the_draws_of_each():
    single, stream = make(8, first_row=2)
    several, _ = make(8, first_row=2)
    ahead = several.ahead({"events/push/w": 5, "events/push/n": 4}, ticks=3)
    for rng in (single, several):
        rng.tick.fill_(ALL_ONES - 1)  # the third is counter 0 again
    words, noise = ahead.words()
    assert several.tick.item() == ALL_ONES - 1, "a draw advances nothing"
    for tick in range(3):
        assert torch.equal(words[tick], stream.words("w", 5))
        assert torch.equal(normals(noise)[tick], stream.normal("n", 4))
        single.advance()
    several.advance(3)
    assert torch.equal(several.tick, single.tick)
    assert torch.equal(ahead.words()[0][0], stream.words("w", 5))


def test_one_id_for_two_paths_is_an_error():
    # A well-known pair of words with one crc32.
    assert stream_id("plumless") == stream_id("buckeroo")
    rng, _ = make(2)
    rng.stream("plumless")
    with pytest.raises(TickgraphError, match="'plumless' and 'buckeroo' have the same id"):
        rng.stream("buckeroo")
    with pytest.raises(TickgraphError, match="have the same id"):
        Stream(rng, "").words("x", 1), Stream(rng, "buckeroo").words("", 1)


def test_distributions():
    _, stream = make(20_000)
    uniform = stream.uniform("u", 2, -1.0, 3.0)
    assert uniform.dtype == torch.float32 and uniform.min() >= -1.0 and uniform.max() <= 3.0
    assert abs(uniform.mean().item() - 1.0) < 0.03 and abs(uniform.std().item() - 4 / 12**0.5) < 0.02
    normal = stream.normal("n", 3)
    assert normal.shape == (20_000, 3) and abs(normal.mean().item()) < 0.02 and abs(normal.std().item() - 1) < 0.02
    assert normal.isfinite().all() and abs(torch.corrcoef(normal.T)[0, 1].item()) < 0.03
    counts = torch.bincount(stream.integers("i", 1, 3, 7)[:, 0], minlength=8)
    assert counts[:3].sum() == 0 and counts[7] == 0 and (counts[3:7] - 5000).abs().max() < 300
    counts = torch.bincount(stream.choice("c", torch.tensor([0, 1, 0, 3, 0])), minlength=5)
    assert counts[[0, 2, 4]].sum() == 0 and abs(counts[1].item() - 5000) < 300


def test_edges():
    rng, stream = make(2)
    assert stream.words("w", 0).shape == stream.normal("n", 0).shape == (2, 0)
    assert stream.choice("c", torch.zeros(3, dtype=torch.int64)).tolist() == [2, 2]
    with pytest.raises(TickgraphError, match="high - low"):
        stream.integers("i", 1, 4, 4)
    with pytest.raises(TickgraphError, match=r"from 0 to 2\^64 - 1"):
        rng.set_seed(1 << 64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_the_same():
    weights = torch.tensor([1, 0, 5])
    stream = Rng(Arena("cuda"), 8, 11).stream("events/push")
    wide = torch.tensor([0.1, 2.7, 9.0])
    assert torch.equal(stream.uniform("u", 3, -1.3, wide.cuda()).cpu(), make(8)[1].uniform("u", 3, -1.3, wide))
    assert torch.equal(stream.words("w", 5).cpu(), make(8)[1].words("w", 5))
    assert torch.equal(stream.choice("c", weights.cuda()).cpu(), make(8)[1].choice("c", weights))


def test_draws_are_traced_in_one_graph_and_collisions_are_found_there():
    rng, stream = make(8)
    weights = torch.tensor([1, 0, 5])
    traced = torch.compile(lambda: draws(stream, weights), backend="eager", fullgraph=True, dynamic=False)
    for one, other in zip(draws(make(8)[1], weights), traced(), strict=True):
        assert torch.equal(one, other)
    assert set(rng.draws()) == {f"events/push/{name}" for name in ("w", "velocity", "i", "c", "n")}
    rng.stream("plumless")
    collides = Stream(rng, "buckeroo")
    with pytest.raises(Exception, match="have the same id"):
        torch.compile(lambda: collides.words("", 1), backend="eager", fullgraph=True)()


@pytest.mark.slow
def test_compiled_draws_equal_eager_draws():
    plain, stream = make(8)
    table, reserved = make(8)
    weights = torch.tensor([1, 0, 5, 9])
    draws(reserved, weights)
    table.reserve(table.draws())

    def tick() -> tuple[torch.Tensor, ...]:
        table.advance()
        return draws(reserved, weights)

    plain.advance()
    eager = draws(stream, weights)
    compiled = torch.compile(tick, fullgraph=True, dynamic=False)()
    for index, (one, other) in enumerate(zip(eager, compiled, strict=True)):
        if index == 4:
            torch.testing.assert_close(one, other, rtol=5e-7, atol=5e-7)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("lanes", [3, 8])
def test_the_judge_s_words_are_laid_out_as_others_and_cost_no_rounds(lanes):
    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    def words(device: str) -> tuple[torch.Tensor, int]:
        stream = Stream(Rng(Arena(torch.device(device)), 5, seed=1), "events/push")
        with Count() as count:
            return stream.words("a", lanes), count.operations

    (judged, few), (real, many) = words("meta"), words("cpu")
    assert (judged.shape, judged.stride(), judged.dtype) == (real.shape, real.stride(), real.dtype)
    assert few <= 3 < 200 < many
