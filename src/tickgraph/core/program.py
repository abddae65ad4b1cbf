"""A segment of work that runs eager or compiled, and the report of what it ran as."""

import importlib.util
import logging
import os
import re
import sysconfig
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tickgraph.core.compiler import compiler_fault, compiling_fault
from tickgraph.core.copies import keep_plain_copies
from tickgraph.core.errors import ExecutionError, TickgraphError, nearby
from tickgraph.core.refusals import (
    is_refusal,
    place_of_refusal,
    places_of,
    said_by_torch,
    torch_keeps_quiet,
    with_code_of_its_own,
)
from tickgraph.core.shortcut import Found, Shortcut, kinds_of, leaves

_log = logging.getLogger(__name__)

MODES = ("auto", "eager", "compile", "graph")

NOT_STATIC = "term not static"
BACKEND_CANNOT = "backend cannot"
CAPTURE_FAILED = "capture failed"
ILLEGAL = "configuration illegal"

# A changed Python value is noticed within a second of a task at 50 Hz, and the guards cost a fiftieth.
GUARDED_EVERY = 50


@dataclass(frozen=True)
class Reason:
    """Why some modes cannot be had: one of the four kinds above, and one line of text."""

    kind: str
    text: str
    modes: tuple[str, ...] = ("compile", "graph")

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Resolution:
    """The mode that was asked for, the one that runs, and what stood against a better one (None where nothing did).

    `inner` is what the torch segments run as, eager or compile: the same as `enabled`, except inside a graph, which
    can be of compiled or of eager segments.
    """

    requested: str
    enabled: str
    disable_reason: str | None
    device: torch.device
    inner: str = ""

    def __post_init__(self) -> None:
        if not self.inner:
            object.__setattr__(self, "inner", "compile" if self.enabled == "graph" else self.enabled)


def resolve_execution(
    requested: str, device: torch.device | str, reasons: Sequence[Reason] = (), *, told: bool = False
) -> Resolution:
    """Decide how programs run on a device.

    Args:
        requested: auto, eager, compile or graph. `auto` takes the fastest mode that can be had: on a CUDA device graph,
            then compile, then eager; elsewhere compile, then eager.
        device: where the programs run.
        reasons: what the caller knows to stand against a mode: blockers of the terms, limits of the backend.
        told: somebody was warned of these reasons already.

    Raises:
        ExecutionError: a mode asked for by name cannot be had; lists every reason with its kind.
        TickgraphError: no such mode.
    """
    if requested not in MODES:
        hint = nearby(requested, MODES)
        raise TickgraphError(f"execution {requested!r} is unknown; use one of {', '.join(MODES)}. {hint}".rstrip(". "))
    device = torch.device(device)
    if requested == "eager":
        return Resolution(requested, requested, None, device)
    against = [*reasons, *limits(device)]

    def obstacles(*modes: str) -> str:
        return "; ".join(str(reason) for reason in against if set(modes) & set(reason.modes))

    if requested == "auto":
        ladder = ["graph", "compile", "eager"] if device.type == "cuda" else ["compile", "eager"]
        enabled = next(mode for mode in ladder if mode == "eager" or not obstacles(mode))
        passed = ladder[: ladder.index(enabled)]
        if passed and not told:
            _log.warning("execution falls back from %s to %s: %s", ladder[0], enabled, obstacles(*passed))
    else:
        enabled, passed = requested, []
        if reason := obstacles(requested):
            raise ExecutionError(
                f"execution {requested!r} cannot be had on {device}: {reason}; use 'auto' to fall back"
            )
    inner = enabled
    if enabled == "graph":
        inner = "eager" if obstacles("compile") else "compile"
        if inner == "eager":  # captured eager is legal, and most of what a graph saves remains
            passed = ["compile"]
            if not told:
                _log.warning("the programs inside the graph run eager: %s", obstacles("compile"))
    return Resolution(requested, enabled, obstacles(*passed) or None, device, inner)


def limits(device: torch.device) -> list[Reason]:
    """Return what this machine and this process have against compile and graph."""
    import torch._dynamo  # takes seconds, which eager mode need not spend

    found = []
    if device.type != "cuda":
        found.append(Reason(BACKEND_CANNOT, f"CUDA graphs need a CUDA device, not {device.type}", ("graph",)))
    if torch._dynamo.config.disable:
        text = "torch.compile is switched off by TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE"
        found.append(Reason(ILLEGAL, text, ("compile",)))
    if device.type == "cpu":
        fault = compiler_fault()
        if fault is not None:
            found.append(Reason(BACKEND_CANNOT, fault, ("compile",)))
        header = os.path.join(sysconfig.get_path("include"), "Python.h")
        if not os.path.exists(header):
            text = f"{header} is missing; install Python's development headers"
            found.append(Reason(BACKEND_CANNOT, text, ("compile",)))
    elif device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            found.append(Reason(BACKEND_CANNOT, "Triton is not installed", ("compile",)))
    else:
        found.append(Reason(BACKEND_CANNOT, f"no code is generated for device {device.type}", ("compile",)))
    return found


class Program:
    """A function of tensors that runs as its resolution says, with gradient mode and autocast set by the program.

    Compiled code is guarded: when a Python value that it was built from has changed, it is compiled again, which
    `report` counts and a warning explains. For the hundred terms of a walking robot's tick the guards cost 1.4 ms, a
    fifth of what torch spends in it. So they are asked in every `GUARDED_EVERY`-th call only, where skipping them is
    safe: a function that binds no new tensor on the host, and twice in a row found the same ones beside its arguments.
    A call without guards gives these to the compiled code once more. When threads, autocast or other state of the
    process that the guards watch differs, or an argument's shape, strides or dtype, they are asked, and the code for
    that state gets a shortcut of its own.

    Without arguments and result it shows by itself that nothing is bound; with them the caller has to say so: `steady`.

    Args:
        name: what the report and the warnings call it, such as "tick".
        fn: called with the arguments of each call.
        resolution: from `resolve_execution`; a program inside a graph runs as its `inner`.
        grad: record gradients, for a learner.
        autocast: lower precision to run matrix products in; None runs without autocast, whatever the caller has set.
        steady: the function sets no name on the host; its arguments are tensors and tuples of them, none given twice
            nor reached by a name as well, and so is its result. Without `grad`, its calls may then skip the guards.
        may_be_empty: the function may touch no tensor, and then runs as it is.
        owners: asked once compiling has failed, with files and lines that the error names, outermost first; says whose
            code it is, such as "term rewards/alive", or nothing.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., object],
        resolution: Resolution,
        *,
        grad: bool = False,
        autocast: torch.dtype | None = None,
        steady: bool = False,
        may_be_empty: bool = False,
        owners: Callable[[list[tuple[str, int]]], str] | None = None,
    ) -> None:
        if resolution.inner not in ("eager", "compile"):
            raise ExecutionError(f"program {name!r} cannot run as {resolution.inner!r}; use eager or compile")
        self.name = name
        self._fn = fn
        self._owners = owners
        self._grad = grad
        self._autocast = autocast
        self._steady = steady and not grad
        self._may_be_empty = may_be_empty
        self._requested = resolution.requested
        self._enabled = resolution.inner
        self._reason = resolution.disable_reason
        self._device = resolution.device
        self._version = 1
        self._captures = 0
        self._recompiles = 0
        self._replays = 0
        self._fallbacks = 0
        self._built = False
        self._found: Found | None = None
        self._shortcuts: list[Shortcut] = []
        self._compiled = self._compile() if self._enabled == "compile" else None

    def __call__(self, *args: object) -> object:
        """Run once.

        Raises:
            ExecutionError: the function cannot be compiled and the mode was asked for by name.
        """
        # A caller's inference mode would have the program compiled anew, and its tensors refused by autograd.
        with torch.inference_mode(False), torch.set_grad_enabled(self._grad), self._precision():
            if self._compiled is not None:
                return self._run(self._compiled, args)
            self._fallbacks += self._reason is not None
            return self._fn(*args)

    def report(self) -> dict[str, object]:
        """Return what was asked for and what ran.

        Keys: requested, enabled, disable_reason (None or text), version, captures (compilations), recompiles (those
        that a changed Python value or shape forced after the first), replays (calls that ran existing code),
        eager_fallbacks (calls that ran eager because a better mode could not be had).
        """
        return {
            "requested": self._requested,
            "enabled": self._enabled,
            "disable_reason": self._reason,
            "version": self._version,
            "captures": self._captures,
            "recompiles": self._recompiles,
            "replays": self._replays,
            "eager_fallbacks": self._fallbacks,
        }

    def invalidate(self) -> None:
        """Forget the code built so far, because an array, a capacity or a width was replaced; the next call builds."""
        self._version += 1
        if self._compiled is not None:
            self._built = False
            self._shortcuts.clear()
            self._compiled = self._compile()

    def _precision(self) -> AbstractContextManager[object]:
        if self._device.type == "meta":
            return nullcontext()
        # Cached casts would outlive the step that made them.
        return torch.autocast(
            self._device.type, dtype=self._autocast, enabled=self._autocast is not None, cache_enabled=False
        )

    def _compile(self) -> Callable[..., object]:
        own = with_code_of_its_own(self._fn, self.name)
        # torch keeps every backend that it was ever given, so this one must not keep the program and its tensors.
        reference, on_cuda = weakref.ref(self), self._device.type == "cuda"

        def count_and_compile(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
            """Compile with the inductor, and know that it happened: torch itself recompiles without a word."""
            compiled = _inductor(graph, inputs, on_cuda)
            program = reference()
            if program is not None:
                program._captures += 1

            def run_and_note(*inputs: object) -> Sequence[object]:
                outputs = compiled(*inputs)
                program = reference()
                if program is not None:
                    program._found = Found(compiled, inputs, outputs)
                return outputs

            return run_and_note

        return torch.compile(own, backend=count_and_compile, fullgraph=True, dynamic=False)

    def _run(self, compiled: Callable[..., object], args: tuple[object, ...]) -> object:
        given = leaves(args)
        known = self._known(given)
        if known is not None and known.left:
            known.left -= 1
            self._replays += 1
            return known(given)
        captures = self._captures
        try:
            with nullcontext() if self._built else torch_keeps_quiet():
                result = compiled(*args)
        except Exception as error:
            # Until the first build is through nothing has run, so whatever was raised is a failure to compile, and
            # running the function eager is safe. Later only torch's own errors are.
            if self._captures > captures or (self._built and not is_refusal(error)):
                raise
            self._refuse(self._trouble(error), error)
            self._fallbacks += 1
            return self._fn(*args)
        found, self._found = self._found, None
        if self._captures > captures:
            if self._built:
                self._recompiles += self._captures - captures
                text = _recompile_reason()
                if known is not None:  # else it is the state or an argument that is new
                    text += f"; up to {GUARDED_EVERY - 1} calls have run without the change"
                    self._shortcuts.clear()
                _log.warning("program %r was compiled again: %s", self.name, text)
            self._built = True
        elif self._built:
            self._replays += 1
        elif not self._may_be_empty:
            self._refuse("torch.compile ran the function as it is (does it touch a tensor? is a stance set?)", None)
            self._fallbacks += 1
        self._renew(known, self._shortcut(found, given, result))
        return result

    def _known(self, given: list[object]) -> Shortcut | None:
        """Return the shortcut for arguments in this state of the process, if there is one."""
        kinds = kinds_of(given) if self._shortcuts else []
        return next((one for one in self._shortcuts if one.kinds == kinds and one.state.check()), None)

    def _shortcut(self, found: Found | None, given: list[object], result: object) -> Shortcut | None:
        """Return a shortcut for what a guarded call has found, None where skipping the guards is not safe."""
        if found is None or not (self._steady or (not given and result is None and found.binds_nothing())):
            return None
        try:
            return Shortcut(found, given, result)
        except ValueError:
            return None

    def _renew(self, known: Shortcut | None, new: Shortcut | None) -> None:
        """Let a shortcut be taken where a guarded call has found the same again; otherwise begin a new one."""
        if known is not None and new is not None and known.repeats(new):
            known.left = GUARDED_EVERY - 1
            return
        if known in self._shortcuts:
            self._shortcuts.remove(known)
        if new is not None:
            self._shortcuts.append(new)

    def _trouble(self, error: Exception) -> str:
        """Return in one line whose code cannot be compiled, where, and why."""
        owner = self._owners(places_of(error)) if self._owners is not None else ""
        text, place = first_line(error), place_of_refusal(error)
        if is_refusal(error):
            text = said_by_torch(error) + (f" ({place[0]}:{place[1]})" if place is not None else "")
        return f"{owner}: {text}" if owner else text

    def _refuse(self, text: str, error: Exception | None) -> None:
        """Give up compiling: an error where it was asked for by name, else one warning and eager from here on."""
        broken = compiling_fault() if error is not None and self._device.type == "cpu" else None
        reason = f"{CAPTURE_FAILED}: {text}" if broken is None else f"{BACKEND_CANNOT}: {broken}"
        if self._requested != "auto":
            raise ExecutionError(f"program {self.name!r} cannot run as 'compile': {reason}") from error
        if broken is None:
            _log.warning("program %r falls back from compile to eager: %s", self.name, reason)
        else:
            _warn_once(f"all programs fall back from compile to eager: {reason}")
        self._compiled, self._enabled, self._reason = None, "eager", reason
        self._shortcuts.clear()


@lru_cache
def _warn_once(text: str) -> None:
    """Say what is the same for every program of the process."""
    _log.warning("%s", text)


def _inductor(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], on_cuda: bool
) -> Callable[..., Sequence[object]]:
    """Compile a graph.

    On a GPU the inductor may not choose the order of sums by timing them, which would choose another in another
    process; and it joins kernels that do not need each other to one launch, as most of ours take no longer than that.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    keep_plain_copies(graph)
    wanted = ("deterministic", "combo_kernels") if on_cuda else ()
    patches = {name: True for name in wanted if hasattr(config, name)} or None
    compiled: Any = compile_fx(graph, inputs, config_patches=patches)  # a callable, for a graph that was given as one
    return compiled


def first_line(error: BaseException) -> str:
    """Return the first line of an error with the user's file and line, where torch tells it."""
    text = str(error).strip()
    if not text or text.startswith("from user code:"):
        text = f"{type(error).__name__} without a message\n{text}"
    first = text.splitlines()[0]
    places = re.findall(r'File "([^"]+)", line (\d+)', text.partition("from user code:")[2])
    return f"{first} ({places[-1][0]}:{places[-1][1]})" if places else first


def _recompile_reason() -> str:
    """Return torch's words for the guard that failed in the last compilation."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    reason = getattr(metrics[-1], "recompile_reason", None) if metrics else None
    return reason.splitlines()[0].strip() if reason else "torch gives no reason"
