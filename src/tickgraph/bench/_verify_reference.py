"""An update cycle once more, as plainly as it can be said: what every faster way of running it is held against.

The objectives are the readable ones (`learn/flashsac.py`, `learn/sac.py`), in float32 and eager; the ring and the
counted random words are the learner's own, so that both see the same batches and the same noise. All the rest, from
gradients to counters, is written out here and in `_verify_plain.py`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from tickgraph.bench import _verify_plain as plain
from tickgraph.bench._learner_rig import LearnerRig
from tickgraph.learn import flashsac, sac
from tickgraph.learn.mlp import Linear
from tickgraph.learn.replay import Batch

COUNTERS = ("updates", "actor_updates", "critic_adam/steps", "actor_adam/steps", "alpha_adam/steps")
RATES = ("critic_lr", "actor_lr")


class PlainLearner(ABC):
    """The reference of an algorithm.

    Args:
        rig: lends its ring, its random words and its start; its own cycle must not be run.
        autocast: precision of the matrix products; None is float32.
    """

    betas, decay, max_norm = (0.9, 0.999), 0.0, 0.0

    def __init__(self, rig: LearnerRig, autocast: torch.dtype | None = None) -> None:
        self.rig, self.autocast, learner = rig, autocast, rig.learner
        self.cfg: Any = learner.cfg
        self.atoms = learner.atoms
        self.actor, self.critic = copy.deepcopy(learner.actor), copy.deepcopy(learner.critic)
        self.target = copy.deepcopy(learner.target)
        self.log_alpha = learner.log_alpha.clone()
        self.actor_adam, self.critic_adam = self._adam_of("actor"), self._adam_of("critic")
        first, second = ({"": rig.arena[f"learner/alpha_adam/{name}"]} for name in ("moment1", "moment2"))
        steps = int(rig.arena["learner/alpha_adam/steps"])
        self.alpha_adam = plain.PlainAdam({"": self.log_alpha}, first, second, steps, self.betas)
        self.updates, self.actor_updates = int(learner.updates), int(learner.actor_updates)
        self.rates = dict.fromkeys(RATES, math.nan)

    def _adam_of(self, name: str) -> plain.PlainAdam:
        """Return a network's optimiser where the learner's own stands."""
        storage, arena = getattr(self.rig.learner, f"{name}_storage"), self.rig.arena
        first, second = (storage.named(arena[f"learner/{name}_adam/{moment}"]) for moment in ("moment1", "moment2"))
        parameters = dict(getattr(self, name).named_parameters())
        steps = int(arena[f"learner/{name}_adam/steps"])
        return plain.PlainAdam(parameters, first, second, steps, self.betas, self.decay)

    def cycle(self) -> None:
        """Run the updates of one cycle."""
        learner = self.rig.learner
        for _ in range(self.rig.spec.updates):
            with torch.no_grad():
                batch = self.prepared(self.rig.ring.sample(learner.replay_draw))
                noise, next_noise = (
                    learner.noise_draw.normal(name, learner.action_dim) for name in ("policy", "successor")
                )
            acts = self.updates % self.cfg.policy_period == 0
            if acts and learner.actor_first:
                self._update_actor(batch, noise)
            self._update_critic(batch, next_noise)
            if acts and not learner.actor_first:
                self._update_actor(batch, noise)
            self.updates += 1
            with torch.no_grad():
                learner.rng.advance()

    def _update_actor(self, batch: Batch, noise: Tensor) -> None:
        with self._precision():
            out = self.actor_objective(batch, noise)
        rate = self.rates["actor_lr"] = self.rate(self.actor_updates)
        self.actor_adam.step(plain.gradients(out.loss, self.actor, self.max_norm), rate)
        self.after_actor(out, rate)
        self.actor_updates += 1

    def _update_critic(self, batch: Batch, noise: Tensor) -> None:
        with self._precision():
            out = self.critic_objective(batch, noise)
        rate = self.rates["critic_lr"] = self.rate(self.updates)
        self.critic_adam.step(plain.gradients(out.loss, self.critic, self.max_norm), rate)
        self.after_critic(out, rate)

    def _precision(self) -> Any:
        return torch.autocast(
            self.rig.device.type, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False
        )

    def step_alpha(self, entropy: Tensor, rate: float) -> None:
        """Step the temperature: the gradient of alpha (H - target) by log alpha."""
        self.alpha_adam.step({"": self.log_alpha.exp() * (entropy - self.target_entropy)}, rate)

    def rate(self, count: int) -> float:
        """Return the learning rate of step `count`."""
        cfg = self.cfg
        return plain.learning_rate(count, self.rig.spec.horizon, cfg.lr_start, cfg.lr_end, cfg.lr_warmup)

    @property
    @abstractmethod
    def target_entropy(self) -> float:
        """What the temperature drives the entropy to."""

    @abstractmethod
    def prepared(self, batch: Batch) -> Batch:
        """Return a sampled batch as the networks read it."""

    @abstractmethod
    def actor_objective(self, batch: Batch, noise: Tensor) -> Any:
        """Return the actor's loss and what goes with it."""

    @abstractmethod
    def critic_objective(self, batch: Batch, noise: Tensor) -> Any:
        """Return the critic's loss and what goes with it."""

    @abstractmethod
    def after_actor(self, out: Any, rate: float) -> None:
        """Do what follows the actor's step."""

    @abstractmethod
    def after_critic(self, out: Any, rate: float) -> None:
        """Do what follows the critic's step."""

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that a cycle changes, by name: parameters, running statistics, moments, temperature."""
        found: dict[str, Tensor] = {}
        for name, network, adam in (("actor", self.actor, self.actor_adam), ("critic", self.critic, self.critic_adam)):
            found |= {f"{name}/{path}": value for path, value in network.named_parameters()}
            found |= {f"{name}/{path}": value for path, value in network.named_buffers()}
            found |= {f"{name}_adam/moment1/{path}": value for path, value in adam.first.items()}
            found |= {f"{name}_adam/moment2/{path}": value for path, value in adam.second.items()}
        found |= {f"target/{path}": value for path, value in self.target.named_parameters()}
        found |= {f"pending/{path}": value for path, value in self.actor.named_parameters()}
        return {name: value.detach().clone() for name, value in (found | {"log_alpha": self.log_alpha}).items()}

    def counts(self) -> dict[str, float]:
        """Return what must agree exactly: counters, and the rates of the newest updates."""
        steps = (self.critic_adam.steps, self.actor_adam.steps, self.alpha_adam.steps)
        return dict(zip(COUNTERS, (self.updates, self.actor_updates, *steps), strict=True)) | self.rates


class PlainFlashSac(PlainLearner):
    """FlashSAC: actor and temperature, projection, then the critic, projection, average."""

    @property
    def target_entropy(self) -> float:
        return 0.5 * self.rig.learner.action_dim * math.log(2.0 * math.pi * math.e * self.cfg.sigma_target**2)

    def prepared(self, batch: Batch) -> Batch:
        return batch._replace(reward=batch.reward / self.rig.learner.normalizer.scale)

    def actor_objective(self, batch: Batch, noise: Tensor) -> Any:
        given = (self.log_alpha.exp(), batch, noise, self.atoms, self.cfg.bc_weight, flashsac.TAILS)
        return flashsac.actor_objective(self.actor, self.critic, *given)

    def critic_objective(self, batch: Batch, noise: Tensor) -> Any:
        successor = flashsac.next_action(self.actor, batch, noise)
        given = (self.log_alpha.exp(), batch, successor, self.atoms, flashsac.TAILS)
        return flashsac.critic_objective(self.critic, self.target, *given)

    def after_actor(self, out: Any, rate: float) -> None:
        plain.keep_statistics(self.actor, out.statistics)
        plain.project(self.actor)
        self.step_alpha(out.entropy, rate)

    def after_critic(self, out: Any, rate: float) -> None:
        plain.keep_statistics(self.critic, out.statistics)
        plain.project(self.critic)
        plain.follow(self.target, self.critic, self.cfg.tau)


class PlainSac(PlainLearner):
    """SAC as FastSAC has it: the critic, average and temperature, then the actor; AdamW and no projection."""

    def __init__(self, rig: LearnerRig, autocast: torch.dtype | None = None) -> None:
        cfg = rig.learner.cfg
        self.betas, self.decay, self.max_norm = (cfg.beta1, cfg.beta2), cfg.weight_decay, cfg.max_grad_norm
        super().__init__(rig, autocast)
        for network in (self.actor, self.critic, self.target):
            for module in network.modules():
                if isinstance(module, Linear):
                    module.plain = True

    @property
    def target_entropy(self) -> float:
        return -self.cfg.target_entropy_ratio * self.rig.learner.action_dim

    def prepared(self, batch: Batch) -> Batch:
        obs = {"actor": batch.actor_obs, "critic": batch.critic_obs}
        if self.cfg.normalize_obs:
            for group in obs:
                mean, var = (self.rig.arena[f"learner/obs/{group}/{name}"] for name in ("mean", "var"))
                mean, scale = mean.float(), (1.0 / (torch.sqrt(var) + self.cfg.obs_eps)).float()
                obs[group] = (obs[group] - mean) * scale
        return batch._replace(actor_obs=obs["actor"], critic_obs=obs["critic"])

    def actor_objective(self, batch: Batch, noise: Tensor) -> Any:
        given = (self.log_alpha.exp(), batch, noise, self.atoms, sac.Sac.TAILS)
        return sac.actor_objective(self.actor, self.critic, *given)

    def critic_objective(self, batch: Batch, noise: Tensor) -> Any:
        successor = sac.next_action(self.actor, batch, noise)
        given = (self.log_alpha.exp(), batch, successor, self.atoms, sac.Sac.TAILS)
        return sac.critic_objective(self.critic, self.target, *given)

    def after_actor(self, out: Any, rate: float) -> None:
        del out, rate

    def after_critic(self, out: Any, rate: float) -> None:
        plain.follow(self.target, self.critic, self.cfg.tau)
        self.step_alpha(out.entropy, rate)


def reference_of(rig: LearnerRig, autocast: torch.dtype | None = None) -> PlainLearner:
    """Return the reference of a rig's algorithm."""
    kind = PlainSac if isinstance(rig.learner, sac.Sac) else PlainFlashSac
    return kind(rig, autocast)


def learner_tensors(rig: LearnerRig) -> dict[str, Tensor]:
    """Return copies of the tensors of a learner under the names of `PlainLearner.tensors`, from the flat ones."""
    rig.wait()
    learner, arena, found = rig.learner, rig.arena, {}

    def take(prefix: str, storage: Any, name: str) -> None:
        found.update({f"{prefix}/{path}": value for path, value in storage.named(arena[name]).items()})

    for name, network in (("actor", learner.actor), ("critic", learner.critic)):
        storage = getattr(learner, f"{name}_storage")
        take(name, storage, f"learner/{name}/parameters")
        found.update({f"{name}/{path}": value for path, value in network.named_buffers()})
        for moment in ("moment1", "moment2"):
            take(f"{name}_adam/{moment}", storage, f"learner/{name}_adam/{moment}")
    take("target", learner.target_storage, "learner/target/parameters")
    take("pending", learner.actor_storage, "learner/pending/parameters")
    found["log_alpha"] = arena["learner/log_alpha"]
    copies = {name: value.detach().clone() for name, value in found.items()}
    rig.wait()
    return copies


def learner_counts(rig: LearnerRig) -> dict[str, float]:
    """Return the counters and newest rates of a learner, under the names of `PlainLearner.counts`."""
    figures = rig.figures()
    found: dict[str, float] = {name: int(rig.arena[f"learner/{name}"]) for name in COUNTERS}
    for name in RATES:
        value = figures[f"loss/{name}"]
        found[name] = math.nan if value is None else float(value)
    return found
