"""A film under its name is one that was written."""

import signal
import subprocess

import imageio_ffmpeg
import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import keep_film
from tickgraph.run.film import film


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


@pytest.mark.parametrize("pictures", [0, 1, 60])
def test_a_film_that_is_interrupted_leaves_neither_a_file_nor_ffmpeg(tmp_path, pictures):
    killed, made = [], subprocess.Popen

    class Noted(made):
        def kill(self):
            killed.append(self)
            super().kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Noted)
        with pytest.raises(KeyboardInterrupt), film(tmp_path / "film.mp4", (64, 48), 10) as add:
            for _ in range(pictures):
                add(bytes(64 * 48 * 3))
            raise KeyboardInterrupt
    (ffmpeg,) = killed
    assert ffmpeg.wait(timeout=10) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_a_film_whose_ffmpeg_ends_early_is_one_line(tmp_path, monkeypatch):
    started, made = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: started.append(made(*words, **more)) or started[0])
    line = r"film\.mp4: ffmpeg ended before the film; is the disk full, [^\n]*$"
    with pytest.raises(TickgraphError, match=line), film(tmp_path / "film.mp4", (64, 48), 10) as add:
        add(bytes(64 * 48 * 3))
        started[0].kill()
        started[0].wait(timeout=10)
        for _ in range(100):
            add(bytes(64 * 48 * 3))
    assert not list(tmp_path.iterdir())


def test_a_film_under_its_name_has_every_picture(tmp_path):
    with film(tmp_path / "film.mp4", (64, 48), 10) as add:
        for value in range(5):
            add(bytes([40 * value]) * (64 * 48 * 3))
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4"))[0] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
