"""Checks of a learner's numbers: every path against the plain reference, the projection against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tickgraph.bench._learner_paths import BenchPath
from tickgraph.bench._learner_rig import LearnerRig, LearnerSpec, made_up, with_algo
from tickgraph.bench._verify_plain import PlainAdam, project_distribution64
from tickgraph.bench._verify_reference import (
    PlainLearner,
    learner_counts,
    learner_tensors,
    reference_of,
)
from tickgraph.core.words import counted
from tickgraph.learn import distribution
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.optimizer import BETA1
from tickgraph.learn.path import Switches
from tickgraph.learn.trunk import filled
from tickgraph.run.precision import set_precision

# Largest relative L2 error of one tensor, by the precision of the matrix products.
STATE_LIMITS = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
# Of Adam's moments where they are made of the path's own gradients: by reckoning, a ReLU that rounds to the other side
# changes the gradient of its unit's offset by percents. Amid training a float32 path has the share 1 - beta1^n of it
# after n updates. Measured figures: docs/decisions/learner-numerics.md.
MOMENT_LIMITS = {"fp32": 1e-2, "tf32": 3e-2, "bf16": 0.2}
# A small network in low precision can be worse than that in any form: twice what the readable form deviates by itself.
OWN_FACTOR = 2.0
TEMPERATURE_LIMIT = 1e-6
PROJECTION_LIMIT = 1e-5
"""Of up to 101 atoms; of more in proportion, as float32 tells the places of an atom apart."""
FILLED = 40  # ticks in the ring before the first cycle


@dataclass
class Row:
    """What one check found: `figure` must not be above `limit`; None where it is yes or no."""

    check: str
    path: str
    case: str
    figure: float | None
    limit: float | None
    ok: bool
    note: str = ""
    max_abs: float | None = None


@dataclass(frozen=True)
class Subject:
    """What is verified: a learner, one path of it, a device and the precision of its products."""

    spec: LearnerSpec
    path: BenchPath
    device: torch.device
    precision: str = "fp32"

    def rig(self, scrambled: bool = True, spec: LearnerSpec | None = None) -> LearnerRig:
        """Return the learner on its path, with transitions to sample, compiled and captured."""
        spec = spec or self.spec
        rig = LearnerRig(with_algo(spec, bf16=self.precision == "bf16"), self.device, self.path)
        rig.write(made_up(spec, FILLED, seed=spec.data_seed))
        if scrambled:
            rig.scramble()
        with self.products():
            rig.capture()
        return rig

    def reference(self, scrambled: bool = True, low: bool = False) -> PlainLearner:
        """Return the reference from the same start, in float32, or with products as imprecise as the path's."""
        spec = with_algo(self.spec, bf16=False)
        rig = LearnerRig(spec, self.device)
        rig.write(made_up(spec, FILLED, seed=spec.data_seed))
        if scrambled:
            rig.scramble()
        return reference_of(rig, torch.bfloat16 if low and self.precision == "bf16" else None)

    @contextmanager
    def products(self, low: bool = True) -> Iterator[None]:
        """Matrix products of float32 inside are as precise as the path's, or exact where `low` is false."""
        set_precision("high" if low and self.precision == "tf32" else "highest", self.device)
        try:
            yield
        finally:
            set_precision("highest", self.device)


class References:
    """What the reference came to, by case: all paths of a device are held against the same numbers."""

    def __init__(self) -> None:
        self._known: dict[Any, dict[int, tuple[dict[str, Tensor], dict[str, float]]]] = {}

    def after(
        self, subject: Subject, cycles: tuple[int, ...], scrambled: bool, low: bool
    ) -> dict[int, tuple[dict[str, Tensor], dict[str, float]]]:
        """Return {cycle: (tensors, counts)} of the reference."""
        key = (repr(subject.spec), subject.device, subject.precision if low else "", cycles, scrambled)
        if key not in self._known:
            reference, found = subject.reference(scrambled, low), {}
            with subject.products(low):
                for cycle in range(1, max(cycles) + 1):
                    reference.cycle()
                    if cycle in cycles:
                        found[cycle] = reference.tensors(), reference.counts()
            self._known[key] = found
        return self._known[key]


def parity(
    subject: Subject, references: References, cycles: tuple[int, ...] = (1, 10), scrambled: bool = True
) -> list[Row]:
    """Run a path beside the reference, from one state on the same batches and noise, and compare every tensor.

    Args:
        subject: what runs.
        references: those known so far.
        cycles: after how many cycles they are compared.
        scrambled: begin amid training; else with a new learner.
    """
    wanted = references.after(subject, cycles, scrambled, low=False)
    own = references.after(subject, cycles, scrambled, low=True) if subject.precision != "fp32" else None
    rig, rows = subject.rig(scrambled), []
    spec = subject.spec
    start = "" if scrambled else ", new"
    with subject.products():
        for cycle in range(1, max(cycles) + 1):
            rig.run()
            if cycle not in cycles:
                continue
            case = f"{counted(spec.updates, 'update')}, period {spec.algo.policy_period}, cycle {cycle}{start}"
            tensors, counts = wanted[cycle]
            found = learner_tensors(rig)
            if not scrambled and subject.precision == "fp32":
                tensors = tensors | _first_step(subject, found)
            own_updates = cycle * spec.updates if scrambled else None
            rows += _compared(subject, case, found, tensors, own[cycle][0] if own else None, own_updates)
            rows.append(_counted(subject, case, learner_counts(rig), counts))
    return rows


def _first_step(subject: Subject, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state, without moments, that the reference comes to from a new learner with a path's gradients.

    Adam's first step is a gradient's sign, so that from its own gradients it would differ wherever these are rounding.
    What the path took for gradients stands in its first moments.
    """
    reference = subject.reference(scrambled=False)
    for name, adam in (("actor", reference.actor_adam), ("critic", reference.critic_adam)):
        share = 1.0 - adam.betas[0]
        adam.given = {path: found[f"{name}_adam/moment1/{path}"] / share for path in adam.parameters}
    with subject.products():
        reference.cycle()
    return {name: value for name, value in reference.tensors().items() if "_adam/" not in name}


def _moment_limit(precision: str, updates: int | None) -> float:
    """Return the limit of moments behind a number of updates amid training, None where all came from the path."""
    share = 1.0 if precision != "fp32" or updates is None else 1.0 - BETA1**updates
    return MOMENT_LIMITS[precision] * share


def _compared(
    subject: Subject,
    case: str,
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    own: Mapping[str, Tensor] | None,
    updates: int | None = None,
) -> list[Row]:
    """Return a row for the state and one for the moments, each with its worst tensor; `updates` of `_moment_limit`."""
    rows = []
    if found.keys() != wanted.keys():
        odd = ", ".join(sorted(found.keys() ^ wanted.keys())[:3])
        return [Row("parity", subject.path.name, case, None, None, False, f"tensors of one side only: {odd}")]
    most = {"state": STATE_LIMITS[subject.precision], "moments": _moment_limit(subject.precision, updates)}
    for kind in most:
        names = [name for name in wanted if ("_adam/" in name) == (kind == "moments")]
        worst: tuple[float, float, float, str] = (-1.0, 0.0, 1.0, "")
        largest = 0.0
        for name in names:
            scale = _scale(name, wanted)
            error = float((found[name] - wanted[name]).double().norm()) / scale
            limit = most[kind]
            if own is not None:
                limit = max(limit, OWN_FACTOR * float((own[name] - wanted[name]).double().norm()) / scale)
            largest = max(largest, float((found[name] - wanted[name]).abs().max()))
            share = error / limit if math.isfinite(error) else math.inf
            if share > worst[0]:
                worst = (share, error, limit, name)
        share, error, limit, name = worst
        largest = largest if math.isfinite(error) else math.inf
        rows.append(
            Row(f"{kind} {subject.precision}", subject.path.name, case, error, limit, share <= 1.0, name, largest)
        )
    return rows


def _scale(name: str, tensors: Mapping[str, Tensor]) -> float:
    """Return what an error of a tensor is relative to: its norm, or where it may be near 0 that of what it goes with.

    A running mean counts beside its deviation, an offset beside its gain, with which it lies on one sphere, and a bias
    beside the weights of its layer.
    """
    square = float(tensors[name].double().square().sum())
    partner, kind = None, name.rpartition(".")[2]
    if kind == "mean":
        return max(math.sqrt(square + float(tensors[name.removesuffix("mean") + "var"].double().sum())), 1e-30)
    if kind == "offset":
        partner = name.removesuffix("offset") + "gain"
    elif kind.endswith("bias"):
        partner = name.removesuffix("bias") + "weight"
        partner = partner if partner in tensors else name.removesuffix("_bias") + ".weight"
    if partner is not None and "_adam/" not in name:
        square += float(tensors[partner].double().square().sum())
    return max(math.sqrt(square), 1e-30)


def _counted(subject: Subject, case: str, found: Mapping[str, float], wanted: Mapping[str, float]) -> Row:
    """Return the row of what must agree exactly; the temperature's own row is that of `temperature`."""
    wrong = [
        f"{name} {found[name]:g}, expected {value:g}"
        for name, value in wanted.items()
        if found[name] != value and not (math.isnan(found[name]) and math.isnan(value))
    ]
    return Row("counters and rates", subject.path.name, case, None, None, not wrong, "; ".join(wrong))


def temperature(subject: Subject, cycles: int = 10) -> Row:
    """Replay the temperature's own steps from the entropies that the path reports, one update a cycle."""
    rig = subject.rig(spec=with_algo(replace(subject.spec, updates=1), policy_period=1))
    reference = reference_of(rig)
    adam = PlainAdam(
        {"": reference.log_alpha}, reference.alpha_adam.first, reference.alpha_adam.second,
        reference.alpha_adam.steps, reference.betas,
    )  # fmt: skip
    worst, note = 0.0, ""
    rig.wait()
    with subject.products():
        for cycle in range(cycles):
            rig.run()
            loss = rig.figures()["loss/alpha_loss"]
            # alpha (H - target) before the step is what the path says; the rest of the step is replayed.
            grad = torch.full_like(reference.log_alpha, math.nan if loss is None else float(loss))
            adam.step({"": grad}, reference.rate(cycle))
            error = abs(float(rig.learner.log_alpha) / float(reference.log_alpha) - 1.0)
            worst = error if not error <= worst else worst
    return Row(
        "temperature", subject.path.name, f"{cycles} steps from its own losses", worst, TEMPERATURE_LIMIT,
        worst <= TEMPERATURE_LIMIT, note,
    )  # fmt: skip


def matrix(subject: Subject, references: References, updates: tuple[int, ...], periods: tuple[int, ...]) -> list[Row]:
    """Return the parity of the first cycles for each number of updates and policy period but the subject's own."""
    rows = []
    for count in updates:
        for period in periods:
            spec = with_algo(replace(subject.spec, updates=count), policy_period=period)
            if spec == subject.spec:
                continue
            rows += parity(replace(subject, spec=spec), references, cycles=(1, 2))
    return rows


def ends_present(subject: Subject, cycles: int = 10) -> Row:
    """Check that falls and time limits are among the rows that the first cycles sample."""
    rig = LearnerRig(subject.spec, subject.device)
    ticks = list(made_up(subject.spec, FILLED, seed=subject.spec.data_seed))
    rig.write(iter(ticks))
    finals = [tick.final_obs["actor"][tick.truncated, 0] for tick in ticks]
    late = torch.cat(finals).to(rig.device)  # what a window that a time limit ended leads to, and nothing else does
    fell = cut = 0
    with torch.no_grad():
        for _ in range(cycles * subject.spec.updates):
            batch = rig.ring.sample(rig.learner.replay_draw)
            fell += int((batch.discount == 0).sum())
            successors = batch.actor_obs[batch.action.shape[0] :, 0]
            cut += int((torch.isin(successors, late) & (batch.discount > 0)).sum())
            rig.learner.rng.advance()
    note = f"{fell} rows of a fall, {cut} of a time limit that bootstrap"
    return Row("falls and time limits sampled", "", counted(cycles, "cycle"), None, None, fell > 0 and cut > 0, note)


def projection(subject: Subject, rows: int = 64) -> list[Row]:
    """Hold the projection of the target distribution, in all its forms, against float64."""
    atoms = LearnerRig(subject.spec, subject.device).learner.atoms
    generator = torch.Generator().manual_seed(3)
    count = atoms.numel()
    top = float(atoms[-1])
    probs = torch.softmax(3.0 * torch.randn(rows, count, generator=generator), dim=-1)
    # Rewards that lead past both ends of the support among them, and discounts of 0.
    reward = top * torch.randn(rows, generator=generator)
    discount = torch.where(torch.rand(rows, generator=generator) < 0.2, 0.0, torch.rand(rows, generator=generator))
    cost = torch.randn(rows, generator=generator)
    given = [value.to(subject.device) for value in (probs, reward, discount, cost)]
    wanted = project_distribution64(*given, atoms)
    limit = PROJECTION_LIMIT * max(1.0, count / 101)
    found = []
    forms = {"by scatter": distribution.project_by_scatter, "by integral": distribution.project_by_integral}
    if isinstance(subject.spec.algo, FlashSacCfg):  # whose losses are also written out, with their gradient
        kinds = ("torch", "triton") if subject.device.type == "cuda" and find_spec("triton") else ("torch",)
        forms |= {f"in the loss head, {kind}": _with_head(kind) for kind in kinds}
    for name, form in forms.items():
        mine = form(*given, atoms).double().cpu()
        error = float((mine - wanted).norm() / wanted.norm())
        mass = float((mine.sum(-1) - 1.0).abs().max())
        largest = float((mine - wanted).abs().max())
        figure = max(error, mass)
        note = f"mass off by {mass:.1e}"
        found.append(Row("projection against float64", "", name, figure, limit, figure <= limit, note, largest))
    return found


def _with_head(kind: str) -> Any:
    """Return the projection as the written out loss has it in it, read off the gradient of the logits."""
    head = Switches(manual=True, loss_head=kind).head_form()

    def form(probs: Tensor, reward: Tensor, discount: Tensor, cost: Tensor, atoms: Tensor) -> Tensor:
        rows, count = probs.shape
        width = filled(count)
        logits = torch.zeros(4, rows, width, device=probs.device)
        logits[2, :, :count] = probs.log()
        logits[3, :, count - 1] = 30.0  # a member of the largest mean, which is not the one to take
        biases = torch.zeros(4, 1, width, device=probs.device)
        to_logits, *_ = head(logits, biases, reward, discount, cost, cost.new_zeros(()), atoms, torch.float32)
        # (p - label) / (members B), of an online distribution that is uniform.
        return 1.0 / count - to_logits[0, :, :count] * (2 * rows)

    return form
