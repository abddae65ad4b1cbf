"""Words of messages."""

from tickgraph.core.words import counted


def test_one_is_no_plural():
    assert [counted(number, "update") for number in (0, 1, 2)] == ["0 updates", "1 update", "2 updates"]
