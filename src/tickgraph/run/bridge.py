"""Worlds on the CPU, policy, replay and learner on another device: what crosses between them in a tick, and when.

A tick of the worlds is the one that `env.step` plays: the action is there before it begins. Beside it there are two
small pieces of work on the learner's device. *act* computes the action from the observations that are there and is
followed by the tick's one copy to the host; the host waits for it, once. *record* follows the tick's one copy to the
device, which holds the whole transition and the next observation: it writes the replay and keeps the observation. The
buffer that is copied from needs no wait of its own: the next tick writes to it only after its action has arrived, which
lies behind the copy on the same stream.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tickgraph.core.arena import Arena
from tickgraph.core.graph import Graph
from tickgraph.core.memory import memory_for
from tickgraph.core.program import Program, Resolution
from tickgraph.env.env import Env
from tickgraph.learn.explore import Explorer
from tickgraph.learn.learner import Learner
from tickgraph.learn.replay import Ring

FLAGS = ("terminated", "truncated", "boundary")


class Bridge:
    """Plays ticks of worlds on the CPU with a policy and a replay on `resolution.device`.

    It attaches itself to the environment in the replay's place. On a device that is the CPU too, it gives the numbers
    that policy and replay give inside the tick.

    Args:
        env: whose worlds are played, on the CPU.
        learner: owner of policy and replay, on the device.
        explorer: the policy.
        ring: the replay.
        resolution: how act and record run there.
        stream: where they run; None on a CPU.

    Attributes:
        obs: group -> (N, D) float32 on the device, what the policy sees next.
        action: (N, A) float32 on the device.
        done: (N,) bool on the device, the episode ended in the last tick.
        waits: times that the host has waited for the device.
        copies: copies between the two, both ways.
    """

    def __init__(
        self,
        env: Env,
        learner: Learner,
        explorer: Explorer,
        ring: Ring,
        resolution: Resolution,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.env, self.learner, self.explorer, self.ring = env, learner, explorer, ring
        self.device = resolution.device
        self.waits = self.copies = 0
        self._stream = stream
        self._on_cuda = self.device.type == "cuda"
        dims, n, actions = dict(env.observation_manager.dims), env.num_envs, env.action_manager.total_dim
        with memory_for("what worlds on the CPU exchange with the learner"):
            arena = Arena(self.device)
            self.obs = {
                group: arena.new(f"bridge/obs/{group}", (n, dim), why=f"{group} observation that comes next")
                for group, dim in dims.items()
            }
            self.action = arena.new("bridge/action", (n, actions), why="action of the tick")
            self.done = arena.new("bridge/done", (n,), torch.bool, "the episode ended in the last tick")
            widths = {
                **{f"obs/{group}": dim for group, dim in dims.items()},
                **{f"final_obs/{group}": dim for group, dim in dims.items()},
                **{"action": actions, "reward": 1},
                **dict.fromkeys(FLAGS, 1),
            }
            size = n * sum(widths.values())
            self._sent = arena.new("bridge/sent", (size,), why="a transition and the next observation, as they came")
            arena.seal()
            self._staged = torch.zeros(size, pin_memory=self._on_cuda)
            self._acted = torch.zeros((n, actions), pin_memory=self._on_cuda)
        self.arena = arena
        self._host, self._here = {}, {}
        start = 0
        for name, width in widths.items():
            place = slice(start, start + n * width)
            # By way of NumPy, so that a compiler sees tensors of their own, and not views of one that it has to join.
            self._host[name] = torch.from_numpy(self._staged.numpy()[place].reshape(n, width))
            self._here[name] = self._sent[place].view(n, width)
            start = place.stop
        self._arrived = torch.cuda.Event() if self._on_cuda else None
        act = Program("bridge/act", self._act, resolution)
        record = Program("bridge/record", self._record, resolution)
        self._programs = (act, record)
        self._act_graph = Graph("act", act, resolution, stream=stream, watch=self._pointers)
        self._record_graph = Graph("record", record, resolution, stream=stream, watch=self._pointers)
        env.attach(policy=None, ring=self)

    @property
    def graphs(self) -> tuple[Graph, Graph]:
        """The two pieces of a tick on the device."""
        return self._act_graph, self._record_graph

    def connect(self) -> None:
        """Show the policy what the worlds look like now: before the first tick, and after they were changed."""
        self._stage_obs()
        with self._on_stream():
            self._sent.copy_(self._staged, non_blocking=True)
            for group, value in self.obs.items():
                value.copy_(self._here[f"obs/{group}"])
            self.done.copy_(self.env.done)
        if self._stream is not None:
            self._stream.synchronize()

    def tick(self) -> None:
        """Play one control step; returns before the replay has been written."""
        with self._on_stream():
            self._act_graph()
            self._acted.copy_(self.action, non_blocking=True)
            self.copies += 1
            if self._arrived is not None:
                self._arrived.record()
        if self._arrived is not None:
            self._arrived.synchronize()
            self.waits += 1
        self.env.action.copy_(self._acted)
        self.env.tick()
        self._stage_obs()
        with self._on_stream():
            self._sent.copy_(self._staged, non_blocking=True)
            self.copies += 1
            self._record_graph()

    def rehearse(self) -> None:
        """Compile and capture both pieces; the caller puts back what they changed, and calls `connect`."""
        with self._on_stream():
            for graph in self.graphs:
                graph()
                graph()
                graph.prepare()

    def report(self) -> dict[str, dict[str, object]]:
        """Return what both programs were asked for, and what they ran as."""
        return {program.name: program.report() for program in self._programs}

    def write(
        self,
        obs: Mapping[str, Tensor],
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        boundary: Tensor,
        final_obs: Mapping[str, Tensor],
    ) -> None:
        """Stage a transition, called by the tick as a ring is; `obs` the device has already."""
        for group, value in final_obs.items():
            self._host[f"final_obs/{group}"].copy_(value)
        self._host["action"].copy_(action)
        flags = (terminated, truncated, boundary)
        for name, value in zip(("reward", *FLAGS), (reward, *flags), strict=True):
            self._host[name].copy_(value[:, None])

    def _stage_obs(self) -> None:
        for group, value in self.env.obs.items():
            self._host[f"obs/{group}"].copy_(value)

    def _act(self) -> None:
        self.explorer.act(self.obs, self.action, self.done)

    def _record(self) -> None:
        here = self._here
        terminated, truncated, boundary = (here[name][:, 0] != 0.0 for name in FLAGS)
        final_obs = {group: here[f"final_obs/{group}"] for group in self.obs}
        self.ring.write(self.obs, here["action"], here["reward"][:, 0], terminated, truncated, boundary, final_obs)
        for group, value in self.obs.items():
            value.copy_(here[f"obs/{group}"])
        self.done.copy_(terminated | truncated)

    def _on_stream(self) -> torch.cuda.StreamContext:
        return torch.cuda.stream(self._stream)

    def _pointers(self) -> dict[str, int]:
        learned = {f"learn/{name}": address for name, address in self.learner.arena.pointers().items()}
        return {**self.arena.pointers(), **learned}
