"""The scripts of docs/own-loop.md run, shortened."""

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Seconds instead of a minute: no compiler."""
    from tickgraph.env import env

    monkeypatch.setattr(env.Env, "_resolve", lambda self, execution: env.resolve_execution("eager", self.device))


def test_the_plain_loop_learns_and_repeats():
    example = load("own_loop")
    means = example.main(num_envs=64, updates=12)
    assert len(means) == 12 and all(0.0 < mean <= 0.04 for mean in means)  # 0.04 s a step, at most 1 a second
    assert example.main(num_envs=64, updates=3) == means[:3]


def test_the_plain_loop_runs_a_task_by_name():
    assert len(load("own_loop").main("cartpole_swingup", num_envs=8, updates=2)) == 2


def test_the_gymnasium_loop_returns_episodes():
    pytest.importorskip("gymnasium")
    example = load("gymnasium_loop")
    returns = example.main(num_envs=4, steps=510)
    assert len(returns) == 4  # of 10 s each, 50 steps a second
    assert example.main(num_envs=4, steps=510) == returns


def test_what_the_page_shows_runs():
    pytest.importorskip("gymnasium")
    page = (EXAMPLES.parent / "docs" / "own-loop.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    loop, gymnasium_loop = (next(b for b in blocks if text in b) for text in ("load_task(", "VectorEnvAdapter("))
    names = {}
    exec(loop.replace("range(100)", "range(3)").replace("num_envs=64", "num_envs=3"), names)
    assert names["obs"]["actor"].shape[0] == names["reward"].shape[0] == 3 and names["env"]._closed
    assert set(names["extras"]) == {"final_obs", "time_outs", "boundary", "invalid"}
    with names["Env"](names["task"].env, 3) as env:
        exec(gymnasium_loop, shown := {"env": env})
        assert shown["rewards"].shape == (3,)


def test_rsl_rl_trains(tmp_path):
    pytest.importorskip("rsl_rl.runners")
    runner = load("rsl_rl_train").main(num_envs=16, iterations=2, log_dir=str(tmp_path))
    assert list(tmp_path.glob("model_*.pt"))
    assert runner.current_learning_iteration == 1
