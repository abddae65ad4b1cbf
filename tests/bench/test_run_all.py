"""The closing re-run: its steps are commands that exist, and a step that fails does not keep the next from running."""

import fcntl
import importlib.util
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tickgraph.core.errors import TickgraphError

FILE = Path(__file__).parents[2] / "benchmarks" / "run_all.py"


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("run_all", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_all", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_steps_cover_both_tasks_scenarios_algorithms_and_backends(run_all, capsys):
    names = [step.name for step in run_all.steps()]
    assert len(names) == len(set(names))
    assert run_all.main(["--list", "--only", "collector"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert sum(name.startswith("entry_") for name in names) == 4 * 2 * 2
    with pytest.raises(TickgraphError, match="no step begins with 'colector'"):
        run_all.main(["--only", "colector"])


def test_experiments_are_played_where_they_are_named(run_all, monkeypatch, capsys):
    monkeypatch.setattr(run_all.importlib.util, "find_spec", lambda name: None)
    every = [step.name for step in run_all.steps()]

    def listed(*words):
        assert run_all.main(["--list", *words]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if "--also" not in line]

    plain = [name for name in every if name not in ("train_bridged", "seeds")]
    assert len(plain) == len(every) - 2 and listed() == plain
    assert listed("--also", "seeds,train_bridged") == every
    assert listed("--also", "seeds") == [*plain, "seeds"]
    assert listed("--only", "seeds,learner") == ["learner_flashsac", "learner_sac", "seeds"]
    assert listed("--only", "profile", "--also", "seeds") == ["profile", "seeds"]
    assert "train_bridged" not in listed("--only", "train")  # named in full, or not meant
    assert listed("--also", "seeds", "--skip", "seeds") == plain
    run_all.main(["--list"])
    assert "with --also train_bridged" in capsys.readouterr().out
    for words, said in (
        (["--also", "learner"], "--also has 'learner', and the experiments here are: train_bridged, seeds"),
        (["--also", "peer_unilab"], "'peer_unilab', and the experiments here are: train_bridged, seeds"),
        (["--only", "seed"], "no step begins with 'seed', and no experiment is of this name"),
    ):
        with pytest.raises(TickgraphError, match=said):
            run_all.main(words)


def test_the_published_learner_is_an_experiment_where_it_is_installed(run_all, monkeypatch):
    monkeypatch.setattr(run_all.importlib.util, "find_spec", lambda name: name)
    assert [step.name for step in run_all.steps() if step.extra] == ["peer_unilab", "train_bridged", "seeds"]


def test_what_fails_or_takes_too_long_is_recorded_and_the_rest_goes_on(run_all, monkeypatch, tmp_path, capsys):
    step = run_all.Step
    endless = ("train", "cartpole_swingup", "--run-name", "long", "--device", "cpu")
    monkeypatch.setattr(
        run_all,
        "steps",
        lambda: [
            step("wrong", ("bench", "collector", "g1_walk"), None, 60),
            step("long", endless, None, 1, None),
            step("list", ("list",), None, 60),
            step("seeds", ("--seeds", "0"), None, 60, script="seeds.py"),
        ],
    )
    assert run_all.main(["--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "run_all.json").read_text())
    assert [facts["exit_code"] for facts in found.values()] == [2, None, 0, 2]
    assert "did you mean 'g1_walk_flat'" in (tmp_path / "wrong.log").read_text()
    assert any(task["name"] == "g1_walk_flat" for task in json.loads((tmp_path / "list.json").read_text())["tasks"])
    assert "--seeds is '0', expected a whole number of at least 1" in (tmp_path / "seeds.log").read_text()
    assert found["seeds"]["command"] == "python benchmarks/seeds.py --seeds 0"
    assert "stopped after 1 s" in capsys.readouterr().out
    assert all("gpu" not in facts and "commit" in facts for facts in found.values())


# Steps that are small scripts, with what they share at their top ---------------------------------------------------

TOP = """
import fcntl, json, os, subprocess, sys, time
from pathlib import Path


def wait_until(true):
    until = time.monotonic() + 60
    while not true():
        if time.monotonic() > until:
            sys.exit("waited in vain")
        time.sleep(0.02)


def ended():
    path = Path("run_all.json")
    return list(json.loads(path.read_text())) if path.exists() else []
"""
PLACE_FACTS = """
facts = {"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "processors": sorted(os.sched_getaffinity(0)), "ratios": []}
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(facts))
"""
# With a process outside of its process group, as seeds.py has them; both hold their locks while they live.
ENDLESS = """
def hold(name):
    held = open(f"{name}.lock", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    Path(f"{name}.begun").touch()
    time.sleep(120)


if sys.argv[1:2] == ["child"]:
    hold(sys.argv[2])
subprocess.Popen([sys.executable, __file__, "child", "NAME_child"], start_new_session=True)
hold("NAME")
"""


@pytest.fixture
def fake(run_all, monkeypatch, tmp_path):
    """Return a function that makes the steps of a folder, by name: a script, or a script and its words."""

    def make(**given):
        steps = []
        for name, value in given.items():
            body, words = value if isinstance(value, tuple) else (value, ("go",))
            (tmp_path / f"{name}.py").write_text(TOP + body.replace("NAME", name))
            result = "--json" if "--json" in body else None
            steps.append(run_all.Step(name, words, None, 60, result, str(tmp_path / f"{name}.py")))
        monkeypatch.setattr(run_all, "steps", lambda: steps)
        monkeypatch.setattr(run_all, "gpu_count", lambda: 8)
        return tmp_path / "out"

    return make


def test_two_gpus_play_two_steps_side_by_side_each_with_its_gpu_and_processors(run_all, fake, capsys):
    out = fake(
        first="Path('begun').touch()\nwait_until(lambda: 'third' in ended())" + PLACE_FACTS,
        second="wait_until(Path('begun').exists)" + PLACE_FACTS,
        third="assert ended() == ['second']" + PLACE_FACTS,
    )
    ours = os.sched_getaffinity(0)
    assert run_all.main(["--out", str(out), "--gpus", "3,5"]) == 0
    assert os.sched_getaffinity(0) == ours
    found = json.loads((out / "run_all.json").read_text())
    assert [(name, facts["gpu"]) for name, facts in found.items()] == [("first", 3), ("second", 5), ("third", 5)]
    seen = {name: json.loads((out / f"{name}.json").read_text()) for name in found}
    assert [facts["gpu"] for facts in seen.values()] == ["3", "5", "5"]
    shares = [set(facts["processors"]) for facts in seen.values()]
    assert shares[0] | shares[1] == ours and shares[1] == shares[2]
    assert len(ours) == 1 or not shares[0] & shares[1]
    ends = [line.split(":")[0].strip() for line in capsys.readouterr().out.splitlines() if "exit code 0" in line]
    assert ends == ["second", "third", "first"]


def test_steps_that_time_nothing_share_the_last_place_and_timed_ones_are_alone(run_all):
    steps = {name: run_all.Step(name, (), None, 60, timed=name[0] == "t") for name in ("u1", "t1", "u2", "t2", "u3")}
    first, last = places = [run_all.Place(0), run_all.Place(1)]

    def begun(*played):
        """Return the step that begins next in each place, after `played`: names and their places."""
        active = [run_all.Playing(steps[name], (), Path(), place, 60.0) for name, place in played]
        waiting = [step for name, step in steps.items() if name not in dict(played)]
        found = [run_all.next_step(place, waiting, active, places, together=2) for place in places]
        return [step and step.name for step in found]

    assert begun() == ["t1", "u1"]
    assert begun(("t1", first), ("u1", last)) == [None, "u2"]
    assert begun(("t1", first), ("u1", last), ("u2", last)) == [None, None]
    assert begun(("u1", last), ("u2", last)) == ["t1", None]
    assert begun(("t1", first), ("t2", last)) == [None, None]
    # Nothing timed is left: what is left of the others shares both places.
    places = [first, last]
    done = [run_all.Playing(steps[name], (), Path(), last, 60.0) for name in ("u1", "u2")]
    assert run_all.next_step(first, [steps["u3"]], done, places, together=2).name == "u3"
    # One at a time, or in one place, they are played in their order.
    assert run_all.next_step(last, list(steps.values()), [], places, together=1).name == "u1"
    assert run_all.next_step(last, list(steps.values())[1:], [], [last], together=2).name == "t1"


def test_together_plays_at_once_what_each_waits_for(run_all, fake):
    both = "Path('NAME.here').touch()\nwait_until(lambda: len(list(Path('.').glob('*.here'))) == 2)"
    out = fake(one=both, two=both)
    steps = [replace(step, timed=False) for step in run_all.steps()]
    run_all.steps = lambda: steps
    assert run_all.main(["--out", str(out), "--together", "2"]) == 0
    assert {facts["exit_code"] for facts in json.loads((out / "run_all.json").read_text()).values()} == {0}


def test_processors_are_shared_out_by_whole_cores(run_all, monkeypatch):
    monkeypatch.setattr(run_all.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(run_all, "core_of", lambda processor: processor % 4)  # 0 and 4 are one core
    assert [place.processors for place in run_all.places_of([0, 1])] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert [len(place.processors) for place in run_all.places_of([0, 1, 2])] == [2, 3, 3]
    monkeypatch.setattr(run_all.os, "sched_getaffinity", lambda _: {6})
    assert [(place.gpu, place.processors) for place in run_all.places_of([4, 7])] == [(4, (6,)), (7, (6,))]


def is_free(lock: Path) -> bool:
    """Return whether the process that held a lock has ended, or does so soon."""
    until = time.monotonic() + 30
    with lock.open("w") as file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["budget", "limit", "interrupt"])
def test_what_is_stopped_leaves_no_process_behind(run_all, fake, monkeypatch, capsys, how):
    out = fake(first=ENDLESS, second=ENDLESS, third="Path('third').touch()")
    names = [f"{step}{child}" for step in ("first", "second") for child in ("", "_child")]

    def all_begun() -> bool:
        return all((out / f"{name}.begun").exists() for name in names)

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if how == "interrupt" and all_begun():
            raise KeyboardInterrupt

    # Hours have passed once all processes are there.
    clock = SimpleNamespace(monotonic=lambda: 9000.0 if how != "interrupt" and all_begun() else 0.0, sleep=sleep)
    monkeypatch.setattr(run_all, "time", clock)
    words = ["--out", str(out), "--gpus", "0,1", *(["--budget", "20"] if how == "budget" else [])]
    assert run_all.main(words) == (130 if how == "interrupt" else 1)
    assert all(is_free(out / f"{name}.lock") for name in names)
    said = capsys.readouterr().out
    assert ("the budget of 20 s is spent before third" in said) == (how == "budget")
    assert (out / "third").exists() == (how == "limit")  # a step's own limit does not keep the next from running
    if how == "interrupt":
        assert "interrupted; --resume" in said and not (out / "run_all.json").exists()
    else:
        found = json.loads((out / "run_all.json").read_text())
        stopped = [facts["stopped_after_s"] for facts in found.values() if facts["exit_code"] is None]
        assert stopped == ([20, 20] if how == "budget" else [60, 60])


COUNTED = "open('played', 'a').write('NAME ')\n"
# What it fills it does not fill twice; the first time it fails half way.
HALF = (
    COUNTED
    + """
folder = Path("FOLDER")
if folder.exists():
    sys.exit("there is a folder of this name")
folder.mkdir(parents=True)
if Path("played").read_text().split().count("NAME") == 1:
    sys.exit(3)
"""
)


def test_resume_plays_what_failed_was_stopped_or_never_began(run_all, fake, monkeypatch, capsys):
    run, other, folder = "runs/toy/full", "runs/toy/other/kept", "several"
    steps = {
        "fine": COUNTED,
        "run": (HALF.replace("FOLDER", run), ("train", "toy", "--run-name", "full")),
        "seeds": (HALF.replace("FOLDER", folder), ("--out", folder)),
        "last": COUNTED,
    }
    out = fake(**steps)
    words = ["--out", str(out)]
    assert run_all.main([*words, "--skip", "last"]) == 1
    (out / other).mkdir(parents=True)
    with pytest.raises(TickgraphError, match="out already holds results of 3 steps; --resume to go on, or another"):
        run_all.main(words)
    assert (out / "played").read_text().split() == ["fine", "run", "seeds"]
    capsys.readouterr()

    assert run_all.main([*words, "--resume", "--only", "run"]) == 0
    assert "0 of 1 steps are kept" in capsys.readouterr().out
    found = json.loads((out / "run_all.json").read_text())
    assert [(name, facts["exit_code"]) for name, facts in found.items()] == [("fine", 0), ("run", 0), ("seeds", 3)]
    assert run_all.main([*words, "--resume"]) == 0
    assert "2 of 4 steps are kept" in capsys.readouterr().out
    assert (out / "played").read_text().split() == ["fine", "run", "seeds", "run", "seeds", "last"]
    assert (out / other).is_dir()
    assert list(json.loads((out / "run_all.json").read_text())) == list(steps)

    fake(**steps | {"fine": (COUNTED, ("anew",))})
    assert run_all.main([*words, "--resume", "--budget", "0"]) == 1  # what ended well was another command
    assert run_all.main([*words, "--resume"]) == 0
    assert "3 of 4 steps are kept" in capsys.readouterr().out
    assert (out / "played").read_text().split()[6:] == ["fine"]
    assert json.loads((out / "run_all.json").read_text())["fine"]["command"].endswith("fine.py anew")


@pytest.mark.parametrize("text", ["{", "[1]", '{"fine": 0}'])
def test_results_that_cannot_be_read_are_not_resumed_nor_replaced(run_all, fake, text):
    out = fake(fine=COUNTED)
    out.mkdir()
    (out / "run_all.json").write_text(text)
    for words in ([], ["--resume"]):
        with pytest.raises(TickgraphError, match=r"run_all\.json .*; mend or remove it, or name another --out"):
            run_all.main(["--out", str(out), *words])
    assert (out / "run_all.json").read_text() == text and not (out / "played").exists()


@pytest.mark.parametrize("text", ["", "0,", "a", "-1", "0,0", "1,01"])
def test_gpus_are_different_whole_numbers(run_all, fake, text):
    out = fake(fine=COUNTED)
    with pytest.raises(TickgraphError, match="--gpus is .*, expected"):
        run_all.main(["--out", str(out), f"--gpus={text}"])
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--gpus 0,8", "--gpus is '0,8', and this machine has 8; they count from 0"),
        ("--budget nan", "--budget is nan, expected a number of seconds"),
        ("--together 0", "--together is 0, expected at least 1"),
        ("--budget -5", "--budget is -5, expected a number of seconds"),
        ("--only fine --skip fine", "--only and --skip leave no step"),
        ("--out taken", "could not write .*taken"),
        ("--out taken/results", "could not write .*results"),
    ],
)
def test_what_cannot_be_played_is_one_line_before_anything_begins(run_all, fake, monkeypatch, tmp_path, words, named):
    out = fake(fine=COUNTED)
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    with pytest.raises(TickgraphError, match=named) as caught:
        run_all.main(["--out", str(out), *words.split()])
    assert "\n" not in str(caught.value) and not out.exists()


def test_a_machine_without_a_gpu_is_told_so(run_all, fake, monkeypatch):
    out = fake(fine=COUNTED)
    monkeypatch.setattr(run_all, "gpu_count", lambda: 0)
    with pytest.raises(TickgraphError, match="this machine has none"):
        run_all.main(["--out", str(out), "--gpus", "0"])


def test_the_step_of_seeds_sees_the_gpu_that_it_is_given(run_all):
    (seeds,) = (step for step in run_all.steps() if step.name == "seeds")
    assert "--gpus" not in seeds.words


# The README's table ------------------------------------------------------------------------------------------------

PLACE = {
    "machine": {"gpus": ["Toy GPU"], "cores": 4, "processor": "Toy CPU"},
    "versions": {"torch": "2.11", "warp-lang": "1.19", "mujoco": "4.0"},
    "commit": "0123456789abcdef",
    "dirty": False,
}
CASE = {"task": "g1_walk_flat", "backend": "mjwarp", "device": "cuda:0", "num_envs": 4096, "scenario": "normal"}


def collector(task: str = "g1_walk_flat", scenario: str = "normal", **changed) -> dict:
    case = {**CASE, "task": task, "scenario": scenario, **changed}
    rows = [
        {**case, "arm": "physics", "median_ms": 9.0, "mean_ms": 9.0},
        {**case, "arm": "graph", "median_ms": 7.5, "mean_ms": 8.0},
    ]
    return {
        **PLACE,
        "benchmark": "collector",
        "results": rows,
        "ratios": [{**case, "tick_arm": "graph", "tick_over_physics": 1.0625}],
    }


def training(algo: str, updates: int = 8, backend: str = "mjwarp") -> dict:
    case = {**CASE, "scenario": f"training, {updates} updates", "backend": backend}
    row = {**case, "arm": "graph", "algo": algo, "updates_per_iteration": updates, "tail_env_steps_per_sec": 380_000.4}
    other = {**row, "arm": "eager", "tail_env_steps_per_sec": 1.0}
    ratios = [{**case, "graph_over_eager": 2.26}]
    return {**PLACE, "commit": "feed", "dirty": True, "benchmark": "train", "results": [other, row], "ratios": ratios}


def updates(precision: str) -> dict:
    shape = {"algo": "flashsac", "updates": 8, "batch_size": 2048, "policy_period": 2, "precision": precision}
    rows = [{**CASE, **shape, "arm": "graph", "median_ms": 4.25}, {**CASE, **shape, "arm": "eager", "median_ms": 99.0}]
    return {**PLACE, "benchmark": "learner", "results": rows, "ratios": []}


def run_files(folder: Path, algo: str, backend: str = "mjwarp", sessions: int = 1, **changed) -> None:
    folder.mkdir(parents=True)
    manifest = {**PLACE, "task": "g1_motion_tracking", "algo": algo, "device": "cuda", "backend": backend}
    manifest["sessions"] = [{}] * sessions
    summary = {
        "status": "completed",
        "env_steps": 32_300_000,
        "tail_env_steps_per_sec": 255_000.0,
        "startup_s": {"wall_command_s": 229.4},
        "evaluation": {"trained": {"episodes": 100, "survival": 1.0, "success": 0.98}},
    }
    (folder / "run_manifest.json").write_text(json.dumps(manifest))
    (folder / "run_summary.json").write_text(json.dumps(summary | changed))


@pytest.fixture
def readme_table(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("readme_table", FILE.with_name("readme_table.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme_table", module)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_each_number_with_its_place_and_a_dash_for_what_is_missing(readme_table, tmp_path):
    for name, value in (
        ("any.json", collector()),
        ("name.json", collector("g1_motion_tracking", "reset-heavy")),
        ("on_a_cpu.json", collector(device="cpu", scenario="reset-heavy")),
        ("iterations.json", training("flashsac")),
        ("more_updates.json", training("sac", updates=2)),  # not what the task ships
        ("bridged.json", training("sac", backend="mujoco")),
        ("cycles.json", updates("bf16")),
        ("in_another_precision.json", updates("tf32")),
        ("no_result.json", [1, 2]),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "trace.json").write_text("{")
    runs = tmp_path / "runs" / "g1_motion_tracking"
    run_files(runs / "full", "flashsac")
    run_files(runs / "stopped", "sac", status="interrupted")
    run_files(runs / "resumed", "sac", sessions=2)
    run_files(runs / "bridged", "sac", backend="mujoco")
    run_files(runs / "short", "sac", evaluation={"trained": {"episodes": 8, "survival": 1.0}})
    text = readme_table.table(readme_table.gather([tmp_path]), [4096])
    run = "229 s, 32.3 M steps, 255,000 steps/s at the end, success 98% of 100 episodes"
    assert text.splitlines() == [
        "| | `g1_walk_flat` | `g1_motion_tracking` |",
        "|---|---|---|",
        "| control step of 4,096 worlds | 7.50 ms, 1.062 times its physics, 512,000 steps/s (a) | – |",
        "| control step of 4,096 worlds, 5% of the worlds restart | – | "
        "7.50 ms, 1.062 times its physics, 512,000 steps/s (a) |",
        "| step and updates, 4,096 worlds, FlashSAC | 380,000 steps/s, 2.3 times eager (b) | – |",
        "| step and updates, 4,096 worlds, SAC | – | – |",
        "| 8 critic and 4 actor updates, batch 2048, FlashSAC | 4.25 ms (a) | – |",
        "| 8 critic and 4 actor updates, batch 2048, SAC | – | – |",
        f"| `tickgraph train`, command to saved policy, FlashSAC | – | {run} (a) |",
        "| `tickgraph train`, command to saved policy, SAC | – | – |",
        "",
        "- (a) Toy GPU, 4 cores of Toy CPU, PyTorch 2.11, Warp 1.19, MuJoCo 4.0, commit 0123456789",
        "- (b) Toy GPU, 4 cores of Toy CPU, PyTorch 2.11, Warp 1.19, MuJoCo 4.0, commit feed with changes",
    ]


def test_what_the_table_cannot_be_made_from_is_one_line_and_the_readme_stays(readme_table, tmp_path):
    readme, empty, text = tmp_path / "README.md", tmp_path / "empty", tmp_path / "notes.txt"
    readme.write_text(f"a\n{readme_table.BEGIN}\nb\n{readme_table.END}\n")
    empty.mkdir()
    text.write_text("notes")
    good = tmp_path / "good.json"
    good.write_text(json.dumps(collector()))
    for words, said in (
        ([empty], "no number for the table is in there"),
        ([text], "notes.txt .* is not readable"),
        ([good, "--num-envs", "x"], "--num-envs is 'x', expected a whole number"),
        ([good, "--readme", tmp_path / "none.md"], "none.md is not readable"),
    ):
        with pytest.raises(TickgraphError, match=said) as caught:
            readme_table.main([str(word) for word in (*words, *([] if "--readme" in words else ["--readme", readme]))])
        assert "\n" not in str(caught.value)
    assert readme.read_text().splitlines()[2] == "b"
    assert readme_table.main([str(good), "--readme", str(readme), "--num-envs", "4096,4096"]) == 0
    assert readme.read_text().count("control step of 4,096 worlds |") == 1


def test_the_table_says_where_eager_had_the_plain_learner(readme_table):
    value = training("flashsac")
    eager, graph = value["results"]
    for kernels, ending in (("auto", "2.3 times eager"), ("autograd", "2.3 times eager with the plain learner")):
        eager["training_config"], graph["training_config"] = {"learner_kernels": kernels}, {"learner_kernels": "auto"}
        ((_, text),) = readme_table.of_train(value["results"], value["ratios"])
        assert text == f"380,000 steps/s, {ending}"


def test_of_two_files_with_one_number_the_later_named_is_taken_and_a_folder_with_both_is_refused(
    readme_table, tmp_path
):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    slow = collector()
    slow["results"][1]["median_ms"] = 70.0
    first.write_text(json.dumps(slow))
    second.write_text(json.dumps(collector()))
    (number,) = readme_table.gather([first, second]).values()
    assert number.text.startswith("7.50 ms")
    with pytest.raises(TickgraphError, match=r"a\.json and .*b\.json both have tick g1_walk_flat normal 4096"):
        readme_table.gather([tmp_path])
    for folder in (tmp_path / "before", tmp_path / "trials"):
        folder.mkdir()
        first.rename(folder / "a.json")
        assert [number.path for number in readme_table.gather([tmp_path]).values()] == [second]
        (folder / "a.json").rename(first)
    del slow["results"][0]["device"]
    first.write_text(json.dumps(slow))
    with pytest.raises(TickgraphError, match=r"a\.json is not whole: KeyError 'device'"):
        readme_table.gather([first])
    with pytest.raises(TickgraphError, match="there is no"):
        readme_table.gather([tmp_path / "nowhere"])


def test_the_table_stands_between_the_markers_and_is_replaced_there(readme_table, tmp_path, capsys):
    result, readme = tmp_path / "result.json", tmp_path / "README.md"
    result.write_text(json.dumps(collector()))
    text = FILE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
    readme.write_text(text)
    words = [str(result), "--readme", str(readme)]
    assert readme_table.main(words) == 0
    once = readme.read_text()
    assert "7.50 ms" in once and once.startswith(text.partition(readme_table.BEGIN)[0])
    assert once.endswith(text.partition(readme_table.END)[2])
    assert readme_table.main(words) == 0
    assert readme.read_text() == once
    assert readme_table.main([*words, "--print", "--num-envs", "1024"]) == 0
    assert readme.read_text() == once and "1,024 worlds | – | – |" in capsys.readouterr().out
    readme.write_text("# nothing\n")
    with pytest.raises(TickgraphError, match="the README is to have the line"):
        readme_table.main(words)
