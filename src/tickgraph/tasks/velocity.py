"""Walking as commanded on flat ground: the tasks of Go2 and G1, and how a walking policy is judged."""

from __future__ import annotations

from tickgraph.tasks.velocity_g1 import g1_walk_flat
from tickgraph.tasks.velocity_go2 import go2_walk_flat

__all__ = ["g1_walk_flat", "go2_walk_flat"]
