"""Minigrid's preset: one-hot cells."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl_ray.core.errors import ConfigError
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_contract
from srl_ray.envs.factory import make_block
from srl_ray.envs.minigrid import COLORS, OBJECTS, STATES, OneHotCells

pytestmark = pytest.mark.unit


class Grid(gymnasium.Env):
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "direction": spaces.Discrete(4),
            "mission": spaces.Text(20),
        }
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        image = np.array([[[1, 0, 0], [2, 5, 0]], [[4, 4, 2], [10, 0, 3]]], np.uint8)
        return {"image": image, "direction": 3, "mission": "go"}, {}


def test_every_cell_is_three_ones():
    obs, _ = OneHotCells(Grid()).reset()
    width = OBJECTS + COLORS + STATES
    assert set(obs) == {"image", "direction"}
    assert np.flatnonzero(obs["image"]).tolist() == [
        *(1, 11, 17),
        *(width + 2, width + 16, width + 17),
        *(2 * width + 4, 2 * width + 15, 2 * width + 19),
        *(3 * width + 10, 3 * width + 11, 3 * width + 20),
    ]


def test_mission_is_refused_by_name_without_the_preset():
    with pytest.raises(ConfigError, match=r"'mission' is Text"):
        make_block(EnvConfig(factory=Grid), 1)


def test_minigrid_passes_the_check():
    minigrid = pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'srl_ray[minigrid]'")
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

    assert minigrid
    assert (len(OBJECT_TO_IDX), len(COLOR_TO_IDX)) == (OBJECTS, COLORS)
    assert len(STATE_TO_IDX) <= STATES
    config = EnvConfig(id="MiniGrid-DoorKey-5x5-v0", preset="minigrid", envs_per_block=2)
    check_contract(config)
    block = make_block(config)
    assert block.spec.group.obs["image"].shape == (7 * 7 * 21,)
