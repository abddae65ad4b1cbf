"""The command line: what a newcomer reads, and one line with exit code 2 for each mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tickgraph import cli

TOY = """
from tickgraph import mdp
from tickgraph.env.config import EnvCfg, ObservationGroupCfg, ObservationTermCfg, RewardTermCfg
from tickgraph.robots.cartpole import cartpole_robot
from tickgraph.sim.scene import SceneCfg

def reads_the_host(env):
    return env.reward * env.reward.sum().item()

def make_env():
    groups = {name: ObservationGroupCfg({"q": ObservationTermCfg(mdp.joint_pos)}) for name in ("actor", "critic")}
    return EnvCfg(
        scene=SceneCfg(entities={"robot": cartpole_robot()}, terrain=None),
        observations=groups,
        actions={"force": mdp.JointEffortActionCfg(actuator_names=".*")},
        rewards={"bad": RewardTermCfg(reads_the_host)},
    )
"""


def run(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tickgraph", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line on stderr of a call that ends with exit code 2."""
    assert cli.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    for name in (*cli.COMMANDS, "bench"):
        assert f"\n  {name} " in shown


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself_without_loading_torch(name: str) -> None:
    code = (
        "import sys; from tickgraph.cli import main\n"
        "assert main(sys.argv[1:]) == 0; assert not {'torch', 'mujoco', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, name, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: tickgraph {name}")


def test_list_loads_neither_torch_nor_mujoco(tmp_path: Path) -> None:
    code = (
        "import sys; from tickgraph.cli import main\n"
        "assert main(sys.argv[1:]) == 0; assert not {'torch', 'mujoco', 'numpy'} & set(sys.modules)"
    )
    words = ("list", "--json", str(tmp_path / "tasks.json"))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "go2_walk_flat" in done.stdout
    result = json.loads((tmp_path / "tasks.json").read_text())
    assert {"machine", "versions", "commit", "dirty", "tasks"} <= set(result)
    assert "cartpole_swingup" in [task["name"] for task in result["tasks"]]


def test_help_for_a_task_lists_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "cartpole_swingup", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--env.rewards.upright.weight" in shown
    assert "--train.algo.gamma" in shown
    lines = {line.split()[0]: line for line in shown.splitlines() if line.startswith("  --")}
    assert lines["--train.device"].endswith(" one of auto, cpu, cuda, cuda:N [auto]")
    assert lines["--train.execution"].endswith(" one of auto, eager, compile, graph [auto]")
    assert not [line for name, line in lines.items() if name.startswith("--train.") and " text [" in line]
    assert lines["--env.scene.entities.robot.model"].endswith(" text [tickgraph.robots.cartpole:cartpole_spec]")
    assert " at 0x" not in shown


@pytest.mark.parametrize("command", ["describe", "check", "train", "eval", "play", "profile"])
def test_the_help_of_a_command_that_takes_values_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert "Any value of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("trian", "no command 'trian'; did you mean 'train'"),
        ("list --jsn f", "no option --jsn; did you mean --json?"),
        ("list extra", "'extra' stands where an option was expected"),
        ("describe", "needs TASK"),
        ("describe cartpole_swingp", "did you mean 'cartpole_swingup'"),
        ("check nothing.py:make", "no task file"),
        ("train", "needs TASK, or --resume RUN"),
        ("train cartpole_swingup --seed", "--seed takes one value, N; given: nothing"),
        ("train cartpole_swingup --sead 3", "no option --sead; did you mean --seed?"),
        ("train cartpole_swingup --num_env 3", "no option --num_env; did you mean --num-envs?"),
        ("train cartpole_swingup --num_envs=0", "num_envs is 0, expected a whole number of at least 1"),
        ("train cartpole_swingup --max_iterations 5", "did you mean --iterations?"),
        ("train --task cartpole_swingup", "TASK stands without an option: `tickgraph train TASK`"),
        ("play --task x", "RUN stands without an option: `tickgraph play RUN`"),
        ("train cartpole_swingup --headless", "no command opens a window; leave it out"),
        ("train cartpole_swingup --load_run x", "a run goes on by --resume RUN, from its newest checkpoint"),
        ("train cartpole_swingup --checkpoint x", "a run goes on by --resume RUN, from its newest checkpoint"),
        ("eval --load_run x", "RUN stands without an option: `tickgraph eval RUN`"),
        ("eval --checkpoint=x.pt", "its newest whole checkpoint is used: `tickgraph eval RUN`"),
        ("train cartpole_swingup --video", "a film is made at the end, unless --no-video"),
        ("eval a --num_envs 4", "no option --num_envs; did you mean --episodes?"),
        ("play a --num_envs 4", "no option --num_envs; did you mean --worlds?"),
        ("play a --video_length 200", "no option --video_length; did you mean --seconds?"),
        (
            "train --seed 3 cartpole_swingup",
            "given: 3 cartpole_swingup; TASK stands first: `tickgraph train cartpole_s",
        ),
        ("play --video a.mp4 runs/a", "given: a.mp4 runs/a; RUN stands first: `tickgraph play runs/a ...`"),
        ("train --no-video cartpole_swingup", "takes no value; given: cartpole_swingup; TASK stands first"),
        ("doctor --headless", "see `tickgraph doctor --help`"),
        ("train cartpole_swingup env.rewards.upright.weight=2", "did you mean --env.rewards.upright.weight=2?"),
        ("train cartpole_swingup --rewards.upright.weight 2", "did you mean --env.rewards.upright.weight?"),
        ("bench train cartpole_swingup --num_envs 0", "--num-envs is '0', expected a whole number of at least 1"),
        ("train cartpole_swingup --seed x", "train.seed is 'x', expected a whole number"),
        ("train cartpole_swingup --num-envs 0", "num_envs is 0, expected a whole number of at least 1"),
        ("train cartpole_swingup --num-envs -4", "num_envs is -4"),
        ("train cartpole_swingup --num-envs 1000000000000", "num_envs is 1000000000000, expected at most 4294967296"),
        ("train cartpole_swingup --evaluation.episodes 9999999999", "episodes is 9999999999, expected at most"),
        ("train cartpole_swingup --env.rewards.upright.weight heavy", "weight is 'heavy', expected a number"),
        ("train cartpole_swingup --env.rewards.uprigt.weight 1", "did you mean 'upright'"),
        ("train cartpole_swingup --stop-after 0", "--stop-after is 0"),
        ("train cartpole_swingup --run-name a/b", "path separator"),
        ("train cartpole_swingup --run-name ../out", "path separator"),
        ("train cartpole_swingup --run-name -x", "begins with '-'"),
        ("train cartpole_swingup --run-name=", "is empty"),
        (f"train cartpole_swingup --run-name {'x' * 300}", "300 bytes"),
        ("train --resume absent", "no run 'absent'"),
        ("eval absent", "no run 'absent'"),
        ("eval", "needs RUN"),
        ("play absent", "needs --video FILE"),
        ("play absent --video absent/a.mp4", "could not write absent/a.mp4: there is no folder absent; make it"),
        ("play absent --runs=", "--runs is empty, expected FOLDER"),
        ("bench colector", "no benchmark 'colector'; did you mean 'collector'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: str, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refused(capsys, *words.split())
    assert not list(tmp_path.iterdir())  # a mistake leaves nothing behind


def test_a_task_file_that_does_not_import_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("\nimport absent_package\n")
    line = refused(capsys, "train", "bad.py:make")
    assert "bad.py:2: ModuleNotFoundError: No module named 'absent_package'" in line
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["bad.py"]


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["describe", "absent", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("tickgraph: there is no task 'absent'")


def test_check_names_a_term_that_is_not_static(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "toy.py"
    file.write_text(TOY)
    target = tmp_path / "check.json"
    assert cli.main(["check", f"{file}:make_env", "--json", str(target)]) == 2
    assert "rewards/bad" in capsys.readouterr().out
    (blocker,) = json.loads(target.read_text())["blockers"]
    assert (blocker["manager"], blocker["term"], blocker["line"]) == ("rewards", "bad", 8)
    assert blocker["file"].endswith("toy.py")


@pytest.mark.parametrize("group", ["actor", "critic"])
@pytest.mark.parametrize("command", ["check", "describe", "train", "profile", "bench collector", "verify learner"])
def test_a_group_that_a_learner_reads_is_missed_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "toy.py"
    file.write_text(TOY.replace('("actor", "critic")', '("actor", "critic", "other")').replace(f'"{group}", ', ""))
    assert cli.main([*command.split(), f"{file}:make_env"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"tickgraph: the task has no observation group {group!r}") and "EnvCfg" in line
    assert not list(tmp_path.glob("runs/*/*"))


def test_check_passes_a_shipped_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "cartpole_swingup"]) == 0
    assert "no blockers" in capsys.readouterr().out


def test_describe_shows_spaces_terms_and_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "task.json"
    assert cli.main(["describe", "cartpole_swingup", "--num-envs", "8", "--json", str(target)]) == 0
    shown = capsys.readouterr().out
    assert "8 worlds, control step 0.02 s" in shown
    assert "env/episode_length" in shown
    value = json.loads(target.read_text())
    lengths = next(row for row in value["arena"] if row["name"] == "env/episode_length")
    assert lengths["bytes"] == 8 * 8
    assert value["arena_bytes"] == sum(row["bytes"] for row in value["arena"])


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_names_in_any_script_print_under_any_locale(tmp_path: Path, locale: str) -> None:
    folder = tmp_path / "ma thèse" / "机器人 走路"
    folder.mkdir(parents=True)
    (folder / "tâche.py").write_text(TOY, encoding="utf-8")
    done = run("check", "tâche.py:make_env", cwd=folder, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "che.py" in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m tickgraph train cartpole_swingup --help | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_doctor_says_what_each_finding_means(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--json", str(target)]) == 0
    shown = capsys.readouterr().out
    for what in ("processors", "physics", "torch", "byte code", "compiling on the CPU", "GPU", "rendering"):
        assert what in shown
    assert all(finding["means"] for finding in json.loads(target.read_text())["findings"])


def test_options_that_contradict_each_other_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "cartpole_swingup"], ["bench", "train", "cartpole_swingup"]):
        assert cli.main([*words, "--overlap", "--no-overlap"]) == 2
        line = capsys.readouterr().err.strip()
        assert "--overlap" in line and "--no-overlap" in line and "\n" not in line
    for words in (["verify", "learner"], ["bench", "learner"]):
        assert cli.main([*words, "--batch-size", "1"]) == 2
        assert "--batch-size is '1', expected a whole number of at least" in capsys.readouterr().err


def test_the_help_of_benchmarks_calls_values_as_the_rest_does(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for words in ("bench collector", "bench train", "bench learner", "verify learner"):
        with pytest.raises(SystemExit):
            cli.main([*words.split(), "--help"])
        shown += capsys.readouterr().out
    assert "--seed N " in shown and "--device NAME " in shown and "--arms NAMES " in shown
    assert " X " not in shown


def test_check_says_nothing_of_what_terms_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "from tickgraph import load_task\n"
        "from tickgraph.env.config import ObservationTermCfg, RewardTermCfg\n"
        "def says(env):\n    print('heard')\n    return env.reward\n"
        "def stops(env):\n    breakpoint()\n    return env.reward[:, None]\n"
        "def make():\n    task = load_task('cartpole_swingup')\n"
        "    task.env.rewards['says'] = RewardTermCfg(says)\n"
        "    task.env.observations['critic'].terms['stops'] = ObservationTermCfg(stops)\n    return task\n"
        "def lacks():\n    task = make()\n    del task.env.observations['critic']\n    return task\n"
    )
    assert cli.main(["check", f"{file}:make"]) == 2
    said = capfd.readouterr()
    assert said.err == "" and "heard" not in said.out and "Pdb" not in said.out
    assert f"observations/critic/stops ({file}:7): calls breakpoint(), which waits for a person" in said.out
    assert f"rewards/says ({file}:4): calls print(); remove it" in said.out
    assert cli.main(["check", f"{file}:lacks"]) == 2
    said = capfd.readouterr()
    assert said.out == "" and "critic" in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "describe nope",
        "profile nope",
        "profile nope --ticks x",
        "bench collector nope --num-envs 8",
        "bench train nope",
        "bench learner nope",
        "bench report nope.json",
        "verify learner nope",
        "train cartpole_swingup --algo nope",
        "describe cartpole_swingup --algo nope",
    ],
)
def test_a_bad_word_is_told_before_anything_is_loaded(words: str, tmp_path: Path) -> None:
    code = (
        "import sys; from tickgraph.cli import main\n"
        "print(main(sys.argv[1:]), [m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "2 []", done.stderr
    assert any(word in done.stderr for word in ("'nope'", "'nope.json'", "--ticks")) and done.stderr.count("\n") == 1
