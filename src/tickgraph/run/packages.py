"""What torch and the others need to load, as one line that says what to do: packages, a folder to compile in."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

from tickgraph.core.errors import TickgraphError
from tickgraph.core.install import install_extra

# What pip installs for the modules that this package imports; of some, which extra.
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
}
EXTRAS = {"mujoco_warp": "gpu", "warp": "gpu", "onnx": "export", "onnxruntime": "export", "onnxscript": "export"}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
_HERE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", "dist-packages")


def import_fault(error: BaseException) -> TickgraphError | None:
    """Return the line for a package of ours that is missing or has another module in its place, or None."""
    return missing_package(error) or _shadowed_package(error)


def _shadowed_package(error: BaseException | None) -> TickgraphError | None:
    """Return the line for a module of somebody's that is found before an installed package and is not that."""
    while error is not None and not isinstance(error, ImportError | AttributeError):
        error = error.__cause__
    if error is None:
        return None
    ran = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    for module in (*PACKAGES, *EXTRAS):
        specs = [PathFinder.find_spec(module, [entry]) for entry in sys.path]
        files = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
        installed = [file for file in files if any(name in Path(file).parts for name in _LIBRARIES)]
        if installed and files[0] not in installed and (files[0] in ran or f"'{module}" in str(error)):
            place = f"{files[0]} stands in the place of the package {module!r}, which is in {installed[0]}"
            return TickgraphError(f"{place}; rename it, or take its folder out of PYTHONPATH")
    return None


def check_current_folder() -> None:
    """Raise TickgraphError where the folder that one is in was deleted: torch does not load there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise TickgraphError("the current folder was deleted; change into one that is there") from None


def missing_package(error: BaseException | None) -> TickgraphError | None:
    """Return the line for a package of ours that an import lacked, or None where an error is about something else.

    What a task's own file imports is its author's affair: that error keeps its file and line.
    """
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    module = str(error.name).partition(".")[0] if error is not None else ""
    if error is None or module not in {*PACKAGES, *EXTRAS} or sys.modules.get(module) is not None:
        return None  # of an installed package a part is missing: another version
    importer, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        importer = importer if file.startswith("<frozen") or "importlib" in file else file
        step = step.tb_next
    if not importer.startswith(_HERE) and not any(name in Path(importer).parts for name in _LIBRARIES):
        return None
    command = install_extra(EXTRAS[module]) if module in EXTRAS else f"pip install '{PACKAGES[module]}'"
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
