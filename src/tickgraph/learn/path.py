"""How the learner computes: named switches, what a device gets by default, and what runs with the reasons."""

import dataclasses
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tickgraph.core.errors import ExecutionError, TickgraphError, nearby
from tickgraph.core.program import BACKEND_CANNOT, CAPTURE_FAILED, Resolution, first_line
from tickgraph.learn import batch_norm, put_off, running
from tickgraph.learn.gradients import Gradients
from tickgraph.learn.running import AffineForm
from tickgraph.learn.storage import Stacked, Storage
from tickgraph.learn.trunk import NormForm, SmallForm, small_weights, whiten

_log = logging.getLogger(__name__)

KERNELS = ("auto", "triton", "torch", "autograd")
FORMS = ("torch", "triton")
WRITTEN_KERNELS = ("batch_norm", "loss_head", "affine", "small_weights", "put_off")
"""Switches of kernels that need gradients written out."""
KERNEL_SWITCHES = ("row_step", *WRITTEN_KERNELS)

HeadForm = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Switches:
    """Switches of the learner's computation. The maths is the same for all of them, and each can be measured alone."""

    manual: bool = False
    """Gradients are written out, online and target critics in the same products (`stacked.py`); else autograd computes
    them, of `fused.py` or `flashsac.py`."""
    copies: bool = False
    """The step writes copies of the weights, stacked and in the products' precision; else they are made in each
    update."""
    shared_actions: bool = False
    """The next actions of all critic updates between two of the actor come from one pass."""
    beside: bool = False
    """The actor's forward pass is a program of its own. In a graph it is a branch beside the critics' updates, as is
    whatever else the chain of updates does not wait for (see `UpdateCycle`). Needs `shared_actions`."""
    joined: bool = False
    """The stacked critics' small parameters are put together by one copy of all parts, figures for the log by
    comparisons in the kernel that adds them up, and of gradients that are written out what a backward pass does not
    wait for is done by one operation (see `put_off.py`); else as a compiler sees fit."""
    batch_norm: str = "torch"
    loss_head: str = "torch"
    affine: str = "torch"
    small_weights: str = "torch"
    put_off: str = "torch"
    row_step: str = "torch"
    """torch, or triton: the kernel of that name in `kernels/`; of affine, a layer on running statistics,
    `affine_product`; of small_weights, what products and norms read of all but the blocks' weights, `stack_weights`,
    and what renews `copies`, that kernel; and of put_off, what that one operation does, `finish` and `products`, which
    needs `joined`."""
    reasons: tuple[str, ...] = ()
    """Why kernels that were wanted do not run."""

    def __post_init__(self) -> None:
        for name in KERNEL_SWITCHES:
            form = getattr(self, name)
            if form not in FORMS:
                hint = nearby(form, FORMS) or f"use one of {', '.join(FORMS)}"
                raise TickgraphError(f"Switches.{name} is {form!r}; {hint}")
        needs = {"copies": self.copies, "shared_actions": self.shared_actions, "beside": self.beside}
        needs |= {name: getattr(self, name) == "triton" for name in WRITTEN_KERNELS}
        without = [name for name, on in needs.items() if on and not self.manual]
        if without:
            raise TickgraphError(f"Switches has {', '.join(without)} without manual; switch manual on")
        if self.put_off == "triton" and not self.joined:
            raise TickgraphError("Switches has put_off without joined; switch joined on")
        if self.beside and not self.shared_actions:
            raise TickgraphError("Switches has beside without shared_actions; switch shared_actions on")

    def report(self) -> dict[str, object]:
        """Return {switch: value}, for the run's manifest."""
        return dataclasses.asdict(self) | {"reasons": list(self.reasons)}

    def gradients(self, storage: Storage) -> Gradients:
        """Return what gathers the gradients of a network that are written out."""
        if not self.joined:
            return Gradients(storage, None)
        if self.put_off == "torch":
            return Gradients(storage, put_off.finish)
        from tickgraph.learn.kernels import finish as kernel

        return Gradients(storage, kernel.finish)

    def norm_form(self) -> NormForm:
        """Return what computes batch norms."""
        if self.batch_norm == "torch":
            return NormForm(batch_norm.norm_relu, batch_norm.norm_relu_backward, whiten)
        from tickgraph.learn.kernels import batch_norm as kernel

        return NormForm(kernel.norm_relu, kernel.norm_relu_backward, kernel.whiten)

    def affine_form(self) -> AffineForm:
        """Return what computes layers on running statistics."""
        if self.affine == "torch":
            return AffineForm(running.affine_relu, running.affine_backward)
        from tickgraph.learn.kernels import affine_product as kernel

        return AffineForm(kernel.affine_relu, kernel.affine_backward)

    def small_form(self, storage: Storage) -> SmallForm:
        """Return what makes of a network's small parameters what is read."""
        if self.small_weights == "torch":
            return partial(small_weights, storage, self.joined)
        from tickgraph.learn.kernels.stack_weights import StackWeights

        return StackWeights(storage)

    def copies_form(self) -> Callable[[Stacked], None]:
        """Return what renews copies of weights."""
        if self.small_weights == "torch":
            return Stacked.refresh
        from tickgraph.learn.kernels import copies as kernel

        return kernel.refresh

    def head_form(self) -> HeadForm:
        """Return what computes `loss_head.filled_head`."""
        if self.loss_head == "torch":
            from tickgraph.learn import loss_head  # which knows the algorithm, and that knows this file

            return loss_head.filled_head
        from tickgraph.learn.kernels import loss_head as kernel

        return kernel.categorical_head


ON_A_GPU = Switches(manual=True, copies=True, shared_actions=True, beside=True, joined=True)
"""What a GPU computes without kernels, where gradients can be written out."""
PLAIN_ON_A_GPU = Switches(joined=True)
"""The same where they cannot."""
BY_HOST = Switches(manual=True, shared_actions=True)
"""What a GPU computes in mode compile, where gradients can be written out: what the host launches fastest."""


def resolve_switches(
    kernels: str,
    resolution: Resolution,
    checks: Mapping[str, Callable[[], None]],
    on_a_gpu: Switches = ON_A_GPU,
    by_host: Switches = BY_HOST,
) -> Switches:
    """Return how a device computes by default.

    A GPU gets `on_a_gpu`, in torch operations that the programs compile, and those of our kernels that can be built
    there and agree with their torch forms. In mode compile it gets `by_host` and no kernels: a cycle lasts as long as
    the host takes to launch it there, and calls of our kernels cost more of that than what the compiler launches in
    their place; with nothing compiled they save many launches. A CPU keeps autograd and `fused.py`, which are faster
    there.

    Args:
        kernels: auto: those that can be had, in mode compile none; triton: all of them, or an error; torch: none;
            autograd: none, and autograd computes the gradients, on every device.
        resolution: how and where the objectives run.
        checks: {switch: builds that kernel and compares it with its torch form, raising where it fails}.
        on_a_gpu: what a GPU computes without kernels.
        by_host: what it computes in mode compile.

    Raises:
        TickgraphError: `kernels` is unknown.
        ExecutionError: kernels were asked for by name and cannot be had.
    """
    compiled = resolution.enabled == "compile"
    if compiled and kernels == "auto":
        kernels = "torch"
    built, reasons = build_kernels(kernels, resolution.device, checks)
    if kernels == "autograd" or resolution.device.type != "cuda":
        return Switches()
    base = by_host if compiled and kernels == "torch" else on_a_gpu
    return dataclasses.replace(base, **dict.fromkeys(built, "triton"), reasons=tuple(reasons))


def build_kernels(
    kernels: str, device: torch.device, checks: Mapping[str, Callable[[], None]]
) -> tuple[list[str], list[str]]:
    """Return the names of the kernels that run on a device, and why others that are wanted do not; the other arguments
    and the errors are those of `resolve_switches`."""
    if kernels not in KERNELS:
        hint = nearby(kernels, KERNELS) or f"use one of {', '.join(KERNELS)}"
        raise TickgraphError(f"learner_kernels is {kernels!r}; {hint}")
    if device.type != "cuda" and kernels == "triton":
        text = f"the learner's kernels need a CUDA device, not {device.type}"
        raise ExecutionError(f"learner_kernels 'triton' cannot be had: {BACKEND_CANNOT}: {text}; use 'auto'")
    if device.type != "cuda" or kernels in ("torch", "autograd"):
        return [], []
    built, reasons = [], []
    if importlib.util.find_spec("triton") is None:
        reasons.append(f"{BACKEND_CANNOT}: Triton is not installed")
    else:
        for name, check in checks.items():
            try:
                with torch.no_grad():
                    check()
            except Exception as error:  # a compiler can fail in any way
                kind = BACKEND_CANNOT if isinstance(error, TickgraphError) else CAPTURE_FAILED
                reasons.append(f"{kind}: {name}: {first_line(error)}")
            else:
                built.append(name)
    if reasons and kernels == "triton":
        raise ExecutionError(
            f"learner_kernels 'triton' cannot be had on {device}: {'; '.join(reasons)}; use 'auto' to do without them"
        )
    if reasons:
        _log.warning("the learner computes without some of its kernels: %s", "; ".join(reasons))
    return built, reasons
