"""Settings by regular expression."""

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.mdp.matching import match_values

NAMES = ("left_knee", "left_hip", "right_knee")


def test_one_value_for_all():
    assert match_values(0.5, NAMES, "scale") == [0.5, 0.5, 0.5]


def test_values_by_expression_and_default():
    assert match_values({".*_knee": 2.0}, NAMES, "scale", default=1.0) == [2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"left_kne": 1.0}, ("left_kne", "left_knee")),
        ({".*_knee": 1.0, "left_.*": 2.0}, ("left_knee", "matched by")),
        ({".*_knee": 1.0}, ("left_hip",)),
        ({"zzz": 1.0}, ("scale: no name matches 'zzz'; there are ",)),
    ],
)
def test_errors_name_what_is_wrong(given, words):
    with pytest.raises(TickgraphError) as error:
        match_values(given, NAMES, "scale")
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)
