"""The projection of a distribution onto its atoms, in both forms: by hand, against float64, at the edges."""

import pytest
import torch

from tickgraph.bench._verify_plain import project_distribution64
from tickgraph.learn.distribution import project_by_integral, project_by_scatter, project_distribution

ATOMS = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64).float()
both = pytest.mark.parametrize("form", [project_by_scatter, project_by_integral])


def project(form, probs: dict[int, float], reward: float, discount: float, cost: float = 0.0) -> dict[int, float]:
    given = torch.zeros(1, 101)
    for atom, mass in probs.items():
        given[0, atom] = mass
    one = [torch.tensor([value]) for value in (reward, discount, cost)]
    result = form(given, *one, ATOMS)[0]
    return {int(k): round(result[k].item(), 5) for k in result.nonzero()[:, 0] if result[k] > 1e-5}


@both
def test_by_hand(form):
    # Atom 50 is 0, atoms are 0.1 apart.
    assert project(form, {50: 1.0}, 0.3, 0.9) == {53: 1.0}
    assert project(form, {50: 1.0}, 0.325, 0.9) == {53: 0.75, 54: 0.25}
    assert project(form, {60: 1.0}, 0.0, 0.5) == {55: 1.0}
    assert project(form, {60: 0.5, 40: 0.5}, 1.0, 0.5) == {55: 0.5, 65: 0.5}
    assert project(form, {60: 1.0}, 0.7, 0.0) == {57: 1.0}, "nothing counts after a termination"
    assert project(form, {60: 1.0}, 0.725, 0.0) == {57: 0.75, 58: 0.25}
    assert project(form, {60: 1.0}, 0.0, 0.5, cost=0.4) == {53: 1.0}, "0.5 (1 - 0.4)"
    assert project(form, {50: 1.0}, 9.0, 0.9) == {100: 1.0}
    assert project(form, {50: 1.0}, -9.0, 0.9) == {0: 1.0}
    assert project(form, {0: 0.5, 100: 0.5}, 4.75, 1.0) == {47: 0.25, 48: 0.25, 100: 0.5}
    assert project(form, {100: 1.0}, 0.0, 1.0) == {100: 1.0}


@both
@pytest.mark.parametrize(("count", "limit"), [(2, 1e-6), (3, 1e-6), (101, 1e-5), (501, 5e-5)])
def test_against_float64(form, count, limit):
    torch.manual_seed(0)
    atoms = torch.linspace(-5.0, 5.0, count, dtype=torch.float64).float()
    probs = torch.randn(2, 64, count).mul(3).softmax(-1)
    reward, discount, cost = torch.randn(64) * 2, torch.rand(64), torch.randn(64)
    discount[:8], discount[8:16], discount[16:24] = 0.0, 1.0, 1e-6
    reward[0], reward[8] = 50.0, -50.0
    mine = form(probs, reward, discount, cost, atoms)
    for member in range(2):
        wanted = project_distribution64(probs[member], reward, discount, cost, atoms).float()
        torch.testing.assert_close(mine[member], wanted, rtol=0, atol=limit)
    torch.testing.assert_close(mine.sum(-1), torch.ones(2, 64))


@both
def test_what_is_on_the_atoms_stays_there(form):
    probs = torch.softmax(torch.randn(4, 101), -1)
    zero = torch.zeros(4)
    torch.testing.assert_close(form(probs, zero, torch.ones(4), zero, ATOMS), probs, rtol=0, atol=1e-5)


@both
def test_what_is_not_a_number_is_seen_by_the_check_of_finite_losses(form):
    one = torch.ones(1)
    right = {"probs": torch.full((1, 101), 1 / 101), "reward": one, "discount": 0.9 * one, "cost": 0.0 * one}
    for name in right:
        for discount in (0.9, 0.0):
            wrong = right | {"discount": discount * one}
            wrong[name] = torch.full_like(right[name], torch.nan)
            assert not form(**wrong, atoms=ATOMS).sum().isfinite(), (name, discount)
    infinite = form(**(right | {"reward": one * torch.inf}), atoms=ATOMS)
    assert infinite[0, -1] == pytest.approx(1.0)


def test_a_cpu_scatters():
    probs = torch.softmax(torch.randn(8, 101), -1)
    given = (probs, torch.randn(8), torch.rand(8), torch.randn(8), ATOMS)
    assert torch.equal(project_distribution(*given), project_by_scatter(*given))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_sums_the_same_again_and_again_in_memory_that_grows_with_the_atoms():
    torch.manual_seed(0)
    rows, count = 8192, 501
    probs = torch.softmax(torch.randn(2, rows, count, device="cuda"), -1)
    given = (torch.randn(rows).cuda(), torch.rand(rows).cuda(), torch.randn(rows).cuda())
    atoms = torch.linspace(-20.0, 20.0, count).cuda()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    first = project_distribution(probs, *given, atoms)
    assert torch.cuda.max_memory_allocated() - before < 20 * 8 * probs.numel(), "all pairs would take 250 of such sizes"
    for _ in range(3):
        assert torch.equal(project_distribution(probs, *given, atoms), first)
    wanted = project_by_integral(*(value.cpu() for value in (probs[:, :64], *(v[:64] for v in given), atoms)))
    torch.testing.assert_close(first[:, :64].cpu(), wanted, rtol=0, atol=1e-6)
