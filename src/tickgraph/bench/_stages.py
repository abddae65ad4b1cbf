"""Which stage of the physics a time belongs to: by the kernel's name on a GPU, by MuJoCo's own timers on a CPU."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from pathlib import Path

from tickgraph.env.env import Env

# Module of mujoco_warp -> stage. A module that is not listed is a stage by its own name.
_MODULES = {
    "block_cholesky": "solver",
    "broadphase": "collision",
    "bvh": "sensors",
    "constraint": "constraint",
    "derivative": "integration",
    "forward": "integration",
    "history": "actuation",
    "island": "constraint",
    "passive": "passive forces",
    "ray": "sensors",
    "sensor": "sensors",
    "sleep": "constraint",
    "smooth": "inertia",
    "solver": "solver",
    "support": "inertia",
}
# Words of a kernel's name that decide within a module of many stages.
_WORDS = (
    ("forward", r"actuat|muscle|_act_", "actuation"),
    ("smooth", r"transmission", "actuation"),
    ("smooth", r"crb", "inertia"),
    ("smooth", r"comvel|cacc|cfrc|rne|qfrc_bias|subtree_vel|tendon_bias", "velocity"),
    ("smooth", r"kinematics|com_pos|cinert|subtree|local_to_global|camlight|mocap|flex|tendon", "kinematics"),
)
_DEFINITION = re.compile(r"^def (\w+)\(", flags=re.M)

# MuJoCo's timers -> stage; those that contain others are left out.
_TIMERS = {
    "POS_KINEMATICS": "kinematics",
    "POS_INERTIA": "inertia",
    "POS_COLLISION": "collision",
    "POS_MAKE": "constraint",
    "POS_PROJECT": "constraint",
    "VELOCITY": "velocity",
    "ACTUATION": "actuation",
    "CONSTRAINT": "solver",
    "ADVANCE": "integration",
}
_SAMPLE_WORLDS, _SAMPLE_STEPS = 8, 20


def stage_of(kernel: str, modules: Mapping[str, str] | None = None) -> str:
    """Return the stage of a Warp kernel, "other" for one that mujoco_warp does not define.

    Args:
        kernel: its name on the device, such as `_kinematics_level_1a2b3c4d_cuda_kernel_forward`; of a kernel within a
            function, the function's name comes first.
        modules: function -> module of mujoco_warp; by default read from its source.
    """
    name = kernel.split("(")[0].removesuffix("_cuda_kernel_forward")
    name = re.sub(r"_[0-9a-f]{8}$", "", name).split("__locals__")[0]
    module = (kernel_modules() if modules is None else modules).get(name)
    if module is None:
        return "other"
    for owner, words, stage in _WORDS:
        if module == owner and re.search(words, name):
            return stage
    return "collision" if module.startswith("collision") else _MODULES.get(module, module)


@functools.cache
def kernel_modules() -> dict[str, str]:
    """Return {top-level function: module} of mujoco_warp, read from its source; empty where it is not installed."""
    import importlib.util

    spec = importlib.util.find_spec("mujoco_warp")
    if spec is None or not spec.submodule_search_locations:
        return {}
    found: dict[str, str] = {}
    paths = Path(spec.submodule_search_locations[0], "_src").glob("*.py")
    # A few names are defined twice: those of the physics itself before the sensors' copies.
    for path in sorted(paths, key=lambda path: (path.stem not in ("smooth", "forward", "solver"), path.stem)):
        if not path.stem.endswith("_test"):
            for name in _DEFINITION.findall(path.read_text(encoding="utf-8")):
                found.setdefault(name, path.stem)
    return found


def mujoco_stages(env: Env) -> dict[str, float]:
    """Return the share of each stage in MuJoCo's steps on a CPU, from its own timers; empty where it has none.

    A few worlds are stepped on one thread, from where they stand and with the model's own fields; the environment does
    not change.
    """
    import mujoco

    model = env.sim.scene.mjmodel
    data = mujoco.MjData(model)
    worlds = min(env.num_envs, _SAMPLE_WORLDS)
    qpos, qvel, ctrl = (env.sim.view(name)[:worlds].cpu().numpy() for name in ("qpos", "qvel", "ctrl"))
    totals = dict.fromkeys(_TIMERS.values(), 0.0)
    whole = 0.0
    timers = {name: int(getattr(mujoco.mjtTimer, f"mjTIMER_{name}")) for name in (*_TIMERS, "STEP")}
    mujoco.set_mjcb_time(time.perf_counter)
    try:
        for world in range(worlds):
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:], data.ctrl[:] = qpos[world], qvel[world], ctrl[world]
            for step in range(1 + _SAMPLE_STEPS):
                if step == 1:  # the first step has no warm start
                    for timer in timers.values():
                        data.timer[timer].duration = 0.0
                mujoco.mj_step(model, data)
            for name, stage in _TIMERS.items():
                totals[stage] += data.timer[timers[name]].duration
            whole += data.timer[timers["STEP"]].duration
    finally:
        mujoco.set_mjcb_time(None)
    if whole <= 0.0:
        return {}
    totals["other"] = max(0.0, whole - sum(totals.values()))
    return {stage: total / sum(totals.values()) for stage, total in totals.items()}
