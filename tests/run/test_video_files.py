"""A film under its name is one that was written."""

import imageio_ffmpeg
import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import keep_film


def test_an_empty_film_is_refused_and_the_older_one_stays(tmp_path):
    made, old = tmp_path / ".tmp-film.mp4", tmp_path / "film.mp4"
    made.touch()
    old.write_bytes(b"old")
    with pytest.raises(TickgraphError, match=r"film\.mp4: ffmpeg wrote nothing"):
        keep_film(made, old)
    assert old.read_bytes() == b"old"


def test_a_film_that_is_cut_short_is_refused_and_a_whole_one_kept(tmp_path):
    made, old = tmp_path / ".tmp-film.mp4", tmp_path / "film.mp4"
    writer = imageio_ffmpeg.write_frames(str(made), (64, 48), fps=10, macro_block_size=1, ffmpeg_log_level="error")
    writer.send(None)
    for value in range(5):
        writer.send(bytes([40 * value]) * (64 * 48 * 3))
    writer.close()
    whole = made.read_bytes()
    old.write_bytes(b"old")
    unsized = whole.index(b"mdat") - 4  # as ffmpeg leaves it when it is stopped
    for cut in (
        whole[:40],
        whole[: len(whole) // 2],
        whole[:-1],
        whole[:unsized] + bytes(4) + whole[unsized + 4 : -300],
    ):
        made.write_bytes(cut)
        with pytest.raises(TickgraphError, match=rf"film\.mp4: the film was cut short after {len(cut)} bytes"):
            keep_film(made, old)
        assert old.read_bytes() == b"old"
    made.write_bytes(whole)
    keep_film(made, old)
    assert old.read_bytes() == whole and not made.exists()
