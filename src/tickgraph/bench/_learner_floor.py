"""The least time that an update cycle can take: its operations and bytes, counted from the networks' sizes, over the
rates at which this machine multiplies and copies, measured in the same run.

What is counted, of one update of batch B (a network of batch norms runs on s and s' together, 2B rows; else on B):

- critic: the actor forward on B rows, the target critics forward, the online critics forward and backward;
- actor: the actor forward and backward, the critics forward on B rows and backward to their input alone.

A product of `rows` rows costs 2 rows in out operations, and as much again for each of its two gradients. It reads its
input and writes its output once; a normalisation reads and writes once more forward, and takes two reads and a write
backward. Each product reads its weights once. The step of a parameter reads it, its gradient, both moments and the
target's, and writes all but the gradient, in float32; where products are in bfloat16 it writes a copy of parameter and
target for them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tickgraph.learn.mlp import LayerNorm, Linear
from tickgraph.learn.networks import UnitBatchNorm, UnitLinear, UnitRMSNorm

REPEATS = 10
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}
MATMUL_SIZE = {"cuda": 8192, "cpu": 512}


@dataclass(frozen=True)
class Work:
    """What has to be done at least."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> Work:
        return Work(self.flops * factor, self.bytes * factor)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network, of one member."""

    macs: int
    """Multiplications of one row: elements of all weight matrices."""
    ends: int
    """Inputs and outputs of all products of one row."""
    norms: int
    """Elements that are normalised in one row."""
    parameters: int
    """Of all members."""
    members: int

    def forward(self, rows: int, size: int) -> Work:
        """Return the work of all members on `rows` rows with elements of `size` bytes."""
        each = Work(2.0 * self.macs * rows, size * (rows * (self.ends + 2 * self.norms) + self.macs))
        return each * self.members

    def backward(self, rows: int, size: int, to_weights: bool = True) -> Work:
        """Return the work of the gradients to the input, and to the weights where wanted."""
        products = 2 if to_weights else 1
        moved = rows * (products * self.ends + 3 * self.norms) + products * self.macs
        return Work(products * 2.0 * self.macs * rows, size * moved) * self.members

    def step(self, target: bool, copies: bool) -> Work:
        """Return the bytes of the optimiser's step, with a target that follows and copies in bfloat16."""
        followed = 2 if target else 1
        floats = (3 + followed) + (2 + followed)
        return Work(0.0, self.parameters * (4.0 * floats + (2.0 * followed if copies else 0.0)))


def sizes(network: nn.Module) -> Sizes:
    """Return the sizes of a network of ours."""
    weights = [module.weight for module in network.modules() if isinstance(module, UnitLinear | Linear)]
    norms = [m.gain.shape[-1] for m in network.modules() if isinstance(m, UnitBatchNorm | UnitRMSNorm | LayerNorm)]
    return Sizes(
        macs=sum(weight.shape[-1] * weight.shape[-2] for weight in weights),
        ends=sum(weight.shape[-1] + weight.shape[-2] for weight in weights),
        norms=sum(norms),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        members=weights[0].shape[0] if weights[0].dim() == 3 else 1,
    )


def critic_update(learner: Any, batch: int) -> Work:
    """Return the work of one critic update."""
    actor, critic, size, rows = *_networks(learner), _rows(learner, batch)
    online = critic.forward(rows, size) + critic.backward(rows, size)
    return actor.forward(batch, size) + critic.forward(rows, size) + online + critic.step(True, learner.cfg.bf16)


def actor_update(learner: Any, batch: int) -> Work:
    """Return the work of one actor update."""
    actor, critic, size, rows = *_networks(learner), _rows(learner, batch)
    own = actor.forward(rows, size) + actor.backward(rows, size) + actor.step(False, learner.cfg.bf16)
    return own + critic.forward(batch, size) + critic.backward(batch, size, to_weights=False)


def cycle(learner: Any, updates: int, batch: int) -> Work:
    """Return the work of a cycle of critic updates, with the actor's among them, on average over cycles."""
    return critic_update(learner, batch) * updates + actor_update(learner, batch) * (
        updates / learner.cfg.policy_period
    )


def floor_ms(work: Work, flops_per_s: float, bytes_per_s: float) -> tuple[float, float]:
    """Return the milliseconds of the operations and of the bytes; the cycle takes at least the larger of both."""
    return 1e3 * work.flops / flops_per_s, 1e3 * work.bytes / bytes_per_s


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second that this device reads and writes in a large copy."""
    count = COPY_BYTES[device.type] // 4
    source, sink = torch.ones(count, device=device), torch.empty(count, device=device)
    return 2.0 * 4.0 * count / _seconds(lambda: sink.copy_(source), device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large product, in the float32 precision that is set, or in bfloat16."""
    size = MATMUL_SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / _seconds(lambda: torch.mm(a, b, out=out), device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of some work, by the device's clock."""
    found = []
    for _ in range(2):
        work()
    for _ in range(REPEATS):
        if device.type == "cuda":
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            work()
            after.record()
            after.synchronize()
            found.append(before.elapsed_time(after) * 1e-3)
        else:
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
    return float(np.median(found))


def _networks(learner: Any) -> tuple[Sizes, Sizes, int]:
    return sizes(learner.actor), sizes(learner.critic), 2 if learner.cfg.bf16 else 4


def _rows(learner: Any, batch: int) -> int:
    mixes = any(isinstance(module, UnitBatchNorm) for module in learner.critic.modules())
    return 2 * batch if mixes else batch
