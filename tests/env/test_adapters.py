"""What other libraries see of the sliding mass: who ended how, and what stays in the caller's hands."""

import numpy as np
import pytest
import torch
from toys import Slider, X, joint_vel

from tickgraph.core.errors import TickgraphError
from tickgraph.env.adapters import RslRlVecEnv, VectorEnvAdapter
from tickgraph.env.config import ObservationGroupCfg, ObservationTermCfg
from tickgraph.env.env import Env

SPEEDS = (1.0, 0.5, 0.8)
ENDS = {1.0: (4, True, 0.08), 0.5: (5, False, 0.05), 0.8: (5, True, 0.08)}  # v: (step, fall, last x)


def make_env(**changes):
    cfg = Slider(v=SPEEDS, limit=(5,), fall=0.07).cfg()
    cfg.observations["critic"] = ObservationGroupCfg({"v": ObservationTermCfg(joint_vel, {"asset_cfg": X})})
    return Env(cfg, num_envs=6, execution="eager", **changes)


def check_20_steps(step):
    """Play 20 steps; step() returns x (6,), terminated, truncated and the last x of worlds that ended, as lists."""
    age = [0] * 6
    for _ in range(20):
        x, terminated, truncated, final = step()
        for world in range(6):
            v = SPEEDS[world % 3]
            age[world] += 1
            end, fall, last = ENDS[v]
            over = age[world] == end
            assert (terminated[world], truncated[world]) == (over and fall, over and not fall)
            assert x[world] == pytest.approx(0.0 if over else 0.02 * age[world] * v, abs=1e-6)
            if over:
                assert final[world] == pytest.approx(last, abs=1e-6)
                age[world] = 0


@pytest.mark.parametrize("to_numpy", [True, False])
def test_vector_api(to_numpy):
    adapter = VectorEnvAdapter(make_env(), to_numpy=to_numpy)
    obs, infos = adapter.reset(seed=1)
    assert infos == {} and obs.shape == (6, 1)
    actions = np.zeros((6, 1)) if to_numpy else torch.zeros(6, 1)

    def step():
        obs, _, terminated, truncated, infos = adapter.step(actions)
        ended = [t or u for t, u in zip(terminated.tolist(), truncated.tolist(), strict=True)]
        assert ("final_obs" in infos) == any(ended)
        final = [None] * 6
        if any(ended):
            assert infos["_final_obs"].tolist() == ended
            final = [infos["final_obs"][i][0] if ended[i] else None for i in range(6)]
        return obs[:, 0].tolist(), terminated.tolist(), truncated.tolist(), final

    check_20_steps(step)
    adapter.close()


def test_what_the_vector_api_handed_out_stays_as_it_is():
    adapter = VectorEnvAdapter(make_env(), group=None)
    adapter.reset()
    kept = [adapter.step(np.zeros((6, 1))) for _ in range(5)][-1]
    obs, reward, terminated, truncated, infos = kept
    before = {k: v.copy() for k, v in obs.items()}, reward.copy(), terminated.copy(), truncated.copy()
    final = [None if f is None else {k: float(v[0]) for k, v in f.items()} for f in infos["final_obs"]]
    for _ in range(3):
        adapter.step(np.ones((6, 1)))
    assert all((obs[k] == v).all() for k, v in before[0].items())
    assert (reward == before[1]).all() and (terminated == before[2]).all() and (truncated == before[3]).all()
    for world, last in enumerate(infos["final_obs"]):
        assert (last is None) == (final[world] is None)
        if last is not None:
            assert {k: float(v[0]) for k, v in last.items()} == final[world]
    assert final[1]["actor"] == pytest.approx(0.05, abs=1e-6) and final[1]["critic"] == pytest.approx(0.5)
    assert isinstance(obs["critic"], np.ndarray)


def test_vector_api_refuses_what_it_cannot_do():
    env = make_env()
    with pytest.raises(TickgraphError, match="no observation group 'actr'; did you mean 'actor'"):
        VectorEnvAdapter(env, group="actr")
    with pytest.raises(TickgraphError, match="reset themselves"):
        VectorEnvAdapter(env).reset(options={"reset_mask": np.ones(6, dtype=bool)})
    with pytest.raises(TickgraphError, match=r"seed is \[1, 2\], expected one whole number"):
        VectorEnvAdapter(env).reset(seed=[1, 2])
    with pytest.raises(TickgraphError, match=r"action has shape \(6, 2\), expected \(6, 1\)"):
        VectorEnvAdapter(env).step(np.zeros((6, 2)))


def test_gymnasium_wrappers_take_it():
    gymnasium = pytest.importorskip("gymnasium")
    adapter = VectorEnvAdapter(make_env())
    assert isinstance(adapter, gymnasium.vector.VectorEnv)
    assert adapter.observation_space.shape == (6, 1) and adapter.single_action_space.shape == (1,)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(adapter)
    envs.reset(seed=0)
    for _ in range(5):
        *_, infos = envs.step(adapter.action_space.sample())
    assert infos["episode"]["l"].tolist() == [0, 5, 5, 0, 5, 5]
    envs.close()


def test_rsl_rl_sees_time_outs_only_where_nothing_fell():
    pytest.importorskip("tensordict")
    vec = RslRlVecEnv(make_env(), log_every=20)
    assert (vec.num_envs, vec.num_actions, vec.max_episode_length) == (6, 1, 5)
    obs = vec.get_observations()
    assert set(obs.keys()) == {"actor", "critic"} and obs.batch_size == (6,)

    def step():
        with torch.inference_mode():
            obs, reward, dones, extras = vec.step(torch.zeros(6, 1))
        assert reward.shape == (6,) and dones.dtype == torch.int64
        outs = extras["time_outs"].tolist()
        falls = [bool(d) and not o for d, o in zip(dones.tolist(), outs, strict=True)]
        step.log = extras.get("log")
        return obs["actor"][:, 0].tolist(), falls, outs, extras["final_obs"]["actor"][:, 0].tolist()

    check_20_steps(step)
    assert step.log["/terminated"] == 2 * (5 + 4) and step.log["/truncated"] == 2 * 4
    vec.close()


def test_rsl_rl_may_begin_at_random_ages():
    pytest.importorskip("tensordict")
    vec = RslRlVecEnv(make_env(), log_every=2)
    address = vec.episode_length_buf.data_ptr()
    vec.episode_length_buf = torch.tensor([0, 3, 0, 0, 3, 0])
    assert vec.episode_length_buf.data_ptr() == address
    vec.step(torch.zeros(6, 1))
    _, _, dones, extras = vec.step(torch.zeros(6, 1))
    assert extras["time_outs"].tolist() == [False, True, False, False, True, False]
    assert extras["log"]["/episode_length"] == 2.0


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensordict", None)
    with pytest.raises(TickgraphError, match="pip install 'rsl-rl-lib>=3'"):
        RslRlVecEnv(make_env())


def test_an_older_rsl_rl_is_named(monkeypatch):
    pytest.importorskip("tensordict")
    monkeypatch.setattr("tickgraph.env.adapters.version", lambda name: "2.3.3")
    with pytest.raises(TickgraphError, match="rsl_rl 3 or later, 2.3.3 is installed; run: pip install 'rsl-rl-lib>=3'"):
        RslRlVecEnv(make_env())


def test_adapters_take_environments_alone():
    with pytest.raises(TickgraphError, match="VectorEnvAdapter was given a dict, expected an Env"):
        VectorEnvAdapter({})
