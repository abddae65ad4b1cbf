"""Small managers of named terms: build, compute, reset by mask, describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.judge import JudgedCall
from tickgraph.core.masked import assign_rows, fill_rows
from tickgraph.env import config
from tickgraph.env.config import SceneEntityCfg

if TYPE_CHECKING:
    from tickgraph.env.env import Env

_VERY_LONG = 10**9  # control steps; no episode lasts so long


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


def build_instance(cls: Any, cfg: Any, env: Env, path: str) -> Any:
    """Return ``cls(cfg, env, path)``; what it raises becomes one line that names the term."""
    with naming(path):
        try:
            return cls(cfg, env, path)
        except TickgraphError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            manager, _, term = path.rpartition("/")
            what = f"term {path}: {cls.__name__}(cfg, env, path) raised {type(error).__name__}: {text}"
            raise BuildError(what, manager, term, cls) from error


class Term:
    """A configured function or object, with selectors resolved and its random stream bound."""

    def __init__(self, env: Env, manager: str, name: str, cfg: Any, extra: int = 0) -> None:
        self.manager, self.name, self.cfg, self._env = manager, name, cfg, env
        self._extra = extra
        self.path = f"{manager}/{name}"
        self.user_function = cfg.func
        with naming(self.path):
            self.params = {
                key: env.scene.resolve(value) if isinstance(value, SceneEntityCfg) else value
                for key, value in cfg.params.items()
            }
        self.instance = None
        if inspect.isclass(cfg.func):
            self.instance = build_instance(cfg.func, cfg, env, self.path)
            if not callable(self.instance):
                raise TickgraphError(f"term {self.path}: class {cfg.func.__name__} needs a __call__ method")
        elif not callable(cfg.func):
            raise TickgraphError(f"term {self.path}: func must be a function or a class, not {cfg.func!r}")
        self._function = self.instance if self.instance is not None else cfg.func
        self._check_params()

    def __call__(self, *args: Any) -> Any:
        return self._function(self._env, *args, **self.params)

    def reset(self, mask: Tensor) -> None:
        if self.instance is not None and hasattr(self.instance, "reset"):
            self.instance.reset(mask)

    def _check_params(self) -> None:
        target = self.instance.__call__ if self.instance is not None else self._function
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):
            return
        known = signature.parameters
        if self.instance is None and "rng" in known and "rng" not in self.params:
            self.params["rng"] = self._env.rng.stream(self.path)
        with naming(self.path):
            for key, parameter in known.items():
                if isinstance(parameter.default, SceneEntityCfg) and key not in self.params:
                    self.params[key] = self._env.scene.resolve(parameter.default)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
            return
        own = list(known)[1 + self._extra :]  # the manager passes env and, for events, the mask
        for key in self.params:
            if key not in own:
                hint = nearby(key, own) or f"it takes {', '.join(own) or 'none'}"
                raise TickgraphError(f"term {self.path}: {_label(self.cfg)} has no parameter {key!r}; {hint}")
        for key in own:
            parameter = known[key]
            optional = parameter.default is not inspect.Parameter.empty
            if not optional and key not in self.params and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
                raise TickgraphError(f"term {self.path}: {_label(self.cfg)} needs {key!r}; add it to params")


class Manager:
    """Base: terms by name, in the order of their declaration."""

    name = "terms"
    call_arguments: tuple[str, ...] = ()

    def __init__(self, env: Env, cfgs: dict[str, Any]) -> None:
        self._env = env
        self.cfgs = cfgs
        self.terms: dict[str, Any] = {name: self._build(name, cfg) for name, cfg in cfgs.items() if cfg is not None}

    def _build(self, name: str, cfg: Any) -> Any:
        return Term(self._env, self.name, name, cfg, extra=len(self.call_arguments))

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
        for name, term in self.terms.items():
            arguments = tuple(env.no_worlds if a == "mask" else 0 for a in self.call_arguments)
            owners = (env,) if term.instance is None else (env, term.instance)
            yield JudgedCall(self.name, name, _Call(term, arguments), term.user_function, owners, env.arena)
            if term.instance is not None and hasattr(term.instance, "reset"):
                yield JudgedCall(
                    self.name, name, _Call(term.reset, (env.no_worlds,)), term.user_function, owners, env.arena
                )

    def rehearse(self) -> None:
        """Make what can only be made once every manager is there, before the arena is sealed."""

    def describe(self) -> list[dict[str, Any]]:
        return [{"name": name, "function": _label(cfg)} for name, cfg in self.cfgs.items() if cfg is not None]


class _Call:
    """A call with its arguments; unlike a lambda in a loop it keeps its own."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self) -> Any:
        return self._function(*self._arguments)


def _label(cfg: Any) -> str:
    target = getattr(cfg, "func", None) or getattr(cfg, "class_type", None)
    return getattr(target, "__name__", str(target))


def _check_shape(path: str, value: Any, num_envs: int, what: str) -> None:
    if not isinstance(value, Tensor) or value.dim() != 1 or value.shape[0] != num_envs:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TickgraphError(f"term {path} returned {got}, expected a {what} tensor of shape ({num_envs},)")


class ActionTerm:
    """Base of action terms: ``dim`` columns of the raw action; ``process`` stores targets, ``apply`` writes ctrl."""

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self.cfg, self.path, self._env = cfg, path, env
        self.entity = env.scene[cfg.entity_name]

    @property
    def dim(self) -> int:
        raise NotImplementedError

    def process(self, raw: Tensor) -> None:
        """Turn raw actions (N, dim), delayed where the term asks for it, into targets."""
        raise NotImplementedError

    def apply(self) -> None:
        """Write the term's columns of ``env.sim.ctrl``."""
        raise NotImplementedError

    def reset(self, mask: Tensor) -> None:
        """Forget the last episode of the worlds of a mask."""


class DelayLine:
    """The last frames of a vector in every world, read ``lag`` ticks back; each world draws its lag at a reset.

    Args:
        env: owner of the arena and of the random words.
        path: name in the arena and of the random stream.
        dim: length D of the vector.
        lags: smallest and largest lag, whole ticks.
    """

    def __init__(self, env: Env, path: str, dim: int, lags: tuple[int, int]) -> None:
        low, high = lags
        if not 0 <= low <= high:
            raise TickgraphError(f"{path}: lags {lags} given, expected 0 <= min <= max in whole ticks")
        self._low, self._high = low, high
        shape = (env.num_envs, high + 1, dim)
        self.frames = env.arena.new(f"{path}/delay", shape, torch.float32, "frames of a delay line, oldest first")
        self.lag = env.arena.new(f"{path}/lag", (env.num_envs,), torch.int64, "delay of each world, ticks", fill=low)
        self._rng = env.rng.stream(f"{path}/lag")

    def draw(self, mask: Tensor) -> None:
        """Draw new lags for the worlds of a mask."""
        assign_rows(self.lag, mask, self._rng.integers("", 1, self._low, self._high + 1)[:, 0])

    def read(self, frames: Tensor) -> Tensor:
        """Return (N, D), the frame that is due in each world, from frames (N, H, D)."""
        index = (self._high - self.lag)[:, None, None].expand(-1, 1, frames.shape[2])
        return frames.gather(1, index)[:, 0]

    def pushed(self, frame: Tensor) -> Tensor:
        """Return the frames with one more at the end and the oldest gone, (N, H, D); nothing is stored."""
        return torch.cat((self.frames[:, 1:], frame[:, None]), dim=1)


class ActionManager(Manager):
    """Splits the raw action among its terms. ``action`` and ``prev_action`` (N, A) float32 are raw, undelayed."""

    name = "actions"

    def __init__(self, env: Env, cfgs: dict[str, Any]) -> None:
        super().__init__(env, cfgs)
        self.dims = {name: term.dim for name, term in self.terms.items()}
        self.total_dim = sum(self.dims.values())
        if not self.terms:
            raise TickgraphError("the task declares no action; add a term to EnvCfg.actions")
        shape = (env.num_envs, self.total_dim)
        self.action = env.arena.new("actions/action", shape, why="raw action of this tick; 0 in a new episode")
        self.prev_action = env.arena.new("actions/prev_action", shape, why="raw action of the tick before")
        self._delays = {
            name: DelayLine(env, f"actions/{name}", self.dims[name], (cfg.delay_min_lag, cfg.delay_max_lag))
            for name, cfg in cfgs.items()
            if cfg is not None and (cfg.delay_min_lag, cfg.delay_max_lag) != (0, 0)
        }

    def _build(self, name: str, cfg: Any) -> Any:
        if cfg.class_type is None:
            raise TickgraphError(
                f"action {name!r}: class_type is not set; use a configuration such as JointPositionActionCfg"
            )
        return build_instance(cfg.class_type, cfg, self._env, f"actions/{name}")

    def process(self, action: Tensor) -> None:
        """Store the raw action (N, A) and write every term's controls."""
        self.prev_action.copy_(self.action)
        self.action.copy_(action)
        start = 0
        for name, term in self.terms.items():
            raw = self.action[:, start : start + self.dims[name]]
            start += self.dims[name]
            if name in self._delays:
                line = self._delays[name]
                line.frames.copy_(line.pushed(raw))
                raw = line.read(line.frames)
            term.process(raw)
            term.apply()

    def reset(self, mask: Tensor) -> None:
        fill_rows(self.action, mask, 0.0)
        fill_rows(self.prev_action, mask, 0.0)
        for line in self._delays.values():
            fill_rows(line.frames, mask, 0.0)
            line.draw(mask)
        super().reset(mask)

    def calls(self) -> Iterator[JudgedCall]:
        env, start = self._env, 0
        for name, term in self.terms.items():
            raw = self.action[:, start : start + self.dims[name]]
            start += self.dims[name]
            for step in (_Call(term.process, (raw,)), _Call(term.apply, ()), _Call(term.reset, (env.no_worlds,))):
                yield JudgedCall(self.name, name, step, type(term), (env, term), env.arena)

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "dim": self.dims[row["name"]]} for row in super().describe()]


class CommandTerm:
    """Base of commands: resampled by mask after a time drawn from ``cfg.resampling_time_range`` seconds.

    A term that sets rows of ``rewrite`` (N,) bool in ``update`` asks for its ``write_state(mask)`` to be called for
    them: the state changes without an end of the episode.
    """

    rewrite: Tensor | None = None

    def __init__(self, cfg: Any, env: Env, path: str) -> None:
        self.cfg, self.path, self._env = cfg, path, env
        self.rng = env.rng.stream(path)
        self.time_left = env.arena.new(
            f"{path}/time_left", (env.num_envs,), why="seconds until the command is resampled"
        )

    @property
    def command(self) -> Tensor:
        """(N, C) float32."""
        raise NotImplementedError

    def resample(self, mask: Tensor) -> None:
        """Draw a new command for the worlds of a mask."""
        raise NotImplementedError

    def update(self) -> None:
        """Advance by one tick what changes each tick."""

    def write_state(self, mask: Tensor) -> None:
        """Stage the state of worlds whose ``rewrite`` bit is set."""

    def step(self) -> None:
        """Advance by one tick: count down, resample where the time is over, update."""
        self.time_left -= self._env.step_dt
        # Half a step of slack: repeated subtraction in float32 must not turn 5.00 s into one tick more.
        due = self.time_left <= 0.5 * self._env.step_dt
        self.resample(due)
        self._restart_clock(due)
        self.update()

    def reset(self, mask: Tensor) -> None:
        self.resample(mask)
        self._restart_clock(mask)

    def _restart_clock(self, mask: Tensor) -> None:
        low, high = self.cfg.resampling_time_range
        assign_rows(self.time_left, mask, self.rng.uniform("time_left", 1, low, high)[:, 0])


class CommandManager(Manager):
    """Commands by name."""

    name = "commands"

    def _build(self, name: str, cfg: Any) -> Any:
        if cfg.class_type is None:
            raise TickgraphError(
                f"command {name!r}: class_type is not set; use a configuration such as UniformVelocityCommandCfg"
            )
        return build_instance(cfg.class_type, cfg, self._env, f"commands/{name}")

    def get_command(self, name: str) -> Tensor:
        """Return (N, C) float32 of a command; raises TickgraphError with nearby names."""
        return self.term(name).command

    def step(self) -> None:
        for term in self.terms.values():
            if term.rewrite is not None:
                term.rewrite.zero_()
            term.step()

    def calls(self) -> Iterator[JudgedCall]:
        env = self._env
        for name, term in self.terms.items():
            for step in (
                _Call(term.step, ()),
                _Call(term.reset, (env.no_worlds,)),
                _Call(term.write_state, (env.no_worlds,)),
                _Call(getattr, (term, "command")),
            ):
                yield JudgedCall(self.name, name, step, type(term), (env, term), env.arena)

    def rehearse(self) -> None:
        for name, term in self.terms.items():
            if term.command.dim() != 2:
                raise TickgraphError(f"commands/{name}: command has shape {tuple(term.command.shape)}, expected (N, C)")


class RewardManager(Manager):
    """Weighted sum of reward terms. ``weights`` (T,) float32 lives on the device, so that curricula may change it."""

    name = "rewards"

    def __init__(self, env: Env, cfgs: dict[str, config.RewardTermCfg]) -> None:
        super().__init__(env, cfgs)
        count = len(self.terms)
        self.weights = env.arena.new("rewards/weights", (count,), why="weight of each reward term")
        self.weights.copy_(torch.tensor([float(cfgs[n].weight) for n in self.terms], dtype=torch.float32))
        self.values = env.arena.new("rewards/values", (env.num_envs, count), why="weighted terms of this tick")
        self._scale = env.step_dt if env.cfg.scale_rewards_by_dt else 1.0

    def compute(self, out: Tensor) -> None:
        """Write each weighted term to ``values`` and their sum to ``out`` (N,)."""
        if not self.terms:
            out.zero_()
            return
        columns = []
        for term in self.terms.values():
            value = term()
            _check_shape(term.path, value, self._env.num_envs, "float")
            columns.append(value.to(torch.float32))
        self.values.copy_(torch.stack(columns, dim=1) * (self.weights * self._scale))
        out.copy_(self.values.sum(dim=1))

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "weight": float(self.cfgs[row["name"]].weight)} for row in super().describe()]


class TerminationManager(Manager):
    """Falls and time-outs. ``dones`` (N, T) bool says which terms fired."""

    name = "terminations"

    def __init__(self, env: Env, cfgs: dict[str, config.TerminationTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.dones = env.arena.new(
            "terminations/dones", (env.num_envs, len(self.terms)), torch.bool, "terms that fired"
        )
        self.is_time_out = {
            name: getattr(term.user_function, "is_time_out", False)
            if cfgs[name].time_out is None
            else cfgs[name].time_out
            for name, term in self.terms.items()
        }

    def rehearse(self) -> None:
        """Refuse a time limit that does not say that it is one: every expiry would be learnt as a failure."""
        length = self._env.episode_length
        for name, term in self.terms.items():
            if self.cfgs[name].time_out is None and not self.is_time_out[name]:
                ended = []
                for steps in (0, _VERY_LONG):
                    length.fill_(steps)
                    value = term()
                    _check_shape(term.path, value, self._env.num_envs, "bool")
                    ended.append(value.to(torch.bool))
                if bool(~ended[0].any() & ended[1].all()):
                    raise TickgraphError(
                        f"term {term.path} fires by the length of the episode alone; say time_out=True if it is a time "
                        "limit, whose end is no failure, or time_out=False"
                    )
        length.zero_()

    def compute(self, terminated: Tensor, truncated: Tensor) -> None:
        """Write (N,) bool flags; a fall and a time-out together are a fall."""
        terminated.zero_()
        truncated.zero_()
        for column, (name, term) in enumerate(self.terms.items()):
            value = term()
            _check_shape(term.path, value, self._env.num_envs, "bool")
            value = value.to(torch.bool)
            self.dones[:, column].copy_(value)
            (truncated if self.is_time_out[name] else terminated).logical_or_(value)
        truncated.logical_and_(~terminated)

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "time_out": self.is_time_out[row["name"]]} for row in super().describe()]


class EventManager(Manager):
    """Events by mode, each for the worlds of a mask."""

    name = "events"
    call_arguments = ("mask",)
    modes = ("startup", "reset", "interval", "step")

    def __init__(self, env: Env, cfgs: dict[str, config.EventTermCfg]) -> None:
        for name, cfg in cfgs.items():
            if cfg is not None and cfg.mode not in self.modes:
                hint = nearby(str(cfg.mode), self.modes) or f"one of {', '.join(self.modes)}"
                raise TickgraphError(f"event {name!r}: mode {cfg.mode!r} is unknown; {hint}")
            if cfg is not None and (cfg.mode == "interval") != (cfg.interval_range_s is not None):
                raise TickgraphError(
                    f"event {name!r}: interval_range_s goes with mode 'interval', given mode {cfg.mode!r}"
                )
        super().__init__(env, cfgs)
        self._by_mode = {m: [t for n, t in self.terms.items() if cfgs[n].mode == m] for m in self.modes}
        self._timers = {
            t.name: env.arena.new(f"events/{t.name}/time_left", (env.num_envs,), why="seconds until the event")
            for t in self._by_mode["interval"]
        }
        self._streams = {name: env.rng.stream(f"events/{name}/time_left") for name in self._timers}

    def apply(self, mode: str, mask: Tensor) -> None:
        """Run every term of a mode for the worlds of a mask."""
        for term in self._by_mode[mode]:
            term(mask)

    def step(self) -> None:
        """Run the step events, and the interval events of worlds whose time is over."""
        self.apply("step", self._env.all_worlds)
        for term in self._by_mode["interval"]:
            timer = self._timers[term.name]
            timer -= self._env.step_dt
            due = timer <= 0.5 * self._env.step_dt
            term(due)
            self._restart_clock(term, due)

    def reset(self, mask: Tensor) -> None:
        super().reset(mask)
        for term in self._by_mode["interval"]:
            self._restart_clock(term, mask)

    def _restart_clock(self, term: Term, mask: Tensor) -> None:
        low, high = term.cfg.interval_range_s
        assign_rows(self._timers[term.name], mask, self._streams[term.name].uniform("", 1, low, high)[:, 0])

    def describe(self) -> list[dict[str, Any]]:
        return [{**row, "mode": self.cfgs[row["name"]].mode} for row in super().describe()]


class CurriculumManager(Manager):
    """Rules that change the task as training goes on; ``values`` (T,) float32 holds what each returned last."""

    name = "curriculum"
    call_arguments = ("mask",)

    def __init__(self, env: Env, cfgs: dict[str, config.CurriculumTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.values = env.arena.new(
            "curriculum/values", (len(self.terms),), why="last value of each curriculum, logged"
        )

    def compute(self, mask: Tensor) -> None:
        for column, term in enumerate(self.terms.values()):
            value = term(mask)
            if value is not None:
                self.values[column].copy_(value.to(torch.float32).mean())


class MetricManager(Manager):
    """Values that are logged as means over worlds and ticks."""

    name = "metrics"

    def compute(self) -> list[Tensor]:
        """Return one (N,) float32 tensor a term."""
        values = []
        for term in self.terms.values():
            value = term()
            _check_shape(term.path, value, self._env.num_envs, "float")
            values.append(value.to(torch.float32))
        return values


class RecorderManager(Manager):
    """Signals kept each tick before any reset. ``manager[name]`` is (N, ...), the tick that just ended."""

    name = "recorders"

    def __init__(self, env: Env, cfgs: dict[str, config.RecorderTermCfg]) -> None:
        super().__init__(env, cfgs)
        self.buffers: dict[str, Tensor] = {}

    def rehearse(self) -> None:
        for name, term in self.terms.items():
            value = term()
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != self._env.num_envs:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise TickgraphError(f"term {term.path} returned {got}, expected a tensor ({self._env.num_envs}, ...)")
            self.buffers[name] = self._env.arena.new(
                f"recorders/{name}", tuple(value.shape), value.dtype, "recorded signal of the tick that just ended"
            )

    def record(self) -> None:
        for name, term in self.terms.items():
            self.buffers[name].copy_(term())

    def __getitem__(self, name: str) -> Tensor:
        self.term(name)
        return self.buffers[name]


class SubstepManager(Manager):
    """Terms that run before each physics substep."""

    name = "substeps"
    call_arguments = ("substep",)

    def apply(self, substep: int) -> None:
        for term in self.terms.values():
            term(substep)
