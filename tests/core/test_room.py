"""Memory is asked for before it is used, against what the machine and the process's control groups have left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tickgraph.core import room
from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError

GIB = 1 << 30
CPU = torch.device("cpu")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine's files with 8 GiB available and no control group."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(room, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(room, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(room, "_GROUPS", tmp_path / "groups")
    return tmp_path


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_what_the_machine_has(machine: Path) -> None:
    assert room.free_memory(CPU) == 8 * GIB


def test_where_nothing_says_nothing_is_refused(machine: Path) -> None:
    (machine / "meminfo").unlink()
    assert room.free_memory(CPU) is None
    room.check_room(1 << 50, CPU, "X")


def test_a_group_and_those_above_it_count_and_what_is_cached_is_free(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/pod/job\n")
    group(machine / "groups/pod", {"memory.max": f"{4 * GIB}\n", "memory.current": f"{3 * GIB}\n"})
    group(machine / "groups/pod", {"memory.stat": f"anon 5\ninactive_file {GIB}\n"})
    group(machine / "groups/pod/job", {"memory.max": "max\n", "memory.current": f"{GIB}\n"})
    assert room.free_memory(CPU) == 2 * GIB


def test_the_first_version_of_groups(machine: Path) -> None:
    (machine / "cgroup").write_text("9:name=systemd:/\n4:cpu,memory:/job\n0::/\n")
    files = {"memory.limit_in_bytes": f"{3 * GIB}", "memory.usage_in_bytes": f"{GIB}"}
    group(machine / "groups/memory/job", {**files, "memory.stat": "total_inactive_file 0\n"})
    group(machine / "groups/memory", {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "5"})
    assert room.free_memory(CPU) == 2 * GIB


def test_the_line_says_what_is_wanted_what_is_free_and_what_to_do(machine: Path) -> None:
    room.check_room(8 * GIB, CPU, "X")
    with pytest.raises(TickgraphError) as caught:
        room.check_room(9 * GIB, CPU, "X", "take less")
    assert str(caught.value) == "out of memory: X needs 9.0 GiB, 8.0 GiB is free: take less"


def test_shapes_take_nothing_unless_they_cannot_be_counted(machine: Path) -> None:
    room.check_room(1 << 50, torch.device("meta"), "X")
    with pytest.raises(TickgraphError, match="out of memory: X needs .* GiB: use fewer worlds"):
        room.check_room(1 << 70, torch.device("meta"), "X")


def test_a_gpu_is_asked_what_it_has_and_what_torch_keeps_there_is_free(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, has = torch.device("cuda", 1), {"mem_get_info": (20 * GIB, 80 * GIB), "memory_reserved": 5 * GIB}
    has["memory_allocated"] = 3 * GIB
    for name, answer in has.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer if device == gpu else None)
    assert room.free_memory(gpu) == 22 * GIB
    room.check_room(22 * GIB, gpu, "X")
    with pytest.raises(TickgraphError) as caught:
        room.check_room(23 * GIB, gpu, "X", "take less")
    assert str(caught.value) == "out of GPU memory: X needs 23.0 GiB, 22.0 GiB is free: take less"


def test_the_arena_asks_before_it_takes(machine: Path) -> None:
    arena = Arena("cpu")
    with pytest.raises(TickgraphError, match=r"tensor 'a' \(4294967296,\) float32 .* needs 16.0 GiB, 8.0 GiB is free"):
        arena.new("a", 1 << 32)
    assert "a" not in arena
