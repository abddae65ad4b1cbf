"""Where operations wait for the device: torch's synchronisation warnings with function, file, line and program."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from tickgraph.core.program import Program

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


@contextmanager
def watch_for_waits() -> Iterator[list[str]]:
    """Collect where operations wait for the device. They are let through: half a tick could not be taken back.

    torch sees reads of values, transfers, shapes that depend on values and waits for a stream; it does not see waits
    for an event or the device, nor what others than torch do.
    """
    places: list[str] = []

    def note(message: Warning | str, *rest: object, **more: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            place = place_of(traceback.walk_stack(sys._getframe(1)))
            if place not in places:
                places.append(place)
        else:
            show(message, *rest, **more)  # type: ignore[arg-type]

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
        show, warnings.showwarning = warnings.showwarning, note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)


def place_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return function, file and line of the innermost frame that is not torch's or ours, and the program it is in.

    Args:
        frames: each with its line, innermost first.
    """
    found = program = ""
    for frame, line in frames:
        code = frame.f_code
        if not found and not code.co_filename.startswith((_TORCH, _HERE, warnings.__file__, "<")):
            found = f"{code.co_name} ({code.co_filename}:{line})"
        owner = frame.f_locals.get("self")
        if not program and isinstance(owner, Program):
            program = f" in program {owner.name!r}"
    return found + program
