"""Checkpoints: one safetensors file each, complete or not there, verified before it is believed; never pickled."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import write_atomically, write_error
from tickgraph.run.folder import RunFolder

FORMAT = 1
_KIND = "tickgraph checkpoint"
_SUFFIX = ".safetensors"
_SEPARATOR = "|"  # joins the keys of nested states; names of tensors use "/" and "." themselves
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.bool: "BOOL",
}
_CHUNK = 1 << 24
_MAX_HEADER = 1 << 28
_UNSUMMED = b'"crc32":"00000000"'  # in the header while the sum of all bytes is taken; its digits are put in at the end
_DELETE = "; delete it, the run goes on from an older one"

State = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: `state` as it was given to `save`, and the plain values beside it."""

    path: Path
    iteration: int
    task: str
    state: dict[str, Any]
    extra: dict[str, Any]


def save(run: RunFolder, task: str, iteration: int, state: State, extra: Mapping[str, Any], keep: int) -> Path:
    """Write the state of `iteration`, then delete all but the newest `keep` checkpoints.

    Args:
        run: the run's folder.
        task: the task's name, checked when the file is read.
        iteration: how many iterations the state has behind it.
        state: nested mappings whose leaves are tensors on any device, or plain JSON values.
        extra: plain JSON values for `Checkpoint.extra`.
        keep: how many files stay, at least 1.

    Returns:
        The file. It appears under its name only when all of it is on the disk.

    Raises:
        TickgraphError: it could not be written (disk full, size limit); older checkpoints are untouched.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    _flatten(state, "", tensors, values)
    about = {"kind": _KIND, "format": FORMAT, "task": task, "iteration": iteration, "extra": extra, "values": values}
    path = run.checkpoints / f"iteration_{iteration:09d}{_SUFFIX}"
    try:
        run.checkpoints.mkdir(exist_ok=True)
    except OSError as error:
        raise write_error(run.checkpoints, error) from error
    write_atomically(path, lambda file: _write(file, tensors, about))
    for old in files(run)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def files(run: RunFolder) -> list[Path]:
    """Return the run's checkpoint files, oldest iteration first; temporary files are not among them."""
    found = [path for path in run.checkpoints.glob(f"iteration_*{_SUFFIX}") if path.stem[len("iteration_") :].isdigit()]
    return sorted(found, key=iteration_of)


def iteration_of(path: Path) -> int:
    """Return the iteration that a checkpoint's name says."""
    return int(path.stem[len("iteration_") :])


def load_newest(run: RunFolder, task: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and one line for each newer file that is not.

    Returns:
        (None, lines) when the run has none.

    Raises:
        TickgraphError: there are files but none can be used; the text gives the newest one's reason.
    """
    problems: list[str] = []
    left = files(run)
    while left:
        path = left.pop()
        try:
            return load(path, task), problems
        except TickgraphError as error:
            if not path.exists() and (
                newer := [file for file in files(run) if iteration_of(file) > iteration_of(path)]
            ):
                left, problems = newer, []  # a training that goes on has deleted it, and saved others
            else:
                problems.append(str(error))
    if problems:
        newest = problems[0].removesuffix(_DELETE)
        raise TickgraphError(f"no checkpoint of {run.path} can be used: {newest}; put a copy there, or start a new run")
    return None, problems


def load(path: Path, task: str) -> Checkpoint:
    """Read and verify one checkpoint.

    Args:
        path: the file.
        task: the name of the task that it must belong to.

    Raises:
        TickgraphError: it is missing, truncated, no checkpoint of tickgraph, of another format or of another task, or a
            byte of it has changed.
    """
    about = _read_about(path)
    if about["task"] != task:
        raise TickgraphError(f"{path} is a checkpoint of task {about['task']!r}, not of {task!r}")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # the last one where it is gone meanwhile
        raise TickgraphError(f"{path} is damaged: {error}{_DELETE}") from error
    state = _unflatten(tensors, about["values"])
    return Checkpoint(path, int(about["iteration"]), about["task"], state, about["extra"])


def _write(file: IO[bytes], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write the safetensors format: header length, header, then each tensor's bytes; one tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"crc32": "00000000", "about": json.dumps(about, allow_nan=False)}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise TickgraphError(f"tensor {name!r} has dtype {tensor.dtype}, which a checkpoint cannot hold")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    total = zlib.crc32(text)
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(flat), _CHUNK):
            chunk = flat[start : start + _CHUNK].data
            file.write(chunk)
            total = zlib.crc32(chunk, total)
    file.seek(8 + text.index(_UNSUMMED) + len(_UNSUMMED) - 9)
    file.write(f"{total:08x}".encode())


def _check_sum(path: Path, text: bytes, wanted: str) -> None:
    """Hold the sum of all bytes against the one that was written; a disk or a copy may have changed some."""
    total = zlib.crc32(text.replace(_UNSUMMED.replace(b"00000000", wanted.encode()), _UNSUMMED, 1))
    try:
        with open(path, "rb") as file:
            file.seek(8 + len(text))
            while chunk := file.read(_CHUNK):
                total = zlib.crc32(chunk, total)
    except OSError as error:
        raise TickgraphError(f"{path} cannot be read: {error.strerror or error}") from error
    if wanted != f"{total:08x}":
        raise TickgraphError(f"{path} is damaged: its bytes are not those that were written{_DELETE}")


def _read_about(path: Path) -> dict[str, Any]:
    """Return the file's description, after checking that every byte is there, and is what was written."""
    foreign = f"{path} is not a checkpoint that tickgraph wrote"
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            begins_well = size < 9 or (length < _MAX_HEADER and file.read(1) == b"{")
            file.seek(8)
            text = file.read(length) if begins_well and length <= size - 8 else b""
    except OSError as error:
        raise TickgraphError(f"{path} cannot be read: {error.strerror or error}") from error
    if begins_well and not text:
        raise TickgraphError(f"{path} is truncated: it has {size} bytes{_DELETE}")
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__")
        about, written_sum = json.loads(metadata["about"]), metadata.get("crc32")
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if about["kind"] != _KIND:
            raise KeyError("kind")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise TickgraphError(f"{foreign}; give one from a run's checkpoints folder") from None
    if about.get("format") != FORMAT:
        raise TickgraphError(
            f"{path} has checkpoint format {about.get('format')!r}, this version of tickgraph reads {FORMAT}; "
            "use the version that wrote it (see the run's manifest)"
        )
    if size != 8 + length + end:
        raise TickgraphError(f"{path} is truncated: it has {size} bytes of {8 + length + end}{_DELETE}")
    if written_sum is not None:  # files of before have none
        _check_sum(path, text, str(written_sum))
    return about


def _flatten(state: State, prefix: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    for key, value in state.items():
        if _SEPARATOR in key:
            raise TickgraphError(
                f"state {prefix + key!r} has {_SEPARATOR!r} in its name, which a checkpoint cannot hold"
            )
        if isinstance(value, Mapping) and not value:
            values[prefix + key] = {}
        elif isinstance(value, Tensor):
            tensors[prefix + key] = value
        elif isinstance(value, Mapping):
            _flatten(value, prefix + key + _SEPARATOR, tensors, values)
        else:
            values[prefix + key] = value


def _unflatten(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, value in [*tensors.items(), *values.items()]:
        *folders, leaf = name.split(_SEPARATOR)
        place = state
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = value
    return state
