"""`tickgraph verify learner`: it passes for both algorithms, and each check fails when what it looks at is broken."""

import json
from dataclasses import replace

import pytest
import torch

from tickgraph.bench import _verify_checks as checks
from tickgraph.bench import _verify_stability as stability
from tickgraph.bench import verify_learner
from tickgraph.bench._learner_paths import PATHS, available, chosen
from tickgraph.bench._learner_rig import LearnerSpec, spec_of, with_algo
from tickgraph.bench._verify_checks import References, Row, Subject
from tickgraph.cli import main as cli
from tickgraph.core.rng import Rng
from tickgraph.learn import distribution, flashsac, linear, optimizer, update
from tickgraph.learn.flashsac import FlashSacCfg
from tickgraph.learn.optimizer import Adam, NetworkStep
from tickgraph.learn.replay import Ring
from tickgraph.learn.sac import SacCfg
from tickgraph.learn.storage import Storage
from tickgraph.learn.update import UpdateCycle
from tickgraph.tasks.registry import load

CPU = torch.device("cpu")
DIMS = {"actor": 5, "critic": 6}
FLASHSAC = FlashSacCfg(actor_width=8, critic_width=12, actor_blocks=1, critic_blocks=1, batch_size=64, atoms=21)
SAC = SacCfg(actor_width=8, critic_width=12, batch_size=64, atoms=21, policy_period=2)


def subject(algo=FLASHSAC, path="eager", device=CPU, precision="fp32"):
    return Subject(LearnerSpec(algo, DIMS, 2, 16, 64, updates=2), PATHS[path], device, precision)


def case(algo, **values):
    made = subject(algo)
    return verify_learner.Case(made.spec, CPU, [PATHS["eager"]], **({"replays": 20} | values))


def failed(rows):
    return [row.check for row in rows if not row.ok]


def test_flashsac_computes_what_the_reference_says_and_keeps_on_doing_so():
    rows = verify_learner.verify(case(FLASHSAC))
    assert not failed(rows), [row for row in rows if not row.ok]
    names = {row.check for row in rows}
    assert names == {
        *("state fp32", "moments fp32", "counters and rates", "temperature", "projection against float64"),
        *("falls and time limits sampled", "cycles draw anew", "a seed repeats", "rows not finite", "ring fills up"),
        *("checkpoint restored", "constant memory"),
    }
    cases = {row.case for row in rows if row.check == "state fp32"}
    counts = ("1 update", "2 updates", "8 updates")
    assert {f"{updates}, period {period}, cycle 1" for updates in counts for period in (1, 2)} <= cases
    assert {"2 updates, period 2, cycle 10", "1 update, period 1, cycle 1, new"} <= cases
    assert all(row.figure < 1e-5 and row.max_abs < 1e-4 for row in rows if row.check == "state fp32")


def test_sac_computes_what_the_reference_says_and_keeps_on_doing_so():
    rows = verify_learner.verify(case(SAC, updates=(2,), periods=(1, 2)))
    assert not failed(rows), [row for row in rows if not row.ok]


def test_the_reference_of_sac_shares_no_product_with_what_a_gpu_computes(monkeypatch):
    monkeypatch.setattr(linear, "suits_gpu", lambda x: True)
    short = case(SAC, updates=(2,), periods=(2,))
    assert not failed(verify_learner.verify(short))
    right = linear.weight_gradient
    monkeypatch.setattr(linear, "weight_gradient", lambda grad, x: 1.01 * right(grad, x))
    assert "moments fp32" in failed(verify_learner.verify(short))


def test_a_check_that_fails_is_told_at_once_and_what_was_checked_is_kept(monkeypatch, tmp_path):
    """Who stops a verification has what it found, and no verdict."""
    file, said = tmp_path / "verify.json", []
    parity = checks.parity

    def with_a_failure(*args, **values):
        rows = parity(*args, **values)
        return [replace(rows[0], ok=False, note="trunk.gain"), *rows[1:]]

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(checks, "parity", with_a_failure)
    monkeypatch.setattr(checks, "matrix", lambda *args: [])
    monkeypatch.setattr(verify_learner.stability, "stability", stop)
    monkeypatch.setattr(verify_learner, "say", said.append)
    with pytest.raises(KeyboardInterrupt):
        verify_learner.main(["cartpole_swingup", "--paths", "eager", "--device", "cpu", "--json", str(file)])
    assert any(line.startswith("FAILED: state fp32, eager, ") and line.endswith("trunk.gain") for line in said)
    value = json.loads(file.read_text())
    assert not value["ok"] and not value["complete"] and len(value["checks"]) > 5


@pytest.mark.parametrize("atoms", [101, 501])
def test_the_projection_holds_with_as_many_atoms_as_tasks_have(atoms):
    rows = checks.projection(subject(replace(FLASHSAC, atoms=atoms)), rows=16)
    assert not failed(rows), [row for row in rows if not row.ok]
    assert [row.case for row in rows] == ["by scatter", "by integral", "in the loss head, torch"]
    assert len(checks.projection(subject(SAC), rows=4)) == 2, "SAC has no loss written out"


def test_bfloat16_is_held_to_limits_of_its_own():
    rows = checks.parity(subject(precision="bf16"), References(), (1, 3))
    assert not failed(rows) and {row.check for row in rows} == {"state bf16", "moments bf16", "counters and rates"}
    assert all(1e-6 < row.figure for row in rows if row.check == "moments bf16"), "it did run in bfloat16"


def test_gradients_written_out_compute_the_same():
    written = subject(path="eager-written")
    rows = checks.parity(written, References(), (1, 4))
    rows += stability.survives_nan(written, written.rig(), cycles=1)
    assert not failed(rows), [row for row in rows if not row.ok]


def parity():
    return checks.parity(subject(), References(), (1, 2))


def draws():
    return [stability.draws_differ(subject(), subject().rig())]


def repeats():
    return [stability.repeats(subject(), *stability.strangers(subject()), cycles=2)]


def survives():
    return stability.survives_nan(subject(), subject().rig(), cycles=1)


def restores():
    rig, _, other = stability.strangers(subject())
    return [stability.checkpoint_restores(subject(), rig, other)]


def memory():
    return [stability.constant_memory(subject(), subject().rig(), 5)]


def wrong_beta(patch):
    init = Adam.__init__

    def changed(self, parameters, arena, prefix, betas=(0.9, 0.999), decay=0.0):
        init(self, parameters, arena, prefix, (0.91, betas[1]), decay)

    patch.setattr(Adam, "__init__", changed)


def missing_projection(patch):
    patch.setattr(Storage, "projection", lambda self, flat: flat)


def target_stands_still(patch):
    apply = NetworkStep.apply

    def changed(self, *given):
        before = None if self.target is None else self.target.clone()
        ok = apply(self, *given)
        if before is not None:
            self.target.copy_(before)
        return ok

    patch.setattr(NetworkStep, "apply", changed)


def rate_falls_too_fast(patch):
    rate = flashsac.Learner.rate
    patch.setattr(flashsac.Learner, "rate", lambda self, count: rate(self, count + 1))


def truncation_ends_the_value(patch):
    sample = Ring.sample_batches

    def changed(self, words):
        batch = sample(self, words)
        return batch._replace(discount=torch.zeros_like(batch.discount))

    patch.setattr(Ring, "sample_batches", changed)


def constant_sample(patch):
    sample = Ring.sample_batches
    patch.setattr(Ring, "sample_batches", lambda self, words: sample(self, torch.zeros_like(words)))


def draws_never_advance(patch):
    patch.setattr(Rng, "advance", lambda self, ticks=1: None)


def noise_of_the_process(patch):
    normals = update.normals
    patch.setattr(update, "normals", lambda words: torch.randn_like(normals(words)))


def statistics_are_not_guarded(patch):
    apply = NetworkStep.apply

    def changed(self, loss, grad, statistics, factors):
        ok = apply(self, loss, grad, statistics, factors)
        self.storage.statistics.lerp_(statistics, self.momentum)
        return ok

    patch.setattr(NetworkStep, "apply", changed)


def skips_are_not_counted(patch):
    figures = UpdateCycle.__init__

    def changed(self, *given):
        figures(self, *given)
        add = self.metrics.add
        self.metrics.add = lambda row, means, last, ok, totals: add(row, means, last, torch.ones_like(ok), totals)

    patch.setattr(UpdateCycle, "__init__", changed)


def memory_leaks(patch):
    run, kept = UpdateCycle.run, []

    def changed(self, phase):
        kept.append(torch.zeros(10))
        run(self, phase)

    patch.setattr(UpdateCycle, "run", changed)


def shows_unwritten_slots(patch):
    publish = Ring.publish

    def changed(self):
        publish(self)
        self.visible += 1

    patch.setattr(Ring, "publish", changed)


def state_outside_the_arena(patch):
    run, calls = UpdateCycle.run, {}

    def changed(self, phase):
        calls[id(self)] = calls.get(id(self), 0) + 1
        run(self, phase)
        with torch.no_grad():
            self.learner.log_alpha += 1e-3 * calls[id(self)]

    patch.setattr(UpdateCycle, "run", changed)


def projection_loses_mass(patch):
    right = distribution.project_by_scatter
    patch.setattr(distribution, "project_by_scatter", lambda *given: right(*given) * 0.999)


@pytest.mark.parametrize(
    ("broken", "check", "named"),
    [
        (wrong_beta, parity, "moments fp32"),
        (missing_projection, parity, "state fp32"),
        (target_stands_still, parity, "state fp32"),
        (rate_falls_too_fast, parity, "counters and rates"),
        (projection_loses_mass, lambda: checks.projection(subject()), "projection against float64"),
        (truncation_ends_the_value, lambda: [checks.ends_present(subject())], "falls and time limits sampled"),
        (constant_sample, draws, "cycles draw anew"),
        (draws_never_advance, draws, "cycles draw anew"),
        (noise_of_the_process, repeats, "a seed repeats"),
        (statistics_are_not_guarded, survives, "rows not finite"),
        (skips_are_not_counted, survives, "rows not finite"),
        (shows_unwritten_slots, lambda: stability.ring_fills(subject()), "ring fills up"),
        (state_outside_the_arena, restores, "checkpoint restored"),
        (memory_leaks, memory, "constant memory"),
    ],
)
def test_a_broken_learner_is_found_in_a_row_that_names_it(monkeypatch, broken, check, named):
    assert not failed(check()), "it passes as long as nothing is broken"
    broken(monkeypatch)
    rows = [row for row in check() if not row.ok]
    assert named in [row.check for row in rows]
    assert all(row.note for row in rows), "a failure says where"


def test_a_tensor_that_is_not_finite_fails_and_fits_into_json(monkeypatch):
    step = UpdateCycle._apply_critic

    def changed(self, *given):
        figures = step(self, *given)
        self.learner.target_storage.parameters[3] = torch.nan
        return figures

    monkeypatch.setattr(UpdateCycle, "_apply_critic", changed)
    rows = [row for row in parity() if row.check == "state fp32"]
    assert not any(row.ok for row in rows) and rows[0].note.startswith("target/")
    value = verify_learner.result(case(FLASHSAC), rows, "toy", "flashsac", 1.0)
    assert json.loads(json.dumps(value, allow_nan=False))["checks"][0]["figure"] == "nan"


def test_the_worst_tensor_is_named(monkeypatch):
    target_stands_still(monkeypatch)
    (row, *_) = [row for row in parity() if not row.ok]
    assert row.note.startswith("target/") and row.figure > row.limit == 1e-5


def test_a_missing_last_step_of_adam_shows_as_a_counter(monkeypatch):
    proposal = optimizer.Adam.proposal

    def changed(self, *given):
        new = proposal(self, *given)
        self.steps -= 1
        return new

    monkeypatch.setattr(optimizer.Adam, "proposal", changed)
    rows = [row for row in parity() if row.check == "counters and rates"]
    assert not any(row.ok for row in rows) and "critic_adam/steps 100, expected 102" in rows[0].note


def test_the_command_says_by_its_exit_code_whether_all_passed(monkeypatch, tmp_path, capsys):
    rows = [Row("state fp32", "eager", "2 updates", 1e-7, 1e-5, True, "actor/x", 1e-8)]
    seen = []
    monkeypatch.setattr(verify_learner, "verify", lambda case, say, keep: seen.append(case) or rows)
    file = tmp_path / "verify.json"
    words = ["verify", "learner", "cartpole_swingup", "--device", "cpu", "--paths", "eager"]
    assert cli([*words, "--replays", "7", "--json", str(file)]) == 0
    rows.append(Row("a seed repeats", "eager", "5 cycles", None, None, False, "differ: learner/x"))
    assert cli(["verify", "learner", "cartpole_swingup", "--device", "cpu", "--algo", "flashsac"]) == 1
    assert [path.name for path in seen[1].paths] == ["eager", "eager-written"]
    shown = capsys.readouterr().out
    assert "1 failed" in shown and "differ: learner/x" in shown
    value = json.loads(file.read_text())
    assert value["ok"] and value["checks"][0]["figure"] == 1e-7 and {"machine", "versions", "commit"} <= set(value)
    assert value["tolerances"]["state"] == {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
    assert seen[0].replays == 7 and seen[0].spec.algo.actor_width == 8 and seen[0].precisions == ("fp32",)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("learner --paths grahp", "graph"),
        ("learner --paths graph --device cpu", "CUDA"),
        ("learner --paths eager-written --algo sac", "one form"),
        ("learner --precision tf32 --device cpu", "CPU"),
        ("learner --precision fp33", "fp32"),
        ("learner --algo sca", "sac"),
        ("learner --replays 0", "--replays"),
        ("learner no_such_task", "no_such_task"),
        ("lerner", "lerner"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(words, named, capsys):
    assert cli(["verify", *words.split()]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_paths_are_those_that_a_device_has():
    assert [path.name for path in available("cpu", "flashsac")] == [
        *("eager", "eager-written", "compile-loss", "compile-written", "compile"),
    ]
    assert [path.name for path in available("cpu", "sac")] == ["eager", "compile-loss", "compile"]
    assert chosen("all", "cpu", "sac") == available("cpu", "sac") == chosen(None, "cpu", "sac")
    assert [path.name for path in chosen("compile,eager", "cpu", "sac")] == ["eager", "compile"]


def test_small_changes_sizes_and_nothing_else():
    spec = spec_of(load("g1_walk_flat"))
    assert spec.dims == {"actor": 98, "critic": 101} and spec.actions == 29
    made = verify_learner.small(spec)
    assert (made.algo.actor_width, made.algo.batch_size, made.algo.gamma) == (8, 64, spec.algo.gamma)
    assert made.algo.actor_blocks == spec.algo.actor_blocks and made.dims == spec.dims


@pytest.mark.long  # compiles five programs
def test_compiled_paths_compute_the_same():
    references = References()
    for path in ("compile-loss", "compile-written", "compile"):
        small = subject(replace(FLASHSAC, actor_blocks=1, critic_blocks=1), path)
        rows = checks.parity(small, references, (1, 3))
        assert not failed(rows), [row for row in rows if not row.ok]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("algo", [FLASHSAC, SAC], ids=["flashsac", "sac"])
def test_graphs_compute_what_the_reference_says_and_keep_on_doing_so(algo):
    device = torch.device("cuda")
    spec = with_algo(LearnerSpec(algo, DIMS, 2, 16, 64, updates=2), policy_period=2)
    paths = [PATHS[name] for name in ("captured-eager", "graph")]
    precisions = ("fp32", "bf16") if algo is FLASHSAC else ("fp32",)  # what each has on a GPU, or is exact in
    made = verify_learner.Case(spec, device, paths, precisions, 1000, (2,), (2,))  # other paths compile for minutes
    rows = verify_learner.verify(made)
    assert not failed(rows), [row for row in rows if not row.ok]
    (memory,) = [row for row in rows if row.check == "constant memory"]
    assert memory.path == "graph" and memory.case == "1000 cycles"


def test_a_compilers_stand_ins_hold_no_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = stability.held_bytes(torch.device("cpu"))
    with FakeTensorMode():
        stand_in = torch.empty(1 << 20)
    assert stability.held_bytes(torch.device("cpu")) == before
    real = torch.empty(1 << 20)
    assert stability.held_bytes(torch.device("cpu"))["tensors"] == before["tensors"] + 4 * (1 << 20)
    del stand_in, real
