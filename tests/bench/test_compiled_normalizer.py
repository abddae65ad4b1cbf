"""Compiled collection keeps the statistics that eager collection keeps."""

from pathlib import Path

import pytest
import torch

from tickgraph.bench._case import Case, build
from tickgraph.tasks.registry import load

REACH = str(Path(__file__).parents[2] / "examples" / "reach.py") + ":reach"


@pytest.mark.slow  # compiles a tick
def test_the_reward_normaliser_counts_in_compiled_ticks():
    # torch.compile on a CPU loses writes to float64 tensors without dimensions, unless they are returned.
    found = {}
    for execution in ("eager", "compile"):
        made = build(load(REACH), Case(task=REACH, num_envs=4, execution=execution, physics_threads=1))
        for _ in range(6):
            made.env.tick()
        names = ("count", "mean", "var", "largest")
        found[execution] = torch.stack([getattr(made.env.ring.normalizer, n).double().reshape(()) for n in names])
        made.env.close()
    assert found["eager"][0] == pytest.approx(24.0, abs=1e-3)  # 6 ticks of 4 worlds
    torch.testing.assert_close(found["compile"], found["eager"], rtol=1e-5, atol=1e-6)
