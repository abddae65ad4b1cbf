"""One update cycle: sample, critic updates with the actor's every few, metrics, policy snapshot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.program import Program, Resolution, resolve_execution
from tickgraph.core.rng import normals
from tickgraph.core.room import check_room
from tickgraph.learn.beside import Beside
from tickgraph.learn.learner import Learner, Tails
from tickgraph.learn.metrics import Metrics
from tickgraph.learn.optimizer import in_line
from tickgraph.learn.path import Switches
from tickgraph.learn.replay import Batch, Ring
from tickgraph.learn.storage import flatten

COMPILE_SCOPES = ("objective", "loss")


class Drawn(NamedTuple):
    """What a cycle of U updates draws: the fields of a `Batch`, and noise, of every update one behind the other.

    So what an update, or several in a row, reads of them is a view, and begins at a multiple of 16 bytes for batches of
    a multiple of 4: compiled code copies an input that does not.
    """

    actor_obs: Tensor
    """(U, 2B, Da)."""
    critic_obs: Tensor
    """(U, 2B, Dc)."""
    action: Tensor
    """(U, B, A)."""
    reward: Tensor
    """(U, B)."""
    discount: Tensor
    """(U, B)."""
    redraws: Tensor
    """(U, 2) int64, in the first column."""
    noise: Tensor
    next_noise: Tensor
    """(U, B, A) each, standard normal, for the actions in s and in s'."""

    def batch(self, index: int) -> Batch:
        """Return the batch of an update."""
        fields = (self.actor_obs, self.critic_obs, self.action, self.reward, self.discount)
        return Batch(*(field[index] for field in fields), self.redraws[index, 0])


class UpdateCycle:
    """All gradient steps of one iteration: `updates` critic updates, every `policy_period`-th with the actor's.

    A call leaves the learner's tensors updated, the policy that acts next pending in it and the metrics added up. It
    reads what the ring last published. `run` asks the device nothing, so that it can be captured whole.

    These programs follow `execution`: the draw, once a cycle, of all its batches and noise; the rates, before each
    critic update, which they count; for actor and critic the objective, the optimiser's step and the figures for the
    log, of the actor with all that is `after_actor`; the policy's snapshot; the copies of the weights, where there are
    any. Where critic updates share their next actions, these and the critics' normalised inputs too, and with the
    switch `beside` the actor's forward pass, which needs none of the critics' updates between the actor's last step and
    its own. In mode graph, where the caller captures the cycle, programs run as the resolution's `inner` says, and with
    `beside` that forward pass, those inputs, the rates, the copies, the snapshot and what comes behind the steps are
    branches beside what does not need them.

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
        # All words of a cycle in one go: fewer and larger kernels, and fewer operations where nothing is compiled.
        actions = learner.action_dim + learner.action_dim % 2  # normals come in pairs
        lanes = {"replay/rows": ring.draw_lanes, "noise/policy": actions, "noise/successor": actions}
        words = 4 * updates * learner.cfg.batch_size * sum(lanes.values())
        what = f"a table of random words for {updates} updates of {learner.cfg.batch_size} rows"
        check_room(words, device, what, "make train.updates_per_iteration or train.algo.batch_size smaller")
        self._ahead = learner.rng.ahead({f"learner/{path}": count for path, count in lanes.items()}, updates)
        self._actor_parameters = learner.actor_storage.ordered(learner.actor)
        self._critic_parameters = learner.critic_storage.ordered(learner.critic)
        networks, kernels = self._take_scope(resolution, kernels)
        learner.choose_maths(networks, kernels)
        totals = ((*learner.TOTALS[0], "replay_redraws"), learner.TOTALS[1])
        counters = {} if learner.normalizer is None else {"skipped_rewards": learner.normalizer.refused}
        names = (learner.MEANS, learner.LAST, totals)
        self.metrics = Metrics(learner.arena, *names, counters, in_line if learner.switches.joined else flatten)
        self._make_chain(resolution, networks)
        self._make_branches(resolution, networks)

    def _take_scope(self, resolution: Resolution, kernels: str | Switches) -> tuple[Resolution, str | Switches]:
        """Make the tails' programs where they alone are compiled; returns how networks run, and the kernels."""
        self._tails, self._tail_programs = self.learner.TAILS, tuple[Program, ...]()
        if self.compile_scope != "loss":
            return resolution, kernels
        if isinstance(kernels, Switches) and kernels.manual:
            raise TickgraphError("compile_scope 'loss' needs autograd; give it switches without manual")
        half = torch.bfloat16 if self.learner.cfg.bf16 else None
        self._tail_programs = tuple(
            Program(f"update/{name}_tail", tail, resolution, grad=name != "labels", autocast=half)
            for name, tail in self.learner.TAILS._asdict().items()
        )
        self._tails = Tails(*self._tail_programs)
        networks = replace(resolution, inner="eager", disable_reason=None)
        return networks, kernels if isinstance(kernels, Switches) else Switches()

    def _make_chain(self, resolution: Resolution, networks: Resolution) -> None:
        """Make the programs that follow each other."""
        learner, switches, period = self.learner, self.learner.switches, self.learner.cfg.policy_period
        # What writes its gradients out casts by itself.
        half = torch.bfloat16 if learner.cfg.bf16 and not switches.manual else None
        shared = switches.shared_actions
        actor = self._actor_objective_at if switches.beside else self._actor_objective
        critic = self._critic_objective_at if shared else self._critic_objective
        self._draw = Program("update/draw", self._draw_cycle, resolution, steady=True)
        self._actor_loss, self._critic_loss = (
            Program(f"update/{name}_loss", objective, networks, grad=not switches.manual, autocast=half, steady=True)
            for name, objective in (("actor", actor), ("critic", critic))
        )
        self._actor_step = Program("update/actor_step", self._apply_actor, resolution, steady=True)
        self._critic_step = Program("update/critic_step", self._apply_critic, resolution, steady=True)
        kinds = self.kinds if shared else ()
        counts = {count for phase in kinds for _, count in groups(phase, self.updates, period)}
        self._next_actions = {
            count: Program(f"update/next_actions_{count}", self._many_next_actions, networks, steady=True)
            for count in sorted(counts)
        }

    def _make_branches(self, resolution: Resolution, networks: Resolution) -> None:
        """Make the programs that the chain of updates does not wait for."""
        learner, beside = self.learner, self.learner.switches.beside

        def branch(name: str, work: Callable[..., Any], how: Resolution = resolution) -> Beside:
            return Beside(Program(f"update/{name}", work, how, steady=True), resolution, beside)

        self._rates, self._snapshot = branch("rates", self._look_up_rates), branch("snapshot", learner.snapshot_policy)
        self._critic_inputs = branch("critic_inputs", learner.critic_inputs)
        self._after_actor = branch("after_actor", self._finish_actor)
        self._critic_figures = branch("critic_figures", self._add_critic)
        self._actor_forward = branch("actor_forward", learner.actor_forward, networks) if beside else None
        # A program without work is none that a compiler takes.
        self._copies = branch("copies", learner.begin_cycle) if learner.switches.copies else None

    def __call__(self) -> None:
        """Run the cycle, whatever gradient or inference mode the caller is in."""
        self.run(self.phase())

    @property
    def phases(self) -> range:
        """The values of `phase` that come about: how far the first update of a call is behind one of the actor."""
        period = self.learner.cfg.policy_period
        return range(0, period, math.gcd(self.updates, period))

    @property
    def kinds(self) -> list[int]:
        """The phases whose cycles differ, at most one more than there are updates; see `kind`."""
        step, period = self.phases.step, self.phases.stop
        first = max(step, ((period - self.updates) // step + 1) * step)  # from here on the actor moves within the cycle
        return [0, *([step] if first > step else []), *range(first, period, step)]

    def kind(self, phase: int) -> int:
        """Return the phase of `kinds` whose cycle is that of `phase`: those that leave the actor alone are alike."""
        moves_actor = phase == 0 or phase + self.updates > self.phases.stop
        return phase if moves_actor else self.phases.step

    def phase(self) -> int:
        """Return the phase of the next call; reads the device where calls are not all alike."""
        return 0 if len(self.phases) == 1 else int(self.learner.updates) % self.learner.cfg.policy_period

    @torch.inference_mode(False)
    def run(self, phase: int) -> None:
        """Run the cycle in a phase, or have it captured: what it enqueues is the same every time."""
        learner, period = self.learner, self.learner.cfg.policy_period
        if self._copies is not None:
            self._copies.start()
        drawn = Drawn(*self._draw())
        if self._copies is not None:
            self._copies.join()
        if learner.switches.shared_actions:
            self._update_groups(drawn, phase)
        else:
            for index in range(self.updates):
                self._update_once(drawn, index, moves_actor=(phase + index) % period == 0)
            self._snapshot.start()
        self._snapshot.join()
        self._after_actor.join()
        self._critic_figures.join()

    def _update_once(self, drawn: Drawn, index: int, moves_actor: bool) -> None:
        """Take one critic update, and the actor's before or behind it."""
        learner, batch, rates = self.learner, drawn.batch(index), self._rates.start()
        if moves_actor and learner.actor_first:
            self._update_actor(batch, drawn.noise[index], rates)
        # Nothing is a branch here, so that nothing has to be joined.
        self._step_critic(self._critic_loss(batch, drawn.next_noise[index]), rates, batch.redraws)
        if moves_actor and not learner.actor_first:
            self._update_actor(batch, drawn.noise[index], rates)

    def _update_groups(self, drawn: Drawn, phase: int) -> None:
        """Take all updates, those at once between which the actor stays as it is.

        The actor's forward pass for a group begins behind its step in the group before, beside the critics' updates
        there. Every group but the first moves the actor, so that what is begun is always waited for.
        """
        period = self.learner.cfg.policy_period
        forward = self._begin_forward(drawn, 0) if phase % period == 0 else ()
        for start, count in groups(phase, self.updates, period):
            first, rates = start - phase, self._rates.start()
            if start % period == 0:
                self._update_actor(drawn.batch(first), drawn.noise[first], rates, forward)
            if first + count == self.updates:  # the actor has taken its last step
                self._snapshot.start()
            forward = self._begin_forward(drawn, first + count)
            self._update_critics(drawn, first, count, rates)

    def _begin_forward(self, drawn: Drawn, index: int) -> tuple[Tensor, ...]:
        """Begin the actor's forward pass for an update of this cycle, if there is one and the pass is by itself."""
        if self._actor_forward is None or index == self.updates:
            return ()
        return self._actor_forward.start(drawn.actor_obs[index], drawn.noise[index])

    def _update_critics(self, drawn: Drawn, first: int, count: int, rates: Sequence[Tensor]) -> None:
        """Take some critic updates with the actor as it is, their next actions in one pass."""
        part = slice(first, first + count)
        actions, log_probs = self._next_actions[count](drawn.actor_obs[part], drawn.next_noise[part])
        inputs = self._begin_inputs(drawn, first, actions[0])
        self._after_actor.join()  # the temperature is read by all of them, and counts by their rates
        for index in range(count):
            self._critic_inputs.join()
            mine, batch = inputs, drawn.batch(first + index)
            if index + 1 < count:  # beside this update
                inputs = self._begin_inputs(drawn, first + index + 1, actions[index + 1])
            # The actor's step changes nothing that the critic's rates follow.
            rates = self._rates.start() if index else rates
            self._step_critic(self._critic_loss(batch, actions[index], log_probs[index], mine), rates, batch.redraws)

    def _begin_inputs(self, drawn: Drawn, index: int, next_action: Tensor) -> tuple[Tensor, ...]:
        """Begin to make what the critics' objective reads beside a batch; kept until that objective is enqueued."""
        return self._critic_inputs.start(drawn.critic_obs[index], drawn.action[index], next_action)

    def _step_critic(self, out: Any, rates: Sequence[Tensor], redraws: Tensor) -> None:
        critic, grad = _parts(out, self._critic_parameters)
        self._rates.join()
        self._critic_figures.start(*self._critic_step(critic, grad, rates[0]), redraws)

    def _update_actor(
        self, batch: Batch, noise: Tensor, rates: Sequence[Tensor], forward: tuple[Tensor, ...] = ()
    ) -> None:
        if self._actor_forward is None:
            out = self._actor_loss(batch, noise)
        else:
            self._actor_forward.join()
            out = self._actor_loss(batch, noise, forward)
        actor, grad = _parts(out, self._actor_parameters)
        self._rates.join()
        self._after_actor.start(actor, self._actor_step(actor, grad, rates[0]), rates[0])

    def report(self) -> dict[str, dict[str, object]]:
        """Return what each program was asked to run as, what it ran as; of the objectives also the scope in which they
        compile and the learner's switches, of what may be a branch whether it is one, as `beside`."""
        programs = [self._draw, self._actor_loss, self._actor_step, self._critic_loss, self._critic_step]
        programs += [*self._next_actions.values(), *self._tail_programs]
        found = {program.name: program.report() for program in programs}
        branches = [self._rates, self._after_actor, self._critic_figures, self._snapshot]
        inputs = self._critic_inputs if self.learner.switches.shared_actions else None
        for branch in (*branches, self._actor_forward, self._copies, inputs):
            if branch is not None:
                found[branch.program.name] = branch.report()
        for name in ("update/actor_loss", "update/critic_loss"):
            found[name]["compile_scope"] = self.compile_scope
            found[name]["switches"] = self.learner.switches.report()
        return found

    # The pieces, in the order of an update -----------------------------------------------------------------------

    def _draw_cycle(self) -> tuple[Tensor, ...]:
        """Return the fields of a `Drawn`, one after the other: torch 2.11 compiles no program that returns named tuples
        within a tuple."""
        learner, actions = self.learner, self.learner.action_dim
        rows, noise, next_noise = self._ahead.words()
        batch = learner.prepare(self.ring.sample_batches(rows))
        redraws = F.pad(batch.redraws[:, None], (0, 1))
        learner.rng.advance(self.updates)
        return *batch[:-1], redraws, normals(noise)[..., :actions], normals(next_noise)[..., :actions]

    def _many_next_actions(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return a' (C, B, A) and its log density (C, B) of C batches, from observations (C, 2B, O) and noise."""
        count, size, _ = noise.shape
        action, log_prob = self.learner.next_actions(obs[:, size:].flatten(0, 1), noise.flatten(0, 1))
        return action.unflatten(0, (count, size)), log_prob.unflatten(0, (count, size))

    def _actor_objective(self, batch: Batch, noise: Tensor) -> Any:
        return self.learner.actor_objective(batch, noise, self._tails)

    def _actor_objective_at(self, batch: Batch, noise: Tensor, forward: tuple[Tensor, ...]) -> Any:
        return self.learner.actor_objective_at(batch, noise, forward)

    def _look_up_rates(self) -> tuple[Tensor]:
        """Return the rates of the update that begins, and count it: so no step waits for that."""
        table = self.learner.rates()
        self.learner.updates += 1
        return (table,)

    def _apply_actor(self, out: Any, grad: Tensor, rates: Tensor) -> Tensor:
        return self.learner.apply_actor(out, grad, self.learner.read_rates(rates))

    def _finish_actor(self, out: Any, ok: Tensor, rates: Tensor) -> None:
        self.metrics.add(1, *self.learner.after_actor(out, ok, self.learner.read_rates(rates)))

    def _critic_objective(self, batch: Batch, noise: Tensor) -> Any:
        return self.learner.critic_objective(batch, noise, self._tails)

    def _critic_objective_at(self, batch: Batch, action: Tensor, log_prob: Tensor, inputs: tuple[Tensor, ...]) -> Any:
        return self.learner.critic_objective_at(batch, (action, log_prob), inputs)

    def _apply_critic(self, out: Any, grad: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        """Take the step; returns its figures, one behind the other, for `_add_critic`: torch 2.11 compiles no program
        that returns nested tuples."""
        learner = self.learner
        means, last, ok, totals = learner.apply_critic(out, grad, learner.read_rates(rates))
        return *means, *last, ok, *totals

    def _add_critic(self, *figures: Tensor) -> None:
        means = len(self.learner.MEANS[0])
        ok = means + len(self.learner.LAST[0])
        self.metrics.add(0, figures[:means], figures[means:ok], figures[ok], figures[ok + 1 :])


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
