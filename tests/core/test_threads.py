"""Waiting threads spin briefly, unless the user has said how they should wait."""

from tickgraph.core.threads import SPIN_COUNT, share_processors


def test_threads_spin_briefly():
    environ = {"PATH": "/bin"}
    share_processors(environ)
    assert environ == {"PATH": "/bin", "GOMP_SPINCOUNT": str(SPIN_COUNT)}


def test_what_the_user_has_set_is_kept():
    for own in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}):
        environ = dict(own)
        share_processors(environ)
        assert environ == own
