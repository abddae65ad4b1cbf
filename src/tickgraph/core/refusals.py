"""What torch.compile says of code that it refuses, as one line: the author's place, and what to do about it."""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tickgraph.core.foreign import is_foreign

# What the host does, by the subject of torch's words, and what a term does in its place.
_ON_THE_HOST = (
    (r"\bbuiltin print\b", "calls print(); remove it: a metric or recorder term shows values"),
    (r"module: \w+\.(write|writelines|flush)$", "writes text; remove it: a metric or recorder term shows values"),
    (
        r"module: (_warnings|warnings|logging)\b|<Logger |LoggingLogger",
        "logs or warns; remove it: a metric or recorder shows values",
    ),
    (r"module: time\b|datetime", "reads the clock; count time by env.episode_length * env.step_dt"),
    (r"\bbuiltin (open|input)\b|module: _?io\b", "reads or writes a file; do it while building"),
    (r"numpy function: .*(default_rng|RandomState|random)", "draws on the host; take an `rng` parameter"),
    (r"\(Generator\)|RandomState|module: random\b", "draws on the host; take an `rng` parameter"),
    (r"\bnext\(", "moves an iterator that it keeps; keep a count in an arena tensor"),
)

_HOMES = (Path(__file__).parents[1], Path(torch.__file__).parent)
_QUALIFIED = re.compile(r"module: (\S+), qualname: (\S+?),")
_BUILTIN = re.compile(r"builtin operator `(\w+)`")
_METHOD = re.compile(r"method `(\w+)` of class `(\w+)`")


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
    places = [place for place in places if is_foreign(place[0])] or places
    return places[-1] if places else None


def _called(error: BaseException, subject: str, explanation: str) -> str | None:
    """Return by its name what an author calls and torch does not take in, None where it does not say."""
    frames = re.findall(r'File "([^"]+)", line \d+, in (\S+)', str(error))
    own = [index for index, (file, _) in enumerate(frames) if is_foreign(file)]
    inner = frames[own[-1] + 1 :] if own else []
    if inner and not any(Path(inner[0][0]).is_relative_to(home) for home in _HOMES):
        file, function = inner[0]
        modules = (name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == file)
        return f"{next(modules, Path(file).stem)}.{function}"
    for pattern, text in ((_QUALIFIED, subject), (_BUILTIN, explanation), (_METHOD, explanation)):
        found = re.search(pattern, text)
        if found:
            return ".".join(reversed(found.groups())) if pattern is _METHOD else ".".join(found.groups())
    return None


def said_by_torch(error: BaseException) -> str:
    """Return in one line why torch refuses code: in our words where it is a known habit, else in torch's own."""
    lines = [line.strip() for line in str(error).partition("from user code:")[0].splitlines() if line.strip()]
    if not lines:
        return f"{type(error).__name__} without a message"
    subject, explanation = (_after(label, lines) for label in ("Developer debug context:", "Explanation:"))
    if is_refusal(error):
        called = _called(error, subject, explanation)
        for pattern, reason in _ON_THE_HOST:
            if re.search(pattern, f"{subject or lines[0]} module: {called}"):
                return reason
        if called:
            return f"calls {called}, which torch.compile cannot take in; call it once, while building"
    return f"torch.compile refuses it: {lines[0]}{f': {explanation}' if explanation else ''}"


def _after(label: str, lines: list[str]) -> str:
    return next((line.removeprefix(label).strip() for line in lines if line.startswith(label)), "")


@contextmanager
def torch_keeps_quiet() -> Iterator[None]:
    """Let torch's tracer not warn beside the error that says the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\._dynamo")
        yield


def with_code_of_its_own(fn: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a function that calls another and has a list of compiled versions of its own.

    torch keeps these by code object, with a limit of eight, however many programs a process builds.
    """

    def run(*args: object) -> object:
        return fn(*args)

    return types.FunctionType(run.__code__.replace(), run.__globals__, name, None, run.__closure__)


def refusal_of(fn: Callable[[], object]) -> Exception | None:
    """Return why torch.compile would refuse a function, or None; it is traced, no code is generated for it.

    No compiler is needed. The function is called once more, with what it does to the host.
    """
    traced = torch.compile(with_code_of_its_own(fn, "traced"), backend="eager", fullgraph=True, dynamic=False)
    try:
        with torch.inference_mode(False), torch.no_grad(), torch_keeps_quiet():
            traced()
    except Exception as error:
        return error if is_refusal(error) else None  # its own errors are another's to tell
    return None
