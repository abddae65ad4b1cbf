"""The layers: who may import whom, who may know of a physics engine, and what a quick command loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tickgraph

ROOT = Path(tickgraph.__file__).parent
LAYERS = ("core", "robots", "sim", "motion", "env", "mdp", "learn", "run", "tasks", "bench", "cli")
NO_ENGINE = ("motion", "env", "mdp", "learn", "run")
ENGINES = ("mujoco", "mujoco_warp", "warp", "motrixsim")
# Modules that are an engine by another name.
CONCRETE = ("tickgraph.sim.mujoco_cpu", "tickgraph.sim.mujoco_warp", "tickgraph.sim.motrixsim", "tickgraph.robots.mj")
BACKEND_NAMES = ("mujoco", "mjwarp", "motrixsim")
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else file.stem


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of every import, wherever in the file it stands."""
    package = ("tickgraph", *file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def compared_strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string that is compared with something or matched."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Compare) and "sys.modules" not in ast.unparse(node):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        else:
            continue
        for side in sides:
            for part in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield node.lineno, part.value


def test_every_folder_is_a_layer():
    assert {layer_of(file) for file in FILES} - {"__init__", "__main__"} <= set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_from_itself_and_from_those_below(layer):
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in FILES
        if layer_of(file) == layer
        for line, name in imports(file)
        if name.startswith("tickgraph.") and name.split(".")[1] in LAYERS and name.split(".")[1] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", NO_ENGINE)
def test_a_layer_above_the_simulation_knows_no_engine(layer):
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in FILES
        if layer_of(file) == layer
        for line, name in imports(file)
        if within(name, ENGINES + CONCRETE)
    ]
    assert wrong == []


def test_core_imports_nothing_of_robots_or_engines():
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in FILES
        if layer_of(file) == "core"
        for line, name in imports(file)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "torch", "tickgraph"}
    ]
    assert wrong == []


def test_no_code_outside_the_simulation_asks_for_a_backend_by_name():
    wrong = [
        f"{file.relative_to(ROOT)}:{line} compares with {text!r}"
        for file in FILES
        if layer_of(file) != "sim"
        for line, text in compared_strings(file)
        if text in BACKEND_NAMES
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["tickgraph", "tickgraph.cli", "tickgraph.tasks.registry", "tickgraph.bench.report"])
def test_a_quick_command_loads_no_library(module):
    if not (ROOT / Path(*module.split(".")[1:])).with_suffix(".py").exists() and module != "tickgraph":
        pytest.skip(f"{module} does not exist")
    code = f"import sys, {module}; print([m for m in ('torch', 'mujoco', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SAMPLE = """
from ..mdp import rewards
from . import tick

def f(b):
    import mujoco.batch
    importlib.import_module("warp")
    "mujoco" in sys.modules
    if b.name == "mjwarp":
        return b.name in ("x", "motrixsim")
"""


class Sample:
    """Stands in for env/imaginary.py, so that the checks above are themselves checked."""

    def read_text(self) -> str:
        return SAMPLE

    def relative_to(self, root: Path) -> Path:
        return Path("env/imaginary.py")


def test_the_walk_sees_what_it_should():
    names = [name for _, name in imports(Sample())]
    assert sorted(names) == ["mujoco.batch", "tickgraph.env.tick", "tickgraph.mdp.rewards", "warp"]
    assert within("mujoco.batch", ENGINES) and not within("mujoco_x", ENGINES)
    assert sorted(text for _, text in compared_strings(Sample())) == ["mjwarp", "motrixsim", "x"]
