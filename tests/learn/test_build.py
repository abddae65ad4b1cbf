"""Which configurations are of an algorithm: its own class, and subclasses that have other values alone."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.learn.build import algo_name, make_learner, plain_cfg
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.learner import AlgoCfg
from tickgraph.learn.sac import Sac, SacCfg

SMALL = {"actor_width": 8, "critic_width": 8, "batch_size": 4}


@dataclass
class MyFlashSac(FlashSacCfg):
    """Other defaults, one that follows from another, and a helper."""

    actor_width: int = 8
    critic_width: int = 8
    batch_size: int = 4

    def __post_init__(self) -> None:
        self.lr_end = self.lr_start / 3.0
        super().__post_init__()

    def batches(self, rows: int) -> int:
        """Return how many batches some rows are."""
        return rows // self.batch_size


class MySac(SacCfg):
    """Other values by a constructor of its own."""

    def __init__(self) -> None:
        super().__init__(**SMALL, gamma=0.9)


@pytest.mark.parametrize(
    ("cfg", "name", "learner"),
    [(MyFlashSac(gamma=0.9), "flashsac", FlashSac), (MySac(), "sac", Sac), (SacCfg(**SMALL), "sac", Sac)],
)
def test_a_subclass_with_other_values_trains_as_its_algorithm(cfg: AlgoCfg, name: str, learner: type) -> None:
    assert algo_name(cfg) == name
    made = make_learner(cfg, {"actor": 3, "critic": 4}, 2, 5, Arena(torch.device("cpu")), seed=0)
    assert type(made) is learner and made.cfg.actor_width == 8 and made.cfg.batch_size == 4
    assert made.cfg.gamma == cfg.gamma and made.cfg.lr_end == cfg.lr_end
    same = made.arena.snapshot()
    plain = make_learner(plain_cfg(cfg), {"actor": 3, "critic": 4}, 2, 5, Arena(torch.device("cpu")), seed=0)
    assert all(torch.equal(value, same[key]) for key, value in plain.arena.snapshot().items())


@dataclass
class MoreFields(FlashSacCfg):
    batchsize: int = 4


class MoreNames(SacCfg):
    batchsize = 4


class OtherMethod(FlashSacCfg):
    def in_bf16(self, device: torch.device) -> bool:
        return True


class OtherBounds(SacCfg):
    least: ClassVar[dict[str, int]] = {}


class OtherAlgorithm(AlgoCfg):
    pass


class NotTaken(FlashSacCfg):
    batch_size = 4


@dataclass
class WithoutType(SacCfg):
    batch_size = 4


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (MoreFields, "train.algo is a MoreFields: it has 'batchsize', which is no field of FlashSacCfg; did you mean"),
        (MoreNames, "train.algo is a MoreNames: it has 'batchsize', which is no field of SacCfg; did you mean"),
        (OtherMethod, "is a OtherMethod: it brings 'in_bf16' of its own; a subclass of FlashSacCfg may have other"),
        (OtherBounds, "is a OtherBounds: it brings 'least' of its own; a subclass of SacCfg may have other values"),
        (OtherAlgorithm, "is a OtherAlgorithm; give one of FlashSacCfg, SacCfg"),
        (NotTaken, "train.algo: NotTaken sets batch_size = 4, which is not taken as a default; write `batch_size: "),
        (WithoutType, "train.algo: WithoutType sets batch_size = 4, which is not taken as a default; write `batch_"),
    ],
)
def test_a_subclass_that_would_not_be_read_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(TickgraphError) as caught:
        plain_cfg(kind())
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_values_that_a_subclass_does_not_check_are_checked() -> None:
    @dataclass
    class Unchecked(SacCfg):
        gamma: float = 2.0

        def __post_init__(self) -> None:
            pass

    with pytest.raises(TickgraphError, match=r"SacCfg.gamma is 2.0; it must be in \(0, 1\]"):
        plain_cfg(Unchecked())
