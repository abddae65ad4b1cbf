"""One update cycle: sample, critic updates with actor and temperature every few, metrics, policy snapshot."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Program, Resolution, resolve_execution
from tickgraph.learn import flashsac, fused
from tickgraph.learn.flashsac import ActorLoss, CriticLoss, FlashSac
from tickgraph.learn.replay import Batch, Ring
from tickgraph.learn.storage import flatten


class Rates(NamedTuple):
    """What the schedules say for one update; computed with the sample, as scalars of their own."""

    critic: Tensor
    """() float32 learning rate."""
    actor: Tensor
    """() float32 learning rate, of the temperature too."""
    critic_factors: Tensor
    actor_factors: Tensor
    alpha_factors: Tensor
    """(2,) of `Adam.factors` each."""


class Metrics:
    """Figures of the learner, added up on the device and drained at log points.

    `MEANS` are means over the updates since the last drain that were not skipped, `LAST` are the newest values, `SUMS`
    are totals since the last drain. Row 0 belongs to the critic, row 1 to the actor.

    Args:
        arena: owner of the accumulators.
    """

    MEANS = (("critic_loss", "q_mean", "target_q_mean"), ("actor_loss", "entropy", "alpha_loss"))
    LAST = (("critic_lr", "reward_scale"), ("actor_lr", "alpha"))
    SUMS = ("skipped_updates", "replay_redraws")

    def __init__(self, arena: Arena) -> None:
        self._means = arena.new("learner/metrics/means", (2, 3), why="sums over updates, of critic and actor")
        self._counts = arena.new("learner/metrics/counts", (2, 1), why="updates in each sum")
        self._last = arena.new("learner/metrics/last", (2, 2), why="newest figures, of critic and actor", fill=math.nan)
        self._sums = arena.new("learner/metrics/sums", (2,), why="updates skipped, rows drawn again")

    def add(self, row: int, means: Sequence[Tensor], last: Sequence[Tensor], ok: Tensor) -> None:
        """Add one update of the critic (row 0) or the actor (row 1); a skipped one counts as that only."""
        self._means[row] += torch.where(ok, torch.stack([value.float() for value in means]), 0.0)
        self._counts[row] += ok
        self._last[row].copy_(torch.stack([value.float() for value in last]))
        self._sums[0] += ~ok

    def add_redraws(self, count: Tensor) -> None:
        """Add the rows of one sample that were drawn again."""
        self._sums[1] += count

    def packed(self) -> Tensor:
        """Return every accumulator as one vector (14,) float64, for `figures` to read; nothing is changed."""
        parts = (self._means, self._counts, self._last, self._sums)
        return torch.cat([part.reshape(-1).to(torch.float64) for part in parts])

    def clear(self) -> None:
        """Start anew; the newest values stay."""
        for tensor in (self._means, self._counts, self._sums):
            tensor.zero_()

    def figures(self, values: Sequence[float]) -> dict[str, float | int | None]:
        """Return {"loss/name": figure} of a packed vector; a mean over no update, a value before the first, is None."""
        means, counts, last, sums = values[:6], values[6:8], values[8:12], values[12:]
        figures: dict[str, float | int | None] = {}
        for row, count in enumerate(counts):
            for name, total in zip(self.MEANS[row], means[3 * row : 3 * row + 3], strict=True):
                figures[name] = total / count if count else None
            for name, value in zip(self.LAST[row], last[2 * row : 2 * row + 2], strict=True):
                figures[name] = None if math.isnan(value) else value
        figures |= zip(self.SUMS, map(int, sums), strict=True)
        return {f"loss/{name}": value for name, value in figures.items()}


class UpdateCycle:
    """All gradient steps of one iteration: `updates` critic updates, every `policy_period`-th led by the actor's.

    A call leaves the learner's tensors updated, the policy that acts next in `learner.pending` and the metrics added
    up. It reads what the ring last published. `run` asks the device nothing, so that it can be captured whole.

    Five programs follow `execution`: the sample, and for actor and critic the objective and the optimiser's step. In
    mode graph, where the caller captures the cycle, they run as the resolution's `inner` says. The objectives are
    computed as `fused.py` does, in bfloat16 as `flashsac.py` does.

    Args:
        learner: what is trained.
        ring: where transitions come from.
        updates: critic updates per call; a multiple of `policy_period` makes all calls alike.
        execution: a resolution, or a mode to resolve: auto, eager, compile or graph.

    Raises:
        TickgraphError: `updates` does not fit.
    """

    def __init__(self, learner: FlashSac, ring: Ring, updates: int, execution: Resolution | str = "auto") -> None:
        device = learner.arena.device
        if updates < 1:
            raise TickgraphError(f"{updates} updates per cycle; at least one is needed")
        resolution = resolve_execution(execution, device) if isinstance(execution, str) else execution
        self.learner, self.ring, self.updates = learner, ring, updates
        self.metrics = Metrics(learner.arena)
        # All words of an update in one go: less code to compile, and fewer operations where nothing is compiled.
        actions = learner.action_dim + learner.action_dim % 2  # normals come in pairs
        lanes = {"replay/rows": ring.draw_lanes, "noise/policy": actions, "noise/successor": actions}
        learner.rng.reserve({f"learner/{path}": count for path, count in lanes.items()})
        self._actor_parameters = learner.actor_storage.ordered(learner.actor)
        self._critic_parameters = learner.critic_storage.ordered(learner.critic)
        half = torch.bfloat16 if learner.cfg.bf16 else None
        # The short form has no casts of its own, and its uncompiled batch norm is for the CPU.
        self._maths = flashsac if half or (device.type != "cpu" and resolution.inner == "eager") else fused
        self._draw = Program("update/draw", self._draw_batch, resolution)
        self._actor_loss = Program("update/actor_loss", self._actor_objective, resolution, grad=True, autocast=half)
        self._actor_step = Program("update/actor_step", self._apply_actor, resolution)
        self._critic_loss = Program("update/critic_loss", self._critic_objective, resolution, grad=True, autocast=half)
        self._critic_step = Program("update/critic_step", self._apply_critic, resolution)

    def __call__(self) -> None:
        """Run the cycle, whatever gradient or inference mode the caller is in."""
        self.run(self.phase())

    @property
    def phases(self) -> range:
        """The values of `phase` that come about: how far the first update of a call is behind one of the actor."""
        period = self.learner.cfg.policy_period
        return range(0, period, math.gcd(self.updates, period))

    def phase(self) -> int:
        """Return the phase of the next call; reads the device where calls are not all alike."""
        return 0 if len(self.phases) == 1 else int(self.learner.updates) % self.learner.cfg.policy_period

    @torch.inference_mode(False)
    def run(self, phase: int) -> None:
        """Run the cycle in a phase, or have it captured: what it enqueues is the same every time."""
        period = self.learner.cfg.policy_period
        for update in range(phase, phase + self.updates):
            drawn = self._draw()
            batch, drawn = Batch(*drawn[: len(Batch._fields)]), drawn[len(Batch._fields) :]
            rates, (noise, next_noise) = Rates(*drawn[:-2]), drawn[-2:]
            if update % period == 0:
                actor = self._actor_loss(batch, noise)
                grad = flatten(torch.autograd.grad(actor.loss, self._actor_parameters))
                self._actor_step(actor._replace(loss=actor.loss.detach()), grad, rates)
            critic = self._critic_loss(batch, next_noise)
            grad = flatten(torch.autograd.grad(critic.loss, self._critic_parameters))
            self._critic_step(critic._replace(loss=critic.loss.detach()), grad, rates, batch.redraws)
        with torch.no_grad():
            self.learner.snapshot_policy()

    def report(self) -> dict[str, dict[str, object]]:
        """Return what each program was asked to run as, and what it ran as."""
        programs = (self._draw, self._actor_loss, self._actor_step, self._critic_loss, self._critic_step)
        return {program.name: program.report() for program in programs}

    # The pieces, in the order of an update -----------------------------------------------------------------------

    def _draw_batch(self) -> tuple[Tensor, ...]:
        """Return the fields of a `Batch`, those of `Rates`, and noise for policy and successor, one after the other:
        torch 2.11 compiles no program that returns named tuples within a tuple."""
        learner, actions = self.learner, self.learner.action_dim
        batch = self.ring.sample(learner.replay_draw)
        critic, actor = learner.rate(learner.updates), learner.rate(learner.actor_updates)
        noise = learner.noise_draw
        return (
            *(batch.actor_obs, batch.critic_obs, batch.action, batch.reward / learner.normalizer.scale),
            *(batch.discount, batch.redraws),
            *(critic, actor, learner.critic_step.adam.factors(critic)),
            *(learner.actor_step.adam.factors(actor), learner.alpha_adam.factors(actor)),
            *(noise.normal("policy", actions), noise.normal("successor", actions)),
        )

    def _actor_objective(self, batch: Batch, noise: Tensor) -> ActorLoss:
        learner = self.learner
        return self._maths.actor_objective(
            *(learner.actor, learner.frozen_critic, learner.alpha(), batch, noise),
            *(learner.atoms, learner.cfg.bc_weight),
        )

    def _apply_actor(self, out: ActorLoss, grad: Tensor, rates: Rates) -> None:
        learner, adam = self.learner, self.learner.alpha_adam
        ok = learner.actor_step.apply(out.loss, grad, out.statistics, rates.actor_factors)
        # The gradient of alpha (H - target) with respect to log alpha is the loss itself.
        alpha_loss = learner.alpha() * (out.entropy - learner.target_entropy)
        new = adam.proposal(alpha_loss, rates.alpha_factors, ok)
        learner.log_alpha.copy_(torch.where(ok, new, learner.log_alpha))
        learner.actor_updates += 1
        self.metrics.add(1, (out.loss, out.entropy, alpha_loss), (rates.actor, learner.alpha()), ok)

    def _critic_objective(self, batch: Batch, noise: Tensor) -> CriticLoss:
        learner = self.learner
        successor = self._maths.next_action(learner.actor, batch, noise)
        return self._maths.critic_objective(
            learner.critic, learner.target, learner.alpha(), batch, successor, learner.atoms
        )

    def _apply_critic(self, out: CriticLoss, grad: Tensor, rates: Rates, redraws: Tensor) -> None:
        learner = self.learner
        ok = learner.critic_step.apply(out.loss, grad, out.statistics, rates.critic_factors)
        self.metrics.add(0, (out.loss, out.q, out.target_q), (rates.critic, learner.normalizer.scale), ok)
        self.metrics.add_redraws(redraws)
        learner.updates += 1
        learner.rng.advance()
