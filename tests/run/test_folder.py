"""Run folders: names that are refused or used, exclusive creation, the lock, and finding a run again."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run import folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a/b", "separator"),
        ("../out", "separator"),
        ("..", "leave"),
        ("-x", "option"),
        ("a\nb", "control"),
        ("x" * 300, "300 bytes"),
        ("é" * 150, "300 bytes"),
        ("\udcff", "UTF-8"),
    ],
)
def test_names_that_are_no_single_folder_are_refused_in_one_line(name: str, reason: str) -> None:
    with pytest.raises(TickgraphError, match=reason) as caught:
        folder.check_name(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["run 1", "étude №1 🤖", "机器人", ".hidden", "a-b", "x" * 200])
def test_names_in_any_script_are_used(name: str, tmp_path: Path) -> None:
    run = folder.create(tmp_path / "runs", "task", name)
    assert run.path == tmp_path / "runs" / "task" / name
    assert run.path.is_dir()


def test_an_existing_folder_is_refused_with_the_way_to_resume_it(tmp_path: Path) -> None:
    folder.create(tmp_path, "task", "one")
    with pytest.raises(TickgraphError, match="exists.*--resume"):
        folder.create(tmp_path, "task", "one")


def _make(root: str, name: str | None) -> str | None:
    try:
        return str(folder.create(Path(root), "task", name).path)
    except TickgraphError:
        return None


def test_runs_of_the_same_second_never_share_a_folder(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        unnamed = pool.starmap(_make, [(str(tmp_path), None)] * 6)
        named = pool.starmap(_make, [(str(tmp_path), "same")] * 3)
    assert None not in unnamed
    assert len(set(unnamed)) == 6
    assert [path is None for path in named].count(False) == 1


def test_an_unwritable_root_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TickgraphError, match="could not write"):
        folder.create(tmp_path / "file" / "runs", "task")


def test_a_run_is_found_by_path_or_below_the_root(tmp_path: Path) -> None:
    run = folder.create(tmp_path, "task", "one")
    with pytest.raises(TickgraphError, match=r"no config\.yaml"):
        folder.find(str(run.path))
    run.config.write_text("")
    assert folder.find(str(run.path)) == run
    assert folder.find("task/one", tmp_path) == run
    with pytest.raises(TickgraphError, match="is a file; give the run's folder"):
        folder.find(str(run.config))
    with pytest.raises(TickgraphError, match="there is no run 'task/oen'"):
        folder.find("task/oen", tmp_path)
    with pytest.raises(TickgraphError, match="there is no run 'one'; did you mean '.*/task/one'"):
        folder.find("one", tmp_path)


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = folder.create(tmp_path, "task", "one")
    run.checkpoints.mkdir()
    leftover = run.checkpoints / ".tmp-123-iteration_000000001.safetensors"
    leftover.write_bytes(b"half")
    folder.lock(run)
    assert not leftover.exists()
    code = (
        "import sys; from pathlib import Path; from tickgraph.run import folder\n"
        "try: folder.lock(folder.RunFolder(Path(sys.argv[1])))\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
    assert "is being trained by process" in done.stdout


def test_a_run_that_is_trained_elsewhere_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run = folder.create(tmp_path, "task", "one")
    run.config.write_text("")
    folder.check_free(run)
    assert not (run.path / ".lock").exists()  # a look leaves nothing behind
    held = folder.lock(run)
    code = (
        "import sys; from tickgraph.cli import main\n"
        "print(main(['train', '--resume', sys.argv[1]]), [m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []"
    assert f"is being trained by process {os.getpid()}; wait" in done.stderr
    os.close(held)
    folder.check_free(run)
    os.close(folder.lock(run))  # the look holds nothing


def test_discard_leaves_other_runs_alone(tmp_path: Path) -> None:
    one, two = folder.create(tmp_path / "runs", "task", "one"), folder.create(tmp_path / "runs", "task", "two")
    folder.discard(one)
    assert not one.path.exists()
    assert two.path.exists()
    folder.discard(two)
    assert not (tmp_path / "runs").exists()
    assert tmp_path.exists()
