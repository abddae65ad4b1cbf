"""A selector that a term does not look at is refused; one that it looks at in part is not."""

import pytest
import torch
from test_entities import ARM, SLIDER, N
from toys import TargetCfg, alive

from tickgraph.core.errors import TickgraphError
from tickgraph.env.config import EnvCfg, ObservationGroupCfg, ObservationTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.env import Env
from tickgraph.env.scene import SceneEntity
from tickgraph.sim.scene import EntityCfg, SceneCfg

BASE = SceneEntityCfg("arm", body_names="base")


def joints_l2(env, asset_cfg):
    return env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids].square().sum(dim=1)


def height(env, asset_cfg=BASE):
    return env.scene[asset_cfg.name].data.root_link_pos_w[:, 2]


class by_name:
    """Looks at the names while it is built."""

    def __init__(self, cfg, env, path):
        self.found = env.scene["arm"].index.find("joint", cfg.params["asset_cfg"].joint_names)

    def __call__(self, env, asset_cfg):
        return env.reward + len(self.found)


def env_of(func, *selector, **names):
    params = {"asset_cfg": SceneEntityCfg(*selector, **names)} if selector else {}
    return Env(
        EnvCfg(
            scene=SceneCfg({"slider": EntityCfg(SLIDER), "arm": EntityCfg(ARM)}, terrain=None),
            observations={"actor": ObservationGroupCfg({"one": ObservationTermCfg(lambda env: env.reward[:, None])})},
            actions={"arm": TargetCfg(entity_name="arm"), "slider": TargetCfg(entity_name="slider")},
            rewards={"alive": RewardTermCfg(alive), "term": RewardTermCfg(func, 1.0, params)},
        ),
        N,
        execution="eager",
    )


def test_names_that_are_never_looked_at():
    text = "rewards/term: asset_cfg selects by body_names, and joints_l2 looks at joint_names; leave out"
    with pytest.raises(TickgraphError, match=text):
        env_of(joints_l2, "arm", body_names="lower")
    with pytest.raises(TickgraphError, match="selects by body_names, and height looks at the entity's name alone"):
        env_of(height)  # also where it is a default


def test_what_is_looked_at_in_part_by_name_or_not_at_all_stands():
    env = env_of(joints_l2, "arm", joint_names="elbow", body_names="lower")
    given = env.reward_manager.terms["term"].params["asset_cfg"]
    assert type(given) is SceneEntity and torch.equal(given.joint_ids, torch.tensor([1]))
    env_of(joints_l2, "arm")
    env_of(height, "arm")
    env_of(by_name, "arm", joint_names="elbow")
