"""What a loop of one's own relies on: short imports, seeds that repeat, words that go on, clear refusals."""

import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from toys import Slider, foot_cfg

import tickgraph
from tickgraph.core.errors import TickgraphError
from tickgraph.env.adapters import RslRlVecEnv, VectorEnvAdapter
from tickgraph.env.env import Env
from tickgraph.run.config import Task

SEED_TEXT = r"expected a whole number from 0 to 2\^64 - 1"


def make(seed=7, **changes):
    return Env(foot_cfg(), **{"num_envs": 4, "execution": "eager", "seed": seed, **changes})


def play(env, steps=6):
    """Return the observations of a few steps, one tensor."""
    return torch.stack([env.step(torch.full((4, 1), 0.1))[0]["actor"].clone() for _ in range(steps)])


def test_public_names_are_the_modules_own_and_load_nothing_early():
    assert tickgraph.Env is Env and tickgraph.VectorEnvAdapter is VectorEnvAdapter
    assert tickgraph.RslRlVecEnv is RslRlVecEnv and tickgraph.TickgraphError is TickgraphError
    assert tickgraph.load_task("cartpole_swingup").name == "cartpole_swingup"
    assert set(tickgraph.__all__) <= set(dir(tickgraph))
    with pytest.raises(AttributeError, match="no attribute 'Enw'"):
        _ = tickgraph.Enw
    code = "import sys, tickgraph; tickgraph.load_task, tickgraph.TickgraphError; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_seed_begins_at_tick_0_and_no_seed_goes_on():
    env = make()
    built = env.obs["actor"].clone()
    assert int(env.rng.tick) == 0
    first = play(env)
    obs, _ = env.reset()
    assert int(env.rng.tick) == 7  # six steps and a reset
    assert env.seed == 7 and not torch.equal(obs["actor"], built)
    second = play(env)
    assert not torch.equal(first, second)
    again, _ = env.reset(seed=7)
    assert int(env.rng.tick) == 0 and torch.equal(again["actor"], built)
    assert torch.equal(play(env), first)
    env.reset()
    assert torch.equal(play(env), second)  # the words go on in the same way, so a whole run repeats
    other, _ = env.reset(seed=8)
    assert env.seed == 8 and torch.equal(other["actor"], make(8).obs["actor"])


def test_two_resets_in_a_row_differ():
    env = make()
    starts = [env.reset()[0]["actor"].clone() for _ in range(3)]
    assert not torch.equal(starts[0], starts[1]) and not torch.equal(starts[1], starts[2])


def test_the_gymnasium_adapter_resets_alike():
    adapter = VectorEnvAdapter(make())
    built, _ = adapter.reset(seed=7)
    assert np.array_equal(built, make().obs["actor"].numpy())
    assert not np.array_equal(adapter.reset()[0], built)
    assert np.array_equal(adapter.reset(seed=np.int64(7))[0], built)


def test_the_rsl_rl_adapter_resets_alike():
    pytest.importorskip("tensordict")
    vec = RslRlVecEnv(make())
    built = make().obs["actor"]
    assert torch.equal(vec.get_observations()["actor"], built)  # wrapping plays nothing and resets nothing
    assert int(vec.unwrapped.rng.tick) == 0
    obs, _ = vec.reset()
    assert not torch.equal(obs["actor"], built)
    assert torch.equal(vec.reset(seed=7)[0]["actor"], built)


def test_boundary_is_published_with_the_rest():
    env = Env(Slider(v=(1.0, 0.5), limit=(3, 4)).cfg(), num_envs=4, execution="eager")
    for _ in range(8):
        _, _, terminated, truncated, extras = env.step(torch.zeros(4, 1))
        assert torch.equal(extras["boundary"], terminated | truncated)
    assert extras["boundary"].data_ptr() != env.restarted.data_ptr()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Task(foot_cfg()), r"given a Task, .* write Env\(task\.env, \.\.\.\)"),
        ("go2_walk_flat", r"write Env\(load_task\('go2_walk_flat'\)\.env, \.\.\.\)"),
        (foot_cfg, "the function foot_cfg, expected an EnvCfg"),
        (Slider, "the class Slider, expected an EnvCfg"),
        ({}, "an object of type dict, expected an EnvCfg"),
        (None, "an object of type NoneType, expected an EnvCfg"),
    ],
)
def test_what_is_no_configuration_is_refused(given, text):
    with pytest.raises(TickgraphError, match=text) as caught:
        Env(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"seed": "x"}, f"seed is 'x', {SEED_TEXT}"),
        ({"seed": -1}, f"seed is -1, {SEED_TEXT}"),
        ({"seed": 1 << 64}, f"seed is {1 << 64}, {SEED_TEXT}"),
        ({"seed": 1.5}, f"seed is 1.5, {SEED_TEXT}"),
        ({"seed": None}, f"seed is None, {SEED_TEXT}"),
        ({"num_envs": 4.0}, "num_envs is 4.0, expected a whole number of at least 1"),
        ({"num_envs": "4"}, "num_envs is '4', expected a whole number of at least 1"),
        ({"threads": 0}, "threads is 0, expected a whole number of threads from 1 to 1024"),
        ({"threads": 2.5}, "threads is 2.5, expected a whole number of threads from 1 to 1024"),
        ({"threads": "2"}, "threads is '2', expected a whole number of threads from 1 to 1024"),
        ({"device": "gpu"}, "device 'gpu' is unknown; use cpu, cuda or cuda:N"),
        ({"device": "mps"}, "device 'mps' is unknown; use cpu, cuda or cuda:N"),
        ({"device": "auto"}, "device 'auto' is unknown; use cpu, cuda or cuda:N"),
        ({"device": 3}, "device 3 is unknown; use cpu, cuda or cuda:N"),
        ({"device": None}, "device None is unknown; use cpu, cuda or cuda:N"),
        ({"execution": "fast"}, "execution 'fast' is unknown; use one of auto, eager, compile, graph"),
        ({"backend": "mujocco"}, "backend 'mujocco' is unknown; did you mean 'mujoco'"),
    ],
)
def test_other_arguments_are_refused_in_one_line(changes, text):
    with pytest.raises(TickgraphError, match=text) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_numpys_whole_numbers_are_whole_numbers():
    env = make(seed=np.uint64(2**64 - 1), num_envs=np.int32(4), threads=np.int64(1))
    assert (type(env.num_envs), env.num_envs, env.seed) == (int, 4, 2**64 - 1)
    assert torch.equal(env.obs["actor"], make(seed=2**64 - 1).obs["actor"])
    with pytest.raises(TickgraphError, match=f"seed is -1, {SEED_TEXT}"):
        env.reset(seed=-1)


def test_it_closes_behind_a_with_block_and_says_so_afterwards():
    with make() as env:
        play(env, 1)
    for call in (env.reset, env.tick, env.state_dict, lambda: env.step(torch.zeros(4, 1))):
        with pytest.raises(TickgraphError, match="closed; build another"):
            call()
    env.close()  # twice is fine


def test_it_is_neither_copied_nor_pickled():
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TickgraphError, match="build it there"):
            copier(make())


forks = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")


def in_a_fork(work):
    """Run work() in a forked process; returns its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # what waits for threads that were not copied waits for ever
        try:
            work()
        except SystemExit:
            raise
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_and_does_not_hang():
    env = make()
    play(env, 2)

    def use():
        calls = (lambda: env.step(torch.zeros(4, 1)), env.tick, env.reset, lambda: env.load_state_dict({}))
        for call in calls:
            with pytest.raises(TickgraphError, match=f"built in process {os.getppid()} and cannot be used in a forked"):
                call()

    def build():
        torch.set_num_threads(1)
        play(make(), 2)

    assert in_a_fork(use) == 0
    assert in_a_fork(env.close) == 0
    assert in_a_fork(build) == 0
    play(env, 2)  # the parent's goes on


@forks
def test_a_forked_process_may_end_with_an_environment_of_its_parent():
    code = (
        "import os, signal, sys; from toys import foot_cfg; from tickgraph import Env\n"
        "env = Env(foot_cfg(), num_envs=4, execution='eager')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(60)\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=120)


def spawned(queue):
    queue.put(float(play(make(), 2).sum()))


def test_a_spawned_process_builds_its_own():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=spawned, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == float(play(make(), 2).sum())
    process.join()


def test_actions_that_are_no_numbers_are_refused_in_one_line():
    env = make()
    n, columns = env.action.shape
    zeros = torch.zeros(n, columns)
    for given, text in (
        (zeros.to("meta"), r"a tensor of shapes alone \(meta\)"),
        (zeros.to_sparse(), "a sparse tensor"),
        (zeros.to(torch.complex64), "a tensor of torch.complex64"),
    ):
        with pytest.raises(TickgraphError, match=f"^action is {text}.*, expected a dense tensor of real numbers$"):
            env.step(given)
        with pytest.raises(TickgraphError, match="expected a dense tensor"):
            VectorEnvAdapter(env).step(given)
    for given in ("a", None, [[1.0], [1.0, 2.0]], np.array([[None]] * n), {"a": 1}):
        with pytest.raises(TickgraphError, match=r"^actions are .*, expected numbers of shape"):
            VectorEnvAdapter(env).step(given)
    VectorEnvAdapter(env).step(np.zeros((n, columns)).tolist())


@pytest.mark.parametrize("state", [None, [], {"arena/env/reward": 1.0}])
def test_a_state_that_is_none_is_refused_in_one_line(state):
    with pytest.raises(TickgraphError, match=r"^the state is .*, expected tensors by name, as state_dict\(\) returns"):
        make().load_state_dict(state)


def test_a_task_is_named_by_text_or_a_path(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tickgraph import load_task\ndef make():\n    return load_task('cartpole_swingup')\n")
    assert tickgraph.load_task(tmp_path / "mine.py:make").reference == f"{file}:make"
    for given, text in ((None, "a NoneType, expected its name or"), (file, "lacks its factory; give it as")):
        with pytest.raises(TickgraphError, match=text):
            tickgraph.load_task(given)
