"""Which algorithms there are, and a learner and its replay made from a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.room import check_room
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.learner import AlgoCfg, Learner
from tickgraph.learn.replay import Ring
from tickgraph.learn.sac import Sac, SacCfg

ALGOS: dict[str, type[AlgoCfg]] = {"flashsac": FlashSacCfg, "sac": SacCfg}


def algo_name(cfg: AlgoCfg) -> str:
    """Return the name of the algorithm that a configuration is of.

    Raises:
        TickgraphError: it is of none.
    """
    for name, kind in ALGOS.items():
        if type(cfg) is kind:
            return name
    kinds = ", ".join(kind.__name__ for kind in ALGOS.values())
    raise TickgraphError(f"train.algo is a {type(cfg).__name__}; give one of {kinds}")


def check_algo(name: str) -> str:
    """Return the name of an algorithm.

    Raises:
        TickgraphError: there is none of this name.
    """
    if name not in ALGOS:
        raise TickgraphError(
            f"there is no algorithm {name!r}; {nearby(name, ALGOS) or 'the algorithms are ' + ', '.join(ALGOS)}"
        )
    return name


def check_groups(obs_dims: Mapping[str, int]) -> None:
    """Refuse a task without the observation groups that every learner reads.

    Raises:
        TickgraphError: "actor" or "critic" is missing.
    """
    for group, reader in (("actor", "the policy"), ("critic", "the critics")):
        if group not in obs_dims:
            raise TickgraphError(
                f"the task has no observation group {group!r}, which {reader} would read, only "
                f"{', '.join(obs_dims)}; add one to EnvCfg.observations (it may have the same terms as another)"
            )


def make_learner(
    cfg: AlgoCfg,
    obs_dims: Mapping[str, int],
    action_dim: int,
    num_envs: int,
    arena: Arena,
    seed: int,
    total_updates: int = 1,
    first_row: int = 0,
) -> Learner:
    """Build the learner of a configuration; the arguments are those of `Learner`, and the number of worlds.

    Raises:
        TickgraphError: an observation group is missing, or the machine has not the memory for an update of these sizes,
            by what it takes at least.
    """
    assert isinstance(cfg, FlashSacCfg | SacCfg), f"no learner for {algo_name(cfg)}"
    check_groups(obs_dims)
    width = max(cfg.actor_width, cfg.critic_width)
    check_room(8 * width**2, arena.device, f"a network of width {width}", "make actor_width and critic_width smaller")
    rows = 8 * cfg.batch_size * cfg.critic_width
    check_room(rows, arena.device, f"an update of batch_size {cfg.batch_size}", "make train.algo.batch_size smaller")
    if isinstance(cfg, FlashSacCfg):
        return FlashSac(cfg, obs_dims, action_dim, num_envs, arena, seed, total_updates, first_row)
    return Sac(cfg, obs_dims, action_dim, arena, seed, total_updates, first_row)


def make_ring(learner: Learner, slots: int, num_envs: int, ahead: int = 0) -> Ring:
    """Build the replay of `slots` ticks that a learner samples from, in the learner's arena; see `Ring`."""
    cfg = learner.cfg
    return Ring(
        *(learner.arena, slots, num_envs, learner.obs_dims, learner.action_dim),
        *(cfg.n_step, cfg.gamma, cfg.discount),
        ahead=ahead,
        normalizer=learner.normalizer,
        obs_normalizers=learner.obs_normalizers,
    )
