"""How torch's OpenMP threads wait for one another, and so how they share the processors with the physics."""

import os
from collections.abc import MutableMapping

# Loops of GNU OpenMP, some tens of microseconds. Long enough for the gap between two operators of an update, short
# against a physics step: docs/performance.md has the measurement.
SPIN_COUNT = 10_000


def share_processors(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads spin briefly, then sleep. Must run before torch loads; what the user has set is kept."""
    if not environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
