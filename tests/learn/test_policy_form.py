"""In which form FlashSAC's policy acts, and what is said where it is not the kernel."""

import importlib.util

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import ExecutionError
from tickgraph.learn import flashsac, kernel_check
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.policy_form import WIDEST

TORCH = {"form": "torch", "reasons": []}


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def a_gpu(precision, monkeypatch):
    """Take the CPU for a GPU that rounds, up to where something would run there."""
    precision("high")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    def made(**sizes: int) -> FlashSac:
        learner = learner_of(**sizes)
        learner.arena.device = torch.device("cuda")
        return learner

    return made


def learner_of(actor_width: int = 8, worlds: int = 4) -> FlashSac:
    cfg = FlashSacCfg(actor_width=actor_width, actor_blocks=1, critic_width=8, critic_blocks=1, batch_size=4)
    return FlashSac(cfg, {"actor": 3, "critic": 4}, 2, worlds, Arena("cpu"), 0, total_updates=10)


@pytest.mark.parametrize("kernels", ["auto", "torch", "autograd"])
@pytest.mark.parametrize("rounds", ["highest", "high"])
def test_a_cpu_has_one_form_and_needs_no_reason(precision, kernels, rounds):
    precision(rounds)
    learner = learner_of()
    learner.choose_policy(kernels)
    assert learner.policy_report == TORCH and learner.policy_form is None


def test_where_no_kernel_is_wanted_there_is_no_reason(a_gpu, precision):
    precision("highest")
    for kernels, wanted in (("torch", False), ("autograd", False), ("auto", True), ("triton", True)):
        learner = a_gpu()
        learner.choose_policy(kernels)
        assert learner.policy_report["form"] == "torch"
        assert ("train.matmul_precision" in str(learner.policy_report["reasons"])) == wanted


def test_a_trunk_that_does_not_fit_is_refused_by_name(a_gpu, caplog):
    learner = a_gpu(actor_width=WIDEST + 1)
    learner.choose_policy("auto")
    reason = "backend cannot: policy: actor_width is 129, and it holds 128 at most"
    assert learner.policy_report == {"form": "torch", "reasons": [reason]} and learner.policy_form is None
    assert reason in caplog.text
    with pytest.raises(ExecutionError, match="actor_width is 129, and it holds 128 at most; use 'auto'"):
        learner.choose_policy("triton")


def test_the_kernel_is_checked_with_as_many_rows_as_there_are_worlds(a_gpu, monkeypatch):
    """How many rows a program takes, and with it the memory, is a matter of their number."""
    checked, form = [], lambda obs: (obs[:, :2], obs[:, 1:])
    monkeypatch.setattr(kernel_check, "check_policy", lambda policy, form, *shape: checked.append(shape))
    monkeypatch.setattr(flashsac, "PolicyForm", lambda *args: form)
    learner = a_gpu(worlds=300)
    learner.choose_policy("auto")
    assert checked == [(300, 3)]
    assert learner.policy_report == {"form": "triton", "reasons": []} and learner.policy_form is form
    obs = torch.randn(5, 3)
    mean, log_std = learner.gaussian(obs)
    assert torch.equal(mean, obs[:, :2]) and log_std.shape == (5, 2) and (log_std.abs() <= 10.0).all()
