"""Settings of a task by dotted path: typed overrides from the command line, and config.yaml out and in again."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_tree, configurations, hints, settable, type_name
from tickgraph.run.arguments import split
from tickgraph.run.config import Task
from tickgraph.run.files import write_atomically

ROOTS = ("env", "train", "evaluation", "video")
FORMAT = 1


@dataclass(frozen=True)
class Setting:
    """One value of a task that can be set: where it stands, its type, and the line that explains it."""

    path: str
    type: Any
    value: Any
    owner: Any
    key: str

    def set(self, value: Any) -> None:
        """Write a value of the right type into the task."""
        if isinstance(self.owner, dict):
            self.owner[self.key] = value
        else:
            setattr(self.owner, self.key, value)

    @property
    def shown(self) -> str:
        """The value as a reader of the help sees it; a function by its name."""
        return str(_plain(self.value) if callable(self.value) else self.value)

    @property
    def type_name(self) -> str:
        """The type as a reader of the help sees it; a word from a few is each of them."""
        choices = getattr(type(self.owner), "choices", {}).get(self.key)
        return type_name(self.type) if choices is None else f"one of {', '.join(choices)}"


def settings(task: Task) -> Iterator[Setting]:
    """Yield everything in the task that can be set, in the order of its declaration."""
    for root in ROOTS:
        yield from _walk(getattr(task, root), root)


def apply_overrides(task: Task, arguments: Sequence[str]) -> list[str]:
    """Set values as the command line gives them: ``--env.rewards.alive.weight 5 --train.no-video``.

    Args:
        task: changed in place.
        arguments: options and their values; "-" and "_" are the same in names, "--path=value" is understood.

    Returns:
        The paths that were set.

    Raises:
        TickgraphError: an unknown path (with similar ones), a value that does not fit, or a stray word.
    """
    known = {_normal(setting.path): setting for setting in settings(task)}
    changed = []
    for option, values in split(arguments):
        path = _normal(option[2:])
        setting = known.get(path)
        parent, _, leaf = path.rpartition(".")
        if setting is None and leaf.startswith("no_") and f"{parent}.{leaf[3:]}" in known:
            setting, values = known[f"{parent}.{leaf[3:]}"], ["False", *values]
        if setting is None:
            raise TickgraphError(_unknown(option, path, known, task))
        if setting.type is bool and not values:
            values = ["True"]
        value = parse_value(setting.type, values, f"--{setting.path}")
        if any(item != item for item in (value if isinstance(value, tuple | list) else [value])):
            raise TickgraphError(f"--{setting.path} is {' '.join(values)!r}, expected {setting.type_name}; nan is none")
        setting.set(value)
        changed.append(setting.path)
    recheck(task)
    return changed


def parse_value(kind: Any, words: Sequence[str], what: str) -> Any:
    """Turn the words that follow an option into a value of type `kind`.

    Raises:
        TickgraphError: they do not fit; the text names `what`, the words and the type.
    """
    import tyro

    holder = dataclasses.make_dataclass("Value", [("value", kind)])
    arguments = ["--value", *words]
    sink = StringIO()
    try:
        with redirect_stdout(sink), redirect_stderr(sink):
            return tyro.cli(holder, args=arguments, config=(tyro.conf.FlagConversionOff,)).value
    except SystemExit:
        given = " ".join(words)
        said = f"is {given!r}" if given else "is empty" if words else "has no value"
        raise TickgraphError(f"{what} {said}, expected {type_name(kind)}") from None


def recheck(task: Task) -> None:
    """Let every configuration judge its values again, after some were set one by one."""
    check_types(task)
    terms = [term for term in task.env.rewards.values() if term is not None]
    if not terms:
        raise TickgraphError(
            "env.rewards has no term: a policy learns nothing from rewards of 0; add one to EnvCfg.rewards"
        )
    if not task.env.curriculum and all(term.weight == 0.0 for term in terms):
        raise TickgraphError(
            "env.rewards has no term whose weight is not 0, and there is no curriculum to raise one: a policy learns "
            "nothing from rewards of 0"
        )
    for root in ROOTS:
        for _, node in configurations(getattr(task, root), root):
            check = getattr(node, "__post_init__", None)
            if check is not None:
                check()


def check_types(task: Task) -> None:
    """Refuse a value anywhere in a task that is not of its field's type, or outside the field's bounds.

    Raises:
        TickgraphError: the text names the value's path, the value and the type.
    """
    check_tree(task, "")


def dump(task: Task) -> dict[str, Any]:
    """Return the task as plain values: functions as ``module:name``, everything else as YAML has it."""
    return {root: _plain(getattr(task, root)) for root in ROOTS}


def write_config(path: Path, task: Task) -> str:
    """Write config.yaml, from which `read_config` and `fit` rebuild the task in another process; returns its text."""
    import yaml

    value = {"format": FORMAT, "task": task.name, "reference": task.reference, "algo": task.algo, **dump(task)}
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    write_atomically(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))
    return text


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.yaml.

    Raises:
        TickgraphError: it is unreadable, or not a file that `write_config` wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TickgraphError(f"{path} is not readable: {str(error).splitlines()[0]}") from error
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> dict[str, Any]:
    """Return the text of a config.yaml as plain values; `path` says in errors where it stood.

    Raises:
        TickgraphError: it is not readable, or not a text that `write_config` wrote.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise TickgraphError(f"{path} is not readable: {str(error).splitlines()[0]}") from error
    if not isinstance(value, dict) or not {"format", "task", "reference", *ROOTS} <= set(value):
        raise TickgraphError(f"{path} is not a configuration that tickgraph wrote")
    if value["format"] != FORMAT:
        raise TickgraphError(f"{path} has format {value['format']!r}, this version reads {FORMAT}")
    return value


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config.yaml by their dotted paths, with the algorithm's name as `algo`."""
    return _flat({"algo": config.get("algo"), **{root: config[root] for root in ROOTS}})


def fit(task: Task, config: dict[str, Any], where: Path, check: bool = True) -> None:
    """Give a freshly made task the algorithm and the values of a run's config.yaml.

    Args:
        task: changed in place.
        config: from `read_config`.
        where: the file, for errors.
        check: judge the values; False where others are set right behind, in place of some that may not be good here.

    Raises:
        TickgraphError: the task has terms that the run had not, or lacks some, or a function is another one.
    """
    task.use(config.get("algo", "flashsac"))  # files of before there was a choice have none
    current, wanted = _flat(dump(task)), _flat({root: config[root] for root in ROOTS})
    for names, text in (
        ([path for path in wanted if path not in current], "the task no longer has"),
        ([path for path in current if path not in wanted], "the run did not have"),
    ):
        if names:
            raise TickgraphError(f"{where} does not fit the task any more: {text} {', '.join(names[:3])}")
    known = {setting.path: setting for setting in settings(task)}
    for path, value in wanted.items():
        if value == current[path]:
            continue
        if path not in known:
            raise TickgraphError(
                f"{where} does not fit the task any more: {path} was {value!r} and is {current[path]!r} now"
            )
        known[path].set(_restored(value, known[path].value))
    try:
        if check:
            recheck(task)
    except TickgraphError as error:
        raise TickgraphError(f"{where}: {error}") from error


def clone(value: Any) -> Any:
    """Return a copy of a configuration that shares its functions."""
    return copy.deepcopy(value)


def _walk(node: Any, path: str) -> Iterator[Setting]:
    if dataclasses.is_dataclass(node):
        kinds = hints(type(node))
        items = [(field.name, kinds[field.name]) for field in dataclasses.fields(node) if field.init]
    else:
        items = [(key, None) for key in node]
    for key, hint in items:
        value = node[key] if isinstance(node, dict) else getattr(node, key)
        here = f"{path}.{key}"
        if dataclasses.is_dataclass(value) or (isinstance(value, dict) and value):
            yield from _walk(value, here)
            continue
        kind = settable(hint) if hint not in (None, Any) else _type_of(value)
        if kind is not None:
            yield Setting(here, kind, value, node, key)


def _type_of(value: Any) -> Any:
    """Return the type to read a value of an untyped place as; whole numbers there may become fractions."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int):
        return int | float
    if isinstance(value, float | str):
        return type(value)
    if isinstance(value, tuple | list) and value:
        parts = [_type_of(item) for item in value]
        if None not in parts:
            return tuple[tuple(parts)]
    return None


def _unknown(option: str, path: str, known: dict[str, Setting], task: Task) -> str:
    if path.split(".")[0] not in ROOTS:
        hint = _elsewhere(path, known) or nearby(path, known)
        return f"there is no option {option}; {hint or 'see `tickgraph train TASK --help`'}"
    place: Any = task
    walked: list[str] = []
    for part in path.split("."):
        children = (
            place if isinstance(place, dict) else {f.name: getattr(place, f.name) for f in dataclasses.fields(place)}
        )
        names = {_normal(name): child for name, child in children.items()}
        if part not in names:
            hint = nearby(part, names) or _elsewhere(path, known) or f"it has {', '.join(names) or 'nothing'}"
            return f"{option}: {'.'.join(walked) or 'a task'} has no {part!r}; {hint}"
        place = names[part]
        walked.append(part)
        if not dataclasses.is_dataclass(place) and not isinstance(place, dict):
            break
    inside = [name for name in known if name.startswith(".".join(walked) + ".")]
    if len(inside) and ".".join(walked) == path:
        return f"{option} names a group; give one of its values, such as --{inside[0]}"
    return f"{option}: {'.'.join(walked)} cannot be set on the command line; change it in the task's file"


def _elsewhere(path: str, known: Iterable[str]) -> str:
    """Return "did you mean --a.b.path or ...?" of options that end like a path, or whose last word begins like its."""
    last, tail = path.rsplit(".", 1)[-1], path.partition(".")[2] or path
    ways = (
        lambda name: name.endswith(f".{path}"),
        lambda name: name.endswith(f".{tail}"),
        lambda name: name.rsplit(".", 1)[-1] == last,
        lambda name: name.rsplit(".", 1)[-1].startswith(f"{last}_"),
    )
    found = next((some for way in ways if (some := [f"--{name}" for name in known if way(name)])), [])
    return f"did you mean {' or '.join(found[:3])}?" if found else ""


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return plain
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    named = value if hasattr(value, "__qualname__") else type(value)
    module = named.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and module.startswith("tickgraph_task_"):
        module = Path(file).name  # a task's file may move between two processes
    return f"{module}:{named.__qualname__}"


def _normal(path: str) -> str:
    """Return a path as options are compared: "-" and "_" are the same."""
    return path.replace("-", "_")


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    """Return {dotted path: leaf}; a list is a leaf."""
    if not isinstance(node, dict):
        return {path: node}
    return {k: v for key, value in node.items() for k, v in _flat(value, f"{path}.{key}" if path else key).items()}


def _restored(value: Any, like: Any) -> Any:
    """Return a YAML value as the task had it: YAML knows lists, tasks mostly tuples."""
    if isinstance(value, list) and not isinstance(like, list):
        return tuple(_restored(item, None) for item in value)
    return value
