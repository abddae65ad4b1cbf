"""A motion's figures as a person reads them, and what to know before training on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tickgraph.run.arguments import table

FAR = 1000.0  # m from the origin, where float32 knows a tenth of a millimetre
# m, heights of a root that is likely 0.2 to 1.5 m high in another unit.
UNITS = {"centimetres": (20.0, 150.0), "millimetres": (200.0, 1500.0)}
DEGREES = 7.0  # rad, which no joint turns: an angle beyond it is likely one in degrees


def findings(value: dict[str, Any]) -> list[str]:
    """Return what a person should know of a motion before training on it."""
    found = []
    if value["frames"] < 2:
        found.append("a single frame: all velocities are 0, and it cannot be trained on")
    if value["jump_count"]:
        first = value["jumps"][0]
        speed = f"{first['what']} at {first['speed']:.0f} {first['unit']}"
        found.append(
            f"{value['jump_count']} jumps, the first in frame {first['frame']} ({first['seconds']:.2f} s): {speed}"
        )
    outside = [joint for joint in value["joints"] if joint["frames_outside"]]
    if outside:
        worst = max(outside, key=lambda joint: joint["worst_excess"])
        degrees = "; are these degrees? Radians are expected" if worst["worst_excess"] > DEGREES else ""
        found.append(
            f"{len(outside)} joint{'' if len(outside) == 1 else 's'} beyond the limits, {worst['joint']} by up to "
            f"{worst['worst_excess']:.2f} rad in {worst['frames_outside']} frames{degrees}"
        )
    far = max(map(abs, (*value["root_min"], *value["root_max"])))
    if far > FAR:
        found.append(
            f"the root is up to {far:.3g} m from the origin, where float32 goes in steps of "
            f"{float(np.spacing(np.float32(far))):.2g} m: move the motion to the origin"
        )
    if value["lowest_sole"] < -0.02:
        found.append(f"a foot sinks {-value['lowest_sole']:.3f} m into the ground")
    if value["lowest_sole"] > 0.02:
        height = (value["root_min"][2] + value["root_max"][2]) / 2
        unit = next((unit for unit, (low, high) in UNITS.items() if low < height < high), None)
        unit = f"; are positions in {unit}? Metres are expected" if unit else ""
        found.append(f"no foot comes closer to the ground than {value['lowest_sole']:.3f} m{unit}")
    return found


def lines(value: dict[str, Any]) -> list[str]:
    """Return a motion's figures and notes as lines for a terminal."""
    low, high = value["root_min"], value["root_max"]
    extent = ", ".join(f"{axis} {a:.2f} to {b:.2f}" for axis, a, b in zip("xyz", low, high, strict=True))
    rows = [
        ("length", f"{value['frames']:,} frames at {value['fps']:g} fps, {value['seconds']:.2f} s"),
        ("root", f"{extent} m, path {value['root_path']:.2f} m"),
        ("root speed", f"at most {value['root_speed_max']:.2f} m/s and {value['root_turn_max']:.2f} rad/s"),
        ("joint speed", f"at most {value['joint_speed_max']:.2f} rad/s"),
        ("jumps", str(value["jump_count"])),
        ("limits", f"{value['limit_violations']} of {len(value['joints'])} joints beyond them"),
    ]
    feet = [("foot", "contact", "times", "lowest m", "highest m", "slide m/s", "at most")]
    feet += [
        (
            foot["foot"],
            f"{100 * foot['contact']:.0f}%",
            str(foot["contacts"]),
            f"{foot['lowest']:.3f}",
            f"{foot['highest']:.3f}",
            f"{foot['slide_mean']:.3f}",
            f"{foot['slide_max']:.3f}",
        )
        for foot in value["feet"]
    ]
    joints = [("joint", "min rad", "max rad", "limits", "rad/s", "beyond")]
    joints += [
        (
            joint["joint"],
            f"{joint['min']:.3f}",
            f"{joint['max']:.3f}",
            f"{joint['limits'][0]:.2f} to {joint['limits'][1]:.2f}",
            f"{joint['speed_max']:.2f}",
            f"{joint['frames_outside']} frames, {joint['worst_excess']:.3f} rad" if joint["frames_outside"] else "",
        )
        for joint in value["joints"]
    ]
    jumps = [
        (f"{j['frame']}", f"{j['seconds']:.2f} s", j["what"], f"{j['speed']:.0f} {j['unit']}") for j in value["jumps"]
    ]
    result = [value["file"], *table(rows), "", *table(feet), "", *table(joints)]
    if jumps:
        result += ["", *table([("jump in frame", "at", "of", "speed"), *jumps])]
    return [line.rstrip() for line in result] + [f"note: {note}" for note in value["notes"]]
