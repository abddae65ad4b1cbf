"""One update cycle: sample, normalise, critic updates with actor and temperature every few, metrics, policy snapshot."""

from collections.abc import Callable

import torch
from torch import Tensor

from tickgraph.learn.flashsac import FlashSac, actor_objective, critic_objective, next_action
from tickgraph.learn.replay import Batch, Ring


class Metrics:
    """Device-side accumulators of the learner's figures, drained at log points.

    Means are taken over the updates that counted since the last drain; `LAST` keeps the newest value, `SUMS` adds up.
    """

    MEANS = ("critic_loss", "q_mean", "target_q_mean", "actor_loss", "entropy", "alpha_loss")
    LAST = ("alpha", "critic_lr", "actor_lr", "reward_scale")
    SUMS = ("skipped_updates", "replay_redraws")
