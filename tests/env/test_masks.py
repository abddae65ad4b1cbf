"""Selections are masks: what a mask does to a world does not depend on the others, nor on how many there are."""

import blocked
import pytest
import torch
from toys import foot_cfg

from tickgraph.env import tick as transition
from tickgraph.env.env import Env

N = 13  # no other dimension of these tasks


def tasks():
    slider = blocked.good_cfg()
    # These two look at all worlds together.
    del slider.rewards["mean"], slider.observations["actor"].terms["by_mask"]
    return {"slider": slider, "foot": foot_cfg()}


def actions(env, tick):
    world = torch.arange(env.num_envs, dtype=torch.float32)
    return torch.sin(0.7 * world + 0.3 * tick)[:, None] * 0.3


def played(task, num_envs=N, ticks=20, **options):
    env = Env(tasks()[task], num_envs=num_envs, execution="eager", seed=5, **options)
    for tick in range(ticks):
        env.step(actions(env, tick))
    return env


def begin(env, mask):
    """Begin episodes in the worlds of a mask as the tick does, up to the observation."""
    env.sim.stage_from_state()
    env.written.zero_()
    transition.begin_episodes(env, mask)
    env.sim.write_state(env.written, mask)
    env.sim.refresh(env.written)


def same(a, b):
    """Equal in every byte, NaN and signs of zero included."""
    a, b = a.contiguous(), b.contiguous()
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.numpy().tobytes() == b.numpy().tobytes()


def differing(a, b, rows=slice(None)):
    return [name for name in a if a[name].dim() and a[name].shape[0] == N and not same(a[name][rows], b[name][rows])]


MASK = torch.tensor([i in (0, 3, 4, 11) for i in range(N)])


@pytest.mark.parametrize("task", ["slider", "foot"])
def test_unselected_worlds_keep_every_byte(task):
    env = played(task)
    before, state = env.arena.snapshot(), env.sim.state_dict()
    env.written.zero_()  # says of this tick, not of a world, what was written
    before["env/written"].zero_()
    # Staging is scratch: filled anew each tick.
    for name in ("qpos", "qvel"):
        before[f"sim/staging_{name}"].copy_(before[f"sim/{name}"])
    begin(env, MASK)
    after = env.arena.snapshot()
    assert differing(before, after, ~MASK) == []
    changed = differing(before, after, MASK)
    assert {"sim/qpos", "sim/qvel", "env/episode_length", "env/written"} <= set(changed)
    for name, value in env.sim.state_dict().items():
        assert same(state[name][~MASK], value[~MASK]), name
        assert not same(state[name][MASK], value[MASK]), name


@pytest.mark.parametrize("task", ["slider", "foot"])
def test_a_reset_by_mask_equals_one_world_after_another(task):
    together, apart = played(task), played(task)
    begin(together, MASK)
    for row in MASK.nonzero()[:, 0].tolist():
        begin(apart, torch.arange(N) == row)
    apart.written.copy_(MASK)
    a, b = together.arena.snapshot(), apart.arena.snapshot()
    assert differing(a, b) == []
    for env in (together, apart):
        for tick in range(20, 40):
            env.step(actions(env, tick))
    a, b = together.arena.snapshot(), apart.arena.snapshot()
    assert differing(a, b) == []


def test_a_reset_by_mask_equals_a_reset_by_row_ids():
    # The same by index lists and by hand, for every tensor that a reset of this task may touch.
    by_mask, by_ids = played("foot"), played("foot")
    begin(by_mask, MASK)
    env, ids = by_ids, MASK.nonzero()[:, 0]
    t = env.arena

    def uniform(path, lanes, low, high):
        words = env.rng.stream(path).words("", lanes)[ids]
        low, high = torch.tensor(low), torch.tensor(high)  # float32, as documented
        return (low.double() + (words >> 8).double() * 2.0**-24 * (high - low).double()).float()

    def drawn_lag(path, high):
        return (env.rng.stream(path).words("", 1)[ids, 0] * (high + 1)) >> 32

    t["sim/staging_qpos"].copy_(t["sim/qpos"])
    t["sim/staging_qvel"].copy_(t["sim/qvel"])
    # qpos: foot z, box position and quaternion. The foot's reference is 0, the box stands where its model says.
    start = torch.tensor([0.0, 1.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0])
    t["sim/staging_qpos"][ids] = start
    t["sim/staging_qvel"][ids] = 0.0
    # At the identity the angular velocity in the body frame is the one in the world frame.
    t["sim/staging_qvel"][ids, 1:] = uniform("events/toss", 6, -2.0, 2.0)
    box = env.scene["box"].index.root_body_id
    t["sim/field/body_mass"][ids, box] = uniform("events/mass", 1, 0.5, 2.0)[:, 0]
    for name in ("actions/action", "actions/prev_action", "actions/z/target", "actions/z/delay", "stats/term_sums"):
        t[name][ids] = 0.0
    t["stats/start_length"][ids] = 0
    t["env/episode_length"][ids] = 0
    t["actions/z/lag"][ids] = drawn_lag("actions/z/lag", 1)
    t["observations/actor/box/lag"][ids] = drawn_lag("observations/actor/box/lag", 2)
    t["events/kick/time_left"][ids] = uniform("events/kick/time_left", 1, 0.04, 0.12)[:, 0]
    env.written.zero_()
    env.written[ids] = True
    restarted = torch.zeros(N, dtype=torch.bool)
    restarted[ids] = True
    env.sim.write_state(env.written, restarted)
    env.sim.refresh(env.written)
    a, b = by_mask.arena.snapshot(), by_ids.arena.snapshot()
    assert [name for name in a if not same(a[name], b[name])] == []


@pytest.mark.parametrize("task", ["slider", "foot"])
def test_a_world_plays_the_same_among_8_as_among_64(task):
    narrow, wide = played(task, 8, 40), played(task, 64, 40)
    a, b = narrow.arena.snapshot(), wide.arena.snapshot()
    per_world = [name for name in a if a[name].dim() and a[name].shape[0] == 8 and b[name].shape[0] == 64]
    assert {"env/reward", "rng/words", "sim/qpos", "env/obs/actor"} <= set(per_world)
    assert [name for name in per_world if not same(a[name], b[name][:8])] == []


def test_results_do_not_depend_on_the_number_of_threads():
    one, two = played("foot", 16, 40, threads=1), played("foot", 16, 40, threads=2)
    a, b = one.state_dict(), two.state_dict()
    assert [name for name in a if not same(a[name], b[name])] == []


@pytest.mark.parametrize("task", ["slider", "foot"])
def test_a_run_resumed_from_its_state_repeats_every_bit(task):
    env, other = played(task), played(task, ticks=3)
    other.load_state_dict(env.state_dict())
    for tick in range(20, 50):
        for e in (env, other):
            e.step(actions(e, tick))
    a, b = env.state_dict(), other.state_dict()
    published = [name for name in a if not name.startswith("arena/publish/")]
    assert [name for name in published if not same(a[name], b[name])] == []


def test_seeds_and_resets_repeat():
    first, second = played("foot", 4, 10), Env(foot_cfg(), num_envs=4, execution="eager", seed=9)
    for tick in range(7):
        second.step(actions(second, tick))
    second.reset(seed=5)
    for tick in range(10):
        second.step(actions(second, tick))
    a, b = first.arena.snapshot(), second.arena.snapshot()
    names = [n for n in a if not n.startswith("publish/")]
    assert [n for n in names if not same(a[n], b[n])] == []
    other = Env(foot_cfg(), num_envs=4, execution="eager", seed=6)
    assert not same(other.obs["actor"], played("foot", 4, 0).obs["actor"])
