"""Global generators while a task is built: the same numbers for the same path, and back where they were afterwards."""

import random

import numpy as np
import pytest
import torch

from tickgraph.core.seeded import seeded_by


def drawn() -> tuple:
    return random.random(), float(np.random.rand()), torch.rand(3).tolist()


def test_numbers_follow_from_the_path_alone():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded_by("rewards/style"):
        first = drawn()
    drawn()
    with seeded_by("rewards/style"):
        assert drawn() == first
    with seeded_by("rewards/other"):
        other = drawn()
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_the_generators_go_on_as_if_nothing_had_been_built():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = drawn(), drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = drawn()
    with pytest.raises(KeyError), seeded_by("rewards/style"):
        drawn()
        with seeded_by("within"):
            drawn()
        raise KeyError
    assert (before, drawn()) == expected
    assert torch.initial_seed() == 1


def test_a_gpu_that_is_not_in_use_yet_gets_the_callers_seed_back(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", given.append)
    torch.manual_seed(5)
    with seeded_by("rewards/style"):
        pass
    assert given[-1] == 5 and len(given) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_generator_too():
    torch.cuda.manual_seed_all(1)
    expected = torch.rand(2, device="cuda")
    torch.cuda.manual_seed_all(1)
    with seeded_by("rewards/style"):
        first = torch.rand(2, device="cuda")
    with seeded_by("rewards/style"):
        assert torch.equal(torch.rand(2, device="cuda"), first)
    assert torch.equal(torch.rand(2, device="cuda"), expected)
