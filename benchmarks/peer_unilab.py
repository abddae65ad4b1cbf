#!/usr/bin/env python3
"""Whole FlashSAC update cycles of tickgraph and of the package unilab-rl, block by block in turn in one process.

    python benchmarks/peer_unilab.py --json peer.json                      one GPU, batch 256 and 2048, 2 and 8 updates
    python benchmarks/peer_unilab.py --precision bf16 --batch-size 256     both sides with bfloat16 products
    python benchmarks/peer_unilab.py --device cpu --json peer.json         tiny: does it still run?

Both learners have the task's sizes and settings, the same order of updates and the same made-up transitions. Our arms
are the paths of `tickgraph bench learner`; a cycle of theirs draws its samples itself. The peer's arms are

    peer-eager           one call an update, not compiled
    peer-compile         one call an update, whole objectives compiled, with the inductor's own CUDA graphs
    peer-graph           its whole cycle as one CUDA graph; as above, batches lie ready and no sampling is timed
    peer-graph-replay    the same behind its replay pipeline, with its figures read every cycle, as its runner does it

An arm that cannot be built or breaks becomes a row with the error, and the others go on. The file is written anew after
every case. What the peer needs besides torch, numpy and rich is not installed by tickgraph: unilab-rl 1.4.15.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import math
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tickgraph.bench._case import RING_BYTES
from tickgraph.bench._figures import median_with_interval, times
from tickgraph.bench._gpu import device_times
from tickgraph.bench._learner_paths import PATHS, PRECISIONS, BenchPath, check_precision
from tickgraph.bench._learner_rig import LearnerRig, LearnerSpec, made_up, spec_of, with_algo
from tickgraph.bench._options import MOST_BATCH, Parser, count, names, run_script, say, sizes, target
from tickgraph.bench._result import new_result, write_result
from tickgraph.core.errors import TickgraphError
from tickgraph.core.words import counted
from tickgraph.run.precision import set_precision
from tickgraph.sim.platform import resolve_platform
from tickgraph.tasks.registry import load

TASK = "g1_walk_flat"
BLOCK_MS = 150.0
SLOTS = 256  # of the replay, at most
READY = 4  # batches of a whole cycle that lie ready for the peer
WARM_CYCLES = 5  # the inductor's CUDA graphs are recorded in the second call and replayed from the third on


@dataclass(frozen=True)
class Peer:
    """How the peer's learner runs."""

    compiled: bool = True
    graph: bool = False
    """Its whole cycle is one CUDA graph."""
    replay: bool = False
    """Batches come from its own replay pipeline, and its figures are read after every cycle."""


PEERS = {
    "peer-eager": Peer(compiled=False),
    "peer-compile": Peer(),
    "peer-graph": Peer(graph=True),
    "peer-graph-replay": Peer(graph=True, replay=True),
}
ARMS = {"cpu": "eager,peer-eager", "cuda": "graph,peer-compile,peer-graph,peer-graph-replay"}
DEFAULTS = {"cpu": {"batch": "32", "blocks": "2", "cycles": "2"}, "cuda": {"batch": "256,2048", "blocks": "30"}}


class OutOfTimeError(BaseException):
    """An arm took longer to build than it may; no Exception, which a compiler that tries things would swallow."""


@dataclass
class Case:
    """One measurement: sizes, and how products are rounded."""

    spec: LearnerSpec
    device: torch.device
    precision: str

    @property
    def keys(self) -> dict[str, Any]:
        """What names the case in a result."""
        updates, batch = self.spec.updates, self.spec.algo.batch_size
        return {
            "task": TASK,
            "backend": "none",  # there is no physics in it
            "device": str(self.device),
            "num_envs": self.spec.num_envs,
            "scenario": f"flashsac {self.precision}, {counted(updates, 'update')} of batch {batch}",
        }


@dataclass
class Entry:
    """An arm of a case, with what was measured of it or why nothing was."""

    name: str
    arm: Any = None
    error: str | None = None
    trace: str | None = None
    build_s: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    sums: dict[int, float] = field(default_factory=dict)
    """Milliseconds of each block."""


class OurArm:
    """The learner of tickgraph on one of its paths."""

    def __init__(self, case: Case, path: BenchPath) -> None:
        self.rig = LearnerRig(case.spec, case.device, path)
        self.rig.write(made_up(case.spec, case.spec.slots, case.device, case.spec.data_seed))
        self.rig.capture()
        self.stream = self.rig.stream
        self.run = self.rig.run

    def facts(self) -> dict[str, Any]:
        """Return what ran, and the learner's figures."""
        learner, nodes = self.rig.learner, [graph.report()["nodes"] for graph in self.rig.graphs.values()]
        settings = {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "amp": "bfloat16 products" if self.rig.spec.algo.bf16 else None,
            "path": self.rig.path.name,
            "sampling": "in the cycle",
        }
        return {
            "settings": settings,
            "programs": self.rig.cycle.report(),
            "graph_nodes": max((int(str(number)) for number in nodes if number is not None), default=None),
            "parameters": {"actor": count_of(learner.actor), "critic": count_of(learner.critic)},
            "figures": in_json(self.rig.figures()),
        }

    def close(self) -> None:
        """Nothing runs beside the cycles."""


class PeerArm:
    """The learner of unilab-rl, called as its own off-policy runner calls it."""

    def __init__(self, case: Case, how: Peer) -> None:
        self.case, self.how = case, how
        self.stream = torch.cuda.current_stream(case.device) if case.device.type == "cuda" else None
        self.cycles, self.updates = 0, case.spec.updates
        self.figures: dict[str, float] = {}
        torch.manual_seed(case.spec.seed)
        self.learner = peer_module("uni_rl.algos.flash_sac").FlashSACLearner(**learner_arguments(case, how))
        if how.graph and not self.learner.use_update_cycle:
            raise RuntimeError("the learner does not take its whole-cycle path here")
        rows = list(transitions(case))
        rewards, dones = (torch.stack([row[name] for row in rows]) for name in ("rewards", "dones"))
        self.learner.update_reward_stats(rewards, dones)
        self.pipeline: Any = None
        self.ready: list[dict[str, Tensor]] = []
        if how.replay:
            self._fill(rows)
        else:
            self._lay_ready({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
        try:
            for _ in range(WARM_CYCLES):
                self.run()
            wait(case.device)
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """Enqueue one cycle."""
        if self.how.replay:
            batch = self.pipeline.sample_large_batch(self.cycles, self.rows)
            self.pipeline.start_prepare(self.cycles + 1, self.rows)
        else:
            batch = self.ready[self.cycles % READY]
        self.cycles += 1
        period = self.case.spec.algo.policy_period
        if self.how.graph:
            self.learner.update_cycle(
                batch,
                updates_per_step=self.updates,
                policy_frequency=period,
                target_frequency=1,
                policy_before_critic=True,
            )
        else:
            size = self.case.spec.algo.batch_size
            for update in range(self.updates):
                part = {name: value[update * size : (update + 1) * size] for name, value in batch.items()}
                if update % period == 0:
                    self.learner.update_actor(part, read_metrics=False)
                self.learner.update_critic(part, read_metrics=False)
                self.learner.soft_update_target()
        if self.how.replay:
            for _ in range(self.updates):
                self.pipeline.progress()
            self.figures = self.learner.read_deferred_cycle_metrics()
            self.pipeline.after_tick()

    @property
    def rows(self) -> int:
        """Transitions of a cycle."""
        return self.updates * self.case.spec.algo.batch_size

    def facts(self) -> dict[str, Any]:
        """Return what ran, and the learner's figures."""
        learner = self.learner
        found = learner.read_deferred_cycle_metrics() if self.how.graph else learner.read_deferred_actor_metrics()
        compiled = None
        if learner.use_compile:
            compiled = "max-autotune-no-cudagraphs" if learner.use_update_cycle else "default, triton.cudagraphs"
        settings = {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "amp": "bfloat16 autocast" if learner.use_amp else None,
            "compile": compiled,
            "whole_objectives": learner.compile_full_objectives,
            "whole_cycle_graph": learner.use_update_cycle,
            "sampling": "its replay pipeline, on a stream of its own" if self.how.replay else "not timed",
            "figures": "read every cycle" if self.how.replay else "not read",
        }
        parameters = {"actor": count_of(learner.actor), "critic": count_of(learner.critic)}
        return {"settings": settings, "parameters": parameters, "figures": in_json(found or self.figures)}

    def close(self) -> None:
        """End the thread of the replay pipeline."""
        if self.pipeline is not None:
            self.pipeline.close()
            self.buffer.close()
            self.pipeline = None

    def _lay_ready(self, pool: dict[str, Tensor]) -> None:
        generator = torch.Generator(self.case.device).manual_seed(self.case.spec.data_seed)
        high = pool["rewards"].shape[0]
        for _ in range(READY):
            picks = torch.randint(high, (self.rows,), generator=generator, device=self.case.device)
            self.ready.append({name: value[picks] for name, value in pool.items()})

    def _fill(self, rows: Sequence[dict[str, Tensor]]) -> None:
        spec, device = self.case.spec, f"{self.case.device.type}:{self.case.device.index or 0}"
        # Its ingress lies in host memory: one on the device wants the receipts of a running environment.
        self.buffer = peer_module("uni_rl.ipc").ReplayBuffer(
            len(rows) * spec.num_envs,
            spec.dims["actor"],
            spec.actions,
            device,
            ingress_slot_rows=spec.num_envs,
            critic_dim=spec.dims["critic"],
        )
        self.pipeline = peer_module("uni_rl.algos.flash_sac").AgeBiasedReplayPipeline(
            self.buffer,
            device=device,
            sample_count=self.rows,
            base_seed=spec.data_seed,
            trace_cuda_events=False,
        )
        try:
            for row in rows:
                self.buffer.add_batch(**{name: value.cpu() for name, value in row.items()})
            self.pipeline.start_prepare(0, self.rows, min_snapshot_ptr=len(rows) * spec.num_envs)
            self.pipeline.wait_until_ready(0, self.rows)
        except BaseException:
            self.close()
            raise


def peer_module(name: str) -> Any:
    """Import a module of the peer.

    Its package imports omegaconf, for configuration files that nothing here reads and whose parser has no wheel; where
    it is not installed, empty names stand in for it.
    """
    if "omegaconf" not in sys.modules and importlib.util.find_spec("omegaconf") is None:
        stub = types.ModuleType("omegaconf")
        stub.__dict__.update(OmegaConf=type("OmegaConf", (), {}), DictConfig=type("DictConfig", (), {}))
        sys.modules["omegaconf"] = stub
    return importlib.import_module(name)


def learner_arguments(case: Case, how: Peer) -> dict[str, Any]:
    """Return the peer's arguments that say what our configuration says."""
    algo, dims = case.spec.algo, case.spec.dims
    return {
        "obs_dim": dims["actor"], "critic_obs_dim": dims["critic"], "action_dim": case.spec.actions,
        "device": str(case.device), "gamma": algo.gamma, "tau": algo.tau, "n_step": algo.n_step,
        "actor_hidden_dim": algo.actor_width, "actor_num_blocks": algo.actor_blocks,
        "critic_hidden_dim": algo.critic_width, "critic_num_blocks": algo.critic_blocks,
        "num_atoms": algo.atoms, "critic_min_v": -algo.v_max, "critic_max_v": algo.v_max,
        "temp_initial_value": algo.alpha_init, "temp_target_sigma": algo.sigma_target,
        "actor_bc_alpha": algo.bc_weight, "normalized_g_max": algo.g_max,
        "actor_noise_zeta_mu": algo.noise_exponent, "actor_noise_zeta_max": algo.noise_max_repeat,
        "actor_lr": algo.lr_start, "critic_lr": algo.lr_start, "learning_rate_init": algo.lr_start,
        "learning_rate_peak": algo.lr_start, "learning_rate_end": algo.lr_end,
        "learning_rate_warmup_steps": algo.lr_warmup, "learning_rate_decay_steps": case.spec.horizon,
        "use_amp": case.precision == "bf16", "amp_dtype": "bf16",
        "use_compile": how.compiled, "compile_full_objectives": how.compiled,
        "use_whole_cycle_cuda_graph": how.graph,
    }  # fmt: skip


def transitions(case: Case) -> Iterator[dict[str, Tensor]]:
    """Yield the ticks that our ring is filled with as rows of the peer's replay, each with its successor."""
    for tick, later in pairwise(made_up(case.spec, case.spec.slots, case.device, case.spec.data_seed)):
        ended = tick.boundary[:, None]
        following = {name: torch.where(ended, tick.final_obs[name], later.obs[name]) for name in tick.obs}
        yield {
            "obs": tick.obs["actor"],
            "critic": tick.obs["critic"],
            "next_obs": following["actor"],
            "next_critic": following["critic"],
            "actions": tick.action,
            "rewards": tick.reward,
            "dones": tick.boundary.float(),
            "truncated": tick.truncated.float(),
        }


def play(arm: OurArm | PeerArm, cycles: int) -> list[float]:
    """Run cycles; returns the milliseconds of each, on a GPU between their ends on the device's clock."""
    if arm.stream is None:
        found = []
        for _ in range(cycles):
            start = time.perf_counter()
            arm.run()
            found.append((time.perf_counter() - start) * 1e3)
        return found
    return device_times(arm.run, cycles, arm.stream)


@contextmanager
def guarded(entry: Entry, what: str, limit_s: float) -> Iterator[None]:
    """Keep an error, or the end of the time allowed, as the arm's result."""

    def stop(*_: object) -> None:
        raise OutOfTimeError(f"not done after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 5.0)  # again every 5 s, should the first one be swallowed
    try:
        yield
    except (Exception, OutOfTimeError) as error:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        broken, entry.arm = entry.arm, None
        entry.error, entry.trace = f"{what}: {type(error).__name__}: {error}", traceback.format_exc()
        say(f"  {entry.name} failed, {entry.error.splitlines()[0]}")
        if broken is not None:
            with suppress(Exception):  # what broke may break again
                broken.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def build(entry: Entry, case: Case, limit_s: float) -> None:
    """Build an arm, and run it until all of it is compiled and captured."""
    say(f"{case.keys['scenario']}: building {entry.name}")
    start = time.monotonic()
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    with guarded(entry, "build", limit_s), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if entry.name in PEERS:
            entry.arm = PeerArm(case, PEERS[entry.name])
        else:
            entry.arm = OurArm(case, PATHS[entry.name])
        play(entry.arm, 2)
        said = list(dict.fromkeys(str(warning.message).splitlines()[0][:200] for warning in told))
        failed = [text for text in said if "graph capture failed" in text]
        if failed:  # its learner goes on without the graph, which is another arm
            raise RuntimeError(failed[0])
        entry.notes = {
            "warnings": said[:8],
            "cudagraph_skips": torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] - skips,
        }
    entry.build_s = time.monotonic() - start
    say(f"  {entry.build_s:.1f} s")


def measure(case: Case, names: Sequence[str], blocks: int, cycles: int | None, limit_s: float) -> list[Entry]:
    """Build the arms of a case and time them in alternating blocks; returns them, without their learners."""
    torch.compiler.reset()  # or the number of learners compiled before would count against these
    entries = [Entry(name) for name in names]
    for entry in entries:
        build(entry, case, limit_s)
    slowest = 1e-3
    for entry in entries:
        if entry.arm is not None:
            with guarded(entry, "first cycles", limit_s):
                slowest = max(slowest, times(play(entry.arm, 4)[1:])["median_ms"])
    number = cycles or max(4, min(64, round(BLOCK_MS / slowest)))
    say(f"  {counted(blocks, 'block')} of {counted(number, 'cycle')} of at most about {slowest:.1f} ms")
    for block in range(blocks):
        for entry in entries if block % 2 == 0 else reversed(entries):
            if entry.arm is None:
                continue
            with guarded(entry, f"block {block}", limit_s):
                durations = play(entry.arm, 1 + number)[1:]  # the first one leads in
                entry.samples += durations
                entry.sums[block] = sum(durations)
    for entry in entries:
        if entry.arm is not None:
            with guarded(entry, "figures", limit_s):
                entry.notes |= entry.arm.facts()
                entry.arm.close()
        entry.arm = None
    return entries


def rows_of(case: Case, entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each arm, and the case's ratios: each peer's time over that of our first arm, by blocks."""
    ours = next((entry for entry in entries if entry.name in PATHS and entry.sums), None)
    ratio: dict[str, Any] = {**case.keys, "ours": None if ours is None else ours.name}
    rows = []
    for entry in entries:
        figures = times(entry.samples) if entry.samples else dict.fromkeys(("mean_ms", "median_ms", "p90_ms", "p95_ms"))
        row = {
            **case.keys, "arm": entry.name, **figures, "ticks": len(entry.samples), "blocks": len(entry.sums),
            "algo": "flashsac", "updates": case.spec.updates, "batch_size": case.spec.algo.batch_size,
            "policy_period": case.spec.algo.policy_period, "precision": case.precision, "error": entry.error,
            "traceback": entry.trace, "build_s": entry.build_s, "over_ours": None, "over_ours_ci95": None,
            **dict.fromkeys(("host_syncs_per_tick", "graph_launches_per_tick", "allocated_bytes_delta")),
            **entry.notes,
        }  # fmt: skip
        if ours is not None and entry.name in PEERS and (both := entry.sums.keys() & ours.sums.keys()):
            found = median_with_interval([entry.sums[block] / ours.sums[block] for block in sorted(both)])
            row["over_ours"], row["over_ours_ci95"] = found
            ratio[f"{entry.name}_over_ours"], ratio[f"{entry.name}_over_ours_ci95"] = found
        rows.append(row)
    return rows, ratio


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text."""
    heads = "".join(f"{name:>9}" for name in ("mean ms", "median", "p90", "p95"))
    lines = [f"{'precision':<10}{'updates':>8}{'batch':>7}  {'arm':<20}{heads}  over ours (95 %)"]
    for row in rows:
        text = f"{row['precision']:<10}{row['updates']:>8}{row['batch_size']:>7}  {row['arm']:<20}"
        if row["median_ms"] is not None:
            text += "".join(f"{row[name]:>9.3f}" for name in ("mean_ms", "median_ms", "p90_ms", "p95_ms"))
        if row["over_ours"] is not None:
            low, high = row["over_ours_ci95"]
            text += f"  {row['over_ours']:.2f} ({low:.2f} to {high:.2f})"
        if row["error"] is not None:
            text += f"  failed, {row['error'].splitlines()[0][:160]}"
        lines.append(text)
    return "\n".join(lines)


def count_of(module: torch.nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def in_json(figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures with text for what strict JSON cannot hold: a NaN is a finding here."""
    return {name: value if value is None or math.isfinite(value) else str(value) for name, value in figures.items()}


def wait(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peer_version() -> str | None:
    """Return the peer's version, None where it cannot be imported."""
    try:
        return str(peer_module("uni_rl").__version__)
    except Exception:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all cases; returns 0 where anything could be measured.

    Raises:
        TickgraphError: an argument is wrong.
    """
    options = _parser().parse_args(argv)
    device = torch.device(resolve_platform(options.device, "auto").device)
    task = load(TASK)
    task.use("flashsac")
    default = DEFAULTS[device.type]
    batches = sizes("--batch-size", options.batch_size or default["batch"], least=2, most=MOST_BATCH)
    updates = sizes("--updates", options.updates)
    blocks = count("--blocks", options.blocks or default["blocks"])
    given = options.cycles or default.get("cycles")
    cycles = None if given is None else count("--cycles", given)
    limit_s = float(count("--limit", options.limit))
    precisions = names(options.precision or ("tf32" if device.type == "cuda" else "fp32"))
    for precision in precisions:
        check_precision(precision, device)
    arms = list(names(options.arms or ARMS[device.type]))
    for name in arms:
        if name not in PATHS and name not in PEERS:
            raise TickgraphError(f"--arms has {name!r}; the arms are {', '.join((*PATHS, *PEERS))}")
    # The peer's thread asks the device for events, which a capture of ours does not bear: ours come first.
    arms.sort(key=lambda name: (name in PEERS, name in PEERS and PEERS[name].replay))
    spec = spec_of(task)
    slot = 4 * spec.num_envs * (sum(spec.dims.values()) + spec.actions)
    spec = replace(spec, slots=max(spec.algo.n_step + 2, min(spec.slots, SLOTS, RING_BYTES // 4 // slot)))
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for precision in precisions:
        set_precision("high" if precision == "tf32" else "highest", device)
        for batch in batches:
            for number in updates:
                made = with_algo(replace(spec, updates=number), batch_size=batch, bf16=precision == "bf16")
                case = Case(made, device, precision)
                more, ratio = rows_of(case, measure(case, arms, blocks, cycles, limit_s))
                rows, ratios = [*rows, *more], [*ratios, ratio]
                gc.collect()  # the learners of this case make room for the next one's
                if options.json is not None:
                    result = new_result("peer_unilab", rows, ratios)
                    result["versions"]["unilab-rl"] = peer_version()
                    write_result(options.json, result, whole=False)
    if options.json is not None:
        write_result(options.json, result)
    print(table(rows))
    return int(all(row["median_ms"] is None for row in rows))


def _parser() -> Parser:
    parser = Parser(prog="peer_unilab.py", description=(__doc__ or "").partition("\n")[0])
    for name, default, text in (
        ("updates", "8,2", "critic updates in a cycle, separated by commas (default: 8,2)"),
        ("batch-size", None, "transitions in an update, separated by commas (default: 256,2048; on a CPU 32)"),
        ("arms", None, f"of {', '.join(PEERS)} and our paths (default: {ARMS['cuda']}; on a CPU {ARMS['cpu']})"),
        ("blocks", None, "alternating blocks (default: 30 on a GPU, 2 on a CPU)"),
        ("cycles", None, "timed cycles of each arm in a block (default: what takes 150 ms; on a CPU 2)"),
        ("precision", None, f"of both sides, of {', '.join(PRECISIONS)}, several separated by commas (default: tf32)"),
        ("limit", "240", "seconds that one arm may take to build (default: 240)"),
        ("device", "auto", "cpu, cuda or auto (a GPU where one can be used)"),
    ):
        parser.add_argument(f"--{name}", default=default, metavar="X", help=text)
    parser.add_argument("--json", type=target, metavar="FILE", help="write the result")
    return parser


if __name__ == "__main__":
    sys.exit(run_script(main))
