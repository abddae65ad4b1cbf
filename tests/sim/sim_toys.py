"""Small scenes whose numbers can be worked out by hand."""

from tickgraph.core.arena import Arena
from tickgraph.robots.go2 import FOOT_GEOMS, IMU_SITE, go2_robot
from tickgraph.sim.backend import FRESH, Backend, make_backend
from tickgraph.sim.model import Scene, build_scene
from tickgraph.sim.scene import EntityCfg, SceneCfg, SensorCfg

SLIDER = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="slider">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
    <body name="dummy">
      <joint name="dummy" type="slide" axis="0 1 0"/>
      <geom type="sphere" size="0.05" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><position name="dummy" joint="dummy" kp="10" kv="1"/></actuator>
</mujoco>
"""

BALL = """
<mujoco>
  <worldbody>
    <body name="ball" pos="0 0 0.05">
      <freejoint/>
      <geom name="ball" size="0.05" mass="1"/>
      <site name="centre"/>
    </body>
  </worldbody>
  <actuator><motor name="push" site="centre" gear="1 0 0 0 0 0"/></actuator>
</mujoco>
"""


def slider_scene(**options: object) -> Scene:
    return build_scene(SceneCfg({"robot": EntityCfg(SLIDER)}, terrain=None, **options))


def ball_scene() -> Scene:
    sensors = (
        SensorCfg("ground", "contact", "ball", "geom", ref="terrain"),
        SensorCfg("position", "framepos", "centre"),
        SensorCfg("velocity", "framelinvel", "centre"),
    )
    return build_scene(SceneCfg({"robot": EntityCfg(BALL)}, sensors=sensors))


def go2_scene() -> Scene:
    feet = tuple(SensorCfg(f"{foot}_contact", "contact", foot, "geom", ref="terrain") for foot in FOOT_GEOMS)
    return build_scene(SceneCfg({"robot": go2_robot()}, sensors=(SensorCfg("gyro", "gyro", IMU_SITE), *feet)))


def make(
    scene: Scene,
    num_envs: int = 4,
    threads: int = 1,
    views: tuple[str, ...] = FRESH,
    fields: tuple[str, ...] = (),
    backend: str = "mujoco",
    device: str = "cpu",
) -> tuple[Backend, Arena]:
    arena = Arena(device)
    sim = make_backend(backend, scene, num_envs, device, arena, threads)
    for name in views:
        sim.view(name)
    for name in fields:
        sim.field(name)
    arena.seal()
    return sim, arena
