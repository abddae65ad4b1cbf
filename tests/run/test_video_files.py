"""A film under its name is one that was written."""

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
    made.write_bytes(b"new")
    keep_film(made, old)
    assert old.read_bytes() == b"new" and not made.exists()
