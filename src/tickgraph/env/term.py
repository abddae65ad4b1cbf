"""What every manager is made of: a term bound to its environment, and a dictionary of them."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, lacking, nearby
from tickgraph.core.fields import check_arguments
from tickgraph.core.judge import JudgedCall
from tickgraph.core.memory import out_of_memory
from tickgraph.core.program import first_line
from tickgraph.core.seeded import seeded_by
from tickgraph.core.waits import place_of
from tickgraph.env.config import SceneEntityCfg
from tickgraph.env.kept import kept_by_tick

if TYPE_CHECKING:
    from tickgraph.env.env import Env


class BuildError(TickgraphError):
    """A term's class failed while it was built; ``__cause__`` is what it raised."""

    def __init__(self, text: str, manager: str, term: str, cls: type) -> None:
        super().__init__(text)
        self.manager, self.term, self.cls = manager, term, cls


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Let errors say which term they are about."""
    try:
        yield
    except BuildError:
        raise
    except TickgraphError as error:
        if path in str(error):
            raise
        raise TickgraphError(f"term {path}: {error}") from error


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Let what a task's own code raises be one line: ``what`` it is for, error, function, file and line."""
    try:
        yield
    except TickgraphError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error, what) is not None:
            raise  # whoever builds says what the memory was for
        raise TickgraphError(f"{what}: {said(error)}") from error


def said(error: BaseException) -> str:
    """Return what a task's own code raised, with the function, file and line where it did."""
    place = place_of(reversed(list(traceback.walk_tb(error.__traceback__))))
    text = "it ends the program" if isinstance(error, SystemExit) else first_line(error) + lacking(error)
    return f"{type(error).__name__}: {text}{f' at {place}' if place else ''}"


@contextmanager
def calling(path: str) -> Iterator[None]:
    """Let what a term raises when it is called while an environment is built be one line that names it."""
    with naming(path), own_code(f"term {path}"):
        yield


def build_instance(cls: Any, cfg: Any, env: Env, path: str) -> Any:
    """Return ``cls(cfg, env, path)``; what it raises becomes one line that names the term.

    What it draws from a global generator is the same in every run.
    """
    with naming(path), seeded_by(path):
        try:
            return cls(cfg, env, path)
        except TickgraphError:
            raise
        except (Exception, SystemExit) as error:
            ends = isinstance(error, SystemExit)
            text = "it ends the program" if ends else str(error).strip().partition("\n")[0]
            manager, _, term = path.rpartition("/")
            what = f"term {path}: {cls.__name__}(cfg, env, path) raised {type(error).__name__}: {text}"
            raise BuildError(what, manager, term, cls) from error


class Term:
    """A configured function or object, with selectors resolved and its random stream bound."""

    def __init__(self, env: Env, manager: str, name: str, cfg: Any, passed: tuple[str, ...] = ()) -> None:
        self.manager, self.name, self.cfg, self._env = manager, name, cfg, env
        self._passed = passed
        self.path = f"{manager}/{name}"
        self.user_function = cfg.func
        called = cfg.func.__call__ if inspect.isclass(cfg.func) else cfg.func
        known = _parameters(called, inspect.isclass(cfg.func))
        check_arguments(called, cfg.params, f"term {self.path}")
        self._check_params(known)
        with naming(self.path):
            self.params = {
                key: env.scene.resolve(value) if isinstance(value, SceneEntityCfg) else value
                for key, value in {**_selectors(known), **cfg.params}.items()
            }
        self.instance = None
        if inspect.isclass(cfg.func):
            _check_built(cfg.func, self.path)
            self.instance = build_instance(cfg.func, cfg, env, self.path)
            if not callable(self.instance):
                raise TickgraphError(f"term {self.path}: class {cfg.func.__name__} needs a __call__ method")
        elif not callable(cfg.func):
            raise TickgraphError(f"term {self.path}: func must be a function or a class, not {cfg.func!r}")
        elif "rng" in known and "rng" not in self.params:
            self.params["rng"] = env.rng.stream(self.path)
        self._function = self.instance if self.instance is not None else cfg.func

    def __call__(self, *args: Any) -> Any:
        return self._function(self._env, *args, **self.params)

    def reset(self, mask: Tensor) -> None:
        if self.instance is not None and hasattr(self.instance, "reset"):
            self.instance.reset(mask)

    def _check_params(self, known: Mapping[str, inspect.Parameter]) -> None:
        """Refuse parameters that the function does not take, or that it takes and were not given."""
        kinds = {parameter.kind for parameter in known.values()}
        if not known or inspect.Parameter.VAR_KEYWORD in kinds:
            return
        own = list(known)[1 + len(self._passed) :]  # the manager passes env and, for events, the mask
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            self._check_passed(list(known)[: 1 + len(self._passed)])
        for key in self.cfg.params:
            if key not in own:
                hint = nearby(key, own) or f"it takes {', '.join(own) or 'none'}"
                raise TickgraphError(f"term {self.path}: {label(self.cfg)} has no parameter {key!r}; {hint}")
        drawn = () if inspect.isclass(self.cfg.func) else ("rng",)
        for key in own:
            parameter = known[key]
            optional = parameter.default is not inspect.Parameter.empty or key in drawn
            if not optional and key not in self.cfg.params and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
                raise TickgraphError(f"term {self.path}: {label(self.cfg)} needs {key!r}; add it to params")

    def _check_passed(self, names: list[str]) -> None:
        """Refuse a function that takes something else in the place of the mask: ids, its random words, a parameter."""
        if len(names) < 1 + len(self._passed):
            raise TickgraphError(
                f"term {self.path}: {label(self.cfg)} takes ({', '.join(names)}), expected "
                f"({', '.join(('env', *self._passed))}) and its parameters"
            )
        for name, passed in zip(names[1:], self._passed, strict=True):
            if passed == "mask" and (name in ("ids", "idx") or name.endswith(("_ids", "_idx"))):
                raise TickgraphError(
                    f"term {self.path}: {label(self.cfg)} takes {name!r}, but tickgraph passes a mask, one bool a "
                    "world, and no ids: name it mask and write where(mask, new, old); see docs/convert-a-term.md"
                )
            if name == "rng" or name in self.cfg.params:
                raise TickgraphError(
                    f"term {self.path}: {label(self.cfg)} takes {name!r} where {passed!r} is passed; write it as "
                    f"(env, {passed}, {name}, ...)"
                )


def _parameters(function: Any, bound: bool) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name, without a method's first one; none where they cannot be known."""
    try:
        known = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}
    named = next(iter(known), None)
    if bound and named is not None and known[named].kind is not inspect.Parameter.VAR_POSITIONAL:
        del known[named]
    return known


def _check_built(cls: type, path: str) -> None:
    """Refuse a class that cannot be built as every term is: as (cfg, env, path)."""
    plain_object = cls.__init__ is object.__init__ and cls.__new__ is object.__new__
    own = {} if plain_object else _parameters(cls.__init__, True)
    taken = [p for p in own.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in taken if p.default is p.empty]
    several = any(p.kind is p.VAR_POSITIONAL for p in own.values())
    if len(needed) > 3 or (len(taken) < 3 and not several):
        raise TickgraphError(
            f"term {path}: class {cls.__name__} is built as {cls.__name__}(cfg, env, path), and its __init__ takes "
            f"({', '.join(own)}); path is the name that its tensors begin with"
        )


def _selectors(known: Mapping[str, inspect.Parameter]) -> dict[str, SceneEntityCfg]:
    """Return the selectors among the defaults of parameters: a term receives these resolved too."""
    return {key: p.default for key, p in known.items() if isinstance(p.default, SceneEntityCfg)}


class Manager:
    """Base: terms by name, in the order of their declaration."""

    name = "terms"
    call_arguments: tuple[str, ...] = ()
    tells = False
    """Its terms only tell something of a tick, and may write nothing but what is their own."""

    def __init__(self, env: Env, cfgs: dict[str, Any]) -> None:
        self._env = env
        self.cfgs = cfgs
        self.terms: dict[str, Any] = {name: self._build(name, cfg) for name, cfg in cfgs.items() if cfg is not None}

    def _build(self, name: str, cfg: Any) -> Any:
        return Term(self._env, self.name, name, cfg, self.call_arguments)

    @property
    def names(self) -> list[str]:
        return list(self.terms)

    def term(self, name: str) -> Any:
        """Return the object of a term; raises TickgraphError with nearby names."""
        if name not in self.terms:
            hint = nearby(name, self.terms) or f"there are {', '.join(self.terms) or 'none'}"
            raise TickgraphError(f"{self.name} has no term {name!r}; {hint}")
        term = self.terms[name]
        return term.instance if isinstance(term, Term) and term.instance is not None else term

    def term_index(self, name: str) -> int:
        """Return the column of a term in tensors of one column a term."""
        self.term(name)
        return self.names.index(name)

    def reset(self, mask: Tensor) -> None:
        for term in self.terms.values():
            term.reset(mask)

    def calls(self) -> Iterator[JudgedCall]:
        """Yield every user function of this manager, alone, for the judge of blockers."""
        env = self._env
        kept = kept_by_tick(env) if self.tells else {}
        for name, term in self.terms.items():
            arguments = tuple(env.no_worlds if a == "mask" else 0 for a in self.call_arguments)
            owners = (env,) if term.instance is None else (env, term.instance)
            yield JudgedCall(
                *(self.name, name, Call(term, arguments), term.user_function, owners, env.arena, term.params, kept)
            )
            if term.instance is not None and hasattr(term.instance, "reset"):
                call = Call(term.reset, (env.no_worlds,))
                yield JudgedCall(self.name, name, call, term.user_function, owners, env.arena, kept=kept)

    def rehearse(self) -> None:
        """Make what can only be made once every manager is there, before the arena is sealed."""

    def describe(self) -> list[dict[str, Any]]:
        return [{"name": name, "function": label(cfg)} for name, cfg in self.cfgs.items() if cfg is not None]


class Call:
    """A call with its arguments; unlike a lambda in a loop it keeps its own."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self) -> Any:
        return self._function(*self._arguments)


def label(cfg: Any) -> str:
    """Return the name of a term's function or class: of a partial what it calls, of an object its class."""
    target = getattr(cfg, "func", None) or getattr(cfg, "class_type", None)
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__))


def plain(value: Any) -> bool:
    """Tell whether a term returned a dense tensor of real numbers."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_complex()


def described(value: Any) -> str:
    """Return what a term returned, for an error: shape, or what it is instead of a plain tensor."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.layout != torch.strided:
        return f"a sparse tensor ({value.layout})"
    return str(tuple(value.shape)) if plain(value) else f"a tensor of {value.dtype}"


def check_value(path: str, value: Any, env: Env, what: str) -> None:
    """Refuse what a term returned unless it is a tensor (N,) of ``what`` ("float" or "bool") on the worlds' device.

    All of it is known without looking at a value. Whole numbers pass as either; a float is no bool: whoever returns a
    distance from a termination has forgotten to compare it.
    """
    home = env.episode_length.device
    if not plain(value) or value.dim() != 1 or value.shape[0] != env.num_envs:
        got = described(value)
    elif torch.compiler.is_compiling():
        return  # a program is traced after an eager rehearsal, which has seen the rest
    elif value.device != home:
        got = f"a tensor on {value.device}"
    elif what == "bool" and value.is_floating_point():
        got = f"a tensor of {value.dtype}"
    else:
        return
    raise TickgraphError(f"term {path} returned {got}, expected a {what} tensor of shape ({env.num_envs},) on {home}")
