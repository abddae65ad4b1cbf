"""Checks of a learner over time: memory, draws, repeats, rows that are not finite, a full ring, checkpoints."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tickgraph.bench._learner_rig import LearnerRig, made_up, with_algo
from tickgraph.bench._verify_checks import FILLED, Row, Subject, _compared
from tickgraph.bench._verify_reference import learner_tensors, reference_of
from tickgraph.core.words import counted
from tickgraph.run import checkpoint
from tickgraph.run.folder import RunFolder

# What a skipped update may change: counters, schedules, draws and figures go on; the temperature is the actor's.
_GOES_ON = ("updates", "rng/tick", "metrics/")
SOME = 0.3  # rows of a batch that are bad, on average, where some are
_KINDS = ("actor_obs", "critic_obs", "action", "reward")


def held_bytes(device: torch.device) -> dict[str, int]:
    """Return the bytes of all tensors that exist; on a GPU what torch has allocated and reserved there."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return {"allocated": torch.cuda.memory_allocated(device), "reserved": torch.cuda.memory_reserved(device)}
    storages = {}
    for thing in gc.get_objects():
        # By type: a compiler's stand-ins have no memory, and asking some lazy modules for their class imports torch.
        if type(thing) in (Tensor, torch.nn.Parameter) and thing.device.type == device.type:
            storage = thing.untyped_storage()
            with suppress(RuntimeError):  # a plain tensor may be a stand-in too
                storages[storage.data_ptr()] = storage.nbytes()
    return {"tensors": sum(storages.values())}


def constant_memory(subject: Subject, rig: LearnerRig, replays: int) -> Row:
    """Run cycles, as graph launches where the path has graphs, and compare memory and addresses before and after."""
    with subject.products():
        for _ in range(3):
            rig.run()
        rig.wait()
        launched, addresses, before = _launches(rig), rig.arena.pointers(), held_bytes(rig.device)
        for _ in range(replays):
            rig.run()
        rig.wait()
    after = held_bytes(rig.device)
    launches = _launches(rig) - launched
    grown = {name: after[name] - before[name] for name in before}
    moved = sum(address != addresses[name] for name, address in rig.arena.pointers().items())
    note = ", ".join(f"{name} {value:+,} bytes" for name, value in grown.items())
    note += f" of {sum(before.values()):,}" + (f", {moved} tensors moved" if moved else "")
    finite = _unfinite(rig.numbers())
    note += f"; not finite: {', '.join(finite[:3])}" if finite else ""
    enough = rig.resolution.enabled != "graph" or launches >= replays
    note += "" if enough else f"; {launches} graph launches only"
    ok = not any(grown.values()) and not moved and not finite and enough
    return Row("constant memory", subject.path.name, counted(replays, "cycle"), None, None, ok, note)


def _launches(rig: LearnerRig) -> int:
    return sum(int(str(graph.report()["replays"])) for graph in rig.graphs.values())


def draws_differ(subject: Subject, rig: LearnerRig) -> Row:
    """Check that two cycles draw other rows and noise, and that what a cycle computes follows from what it draws."""
    draws, faults = [], []
    with torch.no_grad(), subject.products(), rig.held():
        for _ in range(2):
            batch = rig.ring.sample(rig.learner.replay_draw)
            noise = rig.learner.noise_draw.normal("policy", rig.learner.action_dim)
            draws.append((batch.actor_obs.clone(), noise.clone()))
            rig.wait()
            rig.run()
            rig.wait()
        for what, first, second in zip(("rows", "noise"), *draws, strict=True):
            faults += [f"the same {what}"] if torch.equal(first, second) else []
        start = rig.snapshot()
        results = []
        for other in (False, False, True):  # from one state, with the next draws twice and then with others
            rig.restore(start)
            if other:
                rig.learner.rng.tick += 1000
            rig.wait()
            rig.run()
            results.append(learner_tensors(rig)["critic_adam/moment1/" + _first_weight(rig)])
        if not torch.equal(results[0], results[1]):
            faults.append("one state and one draw gave two results")
        if torch.equal(results[0], results[2]):
            faults.append("other draws gave the same result")
    return _verdict("cycles draw anew", subject, "2 cycles", faults)


def repeats(subject: Subject, rig: LearnerRig, twin: LearnerRig, other: LearnerRig, cycles: int = 5) -> Row:
    """Check that a seed repeats a run bit for bit, in one learner and in a twin, and that another seed does not."""
    runs = []
    for mine in (rig, rig, twin, other):
        with subject.products(), mine.held():
            for _ in range(cycles):
                mine.run()
            runs.append(mine.numbers())
    faults = [
        f"{who}: {', '.join(names[:3])} differ"
        for who, names in (("once more", differing(runs[0], runs[1])), ("in a twin", differing(runs[0], runs[2])))
        if names
    ]
    if not differing(runs[0], runs[3]):
        faults.append("another seed gave the same run")
    return _verdict("a seed repeats", subject, f"{counted(cycles, 'cycle')}, bit for bit", faults)


def survives_nan(subject: Subject, rig: LearnerRig, cycles: int = 3) -> list[Row]:
    """Put rows that are not finite into the ring: all, then one tick of them, then none, for each kind of value.

    With such a row in every batch nothing that was learned may change by a bit; with some, what is skipped is counted
    and the rest is learned from; without, all goes on.
    """
    rows = []
    for kind in _KINDS:
        with rig.held():
            rows.append(_survives(subject, rig, kind, cycles))
    return rows


def _survives(subject: Subject, rig: LearnerRig, kind: str, cycles: int) -> Row:
    faults: list[str] = []
    per_cycle = rig.spec.updates
    obs = kind.endswith("obs")
    field = {
        "actor_obs": rig.ring.obs["actor"], "critic_obs": rig.ring.obs["critic"],
        "action": rig.ring.action, "reward": rig.ring.reward,
    }[kind]  # fmt: skip
    clean = field.clone()

    def run(name: str) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
        rig.wait()
        rig.figures()
        before = rig.numbers()
        with subject.products():
            for _ in range(cycles):
                rig.run()
        skipped, after = int(rig.figures()["loss/skipped_updates"] or 0), rig.numbers()
        if bad := _unfinite(after):
            faults.append(f"{name}: not finite: {', '.join(bad[:3])}")
        return skipped, before, after

    critic = ("learner/critic/", "learner/target/", "learner/critic_adam/")
    with torch.no_grad():
        field[::2] = torch.nan
        skipped, before, after = run("all")
        kept = [name for name in before if not any(word in name for word in _GOES_ON)]
        # An actor that never looks at the replayed action or reward goes on, and takes its temperature along.
        kept = kept if obs else [name for name in kept if name.startswith(critic)]
        changed = differing({name: before[name] for name in kept}, after)
        if changed:
            faults.append(f"with bad rows in every batch these changed: {', '.join(changed[:3])}")
        least = cycles * per_cycle
        if skipped < least:
            faults.append(f"{skipped} of at least {least} updates counted as skipped")
        field.copy_(clean)
        rows = FILLED * rig.spec.num_envs
        few = max(1, round(SOME * rows / rig.spec.algo.batch_size))
        field[torch.arange(few, device=rig.device) * (rows // few)] = torch.nan
        some, before, after = run("some")
        if not differing({name: before[name] for name in before if name.startswith(critic)}, after):
            faults.append("with some bad rows nothing was learned")
        field.copy_(clean)
        none, before, after = run("none")
        if none:
            faults.append(f"{none} updates skipped without a bad row")
        if not differing({name: before[name] for name in before if name.startswith(critic)}, after):
            faults.append("training did not go on")
        faults += _written_nan(rig, kind)
    said = f"skipped {skipped} with bad rows in every batch, {some} with {few} of {rows:,} rows bad, then none"
    note = "; ".join(faults) or said
    case = f"{kind}, {counted(cycles, 'cycle')} each"
    return Row("rows not finite", subject.path.name, case, None, None, not faults, note)


def _written_nan(rig: LearnerRig, kind: str) -> list[str]:
    """Record a tick that is not finite; returns which normalisers it reached."""
    (tick,) = made_up(rig.spec, 1, seed=99)
    if kind in ("actor_obs", "critic_obs"):
        tick.obs[kind.removesuffix("_obs")].fill_(torch.nan)
    elif kind == "reward":
        tick.reward.fill_(torch.nan)
    rig.write(iter([tick]))
    found = {name: value for name, value in rig.numbers().items() if "normalizer/" in name or "/obs/" in name}
    return [f"recorded, it reached {name}" for name in _unfinite(found)]


def ring_fills(subject: Subject) -> list[Row]:
    """Run cycles while the ring fills up and begins to overwrite: the rows sampled, and parity through the crossing."""
    slots = 16
    spec = replace(subject.spec, slots=slots)
    subject = replace(subject, spec=spec)
    stages = (slots - 4, 4, 1, slots // 2)  # not full, full to the slot, one over, half of it overwritten
    return [_windows(subject, stages), _crossing(subject, stages)]


def _windows(subject: Subject, stages: Iterable[int]) -> Row:
    """Mark each tick's observations with its number, and read off which windows are sampled."""
    rig = LearnerRig(subject.spec, subject.device)
    n, ticks, faults, oldest_seen = subject.spec.algo.n_step, 0, [], 0
    for count in stages:
        written = []
        for tick in made_up(subject.spec, count, seed=11 + ticks):
            for obs, final in zip(tick.obs.values(), tick.final_obs.values(), strict=True):
                obs[:, 0], final[:, 0] = float(ticks), ticks + 0.5
            written.append(tick)
            ticks += 1
        rig.write(iter(written))
        with torch.no_grad():
            batch = rig.ring.sample(rig.learner.replay_draw)
            rig.learner.rng.advance()
        size = batch.action.shape[0]
        begin, end = batch.actor_obs[:size, 0].double(), batch.actor_obs[size:, 0].double()
        oldest = max(0, ticks - subject.spec.slots)
        seen = bool(((begin >= oldest) & (begin < ticks - n)).all())
        whole = end == begin + n
        ended = (end % 1.0 == 0.5) & (end > begin) & (end < begin + n)
        if not seen:
            faults.append(f"at {ticks} ticks, rows from {begin.min():g} to {begin.max():g}")
        if not bool((whole | ended).all()):
            faults.append(f"at {ticks} ticks, a successor that is not")
        oldest_seen = int(begin.min())
    if not oldest_seen:
        faults.append("the first tick is sampled after it was overwritten")
    note = "; ".join(faults)
    return Row("ring fills up", "", f"{subject.spec.slots} slots, windows", None, None, not faults, note)


def _crossing(subject: Subject, stages: Iterable[int]) -> Row:
    first, *rest = stages
    rigs = [
        LearnerRig(with_algo(subject.spec, bf16=low and subject.precision == "bf16"), subject.device, path)
        for low, path in ((True, subject.path), (False, None))
        if path is not None
    ]
    rigs.append(LearnerRig(with_algo(subject.spec, bf16=False), subject.device))
    for rig in rigs:
        rig.write(made_up(subject.spec, first, seed=20))
        rig.scramble()
    mine, reference = rigs[0], reference_of(rigs[1])
    with subject.products():
        mine.capture()
    for count in (*rest, 0):
        with subject.products():
            mine.run()
        with subject.products(low=False):
            reference.cycle()
        if count:
            for rig in rigs:
                rig.write(made_up(subject.spec, count, seed=20 + count))
    row = _compared(subject, f"{subject.spec.slots} slots, parity", learner_tensors(mine), reference.tensors(), None)[0]
    return replace(row, check="ring fills up")


def checkpoint_restores(subject: Subject, rig: LearnerRig, other: LearnerRig) -> Row:
    """Write a checkpoint file, restore it into the same learner and into one of another seed: the next cycle's bits."""
    with subject.products(), rig.held(), other.held(), tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            rig.run()
        path = checkpoint.save(RunFolder(Path(folder)), "verify", 2, {"learn": rig.snapshot()}, {}, keep=1)
        rig.run()
        wanted = rig.numbers()
        rig.run()
        saved = checkpoint.load(path, "verify").state["learn"]
        faults = []
        for name, target in (("the same learner", rig), ("a new learner", other)):
            target.restore(saved)
            target.run()
            if changed := differing(wanted, target.numbers()):
                faults.append(f"{name}: {', '.join(changed[:3])} differ")
    return _verdict("checkpoint restored", subject, "the next cycle, bit for bit", faults)


def strangers(subject: Subject) -> tuple[LearnerRig, LearnerRig, LearnerRig]:
    """Return the learner, its twin, and one of another seed on other transitions."""
    odd = replace(subject.spec, seed=subject.spec.seed + 1, data_seed=subject.spec.data_seed + 1)
    return subject.rig(), subject.rig(), subject.rig(spec=odd)


def stability(subject: Subject, replays: int, say: Callable[[str], None]) -> list[Row]:
    """Return all of the above for one path."""
    rows: list[Row] = []
    say(f"  {subject.path.name}: building three learners")
    rig, twin, other = strangers(subject)
    for name, check in (
        ("draws", lambda: [draws_differ(subject, rig)]),
        ("repeats", lambda: [repeats(subject, rig, twin, other)]),
        ("rows that are not finite", lambda: survives_nan(subject, rig)),
        ("a ring that fills up", lambda: ring_fills(subject)),
        ("a checkpoint", lambda: [checkpoint_restores(subject, rig, other)]),
        (f"memory over {counted(replays, 'cycle')}", lambda: [constant_memory(subject, rig, replays)]),
    ):
        say(f"  {subject.path.name}: {name}")
        rows += check()
    return rows


def _verdict(check: str, subject: Subject, case: str, faults: Sequence[str]) -> Row:
    return Row(check, subject.path.name, case, None, None, not faults, "; ".join(faults))


def differing(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors whose bits differ; NaN equals NaN."""
    return [
        name
        for name, value in first.items()
        if not torch.equal(value, second[name])
        and not torch.equal(torch.nan_to_num(value, nan=1e30), torch.nan_to_num(second[name], nan=1e30))
    ]


def _unfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    # The newest figures are NaN until there are any.
    return [name for name, value in tensors.items() if "metrics/" not in name and not bool(torch.isfinite(value).all())]


def _first_weight(rig: LearnerRig) -> str:
    """Return the name of the critic's first layer."""
    return next(name for name, value in rig.learner.critic.named_parameters() if name.endswith(".weight"))
