"""Random numbers as pure functions: Philox4x32-10 words keyed by seed and counted by stream, tick, world and lane."""

import itertools
import math
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.bounds import MOST_ROWS
from tickgraph.core.errors import TickgraphError
from tickgraph.core.given import seed64

_WORD = MOST_ROWS - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of factor * word, for an odd factor, without leaving signed int64."""
    # With f = 2 h + 1, f * word = 2 (h * word + word // 2) + word % 2, and the bracket stays below 2^63.
    half = word * (factor >> 1) + (word >> 1)
    return half >> 31, ((half & 0x7FFFFFFF) << 1) | (word & 1)


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    """Run ten rounds on counters and keys that broadcast together; all int64 in [0, 2^32)."""
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _WEYL[0]) & _WORD
        k1 = (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _blocks(lanes: int) -> int:
    return (lanes + 3) // 4


def philox4x32_10(counter: Tensor, key: Tensor) -> Tensor:
    """Return the Philox4x32-10 block of each counter, as published with Random123.

    Args:
        counter: (..., 4) int64, words in [0, 2^32).
        key: (2,) or (..., 2) int64, words in [0, 2^32).

    Returns:
        (..., 4) int64 words in [0, 2^32), the same on every device, eager or compiled.
    """
    return torch.stack(_philox(*counter.unbind(-1), *key.unbind(-1)), dim=-1)


# Constant for the tracer: the id is baked into the program, and no string is ever hashed inside one.
@torch.compiler.assume_constant_result
def stream_id(path: str) -> int:
    """Return the 32-bit id of a draw's path, such as "events/push/velocity"."""
    return zlib.crc32(path.encode())


_registries: "weakref.WeakValueDictionary[int, Rng]" = weakref.WeakValueDictionary()
_tokens = itertools.count()


# The tracer runs this once while it traces, with constants only: so collisions are found in compiled programs too, and
# no dictionary becomes a guard or a side effect of the program. Hence the token in place of the Rng itself.
@torch.compiler.assume_constant_result
def _find_draw(token: int, path: str, lanes: int) -> tuple[int, int]:
    return _registries[token]._find_draw(path, lanes)


class Rng:
    """The key, the tick and the world ids that all streams of one program share.

    A draw that was reserved is a slice of one table of words that `advance` fills: one evaluation of Philox a tick
    whatever the number of draws, which is what keeps launches, eager time and compile time low. A draw that was not
    reserved computes the same words where it stands.

    Args:
        arena: owner of `key` (2,) int64, `tick` () int64 and `row` (rows,) int64.
        rows: number of worlds.
        seed: 64-bit seed.
        first_row: global id of row 0, rank * rows in a run of several processes.
        prefix: name of the three tensors' folder in the arena.
    """

    def __init__(self, arena: Arena, rows: int, seed: int, first_row: int = 0, prefix: str = "rng") -> None:
        if not 0 <= first_row <= first_row + rows <= MOST_ROWS:
            raise TickgraphError(f"rows {first_row} to {first_row + rows} do not fit the 32 bits of a world id")
        self.rows = rows
        self.device = arena.device
        self.key = arena.new(f"{prefix}/key", (2,), torch.int64, "the 64-bit seed as two words, low word first")
        self.tick = arena.new(f"{prefix}/tick", (), torch.int64, "number of the tick that draws; 0 is the first reset")
        ids = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=arena.device)
        self.row = arena.constant(f"{prefix}/row", ids, torch.int64, "global id of each world")
        self._paths: dict[int, str] = {}
        self._lanes: dict[str, int] = {}
        self._columns: dict[str, tuple[int, int]] = {}
        self._table: Tensor | None = None
        self._drawn: set[str] | None = None
        self._arena, self._prefix = arena, prefix
        self._token = next(_tokens)
        _registries[self._token] = self
        self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        """Write a new seed, 0 to 2^64 - 1, in place; the tick stays where it is."""
        seed = seed64(seed)
        self.key[0] = seed & _WORD
        self.key[1] = (seed >> 32) & _WORD
        self.refresh()

    def advance(self, ticks: int = 1) -> None:
        """Go on to the next tick, or several ticks on, in place. Draws themselves never advance anything."""
        self.tick.add_(ticks)
        self.refresh()

    def refresh(self) -> None:
        """Fill the table of reserved words again; needed only after `key` or `tick` were written by hand."""
        if self._table is not None:
            words = _philox(self._stream, self.tick & _WORD, self.row[:, None], self._block, self.key[0], self.key[1])
            # One by one: a compiler would compute all four words of a stack again for each of them.
            blocks = self._table.view(self.rows, -1, 4)
            for i, word in enumerate(words):
                blocks[:, :, i].copy_(word)

    def draws(self) -> dict[str, int]:
        """Return {path of the draw: lanes} of every draw made so far, the widest where one draw came in two widths."""
        return dict(self._lanes)

    @contextmanager
    def each_draw_once(self) -> Iterator[None]:
        """Refuse a draw that is made twice while the context lasts, which is one call of a term in a rehearsal.

        A program that was traced looks no draw up any more, so that this is of no use on a tick's path.
        """
        self._drawn = set()
        try:
            yield
        finally:
            self._drawn = None

    def reserve(self, draws: Mapping[str, int]) -> None:
        """Give draws a place in the table, once, before the arena is sealed.

        Args:
            draws: {path of the draw: lanes}, as `draws` of a dry run on another Rng returns it.

        Raises:
            TickgraphError: called twice, after the arena was sealed, or with paths that collide.
        """
        if not draws:
            return
        self._columns, self._stream, self._block = self._lay_out(draws)
        shape = (self.rows, 4 * self._block.shape[0])
        table = self._arena.new(f"{self._prefix}/words", shape, torch.int64, "this tick's words of every reserved draw")
        self._table = table
        self.refresh()

    def ahead(self, draws: Mapping[str, int], ticks: int) -> "Ahead":
        """Return what draws for several ticks at once, made before the arena is sealed and in place of `reserve`.

        Args:
            draws: {path of the draw: lanes}.
            ticks: this tick and those that follow it.
        """
        return Ahead(self, *self._lay_out(draws), ticks)

    def _lay_out(self, draws: Mapping[str, int]) -> tuple[dict[str, tuple[int, int]], Tensor, Tensor]:
        """Return first column and lanes of each draw in a row of words, and stream and number of each block."""
        columns: dict[str, tuple[int, int]] = {}
        streams: list[int] = []
        blocks: list[int] = []
        for path, lanes in draws.items():
            columns[path] = (4 * len(blocks), lanes)
            count = _blocks(lanes)
            streams += [self.register(path)] * count
            blocks += range(count)
        constant = self._arena.constant
        stream = constant(f"{self._prefix}/stream", streams, torch.int64, "stream id of each block of words")
        return columns, stream, constant(f"{self._prefix}/block", blocks, torch.int64, "number of it within its draw")

    def stream(self, path: str) -> "Stream":
        """Return the stream of one owner, such as "events/push"."""
        self.register(path)
        return Stream(self, path)

    def register(self, path: str) -> int:
        """Return the id of a path and remember it; raises TickgraphError where another path has the same id."""
        number = stream_id(path)
        other = self._paths.setdefault(number, path)
        if other != path:
            raise TickgraphError(
                f"random streams {other!r} and {path!r} have the same id {number:#010x} and would draw the same words; "
                "rename one of them"
            )
        return number

    def _find_draw(self, path: str, lanes: int) -> tuple[int, int]:
        """Return a draw's stream id and its first column in the table, -1 without one that is wide enough."""
        number = self.register(path)
        if self._drawn is not None:
            if path in self._drawn:
                raise TickgraphError(
                    f"the draw {path!r} is made twice in one call and gives the same numbers both times; give each "
                    "draw of a term a name of its own"
                )
            self._drawn.add(path)
        self._lanes[path] = max(lanes, self._lanes.get(path, 0))
        column, width = self._columns.get(path, (-1, 0))
        return number, column if lanes <= width else -1


class Ahead:
    """Draws of this tick and the ticks that follow it, from one evaluation of Philox; made by `Rng.ahead`."""

    def __init__(
        self, rng: Rng, columns: Mapping[str, tuple[int, int]], stream: Tensor, block: Tensor, ticks: int
    ) -> None:
        self._rng, self._columns, self._stream, self._block, self.ticks = rng, dict(columns), stream, block, ticks

    def words(self) -> list[Tensor]:
        """Return (ticks, rows, lanes) int64 of each draw, in the order they were given: the words of `Stream.words`."""
        rng = self._rng
        tick = (rng.tick + torch.arange(self.ticks, device=rng.device))[:, None, None] & _WORD
        words = _philox(self._stream, tick, rng.row[:, None], self._block, rng.key[0], rng.key[1])
        # Stacked in front: so a compiler computes each word once, and lanes are a matter of indices.
        table = torch.stack(words).permute(1, 2, 3, 0).reshape(self.ticks, rng.rows, -1)
        return [table[..., column : column + lanes] for column, lanes in self._columns.values()]


def normals(words: Tensor) -> Tensor:
    """Return float32 of mean 0 and deviation 1 from words (..., 2 k), a pair from each pair of words (Box-Muller)."""
    pairs = words.unflatten(-1, (-1, 2))
    # From (0, 1], so that the logarithm is finite.
    radius = torch.sqrt(-2.0 * torch.log((pairs[..., 0] + 1).to(torch.float32) * 2.0**-32))
    angle = (pairs[..., 1] >> 8).to(torch.float32) * (2.0**-24 * 2.0 * math.pi)
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1).flatten(-2)


class Stream:
    """The draws of one owner. Each is a pure function of seed, owner, draw name, tick, world and lane.

    Two draws of one owner in the same tick must have different names, or they get the same words: within one call of a
    term that is refused.
    """

    def __init__(self, rng: Rng, path: str) -> None:
        self.rng = rng
        self.path = path

    def words(self, name: str, lanes: int) -> Tensor:
        """Return (rows, lanes) int64 words in [0, 2^32); read only; a longer draw begins with a shorter one's."""
        rng = self.rng
        number, column = _find_draw(rng._token, f"{self.path}/{name}" if name else self.path, lanes)
        if rng._table is not None and column >= 0:
            return rng._table[:, column : column + lanes]
        if rng.device.type == "meta":  # nothing is computed there: the layout without 250 operations for the judge
            return torch.empty((rng.rows, 4 * _blocks(lanes)), dtype=torch.int64, device=rng.device)[:, :lanes]
        stream = torch.full((), number, dtype=torch.int64, device=rng.device)
        block = torch.arange(_blocks(lanes), dtype=torch.int64, device=rng.device)
        words = _philox(stream, rng.tick & _WORD, rng.row[:, None], block, rng.key[0], rng.key[1])
        return torch.stack(words, dim=-1).reshape(rng.rows, 4 * _blocks(lanes))[:, :lanes]

    def uniform(self, name: str, lanes: int, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
        """Return (rows, lanes) float32 in [low, high] up to one rounding, from 24 bits of each word.

        Args:
            name: name of the draw within its owner.
            lanes: numbers per world.
            low, high: floats or float32 tensors that broadcast to (rows, lanes).
        """
        unit = (self.words(name, lanes) >> 8).to(torch.float64) * 2.0**-24
        low = self._float32(low)
        span = self._float32(high) - low
        # A 24-bit fraction times a float32 span is exact in float64, so that a fused multiply-add, which some devices
        # and compilers use and others do not, rounds to the same number.
        return (low.to(torch.float64) + unit * span.to(torch.float64)).to(torch.float32)

    def normal(self, name: str, lanes: int) -> Tensor:
        """Return (rows, lanes) float32 of mean 0 and deviation 1 (Box-Muller); devices agree to 2 ulp."""
        return normals(self.words(name, lanes + lanes % 2))[:, :lanes]

    def integers(self, name: str, lanes: int, low: int | Tensor, high: int | Tensor) -> Tensor:
        """Return (rows, lanes) int64 in [low, high), where high - low is from 1 to 2^31.

        Args:
            name: name of the draw within its owner.
            lanes: numbers per world.
            low, high: ints or int64 tensors that broadcast to (rows, lanes).
        """
        span = high - low
        if isinstance(span, int) and not 0 < span <= 1 << 31:
            raise TickgraphError(f"integers in [{low}, {high}) were asked for; high - low must be from 1 to 2^31")
        return low + ((self.words(name, lanes) * span) >> 32)

    def choice(self, name: str, weights: Tensor) -> Tensor:
        """Return (rows,) int64 indices drawn in proportion to whole weights, the same on every device.

        Args:
            name: name of the draw within its owner.
            weights: (K,) int64, none negative, with a sum from 1 to 2^31.
        """
        ends = torch.cumsum(weights, dim=0)
        target = (self.words(name, 1)[:, 0] * ends[-1]) >> 32
        # Weights that are all zero would give an index past the end, which a device does not survive.
        return torch.searchsorted(ends, target, right=True).clamp_max(weights.shape[0] - 1)

    def _float32(self, value: float | Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(torch.float32)
        return torch.full((), value, dtype=torch.float32, device=self.rng.device)
