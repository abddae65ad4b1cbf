"""An mp4 picture by picture: under its name when it is whole, and gone, with ffmpeg, when something ends it early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import NO_ROOM, TEMPORARY, keep_film, write_error


@contextmanager
def film(path: Path, size: tuple[int, int], fps: int) -> Iterator[Callable[[Any], object]]:
    """Give a function that adds a picture, (height, width, 3) bytes, to a film.

    Args:
        path: the file; its folder is there.
        size: width and height.
        fps: pictures a second.

    Raises:
        TickgraphError: the file cannot be written.
    """
    import imageio_ffmpeg

    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    writer = imageio_ffmpeg.write_frames(str(temporary), size, fps=fps, macro_block_size=1, ffmpeg_log_level="error")
    try:
        writer.send(None)
        yield writer.send
        writer.close()
        keep_film(temporary, path)
    except BaseException as error:
        with suppress(BaseException):
            writer.throw(KeyboardInterrupt)  # on which it kills ffmpeg, which would write on
        if isinstance(error, OSError) and error.errno is None:  # imageio's, with ffmpeg's command in many lines
            raise TickgraphError(f"could not write {path}: ffmpeg ended before the film; {NO_ROOM}") from error
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()
