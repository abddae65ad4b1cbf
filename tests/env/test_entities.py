"""What terms read of the scene and write to it, against MuJoCo's own functions."""

import mujoco
import numpy as np
import pytest
import torch
from toys import SLIDER, TargetCfg, alive

from tickgraph.core.rotation import quat_apply, quat_from_euler_xyz
from tickgraph.env.config import EnvCfg, ObservationGroupCfg, ObservationTermCfg, RewardTermCfg, SceneEntityCfg
from tickgraph.env.env import Env
from tickgraph.sim.scene import EntityCfg, InitialStateCfg, SceneCfg, SensorCfg

# A floating body with an arm of two joints, beside another robot, so that its indices are not the model's own.
ARM = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0.3 -0.2 1">
      <freejoint/>
      <inertial pos="0.05 0.02 -0.01" mass="2" diaginertia="0.02 0.03 0.04"/>
      <geom name="trunk" type="sphere" size="0.01" contype="0" conaffinity="0"/>
      <body name="upper" pos="0.1 0 0.05" euler="20 30 0">
        <joint name="shoulder" axis="0 1 0" range="-2 1"/>
        <geom name="upper" type="capsule" fromto="0 0 0 0 0 0.3" size="0.03" mass="0.5" contype="0" conaffinity="0"/>
        <body name="lower" pos="0 0 0.3">
          <joint name="elbow" axis="1 0 0"/>
          <geom name="lower" type="capsule" fromto="0 0 0 .1 0 .2" size="0.02" mass="0.3" conaffinity="0" contype="0"/>
          <site name="hand" pos="0.1 0 0.2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="elbow" joint="elbow"/>
    <position name="shoulder" joint="shoulder" kp="5"/>
  </actuator>
</mujoco>
"""
N = 3


def zero(env):
    return env.reward[:, None] * 0.0


def make(execution="eager", **init):
    arm = EntityCfg(ARM, InitialStateCfg(joint_pos={"elbow": 0.4}, **init))
    scene = SceneCfg(
        {"slider": EntityCfg(SLIDER), "arm": arm},
        terrain=None,
        sensors=(SensorCfg("gyro", "framelinvel", "hand", "site", "arm"),),
    )
    read = ("xpos", "xquat", "xipos", "cvel", "subtree_com", "site_xpos", "geom_xpos", "qacc", "actuator_force")

    def everything(env):
        for name in (*read, "sensordata"):
            env.sim.view(name)
        return zero(env)

    cfg = EnvCfg(
        scene=scene,
        observations={"actor": ObservationGroupCfg({"all": ObservationTermCfg(everything)})},
        actions={"arm": TargetCfg(entity_name="arm"), "slider": TargetCfg(entity_name="slider")},
        rewards={"alive": RewardTermCfg(alive)},
    )
    return Env(cfg, num_envs=N, execution=execution)


def moved(env, seed=0):
    """Write a state of its own to each world through the entity, and return it in plain MuJoCo."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator) * 2 - 1  # noqa: E731
    arm = env.scene["arm"]
    quat = quat_from_euler_xyz(*(draw(N) * 1.5 for _ in range(3)))
    pose, velocity = torch.cat((draw(N, 3), quat), dim=1), draw(N, 6)
    joints, speeds = draw(N, 2), draw(N, 2) * 3
    env.sim.stage_from_state()
    arm.write_root_link_pose_to_sim(pose, env.all_worlds)
    arm.write_root_link_velocity_to_sim(velocity, env.all_worlds)
    arm.write_joint_state_to_sim(joints, speeds, env.all_worlds)
    torch.testing.assert_close(arm.staged_root_pose(), pose)
    torch.testing.assert_close(arm.staged_root_velocity(), velocity)
    torch.testing.assert_close(arm.staged_joint_pos(), joints)
    torch.testing.assert_close(arm.staged_joint_vel(), speeds)
    env.sim.write_state(env.all_worlds, env.no_worlds)
    env.sim.refresh(env.all_worlds)
    return pose, velocity, joints, speeds


def in_mujoco(env, world):
    model = env.sim.scene.mjmodel
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = env.sim.view("qpos")[world], env.sim.view("qvel")[world]
    mujoco.mj_forward(model, data)
    return model, data


def velocity_of(model, data, body, local):
    out = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body(f"arm/{body}").id, out, local)
    return out[3:], out[:3]  # linear, angular


def same(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=2e-6)


def test_what_is_read_is_what_was_written():
    env = make()
    pose, velocity, joints, speeds = moved(env)
    data = env.scene["arm"].data
    same(data.root_link_pos_w, pose[:, :3])
    same(data.root_link_quat_w, pose[:, 3:])
    same(data.root_link_lin_vel_w, velocity[:, :3])
    same(data.root_link_ang_vel_w, velocity[:, 3:])
    same(data.joint_pos, joints)
    same(data.joint_vel, speeds)
    forward = quat_apply(pose[:, 3:], torch.tensor([1.0, 0.0, 0.0]))
    same(data.heading_w, torch.atan2(forward[:, 1], forward[:, 0]))
    # The other entity was not touched.
    same(env.scene["slider"].data.joint_pos, np.zeros((N, 2)))


def test_frames_and_velocities_are_mujocos():
    env = make()
    moved(env, seed=1)
    arm = env.scene["arm"]
    for world in range(N):
        model, data = in_mujoco(env, world)
        linear, angular = velocity_of(model, data, "base", 1)
        same(arm.data.root_link_lin_vel_b[world], linear)
        same(arm.data.root_link_ang_vel_b[world], angular)
        down = data.body("arm/base").xmat.reshape(3, 3).T @ [0.0, 0.0, -1.0]
        same(arm.data.projected_gravity_b[world], down)
        for i, name in enumerate(arm.index.body_names):
            linear, angular = velocity_of(model, data, name, 0)
            same(arm.data.body_link_lin_vel_w[world, i], linear)
            same(arm.data.body_link_ang_vel_w[world, i], angular)
            same(arm.data.body_link_pos_w[world, i], data.body(f"arm/{name}").xpos)
            same(arm.data.body_link_quat_w[world, i], data.body(f"arm/{name}").xquat)
            same(arm.data.body_com_pos_w[world, i], data.body(f"arm/{name}").xipos)
        same(arm.data.site_pos_w[world, 0], data.site("arm/hand").xpos)
        same(arm.data.site_lin_vel_w[world, 0], data.sensor("gyro").data)
        for i, name in enumerate(arm.index.geom_names):
            same(arm.data.geom_pos_w[world, i], data.geom(f"arm/{name}").xpos)
        same(env.scene["gyro"].data[world], data.sensor("gyro").data)


def test_accelerations_and_forces_are_those_of_the_last_substep():
    env = make()
    moved(env, seed=2)
    states = [in_mujoco(env, world) for world in range(N)]
    action = torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.5, 0.0], [-0.1, 0.0, 0.4]])
    env.step(action)
    arm, slider = env.scene["arm"], env.scene["slider"]
    for world, (model, data) in enumerate(states):
        # Columns of the raw action: arm's elbow and shoulder in the order of its actuators, then the slider.
        order = [model.actuator(name).id for name in ("arm/elbow", "arm/shoulder", "slider/dummy")]
        data.ctrl[order] = action[world]
        mujoco.mj_step(model, data, 4)
        dof = [model.joint(f"arm/{name}").dofadr[0] for name in arm.index.joint_names]
        same(arm.data.joint_acc[world], data.qacc[dof])
        same(arm.data.actuator_force[world], data.actuator_force[order[:2]])
        same(slider.data.actuator_force[world], data.actuator_force[order[2:]])
        same(arm.data.joint_vel[world], data.qvel[dof])


def test_constants_and_selectors():
    env = make(pos=(0.0, 0.0, 0.5), lin_vel=(1.0, 0.0, 0.0), ang_vel=(0.0, 0.0, 2.0), rot=(0.0, 0.0, 0.0, 1.0))
    data = env.scene["arm"].data
    assert data.default_joint_pos.tolist() == pytest.approx([0.0, 0.4])
    assert data.default_root_state.tolist() == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    same(data.root_link_lin_vel_w, [[1.0, 0.0, 0.0]] * N)
    same(data.root_link_ang_vel_w, [[0.0, 0.0, 2.0]] * N)
    same(data.joint_pos_limits[0], np.deg2rad([-2.0, 1.0]))
    # Nine tenths of the range about its middle.
    same(data.soft_joint_pos_limits[0], np.deg2rad([-0.5 - 0.9 * 1.5, -0.5 + 0.9 * 1.5]))
    index = env.scene["arm"].index
    assert index.joint_names == ("shoulder", "elbow") and index.actuator_names == ("elbow", "shoulder")


def test_a_selector_keeps_the_models_order_or_its_own():
    env = make()
    build = Env.__new__(Env)  # a view of the scene that is not sealed yet
    build.sim, build.arena, build.device, build.num_envs = env.sim, type(env.arena)("cpu"), env.device, N
    scene = type(env.scene)(build)
    assert scene.resolve(SceneEntityCfg("arm", joint_names=("elbow", "shoulder"))).joint_ids.tolist() == [0, 1]
    kept = scene.resolve(SceneEntityCfg("arm", joint_names=("elbow", "shoulder"), preserve_order=True))
    assert kept.joint_ids.tolist() == [1, 0] and kept.body_ids == slice(None)
    assert scene.resolve(SceneEntityCfg("arm", body_names=".*er")).body_ids.tolist() == [1, 2]
