"""One update cycle: sample, critic updates with the actor's every few, metrics, policy snapshot."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.program import Program, Resolution, resolve_execution
from tickgraph.learn.learner import Learner, Rates, Tails
from tickgraph.learn.metrics import Metrics
from tickgraph.learn.path import Switches
from tickgraph.learn.replay import Batch, Ring
from tickgraph.learn.storage import flatten

COMPILE_SCOPES = ("objective", "loss")


class UpdateCycle:
    """All gradient steps of one iteration: `updates` critic updates, every `policy_period`-th with the actor's.

    A call leaves the learner's tensors updated, the policy that acts next pending in it and the metrics added up. It
    reads what the ring last published. `run` asks the device nothing, so that it can be captured whole.

    Five programs follow `execution`: the sample, and for actor and critic the objective and the optimiser's step; where
    critic updates share their next actions, also these and the rates. In mode graph, where the caller captures the
    cycle, they run as the resolution's `inner` says.

    Args:
        learner: what is trained.
        ring: where transitions come from.
        updates: critic updates per call; a multiple of `policy_period` makes all calls alike.
        execution: a resolution, or a mode to resolve: auto, eager, compile or graph.
        compile_scope: "objective": an objective, networks and loss, is one program; "loss": where programs are
            compiled, only the objectives' tails are, and the networks run eager.
        kernels: how the learner computes: switches, or auto, triton, torch or autograd, see `resolve_switches`.

    Raises:
        TickgraphError: `updates` does not fit, there is no such scope, or it does not go with the switches.
    """

    def __init__(
        self,
        learner: Learner,
        ring: Ring,
        updates: int,
        execution: Resolution | str = "auto",
        compile_scope: str = "objective",
        kernels: str | Switches = "auto",
    ) -> None:
        device = learner.arena.device
        if updates < 1:
            raise TickgraphError(f"{updates} updates per cycle; at least one is needed")
        if compile_scope not in COMPILE_SCOPES:
            hint = nearby(compile_scope, COMPILE_SCOPES) or f"use one of {', '.join(COMPILE_SCOPES)}"
            raise TickgraphError(f"compile_scope is {compile_scope!r}; {hint}")
        resolution = resolve_execution(execution, device) if isinstance(execution, str) else execution
        self.learner, self.ring, self.updates, self.compile_scope = learner, ring, updates, compile_scope
        # All words of an update in one go: less code to compile, and fewer operations where nothing is compiled.
        actions = learner.action_dim + learner.action_dim % 2  # normals come in pairs
        lanes = {"replay/rows": ring.draw_lanes, "noise/policy": actions, "noise/successor": actions}
        learner.rng.reserve({f"learner/{path}": count for path, count in lanes.items()})
        self._actor_parameters = learner.actor_storage.ordered(learner.actor)
        self._critic_parameters = learner.critic_storage.ordered(learner.critic)
        half = torch.bfloat16 if learner.cfg.bf16 else None
        self._tails, self._tail_programs, networks = learner.TAILS, (), resolution
        if compile_scope == "loss":
            if isinstance(kernels, Switches) and kernels.manual:
                raise TickgraphError("compile_scope 'loss' needs autograd; give it switches without manual")
            kernels = kernels if isinstance(kernels, Switches) else Switches()
            networks = replace(resolution, inner="eager", disable_reason=None)
            self._tail_programs = tuple(
                Program(f"update/{name}_tail", tail, resolution, grad=name != "labels", autocast=half)
                for name, tail in learner.TAILS._asdict().items()
            )
            self._tails = Tails(*self._tail_programs)
        learner.choose_maths(networks, kernels)
        totals = ((*learner.TOTALS[0], "replay_redraws"), learner.TOTALS[1])
        counters = {} if learner.normalizer is None else {"skipped_rewards": learner.normalizer.refused}
        names = (learner.MEANS, learner.LAST, totals)
        self.metrics = Metrics(learner.arena, *names, counters, learner.switches.flat_form())
        written = learner.switches.manual
        half = None if written else half  # what writes its gradients out casts by itself
        self._draw = Program("update/draw", self._draw_batch, resolution)
        self._actor_loss = Program(
            "update/actor_loss", self._actor_objective, networks, grad=not written, autocast=half
        )
        self._actor_step = Program("update/actor_step", self._apply_actor, resolution)
        shared = learner.switches.shared_actions
        objective = self._critic_objective_at if shared else self._critic_objective
        self._critic_loss = Program("update/critic_loss", objective, networks, grad=not written, autocast=half)
        self._critic_step = Program("update/critic_step", self._apply_critic, resolution)
        period = learner.cfg.policy_period
        counts = {count for phase in self.phases for _, count in groups(phase, updates, period)} if shared else set()
        self._rates = Program("update/rates", learner.rates, resolution)
        self._next_actions = {
            count: Program(f"update/next_actions_{count}", self._many_next_actions, networks)
            for count in sorted(counts)
        }

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
        learner, period = self.learner, self.learner.cfg.policy_period
        with torch.no_grad():
            learner.begin_cycle()
        if learner.switches.shared_actions:
            for first, count in groups(phase, self.updates, period):
                self._update_group(count, moves_actor=first % period == 0)
        else:
            for update in range(phase, phase + self.updates):
                self._update_once(moves_actor=update % period == 0)
        with torch.no_grad():
            learner.snapshot_policy()

    def _update_once(self, moves_actor: bool) -> None:
        """Take one critic update, and the actor's before or behind it."""
        learner = self.learner
        drawn = self._draw()
        batch, drawn = Batch(*drawn[: len(Batch._fields)]), drawn[len(Batch._fields) :]
        rates, (noise, next_noise) = Rates(*drawn[:-2]), drawn[-2:]
        if moves_actor and learner.actor_first:
            self._update_actor(batch, noise, rates)
        critic, grad = _parts(self._critic_loss(batch, next_noise), self._critic_parameters)
        self._critic_step(critic, grad, rates, batch.redraws)
        if moves_actor and not learner.actor_first:
            self._update_actor(batch, noise, rates)

    def _update_group(self, count: int, moves_actor: bool) -> None:
        """Take the critic updates between which the actor stays as it is, their next actions in one pass."""
        width = len(Batch._fields)
        drawn = [self._draw() for _ in range(count)]
        batches = [Batch(*each[:width]) for each in drawn]
        if moves_actor:
            self._update_actor(batches[0], drawn[0][width], Rates(*self._rates()))
        observed, noises = [batch.actor_obs for batch in batches], [each[width + 1] for each in drawn]
        actions = self._next_actions[count](*observed, *noises)
        for batch, action, log_prob in zip(batches, actions[:count], actions[count:], strict=True):
            critic, grad = _parts(self._critic_loss(batch, action, log_prob), self._critic_parameters)
            self._critic_step(critic, grad, Rates(*self._rates()), batch.redraws)

    def _update_actor(self, batch: Batch, noise: Tensor, rates: Rates) -> None:
        actor, grad = _parts(self._actor_loss(batch, noise), self._actor_parameters)
        self._actor_step(actor, grad, rates)

    def report(self) -> dict[str, dict[str, object]]:
        """Return what each program was asked to run as, what it ran as; of the objectives also the scope in which they
        compile and the learner's switches."""
        programs = [self._draw, self._actor_loss, self._actor_step, self._critic_loss, self._critic_step]
        if self._next_actions:
            programs += [self._rates, *self._next_actions.values()]
        found = {program.name: program.report() for program in (*programs, *self._tail_programs)}
        for name in ("update/actor_loss", "update/critic_loss"):
            found[name]["compile_scope"] = self.compile_scope
            found[name]["switches"] = self.learner.switches.report()
        return found

    # The pieces, in the order of an update -----------------------------------------------------------------------

    def _draw_batch(self) -> tuple[Tensor, ...]:
        """Return the fields of a `Batch`, those of `Rates`, and noise for policy and successor, one after the other:
        torch 2.11 compiles no program that returns named tuples within a tuple. Where several updates draw at once the
        rates are left out, as each step asks for them anew."""
        learner, actions = self.learner, self.learner.action_dim
        batch = learner.prepare(self.ring.sample(learner.replay_draw))
        noise = learner.noise_draw
        drawn = (noise.normal("policy", actions), noise.normal("successor", actions))
        rates = () if learner.switches.shared_actions else learner.rates()
        learner.rng.advance()
        return *batch, *rates, *drawn

    def _many_next_actions(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return a' of each batch and then their log densities, from the observations (2B, O) of each and the noise."""
        count = len(given) // 2
        size = given[-1].shape[0]
        observed = torch.cat([obs[size:] for obs in given[:count]])
        action, log_prob = self.learner.next_actions(observed, torch.cat(given[count:]))
        return *action.split(size), *log_prob.split(size)

    def _actor_objective(self, batch: Batch, noise: Tensor) -> Any:
        return self.learner.actor_objective(batch, noise, self._tails)

    def _apply_actor(self, out: Any, grad: Tensor, rates: Rates) -> None:
        self.metrics.add(1, *self.learner.apply_actor(out, grad, rates))

    def _critic_objective(self, batch: Batch, noise: Tensor) -> Any:
        return self.learner.critic_objective(batch, noise, self._tails)

    def _critic_objective_at(self, batch: Batch, action: Tensor, log_prob: Tensor) -> Any:
        return self.learner.critic_objective_at(batch, (action, log_prob))

    def _apply_critic(self, out: Any, grad: Tensor, rates: Rates, redraws: Tensor) -> None:
        learner = self.learner
        means, last, ok, totals = learner.apply_critic(out, grad, rates)
        self.metrics.add(0, means, last, ok, (*totals, redraws))
        learner.updates += 1


def groups(phase: int, updates: int, period: int) -> list[tuple[int, int]]:
    """Return the first update and the count of each run of updates that share one actor, from `phase` on.

    The actor moves before an update whose number is a multiple of `period`.
    """
    end = phase + updates
    starts = [phase, *range((phase // period + 1) * period, end, period)]
    return [(start, min(end, (start // period + 1) * period) - start) for start in starts]


def _parts(out: Any, parameters: Sequence[Tensor]) -> tuple[Any, Tensor]:
    """Return what an objective gave, without gradient, and the flat gradient: its own, or autograd's."""
    if hasattr(out, "parts"):
        result, grad = out.parts()
        return result, grad
    grad = flatten(torch.autograd.grad(out.loss, parameters))
    return out._replace(loss=out.loss.detach()), grad
