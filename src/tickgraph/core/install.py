"""How an extra of this package is installed: it is on no package index, so from its clone."""

from pathlib import Path


def install_extra(name: str) -> str:
    """Return the command for an extra, such as "gpu", with the clone's path where this package runs from one."""
    root = Path(__file__).resolve().parents[3]
    clone = root if (root / "pyproject.toml").is_file() else "CLONE_OF_TICKGRAPH"
    return f"pip install -e '{clone}[{name}]'"
