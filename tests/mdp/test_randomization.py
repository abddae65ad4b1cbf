"""Randomisation starts from the model's own values at every reset: it must never compound."""

import pytest
import torch
from mdp_toys import robot_env

from tickgraph import mdp
from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EventTermCfg, SceneEntityCfg, TerminationTermCfg

BASE = SceneEntityCfg("robot", body_names="base")


def every_tick_env(func, worlds=64, ends=None, **params):
    """Return an environment whose worlds, or those that a termination ends, begin an episode each tick."""
    events = {"event": EventTermCfg(func, "reset", params)}
    terminations = {"end": TerminationTermCfg(ends)} if ends else {"time_out": TerminationTermCfg(mdp.time_out)}
    return robot_env(worlds, events=events, episode_length_s=0.02 if not ends else 10.0, terminations=terminations)


def factors(env, field, index, ticks):
    """Return (ticks, N), the field over its default after each tick's reset."""
    value, default = env.sim.field(field), env.sim.default_field(field)
    rows = []
    for _ in range(ticks):
        env.tick()
        rows.append((value[(slice(None), *index)] / default[index]).clone())
    return torch.stack(rows)


def test_mass_scaled_at_500_resets():
    env = every_tick_env(mdp.randomize_field, field="body_mass", ranges=(0.9, 1.1), asset_cfg=BASE)
    body = int(env.scene["robot"].index.body_ids[0])
    rows = []
    for _ in range(500):  # the draws of 500 ticks that all reset; the tests below play whole ticks
        env.rng.advance()
        env.event_manager.apply("reset", env.all_worlds)
        rows.append(env.sim.field("body_mass")[:, body] / env.sim.default_field("body_mass")[body])
    seen = torch.stack(rows).to(torch.float64)
    assert seen.min() >= 0.9 - 1e-6 and seen.max() <= 1.1 + 1e-6
    assert abs(seen.mean() - 1.0) < 0.002
    assert abs(seen.std() - 0.0577) < 0.001
    assert abs(torch.corrcoef(torch.stack((seen[:-1].flatten(), seen[1:].flatten())))[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("func", "field", "index", "params"),
    [
        (mdp.randomize_field, "body_mass", (1,), {"field": "body_mass", "ranges": (0.9, 1.1)}),
        (mdp.randomize_field, "geom_friction", (0, 0), {"field": "geom_friction", "ranges": (0.9, 1.1)}),
        (mdp.randomize_pd_gains, "actuator_gainprm", (0, 0), {"kp_range": (0.9, 1.1)}),
        (mdp.randomize_pd_gains, "actuator_biasprm", (0, 2), {"kd_range": (0.9, 1.1)}),
        (mdp.randomize_effort_limits, "actuator_forcerange", (0, 1), {"ranges": (0.9, 1.1)}),
    ],
)
def test_scaled_fields_over_whole_ticks(func, field, index, params):
    seen = factors(every_tick_env(func, **params), field, index, 30)
    assert seen.min() >= 0.9 - 1e-6 and seen.max() <= 1.1 + 1e-6
    assert seen.std(dim=0).min() > 0.02


@pytest.mark.parametrize(("operation", "ranges"), [("scale", (0.5, 2.0)), ("add", (-1.0, 3.0)), ("abs", (1.0, 5.0))])
def test_inertia_follows_mass(operation, ranges):
    env = every_tick_env(mdp.randomize_body_mass, asset_cfg=BASE, operation=operation, ranges=ranges)
    body = int(env.scene["robot"].index.body_ids[0])
    for _ in range(5):
        env.tick()
    mass, inertia = env.sim.field("body_mass")[:, body], env.sim.field("body_inertia")[:, body]
    low, high = {"scale": (1.0, 4.0), "add": (1.0, 5.0), "abs": (1.0, 5.0)}[operation]  # of 2 kg
    assert mass.min() >= low - 1e-5 and mass.max() <= high + 1e-5 and mass.std() > 0.3
    default = env.sim.default_field("body_inertia")[body]
    torch.testing.assert_close(inertia, mass[:, None] / 2.0 * default)
    others = [int(i) for i in env.scene["robot"].index.body_ids[1:]]
    assert (env.sim.field("body_mass")[:, others] == env.sim.default_field("body_mass")[others]).all()


def test_inertia_stays_where_it_is_told_to_and_mass_is_above_nothing():
    env = every_tick_env(mdp.randomize_body_mass, asset_cfg=BASE, ranges=(0.5, 2.0), recompute_inertia=False)
    body = int(env.scene["robot"].index.body_ids[0])
    env.tick()
    assert env.sim.field("body_mass")[:, body].std() > 0.1
    with pytest.raises(TickgraphError, match=r"ranges are \(-2.0, 1.0\) by 'add', which leaves 2 kg no mass"):
        every_tick_env(mdp.randomize_body_mass, worlds=2, asset_cfg=BASE, ranges=(-2.0, 1.0), operation="add")


def test_actuators_are_chosen_by_their_joints_too():
    joint = SceneEntityCfg("robot", joint_names="a")
    env = every_tick_env(mdp.randomize_pd_gains, kp_range=(2.0, 3.0), asset_cfg=joint, worlds=4)
    gains = env.sim.field("actuator_gainprm")[:, :, 0]  # of b, 20, then of a, 10
    assert (gains[:, 0] == 20.0).all() and (gains[:, 1] >= 20.0).all()
    env = every_tick_env(mdp.randomize_effort_limits, ranges=(2.0, 3.0), asset_cfg=joint, worlds=4)
    limits = env.sim.field("actuator_forcerange")[:, :, 1]
    assert (limits[:, 0] == 3.0).all() and (limits[:, 1] >= 10.0).all()


def test_a_field_is_not_selected_by_what_it_has_no_rows_of():
    text = "geom_friction has a row for each geom, but asset_cfg names body_names alone; select by geom_names"
    with pytest.raises(TickgraphError, match=text):
        every_tick_env(mdp.randomize_field, worlds=2, field="geom_friction", ranges=(0.5, 1.0), asset_cfg=BASE)


def test_added_centre_of_mass():
    env = every_tick_env(mdp.randomize_field, field="body_ipos", ranges=(-0.01, 0.01), operation="add", asset_cfg=BASE)
    body = int(env.scene["robot"].index.body_ids[0])
    for _ in range(40):
        env.tick()
        offset = env.sim.field("body_ipos")[:, body] - env.sim.default_field("body_ipos")[body]
        assert offset.abs().max() <= 0.01 + 1e-7
    assert offset.std(dim=0).min() > 0.003  # each axis by itself
    assert (offset[:, 0] != offset[:, 1]).all()


def test_each_column_has_its_own_range():
    ranges = {0: (-0.01, 0.01), 2: (0.03, 0.05)}
    env = every_tick_env(mdp.randomize_field, field="body_ipos", ranges=ranges, operation="add", asset_cfg=BASE)
    body = int(env.scene["robot"].index.body_ids[0])
    for _ in range(20):
        env.tick()
        offset = env.sim.field("body_ipos")[:, body] - env.sim.default_field("body_ipos")[body]
        for axis, (low, high) in ranges.items():
            assert (offset[:, axis] >= low - 1e-6).all() and (offset[:, axis] <= high + 1e-6).all()
        assert (offset[:, 1] == 0.0).all()
    assert offset[:, 0].std() > 0.003 and offset[:, 2].std() > 0.003
    # One displacement for all bodies of a world, and decades of equal share in one of two columns.
    env = every_tick_env(mdp.randomize_field, field="body_ipos", ranges=ranges, operation="add", shared=True)
    offset = (env.sim.field("body_ipos") - env.sim.default_field("body_ipos"))[:, 1:]
    torch.testing.assert_close(offset, offset[:, :1].expand(-1, 3, -1), atol=1e-7, rtol=0)
    ranges = {0: (0.01, 1.0), 1: (1.0, 100.0)}
    env = every_tick_env(
        mdp.randomize_field, field="geom_friction", ranges=ranges, operation="abs", distribution="log_uniform"
    )
    value = env.sim.field("geom_friction")
    assert 0.3 < (value[..., 0] < 0.1).float().mean() < 0.7 and 0.3 < (value[..., 1] < 10.0).float().mean() < 0.7


def test_worlds_that_go_on_keep_every_byte():
    def even(env):
        return torch.arange(env.num_envs) % 2 == 0

    env = every_tick_env(mdp.randomize_field, ends=even, field="body_mass", ranges=(0.5, 2.0))
    odd = env.sim.field("body_mass")[1::2].clone()
    even_first = env.sim.field("body_mass")[::2].clone()
    for _ in range(20):
        env.tick()
    assert torch.equal(env.sim.field("body_mass")[1::2], odd)
    assert (env.sim.field("body_mass")[::2, 1:] != even_first[:, 1:]).all()


def test_gains_stay_consistent_and_damping_is_drawn_where_it_is():
    env = every_tick_env(
        mdp.randomize_pd_gains, kp_range=(31.5, 38.5), kd_range=(0.45, 0.55), operation="abs", worlds=32
    )
    gain, bias = env.sim.field("actuator_gainprm"), env.sim.field("actuator_biasprm")
    assert torch.equal(bias[:, :, 1], -gain[:, :, 0])
    assert (gain[:, :, 0] >= 31.5).all() and (gain[:, :, 0] <= 38.5).all()
    # act_b, the first, has damping of its own; act_a has none, so that its joint's is drawn.
    assert (bias[:, 0, 2] <= -0.45).all() and (bias[:, 0, 2] >= -0.55).all()
    assert (bias[:, 1, 2] == 0.0).all()
    damping = env.sim.field("dof_damping")[:, 6:]
    assert (damping[:, 0] >= 0.45).all() and (damping[:, 0] <= 0.55).all() and (damping[:, 1] == 0.0).all()
    assert (bias[:, 0, 2] != -damping[:, 0]).all()  # drawn apart


def test_both_ends_of_an_effort_limit_share_their_factor():
    env = every_tick_env(mdp.randomize_effort_limits, ranges=(0.5, 2.0), worlds=16)
    limits = env.sim.field("actuator_forcerange")
    torch.testing.assert_close(limits[:, 0, 0], -limits[:, 0, 1])
    torch.testing.assert_close(limits[:, 1, 1] / 5.0, limits[:, 1, 0] / -4.0)


def test_one_friction_for_all_geoms_and_log_uniform():
    env = every_tick_env(
        mdp.randomize_field,
        field="geom_friction",
        ranges=(0.1, 10.0),
        operation="abs",
        shared=True,
        distribution="log_uniform",
    )
    sliding = env.sim.field("geom_friction")[:, :, 0]
    assert (sliding == sliding[:, :1]).all()
    assert sliding.min() >= 0.1 - 1e-6 and sliding.max() <= 10.0 + 1e-4
    assert 0.25 < (sliding[:, 0] < 1.0).float().mean() < 0.75
    torch.testing.assert_close(
        env.sim.field("geom_friction")[:, :, 1:], env.sim.default_field("geom_friction")[:, 1:].expand(64, -1, -1)
    )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"field": "body_mass", "ranges": (0.9, 1.1), "operation": "scal"},
            "operation 'scal' is unknown; did you mean",
        ),
        ({"field": "body_mass", "ranges": (1.1, 0.9)}, "low <= high"),
        ({"field": "opt.gravity", "ranges": (0.9, 1.1)}, "belongs to no part"),
        ({"field": "body_mass", "ranges": (0.9, 1.1), "axes": (0,)}, "no columns"),
        ({"field": "body_ipos", "ranges": (0.9, 1.1), "axes": (3,)}, "columns 0 to 2"),
        ({"field": "body_ipos", "ranges": {3: (0.9, 1.1)}}, "columns 0 to 2"),
        ({"field": "body_ipos", "ranges": {0: (1.1, 0.9)}}, "low <= high"),
        ({"field": "body_ipos", "ranges": {0: (0.9, 1.1)}, "axes": (0,)}, "leave axes out"),
        ({"field": "body_ipos", "ranges": {}}, "give at least one"),
        (
            {"field": "body_ipos", "ranges": {0: -0.1, 1: 0.3}},
            "ranges.0 is -0.1, expected two finite numbers, low <= high",
        ),
        (
            {"field": "body_ipos", "ranges": {0: (0.0, 0.1), 1: 0.3}},
            "ranges.1 is 0.3, expected two finite numbers, low <= high",
        ),
    ],
)
def test_errors(params, words):
    with pytest.raises(TickgraphError, match=words):
        every_tick_env(mdp.randomize_field, worlds=2, **params)
