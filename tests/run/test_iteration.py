"""Iterations: what changes hands when, K ticks at once, played actions, and that no timing changes a number."""

from dataclasses import replace

import pytest
import torch
from linear_stub import NAME, linear_cfg, register

from tickgraph.core.arena import Arena
from tickgraph.core.errors import TickgraphError
from tickgraph.core.graph import events_leave_graphs
from tickgraph.core.program import resolve_execution
from tickgraph.env.env import Env
from tickgraph.learn.explore import Explorer
from tickgraph.learn.flashsac import FlashSac, FlashSacCfg
from tickgraph.learn.replay import Ring
from tickgraph.learn.update import UpdateCycle
from tickgraph.run.iteration import AHEAD, Iteration
from tickgraph.run.readout import Readout

WORLDS = 6
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = [pytest.param("cpu", "eager"), pytest.param("cuda", "graph", marks=gpu)]


@pytest.fixture(autouse=True)
def linear(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def world(device, execution, inner="eager"):
    """Return an environment whose programs run as `inner`, in a graph too: eager ones can be compared bit for bit."""
    env = Env(linear_cfg(), WORLDS, device, NAME, execution, seed=3)
    env._resolution = replace(env.resolution, inner=inner)
    env.attach()
    return env


class Rig:
    """A learner on the linear stub, with everything that a trainer has but the log."""

    def __init__(
        self, device="cpu", execution="eager", ticks=1, overlap=False, updates=2, kind=Iteration, inner="eager"
    ):
        self.env = world(device, execution, inner)
        self.arena = Arena(self.env.device)
        cfg = FlashSacCfg(actor_width=8, actor_blocks=1, critic_width=8, critic_blocks=1, batch_size=16, atoms=21)
        dims, actions = dict(self.env.observation_manager.dims), self.env.action_manager.total_dim
        self.learner = FlashSac(cfg, dims, actions, WORLDS, self.arena, 0, total_updates=50)
        ahead = ticks if overlap else 0
        self.ring = Ring(
            self.arena, 64, WORLDS, dims, actions, ahead=ahead, boundary_rows=256, normalizer=self.learner.normalizer
        )
        self.explorer = Explorer(self.learner, WORLDS, seed=0)
        mode = replace(resolve_execution(execution, self.env.device), inner=inner)
        self.cycle = UpdateCycle(self.learner, self.ring, updates, mode)
        self.arena.seal()
        self.env.attach(self.explorer, self.ring)
        self.iteration = kind(self.env, self.learner, self.ring, self.cycle, ticks, overlap, mode)
        self.iteration.drain()

    def play(self, iterations, warmup=3):
        """Collect, then learn; returns every tensor of worlds and learner."""
        for i in range(iterations):
            if i == warmup:
                with self.iteration.between():
                    self.explorer.set_warmup(False)
            self.iteration.run(i >= warmup)
        return self.numbers()

    def numbers(self):
        self.iteration.drain()
        found = {f"env/{name}": value.cpu() for name, value in self.env.arena.snapshot().items()}
        return found | {f"learn/{name}": value.cpu() for name, value in self.arena.snapshot().items()}


def differing(first, second):
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(torch.nan_to_num(first[name]), torch.nan_to_num(second[name]))]


class Watched(Iteration):
    """Notes what the learner sees, and with which policy each tick acts."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.acted: list[int] = []
        self.sampled: list[int] = []
        play, policies = self.env.tick_body, []

        def tick() -> None:
            now = self.learner.policy_storage.parameters.sum().item()
            if now not in policies:
                policies.append(now)
            self.acted.append(policies.index(now))
            play()

        def sampled() -> None:
            self.sampled.append(int(self.ring.visible))

        self.env.tick_body = tick
        run = self.cycle.run
        self.update_graphs[0]._fn = lambda: (sampled(), run(0))


@pytest.mark.parametrize(
    ("overlap", "ticks", "sampled", "acted"),
    [
        # Learning from iteration 3 on. In turn an update sees its own iteration's ticks; beside them, those before.
        (False, 1, [3, 4, 5], [0, 0, 0, 1, 2]),
        (True, 1, [2, 3, 4], [0, 0, 0, 1, 2]),
        (False, 2, [6, 8, 10], [0] * 6 + [1] * 2 + [2] * 2),
        (True, 2, [4, 6, 8], [0] * 6 + [1] * 2 + [2] * 2),
    ],
)
def test_what_the_learner_sees_and_which_policy_acts(overlap, ticks, sampled, acted):
    rig = Rig(ticks=ticks, overlap=overlap, kind=Watched)
    rig.play(5, warmup=2)
    assert rig.iteration.sampled == sampled
    assert rig.iteration.acted == acted
    assert int(rig.ring.written) == 5 * ticks


def test_an_overlapped_update_does_not_see_the_ticks_beside_it():
    """In turn, update then ticks or ticks then update: with overlap the order cannot matter."""

    class UpdatesFirst(Iteration):
        def run(self, learns=True):
            self._begin()
            if learns:
                self.update()
            for _ in range(self.ticks):
                self.env.tick_body()
            self.count += 1
            self._mark_end()

    first, second = Rig(ticks=2, overlap=True), Rig(ticks=2, overlap=True, kind=UpdatesFirst)
    assert differing(first.play(45), second.play(45)) == []  # 90 ticks in a ring of 64 slots
    third = Rig(ticks=2, overlap=False)
    assert differing(first.numbers(), third.play(45)) != []


def test_a_ring_that_hides_too_little_is_refused():
    rig = Rig(ticks=2)
    with pytest.raises(TickgraphError, match="ahead=2, this one has 0"):
        Iteration(rig.env, rig.learner, rig.ring, rig.cycle, 2, overlap=True)


@pytest.mark.parametrize(("device", "execution"), DEVICES)
def test_k_ticks_at_once_are_k_ticks(device, execution):
    """Six times four ticks, none of them learned from, equal 24 single ones bit for bit."""
    several, single = Rig(device, execution, ticks=4), Rig(device, execution)
    assert differing(several.play(6, warmup=99), single.play(24, warmup=99)) == []
    assert several.env.rng.tick.item() == 24


@pytest.mark.parametrize(("device", "execution"), DEVICES)
def test_given_actions_are_played_and_each_ticks_ends_kept(device, execution):
    ticks, (env, plain) = 5, (world(device, mode) for mode in (execution, "eager"))
    iteration = Iteration(env, ticks=ticks)
    iteration.drain()
    generator = torch.Generator().manual_seed(1)
    ended = 0
    for _ in range(6):
        actions = (torch.rand(ticks, *env.action.shape, generator=generator) * 2 - 1).to(env.device)
        dones = iteration.play(actions).clone()
        expected = []
        for action in actions:
            plain.step(action)
            expected.append(plain.done.clone())
        assert torch.equal(dones, torch.stack(expected))
        ended += int(dones.sum())
    assert ended > 0
    iteration.drain()
    assert iteration.played()
    assert torch.equal(env.obs["actor"], plain.obs["actor"])


def test_play_says_what_it_needs():
    rig = Rig(ticks=2)
    with pytest.raises(TickgraphError, match="a policy is attached"):
        rig.iteration.play(torch.zeros(2, WORLDS, 1))
    with pytest.raises(TickgraphError, match=r"shape \(3, 6, 1\), expected \(2, 6, 1\)"):
        Iteration(Env(linear_cfg(), WORLDS, "cpu", NAME, "eager"), ticks=2).play(torch.zeros(3, WORLDS, 1))


@pytest.mark.parametrize(("device", "execution"), DEVICES)
def test_one_update_a_cycle_takes_the_actor_along_every_second_time(device, execution):
    rig = Rig(device, execution, updates=1)
    rig.play(12, warmup=3)
    assert (rig.learner.updates.item(), rig.learner.actor_updates.item()) == (9, 5)


@pytest.mark.parametrize(("device", "execution"), DEVICES)
def test_a_rehearsal_leaves_nothing_behind(device, execution):
    rehearsed, plain = Rig(device, execution, overlap=True), Rig(device, execution, overlap=True)
    before = rehearsed.numbers()
    rehearsed.iteration.rehearse()
    after = rehearsed.numbers()
    # Of the ring only the counters matter: what lies in its slots is written before it is read.
    assert [name for name in differing(before, after) if not name.startswith("learn/ring/")] == []
    counters = ("written", "stored", "visible", "visible_stored", "overflowed")
    assert all(torch.equal(before[f"learn/ring/{name}"], after[f"learn/ring/{name}"]) for name in counters)
    ended = [name for name in differing(rehearsed.play(20), plain.play(20)) if not name.startswith("learn/ring/")]
    assert ended == []


def test_readings_come_in_order_with_their_iteration():
    values = torch.zeros(3)
    readout = Readout(torch.device("cpu"), {"a": lambda: values, "b": lambda: values[:1].to(torch.int64)})
    readout.start()
    for i in range(3):
        values += 1
        readout.take(i, tag=f"row {i}")
    found = list(readout.ready(over=3))
    assert [(r.after, r.tag, r.values) for r in found] == [
        (i, f"row {i}", {"a": [i + 1.0] * 3, "b": [i + 1.0]}) for i in range(3)
    ]
    assert all(reading.seconds >= 0 for reading in found)
    assert list(readout.ready(over=3)) == []


# On a GPU ------------------------------------------------------------------------------------------------------------

CYCLES = 20_000_000  # of a delay, about 10 ms


class InTurn(Iteration):
    """The streams forced one after the other."""

    def collect(self) -> None:
        super().collect()
        torch.cuda.synchronize()

    def update(self) -> None:
        super().update()
        torch.cuda.synchronize()


class SlowTicks(Iteration):
    """The ticks come long after the head."""

    def _begin(self) -> None:
        super()._begin()
        torch.cuda._sleep(CYCLES)


class SlowHead(Iteration):
    """The head comes long after the launch."""

    def _begin(self) -> None:
        torch.cuda._sleep(CYCLES)
        super()._begin()


class SlowUpdates(Iteration):
    """The updates come long after what they wait for, and end late."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for graph in self.update_graphs.values():
            run = graph._fn
            graph._fn = lambda run=run: (torch.cuda._sleep(CYCLES), run(), torch.cuda._sleep(CYCLES))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", [InTurn, SlowTicks, SlowHead, SlowUpdates])
def test_no_timing_changes_a_number(kind, overlap):
    usual = Rig("cuda", "graph", ticks=2, overlap=overlap)
    other = Rig("cuda", "graph", ticks=2, overlap=overlap, kind=kind)
    assert differing(usual.play(40), other.play(40)) == []
    assert usual.iteration.report()["collect"]["captures"] == usual.iteration.report()["update"]["captures"] == 1
    assert usual.iteration.report()["update"]["replays"] == 40 - 3 - 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_that_overlap_are_the_same_functions_called():
    """Captured eager segments on two streams, against plain calls: the same kernels, the same bits."""
    captured, called = (Rig("cuda", mode, ticks=2, overlap=True) for mode in ("graph", "eager"))
    assert differing(captured.play(30), called.play(30)) == []
    assert called.iteration.report() == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_programs_are_captured_and_overlap():
    rigs = [Rig("cuda", "graph", ticks=2, overlap=True, inner="compile", kind=kind) for kind in (Iteration, InTurn)]
    for rig in rigs:
        rig.iteration.rehearse()
    numbers = [rig.play(30) for rig in rigs]
    assert [name for name in differing(*numbers) if not name.startswith("learn/ring/")] == []
    report = rigs[0].iteration.report()
    assert {row["inner"] for row in report.values()} == {"compile"}
    assert {row["captures"] for row in report.values()} == {1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_heads_event_is_waited_for_from_outside_its_graph(monkeypatch):
    """Also where it is not: then the head is a graph of its own, and the numbers are the same."""
    inside = Rig("cuda", "graph", overlap=True)
    print(f"an event inside a graph can be waited for outside: {events_leave_graphs(inside.env.device)}")
    monkeypatch.setattr("tickgraph.run.iteration.events_leave_graphs", lambda device: False)
    apart = Rig("cuda", "graph", overlap=True)
    assert apart.iteration.head_graph is not None
    assert differing(inside.play(30), apart.play(30)) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_host_runs_ahead_by_no_more_than_its_limit():
    rig = Rig("cuda", "graph", overlap=True, kind=SlowTicks)
    rig.play(10)
    for _ in range(20):
        rig.iteration.run()
        assert rig.iteration.count - rig.iteration.over <= AHEAD
    rig.iteration.drain()
    assert rig.iteration.over == rig.iteration.count == 30
    assert rig.iteration.seconds(20, 30) == pytest.approx(10 * rig.iteration.seconds(29, 30), rel=0.2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_reading_is_of_its_iteration_though_it_comes_later():
    rig = Rig("cuda", "graph", overlap=True, kind=SlowTicks)
    readout = Readout(rig.env.device, {"ticks": lambda: rig.env.rng.tick})
    rig.play(5)
    with rig.iteration.between():
        readout.start()
    rows, early = [], 0
    for _ in range(12):
        rig.iteration.run()
        with rig.iteration.between():
            readout.take(rig.iteration.count)
        rows += readout.ready(rig.iteration.over)
        early += bool(rows) and rows[-1].after == rig.iteration.count
    rig.iteration.drain()
    rows += readout.ready(rig.iteration.over, drained=True)
    assert [row.values["ticks"] for row in rows] == [[float(row.after)] for row in rows]
    assert [row.after for row in rows] == list(range(6, 18))
    assert early == 0, "no row came before its iteration was over"
    assert all(row.seconds > 0.001 for row in rows)
