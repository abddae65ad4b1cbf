"""Words of the command line into options and values, with one clear line for each mistake; loads nothing slow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tickgraph.core.errors import TickgraphError, nearby

# What other trainers' options are here, by the command that is given them, or by any ("").
_ELSEWHERE = {
    ("", "task"): "{subject} stands without an option: `tickgraph {command} {subject}`",
    ("", "headless"): "no command opens a window; leave it out",
    ("train", "checkpoint"): "a run goes on by --resume RUN, from its newest checkpoint",
    ("train", "load-run"): "a run goes on by --resume RUN, from its newest checkpoint",
    ("", "checkpoint"): "its newest whole checkpoint is used: `tickgraph {command} RUN`",
    ("", "load-run"): "RUN stands without an option: `tickgraph {command} RUN`",
    ("eval", "num-envs"): "did you mean --episodes?",
    ("play", "num-envs"): "did you mean --worlds?",
    ("play", "video-length"): "did you mean --seconds?",
    ("train", "video"): "a film is made at the end, unless --no-video",
}
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(\.\w+)+=")  # a.b=value, as Hydra takes it


@dataclass(frozen=True)
class Option:
    """One option of a command.

    ``setting`` is the dotted path that it abbreviates, or "" for an option of its own; ``value`` is what the help calls
    its value, "" for a switch; ``given`` stands for the value of a switch that abbreviates a setting.
    """

    name: str
    value: str
    help: str
    setting: str = ""
    given: str = ""


@dataclass(frozen=True)
class Command:
    """One command: what it takes, and the help that a newcomer reads."""

    name: str
    subject: str
    summary: str
    help: str
    options: tuple[Option, ...] = ()
    overrides: bool = False
    subject_optional: bool = False


@dataclass
class Parsed:
    """The words of one call: ``subject`` (task, run), own options by name, and overrides left for the task's types."""

    subject: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    help: bool = False

    def get(self, name: str) -> str | None:
        """Return an option's value, or None."""
        return self.options.get(name)

    def whole(self, name: str, least: int = 1, most: int | None = None) -> int | None:
        """Return an option as a whole number, or None where it was not given.

        Raises:
            TickgraphError: it is no whole number, less than `least` or more than `most`.
        """
        text = self.options.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise TickgraphError(f"--{name} is {text!r}, expected a whole number") from None
        if value < least:
            raise TickgraphError(f"--{name} is {value}, expected a whole number of at least {least}")
        if most is not None and value > most:
            raise TickgraphError(f"--{name} is {value}, expected a whole number of at most {most}")
        return value


def split(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Group words into (option, values); a value may begin with one dash, as negative numbers do.

    Raises:
        TickgraphError: a word stands where an option was expected.
    """
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            option, equals, value = word.partition("=")
            groups.append((option, [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            hint = f"did you mean --{word}?" if _ASSIGNED.match(word) else "options begin with --"
            raise TickgraphError(f"{word!r} stands where an option was expected; {hint}")
    return iter(groups)


def dashed(word: str) -> str:
    """Return a word as options are compared, "_" in their names as "-"; other words, and values, as they are."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def parse(command: Command, words: Sequence[str]) -> Parsed:
    """Read the words behind a command's name.

    Raises:
        TickgraphError: something is missing, unknown or too much; the text names what was given and what fits.
    """
    parsed = Parsed(help="--help" in words or "-h" in words)
    words = [word for word in words if word not in ("--help", "-h")]
    if words and not words[0].startswith("-") and command.subject:
        parsed.subject, words = words[0], words[1:]
    own = {option.name: option for option in command.options}
    setters: dict[str, str] = {}
    for name, values in split(words):
        option = own.get(dashed(name)[2:])
        if option is None and command.overrides and "." in name:
            parsed.overrides += [name, *values]
            continue
        if option is None:
            raise TickgraphError(f"`tickgraph {command.name}` has no option {name}; {_instead(command, name, own)}")
        expected = 1 if option.value else 0
        if len(values) != expected:
            takes = f"one value, {option.value}" if expected else "no value"
            behind = command.subject and parsed.subject is None and len(values) == expected + 1
            first = f"; {command.subject} stands first: `tickgraph {command.name} {values[-1]} ...`" if behind else ""
            raise TickgraphError(f"{name} takes {takes}; given: {' '.join(values) or 'nothing'}{first}")
        if values and not values[0] and not option.setting:
            raise TickgraphError(f"{name} is empty, expected {option.value}")
        if option.setting:
            other = setters.setdefault(option.setting, name)
            if other != name:
                raise TickgraphError(f"{other} and {name} contradict each other; give one of them")
            parsed.overrides += [f"--{option.setting}", *(values or [option.given])]
        else:
            parsed.options[option.name] = values[0] if values else ""
    if command.subject and parsed.subject is None and not parsed.help and not command.subject_optional:
        raise TickgraphError(
            f"`tickgraph {command.name}` needs {command.subject}; see `tickgraph {command.name} --help`"
        )
    return parsed


def _instead(command: Command, name: str, own: Iterable[str]) -> str:
    """Return what to give in the place of an option that a command does not have."""
    word = dashed(name)[2:]
    known = _ELSEWHERE.get((command.name, word)) or (_ELSEWHERE.get(("", word)) if command.subject else None)
    if known:
        return known.format(command=command.name, subject=command.subject)
    hint = re.sub(r"'([^']+)'", r"--\1", nearby(word, own))
    full = "a value of the task goes by its full path, " if command.overrides else ""
    return hint or f"{full}see `tickgraph {command.name} --help`"


def usage(command: Command) -> str:
    """Return the help of one command."""
    subject = f" {command.subject}" if command.subject else ""
    lines = [f"usage: tickgraph {command.name}{subject} [options]", "", command.help.strip(), "", "options:"]
    lines += table(
        (f"--{option.name} {option.value}".rstrip(), option.help)
        for option in (*command.options, Option("help", "", "show this help"))
    )
    return "\n".join(lines)


def table(rows: Iterable[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return rows of words as lines with aligned columns."""
    rows = [tuple(str(cell) for cell in row) for row in rows]
    columns = list(zip(*(row[:-1] for row in rows), strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    return [
        indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False)) + row[-1]
        for row in rows
    ]
