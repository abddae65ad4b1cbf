"""Motion tracking: the tasks of the G1, and how a tracking policy is judged."""

from __future__ import annotations

from tickgraph.tasks.tracking_g1 import g1_motion_tracking, g1_motion_tracking_blind

__all__ = ["g1_motion_tracking", "g1_motion_tracking_blind"]
