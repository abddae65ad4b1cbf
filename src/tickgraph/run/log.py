"""The log of a run: one strict JSON row an interval in metrics.jsonl, the same figures for TensorBoard."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import plain, write_error
from tickgraph.run.folder import RunFolder


def iter_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics.jsonl one by one; a last line that a kill cut short is left out.

    Raises:
        TickgraphError: a line before the last is not a JSON object.
    """
    for row, _ in _rows_with_ends(path):
        yield row


def _rows_with_ends(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (row, the file's offset after it)."""
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            complete = line.endswith(b"\n")
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
                if not complete or not file.peek(1):  # type: ignore[attr-defined]
                    return
                raise TickgraphError(f"{path}:{number} is not a row of metrics; delete the line or restore the file")
            if not complete:
                return
            end += len(line)
            yield row, end


class MetricsLog:
    """Writer of a run's rows.

    Args:
        run: the run's folder.
        after: keep rows up to this iteration and drop what follows, because training goes on from there.
    """

    def __init__(self, run: RunFolder, after: int = 0) -> None:
        self._path = run.metrics
        keep = 0
        if run.metrics.exists():
            for row, end in _rows_with_ends(run.metrics):
                if row["iteration"] > after:
                    break
                keep = end
        try:
            self._file = open(run.metrics, "ab")
            self._file.truncate(keep)
        except OSError as error:
            raise write_error(run.metrics, error) from error
        self._events = EventFile(run)
        if keep:
            for row in iter_rows(run.metrics):
                self._events.write(row)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; it is in the file, for any reader, when this returns. NaN and infinities become null."""
        row = plain(row)
        line = json.dumps(row, allow_nan=False, separators=(", ", ": ")) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
            self._events.write(row)
        except OSError as error:
            raise write_error(self._path, error) from error

    def sync(self) -> None:
        """Put the rows on the disk, so that no checkpoint is ever newer than the log."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_error(self._path, error) from error

    def close(self) -> None:
        """Close both files."""
        for file in (self._file, self._events):
            try:
                file.close()
            except OSError:
                pass  # a full disk was reported when the row was written


class EventFile:
    """TensorBoard's view of metrics.jsonl: one event a row, rewritten when a run is resumed, so that none is double."""

    def __init__(self, run: RunFolder) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        try:
            if run.tensorboard.exists():
                shutil.rmtree(run.tensorboard)
            run.tensorboard.mkdir()
            name = f"events.out.tfevents.{int(time.time())}.{platform.node() or 'host'}.{os.getpid()}"
            self._records = RecordWriter(open(run.tensorboard / name, "wb"))
            self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        except OSError as error:
            raise write_error(run.tensorboard, error) from error

    def write(self, row: dict[str, Any]) -> None:
        """Add one row's numbers under their keys, at the row's iteration."""
        values = [
            self._summary.Value(tag=key, simple_value=float(value))
            for key, value in row.items()
            if isinstance(value, int | float) and key not in ("iteration", "time")
        ]
        event = self._event(
            wall_time=row.get("time") or 0.0, step=row["iteration"], summary=self._summary(value=values)
        )
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()
