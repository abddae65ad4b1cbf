"""The actor's forward pass by itself: the same bits as in one piece, whenever between start and join it runs."""

import importlib.util
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from cycle_rig import Rig
from objective_rig import B, made, made_batch
from torch import Tensor

from tickgraph.bench._learner_paths import PATHS
from tickgraph.core.arena import Arena
from tickgraph.core.graph import Graph
from tickgraph.core.program import Program, Resolution, resolve_execution
from tickgraph.learn.beside import Beside
from tickgraph.learn.path import ON_A_GPU, Switches, resolve_switches
from tickgraph.learn.stacked import Written, kernel_checks

IN_LINE = replace(ON_A_GPU, beside=False)
DELAY = 5_000_000  # cycles of a GPU, some milliseconds
PHASES = [(8, 2), (3, 2), (1, 2), (2, 3), (2, 1)]  # updates a cycle, and for each of the actor


def gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


def differing(first: Rig, second: Rig) -> list[str]:
    mine, wanted = first.numbers(), second.numbers()
    assert set(mine) == set(wanted)
    return [name for name, value in mine.items() if not torch.equal(value.nan_to_num(), wanted[name].nan_to_num())]


class Latest:
    """Stands for a branch that is as late as it can be: it runs when it is waited for. Until then what it will return
    is not a number, and what it returned before is no more either, from the next start on."""

    def __init__(self, beside: Beside) -> None:
        self.program, self.started, self.joined = beside.program, 0, 0
        self.args: tuple[Tensor, ...] = ()
        self.found: tuple[Tensor, ...] = ()

    def start(self, *args: Tensor) -> tuple[Tensor, ...]:
        assert self.started == self.joined
        made = self.program(*args)
        for value in (*self.found, *made):
            value.fill_(torch.nan)
        self.started, self.args, self.found = self.started + 1, args, made
        return made

    def join(self) -> None:
        assert self.started == self.joined + 1
        for place, value in zip(self.found, self.program(*self.args), strict=True):
            place.copy_(value)
        self.joined += 1


class Postponed:
    """Stands for a branch that may be started several times: each time's work runs when it is waited for. Until then
    what a program returns is not a number, and one that writes has written nothing."""

    def __init__(self, beside: Beside, returns: bool, arena: Arena) -> None:
        self.program, self.returns, self.arena = beside.program, returns, arena
        self.waiting: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
        self.runs = 0

    def start(self, *args: Tensor) -> tuple[Tensor, ...]:
        made = ()
        if self.returns:
            before = self.arena.snapshot()
            made = self.program(*args)
            self.arena.restore(before)  # what it writes beside
        for value in made:
            value.fill_(torch.nan)
        self.waiting.append((args, made))
        return made

    def join(self) -> None:
        for args, places in self.waiting:
            found = self.program(*args)
            for place, value in zip(places, found or (), strict=True):
                place.copy_(value)
        self.runs += len(self.waiting)
        self.waiting.clear()


@pytest.mark.parametrize("bf16", [False, True])
def test_two_parts_are_the_whole(bf16):
    learner, batch = made(2, bf16), made_batch()
    learner.written = Written(learner, ON_A_GPU)
    learner.begin_cycle()
    torch.manual_seed(3)
    noise = torch.randn(B, 3)
    forward = learner.actor_forward(batch.actor_obs, noise)
    assert all(isinstance(value, Tensor) and value.isfinite().all() for value in forward)
    spaces = [value.untyped_storage().data_ptr() for value in forward]
    own = {value.untyped_storage().data_ptr() for value in learner.arena.snapshot().values()}
    assert len(set(spaces)) == len(spaces) and own.isdisjoint(spaces), "nothing may be a view of what others write"
    learner.critic_storage.parameters.mul_(1.5)  # the critics' updates in between
    learner.critic_storage.statistics.mul_(1.5)
    learner.begin_cycle()
    mine = learner.actor_objective_at(batch, noise, forward)
    wanted = learner.written.actor.gradient(batch, noise, learner.alpha())
    for name, value in wanted._asdict().items():
        assert torch.equal(getattr(mine, name), value), name


@pytest.mark.parametrize(("updates", "period"), PHASES)
def test_no_critic_update_touches_what_it_reads(updates, period):
    """In line, as early as it can be, and as late: a cycle writes the same bits, whatever phase it begins in."""
    early, late, whole = (Rig(updates, kernels=each, policy_period=period) for each in (ON_A_GPU, ON_A_GPU, IN_LINE))
    branch = late.cycle._actor_forward = Latest(late.cycle._actor_forward)
    for _ in range(3):
        for rig in (early, late, whole):
            rig.cycle()
        assert branch.started == branch.joined == whole.learner.actor_updates.item()
    assert differing(early, whole) == [] == differing(late, whole)


@pytest.mark.parametrize(("updates", "period"), [(8, 2), (3, 2)])
def test_whatever_else_is_beside_may_be_as_late_as_it_is_waited_for(updates, period):
    """Rates, the critics' inputs, copies, and what is behind the steps: nothing reads them before, or writes what they
    still read."""
    late, whole = (Rig(updates, kernels=each, policy_period=period) for each in (ON_A_GPU, IN_LINE))
    names = {"_rates": True, "_critic_inputs": True, "_copies": False, "_critic_figures": False, "_snapshot": False}
    for name, returns in (names | {"_after_actor": False}).items():
        setattr(late.cycle, name, Postponed(getattr(late.cycle, name), returns, late.learner.arena))
    for cycle in range(1, 4):
        for rig in (late, whole):
            rig.cycle()
        runs = [getattr(late.cycle, name).runs for name in names]
        once = cycle - cycle * updates
        assert runs == [cycle * updates + extra for extra in (0, 0, once, 0, once)]
        assert late.cycle._after_actor.runs == late.learner.actor_updates.item()
    assert differing(late, whole) == []


class FakeStream:
    """Stands for a stream of a GPU: says whom it waits for, in `LOG`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_stream(self, other: "FakeStream") -> None:
        LOG.append((self, other))


LOG: list[tuple[FakeStream, FakeStream] | FakeStream] = []
"""Who waits for whom, and on which stream the program has run."""


def test_the_branch_begins_behind_the_caller_and_ends_before_it(monkeypatch):
    """Which stream waits for which, and when, over cycles: what a capture records."""
    device, current = torch.device("cuda"), [FakeStream(torch.device("cuda"))]

    @contextmanager
    def entered(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: current[-1] if where == device else None)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    LOG.clear()
    rig, whole = Rig(3, kernels=ON_A_GPU), Rig(3, kernels=IN_LINE)
    program = rig.cycle._actor_forward.program
    assert rig.cycle._actor_forward.stream is None
    branch = rig.cycle._actor_forward = Beside(program, Resolution("graph", "graph", None, device))
    branch.program = lambda *args: (LOG.append(current[-1]), program(*args))[1]
    for _ in range(2):
        rig.cycle()
        whole.cycle()
    main, side = current[0], branch.stream
    assert LOG == [(side, main), side, (main, side)] * 3, "two passes in the first cycle of three updates, then one"
    assert differing(rig, whole) == []


def test_in_line_is_what_training_takes_without_the_branch(monkeypatch):
    """The path to compare with keeps every kernel."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    checks = {name: lambda: None for name in kernel_checks(made(1))}
    taken = resolve_switches("auto", Resolution("graph", "graph", None, torch.device("cuda")), checks)
    assert taken.beside and replace(taken, beside=False) == PATHS["graph-in-line"].kernels


def test_compiled_it_is_the_same_but_for_rounding():
    """Both programs, on what an eager cycle leaves; the flat tuple is what a compiler hands over."""
    rig = Rig(kernels=ON_A_GPU, actor_blocks=1, critic_blocks=1)
    rig.cycle()
    batch, noise = rig.learner.prepare(rig.ring.sample(rig.learner.replay_draw)), torch.randn(16, 2)
    compiled, found = resolve_execution("compile", "cpu"), []
    for mode in (compiled, resolve_execution("eager", "cpu")):
        first = Program("forward", rig.learner.actor_forward, mode)
        second = Program("gradient", rig.learner.actor_objective_at, mode)
        for _ in range(2):
            made = second(batch, noise, first(batch.actor_obs, noise))
        found.append(made)
        if mode is compiled:
            assert [program.report()["captures"] for program in (first, second)] == [1, 1]
            assert [program.report()["replays"] for program in (first, second)] == [1, 1]
    for name, value in found[1]._asdict().items():
        torch.testing.assert_close(getattr(found[0], name), value, rtol=1e-4, atol=1e-6)


def test_a_report_says_whether_it_runs_beside():
    assert "update/actor_forward" not in Rig(kernels=IN_LINE).cycle.report()
    rig = Rig(kernels=ON_A_GPU)
    rig.cycle()
    report = rig.cycle.report()
    assert report["update/actor_forward"]["enabled"] == "eager" and not report["update/actor_forward"]["beside"]
    assert report["update/actor_loss"]["switches"]["beside"]


def test_without_copies_there_is_no_program_for_them():
    """A program that touches no tensor cannot be compiled."""
    for copies in (False, True):
        rig = Rig(kernels=Switches(manual=True, copies=copies))
        rig.cycle()
        assert ("update/copies" in rig.cycle.report()) == copies == bool(rig.learner.written.copies)


# On a GPU -------------------------------------------------------------------------------------------------------------


def captured(updates: int, period: int, inner: str = "eager", kernels=ON_A_GPU) -> Rig:
    """Return a learner whose cycle is a graph, or one for each phase, in `graphs`."""
    mode = replace(resolve_execution("graph", "cuda"), inner=inner)
    rig = Rig(updates, mode, kernels, device="cuda", policy_period=period)
    stream = torch.cuda.Stream()
    rig.graphs = {
        phase: Graph(f"update/{phase}", lambda phase=phase: rig.cycle.run(phase), mode, stream=stream)
        for phase in rig.cycle.phases
    }
    torch.cuda.synchronize()
    return rig


def play(rig: Rig, cycles: int) -> None:
    """Run cycles; the first two of a phase for real, the others as graphs."""
    for _ in range(cycles):
        phase = rig.cycle.phase()
        rig.graphs[phase]()
        torch.cuda.synchronize()


def slowed(call):
    """Return a call that keeps the current stream busy before its own work."""

    def run(*args):
        torch.cuda._sleep(DELAY)
        return call(*args)

    return run


@gpu
@pytest.mark.parametrize(("updates", "period"), [(8, 2), (3, 2)])
def test_a_branch_of_a_graph_changes_no_bit(updates, period):
    """Whichever stream is held up: the branch before its work, or the cycle before what the branch waits for, and
    before what reads the branch's memory."""
    cycles, rigs = 10, [captured(updates, period) for _ in range(5)]
    alone, beside, late_branch, late_step, late_loss = rigs
    alone.cycle._actor_forward.stream = None
    late_branch.cycle._actor_forward.program = slowed(late_branch.cycle._actor_forward.program)
    late_step.cycle._actor_step = slowed(late_step.cycle._actor_step)
    late_loss.cycle._actor_loss = slowed(late_loss.cycle._actor_loss)
    for rig in rigs:
        play(rig, cycles)
    assert [differing(rig, alone) for rig in rigs[1:]] == [[]] * 4
    for rig in (alone, beside):
        assert all(graph.report()["replays"] > 0 for graph in rig.graphs.values())
    nodes = [[graph.report()["nodes"] for graph in rig.graphs.values()] for rig in (alone, beside)]
    assert nodes[0] == nodes[1], "events are no nodes"
    assert torch.isfinite(beside.learner.actor_storage.parameters).all()
    assert beside.learner.updates.item() == cycles * updates


@gpu
@pytest.mark.parametrize(("updates", "period"), [(8, 2), (3, 2)])
def test_no_other_branch_changes_a_bit(updates, period):
    """Each branch held up before its work, and the cycle before each of its own programs: as all of it in line."""
    whole = captured(updates, period, kernels=IN_LINE)
    play(whole, 6)
    branches = ("_rates", "_critic_inputs", "_copies", "_critic_figures", "_after_actor", "_snapshot")
    for name in (*branches, "_draw", "_critic_loss", "_critic_step", "_actor_loss", "_actor_step"):
        rig = captured(updates, period)
        holder, what = (getattr(rig.cycle, name), "program") if name in branches else (rig.cycle, name)
        setattr(holder, what, slowed(getattr(holder, what)))
        play(rig, 6)
        assert differing(rig, whole) == [], name
    assert all(graph.report()["replays"] > 0 for graph in whole.graphs.values())


@gpu
def test_compiled_for_a_branch_nothing_is_compiled_twice():
    """Compiled programs within the graph, with the kernels that the device has: the same bits, one version of each."""
    rigs = [captured(4, 2, "compile", kernels="auto") for _ in range(2)]
    rigs[0].cycle._actor_forward.stream = None
    for rig in rigs:
        play(rig, 6)
        for name, report in rig.cycle.report().items():
            assert (report["captures"], report["recompiles"]) == (1, 0), name
    assert differing(*rigs) == []
    assert [rig.cycle.report()["update/actor_forward"]["beside"] for rig in rigs] == [False, True]
