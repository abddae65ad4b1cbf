"""How much memory a device has left, asked before much is taken: Linux promises more than there is, then kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from tickgraph.core.errors import TickgraphError

FEWER = "use fewer worlds (num_envs), or a smaller replay (replay_slots), batch or network"
_WORTH_ASKING = 1 << 26  # bytes; less is not worth reading files for
_LARGEST = 1 << 62  # bytes, beyond which torch cannot count
_GROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")


def check_room(wanted: int, device: torch.device, what: str, advice: str = FEWER) -> None:
    """Refuse memory that the device does not have; shapes alone take none.

    Args:
        wanted: bytes.
        device: where they are to be.
        what: what they are for, such as "an environment of 4096 worlds".
        advice: what to change.

    Raises:
        TickgraphError: there is less left.
    """
    if wanted < _WORTH_ASKING:
        return
    free = free_memory(device)
    if wanted >= _LARGEST or (free is not None and wanted > free):
        left = "" if free is None else f", {size(free)} is free"
        where = "GPU memory" if device.type == "cuda" else "memory"
        raise TickgraphError(f"out of {where}: {what} needs {size(wanted)}{left}: {advice}")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be taken: of main memory without swapping, of a GPU with what torch keeps there.

    None where the system does not say, and for shapes alone.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    free = [_of_machine(), *_of_groups()] if device.type == "cpu" else []
    return min((found for found in free if found is not None), default=None)


def size(count: int) -> str:
    """Return a number of bytes for a reader."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} B"


def _of_machine() -> int | None:
    for line in _lines(_MEMORY):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_groups() -> Iterator[int]:
    """Yield what each control group of this process, and each one above it, has left; both versions of them."""
    for line in _lines(_OWN_GROUPS):
        _, controllers, own = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, used, cache = (
            (_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else (_GROUPS, "memory.max", "memory.current", "inactive_file")
        )
        place = root / own.lstrip("/")
        for folder in (place, *(parent for parent in place.parents if parent == root or root in parent.parents)):
            numbers = [next(_lines(folder / name), "") for name in (limit, used)]
            if all(number.isdecimal() for number in numbers):  # "max" is no limit
                given_back = (
                    line.split()[1] for line in _lines(folder / "memory.stat") if line.startswith(f"{cache} ")
                )
                yield max(0, int(numbers[0]) - int(numbers[1]) + int(next(given_back, 0)))


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
