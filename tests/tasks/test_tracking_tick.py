"""Time in motion tracking: which frame a state is judged by, the clip's end, and a wrap by the transition contract."""

import pytest
import torch
from tracking_toys import HEIGHT, MARK, motion_of, quiet, split, tracking_env, write_clips

from tickgraph.core.arena import Arena
from tickgraph.core.program import Program, resolve_execution
from tickgraph.core.rng import Rng
from tickgraph.env.env import Env
from tickgraph.learn.replay import Ring
from tickgraph.mdp.motion_command import ERRORS
from tickgraph.tasks.tracking_g1 import g1_motion_tracking

ZERO = torch.zeros(4, 29)


def start_at(env: Env, *frames: int) -> None:
    """Have the worlds begin at frames of clip 0, as a reset would, in the present state of the episode."""
    env.written.zero_()
    env.sim.stage_from_state()
    motion_of(env).put(env.all_worlds, torch.zeros(4, dtype=torch.int64), torch.tensor(frames))
    env.sim.write_state(env.all_worlds, env.all_worlds)
    env.sim.refresh(env.all_worlds)


def held(folder, lengths=(40,), wrap=False, **changes):
    """Return an editor: clips of a robot that hangs in the air, no gravity, no falls."""

    def edit(cfg):
        motion = quiet(cfg)
        motion.clips = write_clips(folder, list(lengths))
        motion.truncate_on_clip_end = not wrap
        cfg.scene.gravity = (0.0, 0.0, 0.0)
        for name in ("anchor_pos", "anchor_ori", "ee_body_pos"):
            del cfg.terminations[name]
        for name, value in changes.items():
            setattr(cfg, name, value)

    return edit


def test_a_state_is_judged_by_the_frame_that_the_policy_saw():
    env = tracking_env(edit=lambda cfg: setattr(cfg.commands["motion"], "clips", ("march",)))
    motion, data = motion_of(env), env.scene["robot"].data
    start = motion.frame - 1
    library = motion.library
    for step in range(1, 4):
        seen = split(env, env.obs["critic"], "critic")
        target = library.frame(motion.clip, start + step)
        assert torch.equal(seen["command"], torch.cat((target.joint_pos, target.joint_vel), dim=1))
        env.step(ZERO)
        alive = ~env.done
        assert alive.any()
        error = (target.body_pos_w[:, motion.anchor] - motion.robot_anchor_pos_w).norm(dim=1)
        reward = env.reward_manager.values[:, 0] / env.step_dt
        torch.testing.assert_close(reward[alive], torch.exp(-(error**2) / 0.09)[alive])
        assert torch.equal(motion.judged[alive], (start + step)[alive])
        torch.testing.assert_close(motion.errors[alive, 0], error[alive])
        worst = (target.joint_pos - data.joint_pos).abs().mean(dim=1)
        torch.testing.assert_close(motion.errors[alive, ERRORS.index("joint_pos")], worst[alive])
        assert torch.equal(motion.frame[alive], (start + step + 1)[alive])
        if not alive.all():
            break


def test_the_first_observation_is_the_state_of_the_drawn_frame(tmp_path):
    env = tracking_env(edit=held(tmp_path))
    motion = motion_of(env)
    start = motion.frame - 1
    assert torch.equal(motion.clip, torch.zeros(4, dtype=torch.int64)) and len(set(start.tolist())) > 1
    torch.testing.assert_close(env.sim.view("qpos")[:, 7], MARK * start.float())
    torch.testing.assert_close(env.sim.view("qpos")[:, 2], torch.full((4,), HEIGHT))
    seen = split(env, env.obs["critic"], "critic")
    torch.testing.assert_close(seen["command"][:, 0], MARK * (start + 1).float())


def test_a_clips_end_is_a_time_out_behind_its_last_frame(tmp_path):
    env = tracking_env(edit=held(tmp_path))
    start_at(env, 38, 37, 10, 36)  # the last of 40 frames is 39
    ends = ([True, False, False, False], [False, True, False, False], [False, False, False, True])
    for step, ended in enumerate(ends):
        state = env.episode_length.tolist()
        _, _, terminated, truncated, extras = env.step(ZERO)
        if step == 1:  # world 0 began anew at an unknown frame
            truncated, ended = truncated[1:], ended[1:]
        if step == 2:
            truncated, ended = truncated[2:], ended[2:]
        assert truncated.tolist() == ended and not terminated.any()
        if step == 0:
            final = split(env, extras["final_obs"]["critic"], "critic")
            # Had the episode gone on, the last frame would have been shown once more.
            assert final["command"][0, 0].item() == pytest.approx(39 * MARK)
            assert final["command"][2, 0].item() == pytest.approx(12 * MARK)
            assert env.episode_length.tolist() == [0, *(age + 1 for age in state[1:])]
    row = env.stats.drain()
    assert row["ended_by/motion_clip_end"] == row["truncated"] == row["episodes"] >= 3


def test_an_episode_from_the_first_frame_has_one_step_less_than_the_clip_frames(tmp_path):
    def edit(cfg):
        held(tmp_path, (7,))(cfg)
        cfg.commands["motion"].sampler.mode = "start"

    env = tracking_env(edit=edit)
    judged = []
    for step in range(6):
        assert step == 0 or not env.done.any()
        env.step(ZERO)
        judged.append(motion_of(env).judged[0].item())
    assert env.truncated.all() and judged == [1, 2, 3, 4, 5, 6]


def test_a_wrap_is_a_boundary_and_no_end(tmp_path):
    (tmp_path / "longer").mkdir()
    env, longer = (
        tracking_env(edit=held(folder, (frames,), wrap=True))
        for folder, frames in ((tmp_path, 40), (tmp_path / "longer", 80))
    )
    motion = motion_of(env)
    start_at(env, 38, 20, 10, 5)
    start_at(longer, 38, 20, 10, 5)
    action = 0.1 * torch.ones(4, 29)
    longer.step(action)
    age = env.episode_length.clone()
    _, _, terminated, truncated, extras = env.step(action)
    assert not terminated.any() and not truncated.any() and not env.done.any()
    assert env.restarted.tolist() == env.rewrite.tolist() == [True, False, False, False]
    assert torch.equal(env.episode_length, age + 1)  # the episode goes on
    final, seen = (split(env, value["critic"], "critic") for value in (extras["final_obs"], env.obs))
    first = motion.frame[0].item() - 1  # where the world was put
    # final_obs: the state that was reached, and the last frame shown once more.
    default = env.scene["robot"].data.default_joint_pos[0]
    assert final["command"][0, 0].item() == pytest.approx(39 * MARK)
    for name, value in split(longer, longer.obs["critic"], "critic").items():
        if name not in ("command", "motion_anchor_pos_b", "motion_anchor_ori_b"):
            assert torch.equal(final[name][0], value[0]), name  # as where no clip ended
    assert final["joint_vel"][0].abs().max() > 1e-3
    # obs: the state of the frame it was put to, with the next one shown; the last action is kept.
    assert seen["joint_pos"][0, 0].item() + default.item() == pytest.approx(first * MARK, abs=1e-6)
    assert seen["command"][0, 0].item() == pytest.approx((first + 1) * MARK)
    assert seen["motion_anchor_pos_b"][0].abs().max() < 1e-5
    assert torch.equal(seen["last_action"], action)
    assert torch.equal(env.obs["critic"][1:], extras["final_obs"]["critic"][1:])
    row = env.stats.drain()
    assert row["episodes"] == 0 and row["episode_return"] is None


def test_a_reset_wins_over_a_wrap(tmp_path):
    def edit(cfg):
        held(tmp_path, wrap=True)(cfg)
        cfg.episode_length_s = 0.02

    env = tracking_env(edit=edit)
    start_at(env, 38, 20, 38, 5)
    env.step(ZERO)
    assert env.truncated.all() and not env.rewrite.any() and torch.equal(env.restarted, env.done)
    motion = motion_of(env)
    torch.testing.assert_close(env.sim.view("qpos")[:, 7], MARK * (motion.frame - 1).float())


def test_n_step_returns_stop_at_a_wrap_and_bootstrap_from_where_it_was(tmp_path):
    """Every sampled window of three steps against the transitions as the environment gave them, by NumPy."""
    gamma, n_step, worlds = 0.9, 3, 4
    env = tracking_env(edit=held(tmp_path, (6, 9), wrap=True))
    arena = Arena("cpu")
    dims = env.observation_manager.dims
    ring = Ring(arena, 64, worlds, dims, 29, n_step, gamma)
    draws = Rng(arena, 512, 3)
    arena.seal()
    env.attach(ring=ring)
    rows, wraps = [], 0
    for tick in range(40):
        obs = env.obs["critic"].clone()
        action = torch.zeros(worlds, 29)
        action[:, 0], action[:, 1] = tick / 64, torch.arange(worlds) / 8  # says which row was sampled
        env.step(action)
        assert not env.done.any()
        wraps += int(env.restarted.sum())
        rows.append((obs, env.reward.clone(), env.restarted.clone(), env.final_obs["critic"].clone()))
    assert wraps > 20
    ring.publish()
    batch = ring.sample(draws.stream("sample"))
    crossed = 0
    for i in range(512):
        tick, world = round(batch.action[i, 0].item() * 64), round(batch.action[i, 1].item() * 8)
        assert torch.equal(batch.critic_obs[i], rows[tick][0][world])
        total, weight = 0.0, 1.0
        for k in range(n_step):
            _, reward, boundary, final_obs = rows[tick + k]
            total, weight = total + weight * reward[world].item(), weight * gamma
            if boundary[world]:
                crossed += 1
                break
        successor = final_obs[world] if boundary[world] else rows[tick + n_step][0][world]
        assert batch.reward[i].item() == pytest.approx(total, rel=1e-5)
        assert batch.discount[i].item() == pytest.approx(weight, rel=1e-6)  # a wrap is no fall: its value counts
        assert torch.equal(batch.critic_obs[512 + i], successor)
    assert 100 < crossed < 500


@pytest.mark.parametrize("wrap", [False, True])
def test_no_world_reads_past_its_clips_end(tmp_path, wrap):
    """Random clips, frames and resets: what is shown and judged is always a frame of the world's own clip."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(2, 25, (9,), generator=generator)
    cfg = g1_motion_tracking().env
    held(tmp_path, lengths.tolist(), wrap)(cfg)
    env = Env(cfg, 64, execution="eager", seed=2)
    motion = motion_of(env)
    assert motion.library.lengths == tuple(lengths.tolist())
    visited, ends = set(), 0
    for tick in range(150):
        env.rng.advance()
        own = lengths[motion.clip]
        for frame, least in ((motion.frame, 1), (motion.judged, 0)):
            assert (frame >= least).all() and (frame < own).all()
        # The root's x is the clip's number and the first joint marks the frame, so that a row says whose it is.
        for frames, at in ((motion.reference, motion.frame), (motion.judged_frame(), motion.judged)):
            assert torch.equal(frames.root_pos[:, 0], motion.clip.float())
            torch.testing.assert_close(frames.joint_pos[:, 0], MARK * at.float())
        visited |= set(zip(motion.clip.tolist(), motion.frame.tolist(), strict=True))
        before, last = motion.frame.clone(), motion.clip_end.clone()
        env.command_manager.step()
        ends += int(last.sum())
        assert torch.equal(motion.frame, torch.where(last, before, before + 1)) and torch.equal(motion.judged, before)
        if tick == 20:
            motion.frame.copy_(torch.randint(-3, 40, (64,), generator=generator))  # nonsense is not followed
            frames = motion.judged_frame(), motion.library.frame(motion.clip, motion.frame)
            assert all(torch.equal(f.root_pos[:, 0], motion.clip.float()) for f in frames)
            env.command_manager.reset(env.all_worlds)
            motion.judged.zero_()
            continue
        done = torch.rand(64, generator=generator) < 0.1
        if wrap:
            assert torch.equal(motion.rewrite, last)
            motion.write_state(motion.rewrite & ~done)
        env.command_manager.reset(done if wrap else done | last)
        motion.judged.copy_(torch.minimum(motion.judged, lengths[motion.clip] - 1))
    assert ends > 100
    # Every frame that can be shown was: 1 to the last of each clip.
    assert visited == {(c, f) for c, length in enumerate(lengths.tolist()) for f in range(1, length)}


def test_falls_are_counted_where_they_were_judged(tmp_path):
    def edit(cfg):
        held(tmp_path, (301,))(cfg)
        cfg.commands["motion"].sampler.mode = "adaptive"

    env = tracking_env(edit=edit)
    motion = motion_of(env)
    failures = motion.sampler.failures.clone()
    motion.clip.zero_()
    motion.frame.copy_(torch.tensor([50, 99, 100, 299]))  # bins of 50 frames
    env.terminated.copy_(torch.tensor([True, True, True, False]))
    motion.step()
    decay = round(0.001 * 65536)
    grown = (motion.sampler.failures - (failures - (failures * decay >> 16))) / 2**20
    assert grown.tolist() == [0.0, 2.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.slow
def test_compiled_equals_eager(tmp_path):
    """The command's part of a tick as one program, as in a compiled tick; all of that takes minutes to compile."""
    cfg = g1_motion_tracking().env
    motion = cfg.commands["motion"]
    motion.clips, motion.truncate_on_clip_end = write_clips(tmp_path, [4, 3]), False
    cfg.episode_length_s = 0.16
    env = Env(cfg, 4, execution="eager", seed=3, threads=1)

    def follow():
        env.termination_manager.compute(env.terminated, env.truncated)
        env.command_manager.step()
        env.done.copy_(env.terminated | env.truncated)
        env.rewrite.copy_(motion_of(env).rewrite & ~env.done)
        motion_of(env).write_state(env.rewrite)
        env.command_manager.reset(env.done)

    compiled, seen = Program("follow", follow, resolve_execution("compile", "cpu")), {"done": 0, "rewrite": 0}
    for tick in range(10):
        env.step(torch.sin(torch.arange(4 * 29).reshape(4, 29) + tick) * 0.2)
        env.episode_length[tick % 4] = env.max_episode_length
        before, after = env.state_dict(), []
        for program in (follow, compiled):
            env.load_state_dict(before)
            env.sim.stage_from_state()
            with torch.no_grad():
                program()
            after.append(env.arena.snapshot())
        a, b = after
        for name in a:
            if a[name].is_floating_point():
                torch.testing.assert_close(b[name], a[name], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
            else:
                assert torch.equal(a[name], b[name]), name
        for name in seen:
            seen[name] += int(a[f"env/{name}"].sum())
        env.load_state_dict(before)
    assert seen["done"] == 10 and seen["rewrite"] >= 4, seen
