"""Which kernels of MuJoCo Warp's smooth dynamics a refresh launches, and which of them side by side.

A refresh is a dozen short kernels, none of which fills a GPU. Those that need only an early one of them have a stream
of their own: in a captured tick they are branches of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# {kernel: its lane}. In the order in which they are launched, a lane's kernels need what was launched before on the
# main stream or in the same lane, and nothing on the main stream but what `_NEEDS` names needs them before the end.
_LANES = {
    "_compute_body_matrices": "frames",
    "_geom_local_to_global": "frames",
    "_site_local_to_global": "frames",
    "_cinert": "inertias",
}
_NEEDS = {"_cdof": "_compute_body_matrices"}


class Launches:
    """Has the functions of ``mujoco_warp._src.smooth`` launch as a refresh wants it, by a name of that module's.

    So backends of one process take turns: no two threads may refresh at a time.

    Args:
        warp: the module.
        smooth: the module whose functions launch.
        device: Warp's device of the arrays.
    """

    def __init__(self, warp: Any, smooth: Any, device: Any) -> None:
        self._warp, self._smooth = warp, smooth
        # By kernel, not by name: a version of MuJoCo Warp without one of them has it launched as it comes.
        kernels = {name: getattr(smooth, name, None) for name in (*_LANES, *_NEEDS)}
        self._lanes: dict[Any, Any] = {}
        self._needs: dict[Any, Any] = {}
        self._done: dict[Any, Any] = {}
        self._loaded = False
        if device.is_cuda and None not in kernels.values():
            streams = {lane: warp.Stream(device) for lane in set(_LANES.values())}
            self._lanes = {kernels[name]: streams[lane] for name, lane in _LANES.items()}
            self._needs = {kernels[name]: kernels[other] for name, other in _NEEDS.items()}
            self._done = {kernel: warp.Event(device) for kernel in self._lanes}
            self._reached = warp.Event(device)

    @contextmanager
    def of(self, wanted: Callable[[Any], bool]) -> Iterator[None]:
        """Launch the wanted kernels alone, and have the current stream wait for all of them at the end.

        The first time all are launched as they come: Warp writes their code then, in which ``wp`` has to be the module.
        """
        if not self._loaded:
            yield
            self._loaded = True
            return
        aside: list[Any] = []

        def take(kernel: Any, launch: Callable[..., None]) -> None:
            if wanted(kernel):
                self._launch(kernel, launch, aside)

        own = self._smooth.wp
        self._smooth.wp = _Launcher(self._warp, take)
        try:
            yield
        finally:
            self._smooth.wp = own
            for kernel in aside:
                self._warp.get_stream().wait_event(self._done[kernel])

    def _launch(self, kernel: Any, launch: Callable[..., None], aside: list[Any]) -> None:
        lane, needed = self._lanes.get(kernel), self._needs.get(kernel)
        if lane is None:
            if needed in aside:
                self._warp.get_stream().wait_event(self._done[needed])
            launch()
            return
        lane.wait_event(self._warp.get_stream().record_event(self._reached))
        launch(stream=lane)
        lane.record_event(self._done[kernel])
        aside.append(kernel)


class _Launcher:
    """Stands for the module warp, and gives its launches to a function."""

    def __init__(self, warp: Any, take: Callable[[Any, Callable[..., None]], object]) -> None:
        self._warp, self._take = warp, take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._warp, name)

    def launch(self, kernel: Any, *args: Any, **options: Any) -> None:
        self._take(kernel, lambda **more: self._warp.launch(kernel, *args, **options, **more))
