"""Files and folders that cannot be made: one line, and nothing left behind."""

from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run.files import make_folder


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which none can be made")
def test_a_folder_that_cannot_be_made_where_all_above_it_are_there_is_one_line(parents: bool) -> None:
    with pytest.raises(TickgraphError, match=r"could not make /proc/x: no folder can be made there; choose another"):
        make_folder(Path("/proc/x"), parents)


def test_the_first_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TickgraphError, match=f"there is no folder {tmp_path / 'a'}; make it first"):
        make_folder(tmp_path / "a" / "b", parents=False)
