"""Which algorithms there are, and a learner and its replay made from a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby
from tickgraph.core.fields import check_tree
from tickgraph.core.room import check_room
from tickgraph.learn.algos import ALGO_NAMES
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.learner import AlgoCfg, Learner
from tickgraph.learn.replay import Ring
from tickgraph.learn.sac import Sac, SacCfg

ALGOS: dict[str, type[AlgoCfg]] = dict(zip(ALGO_NAMES, (FlashSacCfg, SacCfg), strict=True))


def algo_name(cfg: AlgoCfg) -> str:
    """Return the name of the algorithm that a configuration is of: an instance of its class, or of a subclass that has
    other values alone.

    Raises:
        TickgraphError: it is of none, or its class says more than values.
    """
    for name, kind in ALGOS.items():
        if isinstance(cfg, kind):
            for text in _more_than_values(type(cfg), kind):
                raise TickgraphError(f"train.algo is a {type(cfg).__name__}: it {text}")
            return name
    kinds = ", ".join(kind.__name__ for kind in ALGOS.values())
    raise TickgraphError(f"train.algo is a {type(cfg).__name__}; give one of {kinds}")


def _more_than_values(own: type[AlgoCfg], kind: type[AlgoCfg]) -> Iterator[str]:
    """Yield what of a subclass its algorithm would not read, as words behind "it".

    A `__post_init__` that sets values is fine, and so are helpers of the subclass's own.
    """
    names = [field.name for field in fields(kind)]
    for part in own.__mro__[: own.__mro__.index(kind)]:
        for name in (*vars(part), *vars(part).get("__annotations__", {})):
            value = vars(part).get(name)
            if name in names or name.startswith("_"):
                continue
            if hasattr(kind, name):
                yield f"brings {name!r} of its own; a subclass of {kind.__name__} may have other values alone"
            elif not hasattr(value, "__get__"):  # methods, properties and the like are helpers
                hint = nearby(name, names) or f"a subclass of {kind.__name__} may have other values alone"
                yield f"has {name!r}, which is no field of {kind.__name__}; {hint}"


def plain_cfg(cfg: AlgoCfg) -> AlgoCfg:
    """Return the values of a configuration in the class of its algorithm, whose bounds they are held to.

    Raises:
        TickgraphError: as `algo_name`, or a value is outside its bounds.
    """
    kind = ALGOS[algo_name(cfg)]
    check_tree(cfg, "train.algo")
    return kind(**{field.name: getattr(cfg, field.name) for field in fields(kind)})


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
    cfg = plain_cfg(cfg)
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
