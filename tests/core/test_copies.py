"""A plain copy in a compiled program keeps the value of its moment, as it does eager."""

import pytest
import torch

from tickgraph.core.copies import keep_plain_copies
from tickgraph.core.program import Program, resolve_execution


def parts():
    mask = torch.tensor([True, False] * 4)
    return torch.arange(8.0)[:, None] - 3.0, mask, torch.zeros(8, 1), torch.zeros(8, 2)


def copied(a, mask, b, c):
    c.copy_(torch.cat((a, 2.0 * a), dim=1))
    b.copy_(a)
    a.copy_(torch.where(mask[:, None], 0.0, a))


def assigned(a, mask, b, c):
    c.copy_(torch.cat((a, 2.0 * a), dim=1))
    b[:] = a
    a.copy_(torch.where(mask[:, None], 0.0, a))


def cloned(a, mask, b, c):
    old = a.clone()
    c.copy_(torch.cat((a, 2.0 * a), dim=1))
    a.copy_(torch.where(mask[:, None], 0.0, a))
    b.copy_(old)


def viewed(a, mask, b, c):
    c.copy_(torch.cat((a, 2.0 * a), dim=1))
    b[:, 0].copy_(a.view(8).to(torch.float32))
    a.copy_(torch.where(mask[:, None], 0.0, a))


def scaled(a, mask, b, c):
    c.copy_(torch.cat((a, 2.0 * a), dim=1))
    b.copy_(0.0 + 1.0 * a)
    a.copy_(torch.where(mask[:, None], 0.0, a))


def swapped(a, mask, b, c):
    old = a.clone()
    c.copy_(torch.cat((a, b), dim=1))
    a.copy_(b)
    b.copy_(old)


@pytest.mark.slow
@pytest.mark.parametrize("work", [copied, assigned, cloned, viewed, scaled, swapped])
def test_a_copy_keeps_what_was_there(work):
    want, have = parts(), parts()
    work(*want)
    program = Program("copies", lambda: work(*have), resolve_execution("compile", "cpu"))
    program()
    assert program.report()["captures"] == 1
    for name, wanted, found in zip("a mask b c".split(), want, have, strict=True):
        assert torch.equal(wanted, found), name


def test_what_is_kept_has_the_same_bits():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        values = torch.tensor([0.0, -1.0, 3.0]).to(dtype)
        assert torch.equal(torch.maximum(values, values), values)
    odd = torch.tensor([-0.0, torch.nan, -torch.inf])
    assert torch.equal(torch.maximum(odd, odd).view(torch.int32), odd.view(torch.int32))


def test_only_plain_copies_are_given_a_value_of_their_own():
    def work(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        b.copy_(a)
        c.copy_(a + 1.0)
        b.copy_(a.reshape(-1)[:3])
        c.fill_(0.0)
        return b

    module = torch.fx.symbolic_trace(work)
    assert keep_plain_copies(module) == 2
    assert [node.target for node in module.graph.nodes].count(torch.maximum) == 2
