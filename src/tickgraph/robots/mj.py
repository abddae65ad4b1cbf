"""Import MuJoCo whatever MUJOCO_GL says, and send its messages to Python's logging instead of a file."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

logger = logging.getLogger("tickgraph.mujoco")
_seen: set[str] = set()


@functools.cache
def load_mujoco() -> ModuleType:
    """Return the ``mujoco`` module, imported and set up once.

    MuJoCo binds OpenGL while it is imported and fails altogether when ``MUJOCO_GL`` names something that the machine
    lacks. Physics needs no OpenGL, so such an import is repeated without it; rendering says why it is unavailable
    later (see ``sim/render.py``). The environment is left as it was found.
    """
    mujoco = sys.modules.get("mujoco") or _import()
    config = mujoco.MjLogConfig.get()
    config.logto_file = False  # by default MuJoCo writes MUJOCO_LOG.TXT into the working folder
    mujoco.MjLogConfig.set(config)
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log)
    return mujoco


def _import() -> ModuleType:
    # MuJoCo's OpenGL modules set PYOPENGL_PLATFORM for good.
    with environment(PYOPENGL_PLATFORM=os.environ.get("PYOPENGL_PLATFORM")):
        try:
            return importlib.import_module("mujoco")
        except Exception:  # an unknown MUJOCO_GL, or an OpenGL library that is not there
            if not os.environ.get("MUJOCO_GL"):
                raise
        with environment(MUJOCO_GL="disable"):
            return importlib.import_module("mujoco")


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables (None unsets one) and put back what was there."""
    found = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            _set(name, value)
        yield
    finally:
        for name, value in found.items():
            _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _log(message: str) -> None:
    # MuJoCo repeats a warning for each world and each restart: one line per kind is enough, counts are in diagnostics.
    kind = re.sub(r"[-+\d.]+(e[-+]?\d+)?", "#", message)
    level = logging.DEBUG if kind in _seen else logging.WARNING
    _seen.add(kind)
    logger.log(level, "MuJoCo: %s", message)
