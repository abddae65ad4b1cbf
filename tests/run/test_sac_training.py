"""Whole runs of a tiny cart-pole with SAC: what they record, exact resume, evaluation, choosing an algorithm."""

from pathlib import Path

import pytest
import yaml

from tickgraph import cli
from tickgraph.run import checkpoint, manifest
from tickgraph.run.folder import RunFolder

TINY = (
    "--device cpu --num-envs 4 --execution eager --no-video --train.replay-slots 64 --train.learning-starts 5 "
    "--train.log-interval 1 --train.checkpoint-interval 5 --train.algo.batch-size 16 --train.algo.actor-width 8 "
    "--train.algo.critic-width 8 --env.episode-length-s 0.2 --evaluation.episodes 2 --iterations 14"
).split()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(name: str, *words: str) -> RunFolder:
    assert cli.main(["train", "cartpole_swingup", "--algo", "sac", "--run-name", name, *TINY, *words]) == 0
    return RunFolder(next(Path("runs").glob(f"*/{name}")))


def test_a_resumed_run_ends_with_the_same_bytes_and_is_judged_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    whole = train("whole")
    parts = train("parts", "--stop-after", "8", "--train.compile-scope", "loss")
    assert cli.main(["train", "--resume", str(parts.path), "--algo", "flashsac"]) == 2
    assert "is a run of sac, not of flashsac" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(parts.path), "--algo", "sac"]) == 0
    states = []
    for run in (whole, parts):
        found, problems = checkpoint.load_newest(run, "cartpole_swingup")
        assert found is not None
        assert not problems
        states.append(found.state)
    for part, tensors in states[0].items():
        assert tensors.keys() == states[1][part].keys()
        for name, value in tensors.items():
            assert value.numpy().tobytes() == states[1][part][name].numpy().tobytes(), name
    learn = states[0]["learn"]
    assert {"policy/observed", "learner/obs/critic/count", "learner/actor_adam/moment2"} <= set(learn)
    assert learn["learner/obs/critic/count"].item() == 14 * 4
    assert (learn["policy/observed"] == learn["learner/obs/actor/published"]).all()
    assert learn["learner/updates"].item() == 4 * (14 - 5)

    facts, config = manifest.read_manifest(parts), yaml.safe_load(parts.config.read_text())
    assert facts["algo"] == config["algo"] == "sac"
    assert config["train"]["algo"]["weight_decay"] == 1e-3
    assert facts["programs"]["update/critic_loss"]["compile_scope"] == "loss"
    judged = manifest.read_summary(whole)["evaluation"]
    assert judged == manifest.read_summary(parts)["evaluation"]
    assert judged["trained"] != judged["untrained"]
    capsys.readouterr()
    assert cli.main(["eval", str(whole.path), "--json", "eval.json"]) == 0
    assert yaml.safe_load(Path("eval.json").read_text())["evaluation"] == judged["trained"]


def test_an_algorithm_is_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "cartpole_swingup", "--algo", "flashsak"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["tickgraph: there is no algorithm 'flashsak'; did you mean 'flashsac'?"]
    assert not list(Path().rglob("config.yaml")), "nothing was begun"
    words = ["train", "cartpole_swingup", "--algo", "sac", "--train.algo.sigma-target", "0.1"]
    assert cli.main(words) == 2
    assert "train.algo has no 'sigma_target'; it has gamma" in capsys.readouterr().err
    assert cli.main(["describe", "cartpole_swingup", "--algo", "sac"]) == 0
    shown = capsys.readouterr().out
    assert "algorithm: sac (--algo: sac, flashsac)" in shown and "policy/observed" in shown
    assert cli.main(["train", "cartpole_swingup", "--algo", "sac", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--train.algo.weight-decay" in shown and "--train.algo.sigma-target" not in shown
    assert cli.main(["list"]) == 0
    assert "flashsac, sac" in capsys.readouterr().out
    assert cli.main(["check", "cartpole_swingup", "--algo", "sac"]) == 0


def test_a_checkpoint_of_another_algorithm_is_refused_by_names(capsys: pytest.CaptureFixture[str]) -> None:
    run, other = train("sac", "--stop-after", "1"), train("other", "--algo", "flashsac", "--stop-after", "1")
    for file in checkpoint.files(run):
        file.unlink()
    found = checkpoint.files(other)[-1]
    found.rename(run.path / "checkpoints" / found.name)
    assert cli.main(["train", "--resume", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert "does not fit the run's configuration: the snapshot lacks learner/obs/actor/mean" in error
    assert error.count("\n") == 1
