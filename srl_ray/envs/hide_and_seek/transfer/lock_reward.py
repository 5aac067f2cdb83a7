"""Reward for locking boxes one after the other, with shaping towards the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.transfer.single_agent import SingleAgentConfig


@dataclass(kw_only=True, slots=True)
class LockConfig(SingleAgentConfig):
    """Attributes:
    lock_reward: For every box that becomes locked.
    unlock_penalty: For every box that becomes unlocked.
    shaping: Per metre nearer to the target.
    """

    horizon: int | None = 120
    lock_reward: float = 5.0
    unlock_penalty: float = 5.0
    shaping: float = 0.5


class LockReward:
    """Rewards every new lock, punishes every lock that is undone, and pays for approaching the target.

    The target is the first box, by index, that is not locked; once all are, it is the given home. The agent is paid
    `shaping` per metre that it comes nearer. When a lock changes the target, it is paid for the whole distance that was
    left to the old one, and when something is unlocked, it pays for the distance to the new one. Distances are
    horizontal.

    Attributes:
        locked: bool [E, B]; after the last step.
        target: int [E]; B for home.
    """

    def __init__(self, num_envs: int, config: LockConfig) -> None:
        self._config = config
        self.locked = np.zeros((num_envs, config.box_range[1]), bool)
        self.target = np.zeros(num_envs, np.int64)
        self._distance = np.zeros(num_envs)

    def begin(self, world: World, ids: np.ndarray) -> None:
        self.locked[ids] = False
        self.target[ids] = 0
        me, boxes = world.physics.pose[ids, 0, :2], world.physics.pose[ids, 1, :2]
        self._distance[ids] = np.linalg.norm(boxes - me, axis=1)

    def update(self, world: World, home: np.ndarray | None) -> np.ndarray:
        """float64 [E]; of the step that led here.

        Args:
            world: After the step.
            home: [E, 2]; None if nothing is left to do when all boxes are locked.
        """
        boxes = self.locked.shape[1]
        locked = world.locking.locked[:, :boxes]
        new = (locked & ~self.locked).sum(axis=1)
        undone = (self.locked & ~locked).sum(axis=1)
        target = np.where(locked.all(axis=1), boxes, (~locked).argmax(axis=1))
        me = world.physics.pose[:, 0, :2]
        places = np.concatenate([world.physics.pose[:, 1 : 1 + boxes, :2], (me if home is None else home)[:, None]], 1)
        distance = np.linalg.norm(np.take_along_axis(places, target[:, None, None], 1)[:, 0] - me, axis=1)
        change = np.where(undone > 0, -distance, np.where(new > 0, self._distance, 0.0))
        nearer = np.where(target == self.target, self._distance - distance, change)
        self.locked, self.target, self._distance = locked.copy(), target, distance
        pay = self._config
        reward: np.ndarray = pay.lock_reward * new - pay.unlock_penalty * undone + pay.shaping * nearer
        return reward
