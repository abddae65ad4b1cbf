"""A run's policy as one ONNX file: the network with its normalisation inside, and what a controller must know."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript  # noqa: F401  torch exports by it
import torch
from torch import Tensor, nn

from tickgraph.core.errors import TickgraphError
from tickgraph.env.env import Env
from tickgraph.learn.learner import Learner
from tickgraph.run.arguments import table
from tickgraph.run.config import Task
from tickgraph.run.controller import GROUP, controller_facts, flat_facts
from tickgraph.run.evaluate import Player
from tickgraph.run.files import plain, write_atomically
from tickgraph.run.folder import RunFolder
from tickgraph.run.manifest import source_state, versions
from tickgraph.run.session import newest_policy
from tickgraph.sim.platform import AUTO, resolve_platform

INPUT, OUTPUT = "obs", "actions"
KEY = "tickgraph"  # of the metadata: all facts as JSON
OPSET, FORMAT = 18, 8  # old enough for ONNX Runtime 1.15
WORLDS, STEPS = 4, 100  # of the episodes on whose observations the file is checked
TOLERANCE = 1e-4


class _Greedy(nn.Module):
    """The deterministic action tanh(mean), (rows, A), for raw observations (rows, O) of group "actor"."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self._learner = learner

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self._learner.gaussian(obs)[0])


@torch.no_grad()
def export_policy(task: Task, run: RunFolder, target: Path) -> dict[str, Any]:
    """Write the policy of a run's newest checkpoint as ONNX, once ONNX Runtime has been seen to compute the same.

    The network has input "obs" (batch, O) float32, the raw observations of group "actor" in the order of its terms,
    and output "actions" (batch, A) float32 in [-1, 1], the deterministic raw action. It is compared on a CPU, on what
    the policy observes in its own episodes.

    Args:
        task: the run's.
        run: the run.
        target: file to write; replaced as a whole.

    Returns:
        What the file says of itself (`controller_facts`, task, run, iteration, versions, commit), with `file`, `bytes`
        and `checked`: `observations` compared and `largest_difference` of an action.

    Raises:
        TickgraphError: the run has no checkpoint, its policy does not fit the task or is not finite, or the file
            computes another one.
    """
    policy, iteration = newest_policy(task, run)
    for name, value in policy.items():
        if not torch.isfinite(value).all():
            raise TickgraphError(
                f"the policy of iteration {iteration} has numbers that are not finite, in {name}: nothing to export"
            )
    task.train.device, task.train.backend = "cpu", AUTO
    facts = {
        **{"task": task.name, "run": _short(run), "iteration": iteration, "algo": task.algo},
        **{"versions": versions(), **source_state()},
        **_trained_for(task),
    }
    player = Player(task, WORLDS, policy)
    try:
        network = _Greedy(player.learner)
        seen = _observed(player)
    finally:
        player.close()
    if not torch.isfinite(network(seen)).all():
        raise TickgraphError(
            f"the policy of iteration {iteration} acts with numbers that are not finite: nothing to export"
        )
    model = _model(network, seen.shape[1])
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False)
    for key, value in {**flat_facts(facts), "run_path": facts["run"], KEY: text}.items():
        # A lone surrogate, of a name that is no Unicode, becomes JSON's escape for it.
        model.metadata_props.add(key=key, value=value.encode("utf-8", "backslashreplace").decode())
    data = model.SerializeToString()
    largest = _largest_difference(data, network, seen)
    if not largest <= TOLERANCE:
        raise TickgraphError(
            f"the exported network differs by {largest:.2g} from the run's policy, at most {TOLERANCE:g} is rounding; "
            f"{target} was not written: please report it with the versions of torch, onnx and onnxscript"
        )
    write_atomically(target, lambda file: file.write(data))
    checked = {"observations": len(seen), "largest_difference": largest}
    return {**facts, "file": str(target), "bytes": len(data), "checked": checked}


def lines(value: dict[str, Any]) -> list[str]:
    """Return what `export_policy` did as lines for a terminal."""
    observations, actions = value["observations"], value["actions"]
    width, outputs = sum(term["dim"] for term in observations), sum(term["dim"] for term in actions)
    checked = value["checked"]
    rows = [(term["name"], f"{term['start']}:{term['start'] + term['dim']}", _made(term)) for term in observations]
    obeyed = [(term["name"], f"{term['start']}:{term['start'] + term['dim']}", _meant(term)) for term in actions]
    return [
        f"{value['file']}: iteration {value['iteration']}, {INPUT} (batch, {width}) to {OUTPUT} (batch, {outputs}), "
        f"{1.0 / value['step_dt']:g} Hz",
        f"checked with ONNX Runtime on {checked['observations']} observations of its own episodes: largest difference "
        f"{checked['largest_difference']:.1g}",
        *["", f"{INPUT}:", *table(rows)],
        *["", f"{OUTPUT}:", *table(obeyed)],
    ]


def _short(run: RunFolder) -> str:
    """Return a run by its task and name, "go2_walk_flat/TIME", wherever the machine keeps it."""
    return "/".join(run.path.resolve().parts[-2:])


def _made(term: dict[str, Any]) -> str:
    parts = [term["function"]]
    if term["clip"] is not None:
        low, high = term["clip"]
        parts.append(f"clip {-math.inf if low is None else low:g} to {math.inf if high is None else high:g}")
    if term["scale"] != 1.0:
        scales = term["scale"] if isinstance(term["scale"], list) else [term["scale"]]
        parts.append(f"scale {', '.join(f'{scale:g}' for scale in scales)}")
    parts += [f"last {term['history_length']} frames, oldest first"] if term["history_length"] else []
    return ", ".join(parts)


def _meant(term: dict[str, Any]) -> str:
    kinds = " and ".join(dict.fromkeys(map(str, term.get("actuator_kinds") or ())))
    clipped = ", clipped" if term.get("clip") else ""
    target = f", {kinds} target = offset + scale * action{clipped}" if kinds else ""
    driven = f" of {term['entity']}" if term["entity"] is not None else ""
    return f"{term['function']}{driven}{target}"


def _trained_for(task: Task) -> dict[str, Any]:
    """Return what a controller must know of the environment that was trained in; an evaluation may edit its own."""
    backend = resolve_platform("cpu", AUTO).backend
    with Env(task.env, WORLDS, "cpu", backend, "eager", task.train.seed, threads=1) as env:
        return plain(controller_facts(env))


def _observed(player: Player) -> Tensor:
    """Return what the policy observes in its own episodes, (rows, O) float32."""
    seen = []
    for _ in range(min(STEPS, player.env.max_episode_length)):
        seen.append(player.env.obs[GROUP].clone())
        player.tick()
    return torch.cat(seen)


def _model(network: nn.Module, width: int) -> onnx.ModelProto:
    with _unheard():
        program = torch.onnx.export(
            network.eval(),
            (torch.zeros(2, width),),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )
    assert program is not None
    model = program.model_proto
    # The exporter notes the code behind each node, with the paths of this machine; older formats have no room for it.
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        del part.metadata_props[:]
        part.doc_string = ""
    model.ir_version = FORMAT
    onnx.checker.check_model(model, full_check=True)
    return model


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep to itself what torch's exporter says of packages that it would know, and of its own code."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _largest_difference(data: bytes, network: nn.Module, seen: Tensor) -> float:
    """Return by how much an action of the file, all rows at once and one by itself, differs from the network's."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    found = [torch.from_numpy(session.run([OUTPUT], {INPUT: rows.numpy()})[0]) for rows in (seen, seen[-1:])]
    wanted = [network(seen), network(seen[-1:])]
    return float(torch.cat([(a - b).abs() for a, b in zip(found, wanted, strict=True)]).max())
