"""Episodes of equal length end at different times once the first of each environment was cut short."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from srl_ray.actors.config import ActorsConfig
from srl_ray.core.errors import ConfigError
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block
from srl_ray.envs.gymnasium_block import GymBlock
from srl_ray.envs.testing import CountingEnv, Episode, ScriptedEnv

pytestmark = pytest.mark.unit

LENGTH, ENVS = 20, 16
CONFIG = EnvConfig(factory=CountingEnv, envs_per_block=ENVS, kwargs={"length": LENGTH})


def ends(stagger_steps: int, seeds: tuple[int, ...] = (1, 2)) -> list[list[tuple[int, int]]]:
    """Per block (one seed each): (step at which an episode ended, its length), for 100 steps."""
    found = []
    for seed in seeds:
        block = make_block(CONFIG, stagger_steps=stagger_steps)
        block.reset(seed)
        found.append([])
        for t in range(1, 101):
            step = block.step(np.zeros((ENVS, 1, 1), np.int64))
            assert np.array_equal(np.flatnonzero(step.terminated | step.truncated), step.final_lanes)
            found[-1] += [(t, record.length) for record in step.episodes]
    return found


def test_all_end_at_once_without_it() -> None:
    for block in ends(0):
        assert Counter(t for t, _ in block) == dict.fromkeys(range(LENGTH, 101, LENGTH), ENVS)


def test_ends_are_spread_within_and_across_blocks_for_good() -> None:
    blocks = ends(LENGTH)
    assert blocks[0] != blocks[1]
    assert blocks == ends(LENGTH), "one seed, the same starts"
    for block in blocks:
        late = Counter(t for t, _ in block if t > 60)
        assert len(late) >= 16
        assert max(late.values()) <= ENVS // 3
        assert Counter(length == LENGTH for t, length in block if t > LENGTH) == {
            True: sum(t > LENGTH for t, _ in block)
        }


def test_a_cut_episode_is_a_truncated_one_with_its_last_observation() -> None:
    block = make_block(CONFIG, stagger_steps=LENGTH - 1)
    block.reset(3)
    cuts = 0
    for t in range(1, LENGTH):
        step = block.step(np.zeros((ENVS, 1, 1), np.int64))
        assert not step.terminated.any()
        for row, lane in enumerate(step.final_lanes):
            cuts += 1
            assert step.truncated[lane, 0]
            assert step.final_obs["obs"][row].tolist() == [t, 0]
            assert step.on_reset[lane, 0]
            assert step.obs["obs"][lane, 0].tolist() == [0, 1]
        assert [record.returns["agent"] for record in step.episodes] == [float(t)] * len(step.final_lanes)
    assert cuts == ENVS


def test_an_episode_that_ends_before_its_cut_is_left_alone() -> None:
    def make() -> Any:
        return ScriptedEnv([Episode([0, 1], [1]), Episode([0] * 31, [1] * 30)])

    block = GymBlock(make, 4, env_id="scripted")
    block.stagger_steps = 5
    block.reset(0)
    lengths = [r.length for _ in range(31) for r in block.step(np.zeros((4, 1, 1), np.int64)).episodes]
    assert lengths == [1] * 4 + [30] * 4


def test_blocks_that_cannot_refuse_it() -> None:
    with pytest.raises(ConfigError, match=r"actors.stagger_steps=5 .* Set it to 0"):
        make_block(EnvConfig(id="CartPole-v1", vectorization="native", envs_per_block=2), stagger_steps=5)
    with pytest.raises(ValueError, match=r"actors.stagger_steps must be >= 0, got -1"):
        ActorsConfig(stagger_steps=-1)
