"""The learner's kernels against their torch forms: by Triton's interpreter where it is installed, and on a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kernel_cases import CASES

from tickgraph.core.arena import Arena
from tickgraph.learn.kernel_check import affine_inputs, tail_inputs
from tickgraph.learn.networks import Critic
from tickgraph.learn.row_step import FREE, ROW, SPHERE, STATISTICS, TILE, row_table
from tickgraph.learn.storage import Stacked, declare

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, HERE / "kernel_cases.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", CASES)
def test_interpreted(figures, name):
    assert figures[name] <= CASES[name][1]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_builds_for_a_gpu():
    """Down to machine code, which takes no GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, HERE / "kernel_builds.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    sizes = json.loads(ran.stdout)
    assert len(sizes) > 20 and all(size > 0 for size in sizes.values())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_gpu_with_little_shared_memory_takes_the_small_tile(monkeypatch):
    """An RTX 4090 has 99 KB for a program, an H200 227."""
    from tickgraph.learn.kernels import products

    for kilobytes, tile in ((100, products.SMALL), (228, products.LARGE)):
        properties = SimpleNamespace(shared_memory_per_multiprocessor=kilobytes * 1024)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, found=properties: found)
        assert products.large_tile(torch.device("cuda")) == tile and tile.memory < kilobytes * 1024


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name):
    figure, limit = CASES[name]
    with torch.no_grad():
        assert figure("cuda") <= limit


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_repeat_bit_for_bit():
    from tickgraph.learn.kernels import affine_product, batch_norm
    from tickgraph.learn.kernels.loss_head import categorical_head
    from tickgraph.learn.loss_head import critic_tail

    torch.manual_seed(0)
    x, gain = torch.randn(4, 4096, 1024, device="cuda"), torch.ones(4, 1024, device="cuda")
    atoms = torch.linspace(-5, 5, 101, device="cuda")
    tail = tail_inputs(torch.device("cuda"), 2048, 256, atoms, torch.bfloat16)
    forward, back = affine_inputs(torch.device("cuda"), (2, 2048, 256), torch.bfloat16)
    runs = []
    for _ in range(2):
        made = batch_norm.norm_relu(x, gain, gain, None)
        runs.append((*made, *batch_norm.norm_relu_backward(x, x, made[1], made[2], gain, gain)))
        runs[-1] += batch_norm.norm_relu_backward(x, x, made[1], made[2], gain, gain, x[:, :2048])
        runs[-1] += batch_norm.norm_relu(x, gain, gain, x, 2)
        runs[-1] += tuple(batch_norm.whiten(x[0, :, :130], torch.bfloat16))
        runs[-1] += batch_norm.whiten(x[0, :, :101], torch.bfloat16, x[1, :2048, :29], x[2, 2048:, :29])
        runs[-1] += tuple(critic_tail(*tail, categorical_head))
        for given in forward:
            runs[-1] += affine_product.affine_relu(*given)
        for given in back:
            runs[-1] += affine_product.affine_backward(*given)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_the_rows_cover_every_parameter_and_statistic_once():
    arena = Arena("cpu")
    storage = declare(Critic(5, 2, 40, 2, 7, torch.Generator().manual_seed(0)), arena, "critic", "a test")
    stacked = Stacked(storage, storage.parameters.clone(), torch.float32, arena, "stacked")
    table, classes = row_table(storage, stacked)
    assert [each.begin for each in classes] == [0, *(each.end for each in classes[:-1])]
    assert classes[-1].end == len(table)
    places = {"parameters": [], "statistics": [], "stacked": []}
    spheres, free = [], []
    for kind, rows, width, align, tile in (
        (*each[2:], tile) for each in classes for tile in table[each.begin : each.end].tolist()
    ):
        first, distance, length, count, mine, theirs = tile
        assert 1 <= count <= rows and length <= width and rows * width <= TILE
        assert all(at % align == 0 for at in (first, distance, length, mine, theirs) if at >= 0)
        assert (mine >= 0) == (theirs >= 0) == (kind == ROW)
        taken = [first + row * distance + k for row in range(count) for k in range(length)]
        places["statistics" if kind == STATISTICS else "parameters"] += taken
        for start in (mine, theirs) if kind == ROW else ():
            places["stacked"] += [at - first + start for at in taken]
        spheres += [taken] if kind == SPHERE else []
        free += taken if kind == FREE else []
    assert sorted(places["parameters"]) == list(range(storage.parameters.numel()))
    assert sorted(places["statistics"]) == list(range(storage.statistics.numel()))
    assert sorted(places["stacked"]) == list(range(stacked.flat.numel()))
    assert sorted(free) == [
        at for span in storage.spans if "bias" in span.name for at in range(span.start, span.start + span.size)
    ]
    # A gain is one sphere, but for a batch norm's, which its offset belongs to; of each member.
    spans = {span.name: span for span in storage.spans}
    wanted = []
    for name, span in spans.items():
        offset = spans.get(name.replace("gain", "offset"))
        parts = [] if not name.endswith("gain") else [span] if offset is None or offset is span else [span, offset]
        for member in range(2 if parts else 0):
            width = span.size // 2
            wanted.append([part.start + member * width + k for part in parts for k in range(width)])
    assert sorted(spheres) == sorted(wanted)


def test_the_copies_hold_the_network_first_and_its_target_behind():
    arena = Arena("cpu")
    storage = declare(Critic(5, 2, 4, 2, 7, torch.Generator().manual_seed(0)), arena, "critic", "a test")
    target = torch.randn_like(storage.parameters)
    stacked = Stacked(storage, target, torch.float32, arena, "stacked")
    stacked.refresh()
    assert stacked.weights
    for name, span in storage.linear.items():
        assert torch.equal(stacked.weights[name], torch.cat((span.of(storage.parameters), span.of(target))))
    named, other = storage.named(storage.parameters), storage.named(target)
    pairs = storage.pairs([storage.parameters, target])
    assert len(pairs) == 10
    for name, value in pairs.items():
        assert torch.equal(value, torch.cat((named[name], other[name])))
