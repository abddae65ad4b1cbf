"""What torch.compile says of code that it refuses, as one line: the author's place, and what to do about it."""

from __future__ import annotations

import re

import torch

from tickgraph.core.foreign import is_foreign

# What the host does, as torch's words show it, and what a term does in its place.
_ON_THE_HOST = (
    (r"builtin (operator )?`?print\b", "calls print(); remove it: a metric or recorder term shows values"),
    (r"logging\.|_warnings\.warn|<Logger ", "logs or warns; remove it: a metric or recorder term shows values"),
    (r"module: time\b|`time\.|datetime", "reads the clock; count time by env.episode_length * env.step_dt"),
    (r"builtin (operator )?`?(open|input)\b|module: io\b|_io\.", "reads or writes a file; do it while building"),
    (r"numpy\.random|default_rng|`Generator\.|RandomState|module: random\b|class `Random`", "draws on the host; take an `rng` parameter"),
    (r"next\(|tp_iternext", "moves an iterator that it keeps; keep a count in an arena tensor"),
)


def is_refusal(error: BaseException) -> bool:
    """Tell whether an error is torch's, of code that it does not compile, rather than the code's own."""
    kinds = (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit)
    return isinstance(error, kinds)


def places_of(error: BaseException) -> list[tuple[str, int]]:
    """Return file and line of each frame that torch's text of an error names, outermost first."""
    return [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]


def place_of_refusal(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost frame that is an author's, or else of the innermost."""
    places = places_of(error)
    authors = [place for place in places if is_foreign(place[0])]
    return (authors or places or [None])[-1]


def said_by_torch(error: BaseException) -> str:
    """Return in one line why torch refuses code: in our words where it is a known habit, else in torch's own."""
    text = str(error).strip().partition("from user code:")[0].strip()
    if is_refusal(error):
        for pattern, reason in _ON_THE_HOST:
            if re.search(pattern, text):
                return reason
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"{type(error).__name__} without a message"
    explanation = next((line for line in lines if line.startswith("Explanation:")), "")
    return f"{lines[0]}: {explanation.removeprefix('Explanation:').strip()}" if explanation else lines[0]
