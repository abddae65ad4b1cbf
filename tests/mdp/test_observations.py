"""Observation terms by hand, and on an environment that runs."""

import math

import torch
from mdp_toys import fake_env, force_sensor, robot_env

from tickgraph import mdp
from tickgraph.env.config import EventTermCfg, ObservationGroupCfg, ObservationTermCfg, SceneEntityCfg
from tickgraph.env.scene import SceneEntity


def pitched(angle: float) -> torch.Tensor:
    """Return (1, 4), a turn about y."""
    return torch.tensor([[math.cos(angle / 2), 0.0, math.sin(angle / 2), 0.0]])


def test_up_vector_of_root_and_body():
    # Pitched nose down by 30 degrees, up is 60 degrees behind the nose: -sin 30 along x, cos 30 along z.
    expected = torch.tensor([[-0.5, 0.0, math.sqrt(3) / 2]])
    body = torch.stack((pitched(0.0), pitched(math.pi / 6)), dim=1)
    env = fake_env(projected_gravity_b=-expected, body_link_quat_w=body)
    torch.testing.assert_close(mdp.up_vector(env), expected)
    selected = SceneEntity("robot", body_ids=torch.tensor([1]))
    torch.testing.assert_close(mdp.up_vector(env, selected), expected)
    torch.testing.assert_close(mdp.projected_gravity(env, selected), -expected)


def test_up_vector_agrees_with_the_entity_whatever_the_yaw():
    base = SceneEntityCfg("robot", body_names="base")
    env = robot_env(
        num_envs=8,
        observations={
            "actor": ObservationGroupCfg(
                {
                    "of_body": ObservationTermCfg(mdp.projected_gravity, {"asset_cfg": base}),
                    "of_root": ObservationTermCfg(mdp.projected_gravity),
                }
            )
        },
        events={
            "root": EventTermCfg(
                mdp.reset_root_state_uniform,
                params={"pose_range": {"roll": (-3, 3), "pitch": (-1, 1), "yaw": (-3, 3)}},
            )
        },
    )
    torch.testing.assert_close(env.obs["actor"][:, :3], env.obs["actor"][:, 3:], atol=1e-6, rtol=0)
    assert env.obs["actor"][:, 0].std() > 0.1


def test_relative_joints_and_selection():
    env = fake_env(
        joint_pos=torch.tensor([[0.3, -0.1]]),
        default_joint_pos=torch.tensor([0.1, -0.2]),
        joint_vel=torch.tensor([[1.0, 2.0]]),
        default_joint_vel=torch.tensor([0.5, 0.0]),
    )
    torch.testing.assert_close(mdp.joint_pos_rel(env), torch.tensor([[0.2, 0.1]]))
    second = SceneEntity("robot", joint_ids=torch.tensor([1]))
    torch.testing.assert_close(mdp.joint_pos_rel(env, second), torch.tensor([[0.1]]))
    torch.testing.assert_close(mdp.joint_vel_rel(env), torch.tensor([[0.5, 2.0]]))
    both = mdp.joint_pos_sin_cos(env, second)
    torch.testing.assert_close(both, torch.tensor([[math.cos(-0.1), math.sin(-0.1)]]))


def test_last_action_of_all_terms_and_of_one():
    env = robot_env(
        actions={
            "first": mdp.JointPositionActionCfg(actuator_names="act_b"),
            "second": mdp.JointPositionActionCfg(actuator_names="act_a"),
        }
    )
    env.step(torch.tensor([[0.25, 0.75]]).expand(4, 2))
    assert mdp.last_action(env)[0].tolist() == [0.25, 0.75]
    assert mdp.last_action(env, "second")[0].tolist() == [0.75]


def test_contacts_by_force():
    env = fake_env(sensors={"l": force_sensor((0, 0, 0.2), (0, 0, 0)), "r": force_sensor((3, 4, 0), (0, 0, 0))})
    assert mdp.contact_found(env, ("l", "r"), 0.1).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert mdp.contact_found(env, ("l", "r"), 1.0).tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_gait_in_radians_and_as_a_clock():
    env = fake_env(commands={"gait": torch.tensor([[0.0, -math.pi]])})
    assert mdp.gait_phase(env, "gait").tolist() == [[0.0, torch.tensor(-math.pi).item()]]
    torch.testing.assert_close(mdp.gait_clock(env, "gait"), torch.tensor([[0.0, 1.0]]))


def test_root_velocities_in_the_world():
    env = fake_env(
        root_link_lin_vel_w=torch.tensor([[1.0, 2.0, 3.0]]), root_link_ang_vel_w=torch.tensor([[4.0, 5.0, 6.0]])
    )
    assert mdp.root_lin_vel_w(env).tolist() == [[1.0, 2.0, 3.0]]
    assert mdp.root_ang_vel_w(env).tolist() == [[4.0, 5.0, 6.0]]


def test_joints_within_their_soft_ranges():
    env = fake_env(
        joint_pos=torch.tensor([[-1.0, 3.0], [2.0, 2.5]]),
        soft_joint_pos_limits=torch.tensor([[-1.0, 1.0], [2.0, 4.0]]),
    )
    assert mdp.joint_pos_limit_normalized(env).tolist() == [[-1.0, 0.0], [2.0, -0.5]]
    one = SceneEntity("robot", joint_ids=torch.tensor([1]))
    assert mdp.joint_pos_limit_normalized(env, one).tolist() == [[0.0], [-0.5]]


def test_forces_on_feet_by_their_logarithm():
    env = fake_env(
        sensors={"l": force_sensor((math.e - 1.0, 0.0, 0.0)), "r": force_sensor((0.0, -(math.e**2 - 1.0), 0.0))}
    )
    torch.testing.assert_close(
        mdp.foot_contact_forces(env, ("l", "r")), torch.tensor([[1.0, 0.0, 0.0, 0.0, -2.0, 0.0]])
    )
