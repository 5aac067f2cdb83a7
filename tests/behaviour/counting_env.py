"""An environment that counts along with `tests.behaviour.counting`. Imports no torch, as its worker must not."""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
from gymnasium import spaces

from srl_ray.envs.testing import CountingEnv

ACTIONS = 5


class CountsAlong(CountingEnv):
    """Raises unless the action tells the step of the episode; says at its end what its process holds.

    Args:
        path: File that gets one JSON line at `close`: torch (loaded), rss (bytes).
    """

    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, path: str) -> None:
        super().__init__((1, 30))
        self._path = path

    def step(self, action: Any) -> Any:
        if int(action) != (self._t + 1) % ACTIONS:
            raise ValueError(f"the state counted {int(action)} modulo {ACTIONS} at step {self._t}")
        return super().step(action)

    def close(self) -> None:
        facts = {"torch": "torch" in sys.modules, "rss": psutil.Process().memory_info().rss}
        with open(self._path, "a") as file:
            file.write(json.dumps(facts) + "\n")
