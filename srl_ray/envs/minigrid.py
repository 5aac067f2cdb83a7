"""Minigrid's observations as numbers that a dense network can use."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBJECTS, COLORS, STATES = 11, 6, 4
"""Values of the three numbers of a cell: minigrid.core.constants, with room for the agent's direction as a state."""


class OneHotCells(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`image` becomes one-hot [rows × columns × 21] float32 (object, colour, state); the text `mission` is left out.

    A mission that says something (`GoToObject`, BabyAI) is lost: wrap such an environment yourself.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        inner: Any = env.observation_space
        rows, columns, _ = inner["image"].shape
        self._shape = (rows * columns * (OBJECTS + COLORS + STATES),)
        self._tables = [np.eye(n, dtype=np.float32) for n in (OBJECTS, COLORS, STATES)]
        self.observation_space = spaces.Dict(
            {"image": spaces.Box(0.0, 1.0, self._shape, np.float32), "direction": inner["direction"]}
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        cells = observation["image"]
        hot = [table[cells[..., k]] for k, table in enumerate(self._tables)]
        return {
            "image": np.concatenate(hot, axis=-1).reshape(self._shape),
            "direction": observation["direction"],
        }
