"""The branches of a refresh: every kernel waits for what it needs, and the bits are those of one kernel at a time."""

import types

import pytest
import torch
from sim_toys import go2_scene, make

from tickgraph.sim.backend import FRESH
from tickgraph.sim.warp_launches import Launches

# What each kernel reads of another's results, in the order in which kinematics, com_pos and com_vel launch them.
READS = {
    "_kinematics_branch": (),
    "_compute_body_matrices": ("_kinematics_branch",),
    "_compute_body_inertial_frames": ("_kinematics_branch",),
    "_geom_local_to_global": ("_kinematics_branch",),
    "_site_local_to_global": ("_kinematics_branch",),
    "_subtree_com": ("_compute_body_inertial_frames",),
    "_subtree_com_world": ("_subtree_com",),
    "_cinert": ("_subtree_com_world", "_compute_body_inertial_frames"),
    "_cdof": ("_compute_body_matrices", "_subtree_com_world"),
    "_comvel_root": (),
    "_comvel_branch": ("_cdof", "_comvel_root"),
}


class Streams:
    """Stands for warp: knows of each stream which kernels' ends its next work comes behind."""

    def __init__(self) -> None:
        self.main, self.behind, self.aside = self.Stream(), {}, []

    class Stream:
        def __init__(self, device: object = None) -> None:
            self.known: set[str] = set()

        def record_event(self, event: set[str]) -> set[str]:
            event.clear()
            event |= self.known
            return event

        def wait_event(self, event: set[str]) -> None:
            self.known |= event

    def Event(self, device: object) -> set[str]:  # noqa: N802
        return set()

    def get_stream(self) -> Stream:
        return self.main

    def launch(self, kernel: str, stream: Stream | None = None) -> None:
        self.aside += [kernel] * (stream is not None)
        stream = stream or self.main
        self.behind[kernel] = set(stream.known)
        stream.known.add(kernel)


@pytest.mark.parametrize("left_out", [(), ("_cinert", "_geom_local_to_global")])
def test_every_kernel_comes_behind_what_it_reads(left_out):
    warp, smooth = Streams(), types.SimpleNamespace(**{name: name for name in READS})
    smooth.wp = warp
    launches = Launches(warp, smooth, types.SimpleNamespace(is_cuda=True))
    wanted = [name for name in READS if name not in left_out]
    for _ in range(3):  # the first time as they come
        warp.behind, warp.aside, warp.main.known = {}, [], {"before"}
        with launches.of(lambda kernel: kernel not in left_out):
            for name in READS:
                if smooth.wp is not warp or name in wanted:
                    smooth.wp.launch(name)
        assert smooth.wp is warp and list(warp.behind) == wanted
        for name, behind in warp.behind.items():
            assert behind >= {"before", *READS[name]}, name
        assert warp.main.known >= {"before", *wanted}
    assert set(warp.aside) == set(wanted) & {
        *("_compute_body_matrices", "_geom_local_to_global", "_site_local_to_global", "_cinert")
    }


def test_mujoco_warp_launches_what_this_file_knows(monkeypatch):
    sim, _ = make(go2_scene(), num_envs=2, backend="mjwarp")
    seen, launch = [], sim._smooth.wp.launch

    def count(kernel, *args, **options):
        seen.append(kernel.key)
        launch(kernel, *args, **options)

    with monkeypatch.context() as counted:
        counted.setattr(sim._smooth.wp, "launch", count)
        sim.refresh(torch.ones(2, dtype=torch.bool))
    assert [name for name in seen if name in READS] == list(READS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("captured", [False, True])
def test_branches_give_the_bits_of_one_kernel_at_a_time(captured):
    n, stream = 2048, torch.cuda.Stream()
    sims = [make(go2_scene(), num_envs=n, backend="mjwarp", device="cuda")[0] for _ in range(2)]
    sims[1]._launches._lanes = {}
    everyone = torch.ones(n, dtype=torch.bool, device="cuda")
    graphs = []
    torch.cuda.synchronize()
    if captured:
        for sim in sims:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=stream), sim.capture_scope(stream):
                sim.refresh(everyone)
    seed = torch.Generator(device="cuda").manual_seed(0)
    for _ in range(20):
        place = 0.5 * torch.randn(sims[0].staging_qpos.shape, generator=seed, device="cuda")
        speed = torch.randn(sims[0].staging_qvel.shape, generator=seed, device="cuda")
        for i, sim in enumerate(sims):
            sim.staging_qpos.copy_(place)
            sim.staging_qvel.copy_(speed)
            sim.write_state(everyone, ~everyone)
            torch.cuda.synchronize()
            if captured:
                graphs[i].replay()
            else:
                sim.refresh(everyone)
            torch.cuda.synchronize()
        for name in FRESH:
            assert torch.equal(sims[0].view(name), sims[1].view(name)), name
