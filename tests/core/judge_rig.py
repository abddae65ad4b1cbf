"""What tests of the judge share: a tiny environment of shapes, one call judged, and the line that a term marks."""

import inspect

import torch

from tickgraph.core import judge
from tickgraph.core.arena import Arena
from tickgraph.core.judge import JudgedCall, judge_calls
from tickgraph.core.rng import Rng

N = 6


class Env:
    """An environment as small as a term of the judge's tests needs it."""

    def __init__(self, device: str = "meta") -> None:
        self.arena = Arena(device)
        self.x = self.arena.new("x", (N, 4))
        self.ids = self.arena.new("ids", (N,), torch.int64)
        self.mask = self.arena.new("mask", (N,), torch.bool)
        self.scale = self.arena.new("scale", ())
        self.view = self.arena.new("sim/qpos", (N, 4), read_only=True)
        self.constant = self.arena.constant("constant", [0.0] * N)
        self.on_cpu = torch.zeros(4)
        self.extras = {}
        self.log = []
        self.rng = Rng(self.arena, N, seed=0).stream("rewards/test")
        self.arena.seal()


def judged(call, *, func=None, term: object = None, env: Env | None = None) -> list[judge.Blocker]:
    """Return what the judge says of a call: a function of the environment, or a class and one of its instances."""
    env = env or Env()
    owners = (env,) if term is None else (env, term)
    return judge_calls([JudgedCall("rewards", "test", lambda: (term or call)(env), func or call, owners, env.arena)])


def marked_line(func) -> int:
    """Return the line of a function or class that ends in "# here"."""
    lines, first = inspect.getsourcelines(func)
    return first + next(index for index, line in enumerate(lines) if "# here" in line)
