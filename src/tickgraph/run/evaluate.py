"""How good a policy is: deterministic episodes with random words of their own, the same in any process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_tree
from tickgraph.core.room import check_room
from tickgraph.core.seeded import seeded_by
from tickgraph.env.config import EnvCfg
from tickgraph.env.env import Env
from tickgraph.env.term import own_code
from tickgraph.learn.build import make_learner
from tickgraph.learn.explore import GreedyPolicy
from tickgraph.run.config import Task
from tickgraph.run.neighbours import warn_of_threads
from tickgraph.run.panel import warn
from tickgraph.run.settings import clone
from tickgraph.sim.platform import resolve_platform

POLICY = "policy/"  # where the learner keeps the policy that acts
BUILT_IN = ("episodes", "survival", "return", "length", "length_s", "invalid", "report")
# What wrong code raises whatever the values are.
_WRONG_CODE = (NameError, AttributeError, KeyError, TypeError, ImportError, SystemExit)


@dataclass(frozen=True)
class EvalTrace:
    """One recorded episode of each of N worlds, T control steps long at most.

    Args:
        step_dt: seconds of a control step.
        counted: (T, N) bool, the step belongs to the world's episode and lies behind the ignored start.
        survived: (N,) bool, the episode did not end by a termination.
        invalid: (N,) bool, the episode ended by something that was not finite.
        returns: (N,) float32, sum of rewards.
        lengths: (N,) int64, control steps played.
        signals: by recorder's name, (T, N, ...) as recorded, before any reset. Steps that are not counted hold whatever
            the world did then.
    """

    step_dt: float
    counted: Tensor
    survived: Tensor
    invalid: Tensor
    returns: Tensor
    lengths: Tensor
    signals: dict[str, Tensor]

    def mean(self, name: str) -> Tensor:
        """Return (N, ...) float32, the signal's mean over each world's counted steps; NaN for a world without any.

        Raises:
            TickgraphError: nothing of that name was recorded.
        """
        if name not in self.signals:
            hint = nearby(name, self.signals) or f"there are {', '.join(self.signals) or 'none'}"
            raise TickgraphError(f"the evaluation has no recorder {name!r}; {hint}")
        signal = self.signals[name].to(torch.float32)
        weight = self.counted.reshape(*self.counted.shape, *[1] * (signal.dim() - 2))
        total = torch.where(weight, signal, 0.0).sum(dim=0)
        return total / weight.sum(dim=0).where(weight.any(dim=0), math.nan)


def evaluation_seed(seed: int) -> int:
    """Return the seed of a run's evaluations, so that they share no random word with its training."""
    return int.from_bytes(hashlib.sha256(f"tickgraph/evaluation/{seed}".encode()).digest()[:8], "little") >> 1


def evaluation_env_cfg(task: Task) -> EnvCfg:
    """Return the configuration that the task's policies are judged in: a copy, edited as the task says.

    Raises:
        TickgraphError: an environment would refuse it; the text names the setting of the evaluation.
    """
    cfg = clone(task.env)
    if task.evaluation.episode_s is not None:
        cfg.check_length(task.evaluation.episode_s, "evaluation.episode_s")
        cfg.episode_length_s = task.evaluation.episode_s
    if task.evaluation.edit is not None:
        with own_code("evaluation.edit"), seeded_by(f"{task.name}/evaluation.edit"):
            task.evaluation.edit(cfg)
        check_tree(cfg, "evaluation.edit: env")
    cfg.recorders = {**cfg.recorders, **task.evaluation.recorders}
    if task.evaluation.ignore_s >= cfg.episode_length_s:
        raise TickgraphError(
            f"evaluation.ignore_s is {task.evaluation.ignore_s:g}, expected less than an evaluated episode, "
            f"{cfg.episode_length_s:g} s: nothing would be left to judge"
        )
    return cfg


class Player:
    """An environment in which a policy plays deterministically, for evaluation and video.

    It is played on the task's backend, where its worlds are. On a GPU it runs as training does; on the CPU eager:
    compiling takes longer than these few steps, and every process gets the same bits.

    Args:
        task: what is played.
        num_envs: worlds.
        policy: the policy's tensors by arena name ("policy/..."), or None for an untrained policy.

    Attributes:
        env: the environment.
        learner: owner of the policy; it never learns here.

    Raises:
        TickgraphError: the policy does not fit the task.
    """

    def __init__(self, task: Task, num_envs: int, policy: Mapping[str, Tensor] | None) -> None:
        train = task.train
        warn_of_threads(train.physics_threads, train.tick_threads)
        torch.set_num_threads(train.tick_threads)
        platform = resolve_platform(train.device, train.backend)
        self.env = Env(
            *(evaluation_env_cfg(task), num_envs, platform.worlds, platform.backend),
            "eager" if platform.worlds == "cpu" else train.execution,
            seed=evaluation_seed(train.seed),
            threads=train.physics_threads,
        )
        arena = Arena(self.env.device)
        dims, actions = dict(self.env.observation_manager.dims), self.env.action_manager.total_dim
        learner = make_learner(train.algo, dims, actions, num_envs, arena, train.seed)
        arena.seal()
        if policy is not None:
            load_policy(arena, policy)
        self.learner = learner
        self.env.attach(policy=GreedyPolicy(learner))

    def tick(self) -> None:
        """Play one control step."""
        self.env.tick()

    def close(self) -> None:
        """Give the physics' threads and memory back."""
        self.env.close()


def load_policy(arena: Arena, policy: Mapping[str, Tensor]) -> None:
    """Write a policy's tensors into a learner's arena.

    Raises:
        TickgraphError: names or shapes differ.
    """
    own = [name for name in arena.names() if name.startswith(POLICY)]
    for name in own:
        if name not in policy or policy[name].shape != arena[name].shape:
            given = tuple(policy[name].shape) if name in policy else "absent"
            raise TickgraphError(
                f"the checkpoint's policy does not fit the task: {name} is {given}, expected {tuple(arena[name].shape)}"
            )
    for name in own:
        arena[name].copy_(policy[name])


@torch.no_grad()
def play(player: Player, ignore_s: float = 0.0) -> EvalTrace:
    """Play one episode in each world and record it."""
    env = player.env
    steps, n = env.max_episode_length, env.num_envs
    names = env.recorder_manager.names
    check_record_room(steps, n, [env.recorder_manager[name] for name in names])
    signals = {
        name: torch.zeros((steps, *env.recorder_manager[name].shape), dtype=env.recorder_manager[name].dtype)
        for name in names
    }
    alive = torch.ones(n, dtype=torch.bool, device=env.device)
    survived, invalid, returns = alive.clone(), ~alive, torch.zeros(n, device=env.device)
    played = torch.zeros((steps, n), dtype=torch.bool, device=env.device)
    for step in range(steps):
        player.tick()
        for name in names:
            signals[name][step] = env.recorder_manager[name]
        played[step] = alive
        returns += torch.where(alive, env.reward, 0.0)
        survived &= ~(alive & env.terminated)
        invalid |= alive & env.invalid
        alive &= ~env.done
        if not alive.any():
            break
    counted = played.clone()
    counted[: round(ignore_s / env.step_dt)] = False
    lengths = played.sum(dim=0)
    return EvalTrace(env.step_dt, counted.cpu(), survived.cpu(), invalid.cpu(), returns.cpu(), lengths.cpu(), signals)


def check_record_room(steps: int, episodes: int, rows: Iterable[Tensor]) -> None:
    """Refuse to record more than the machine has memory for.

    Args:
        steps: of an episode at most.
        episodes: how many are recorded at once.
        rows: what each recorder gives of some worlds, (N, ...).

    Raises:
        TickgraphError: there is less left.
    """
    a_step = sum(row[:1].numel() * row.element_size() for row in rows)
    # What was played and what counts, a byte each, and figures that take a copy.
    wanted = 2 * steps * episodes * (a_step + 1)
    advice = "use fewer episodes (evaluation.episodes) or shorter ones (evaluation.episode_s)"
    check_room(wanted, torch.device("cpu"), f"the record of {episodes} episodes of {steps} steps", advice)


def evaluate(task: Task, policy: Mapping[str, Tensor] | None) -> dict[str, Any]:
    """Judge a policy as its task says, on the task's device and backend.

    Args:
        task: with `evaluation.episodes` episodes, one a world.
        policy: tensors by arena name ("policy/..."), or None for an untrained policy of the same sizes and seed.

    Returns:
        episodes, survival (share of episodes without a termination), return and length (means; length in control
        steps), invalid (episodes ended by something non-finite), and the task's own figures; "report" is plain data of
        the task's own, if it has any.
    """
    report = None
    player = Player(task, task.evaluation.episodes, policy)
    try:
        trace = play(player, task.evaluation.ignore_s)
        if task.evaluation.report is not None:
            with own_code("evaluation.report"):
                report = task.evaluation.report.make(trace, player.env)
    finally:
        player.close()
    result: dict[str, Any] = {
        "episodes": task.evaluation.episodes,
        "survival": trace.survived.to(torch.float64).mean().item(),
        "return": trace.returns.to(torch.float64).mean().item(),
        "length": trace.lengths.to(torch.float64).mean().item(),
        "length_s": trace.lengths.to(torch.float64).mean().item() * trace.step_dt,
        "invalid": int(trace.invalid.sum()),
    }
    if task.evaluation.figures is not None:
        result |= own_figures(task.evaluation.figures, trace)
    if report is not None:
        result["report"] = report
    return result


def own_figures(figures: Callable[[EvalTrace], Mapping[str, Any]], trace: EvalTrace) -> dict[str, float | None]:
    """Return a task's own figures of an evaluation as plain numbers, None for one that is not finite.

    Raises:
        TickgraphError: the function fails, or returns something else than numbers by names of its own.
    """
    with own_code("evaluation.figures"):
        made = figures(trace)
    if not isinstance(made, Mapping):
        raise TickgraphError(f"evaluation.figures returned {type(made).__name__}, expected a dictionary of numbers")
    result: dict[str, float | None] = {}
    for name, value in made.items():
        if name in BUILT_IN:
            raise TickgraphError(f"evaluation.figures: {name!r} is what every evaluation reports; choose another name")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TickgraphError(f"evaluation.figures: {name!r} is {what}, expected a number") from None
        result[str(name)] = number if math.isfinite(number) else None
    return result


@torch.no_grad()
def check_figures(task: Task, backend: str) -> None:
    """Build the evaluation's environment of shapes alone before the training, and call a task's own figures.

    They are given episodes of zeros of the shapes that the recorders have. What an environment refuses, what wrong code
    raises, and what is no number by name, is refused. What may be due to the zeros is a warning.

    Raises:
        TickgraphError: the evaluation could not be made; the text says why.
    """
    cfg, judged = evaluation_env_cfg(task), task.evaluation
    if judged.figures is None and judged.edit is None and not judged.recorders:
        return  # the environment of the training, which is built anyway
    worlds = min(judged.episodes, 2)
    try:
        env = Env(cfg, worlds, "meta", backend, "eager")
        made = env.recorder_manager.signals()
    except (Exception, SystemExit) as error:
        if _refused(error):
            raise
        return  # it needs values; the environment itself says what is wrong with it
    steps = env.max_episode_length
    check_record_room(steps, judged.episodes, made.values())  # now, and not behind the training
    if judged.figures is None:
        return
    signals = {name: torch.zeros((steps, *value.shape), dtype=value.dtype) for name, value in made.items()}
    yes, zeros = torch.ones(worlds, dtype=torch.bool), torch.zeros(worlds)
    counted, lengths = yes.expand(steps, worlds).clone(), torch.full((worlds,), steps)
    try:
        own_figures(judged.figures, EvalTrace(env.step_dt, counted, yes, ~yes, zeros, lengths, signals))
    except TickgraphError as error:
        if error.__cause__ is None or isinstance(error.__cause__, _WRONG_CODE):
            raise
        warn(f"{error}, on a trial with zeros; if it fails after the training too, mend it and run `tickgraph eval`")


def _refused(error: BaseException) -> bool:
    """Tell whether an environment was refused as it is configured, not for what a term raised where values lack."""
    while isinstance(error, TickgraphError) and error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, TickgraphError)
