"""Lock and return: find the box in a maze of rooms, lock it, and go back to where the episode began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.transfer.lock_reward import LockConfig, LockReward
from srl_ray.envs.hide_and_seek.transfer.single_agent import SingleAgentTask

HOME_RADIUS = 0.1
"""Horizontal distance within which the agent counts as back, m."""


@dataclass(kw_only=True, slots=True)
class LockAndReturnConfig(LockConfig):
    """Six random rooms and one cube. The published code's defaults are an unlock penalty of 7, a shaping of 0.25.

    Attributes:
        home_reward: Per step at the starting point while all boxes are locked.
    """

    scenario: str = "randomwalls"
    num_rooms: tuple[int, int] | None = (6, 6)
    num_boxes: tuple[int, int] | None = (1, 1)
    home_reward: float = 1.0


class LockAndReturn(SingleAgentTask):
    """Attributes:
    home: [E, 2]; where the episodes began.
    is_home: bool [E]; all boxes are locked and the agent is back.
    """

    name = "lock_and_return"

    def __init__(self, num_envs: int, config: LockAndReturnConfig) -> None:
        super().__init__(num_envs, config)
        self.home = np.zeros((num_envs, 2))
        self.is_home = np.zeros(num_envs, bool)
        self._home_reward = config.home_reward
        self._locks = LockReward(num_envs, config)

    def begin(self, world: World, ids: np.ndarray) -> None:
        self.home[ids] = world.physics.pose[ids, 0, :2]
        self.is_home[ids] = False
        self._locks.begin(world, ids)

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        reward = self._locks.update(world, self.home)
        way = world.physics.pose[:, 0, :2] - self.home
        self.is_home = self._locks.locked.all(axis=1) & (np.linalg.norm(way, axis=1) <= HOME_RADIUS)
        reward += self._home_reward * self.is_home
        return reward[:, None].astype(np.float32), self._never

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """num_box_lock: boxes locked at the end; is_home: whether the agent is back then, too."""
        return {"num_box_lock": float(self._locks.locked[env].sum()), "is_home": float(self.is_home[env])}
