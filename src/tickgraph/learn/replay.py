"""A replay ring on the device: one slot per tick, n-step windows at sample time, terminal observations in a table."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.rng import Stream
from tickgraph.core.sums import running_count, world_least, world_sum
from tickgraph.learn.normalizer import ObsNormalizer, RewardNormalizer

DISCOUNTS = ("exact", "gamma_n")


class Batch(NamedTuple):
    """B sampled n-step transitions; observations hold 2B rows, first the B states s, then the B successors s'."""

    actor_obs: Tensor
    """(2B, Da) float32."""
    critic_obs: Tensor
    """(2B, Dc) float32."""
    action: Tensor
    """(B, A) float32 in [-1, 1], taken in s."""
    reward: Tensor
    """(B,) float32, raw rewards discounted and summed over the window."""
    discount: Tensor
    """(B,) float32, what the value of s' counts for; 0 where the window ended in a termination."""
    redraws: Tensor
    """() int64, candidate rows that were thrown away because their terminal observation was overwritten."""


class Ring:
    """The last `capacity` ticks of all worlds, written by the tick and sampled by the learner.

    Row t * N + i of each field is world i at the t-th slot. A successor is the next slot, except where `boundary` is
    set: then it is `final_obs`, kept in a table of `boundary_rows` rows behind the slots of the same tensor, so that a
    state and its successor are always one gather. The table is filled in turn; every transition at a boundary keeps the
    sequence number of its entry, which also tells whether the entry has been overwritten since.

    A window starts at a slot whose n successors are all written, so the newest n slots are hidden. It ends at its first
    boundary; the value of the state there counts unless the window ended in a termination.

    Args:
        arena: owner of all fields and counters.
        capacity: slots, that is ticks.
        num_envs: worlds N.
        obs_dims: widths of the groups "actor" and "critic".
        action_dim: width A of an action.
        n_step: steps per window.
        gamma: discount per step.
        discount: "exact" discounts by gamma to the number of steps taken, "gamma_n" always by gamma to the n.
        boundary_rows: rows of the table; by default one for every 16 transitions, at least one tick's worth.
        redraw_rounds: how often a row whose terminal observation is gone is drawn again.
        ahead: ticks that may be written between two calls of `publish` while the learner samples; what they overwrite
            is hidden.
        normalizer: told of every reward that is written.
        obs_normalizers: by group, told of every observation that is written; terminal observations are left out.
        prefix: folder of the tensors in the arena.

    Raises:
        TickgraphError: a size that cannot work, or an unknown `discount`.
    """

    def __init__(
        self,
        arena: Arena,
        capacity: int,
        num_envs: int,
        obs_dims: Mapping[str, int],
        action_dim: int,
        n_step: int = 1,
        gamma: float = 0.99,
        discount: str = "exact",
        boundary_rows: int | None = None,
        redraw_rounds: int = 4,
        ahead: int = 0,
        normalizer: RewardNormalizer | None = None,
        obs_normalizers: Mapping[str, ObsNormalizer] | None = None,
        prefix: str = "ring",
    ) -> None:
        if discount not in DISCOUNTS:
            raise TickgraphError(f"discount is {discount!r}; it must be one of {', '.join(DISCOUNTS)}")
        if n_step < 1:
            raise TickgraphError(f"n_step is {n_step}; a window takes at least one step")
        if capacity < n_step + 1 + ahead:
            raise TickgraphError(
                f"a replay of {capacity} slots (replay_slots) holds no window of {n_step} steps (n_step) beside the "
                f"{ahead} that are being written; give it at least {n_step + 1 + ahead} slots"
            )
        if boundary_rows is not None and boundary_rows < 1:
            raise TickgraphError(f"boundary_rows is {boundary_rows}; the table needs at least one row")
        missing = {"actor", "critic"} - set(obs_dims)
        if missing:
            raise TickgraphError(f"the ring needs the observation groups actor and critic; {sorted(missing)} not given")
        self.capacity, self.num_envs, self.n_step, self.ahead = capacity, num_envs, n_step, ahead
        self.gamma, self.discount, self.redraw_rounds = gamma, discount, redraw_rounds
        self.boundary_rows = boundary_rows or max(num_envs, capacity * num_envs // 16)
        self.normalizer, self.obs_normalizers = normalizer, dict(obs_normalizers or {})
        rows = capacity * num_envs
        # More rows than the table has, one a world: whatever has no place in it is written there, as zeros, and never
        # read. All in one row, they would wait for each other.
        self._dummy = rows + self.boundary_rows
        self.obs = {
            group: arena.new(
                f"{prefix}/obs/{group}",
                (self._dummy + num_envs, obs_dims[group]),
                why=f"{group} observation of every slot and world, then the terminal observations",
            )
            for group in ("actor", "critic")
        }
        self.action = arena.new(f"{prefix}/action", (rows, action_dim), why="action taken, in [-1, 1]")
        self.reward = arena.new(f"{prefix}/reward", (rows,), why="raw reward of the step")
        self.terminated = arena.new(f"{prefix}/terminated", (rows,), torch.bool, "no value after this step")
        self.boundary = arena.new(f"{prefix}/boundary", (rows,), torch.bool, "the next slot is not the successor")
        self.entry = arena.new(f"{prefix}/entry", (rows,), torch.int64, "sequence number in the table", fill=-1)
        self.written = arena.new(f"{prefix}/written", (), torch.int64, "ticks written so far")
        self.stored = arena.new(f"{prefix}/stored", (), torch.int64, "terminal observations stored so far")
        self.visible = arena.new(f"{prefix}/visible", (), torch.int64, "`written` at the last publish")
        self.visible_stored = arena.new(f"{prefix}/visible_stored", (), torch.int64, "`stored` at the last publish")
        self.overflowed = arena.new(f"{prefix}/overflowed", (), torch.int64, "terminal observations that did not fit")
        worlds = torch.arange(num_envs, device=arena.device)
        self._world = arena.constant(f"{prefix}/world", worlds, torch.int64, "index of each world")
        powers = torch.tensor([gamma**k for k in range(n_step + 1)], dtype=torch.float64)
        self._powers = arena.constant(f"{prefix}/gamma_powers", powers, why="gamma to the k, k = 0 to n")

    @property
    def min_ticks(self) -> int:
        """Ticks to write before the first sample."""
        return self.n_step + 1

    @property
    def draw_lanes(self) -> int:
        """Random words that `sample` takes per row."""
        return 2 * (self.redraw_rounds + 1)

    def write(
        self,
        obs: Mapping[str, Tensor],
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        boundary: Tensor,
        final_obs: Mapping[str, Tensor],
    ) -> None:
        """Store one tick of all worlds in the next slot; the oldest slot goes.

        Args:
            obs: group -> (N, D) float32, what the policy saw.
            action: (N, A) float32.
            reward: (N,) float32.
            terminated, truncated: (N,) bool.
            boundary: (N,) bool, done or teleported: the next tick's `obs` is not the successor.
            final_obs: group -> (N, D) float32, the successor where `boundary` is set.
        """
        slots, size = self.capacity * self.num_envs, self.boundary_rows
        rows = self.written % self.capacity * self.num_envs + self._world
        order = running_count(boundary)
        fits = boundary & (order <= size)
        entry = torch.where(fits, self.stored + order - 1, -1)
        place = torch.where(fits, slots + entry % size, self._dummy + self._world)
        index = torch.cat((rows, place))
        for group, field in self.obs.items():
            field.index_copy_(0, index, torch.cat((obs[group], torch.where(fits[:, None], final_obs[group], 0.0))))
        self.action.index_copy_(0, rows, action)
        self.reward.index_copy_(0, rows, reward)
        self.terminated.index_copy_(0, rows, terminated)
        self.boundary.index_copy_(0, rows, boundary)
        self.entry.index_copy_(0, rows, entry)
        self.stored += order[-1].clamp(max=size)
        self.overflowed += (order[-1] - size).clamp(min=0)
        self.written += 1
        if self.normalizer is not None:
            self.normalizer.update(reward, terminated | truncated)
        for group, normalizer in self.obs_normalizers.items():
            normalizer.update(obs[group])

    def publish(self) -> None:
        """Show the learner what has been written; called between iterations, never beside a sample."""
        self.visible.copy_(self.written)
        self.visible_stored.copy_(self.stored)
        if self.normalizer is not None:
            self.normalizer.publish()
        for normalizer in self.obs_normalizers.values():
            normalizer.publish()

    def clear(self) -> None:
        """Forget every transition, in place. The normalisers keep their statistics."""
        for counter in (self.written, self.stored, self.visible, self.visible_stored):
            counter.zero_()

    def sample(self, draw: Stream) -> Batch:
        """Draw one window for each row of the stream, uniformly over slots and worlds, with replacement.

        A candidate that ends at a boundary whose terminal observation has been overwritten is drawn again, at most
        `redraw_rounds` times; after that the row repeats the batch's first good row, which keeps every row that enters
        batch statistics a real transition. At least `min_ticks` ticks must have been published before.

        Args:
            draw: stream with B rows, keyed by the update.
        """
        batch = self.sample_batches(draw.words("rows", self.draw_lanes)[None])
        return Batch(*(field[0] for field in batch))

    def sample_batches(self, words: Tensor) -> Batch:
        """Return U batches of `sample`, each field with U in front, from words (U, B, draw_lanes); each batch has its
        own first good row."""
        rounds = self.redraw_rounds + 1
        oldest = (self.visible - self.capacity + self.ahead).clamp(min=0)
        count = (self.visible - self.n_step - oldest).clamp(min=1)

        def place(begin: Tensor, world: Tensor) -> tuple[Tensor, Tensor]:
            return oldest + ((begin * count) >> 32), (world * self.num_envs) >> 32

        # The first candidate that is whole, else the first good row of the batch.
        gone = self._end(*place(words[..., :rounds], words[..., rounds:]))[-1]  # (U, B, rounds)
        rank = torch.arange(rounds, device=words.device)
        failures = torch.where(gone, rounds, rank).amin(-1)
        size = failures.shape[1]
        row = torch.arange(size, device=words.device)
        bad = failures == rounds
        first_good = world_least(torch.where(bad, size - 1, row).t())
        row = torch.where(bad, first_good[:, None], row)
        pick = failures.gather(1, row).clamp(max=rounds - 1)

        # All about that one, anew from its words: less to read than what the candidates came to.
        update = torch.arange(failures.shape[0], device=words.device)[:, None]
        start, world = place(words[update, row, pick], words[update, row, rounds + pick])
        last, at_boundary, entry, lost = self._end(start, world)
        begin, end = self._slot(start, world), self._slot(start + last, world)
        table = self.capacity * self.num_envs + entry % self.boundary_rows
        successor = torch.where(at_boundary, table, self._slot(start + last + 1, world))
        both = torch.cat((begin, successor), dim=1)
        step = torch.arange(self.n_step, device=words.device)
        window = self._slot(start[..., None] + step, world[..., None])
        taken = step <= last[..., None]
        reward = torch.where(taken, self.reward[window] * self._powers[:-1], 0.0).sum(-1)
        discount = self._powers[last + 1] if self.discount == "exact" else self._powers[-1]
        # `lost` is left only where no row of the whole batch was good: then nothing is known of the successor.
        discount = torch.where(self.terminated[end] | lost, 0.0, discount)
        return Batch(
            _rows(self.obs["actor"], both),
            _rows(self.obs["critic"], both),
            _rows(self.action, begin),
            reward,
            discount,
            world_sum(failures.t()),
        )

    def _slot(self, tick: Tensor, world: Tensor) -> Tensor:
        return tick % self.capacity * self.num_envs + world

    def _end(self, start: Tensor, world: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return of the windows that begin there: the last step, whether it is at a boundary, the entry of the table
        that it names, and whether that is overwritten; all in the shape of `start`."""
        step = torch.arange(self.n_step, device=start.device)
        boundary = self.boundary[self._slot(start[..., None] + step, world[..., None])]
        last = torch.where(boundary, step, self.n_step - 1).amin(-1)
        at_boundary = boundary.any(-1)
        entry = self.entry[self._slot(start + last, world)]
        oldest = (self.visible_stored - self.boundary_rows + self.ahead * self.num_envs).clamp(min=0)
        return last, at_boundary, entry, at_boundary & (entry < oldest)


def _rows(field: Tensor, index: Tensor) -> Tensor:
    """Return rows of a field (M, D) by index (U, R), as (U, R, D)."""
    return field.index_select(0, index.flatten()).unflatten(0, index.shape)
