"""What the order of contacts changes: MuJoCo Warp numbers them by an atomic counter, so a GPU finds another each time.

On Warp's CPU device the order is always the same; here it is shuffled by hand.
"""

import numpy as np
import pytest
import torch
import warp as wp
from mujoco_warp._src import collision_driver
from sim_toys import go2_scene, make

from tickgraph.sim.backend import FRESH

WORLDS = 4


def play(shuffled: bool, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Return the views after each of six steps of a Go2 that stands and twitches."""
    find, draw = collision_driver.collision, np.random.default_rng(0)

    def collision(model, data, *rest, **more):
        find(model, data, *rest, **more)
        count = int(data.nacon.numpy()[0])
        assert count <= data.naconmax
        order = draw.permutation(count)
        for array in vars(data.contact).values():
            if isinstance(array, wp.array) and array.size and array.shape[0] == data.naconmax:
                values = array.numpy().copy()
                values[:count] = values[:count][order]
                array.assign(values)

    scene = go2_scene()
    sim, _ = make(scene, num_envs=WORLDS, backend="mjwarp")
    noise = torch.Generator().manual_seed(1)
    home = scene.entity("robot").default_joint_pos[scene.entity("robot").actuator_joint]
    seen = []
    with monkeypatch.context() as patch:
        if shuffled:
            patch.setattr(collision_driver, "collision", collision)
        for _ in range(6):
            sim.ctrl.copy_(torch.as_tensor(home).float() + 0.3 * torch.randn(WORLDS, scene.nu, generator=noise))
            sim.advance_and_refresh(1)
            seen.append({name: sim.view(name).clone() for name in FRESH})
    assert sum(sim.overflow().values()) == 0
    return seen


def test_contacts_in_another_order_round_otherwise_and_no_more_than_that(monkeypatch):
    first, again, other = (play(shuffled, monkeypatch) for shuffled in (False, False, True))
    for step in range(6):
        assert all(torch.equal(first[step][name], again[step][name]) for name in FRESH), step
    assert not torch.equal(first[-1]["qpos"], other[-1]["qpos"])
    for name in FRESH:
        scale = max(1.0, first[0][name].abs().max().item())
        assert (first[0][name] - other[0][name]).abs().max().item() <= 1e-5 * scale, name
