"""The switches of the learner's computation: defaults of a device, kernels that cannot be had, and what is refused."""

import importlib.util
import sys
import types

import pytest
import torch
from cycle_rig import Rig

from tickgraph.core.errors import ExecutionError, TickgraphError
from tickgraph.core.program import Resolution
from tickgraph.learn import kernels, put_off, sac
from tickgraph.learn.path import BY_HOST, ON_A_GPU, PLAIN_ON_A_GPU, Switches, resolve_switches
from tickgraph.learn.sac import SacCfg
from tickgraph.run.config import TrainCfg

GPU, COMPILED, EAGER = (Resolution(mode, mode, None, torch.device("cuda")) for mode in ("graph", "compile", "eager"))
CPU = Resolution("compile", "compile", None, torch.device("cpu"))


def fine() -> None:
    pass


def broken() -> None:
    raise RuntimeError("out of registers\nand a page of machine code")


@pytest.fixture
def with_triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def test_a_cpu_keeps_autograd():
    assert resolve_switches("auto", CPU, {"row_step": broken}) == Switches() == resolve_switches("torch", CPU, {})
    assert Rig().learner.switches == Switches()


def test_a_gpu_takes_the_kernels_that_work(with_triton, caplog):
    found = resolve_switches("auto", GPU, {"row_step": fine, "batch_norm": broken, "loss_head": fine})
    assert (found.row_step, found.batch_norm, found.loss_head) == ("triton", "torch", "triton")
    assert found.manual and found.copies and found.shared_actions and found.joined
    assert found.reasons == ("capture failed: batch_norm: out of registers",)
    assert "batch_norm: out of registers" in caplog.text
    assert found.report()["reasons"] == list(found.reasons)


def test_kernels_asked_for_by_name_are_had_or_refused(with_triton):
    found = resolve_switches("triton", GPU, {"row_step": fine, "batch_norm": fine, "loss_head": fine})
    assert (found.row_step, found.batch_norm, found.loss_head, found.reasons) == ("triton",) * 3 + ((),)
    with pytest.raises(ExecutionError, match="batch_norm: out of registers; use 'auto'"):
        resolve_switches("triton", GPU, {"row_step": fine, "batch_norm": broken})
    with pytest.raises(ExecutionError, match="need a CUDA device, not cpu; use 'auto'"):
        resolve_switches("triton", CPU, {})


def test_a_host_that_launches_compiled_programs_gets_no_kernels(with_triton):
    """An update of the compiler's kernels alone is launched faster (`docs/performance.md`); eager work is not."""

    def never() -> None:
        raise AssertionError("a kernel was built")

    for wanted in ("auto", "torch"):
        assert resolve_switches(wanted, COMPILED, {"row_step": never}) == BY_HOST
        assert resolve_switches(wanted, COMPILED, {"row_step": never}, PLAIN_ON_A_GPU, Switches()) == Switches()
    assert BY_HOST.manual and not (BY_HOST.copies or BY_HOST.joined or BY_HOST.beside)
    assert resolve_switches("triton", COMPILED, {"row_step": fine}).row_step == "triton"
    assert resolve_switches("auto", EAGER, {"row_step": fine}) == resolve_switches("auto", GPU, {"row_step": fine})
    captured_eager = Resolution("graph", "graph", None, torch.device("cuda"), inner="eager")
    assert resolve_switches("auto", captured_eager, {"row_step": fine}).row_step == "triton"


def test_sac_on_a_gpu_keeps_autograd_and_takes_the_step_by_kernel(with_triton, monkeypatch):
    found = resolve_switches("auto", GPU, {"row_step": fine}, PLAIN_ON_A_GPU)
    assert found == Switches(joined=True, row_step="triton")
    assert resolve_switches("torch", GPU, {"row_step": broken}, PLAIN_ON_A_GPU) == Switches(joined=True)
    asked = []

    def resolve(kernels, resolution, checks, on_a_gpu, by_host):
        asked.append((kernels, resolution.device, set(checks), on_a_gpu, by_host))
        return PLAIN_ON_A_GPU

    monkeypatch.setattr(sac, "resolve_switches", resolve)
    rig = Rig(algo=SacCfg)
    assert asked == [("auto", CPU.device, {"row_step"}, PLAIN_ON_A_GPU, PLAIN_ON_A_GPU)]
    assert rig.learner.switches == PLAIN_ON_A_GPU
    assert rig.cycle.report()["update/critic_loss"]["switches"]["joined"]
    with pytest.raises(TickgraphError, match="SAC's gradients are not written out"):
        Rig(algo=SacCfg, kernels=ON_A_GPU)


def test_without_triton_the_torch_forms_run_and_say_why(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = resolve_switches("auto", GPU, {"row_step": fine})
    assert found.reasons == ("backend cannot: Triton is not installed",)
    assert found == Switches(**(ON_A_GPU.report() | {"reasons": found.reasons}))
    assert resolve_switches("torch", GPU, {"row_step": broken}) == ON_A_GPU
    with pytest.raises(ExecutionError, match="Triton is not installed"):
        resolve_switches("triton", GPU, {"row_step": fine})


@pytest.mark.parametrize("how", [GPU, COMPILED, EAGER, CPU], ids=lambda how: f"{how.enabled} {how.device}")
def test_the_plain_learner_can_be_had_everywhere(with_triton, how):
    def never() -> None:
        raise AssertionError("a kernel was built")

    assert resolve_switches("autograd", how, {"row_step": never}) == Switches()
    assert TrainCfg(learner_kernels="autograd").learner_kernels == "autograd"


def test_what_cannot_be_is_refused():
    with pytest.raises(TickgraphError, match="Switches.row_step is 'tritn'; did you mean 'triton'"):
        Switches(row_step="tritn")
    with pytest.raises(TickgraphError, match="copies without manual"):
        Switches(copies=True)
    with pytest.raises(TickgraphError, match="affine without manual"):
        Switches(affine="triton")
    with pytest.raises(TickgraphError, match="small_weights without manual"):
        Switches(small_weights="triton")
    with pytest.raises(TickgraphError, match="Switches.small_weights is 'tritn'; did you mean 'triton'"):
        Switches(manual=True, small_weights="tritn")
    with pytest.raises(TickgraphError, match="put_off without manual"):
        Switches(joined=True, put_off="triton")
    with pytest.raises(TickgraphError, match="put_off without joined; switch joined on"):
        Switches(manual=True, put_off="triton")
    with pytest.raises(TickgraphError, match="beside without manual"):
        Switches(beside=True)
    with pytest.raises(TickgraphError, match="beside without shared_actions"):
        Switches(manual=True, beside=True)
    with pytest.raises(TickgraphError, match="learner_kernels is 'tritn'; did you mean 'triton'"):
        resolve_switches("tritn", CPU, {})
    with pytest.raises(TickgraphError, match="train.learner_kernels is 'tritn'; did you mean 'triton'"):
        TrainCfg(learner_kernels="tritn")


def test_what_is_put_off_is_done_by_the_form_that_is_named(monkeypatch):
    kernel = types.ModuleType("finish")
    kernel.finish = lambda tensors, plan: []
    monkeypatch.setitem(sys.modules, "tickgraph.learn.kernels.finish", kernel)
    monkeypatch.setattr(kernels, "finish", kernel, raising=False)
    storage = Rig().learner.actor_storage
    joined, by_kernel = Switches(manual=True, joined=True), Switches(manual=True, joined=True, put_off="triton")
    assert Switches(manual=True).gradients(storage).operation is None
    assert joined.gradients(storage).operation is put_off.finish
    assert by_kernel.gradients(storage).operation is kernel.finish


def test_losses_compiled_alone_need_autograd():
    with pytest.raises(TickgraphError, match="compile_scope 'loss' needs autograd"):
        Rig(kernels=ON_A_GPU, compile_scope="loss")
