"""Random numbers as pure functions: Philox4x32-10 words keyed by seed and counted by stream, tick, world and lane."""

import itertools
import math
import weakref
import zlib

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError

_WORD = 0xFFFFFFFF
_HALF = 0xFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of factor * word, by 16-bit halves so that no product leaves signed int64."""
    low = (word & _HALF) * factor
    middle = (word >> 16) * factor + (low >> 16)
    return middle >> 16, ((middle & _HALF) << 16) | (low & _HALF)


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    """Run ten rounds on counters and keys that broadcast together; all int64 in [0, 2^32)."""
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _WEYL[0]) & _WORD
        k1 = (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


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
# no dictionary write becomes a guard or a side effect of the program. Hence the token in place of the Rng itself.
@torch.compiler.assume_constant_result
def _registered_id(token: int, path: str) -> int:
    return _registries[token].register(path)


class Rng:
    """The key, the tick and the world ids that all streams of one program share.

    Args:
        arena: owner of `key` (2,) int64, `tick` () int64 and `row` (rows,) int64.
        rows: number of worlds.
        seed: 64-bit seed.
        first_row: global id of row 0, rank * rows in a run of several processes.
        prefix: name of the three tensors' folder in the arena.
    """

    def __init__(self, arena: Arena, rows: int, seed: int, first_row: int = 0, prefix: str = "rng") -> None:
        if not 0 <= first_row <= first_row + rows <= _WORD + 1:
            raise TickgraphError(f"rows {first_row} to {first_row + rows} do not fit the 32 bits of a world id")
        self.rows = rows
        self.device = arena.device
        self.key = arena.new(f"{prefix}/key", (2,), torch.int64, "the 64-bit seed as two words, low word first")
        self.tick = arena.new(f"{prefix}/tick", (), torch.int64, "number of the tick that draws; 0 is the first reset")
        ids = torch.arange(first_row, first_row + rows, dtype=torch.int64)
        self.row = arena.constant(f"{prefix}/row", ids, torch.int64, "global id of each world")
        self._paths: dict[int, str] = {}
        self._token = next(_tokens)
        _registries[self._token] = self
        self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        """Write a new 64-bit seed in place; the tick stays where it is."""
        if not -(1 << 63) <= seed < 1 << 64:
            raise TickgraphError(f"seed {seed} does not fit 64 bits")
        self.key[0] = seed & _WORD
        self.key[1] = (seed >> 32) & _WORD

    def advance(self) -> None:
        """Go on to the next tick, in place. Draws themselves never advance anything."""
        self.tick += 1

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

    def paths(self) -> dict[int, str]:
        """Return {id: path} of every stream and draw that was registered so far."""
        return dict(self._paths)


class Stream:
    """The draws of one owner. Each is a pure function of seed, owner, draw name, tick, world and lane.

    Two draws of one owner in the same tick must have different names, or they get the same words.
    """

    def __init__(self, rng: Rng, path: str) -> None:
        self.rng = rng
        self.path = path

    def words(self, name: str, lanes: int) -> Tensor:
        """Return (rows, lanes) int64 words in [0, 2^32); a longer draw begins with the words of a shorter one."""
        rng = self.rng
        number = _registered_id(rng._token, f"{self.path}/{name}" if name else self.path)
        blocks = math.ceil(lanes / 4)
        c0 = torch.full((), number, dtype=torch.int64, device=rng.device)
        c1 = rng.tick & _WORD
        c2 = rng.row[:, None]
        c3 = torch.arange(blocks, dtype=torch.int64, device=rng.device)
        block = torch.stack(_philox(c0, c1, c2, c3, rng.key[0], rng.key[1]), dim=-1)
        return block.reshape(rng.rows, 4 * blocks)[:, :lanes]

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
        words = self.words(name, lanes + lanes % 2).reshape(self.rng.rows, -1, 2)
        # From (0, 1], so that the logarithm is finite.
        radius = torch.sqrt(-2.0 * torch.log((words[..., 0] + 1).to(torch.float32) * 2.0**-32))
        angle = (words[..., 1] >> 8).to(torch.float32) * (2.0**-24 * 2.0 * math.pi)
        pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
        return pairs.reshape(self.rng.rows, -1)[:, :lanes]

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
        return torch.searchsorted(ends, target, right=True)

    def _float32(self, value: float | Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(torch.float32)
        return torch.full((), value, dtype=torch.float32, device=self.rng.device)
