"""Two tasks with terms in every manager: one that no compiler or graph can take, one that both can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from toys import Slider, Target, TargetCfg, X, joint_pos, position

from tickgraph.core.masked import assign_rows, fill_rows
from tickgraph.env.config import (
    CommandTermCfg,
    CurriculumTermCfg,
    EnvCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SubstepTermCfg,
    TerminationTermCfg,
)
from tickgraph.env.managers import CommandTerm

# Terms that block; the line at fault is marked with the name of its manager and term. ----


def mean_by_item(env):
    mean = env.reward.mean().item()  # rewards/mean_by_item
    return torch.full_like(env.reward, mean)


def if_tensor(env):
    if env.reward.max() > 10**6:  # terminations/if_tensor
        return ~env.no_worlds
    return env.no_worlds


def by_nonzero(env):
    rows = env.done.nonzero()  # observations/actor/by_nonzero
    return env.reward[:, None] + rows.sum()


def by_bool_index(env, mask, asset_cfg=X):
    chosen = joint_pos(env, asset_cfg)[mask]  # events/by_bool_index
    env.events_seen.add_(chosen.sum())


def on_the_host(env):
    return env.reward.cpu().to(env.device)  # metrics/on_the_host


def fresh_constant(env, asset_cfg=X):
    return position(env, asset_cfg) * torch.tensor([0.5])  # rewards/fresh_constant


def global_noise(env, mask):
    noise = torch.rand(env.num_envs, device=env.device)  # events/global_noise
    env.events_seen.add_(noise.sum())


def sets_attribute(env, mask):
    env.x = 1.0  # curriculum/sets_attribute
    return None


class Counting(CommandTerm):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.k = 0
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1))

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        fill_rows(self.value, mask, 0.0)

    def update(self):
        self.k += 1  # commands/counting


class ByFloat(Target):
    def process(self, raw):
        gain = float(raw.abs().max())  # actions/by_float
        self.target.copy_(raw * gain)


# Their like, as they should be. ----


def mean_as_tensor(env):
    return env.reward.mean().expand(env.num_envs)


def where_tensor(env):
    return torch.where(env.reward.max() > 10**6, ~env.no_worlds, env.no_worlds)


def by_mask(env):
    count = env.done.sum()
    value = env.reward.clone()
    value[env.done] = 0.0  # a number written by a mask is a masked_fill
    return (value + count)[:, None]


def masked_write(env, mask, rng, asset_cfg=X):
    value = joint_pos(env, asset_cfg) + rng.uniform("", 1, -0.1, 0.1)
    env.events_seen.add_(torch.where(mask, value[:, 0], 0.0).sum())


def plain(env, scale=2.0):
    return env.reward * scale


class Constant:
    def __init__(self, cfg, env, path):
        self.half = env.arena.constant(f"{path}/half", [0.5])

    def __call__(self, env, asset_cfg=X):
        return position(env, asset_cfg) * self.half


class Remembering:
    def __init__(self, cfg, env, path):
        self.peak = env.arena.new(f"{path}/peak", (env.num_envs,))

    def __call__(self, env):
        self.peak.copy_(torch.maximum(self.peak, env.reward))
        return self.peak

    def reset(self, mask):
        fill_rows(self.peak, mask, 0.0)


class Level:
    def __init__(self, cfg, env, path):
        self.level = env.arena.new(f"{path}/level", (env.num_envs,), torch.int64)

    def __call__(self, env, mask):
        self.level += (mask & env.truncated).to(torch.int64)
        return self.level


class Uniform(CommandTerm):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        self.value = env.arena.new(f"{path}/value", (env.num_envs, 1))
        self.ticks = env.arena.new(f"{path}/ticks", (), torch.int64)

    @property
    def command(self):
        return self.value

    def resample(self, mask):
        assign_rows(self.value, mask, self.rng.uniform("value", 1, -1.0, 1.0))

    def update(self):
        self.ticks += 1


class BySaturation(Target):
    def process(self, raw):
        self.target.copy_(raw * raw.abs().amax(dim=1, keepdim=True).clamp_max(1.0))


def push(env, mask, rng):
    entity = env.scene["robot"]
    vel = entity.staged_joint_vel() + rng.normal("", 2)
    entity.write_joint_state_to_sim(entity.staged_joint_pos(), vel, mask)


def every_substep(env, substep):
    env.sim.ctrl.mul_(1.0 if substep == 0 else 0.99)


class Seen:
    """Startup event that owns a tensor which other events add to."""

    def __init__(self, cfg, env, path):
        env.events_seen = env.arena.new(f"{path}/seen", ())

    def __call__(self, env, mask):
        env.events_seen.zero_()


@dataclass
class SomeActionCfg(TargetCfg):
    class_type: Any = None


def bad_cfg() -> EnvCfg:
    """Ten terms that block, among others that do not."""
    cfg = Slider(history=2).cfg()
    cfg.actions = {"by_float": SomeActionCfg(class_type=ByFloat)}
    cfg.observations["actor"].terms["by_nonzero"] = ObservationTermCfg(by_nonzero)
    cfg.rewards |= {"mean_by_item": RewardTermCfg(mean_by_item), "fresh_constant": RewardTermCfg(fresh_constant)}
    cfg.terminations["if_tensor"] = TerminationTermCfg(if_tensor)
    cfg.commands = {"counting": CommandTermCfg(Counting)}
    cfg.events = {
        "seen": EventTermCfg(Seen, "startup"),
        **cfg.events,
        "by_bool_index": EventTermCfg(by_bool_index, "reset"),
        "global_noise": EventTermCfg(global_noise, "interval", interval_range_s=(0.04, 0.04)),
    }
    cfg.curriculum = {"sets_attribute": CurriculumTermCfg(sets_attribute)}
    cfg.metrics = {"on_the_host": MetricTermCfg(on_the_host)}
    return cfg


def good_cfg() -> EnvCfg:
    """The same task as it should be, with random words, pushes, memory and substeps."""
    cfg = Slider(history=2, see_action=True, delay=(0, 2), limit=(5, 7)).cfg()
    cfg.actions = {"saturated": SomeActionCfg(class_type=BySaturation, delay_min_lag=0, delay_max_lag=2)}
    cfg.observations["actor"].terms["by_mask"] = ObservationTermCfg(by_mask)
    cfg.rewards |= {
        "mean": RewardTermCfg(mean_as_tensor),
        "plain": RewardTermCfg(plain, 1.0, {"scale": 3.0}),
        "constant": RewardTermCfg(Constant),
        "peak": RewardTermCfg(Remembering),
    }
    cfg.terminations["where_tensor"] = TerminationTermCfg(where_tensor)
    cfg.commands = {"uniform": CommandTermCfg(Uniform, (0.04, 0.1))}
    cfg.events = {
        "seen": EventTermCfg(Seen, "startup"),
        **cfg.events,
        "masked_write": EventTermCfg(masked_write, "reset"),
        "push": EventTermCfg(push, "interval", interval_range_s=(0.04, 0.08)),
    }
    cfg.curriculum = {"level": CurriculumTermCfg(Level)}
    cfg.metrics = {"plain": MetricTermCfg(plain)}
    cfg.recorders = {"reward": RecorderTermCfg(plain)}
    cfg.substeps = {"every": SubstepTermCfg(every_substep)}
    return cfg
