"""What all learners have: networks in the arena, the policy that acts, temperature, schedule, draws and state."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.bounds import LARGEST
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_fields
from tickgraph.core.program import Resolution
from tickgraph.core.rng import Rng
from tickgraph.learn.normalizer import ObsNormalizer, RewardNormalizer
from tickgraph.learn.optimizer import Adam, NetworkStep, factor_table, in_line, learning_rate
from tickgraph.learn.path import Switches
from tickgraph.learn.replay import DISCOUNTS, Batch
from tickgraph.learn.storage import bind, declare

STATE_FOLDERS = ("learner/", "policy/", "explorer/")
CONSTANTS = ("learner/atoms", "/rng/row", "/rng/stream", "/rng/block", "explorer/repeat_weights")
FORMER = ("learner/rng/words",)
"""What a state of an earlier version may have beside; it follows from the rest."""

Figures = tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Sequence[Tensor]]
"""What a step hands to the metrics: figures whose mean is logged, those whose last value is, () bool: it was taken, and
what is counted whether it was or not."""


@dataclass
class AlgoCfg:
    """Hyperparameters that every algorithm has; each sets defaults of its own where its sources do."""

    gamma: float = 0.99
    n_step: int = 1
    discount: str = "exact"
    """"exact": gamma to the steps that a window took; "gamma_n": gamma^n even where it ended early."""
    tau: float = 0.01
    """Weight of the new critic in the target, every update."""
    atoms: int = 101
    """Atoms of the return's distribution, evenly spaced over [-v_max, v_max]."""
    v_max: float = 5.0
    lr_start: float = 3e-4
    lr_end: float = 3e-4
    """The rate falls from start to end by half a cosine over the run; the same twice is a constant rate."""
    lr_warmup: int = 0
    """Steps of linear warm-up from 1e-6."""
    alpha_init: float = 0.01
    policy_period: int = 2
    """Critic updates per update of the actor."""
    batch_size: int = 2048
    bf16: bool | None = False
    """Run an update's matrix products in bfloat16; weights, statistics, losses and optimiser stay float32. None: on a
    GPU. The policy that collects never does: its products are those of float32, or of TF32 where that is allowed."""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"discount": DISCOUNTS}
    least: ClassVar[dict[str, int]] = {"n_step": 1, "policy_period": 1, "atoms": 2, "batch_size": 2}
    most: ClassVar[dict[str, int]] = {
        **{"n_step": 10_000, "policy_period": 2**31, "atoms": 100_000, "batch_size": 2**31, "lr_warmup": 2**53},
    }
    """Beyond these a value is a slip of the hand."""
    above_zero: ClassVar[tuple[str, ...]] = ("v_max", "lr_start", "lr_end", "alpha_init")
    not_negative: ClassVar[tuple[str, ...]] = ("lr_warmup",)

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        for name, value in vars(self).items():
            if isinstance(value, float):
                self._check(name, abs(value) <= LARGEST, "it must be a number that float32 holds")
        for name, options in self.choices.items():
            hint = nearby(getattr(self, name), options) or f"choose one of {', '.join(options)}"
            self._check(name, getattr(self, name) in options, hint)
        for name, least in self.least.items():
            self._check(name, getattr(self, name) >= least, f"it must be at least {least}")
        for name, most in self.most.items():
            self._check(name, getattr(self, name) <= most, f"it must be at most {most}")
        for name in self.above_zero:
            self._check(name, getattr(self, name) > 0.0, "it must be above 0")
        for name in ("gamma", "tau"):
            self._check(name, 0.0 < getattr(self, name) <= 1.0, "it must be in (0, 1]")
        for name in self.not_negative:
            self._check(name, getattr(self, name) >= 0, "it must not be negative")

    def in_bf16(self, device: torch.device) -> bool:
        """Return whether updates on a device multiply in bfloat16."""
        return device.type == "cuda" if self.bf16 is None else self.bf16

    def _check(self, name: str, fine: bool, text: str) -> None:
        if not fine:
            raise TickgraphError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; {text}")


class Rates(NamedTuple):
    """What the schedules say for one update; views of one table."""

    critic: Tensor
    """() float32 learning rate."""
    actor: Tensor
    """() float32 learning rate."""
    critic_factors: Tensor
    actor_factors: Tensor
    alpha_factors: Tensor
    """Of `Adam.factors` each."""


class Tails(NamedTuple):
    """The parts of the objectives behind the networks, which can be compiled without these."""

    actor: Callable[..., Any]
    labels: Callable[..., Any]
    """Called without gradient."""
    critic: Callable[..., Any]


class NoiseHold(NamedTuple):
    """For how long exploration keeps a noise vector: n in 1..longest steps, P(n) in proportion to n^-exponent."""

    exponent: float
    longest: int
    shared: bool
    """All worlds change theirs in the same step, rather than each its own."""


class Learner(ABC):
    """Networks, temperature, counters and draws of an algorithm; every tensor lies in the arena.

    An algorithm brings its networks, its objectives and its optimiser steps; `UpdateCycle` calls them. One update is
    `prepare`, and then of actor and critic, in the order of `actor_first`, the objective and the step:
    `actor_objective` and `critic_objective` return a named tuple whose first field is the loss, with gradient to
    `actor` or `critic`; `apply_actor` and `apply_critic` are given the same tuple without gradient and the flat
    gradient. `apply_critic`, and for the actor `after_actor`, return the figures to log. All of them run in programs:
    no host reads, no new tensors that stay.

    Args:
        cfg: hyperparameters.
        obs_dims: widths of the groups "actor" and "critic".
        action_dim: width A of an action.
        arena: owner of all tensors, under "learner/" and "policy/"; not sealed yet.
        seed: seed of the draws.
        total_updates: critic updates of the whole run, the horizon of the learning rates.
        first_row: global number of the first row of a batch, rank * batch_size in a run of several processes.
        networks: actor and critic as they start, outside the arena.
        statistics: the networks keep running statistics of their layers.
    """

    actor_first: ClassVar[bool]
    """The actor's update comes before the critic's of the same batch."""
    MEANS: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    LAST: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    TOTALS: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    """Names of the figures that the steps of critic (first) and actor (second) return."""
    TAILS: ClassVar[Tails]
    hold: NoiseHold | None = None
    """How exploration holds its noise; None: it draws anew in each step."""
    normalizer: RewardNormalizer | None = None
    """Told of every reward that the ring records."""
    target_entropy: float
    actor_step: NetworkStep
    critic_step: NetworkStep
    alpha_adam: Adam
    switches: Switches = Switches()
    """How the objectives and the steps are computed; with `manual` the objectives return their gradients too."""

    def __init__(
        self,
        cfg: AlgoCfg,
        obs_dims: Mapping[str, int],
        action_dim: int,
        arena: Arena,
        seed: int,
        total_updates: int,
        first_row: int,
        networks: tuple[Any, Any],
        statistics: bool,
    ) -> None:
        self.cfg: Any = replace(cfg, bf16=cfg.in_bf16(arena.device))
        self.obs_dims, self.action_dim, self.arena = dict(obs_dims), action_dim, arena
        self.obs_normalizers: dict[str, ObsNormalizer] = {}
        """By group, told of every observation that the ring records."""
        self.actor, self.critic = networks
        self.target, self.policy = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        # The trained critic without gradients: autograd, and a compiler that plans ahead, then compute none for it.
        self.frozen_critic = copy.deepcopy(self.critic)
        self.actor_storage = declare(self.actor, arena, "learner/actor", "trained actor", statistics=statistics)
        self.critic_storage = declare(self.critic, arena, "learner/critic", "trained critics", statistics=statistics)
        # No running statistics: the target only ever runs on those of the batch.
        self.target_storage = declare(self.target, arena, "learner/target", "average of the critics", False, False)
        why = "the actor that collects"
        self.policy_storage = declare(self.policy, arena, "policy", why, trainable=False, statistics=statistics)
        bind(self.frozen_critic, self.critic_storage, trainable=False)
        for trained, follower in (
            (self.actor_storage, self.policy_storage),
            (self.critic_storage, self.target_storage),
        ):
            trained.parameters.copy_(trained.projection(trained.parameters))
            follower.parameters.copy_(trained.parameters)
        self.policy_report: dict[str, Any] = {"form": "torch", "reasons": []}
        """How the policy computes, and why not by a kernel where one is wanted; for the manifest."""
        self._followed: list[tuple[Tensor, Tensor, Tensor]] = []
        self.follow("parameters", self.actor_storage.parameters, self.policy_storage.parameters)
        if statistics:
            self.follow("statistics", self.actor_storage.statistics, self.policy_storage.statistics)

        self.log_alpha = arena.new("learner/log_alpha", (), why="log temperature", fill=math.log(cfg.alpha_init))
        self.updates = arena.new("learner/updates", (), torch.int64, "critic updates so far")
        self.actor_updates = arena.new("learner/actor_updates", (), torch.int64, "actor updates so far")
        self.horizon = arena.new("learner/horizon", (), torch.int64, "updates of the whole run", fill=total_updates)
        self.atoms = arena.constant(
            "learner/atoms", torch.linspace(-cfg.v_max, cfg.v_max, cfg.atoms, dtype=torch.float64), why="support"
        )
        self.rng = Rng(arena, cfg.batch_size, seed, first_row, "learner/rng")
        self.replay_draw = self.rng.stream("learner/replay")
        self.noise_draw = self.rng.stream("learner/noise")

    # What an algorithm brings ------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, batch: Batch) -> Batch:
        """Return a sampled batch as the networks read it."""

    @abstractmethod
    def rates(self) -> Tensor:
        """Return what the schedules say for the next update, as a `rate_table`."""

    @abstractmethod
    def actor_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> Any:
        """Return the actor's loss and what goes with it; `noise` (B, A) is standard normal, for the actions in s."""

    @abstractmethod
    def apply_actor(self, out: Any, grad: Tensor, rates: Rates) -> Tensor:
        """Take the actor's step along `grad` (P,); returns () bool, whether it was taken."""

    @abstractmethod
    def after_actor(self, out: Any, ok: Tensor, rates: Rates) -> Figures:
        """Do what goes with the actor's step and is not read by its next forward pass, the next actions or the critics'
        inputs, which are the temperature's step and the count; return the figures.

        Args:
            out: what `actor_objective` returned, without gradient.
            ok: () bool, the step was taken.
            rates: of this update.
        """

    @abstractmethod
    def critic_objective(self, batch: Batch, noise: Tensor, tails: Tails) -> Any:
        """Return the critic's loss and what goes with it; `noise` (B, A) is standard normal, for the actions in s'."""

    @abstractmethod
    def apply_critic(self, out: Any, grad: Tensor, rates: Rates) -> Figures:
        """Take the critic's step along `grad` (P,), and let the target follow."""

    @abstractmethod
    def choose_maths(self, resolution: Resolution, kernels: str | Switches) -> None:
        """Choose the form of the objectives that suits how they run; called once, before the first update.

        Args:
            resolution: of the objectives' programs.
            kernels: switches, or what `resolve_switches` takes for those of device and mode.
        """

    def take_row_steps(self) -> None:
        """Let the kernel of `row_step.py` take the steps of both networks; the arena is not sealed yet."""
        from tickgraph.learn.row_step import RowStep  # whose kernel is built where it is used

        self.critic_step = RowStep(self.critic_step, self.arena, "kernels/critic")
        self.actor_step = RowStep(self.actor_step, self.arena, "kernels/actor")

    def begin_cycle(self) -> None:
        """Renew the copies of the weights; where `switches.copies`, runs at the start of every cycle, part of it.

        It may run beside the draw: it reads parameters alone.
        """
        return  # by default there is nothing

    def next_actions(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return a' (R, A) and its log density (R,) for observations s' (R, O); called with `shared_actions` only."""
        raise NotImplementedError

    def critic_inputs(self, obs: Tensor, action: Tensor, next_action: Tensor) -> tuple[Tensor, ...]:
        """Return what `critic_objective_at` reads beside its batch, new tensors that depend on no network.

        Called with `shared_actions` only; obs (2B, Dc) and action (B, A) are the batch's, the other is a' (B, A).
        """
        raise NotImplementedError

    def critic_objective_at(
        self, batch: Batch, successor: tuple[Tensor, Tensor], inputs: tuple[Tensor, ...] | None = None
    ) -> Any:
        """Compute `critic_objective` with given a' (B, A) and log density (B,), behind its `critic_inputs` where they
        are given; called with `shared_actions` only."""
        raise NotImplementedError

    def actor_forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return what `actor_objective_at` reads of the actor's forward pass, new tensors that depend on no critic.

        Called with `beside` only; obs (2B, Da) is the batch's, noise (B, A) is standard normal.
        """
        raise NotImplementedError

    def actor_objective_at(self, batch: Batch, noise: Tensor, forward: tuple[Tensor, ...]) -> Any:
        """Compute `actor_objective` behind its `actor_forward`; called with `beside` only."""
        raise NotImplementedError

    def gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log deviation (N, A) of the policy that collects, for raw observations (N, Da)."""
        mean, log_std = self.policy(obs)
        return mean, log_std

    def choose_policy(self, kernels: str) -> None:
        """Choose the form in which the policy acts, before the first action; the arena is not sealed yet.

        There is one, unless an algorithm brings another.

        Args:
            kernels: what `resolve_switches` takes.
        """
        return

    # What all share ----------------------------------------------------------------------------------------------

    def follow(self, name: str, trained: Tensor, acting: Tensor) -> None:
        """Declare a tensor of the policy: `acting` becomes what `trained` is, as the policy is published.

        Not at once: an update may run beside ticks, and these act with one policy from first to last. What the newest
        update left waits in between, as "learner/pending/" and the name, where `acting` is "policy/" and the name.
        """
        shape = tuple(trained.shape)
        pending = self.arena.new(f"learner/pending/{name}", shape, why=f"{name} of the policy that acts next")
        pending.copy_(trained)
        self._followed.append((trained, pending, acting))

    def snapshot_policy(self) -> None:
        """Keep the actor as the policy that collects from the next `publish_policy` on."""
        for trained, pending, _ in self._followed:
            pending.copy_(trained)

    def publish_policy(self) -> None:
        """Let the newest snapshot collect; called between iterations, never beside a tick."""
        for _, pending, acting in self._followed:
            acting.copy_(pending)

    def rate(self, count: Tensor) -> Tensor:
        """Return the learning rates (...) of steps `count` (...) of schedules."""
        cfg = self.cfg
        return learning_rate(count, self.horizon, cfg.lr_start, cfg.lr_end, cfg.lr_warmup)

    def rate_table(self, critic: Tensor, actor: Tensor, alpha: Tensor) -> Tensor:
        """Return (3, 4), the `factor_table` of critic, actor and temperature; given is the step () of each schedule.

        It is a program's result by itself: a compiler would fuse it into the loop over the parameters and compute it
        again for each.
        """
        adams = (self.critic_step.adam, self.actor_step.adam, self.alpha_adam)
        return factor_table(adams, self.rate(in_line((critic, actor, alpha))))

    def read_rates(self, table: Tensor) -> Rates:
        """Return the parts of a `rate_table`."""
        adams = (self.critic_step.adam, self.actor_step.adam, self.alpha_adam)
        factors = [table[row, : adam.factor_count] for row, adam in enumerate(adams)]
        return Rates(table[0, 3], table[1, 3], *factors)

    def set_horizon(self, total_updates: int) -> None:
        """Change the horizon of the learning rates in place; rates follow the new cosine from the next update on."""
        self.horizon.fill_(total_updates)

    def alpha(self) -> Tensor:
        """Return the temperature, () float32."""
        return torch.exp(self.log_alpha)

    def step_alpha(self, entropy: Tensor, factors: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step of the temperature towards `entropy` () = target, where `ok` and where its own loss is finite.

        Returns:
            The loss before it, (), or 0; and () bool, whether its own loss alone kept it from being taken.
        """
        # The gradient of alpha (H - target) with respect to log alpha is the loss itself.
        loss = self.alpha() * (entropy - self.target_entropy)
        fine = torch.isfinite(loss.square())
        taken = ok & fine
        new = self.alpha_adam.proposal(loss, factors, taken)
        self.log_alpha.copy_(torch.where(taken, new, self.log_alpha))
        return torch.where(fine, loss, 0.0), ok & ~fine

    def state_names(self) -> list[str]:
        """Return the names in the arena of all state of learner, policy and explorer, constants left out."""
        names = self.arena.names()
        return [name for name in names if name.startswith(STATE_FOLDERS) and not name.endswith(CONSTANTS)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all state under "learner/", "policy/" and "explorer/", by arena name."""
        return {name: self.arena[name].clone() for name in self.state_names()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Write a state back in place.

        Raises:
            TickgraphError: a name is missing or unknown, or a shape or dtype differs; then nothing has been written.
        """
        own = {name: self.arena[name] for name in self.state_names()}
        missing = [name for name in own if name not in state]
        unknown = [name for name in state if name not in own and name not in FORMER]
        if missing or unknown:
            raise TickgraphError(
                f"the learner's state lacks {missing[:3] or 'nothing'} and has unknown {unknown[:3] or 'nothing'} "
                f"({len(missing)} missing, {len(unknown)} unknown); load it with the configuration it was saved with"
            )
        for name, tensor in own.items():
            given = state[name]
            if given.shape != tensor.shape or given.dtype != tensor.dtype:
                raise TickgraphError(
                    f"the learner's state has {name!r} as {tuple(given.shape)} {given.dtype}, this learner as "
                    f"{tuple(tensor.shape)} {tensor.dtype}; load it with the configuration it was saved with"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])


def generator_of(seed: int) -> torch.Generator:
    """Return the source of the networks' start for a 64-bit seed."""
    return torch.Generator().manual_seed(seed & (2**63 - 1))
