"""Files and folders that cannot be made: one line, and nothing left behind."""

import errno
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import files_below, make_folder, write_atomically


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which none can be made")
def test_a_folder_that_cannot_be_made_where_all_above_it_are_there_is_one_line(parents: bool) -> None:
    with pytest.raises(TickgraphError, match=r"could not make /proc/x: no folder can be made there; choose another"):
        make_folder(Path("/proc/x"), parents)


def test_the_first_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TickgraphError, match=f"there is no folder {tmp_path / 'a'}; make it first"):
        make_folder(tmp_path / "a" / "b", parents=False)


def test_what_the_system_has_against_a_file_is_said_of_those_in_the_folder_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "run" / "x", tmp_path / "other"
    for number, said in ((errno.EACCES, "permission denied"), (errno.EROFS, "the file system is read-only")):
        with pytest.raises(TickgraphError) as caught, files_below(inside.parent):
            raise OSError(number, "said by the system", str(inside))
        assert str(caught.value) == f"could not use {inside}: {said}; change that, or work on a copy of {inside.parent}"
    for error in (OSError(errno.EACCES, "no", str(outside)), OSError(errno.EACCES, "no"), OSError(5, "no", 3)):
        with pytest.raises(OSError) as raised, files_below(inside.parent):
            raise error
        assert raised.value is error


def test_a_folder_in_which_nothing_can_be_deleted_hides_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(TickgraphError, match="could not write .*: it is a folder, where a file belongs"):
        write_atomically(tmp_path, lambda file: file.write(b"x"))
