"""What a run says of terms that cannot be compiled or that keep state of their own: warnings, manifest, resuming."""

import random as python_random
from pathlib import Path

import numpy as np
import pytest
import torch
from test_training import TINY

from tickgraph import cli
from tickgraph.env.config import RewardTermCfg
from tickgraph.env.env import Env
from tickgraph.run import judged, manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.judged import SHOWN, built_alike, held
from tickgraph.tasks.cartpole import cartpole_swingup

NAMES = [f"counts{i}" for i in range(SHOWN + 2)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Keeps:
    def __init__(self, cfg, env, path):
        self.b = torch.zeros(env.num_envs, device=env.device)

    def __call__(self, env):
        self.b.add_(1.0)  # keeps
        return self.b


class Counts:
    def __init__(self, cfg, env, path):
        self.k = 0

    def __call__(self, env):
        self.k += 1
        return env.reward


class Network:
    def __init__(self, cfg, env, path):
        self.net = torch.nn.Linear(2, 1).requires_grad_(False).to(env.device)

    def __call__(self, env):
        return self.net(env.scene["robot"].data.joint_pos)[:, 0]


def draws(env):
    return torch.rand_like(env.reward)


def reads_a_mean(env):
    return env.reward + env.reward.mean().item()


def prints(env):
    print(end="")
    return env.reward


def task(**rewards):
    made = cartpole_swingup()
    made.env.rewards |= {name: RewardTermCfg(func) for name, func in rewards.items()}
    return made


def keeps():
    return task(keeps=Keeps)


def random():
    return task(draws=draws)


def host_read():
    return task(mean=reads_a_mean)


def printing():
    return task(prints=prints)


def network():
    return task(network=Network)


def many():
    return task(**dict.fromkeys(NAMES, Counts))


def facts_of(name: str, *words: str) -> dict:
    file = Path(__file__).resolve()
    command = ["train", f"{file}:{name}", "--run-name", name, *TINY, "--iterations", "2", *words]
    assert cli.main(command) == 0
    return manifest.read_manifest(RunFolder(next(Path("runs").glob(f"*/{name}"))))


def test_mode_eager_tells_once_what_it_does_not_mind(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of("keeps")
    warned = [line for line in capsys.readouterr().err.splitlines() if "rewards/keeps" in line]
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("  # keeps"))
    file = Path(__file__).resolve()
    assert warned[0].startswith(f"warning: mode eager runs it, but rewards/keeps ({file}:{line}): writes self.b, ")
    assert warned[1] == (
        "warning: no checkpoint holds all that rewards/keeps keeps: a run that is resumed does not repeat this one"
    )
    assert len(warned) == 2
    assert facts["exact_resume"] is False
    [blocker] = facts["blockers"]
    assert (blocker["term"], blocker["line"], blocker["kind"]) == ("keeps", line, "host state")


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("random", False),
        ("host_read", "not known: what a term does behind its first blocker is not judged"),
        ("printing", "not known: what a term does behind its first blocker is not judged"),
        ("network", True),
    ],
)
def test_the_manifest_says_exact_only_where_it_is(name: str, exact: object) -> None:
    facts = facts_of(name)
    assert facts["exact_resume"] == exact
    assert len(facts["blockers"]) == (exact is not True)


def test_where_auto_falls_back_the_manifest_says_so_too(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    facts = facts_of("keeps", "--execution", "auto")
    assert "execution falls back from compile to eager: term not static: rewards/keeps" in caplog.text
    err = capsys.readouterr().err
    assert "no checkpoint holds all that rewards/keeps keep" in err and "mode eager runs it" not in err
    assert facts["exact_resume"] is False and len(facts["blockers"]) == 1


def test_mode_eager_runs_what_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def blockers(self: Env, host_state_too: bool = True) -> list:
        raise RuntimeError("only with its own number of worlds")

    monkeypatch.setattr(Env, "blockers", blockers)
    facts = facts_of("network")
    assert facts["exact_resume"] == "not known: the terms cannot be judged" and facts["blockers"] is None


def test_many_blockers_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of("many")
    err = capsys.readouterr().err
    assert err.count("mode eager runs it") == SHOWN and "and 2 more blockers: see `tickgraph check`" in err
    assert len(facts["blockers"]) == SHOWN + 2


class Drawn:
    """Draws its weights anew in every process."""

    def __init__(self, cfg, env, path):
        self.w = env.arena.constant(f"{path}/w", np.random.default_rng().normal(size=2), torch.float32)
        self.per_world = torch.full((env.num_envs,), 1.0 / env.num_envs)

    def __call__(self, env):
        return (env.scene["robot"].data.joint_pos * self.w).sum(1)


def drawn():
    return task(style=Drawn)


class Draws:
    """Keeps what a function draws."""

    def __init__(self, cfg, env, path):
        self.kept = self.draw()

    def __call__(self, env):
        return env.reward


class UnseededArray(Draws):
    def draw(self):
        return np.random.default_rng().normal(size=3)


class UnseededTensor(Draws):
    def draw(self):
        generator = torch.Generator()
        generator.seed()
        return torch.rand(3, generator=generator)


class UnseededNumber(Draws):
    def draw(self):
        return python_random.SystemRandom().random()


class SeededArray(Draws):
    def draw(self):
        return np.random.default_rng(7).normal(size=3)


class GlobalNumber(Draws):
    def draw(self):
        return python_random.random()


class NeedsAllWorlds(UnseededArray):
    def __init__(self, cfg, env, path):
        super().__init__(cfg, env, path)
        assert env.num_envs > 4


@pytest.mark.parametrize(
    ("kind", "alike"),
    [
        (UnseededArray, False),
        (UnseededTensor, False),
        (UnseededNumber, False),
        (SeededArray, True),
        (GlobalNumber, True),
        (Network, True),
        (NeedsAllWorlds, True),
    ],
)
def test_what_terms_draw_without_a_seed_is_known_when_a_run_begins(kind, alike, capsys):
    made = task(style=kind)
    with Env(made.env, 8, execution="eager") as env:
        before = env.state_dict()
        assert built_alike(env, held(env, made)) is alike
        assert all(torch.equal(before[name], value) for name, value in env.state_dict().items())
    told = "warning: rewards/style holds other numbers in self.kept each time it is built: what is resumed, "
    assert capsys.readouterr().err.startswith(told) is not alike


def test_where_authors_terms_hold_nothing_no_environment_is_built_for_it(monkeypatch):
    made = cartpole_swingup()
    with Env(made.env, 8, execution="eager") as env:
        now = held(env, made)
        monkeypatch.setattr(judged, "Env", lambda *given, **more: pytest.fail("was built"))
        assert built_alike(env, now)


def begin_and_resume(name, capsys, exact=True):
    common = ["--run-name", name, *TINY, "--iterations", "4"]
    assert cli.main(["train", f"{__file__}:{name}", *common, "--stop-after", "2"]) == 0
    run = RunFolder(next(Path("runs").glob(f"*/{name}")))
    assert manifest.read_manifest(run)["exact_resume"] is exact
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(run.path)]) == 0
    return run, capsys.readouterr().err


def test_numbers_that_a_term_draws_anew_are_told_when_the_run_goes_on_and_when_it_is_judged(capsys):
    run, said = begin_and_resume("drawn", capsys, exact=False)
    assert said.count("rewards/style holds other numbers in self.w than when the run began") == 1
    assert "what is resumed is another task" in said
    assert manifest.read_manifest(run)["exact_resume"] is False
    assert cli.main(["eval", str(run.path)]) == 0
    assert capsys.readouterr().err.count("what is judged is another task") == 1


def test_a_network_that_is_seeded_is_the_same_one(capsys):
    run, said = begin_and_resume("network", capsys)
    assert "other numbers" not in said
    assert manifest.read_manifest(run)["exact_resume"] is True
    assert cli.main(["eval", str(run.path)]) == 0
    assert "other numbers" not in capsys.readouterr().err
