"""The replay ring against a list of what was written: successors, windows, visibility, overflow, redraws."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.program import Program, resolve_execution
from tickgraph.core.rng import Rng
from tickgraph.learn.normalizer import RewardNormalizer
from tickgraph.learn.replay import Ring


class History:
    """A ring, and everything that was written to it. The observation of world i at tick t is 100 t + i in both groups'
    columns (negated in the critic's), a final observation adds a half."""

    def __init__(self, slots=8, worlds=3, n_step=1, gamma=0.5, batch=256, **options):
        self.arena = Arena("cpu")
        self.ring = Ring(self.arena, slots, worlds, {"actor": 1, "critic": 2}, 1, n_step, gamma, **options)
        self.rng = Rng(self.arena, batch, seed=7)
        self.draw = self.rng.stream("learner/replay")
        self.slots, self.worlds, self.n_step, self.gamma = slots, worlds, n_step, gamma
        self.ticks = []

    def code(self, tick):
        return 100.0 * tick + torch.arange(self.worlds, dtype=torch.float32)[:, None]

    def write(self, reward=None, terminated=(), truncated=(), boundary=()):
        """Write the next tick; flags are lists of worlds, and boundary adds to the two others."""
        tick, worlds = len(self.ticks), range(self.worlds)
        reward = torch.tensor([float(1 + tick + 10 * i) for i in worlds] if reward is None else reward)
        flags = [torch.tensor([i in given for i in worlds]) for given in (terminated, truncated, boundary)]
        flags[2] |= flags[0] | flags[1]
        obs, final = self.code(tick), self.code(tick) + 100.5
        self.ring.write(
            {"actor": obs, "critic": torch.cat((-obs, -obs), -1)},
            obs / 1000.0,
            reward,
            *flags,
            {"actor": final, "critic": torch.cat((-final, -final), -1)},
        )
        self.ticks.append((reward.tolist(), *[flag.tolist() for flag in flags]))

    def sample(self):
        self.ring.publish()
        batch = self.ring.sample(self.draw)
        self.rng.advance()
        return batch

    def expected(self, tick, world, exact=True):
        """Return reward, discount and successor of the window that starts there."""
        total, scale = 0.0, 1.0
        for step in range(self.n_step):
            reward, terminated, _, boundary = self.ticks[tick + step]
            total += scale * reward[world]
            scale *= self.gamma
            if boundary[world] or step == self.n_step - 1:
                extra = 0.5 if boundary[world] else 0.0
                discount = scale if exact else self.gamma**self.n_step
                discount = 0.0 if terminated[world] else discount
                return total, discount, 100.0 * (tick + step + 1) + world + extra
        raise AssertionError

    def check(self, batch, exact=True):
        """Check every row of a sample; return the ticks and worlds that windows began at."""
        size = batch.action.shape[0]
        state, successor = batch.actor_obs[:size, 0], batch.actor_obs[size:, 0]
        assert torch.equal(batch.critic_obs, -torch.cat((batch.actor_obs, batch.actor_obs), -1))
        torch.testing.assert_close(batch.action[:, 0], state / 1000.0)
        starts = []
        for row in range(size):
            tick, world = divmod(int(state[row]), 100)
            wanted = self.expected(tick, world, exact)
            assert (batch.reward[row].item(), batch.discount[row].item(), successor[row].item()) == wanted
            starts.append((tick, world))
        return starts


def test_hand_case_of_three_step_windows():
    history = History(slots=8, worlds=1, n_step=3, batch=64, boundary_rows=8)
    for reward in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        tick = len(history.ticks)
        history.write([reward], truncated=[0] if tick == 1 else (), terminated=[0] if tick == 4 else ())
    batch = history.sample()
    seen = {
        int(state): (reward, discount, successor)
        for state, reward, discount, successor in zip(
            batch.actor_obs[:64, 0].tolist(),
            batch.reward.tolist(),
            batch.discount.tolist(),
            batch.actor_obs[64:, 0].tolist(),
            strict=True,
        )
    }
    assert seen == {
        0: (1 + 2 / 2, 1 / 4, 200.5),  # cut short by the time limit: two steps, bootstraps from the final observation
        100: (2.0, 1 / 2, 200.5),
        200: (4 + 8 / 2 + 16 / 4, 0.0, 500.5),  # ends in a fall in its third step
    }


def test_authors_discount_is_gamma_to_the_n_even_where_cut_short():
    history = History(slots=8, worlds=1, n_step=3, batch=16, discount="gamma_n")
    for tick in range(6):
        history.write(truncated=[0] if tick == 1 else ())
    batch = history.sample()
    assert set(batch.discount.tolist()) == {1 / 8}
    history.check(batch, exact=False)


def test_a_rewrite_is_a_boundary_that_does_not_end_the_value():
    history = History(slots=4, worlds=1, batch=8)
    history.write(boundary=[0])
    history.write()
    batch = history.sample()
    assert set(batch.discount.tolist()) == {0.5}
    assert set(batch.actor_obs[8:, 0].tolist()) == {100.5}


def test_fall_and_time_limit_together_are_a_fall():
    history = History(slots=4, worlds=1, batch=8)
    history.write(terminated=[0], truncated=[0])
    history.write()
    assert set(history.sample().discount.tolist()) == {0.0}


@pytest.mark.parametrize(("n_step", "mode"), [(1, "eager"), (3, "eager"), (3, "compile")])
def test_every_row_is_right_while_the_ring_fills_and_wraps(n_step, mode):
    history = History(slots=7, worlds=3, n_step=n_step, batch=64, boundary_rows=21)
    program = Program("sample", lambda: history.ring.sample(history.draw), resolve_execution(mode, "cpu"))
    write = history.ring.write
    history.ring.write = Program("write", write, resolve_execution(mode, "cpu"))
    flags = torch.Generator().manual_seed(1)
    for tick in range(26):
        fall, limit, jump = (torch.rand(3, 3, generator=flags) < 0.2).tolist()
        history.write(
            terminated=[i for i in range(3) if fall[i]],
            truncated=[i for i in range(3) if limit[i]],
            boundary=[i for i in range(3) if jump[i]],
        )
        if tick < history.ring.min_ticks - 1:
            continue
        history.ring.publish()
        batch = program()
        history.rng.advance()
        starts = history.check(batch)
        assert batch.redraws.item() == 0
        ticks = [start for start, _ in starts]
        oldest, newest = max(0, tick + 1 - 7), tick - n_step
        assert min(ticks) >= oldest and max(ticks) <= newest
        if tick > 10:
            assert set(ticks) == set(range(oldest, newest + 1)), "64 rows meet each of at most 6 slots"
            assert {world for _, world in starts} == {0, 1, 2}


def test_sampling_is_uniform_over_slots_and_worlds():
    history = History(slots=5, worlds=4, batch=20_000)
    for _ in range(9):
        history.write()
    codes = history.sample().actor_obs[:20_000, 0]
    values, counts = codes.unique(return_counts=True)
    assert values.tolist() == [100.0 * tick + world for tick in range(4, 8) for world in range(4)]
    assert counts.min() > 1100 and counts.max() < 1400  # 1250 expected, deviation 34


def test_nothing_moves_until_it_is_published():
    history = History(slots=6, worlds=2, batch=32)
    for _ in range(3):
        history.write()
    history.sample()
    for _ in range(2):
        history.write()
    ticks = {tick for tick, _ in history.check(history.ring.sample(history.draw))}
    assert ticks == {0, 1}


def test_slots_that_the_collector_may_be_writing_are_hidden():
    history = History(slots=6, worlds=1, batch=64, ahead=2)
    for _ in range(10):
        history.write()
    assert {tick for tick, _ in history.check(history.sample())} == {6, 7, 8}


def test_overwritten_terminal_observations_are_drawn_again_and_counted():
    history = History(slots=8, worlds=2, batch=256, boundary_rows=2)
    for _ in range(8):
        history.write(truncated=[0])
    batch = history.sample()
    starts = history.check(batch)
    # The table holds ticks 6 and 7 of world 0, and tick 7 is hidden.
    assert {tick for tick, world in starts if world == 0} == {6}
    assert batch.redraws.item() > 50


def test_terminal_observations_that_do_not_fit_are_counted_and_not_sampled():
    history = History(slots=8, worlds=4, batch=128, boundary_rows=3)
    history.write(terminated=[0, 1, 2, 3])
    history.write()
    batch = history.sample()
    assert history.ring.overflowed.item() == 1
    assert {world for _, world in history.check(batch)} == {0, 1, 2}, "the table took the first three"
    assert history.ring.obs["actor"][-1].item() == 0.0


def test_a_batch_without_any_good_row_bootstraps_nothing():
    history = History(slots=4, worlds=2, batch=16, boundary_rows=2)
    for _ in range(4):
        history.write(truncated=[0, 1])
    batch = history.sample()
    assert batch.discount.tolist() == [0.0] * 16
    assert batch.redraws.item() == 16 * 5
    assert all(value.isfinite().all() for value in batch)


def test_a_row_that_stays_bad_repeats_the_first_good_one():
    history = History(slots=6, worlds=8, batch=64, boundary_rows=1, redraw_rounds=1)
    history.write(truncated=range(1, 8))
    history.write()
    batch = history.sample()
    assert {world for _, world in history.check(batch)} == {0, 1}


@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_of_several_updates_are_those_of_each(n_step):
    """Among them one that has a bad row and repeats its own first good one, not that of the batch before."""
    history = History(slots=12, worlds=8, n_step=n_step, batch=32, boundary_rows=1, redraw_rounds=1)
    for _ in range(n_step):
        history.write(truncated=range(1, 8))
    for _ in range(n_step):
        history.write()
    history.ring.publish()
    other = Rng(Arena("cpu"), 32, seed=7)
    words = other.ahead({"learner/replay/rows": history.ring.draw_lanes}, ticks=4).words()[0]
    several, firsts = history.ring.sample_batches(words), []
    for update in range(4):
        batch = history.ring.sample(history.draw)
        for mine, wanted in zip(several, batch, strict=True):
            assert torch.equal(mine[update], wanted)
        history.check(batch)
        begin = batch.actor_obs[:32, 0].tolist()
        start = (words[update, :, :2] * n_step) >> 32
        world = (words[update, :, 2:] * 8) >> 32
        # Whole is world 0, and world 1 in the last of the ticks that end: the table has one row.
        good = [[w == 0 or (w == 1 and t == n_step - 1) for t, w in zip(*pair, strict=True)]
                for pair in zip(start.tolist(), world.tolist(), strict=True)]  # fmt: skip
        first = next(row for row in range(32) if any(good[row]))
        wanted = [row if any(good[row]) else first for row in range(32)]
        picks = [good[row].index(True) for row in wanted]
        assert begin == [100.0 * start[r, p] + world[r, p] for r, p in zip(wanted, picks, strict=True)]
        assert wanted != list(range(32))
        firsts.append(begin[first])
        assert batch.redraws.item() == sum(2 if not any(row) else row.index(True) for row in good)
        history.rng.advance()
    assert len(set(firsts)) > 1, "batches fall back to rows of their own"


def test_samples_depend_on_the_update_alone():
    first, second = History(), History()
    for history in (first, second):
        for _ in range(6):
            history.write(truncated=[1])
        history.ring.publish()
    a, b = first.ring.sample(first.draw), second.ring.sample(second.draw)
    again = first.ring.sample(first.draw)
    assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(a, b, again, strict=True))
    first.rng.advance()
    assert not torch.equal(first.ring.sample(first.draw).actor_obs, a.actor_obs)


def test_a_snapshot_is_the_whole_state():
    history = History()
    for _ in range(11):
        history.write(truncated=[1])
    history.ring.publish()
    state, batch = history.arena.snapshot(), history.ring.sample(history.draw)
    other = History()
    other.arena.restore(state)
    assert all(torch.equal(x, y) for x, y in zip(batch, other.ring.sample(other.draw), strict=True))


def test_clear_forgets_everything():
    history = History(slots=5, worlds=1)
    for _ in range(9):
        history.write()
    history.ring.clear()
    history.ticks.clear()
    for _ in range(3):
        history.write()
    assert {tick for tick, _ in history.check(history.sample())} == {0, 1}


def test_the_normaliser_hears_of_every_reward():
    arena = Arena("cpu")
    normalizer = RewardNormalizer(arena, 2, 0.5, 5.0)
    ring = Ring(arena, 4, 2, {"actor": 1, "critic": 1}, 1, normalizer=normalizer)
    obs, no = {"actor": torch.zeros(2, 1), "critic": torch.zeros(2, 1)}, torch.zeros(2, dtype=torch.bool)
    ring.write(obs, torch.zeros(2, 1), torch.tensor([4.0, 8.0]), no, no, no, obs)
    ring.write(obs, torch.zeros(2, 1), torch.tensor([1.0, 1.0]), no, ~no, ~no, obs)
    assert normalizer.returns.tolist() == [1.0, 1.0]
    ring.publish()
    assert normalizer.scale.item() > 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"discount": "gama_n"}, "discount is 'gama_n'"),
        ({"n_step": 0}, "n_step is 0"),
        ({"slots": 3, "n_step": 3}, r"replay of 3 slots .* holds no window of 3 steps .*; give it at least 4"),
        ({"boundary_rows": -1}, "boundary_rows is -1"),
    ],
)
def test_sizes_that_cannot_work_are_refused(options, text):
    with pytest.raises(TickgraphError, match=text):
        History(**options)
