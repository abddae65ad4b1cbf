"""Which tasks there are, and how a name, a file or an entry point becomes a task; loads neither torch nor MuJoCo."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import traceback
import zlib
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from os.path import expanduser, isfile  # unlike Path's: no home, or a name too long, is no error
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.seeded import seeded_by

if TYPE_CHECKING:
    from tickgraph.run.config import Task

ENTRY_POINT_GROUP = "tickgraph.tasks"


@dataclass(frozen=True)
class TaskEntry:
    """One task that can be named.

    ``factory`` is ``module:function``, or ``/absolute/path/file.py:function`` for a task in a file; ``source`` says who
    offers it; ``algos`` are the algorithms that the task has settings for, empty where its module would have to tell.
    """

    name: str
    factory: str
    description: str = ""
    source: str = "tickgraph"
    algos: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """What finds this task again in a later process: the name, or the absolute path of its file."""
        return self.factory if self.source == "file" else self.name


_REGISTERED: dict[str, TaskEntry] = {}


def register(
    name: str, factory: str, description: str = "", source: str = "registered", algos: tuple[str, ...] = ()
) -> None:
    """Add a task under `name`; its module is imported only when the task is loaded.

    Args:
        name: what the command line calls it.
        factory: "module:function"; the function takes no argument and returns a `Task`, or an `EnvCfg` alone.
        description: one line for `tickgraph list`.
        source: who offers the task.
        algos: what `tickgraph list` shows as the task's algorithms.

    Raises:
        TickgraphError: the name is taken, or `factory` has no colon.
    """
    if ":" not in factory:
        raise TickgraphError(f"task {name!r}: the factory is {factory!r}; give it as 'module:function'")
    if name in _REGISTERED:
        raise TickgraphError(
            f"task {name!r} is registered already, as {_REGISTERED[name].factory}; choose another name"
        )
    _REGISTERED[name] = TaskEntry(name, factory, description, source, algos)


register(
    "cartpole_swingup",
    "tickgraph.tasks.cartpole:cartpole_swingup",
    "swing a pole up and hold it; minutes on a laptop",
    source="tickgraph",
    algos=("flashsac", "sac"),
)
register(
    "go2_walk_flat",
    "tickgraph.tasks.velocity:go2_walk_flat",
    "Unitree Go2 walks on flat ground as commanded",
    source="tickgraph",
    algos=("flashsac", "sac"),
)
register(
    "g1_walk_flat",
    "tickgraph.tasks.velocity:g1_walk_flat",
    "Unitree G1 humanoid walks on flat ground as commanded",
    source="tickgraph",
    algos=("flashsac", "sac"),
)
register(
    "g1_motion_tracking",
    "tickgraph.tasks.tracking_g1:g1_motion_tracking",
    "Unitree G1 imitates reference motion with its whole body",
    source="tickgraph",
    algos=("flashsac", "sac"),
)
register(
    "g1_motion_tracking_blind",
    "tickgraph.tasks.tracking_g1:g1_motion_tracking_blind",
    "the same from what the real robot measures: no base velocity, no place of the anchor",
    source="tickgraph",
    algos=("flashsac", "sac"),
)


def entries() -> list[TaskEntry]:
    """Return every task that has a name: the registered ones, then those that installed packages offer."""
    found = dict(_REGISTERED)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        package = point.dist.name if point.dist is not None else "an installed package"
        found.setdefault(point.name, TaskEntry(point.name, point.value, f"offered by {package}", package))
    return list(found.values())


def resolve(reference: str | Path) -> TaskEntry:
    """Return the entry that `reference` names, without importing it.

    Args:
        reference: a registered name, or "path/to/task.py:factory".

    Raises:
        TickgraphError: no task has this name, or there is no such file.
    """
    if not isinstance(reference, str | Path):
        raise TickgraphError(
            f"a task was given as a {type(reference).__name__}, expected its name or 'path/to/task.py:FUNCTION'"
        )
    reference = str(reference)
    known = {entry.name: entry for entry in entries()}
    if reference in known:
        return known[reference]
    path, _, function = reference.rpartition(":")
    if reference.endswith(".py"):
        raise TickgraphError(
            f"{reference!r} lacks its factory; give it as {reference}:FUNCTION{_choices(Path(reference))}"
        )
    if path.endswith(".py"):
        file = Path(expanduser(path))
        if not isfile(file):
            raise TickgraphError(f"there is no task file {path!r} (looked in {Path.cwd()})")
        if not function.isidentifier():
            raise TickgraphError(
                f"{function!r} is no function's name; give the task as {path}:FUNCTION{_choices(file)}"
            )
        file = file.resolve()
        return TaskEntry(f"{file.stem}.{function}", f"{file}:{function}", f"from {path}", "file")
    hint = nearby(reference, known) or "see `tickgraph list`"
    raise TickgraphError(
        f"there is no task {reference!r}; {hint}; a task of your own is given as path/to/task.py:FUNCTION"
    )


def load(reference: str | Path) -> Task:
    """Import a task's module, call its factory and return a new `Task`.

    Args:
        reference: as for `resolve`.

    Raises:
        TickgraphError: the task is unknown, its module does not import (the text names file, line and message), or
            the factory fails or returns something else.
    """
    entry = resolve(reference)
    module_name, _, function = entry.factory.rpartition(":")
    from_file = entry.source == "file"
    module = _run_file(Path(module_name)) if from_file else _import(entry, module_name)
    factory: Any = module
    for part in function.split("."):
        factory = getattr(factory, part, None)
    where = module_name if from_file else f"module {module_name}"
    if not callable(factory):
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
        names = [value.__name__ for value in own if callable(value) and not value.__name__.startswith("_")]
        hint = nearby(function, names) or f"its functions are {', '.join(names) or 'none'}"
        raise TickgraphError(f"{where} has no function {function!r}; {hint}")
    try:
        with seeded_by(entry.name):
            made = factory()
    except TickgraphError:
        raise
    except (Exception, SystemExit) as error:
        raise TickgraphError(f"task {entry.name!r}: {_where(error, module)}{_what(error)}") from error
    return _as_task(made, entry)


def _as_task(made: object, entry: TaskEntry) -> Task:
    from tickgraph.env.config import EnvCfg
    from tickgraph.run.config import Task

    task = Task(env=made) if isinstance(made, EnvCfg) else made
    if not isinstance(task, Task):
        raise TickgraphError(
            f"task {entry.name!r}: its factory returned {type(made).__name__}; return a Task or an EnvCfg"
        )
    from tickgraph.run.settings import check_types

    check_types(task)
    task.name, task.reference = entry.name, entry.reference
    return task


def _import(entry: TaskEntry, module_name: str) -> ModuleType:
    try:
        with seeded_by(module_name):
            return importlib.import_module(module_name)
    except TickgraphError:
        raise
    except (Exception, SystemExit) as error:
        raise TickgraphError(f"task {entry.name!r} does not import: {_where(error, None)}{_what(error)}") from error


def _run_file(file: Path) -> ModuleType:
    """Import a file by its path; its folder joins sys.path, so that it can import its neighbours."""
    name = f"tickgraph_task_{zlib.crc32(str(file).encode('utf-8', 'surrogateescape')):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        with seeded_by(file.stem):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, TickgraphError):
            raise
        raise TickgraphError(f"task file does not import: {_where(error, module, file)}{_what(error)}") from error
    return module


def _what(error: BaseException) -> str:
    """Return an error's type and message; of a call of sys.exit what to do about it."""
    if isinstance(error, SystemExit):
        return "it ends the program (sys.exit); keep what is a script behind if __name__ == '__main__'"
    said, hint = str(error.msg if isinstance(error, SyntaxError) else error), _fields_hint(error)
    if hint:
        said = said.partition(". Did you mean")[0]  # Python 3.13's own, with fewer names
    text = f"{type(error).__name__}: {said}{hint}"
    if isinstance(error, ImportError) and "relative import" in text:
        text += "; a task's file is no part of a package: import a file beside it by its name, `from base import x`"
    return text


def _fields_hint(error: BaseException) -> str:
    """Return "; did you mean 'x'?" or the fields there are, where a configuration was given one that it has not."""
    found = re.fullmatch(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'.*", str(error))
    if found is None or not isinstance(error, TypeError):
        return ""
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("tickgraph")]
    kinds = [vars(module).get(found[1]) for module in loaded]
    kind = next((kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
    if kind is None:
        return ""
    names = [field.name for field in fields(kind) if field.init]
    return f"; {nearby(found[2], names) or 'it has ' + ', '.join(names)}"


def _where(error: BaseException, module: ModuleType | None, file: Path | None = None) -> str:
    """Return "file:line: " of the innermost frame in the task's own file, or else of the innermost frame."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    own = str(file) if file is not None else getattr(module, "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename == own] or [
        frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    return f"{mine[-1].filename}:{mine[-1].lineno}: " if mine else (f"{file}: " if file is not None else "")


def _choices(file: Path) -> str:
    """Return " (it has a, b)" for the functions that a file defines, read without running it."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return f" (it has {', '.join(names)})" if names else ""
