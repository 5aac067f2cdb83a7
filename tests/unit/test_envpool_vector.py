"""EnvPool's environments as blocks: the rows of gymnasium's, one call per step."""

import sys

import gymnasium
import numpy as np
import pytest

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import FrameStack
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_contract
from srl_ray.envs.factory import make_block

pytestmark = pytest.mark.unit


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"pip install 'srl_ray\[envpool\]'"):
        make("CartPole-v1")


def test_factory_and_envpool_exclude_each_other():
    with pytest.raises(ConfigError, match=r"env\.vectorization=envpool.*env\.factory=null"):
        make_block(EnvConfig(factory="srl_ray.envs.testing:Catch", vectorization="envpool"))


def make(env_id, num_envs=3, **kwargs):
    return make_block(EnvConfig(id=env_id, vectorization="envpool", kwargs=kwargs), num_envs)


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'srl_ray[envpool]'")


def transitions(block, steps, seed=0):
    """Of every lane: (obs, action, reward, terminated, truncated, next obs), the last of an episode included."""
    rng = np.random.default_rng(seed)
    spec = block.spec.group.action
    answer = block.reset(seed)
    found, episodes = [], []
    for _ in range(steps):
        if hasattr(spec, "nvec"):
            actions = rng.integers(0, spec.nvec, (block.spec.num_envs, 1, len(spec.nvec)))
        else:
            actions = rng.uniform(spec.low, spec.high, (block.spec.num_envs, 1, len(spec.low))).astype(np.float32)
        obs, present = answer.obs["obs"].copy(), answer.present.copy()
        answer = block.step(actions)
        finals = dict(zip(answer.final_lanes.tolist(), answer.final_obs["obs"].copy()))
        episodes += answer.episodes
        for e in np.flatnonzero(present):
            ended = answer.terminated[e, 0], answer.truncated[e, 0]
            assert (e in finals) == any(ended)
            after = finals[e] if any(ended) else answer.obs["obs"][e, 0].copy()
            found.append((obs[e, 0], actions[e, 0], answer.reward[e, 0], *ended, after))
    return found, episodes


def test_every_step_of_cartpole_is_gymnasiums(envpool):
    found, _ = transitions(make("CartPole-v1"), 120)
    env = gymnasium.make("CartPole-v1").unwrapped
    assert sum(step[3] for step in found) > 8
    for obs, action, reward, terminated, _, after in found:
        env.reset()
        env.state = obs.astype(np.float64)
        expected, expected_reward, expected_terminated, *_ = env.step(int(action[0]))
        np.testing.assert_allclose(after, expected, atol=1e-5)
        assert (reward, terminated) == (expected_reward, expected_terminated)


def test_a_time_limit_is_a_truncation_with_its_last_observation(envpool):
    found, episodes = transitions(make("Pendulum-v1", max_episode_steps=7), 40)
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset()
    for obs, action, reward, terminated, _, after in found:
        env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
        expected, expected_reward, *_ = env.step(action)
        np.testing.assert_allclose(after, expected, atol=1e-4)
        assert reward == pytest.approx(expected_reward, abs=1e-4)
        assert not terminated
    assert [episode.length for episode in episodes] == [7] * 15  # 8 calls an episode, of which one restarts it
    truncated = np.array([step[4] for step in found])
    assert truncated.sum() == 15


def test_returns_and_lengths_of_episodes_are_those_of_their_rows(envpool):
    block = make("CartPole-v1", 4)
    answer = block.reset(0)
    acting, paid, episodes = np.zeros(4), np.zeros(4), 0
    for t in range(150):
        acting += answer.present[:, 0]
        answer = block.step(np.full((4, 1, 1), t % 2))
        paid += answer.reward[:, 0]
        for episode in answer.episodes:
            e = episode.env_index
            assert (episode.length, episode.returns["agent"]) == (acting[e], paid[e])
            acting[e] = paid[e] = 0
            episodes += 1
    assert episodes > 8


def test_a_seed_gives_the_same_episodes_and_each_environment_its_own(envpool):
    block = make("CartPole-v1")

    def play(seed):
        return np.stack([step[5] for step in transitions(block, 40, seed)[0]])

    first = play(1)
    np.testing.assert_array_equal(first, play(1))
    starts = block.reset(1).obs["obs"][:, 0].copy()
    assert len(np.unique(starts, axis=0)) == 3
    assert not np.array_equal(starts, block.reset(2).obs["obs"][:, 0])


def test_mujocos_float64_becomes_float32_and_its_dynamics_are_gymnasiums(envpool):
    pytest.importorskip("mujoco")
    block = make("HalfCheetah-v5", 2)
    assert block.spec.group.obs["obs"].dtype == np.float32
    found, _ = transitions(block, 15)
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    env.reset()
    for obs, action, reward, *_, after in found:
        env.set_state(np.concatenate([[0.0], obs[:8]]).astype(float), obs[8:].astype(float))
        expected, expected_reward, *_ = env.step(action.astype(float))
        np.testing.assert_allclose(after, expected, atol=1e-2)
        assert reward == pytest.approx(expected_reward, abs=1e-2)


def test_several_observation_arrays_become_fields(envpool):
    block = make("MiniGrid-Empty-5x5-v0", 2)
    answer = block.reset(0)
    assert answer.obs["image"].shape == (2, 1, 7, 7, 3)
    assert answer.obs["direction"].sum(axis=-1).tolist() == [[1], [1]]
    answer = block.step(np.full((2, 1, 1), 2))
    assert answer.present.all()


def test_ataris_frames_are_known_as_stacks(envpool):
    config = EnvConfig(id="ALE/Pong-v5", vectorization="envpool", envs_per_block=2)
    block = make_block(config)
    assert block.spec.group.obs["obs"].stack == FrameStack(0, 4, "repeat")
    assert block.spec.frame_skip == 4
    check_contract(config)
    assert make("ALE/Breakout-v5", episodic_life=True).spec.group.obs["obs"].stack is None


def test_mistakes_are_named(envpool):
    with pytest.raises(ConfigError, match=r"'HalfCheeta-v5'.*HalfCheetah-v5.*env\.vectorization=sync"):
        make("HalfCheeta-v5")
    with pytest.raises(ConfigError, match=r"env\.kwargs.*'speed'.*num_threads"):
        make("CartPole-v1", speed=3)


def test_threads_are_the_workers(envpool, monkeypatch):
    from srl_ray.envs.envpool_vector import EnvPoolVectorEnv

    def threads(num_envs=8, **kwargs):
        return EnvPoolVectorEnv("CartPole-v1", num_envs, **kwargs)._kwargs["num_threads"]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,1")
    assert threads() == 4
    assert threads(2) == 2
    assert threads(num_threads=3) == 3
