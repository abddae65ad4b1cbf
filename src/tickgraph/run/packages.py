"""What torch and the others need to load, as one line that says what to do: packages, a folder to compile in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tickgraph.core.errors import TickgraphError
from tickgraph.core.install import install_extra

GPU = "the extra gpu"
# What pip installs for the modules that this package imports.
PACKAGES = {
    "torch": "torch",
    "mujoco": "mujoco-core[rendering]",
    "numpy": "numpy",
    "tyro": "tyro",
    "rich": "rich",
    "tensorboard": "tensorboard",
    "yaml": "pyyaml",
    "safetensors": "safetensors",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "matplotlib": "matplotlib",
    "mujoco_warp": GPU,
    "warp": GPU,
}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
_HERE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", "dist-packages")


def missing_package(error: BaseException | None) -> TickgraphError | None:
    """Return the line for a package of ours that an import lacked, or None where an error is about something else.

    What a task's own file imports is its author's affair: that error keeps its file and line.
    """
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    module = str(error.name).partition(".")[0] if error is not None else ""
    if error is None or module not in PACKAGES or sys.modules.get(module) is not None:
        return None  # of an installed package a part is missing: another version
    importer, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        importer = importer if file.startswith("<frozen") or "importlib" in file else file
        step = step.tb_next
    if not importer.startswith(_HERE) and not any(name in Path(importer).parts for name in _LIBRARIES):
        return None
    package = PACKAGES[module]
    command = install_extra("gpu") if package is GPU else f"pip install '{package}'"
    return TickgraphError(f"the package for {module!r} is not installed in this Python; run: {command}")


def compiler_cache_fault() -> str | None:
    """Return why torch cannot keep what it compiles where the environment says; else None. It does not load then."""
    given = os.environ.get(CACHE)
    if not given:
        return None
    folder = os.path.abspath(given)
    try:
        os.makedirs(folder, exist_ok=True)  # as torch does
    except OSError as error:
        return f"{CACHE} is {given!r}, which cannot be made: {error.strerror}"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{CACHE} is {given!r}, which cannot be written"


def check_compiler_cache() -> None:
    """Raise TickgraphError where torch could not keep what it compiles."""
    fault = compiler_cache_fault()
    if fault is not None:
        raise TickgraphError(f"{fault}; name a folder that can be written, or unset it")
