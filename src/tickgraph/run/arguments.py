"""Words of the command line into options and values, with one clear line for each mistake; loads nothing slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tickgraph.core.errors import TickgraphError, nearby


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
            raise TickgraphError(f"{word!r} stands where an option was expected; options begin with --")
    return iter(groups)


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
        option = own.get(name[2:])
        if option is None and command.overrides and "." in name:
            parsed.overrides += [name, *values]
            continue
        if option is None:
            full = "a value of the task goes by its full path, " if command.overrides else ""
            hint = nearby(name[2:], own).replace("'", "") or f"{full}see `tickgraph {command.name} --help`"
            raise TickgraphError(f"`tickgraph {command.name}` has no option {name}; {hint}")
        expected = 1 if option.value else 0
        if len(values) != expected:
            takes = f"one value, {option.value}" if expected else "no value"
            raise TickgraphError(f"{name} takes {takes}; given: {' '.join(values) or 'nothing'}")
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
