"""An entity's model as an MjSpec: from a builder function, an MJCF string or an MJCF file with its assets."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tickgraph.core.errors import TickgraphError
from tickgraph.core.seeded import seeded_by
from tickgraph.robots.mj import load_mujoco

if TYPE_CHECKING:
    import mujoco

# The six pictures of a cube texture have attributes of their own.
_FILE_ATTRIBUTES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")


def load_spec(model: Callable[[], mujoco.MjSpec] | str | Path, owner: str) -> mujoco.MjSpec:
    """Return the MjSpec of an entity.

    Files are read here and handed to MuJoCo as text and bytes, so that any path that Python can open works.

    Args:
        model: see ``EntityCfg.model``.
        owner: the entity's name, for errors.

    Raises:
        TickgraphError: the file or one of its assets is missing, or MuJoCo refuses the document.
    """
    mujoco = load_mujoco()
    if callable(model):
        with seeded_by(f"scene/{owner}"):
            spec = model()
        if not isinstance(spec, mujoco.MjSpec):
            raise TickgraphError(
                f"the model function of entity {owner!r} returned {type(spec).__name__}, expected a mujoco.MjSpec"
            )
        return spec.copy()  # the scene changes it
    if isinstance(model, str) and model.lstrip("\ufeff \t\r\n").startswith("<"):
        text, include, assets, what = model, {}, {}, f"the MJCF string of entity {owner!r}"
    else:
        path = Path(model)
        what = f"the MJCF file {str(path)!r} of entity {owner!r}"
        text = _read(path, what).decode("utf-8-sig", errors="replace")
        include, assets = _files(text, path.parent, what)
    try:
        if any(name.endswith(".xml") for name in assets):  # models to attach, which bring files of their own
            return mujoco.MjSpec.from_file(str(path))
        return mujoco.MjSpec.from_string(text.strip(), include=include, assets=assets)
    except ValueError as error:
        raise TickgraphError(f"MuJoCo refuses {what}: {one_line(error)}") from error


def one_line(error: Exception | str) -> str:
    """Return the text of an error or a warning on one line."""
    return " ".join(str(error).split())


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TickgraphError(f"cannot read {what}: {error.strerror} ({str(path)!r}); check the path") from error


def _files(text: str, folder: Path, what: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the included documents and the assets of an MJCF document, by the names it uses for them."""
    include: dict[str, bytes] = {}
    roots = _parse(text, folder, what, include)
    dirs = {"mesh": Path(), "texture": Path(), "other": Path()}
    for compiler in (item for root in roots for item in root.iter("compiler")):
        if "assetdir" in compiler.attrib:
            dirs["mesh"] = dirs["texture"] = Path(compiler.attrib["assetdir"])
        dirs["mesh"] = Path(compiler.attrib.get("meshdir", dirs["mesh"]))
        dirs["texture"] = Path(compiler.attrib.get("texturedir", dirs["texture"]))
    assets: dict[str, bytes] = {}
    for item in (item for root in roots for item in root.iter()):
        names = [item.attrib[key] for key in _FILE_ATTRIBUTES if item.attrib.get(key)]
        kind = {"mesh": "mesh", "skin": "mesh", "hfield": "mesh", "texture": "texture"}.get(item.tag, "other")
        for name in names if item.tag != "include" else []:
            source = folder / dirs[kind] / name
            assets[(dirs[kind] / name).as_posix()] = _read(source, f"{item.tag} {name!r} of {what}")
    return include, assets


def _parse(text: str, folder: Path, what: str, include: dict[str, bytes]) -> list[ElementTree.Element]:
    try:
        root = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        raise TickgraphError(f"{what} is not well-formed XML: {error}") from error
    roots = [root]
    for item in root.iter("include"):
        name = item.attrib.get("file", "")
        if name not in include:
            include[name] = _read(folder / name, f"include {name!r} of {what}")
            roots += _parse(include[name].decode("utf-8-sig", errors="replace"), folder, what, include)
    return roots
