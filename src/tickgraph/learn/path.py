"""How the learner computes: named switches, what a device gets by default, and what runs with the reasons."""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.learn import batch_norm, loss_head
from tickgraph.learn.trunk import NormForm

_log = logging.getLogger(__name__)

KERNELS = ("auto", "triton", "torch")
FORMS = ("torch", "triton")

HeadForm = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LearnerPath:
    """Switches of the learner's computation. The maths is the same for all of them, and each can be measured alone."""

    manual: bool = False
    """Gradients are written out (`stacked.py`); else autograd computes them, of `fused.py` or `flashsac.py`."""
    stacked: bool = False
    """Online and target critics share their products; else the target has its own."""
    copies: bool = False
    """The step writes copies of the weights, stacked and in the products' precision; else they are made in each
    update."""
    shared_actions: bool = False
    """The next actions of all critic updates between two of the actor come from one pass."""
    row_chunks: int = 1
    """Parts in which gradients of weights are summed over the rows."""
    batch_norm: str = "torch"
    loss_head: str = "torch"
    row_step: str = "torch"
    """torch, or triton: the kernel of that name in `kernels/`."""
    reasons: tuple[str, ...] = ()
    """Why kernels that were wanted do not run."""

    def __post_init__(self) -> None:
        for name in ("batch_norm", "loss_head", "row_step"):
            form = getattr(self, name)
            if form not in FORMS:
                hint = nearby(form, FORMS) or f"use one of {', '.join(FORMS)}"
                raise TickgraphError(f"LearnerPath.{name} is {form!r}; {hint}")
        if self.row_chunks < 1:
            raise TickgraphError(f"LearnerPath.row_chunks is {self.row_chunks}; it must be at least 1")
        needs = {"stacked": self.stacked, "copies": self.copies, "shared_actions": self.shared_actions}
        needs |= {name: getattr(self, name) == "triton" for name in ("batch_norm", "loss_head")}
        without = [name for name, on in needs.items() if on and not self.manual]
        if without:
            raise TickgraphError(f"LearnerPath has {', '.join(without)} without manual; switch manual on")

    def report(self) -> dict[str, object]:
        """Return {switch: value}, for the run's manifest."""
        return dataclasses.asdict(self) | {"reasons": list(self.reasons)}

    def norm_form(self) -> NormForm:
        """Return what computes batch norm with ReLU."""
        if self.batch_norm == "torch":
            return NormForm(batch_norm.norm_relu, batch_norm.norm_relu_backward)
        from tickgraph.learn.kernels import batch_norm as kernel

        return NormForm(kernel.norm_relu, kernel.norm_relu_backward)

    def head_form(self) -> HeadForm:
        """Return what computes the loss from filled-up logits: as `loss_head.categorical_head`, with the precision of
        the gradient as the last argument."""
        if self.loss_head == "torch":
            return _filled_head
        from tickgraph.learn.kernels import loss_head as kernel

        return kernel.categorical_head


def _filled_head(
    online: Tensor, target: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    count, width = atoms.shape[0], online.shape[-1]
    made, figures = loss_head.categorical_head(online[..., :count], target[..., :count], reward, discount, cost, atoms)
    return F.pad(made, (0, width - count)).to(dtype), figures
