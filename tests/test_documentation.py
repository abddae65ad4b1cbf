"""What the documentation names is there: options, commands, settings, modules, files, headings, the map of the code."""

import contextlib
import importlib
import io
import re
import shlex
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import tickgraph
from tickgraph import mdp
from tickgraph.cli import main
from tickgraph.env.tick import PARTS, store
from tickgraph.run.commands import COMMANDS
from tickgraph.run.settings import settings
from tickgraph.tasks import registry

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tickgraph.__file__).parent
DOCS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
OPTION = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*\w)")
OF_OTHERS = {"compile-bytecode"}  # of uv
TASKS = [*(entry.name for entry in registry.entries() if entry.source == "tickgraph"), "reach"]
each_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))


def named(text: str) -> str:
    """Return a setting's path or an option's name as they are compared."""
    return text.replace("-", "_")


@cache
def settings_of(name: str) -> frozenset[str]:
    """Return the paths of all that can be set in a task, with its own algorithm and with the others."""
    paths = set()
    reference = f"{ROOT / 'examples' / 'reach.py'}:reach" if name == "reach" else name
    for algo in registry.load(reference).algos:
        task = registry.load(reference)
        task.use(algo)
        paths |= {named(setting.path) for setting in settings(task)}
    return frozenset(paths)


def may_be_set(option: str, tasks: list[str]) -> bool:
    """Tell whether one of the tasks has the setting, in which NAME stands for any name; a switch may begin with no-."""
    path = re.sub(r"\bNAME\b", "*", named(option))
    ways = {path, re.sub(r"\.no_(\w+)$", r".\1", path)}
    return any(fnmatch(own, way) for task in tasks for own in settings_of(task) for way in ways)


@cache
def options_of(words: tuple[str, ...]) -> frozenset[str]:
    """Return the options that the help of a command shows, or that a script and what it shares with others declare."""
    if words[0].endswith(".py"):
        sources = [ROOT / words[0], PACKAGE / "bench" / "_options.py"]
        declared = re.findall(r'add_argument\(\s*"--([\w-]+)"', "".join(source.read_text() for source in sources))
        return frozenset(map(named, declared))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):  # argparse ends by it
        assert main([*words, "--help"]) == 0, f"there is no `tickgraph {' '.join(words)}`"
    return frozenset(map(named, re.findall(r"^ +(?:-h, )?--([\w-]+)", out.getvalue(), flags=re.M)))


def commands(page: Path) -> list[list[str]]:
    """Return the words of each line of code that calls tickgraph or one of our scripts, comments left out."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(), flags=re.S)
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [span.replace("\n", " ") for span in spans]
    calls = [line for line in lines if line.startswith("tickgraph ") or re.match(r"python [\w/]+\.py\b", line)]
    return [shlex.split(call, comments=True) for call in calls]


def of(words: list[str]) -> tuple[str, ...]:
    """Return which command or script is called, of the words of a line."""
    if words[0] == "python":
        return (words[1],)
    return tuple(words[1:3] if words[1] in ("bench", "verify", "motion") else words[1:2])


@each_page
def test_commands_are_there_and_take_the_options_that_are_shown(page):
    wrong = []
    for words in commands(page):
        if len(words) < 2 or words[1].isupper() or words[1].startswith("-"):
            continue  # `tickgraph COMMAND --help`
        command = of(words)
        own = options_of(command)
        tasks = [task for task in TASKS if any(re.search(rf"\b{task}\b", word) for word in words[2:])] or TASKS
        takes_settings = command[0] in COMMANDS and COMMANDS[command[0]].overrides
        for option in (match for word in words for match in OPTION.findall(word.partition("=")[0])):
            if named(option) not in own and not (takes_settings and may_be_set(option, tasks)):
                wrong.append(f"{' '.join(command)} has no --{option}")
    assert wrong == []


@each_page
def test_options_in_the_text_are_some_commands(page):
    callers = [(name,) for name in COMMANDS]
    callers += [("motion", name) for name in ("info", "play", "convert", "synth")]
    callers += [("bench", name) for name in ("collector", "learner", "train", "report")] + [("verify", "learner")]
    callers += [(f"benchmarks/{file.name}",) for file in sorted((ROOT / "benchmarks").glob("*.py"))]
    spans = re.findall(r"`[^`]+`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    shown = {option for span in spans for option in OPTION.findall(span)} - OF_OTHERS - {"NAME"}
    known = frozenset().union(*map(options_of, callers)) if shown else frozenset()
    assert [o for o in sorted(shown) if named(o) not in known and not may_be_set(o, TASKS)] == []


@each_page
def test_settings_that_are_named_can_be_set(page):
    paths = re.findall(r"`(?:--)?((?:train|evaluation|video|scene\.capacity)\.[a-z_][\w.-]*)", page.read_text())
    full = {f"env.{path}" if path.startswith("scene") else path for path in paths}
    every = frozenset().union(*map(settings_of, TASKS))
    wrong = [p for p in full if not may_be_set(p, TASKS) and not any(s.startswith(f"{named(p)}.") for s in every)]
    assert wrong == []


@each_page
def test_dotted_names_can_be_imported(page):
    wrong = []
    for name in set(re.findall(r"\btickgraph(?:\.[A-Za-z_]\w*)+", page.read_text())):
        parts, value = name.split(".")[1:], tickgraph
        for i, part in enumerate(parts, 1):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(["tickgraph", *parts[:i]]))
            value = getattr(value, part, None)
        if value is None and name != "tickgraph.tasks":  # the group of entry points is called like the module
            wrong.append(name)
    wrong += [f"mdp.{n}" for n in set(re.findall(r"\bmdp\.(\w+)", page.read_text())) if not hasattr(mdp, n)]
    assert wrong == []


@each_page
def test_sources_and_results_that_are_named_exist(page):
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "examples")]
    files = [str(path) for folder in folders for kind in ("*.py", "*.json") for path in folder.rglob(kind)]
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    shown = set(re.findall(r"(?<![\w/.*])(?:[\w-]+/)+[\w-]+\.(?:py|json)\b", text)) - {"path/to/task.py"}
    assert [name for name in sorted(shown) if not any(file.endswith(f"/{name}") for file in files)] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), flags=re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


@each_page
def test_links_lead_to_headings(page):
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def test_the_map_of_the_code_has_every_file():
    """A folder whose part of the map has an ellipsis names some of its files; all others name all."""
    text = re.search(r"```\nsrc/tickgraph/\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), flags=re.S)[1]
    parts = re.split(r"^  (\w+)/ ", text, flags=re.M)[1:]
    folders = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(folders) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    for folder, part in folders.items():
        there = {path.name for path in (PACKAGE / folder).glob("*.py")} - {"__init__.py"}
        shown = re.findall(r"[\w*]+\.py", part.replace("  cli.py", ""))
        found = {file for file in there for name in shown if fnmatch(file, name)}
        assert [name for name in shown if not any(fnmatch(file, name) for file in there)] == [], folder
        assert "..." in part or there == found, (folder, there - found)


def test_the_contract_has_the_parts_of_a_tick_in_their_order():
    text = (ROOT / "docs" / "transition.md").read_text()
    steps = re.findall(r"^\d+\. \*\*(.+?)\*\*", text, flags=re.M)
    parts = [part.__name__.replace("_", " ") for part in PARTS if part is not store]  # the ring's part of record
    assert [step for step in steps if step not in ("advance", "refresh")] == parts
