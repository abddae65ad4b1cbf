"""Arena: declarations, snapshots and addresses."""

import pytest
import torch

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError, nearby


def small_arena() -> Arena:
    arena = Arena("cpu")
    arena.new("env/length", (4,), torch.int64, "ticks since the reset", fill=3)
    arena.new("env/obs", (4, 2), why="what the policy reads")
    arena.constant("env/gain", [1.5, 2.0], why="from the configuration")
    return arena


def test_new_gives_shape_dtype_and_fill():
    arena = small_arena()
    assert arena["env/length"].tolist() == [3, 3, 3, 3]
    assert arena["env/obs"].shape == (4, 2) and arena["env/obs"].dtype == torch.float32
    assert arena.names() == ["env/length", "env/obs", "env/gain"]
    assert "env/obs" in arena and "obs" not in arena
    assert arena.nbytes() == 4 * 8 + 8 * 4 + 2 * 4
    assert arena.table()[0] == {
        "name": "env/length",
        "shape": (4,),
        "dtype": "int64",
        "bytes": 32,
        "why": "ticks since the reset",
    }


def test_names_are_unique_and_end_with_the_seal():
    arena = small_arena()
    with pytest.raises(TickgraphError, match="declared already"):
        arena.new("env/obs", (1,))
    arena.seal()
    assert arena.sealed
    with pytest.raises(TickgraphError, match="after the arena was sealed"):
        arena.new("env/late", (1,))
    with pytest.raises(TickgraphError, match="did you mean 'env/obs'"):
        arena["env/obz"]


def test_restore_writes_in_place_and_leaves_constants():
    arena = small_arena()
    pointers = arena.pointers()
    saved = arena.snapshot()
    assert set(saved) == {"env/length", "env/obs"}
    arena["env/obs"].fill_(7.0)
    arena["env/gain"].fill_(9.0)
    arena.restore(saved)
    assert arena["env/obs"].eq(0.0).all() and arena["env/gain"].tolist() == [9.0, 9.0]
    assert arena.pointers() == pointers
    assert saved["env/obs"].data_ptr() not in pointers.values()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("env/obs"), "lacks env/obs"),
        (lambda s: s.update(extra=torch.zeros(1)), "unknown extra"),
        (lambda s: s.update({"env/obs": torch.zeros(5, 2)}), r"\(5, 2\)"),
        (lambda s: s.update({"env/obs": torch.zeros(4, 2, dtype=torch.float64)}), "float64"),
    ],
)
def test_restore_is_strict_and_all_or_nothing(change, message):
    arena = small_arena()
    saved = arena.snapshot()
    saved["env/length"] = torch.zeros(4, dtype=torch.int64)
    change(saved)
    with pytest.raises(TickgraphError, match=message):
        arena.restore(saved)
    assert arena["env/length"].tolist() == [3, 3, 3, 3]


def test_meta_device_has_shapes_only():
    arena = Arena("meta")
    assert arena.new("x", (1 << 40,)).is_meta
    assert Arena("cpu").constant("z", 0.1, torch.float64).item() == 0.1
    assert arena.constant("y", torch.ones(3)).is_meta


def test_nearby():
    assert nearby("robt", ["robot", "terrain"]) == "did you mean 'robot'?"
    assert nearby("SAC", ["flashsac", "sac"]) == "did you mean 'sac'?"
    assert nearby("zzz", ["robot"]) == ""


def test_a_float64_scalar_is_refused_because_compiled_writes_to_it_are_lost():
    with pytest.raises(TickgraphError, match=r"float64 scalar.*shape \(1,\)"):
        Arena("cpu").new("sum", (), torch.float64)
    assert Arena("cpu").new("sum", (1,), torch.float64).item() == 0.0
