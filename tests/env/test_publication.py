"""What step() handed out is intact until the call after the next begins, and is never a working buffer."""

import torch
from toys import Slider, foot_cfg

from tickgraph.env.env import PUBLISH_DEPTH, Env


def leaves(value, path=""):
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in leaves(item, f"{path}/{name}").items()}
    return {path: value}


def handed_out(env, action):
    obs, reward, terminated, truncated, extras = env.step(action)
    return leaves({"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "extras": extras})


def test_step_t_is_intact_until_step_t_plus_2_begins():
    env = Env(foot_cfg(limit=(2, 3)), num_envs=5, execution="eager")
    action = torch.full((5, 1), 0.2)
    working = {value.untyped_storage().data_ptr() for value in (*env.obs.values(), *env.final_obs.values())}
    earlier = []
    first, _ = env.reset()
    earlier.append((leaves(first), {k: v.clone() for k, v in leaves(first).items()}))
    for _ in range(10):
        out = handed_out(env, action)
        kept, copies = earlier[-1]
        assert all(torch.equal(kept[name], copies[name]) for name in kept)
        assert not working & {value.untyped_storage().data_ptr() for value in out.values()}
        earlier.append((out, {k: v.clone() for k, v in out.items()}))
    assert PUBLISH_DEPTH == 2
    # The slot two steps back is in use again: the promise ends there.
    kept, copies = earlier[-3]
    assert not torch.equal(kept["/obs/actor"], copies["/obs/actor"])
    assert kept["/obs/actor"].data_ptr() == earlier[-1][0]["/obs/actor"].data_ptr()


def test_final_obs_is_full_width_and_there_every_step():
    env = Env(Slider(v=(1.0, 0.5), limit=(3, 4)).cfg(), num_envs=4, execution="eager")
    for _ in range(8):
        _, _, terminated, truncated, extras = env.step(torch.zeros(4, 1))
        assert extras["final_obs"]["actor"].shape == (4, 1)
        assert torch.equal(extras["time_outs"], truncated)
        ended = terminated | truncated
        # Where the episode goes on, the last observation is the one that follows.
        assert torch.equal(extras["final_obs"]["actor"][~ended], env.obs["actor"][~ended])


def test_ticks_inside_do_not_touch_what_was_handed_out():
    env = Env(Slider().cfg(), num_envs=2, execution="eager")
    out = handed_out(env, torch.zeros(2, 1))
    copies = {name: value.clone() for name, value in out.items()}
    for _ in range(4):
        env.tick()
    assert all(torch.equal(out[name], copies[name]) for name in out)


def test_the_callers_action_is_copied_and_may_carry_gradients():
    env = Env(Slider(see_action=True).cfg(), num_envs=2, execution="eager")
    action = torch.ones(2, 1, requires_grad=True)
    obs, reward, *_ = env.step(action * 0.5)
    assert obs["actor"][:, 1].tolist() == [0.5, 0.5]
    assert not (obs["actor"].requires_grad or reward.requires_grad or env.action.requires_grad)
    with torch.inference_mode():
        action = torch.full((2, 1), 0.25)
        obs, *_ = env.step(action)
        action.fill_(9.0)
    assert obs["actor"][:, 1].tolist() == [0.25, 0.25]
    assert env.action[:, 0].tolist() == [0.25, 0.25]
