"""The planar MuJoCo runners in one call: what gymnasium's single environments do, bit for bit."""

import numpy as np
import pytest

from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.envs.mujoco_vector import MujocoVectorEnv

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"])
def test_answers_are_those_of_the_single_environments(env_id):
    kwargs = {"max_episode_steps": 17, "ctrl_cost_weight": 0.3}
    single, together = (
        make_block(EnvConfig(id=env_id, vectorization=kind, kwargs=kwargs), 3) for kind in ("sync", "native")
    )
    expected, found = single.reset(5), together.reset(5)
    np.testing.assert_array_equal(found.obs["obs"], expected.obs["obs"])
    rng = np.random.default_rng(0)
    size = len(single.spec.group.action.low)
    records = []
    for _ in range(60):
        actions = rng.normal(0, 1, (3, 1, size)).astype(np.float32)
        expected, found = single.step(actions), together.step(actions)
        for name in ("reward", "terminated", "truncated", "on_reset", "present", "final_lanes"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        np.testing.assert_array_equal(found.obs["obs"], expected.obs["obs"])
        np.testing.assert_array_equal(found.final_obs["obs"], expected.final_obs["obs"])
        records += zip(found.episodes, expected.episodes, strict=True)
    assert len(records) >= 9
    for mine, theirs in records:
        assert (mine.env_index, mine.length) == (theirs.env_index, theirs.length)
        assert mine.returns["agent"] == pytest.approx(theirs.returns["agent"], abs=1e-9)
    assert single.spec.frame_skip == together.spec.frame_skip > 1


def test_positions_may_be_observed_and_health_ignored():
    kwargs = {"exclude_current_positions_from_observation": False, "terminate_when_unhealthy": False}
    block = make_block(EnvConfig(id="Hopper-v5", vectorization="native", kwargs=kwargs), 2)
    assert block.reset(0).obs["obs"].shape == (2, 1, 12)
    for _ in range(80):
        assert not block.step(np.ones((2, 1, 3), np.float32)).terminated.any()


def test_a_second_reset_goes_on_with_the_random_streams():
    env = MujocoVectorEnv("HalfCheetah-v5", 2)
    first, again = env.reset(seed=[1, 2])[0], env.reset()[0]
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
