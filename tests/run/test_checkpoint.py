"""Checkpoints: every tensor comes back, damage is named, an older one survives whatever happens to a newer."""

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from tickgraph.core.errors import TickgraphError
from tickgraph.run import checkpoint
from tickgraph.run.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def _state() -> dict[str, object]:
    return {
        "env": {
            "arena/x": torch.arange(6, dtype=torch.float32).reshape(2, 3),
            "flag": torch.tensor([True, False]),
            "tick": torch.tensor(7),
            "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "turned": torch.arange(6.0).reshape(2, 3).T,
            "none": torch.zeros(0, 4),
        },
        "extra": {"names": ["a", "b"], "empty": {}},
        "seed": 2**62,
    }


def _save(run: RunFolder, iteration: int, keep: int = 5) -> Path:
    return checkpoint.save(run, "toy", iteration, _state(), {"env_steps": 10 * iteration}, keep)


def test_everything_comes_back_with_its_bits(run: RunFolder) -> None:
    found = checkpoint.load(_save(run, 3), "toy")
    assert (found.iteration, found.task, found.extra) == (3, "toy", {"env_steps": 30})
    assert found.state["seed"] == 2**62
    assert found.state["extra"] == {"names": ["a", "b"], "empty": {}}
    for name, value in _state()["env"].items():  # type: ignore[attr-defined]
        assert found.state["env"][name].dtype == value.dtype
        assert torch.equal(found.state["env"][name], value)


def test_the_file_is_plain_safetensors(run: RunFolder) -> None:
    with safe_open(_save(run, 1), "pt") as file:
        assert torch.equal(file.get_tensor("env|flag"), torch.tensor([True, False]))


def test_the_newest_by_number_is_loaded_and_old_ones_go(run: RunFolder) -> None:
    for iteration in (2, 9, 10, 100):
        _save(run, iteration, keep=2)
    assert [path.name for path in checkpoint.files(run)] == [
        "iteration_000000010.safetensors",
        "iteration_000000100.safetensors",
    ]
    found, problems = checkpoint.load_newest(run, "toy")
    assert found is not None
    assert (found.iteration, problems) == (100, [])


@pytest.mark.parametrize("step", ["_read_about", "_check_sum", "load_file"])
def test_a_training_that_goes_on_meanwhile_costs_a_reader_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner = safetensors.torch if step == "load_file" else checkpoint
    real, first = getattr(owner, step), _save(run, 1)

    def slow(path: Path, *more: object) -> object:
        if path == first and path.exists():
            _save(run, 2, keep=1)  # which deletes the first one
        return real(path, *more)

    monkeypatch.setattr(owner, step, slow)
    found, problems = checkpoint.load_newest(run, "toy")
    assert found is not None and (found.iteration, problems) == (2, [])


def test_a_run_without_checkpoints_has_none(run: RunFolder) -> None:
    assert checkpoint.load_newest(run, "toy") == (None, [])


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_truncated_file_is_named_and_the_older_one_serves(run: RunFolder, left: int) -> None:
    _save(run, 1)
    path = _save(run, 2)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(TickgraphError, match="truncated.*delete it"):
        checkpoint.load(path, "toy")
    found, problems = checkpoint.load_newest(run, "toy")
    assert found is not None
    assert found.iteration == 1
    assert "truncated" in problems[0]


@pytest.mark.parametrize("place", ["x", "extra", "sum", "last"])
def test_a_changed_byte_is_seen_and_the_older_file_serves(run: RunFolder, place: str) -> None:
    _save(run, 1)
    path = _save(run, 2)
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    at = {
        "x": 8 + length + header["env|arena/x"]["data_offsets"][0],
        "extra": data.index(b'env_steps\\": 20') + len(b'env_steps\\": '),  # 20 steps become 00
        "sum": data.index(b'"crc32":"') + len(b'"crc32":"'),
        "last": len(data) - 1,
    }[place]
    data[at] = ord("0") if place == "extra" else data[at] ^ 1
    path.write_bytes(data)
    with pytest.raises(TickgraphError, match="(damaged|not a checkpoint)"):
        checkpoint.load(path, "toy")
    found, problems = checkpoint.load_newest(run, "toy")
    assert found is not None and found.iteration == 1 and len(problems) == 1


def test_a_file_of_before_without_a_sum_is_read(run: RunFolder) -> None:
    path = _save(run, 1)
    path.write_bytes(path.read_bytes().replace(b'"crc32":', b'"_____":'))
    assert checkpoint.load(path, "toy").extra == {"env_steps": 10}


def test_temporary_files_are_never_offered(run: RunFolder) -> None:
    _save(run, 1)
    (run.checkpoints / ".tmp-99-iteration_000000002.safetensors").write_bytes(b"half")
    assert len(checkpoint.files(run)) == 1


def test_another_tasks_file_is_refused(run: RunFolder) -> None:
    with pytest.raises(TickgraphError, match="of task 'toy', not of 'other'"):
        checkpoint.load(_save(run, 1), "other")


def test_another_versions_file_is_refused(run: RunFolder) -> None:
    path = _save(run, 1)
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["about"])
    header["__metadata__"]["about"] = json.dumps({**about, "format": 99})
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(TickgraphError, match="format 99, this version of tickgraph reads 1"):
        checkpoint.load(path, "toy")


def test_a_foreign_file_is_refused(run: RunFolder, tmp_path: Path) -> None:
    for name, write in (
        ("pickle", lambda path: torch.save({"a": torch.zeros(2)}, path)),
        ("text", lambda path: path.write_text("hello, this is no checkpoint at all")),
    ):
        path = tmp_path / name
        write(path)
        with pytest.raises(TickgraphError, match="not a checkpoint that tickgraph wrote"):
            checkpoint.load(path, "toy")


def test_nothing_usable_is_one_line_with_the_newest_files_reason(run: RunFolder) -> None:
    path = _save(run, 1)
    path.write_bytes(b"")
    with pytest.raises(TickgraphError, match="no checkpoint of .* can be used: .*truncated") as caught:
        checkpoint.load_newest(run, "toy")
    assert "older" not in str(caught.value) and "start a new run" in str(caught.value)


def test_a_file_size_limit_costs_only_the_new_file(run: RunFolder) -> None:
    old = _save(run, 1)
    before = hashlib.sha256(old.read_bytes()).hexdigest()
    code = (
        "import resource, sys, torch; from pathlib import Path\n"
        "from tickgraph.run import checkpoint; from tickgraph.run.folder import RunFolder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: checkpoint.save(RunFolder(Path(sys.argv[1])), 'toy', 2, {'x': torch.zeros(1_000_000)}, {}, 1)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=True)
    assert "size limit" in done.stdout
    assert done.stdout.count("\n") == 1
    assert hashlib.sha256(old.read_bytes()).hexdigest() == before
    assert [path.name for path in run.checkpoints.iterdir()] == [old.name]
