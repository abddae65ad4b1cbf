"""The dry run on the meta device that finds what a compiled or captured tick cannot do, term by term."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, lacking
from tickgraph.core.foreign import foreign_classes, function_of, functions_of, is_foreign
from tickgraph.core.host_state import (
    HostState,
    changed_host_state,
    held_by,
    host_state,
    is_random_generator,
    recorded_assignments,
)
from tickgraph.core.outside import Storages, holder_of
from tickgraph.core.quiet import unheard
from tickgraph.core.refusals import place_of_refusal, refusal_of, said_by_torch

__all__ = [
    "OUTSIDE_CHECKPOINTS",
    "Blocker",
    "HostState",
    "JudgedCall",
    "changed_host_state",
    "host_state",
    "judge_calls",
    "refused_calls",
]

HOST_READ = "host read"
DYNAMIC_SHAPE = "dynamic shape"
RANDOM = "global generator"
OTHER_DEVICE = "other device"
HOST_DATA = "host data"
REBOUND = "rebound tensor"
READ_ONLY = "read-only tensor"
HOST_STATE = "host state"
REFUSED = "compiler refuses"
ERROR = "error"


OUTSIDE_CHECKPOINTS = frozenset((HOST_STATE, RANDOM))
"""Kinds of blockers that say of state that no checkpoint holds."""


@dataclass(frozen=True)
class Blocker:
    """Why one term cannot be part of a compiled or captured tick, and where it says so."""

    manager: str
    term: str
    file: str
    line: int
    reason: str
    kind: str

    def __str__(self) -> str:
        return f"{self.manager}/{self.term} ({self.file}:{self.line}): {self.reason}"

    @classmethod
    def of(cls, manager: str, term: str, func: object, reason: str, kind: str = "host state") -> Blocker:
        """Return a blocker at the place where a function, class or instance is defined."""
        return cls(manager, term, *place_of_definition(func), reason, kind)


@dataclass(frozen=True)
class JudgedCall:
    """One call to judge.

    Args:
        manager, term: whose it is, for the report.
        fn: does the call, on an environment whose arena is on the meta device.
        func: the user's function, class or instance; its file and line are named where no better place is known.
        owners: objects whose attributes the call may not change: the environment, the term's instance.
        arena: whose tensors the call may not rebind, nor write where they are read-only.
        params: what the function is given by name.
        kept: names of the arena that the call may not write either, each with what is to be said then.
    """

    manager: str
    term: str
    fn: Callable[[], object]
    func: Callable[..., object]
    owners: tuple[object, ...]
    arena: Arena
    params: Mapping[str, object] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    def holders(self) -> Iterator[tuple[str, object]]:
        """Yield what the call's code can reach, with the name it has there; last of all the environment, as "env"."""
        func = self.func
        while isinstance(func, functools.partial):
            for name, value in (*enumerate(func.args), *func.keywords.items()):
                yield f"argument {name}", value
            func = func.func
        yield from ((f"parameter {name}", value) for name, value in self.params.items())
        yield from held_by(self.owners, functions_of(self.func))


def judge_calls(
    calls: Iterable[JudgedCall], around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Blocker]:
    """Run each call once, alone, and return everything that stands against compiling or capturing it.

    The first operation that blocks ends its call; changes of Python state up to there are reported as well.
    No C++ compiler and no GPU are needed.

    Args:
        calls: what to judge.
        around: a context that each call is made in.
    """
    found = (blocker for call in calls for blocker in _judge(call, around))
    return list(dict.fromkeys(found))  # a command is called in several ways


def refused_calls(calls: Iterable[JudgedCall]) -> list[Blocker]:
    """Trace each call of an author's code alone, and return what torch.compile refuses of it beside all that is judged.

    It names one refusal a term, the first; what the package brings needs no tracing. No compiler is needed.
    """
    found: dict[tuple[str, str], Blocker] = {}
    for call in calls:
        key = (call.manager, call.term)
        if key not in found and any(is_foreign(function.__code__.co_filename) for function in functions_of(call.func)):
            error = refusal_of(call.fn)
            if error is not None:
                place = place_of_refusal(error) or place_of_definition(call.func)
                found[key] = Blocker(*key, *place, said_by_torch(error), REFUSED)
    return list(found.values())


class _Found(BaseException):
    """Ends a call at its first blocker; not an Exception, so that a term's own `except Exception` lets it through."""


@dataclass(frozen=True)
class _Finding:
    kind: str
    reason: str
    place: tuple[str, int]


def _judge(call: JudgedCall, around: Callable[[], AbstractContextManager[object]]) -> list[Blocker]:
    watch = _Watch(call.func)
    owners = [*call.owners, *functions_of(call.func)]
    before, tensors, generators = host_state(owners), _identities(call.arena), _generators()
    saved = [(vars(owner), dict(vars(owner))) for owner in call.owners if hasattr(owner, "__dict__")]
    try:
        with recorded_assignments(call.owners, watch.assign), torch.no_grad(), around():
            with unheard(watch.stop), _Functions(watch) as functions, _Operations(functions, call):
                call.fn()
    except _Found:
        pass
    except TickgraphError as error:
        watch.note(ERROR, str(error), watch.place_of(error))
    except (Exception, SystemExit) as error:
        text = str(error).strip().splitlines()
        reason = f"raises {type(error).__name__}: {text[0]}" if text else f"raises {type(error).__name__}"
        reason += lacking(error)
        watch.note(ERROR, reason, watch.place_of(error))
    for owner, name in changed_host_state(before, owners):
        if (id(owner), name) in watch.assigned:
            continue
        if is_random_generator(owner, name):
            watch.note(RANDOM, f"draws from {_owner_name(owner)}{name}; take an `rng` parameter")
        else:
            watch.note(HOST_STATE, f"changes {_owner_name(owner)}{name} in place; keep state in an arena tensor")
    for name, identity in _identities(call.arena).items():
        if name in tensors and tensors[name] != identity:
            watch.note(REBOUND, f"gives arena tensor {name!r} another storage or shape; write it in place")
    if _generators() != generators:
        watch.note(RANDOM, "draws from Python's or NumPy's global generator; take an `rng` parameter")
    for attributes, values in saved:
        attributes.clear()
        attributes.update(values)
    return [Blocker(call.manager, call.term, *f.place, f.reason, f.kind) for f in dict.fromkeys(watch.findings)]


class _Watch:
    """Findings of one call, and whose code is the user's."""

    def __init__(self, func: Callable[..., object]) -> None:
        self.findings: list[_Finding] = []
        self.assigned: set[tuple[int, str]] = set()
        self._default = place_of_definition(func)

    def note(self, kind: str, reason: str, place: tuple[str, int] | None = None) -> None:
        self.findings.append(_Finding(kind, reason, place or self._default))

    def block(self, kind: str, reason: str) -> None:
        self.note(kind, reason, self.here())
        raise _Found

    def stop(self, name: str) -> None:
        """End a call that would wait for a person."""
        self.block(HOST_READ, f"calls {name}(), which waits for a person; remove it")

    def assign(self, owner: object, name: str, old: object, new: object) -> None:
        """Note that the call assigns an attribute of an owner."""
        self.assigned.add((id(owner), name))
        remedy = "write the tensor in place" if isinstance(old, Tensor) else "keep state in an arena tensor"
        self.note(HOST_STATE, f"assigns {_owner_name(owner)}{name}; {remedy}", self.here())

    def here(self) -> tuple[str, int] | None:
        """Return file and line of the innermost running frame that is the user's."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not _judge.__code__:
            if self._is_users(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None

    def place_of(self, error: BaseException) -> tuple[str, int] | None:
        """Return file and line of the innermost frame that is the user's and that an exception passed."""
        place, step = None, error.__traceback__
        while step is not None:
            if self._is_users(step.tb_frame.f_code.co_filename):
                place = (step.tb_frame.f_code.co_filename, step.tb_lineno)
            step = step.tb_next
        return place

    def _is_users(self, file: str) -> bool:
        return file == self._default[0] or is_foreign(file)


class _Functions(TorchFunctionMode):
    """Sees what the user wrote, above the operators: host data, scalar fills, tensors turned into text."""

    _HOST_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer, Tensor.new_tensor)
    _TEXT = (Tensor.__repr__, Tensor.__format__)

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch
        self.name = ""
        """Of the function that runs; none where an operation comes from elsewhere, as from `torch.from_numpy`."""
        self.fills_with_number = False

    def __torch_function__(
        self, func: Callable[..., object], kinds: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        self.name = getattr(func, "__name__", str(func))
        self.fills_with_number = func is Tensor.__setitem__ and not isinstance(args[2], Tensor)
        given_tensor = bool(args) and isinstance(args[0], Tensor) and func is not Tensor.new_tensor
        if func in self._HOST_DATA and not given_tensor:
            self.watch.block(HOST_DATA, f"{self.name}() {_copies(*args, *kwargs.values())}")
        if func in self._TEXT:
            self.watch.block(HOST_READ, "a tensor is turned into text")
        if func in (Tensor.numpy, Tensor.__array__):
            self.watch.block(HOST_READ, f"{_spelled(self.name)} copies a tensor to the host; {_IN_TORCH}")
        try:
            return func(*args, **kwargs)
        finally:
            self.name = ""


class _Operations(TorchDispatchMode):
    """Sees every operator with its tensors."""

    def __init__(self, functions: _Functions, call: JudgedCall) -> None:
        super().__init__()
        self.functions = functions
        self.watch = functions.watch
        self.call = call
        self.storages = Storages(call.arena)
        self.told: set[str] = set()

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, kinds: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if device is not None and torch.device(device).type != "meta":
            verb = "moves a tensor" if inputs else "makes a tensor"
            self._block(OTHER_DEVICE, f"{verb} to {device}" if inputs else f"{verb} on {device}; pass device=")
        if any(leaf.device.type != "meta" for leaf in inputs):
            self._check_writes(func, args, kwargs)  # that it is kept says more than where it is
        for leaf in inputs:
            if leaf.device.type != "meta":
                if func is _ATEN.lift_fresh.default:  # what torch does with all data of the host
                    self._block(HOST_DATA, f"reads a NumPy array or a list in each tick; {_ONCE}")
                self._block(OTHER_DEVICE, f"uses a tensor of shape {tuple(leaf.shape)} that is on {leaf.device}")
        self._check_indices(func, args)
        if torch.Tag.data_dependent_output in func.tags or func in _HOST_READS:
            self._block(HOST_READ, "reads a value on the host; use torch.where or a mask")
        if torch.Tag.dynamic_output_shape in func.tags and func is not torch.ops.aten.index.Tensor:
            self._block(DYNAMIC_SHAPE, "has a result whose shape depends on values; use a mask of full width")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._block(RANDOM, "draws from torch's global generator; take an `rng` parameter")
        if func.overloadpacket in _REBINDS:
            self._block(REBOUND, "changes the storage of a tensor; write it in place")
        self._check_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        self.storages.add_results(result, inputs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._block(OTHER_DEVICE, f"makes a tensor on {leaf.device}; pass device=")
        return result

    def _check_writes(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
        norm = func.overloadpacket in _BATCH_NORMS
        if not func._schema.is_mutable and not norm:
            return
        given = {**{a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}, **kwargs}
        written = [given.get(a.name) for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        if norm and given.get("training"):
            written += [given.get("running_mean"), given.get("running_var")]
        for leaf in tree_leaves(written):
            if isinstance(leaf, Tensor):
                self._check_write(leaf)

    def _check_write(self, tensor: Tensor) -> None:
        view = self.storages.read_only(tensor)
        if view is not None:
            self._block(READ_ONLY, f"writes {view!r}, which the simulation alone may; work on a copy (clone())")
        said = self.call.kept.get(self.storages.name(tensor) or "")
        if said is not None:
            self._block(READ_ONLY, said)
        constant = self.storages.constant(tensor)
        if constant is not None:
            what = f"constant {constant!r}, which no checkpoint holds: declare it with env.arena.new(...)"
        elif self.storages.outside(tensor):
            name = holder_of(tensor, self.call.holders()) or "a tensor"
            what = f"{name}, which is outside the arena, so no checkpoint holds it: make it with env.arena.new(...)"
        else:
            return
        if what not in self.told:  # the call goes on: more may be found
            self.told.add(what)
            self.watch.note(HOST_STATE, f"writes {what}", self.watch.here())
        if not tensor.is_meta:  # it cannot go on
            raise _Found

    def _check_indices(self, func: torch._ops.OpOverload, args: tuple) -> None:
        if func.overloadpacket not in _INDEXED:
            return
        indices = [index for index in args[1] if index is not None]
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        if not masks:
            return
        if func is torch.ops.aten.index.Tensor:
            self._block(DYNAMIC_SHAPE, "selects rows by a bool mask; use torch.where(mask, ...)")
        # Filling with a number is a masked_fill; any other value, or an index beside the mask, looks up the True rows.
        if len(masks) < len(indices) or not self.functions.fills_with_number:
            self._block(DYNAMIC_SHAPE, "assigns to a bool mask; use torch.where, masked_fill_ or tickgraph.core.masked")

    def _block(self, kind: str, reason: str) -> None:
        self.watch.block(kind, f"{_spelled(self.functions.name)} {reason}")


_ATEN = torch.ops.aten
_INDEXED = (_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index_put)
_REBINDS = (_ATEN.set_, _ATEN.resize_, _ATEN.resize_as_)
# Write running statistics, which their schemas do not say.
_BATCH_NORMS = (_ATEN.native_batch_norm, _ATEN.cudnn_batch_norm, _ATEN.miopen_batch_norm)
# Reads an error code back, which no tag says.
_HOST_READS = (_ATEN._linalg_check_errors.default,)

_ONCE = "make it a tensor once, in __init__, on env.device"
_IN_TORCH = "compute in torch, with arrays made tensors once, in __init__, on env.device"

_SPELLINGS = {
    "": "torch.from_numpy(), torch.Tensor() or the like",
    "__bool__": "bool(tensor), as in `if tensor`,",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__index__": "a tensor as a Python index",
    "__getitem__": "x[...]",
    "__setitem__": "x[...] = ...",
    "__array__": "numpy.asarray(tensor), or arithmetic with a NumPy array,",
}


def _spelled(name: str) -> str:
    return _SPELLINGS.get(name, f"{name}()")


def _copies(*given: object) -> str:
    numpy = sys.modules.get("numpy")
    array = numpy is not None and any(isinstance(value, numpy.ndarray) for value in given)
    return f"{'reads a NumPy array' if array else 'copies host data'} in each tick; {_ONCE}"


def _owner_name(owner: object) -> str:
    return "" if isinstance(owner, types.FunctionType | types.MethodType) else f"{type(owner).__name__}."


def place_of_definition(func: object) -> tuple[str, int]:
    """Return file and line of the function that runs, or else of the class that `func` is or belongs to."""
    function = function_of(func)
    kind = func if isinstance(func, type) else type(func)
    # A network's `__call__` is torch's, and the class the author's.
    if function is not None and (is_foreign(function.__code__.co_filename) or not foreign_classes(kind)):
        return function.__code__.co_filename, function.__code__.co_firstlineno
    try:
        return inspect.getsourcefile(kind) or "<unknown>", inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return "<unknown>", 0


def _identities(arena: Arena) -> dict[str, tuple]:
    found = {}
    for name in arena.names():
        tensor = arena[name]
        storage = tensor.untyped_storage()._cdata
        found[name] = (id(tensor), storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return found


def _generators() -> tuple:
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else ("", b"", 0, 0, 0.0)
    return random.getstate(), bytes(legacy[1]), legacy[2:]
