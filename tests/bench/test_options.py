"""Options that benchmarks share: a result that cannot be kept is refused before anything is measured."""

import pytest

from tickgraph.bench import collector, learner, train, verify_learner
from tickgraph.bench._measure_gpu import check_arms
from tickgraph.bench._options import counts, names, sizes
from tickgraph.cli import main as cli
from tickgraph.core.errors import TickgraphError


@pytest.mark.parametrize("main", [collector.main, learner.main, train.main, verify_learner.main])
@pytest.mark.parametrize(
    ("path", "reason"),
    [("", "it is a folder"), ("/none/x.json", "there is no folder"), ("/dev/fd/77", "Bad file descriptor")],
)
def test_a_result_that_cannot_be_written_is_refused_at_once(main, path, reason, tmp_path):
    with pytest.raises(TickgraphError, match=reason) as error:
        main(["cartpole_swingup", "--json", path if path.startswith("/dev") else f"{tmp_path}{path}"])
    assert "\n" not in str(error.value) and "argument --json: could not write" in str(error.value)


@pytest.mark.parametrize("main", [collector.main, learner.main, train.main])
@pytest.mark.parametrize(
    ("path", "reason"), [("x.gif", r"ends in \.png, \.svg, \.pdf"), ("none/x.png", "there is no folder")]
)
def test_a_picture_that_cannot_be_drawn_is_refused_at_once(main, path, reason, tmp_path):
    with pytest.raises(TickgraphError, match=reason):
        main(["cartpole_swingup", "--plot", str(tmp_path / path)])
    assert not list(tmp_path.iterdir())


def test_a_case_or_a_name_that_is_given_twice_is_taken_once():
    assert sizes("--updates", "8,2, 8,2") == (8, 2)
    assert names("eager, compile,eager") == ("eager", "compile")
    assert counts("--gpus", "0,0", least=0) == (0, 0)  # two places on one


def test_one_precision_is_one_line():
    with pytest.raises(TickgraphError, match="--precision has 'fp32,tf32,bf16'; give one of fp32, tf32, bf16"):
        learner.main(["cartpole_swingup", "--device", "cpu", "--precision", "fp32,tf32,bf16"])


def test_a_command_asks_before_it_works(tmp_path, capsys):
    runs = tmp_path / "runs"
    words = ["train", "cartpole_swingup", "--runs", str(runs), "--json", str(tmp_path / "none" / "x.json")]
    assert cli(words) == 2
    assert "could not write" in capsys.readouterr().err and not runs.exists()


def test_a_batch_size_is_kept_beside_small_networks(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(verify_learner, "verify", lambda case, say, keep: seen.append(case.spec.algo) or [])
    assert cli(["verify", "learner", "cartpole_swingup", "--batch-size", "24"]) == 0
    assert cli(["verify", "learner", "cartpole_swingup"]) == 0
    assert [(cfg.batch_size, cfg.actor_width) for cfg in seen] == [(24, 8), (64, 8)]


def test_an_arm_by_a_wrong_name_has_the_nearby_one():
    with pytest.raises(TickgraphError, match="did you mean 'eager'"):
        train.main(["cartpole_swingup", "--arms", "egaer"])
    with pytest.raises(TickgraphError, match="did you mean 'physics'"):
        check_arms(("graph", "physic"))


def test_what_a_case_sets_is_judged_like_any_setting():
    words = "cartpole_swingup --arms eager --num-envs 8 --batch-size 1".split()
    with pytest.raises(TickgraphError, match="FlashSacCfg.batch_size is 1; it must be at least 2"):
        train.main(words)


@pytest.mark.parametrize(
    ("main", "option", "value", "text"),
    [
        (collector.main, "--torch-threads", "1000000", "expected a whole number of at most 1024"),
        (collector.main, "--physics-threads", "3000", "expected a whole number of at most 1024"),
        (collector.main, "--torch-threads", "0", "expected a whole number of at least 1"),
        (collector.main, "--memory-ticks", "5", "expected a whole number of at least 101"),
        (collector.main, "--memory-ticks", "1000001", "expected a whole number of at most 1000000"),
        (collector.main, "--blocks", "10001", "expected a whole number of at most 10000"),
        (collector.main, "--ticks-per-block", "9" * 9000, "--ticks-per-block is a str, expected a whole number of at"),
        (collector.main, "--num-envs", "8,4294967297", "'4294967297', expected a whole number of at most 4294967296"),
        (learner.main, "--cycles", "1000001", "expected a whole number of at most 1000000"),
        (learner.main, "--blocks", "10001", "expected a whole number of at most 10000"),
        (train.main, "--learning-starts", "1000001", "expected a whole number of at most 1000000"),
        (train.main, "--iterations", "1000001", "expected a whole number of at most 1000000"),
        (verify_learner.main, "--replays", "1000001", "expected a whole number of at most 1000000"),
    ],
)
def test_numbers_of_options_are_held_to_bounds(main, option, value, text):
    with pytest.raises(TickgraphError, match=text) as caught:
        main(["cartpole_swingup", "--device", "cpu", option, value])
    assert option in str(caught.value) and len(str(caught.value)) < 120


def test_timed_ticks_of_a_profile_are_held_to_a_bound(capsys):
    assert cli(["profile", "cartpole_swingup", "--ticks", "1000001"]) == 2
    assert "--ticks is 1000001, expected a whole number of at most 1000000" in capsys.readouterr().err
