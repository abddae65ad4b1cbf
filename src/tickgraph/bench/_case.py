"""One case of the collector's benchmark, and the collector that it measures: environment, policy and ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.env.config import TerminationTermCfg
from tickgraph.env.env import Env
from tickgraph.learn.build import make_learner, make_ring
from tickgraph.learn.explore import Explorer
from tickgraph.run.precision import set_precision

if TYPE_CHECKING:
    from tickgraph.run.config import Task

SCENARIOS = ("normal", "reset-heavy")
RESET_SHARE = 0.05  # of all worlds, each tick, in the scenario reset-heavy
RING_BYTES = 512 * 2**20


@dataclass
class Case:
    """One measurement: a task with one number of worlds.

    ``settle`` ticks are played first, so that everything is compiled and the robots have fallen as often as they do;
    resident memory is compared between tick ``settle`` and tick ``memory_ticks``.
    """

    task: str
    num_envs: int
    backend: str = "mujoco"
    device: str = "cpu"
    execution: str = "auto"
    arms: tuple[str, ...] = ()
    scenario: str = "normal"
    blocks: int = 30
    ticks_per_block: int | None = None
    settle: int = 100
    memory_ticks: int = 200
    physics_threads: int | None = None
    torch_threads: int | None = None
    seed: int = 0


@dataclass
class Collector:
    """An environment with the policy that explores and the ring that records, as training has them."""

    env: Env
    learner: Arena

    def state(self) -> dict[str, Tensor]:
        """Return copies of everything that the next ticks read; what the ring holds is nothing of that."""
        own = {name: self.learner[name].clone() for name in self.learner.names() if name.startswith("explorer/")}
        return self.env.state_dict() | own

    def addresses(self) -> dict[str, int]:
        """Return where every tensor of both arenas lies; none of them may ever move."""
        return self.env.arena.pointers() | self.learner.pointers()

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a `state`."""
        self.env.load_state_dict({name: value for name, value in state.items() if not name.startswith("explorer/")})
        for name, value in state.items():
            if name.startswith("explorer/"):
                self.learner[name].copy_(value)


def bench_reset(env: Any, rng: Any, share: float = RESET_SHARE) -> Tensor:
    """Termination of the scenario reset-heavy: (N,) bool, each world with probability `share`, in every tick."""
    return rng.uniform("", 1)[:, 0] < share


def build(task: Task, case: Case) -> Collector:
    """Build the collector of a case: the task's own networks, untrained, and its own replay, bounded in size."""
    if case.scenario == "reset-heavy":
        task.env.terminations["bench_reset"] = TerminationTermCfg(func=bench_reset)
    env = Env(task.env, case.num_envs, case.device, case.backend, case.execution, case.seed, case.physics_threads)
    set_precision(task.train.matmul_precision, env.device)
    algo, dims, actions = task.train.algo, env.observation_manager.dims, env.action_manager.total_dim
    arena = Arena(env.device)
    learner = make_learner(algo, dims, actions, env.num_envs, arena, case.seed)
    learner.choose_policy(task.train.learner_kernels)
    explorer = Explorer(learner, env.num_envs, case.seed)
    explorer.set_warmup(False)
    slot = 4 * env.num_envs * (sum(dims.values()) + actions)
    slots = max(algo.n_step + 1, min(task.train.replay_slots, RING_BYTES // slot))
    ring = make_ring(learner, slots, env.num_envs)
    arena.seal()
    env.attach(explorer, ring)
    if task.train.stagger:
        env.stagger()
    return Collector(env, arena)
