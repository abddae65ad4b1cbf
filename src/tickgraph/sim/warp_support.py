"""What the MuJoCo Warp backend needs: the libraries, a device, and a model that its refresh covers."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tickgraph.core.errors import TickgraphError
from tickgraph.core.install import install_extra
from tickgraph.robots.mj import load_mujoco
from tickgraph.sim.model import Scene

MISSING = f"backend 'mjwarp' needs MuJoCo Warp, which is not installed here: {install_extra('gpu')}"
# Sensors of positions and velocities that follow from what `refresh` computes.
_SENSORS = frozenset(
    "MAGNETOMETER JOINTPOS BALLQUAT FRAMEPOS FRAMEXAXIS FRAMEYAXIS FRAMEZAXIS FRAMEQUAT SUBTREECOM INSIDESITE CLOCK "
    "VELOCIMETER GYRO JOINTVEL BALLANGVEL FRAMELINVEL FRAMEANGVEL SUBTREELINVEL SUBTREEANGMOM".split()
)


def load() -> tuple[Any, Any]:
    """Return the modules mujoco_warp and warp, quiet; raises TickgraphError where they are not installed."""
    load_mujoco()
    try:
        import mujoco_warp
        import warp
    except ImportError as error:
        if error.name not in ("mujoco_warp", "warp"):
            raise
        raise TickgraphError(MISSING) from error
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    warp.init()
    return mujoco_warp, warp


def check_device(device: torch.device) -> None:
    """Raise TickgraphError unless the device is a GPU that is there, or the CPU."""
    if device.type not in ("cpu", "cuda"):
        raise TickgraphError(f"backend 'mjwarp' runs on device 'cuda', and on 'cpu' for tests, not on {str(device)!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise TickgraphError(f"device {str(device)!r} is not there: torch finds {count} usable GPUs")


def supported_model(scene: Scene) -> Any:
    """Return a copy of the scene's model for MuJoCo Warp; raises TickgraphError for what our refresh does not cover."""
    mujoco = load_mujoco()
    m = copy.copy(scene.mjmodel)
    # MuJoCo Warp has no automatic reset, and refuses a model that says so.
    m.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    refused = {
        "flexes": m.nflex,
        "plastic joints or tendons": getattr(m, "nplastic", 0),
        "delays inside the model": m.nhistory,
        "sleeping": m.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP),
    }
    for what, count in refused.items():
        if count:
            raise TickgraphError(f"backend 'mjwarp' does not serve models with {what}; use backend 'mujoco'")
    for i in range(m.nsensor):
        kind = mujoco.mjtSensor(m.sensor_type[i]).name.removeprefix("mjSENS_")
        camera = int(mujoco.mjtObj.mjOBJ_CAMERA) in (m.sensor_objtype[i], m.sensor_reftype[i])
        if m.sensor_needstage[i] != mujoco.mjtStage.mjSTAGE_ACC and (kind not in _SENSORS or camera):
            raise TickgraphError(
                f"sensor {m.sensor(i).name!r} ({kind.lower()}{' of a camera' if camera else ''}) is not refreshed by "
                "backend 'mjwarp'; remove it, or use backend 'mujoco'"
            )
    return m


def senses_geoms(m: Any) -> bool:
    """Return whether a sensor of positions or velocities reads a geom's frame."""
    mujoco = load_mujoco()
    geom = int(mujoco.mjtObj.mjOBJ_GEOM)
    early = m.sensor_needstage != mujoco.mjtStage.mjSTAGE_ACC
    return bool((early & ((m.sensor_objtype == geom) | (m.sensor_reftype == geom))).any())
