"""Sequential lock: lock four boxes in an order that is not shown, over walls that only ramps help across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.layout import Layout, rotating
from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.transfer.lock_reward import LockConfig, LockReward
from srl_ray.envs.hide_and_seek.transfer.single_agent import (
    AGENT,
    RAMP,
    SingleAgentTask,
    Thing,
    draw_boxes,
    draw_layout_fields,
)
from srl_ray.envs.hide_and_seek.walls import FloorPlan, three_rooms_plan


@dataclass(kw_only=True, slots=True)
class SequentialLockConfig(LockConfig):
    """Three rooms without doors, a ramp in each, four cubes.

    Attributes:
        all_locked_reward: Per step while all boxes are locked.
    """

    ramp_rows: ClassVar[int] = 3

    scenario: str = "var_tri"
    door_cells: int = 0
    num_boxes: tuple[int, int] | None = (4, 4)
    num_ramps: int | None = 3
    all_locked_reward: float = 1.0


class SequentialLock(SingleAgentTask):
    """Of the unlocked boxes only the first, by index, can be locked; locked ones can be unlocked at any time."""

    name = "sequential_lock"

    def __init__(self, num_envs: int, config: SequentialLockConfig) -> None:
        super().__init__(num_envs, config)
        self._all_locked_reward = config.all_locked_reward
        self._locks = LockReward(num_envs, config)

    def draw(self, rng: np.random.Generator) -> Layout:
        dice, config = Dice(rng), self.config
        boxes = draw_boxes(dice, config)

        def draw_rooms() -> tuple[FloorPlan, Sequence[Thing]]:
            plan = three_rooms_plan(dice, grid=config.grid_range[0], door_cells=config.door_cells)
            ramps = [RAMP._replace(rule=rule) for rule in rotating(dice, plan.rooms, config.ramps)]
            return plan, [AGENT, *boxes, *ramps]

        return Layout(**draw_layout_fields(dice, config, draw_rooms))

    def begin(self, world: World, ids: np.ndarray) -> None:
        self._locks.begin(world, ids)

    def prepare(self, world: World, actions: np.ndarray) -> np.ndarray:
        boxes = self._locks.locked.shape[1]
        lockable = np.ones_like(world.locking.locked)
        lockable[:, :boxes] = self._locks.locked | (np.arange(boxes) == self._locks.target[:, None])
        world.locking.lockable = lockable[:, None]
        return self._nobody

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        reward = self._locks.update(world, home=None)
        reward += self._all_locked_reward * self._locks.locked.all(axis=1)
        return reward[:, None].astype(np.float32), self._never

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """num_box_lock: boxes locked at the end."""
        return {"num_box_lock": float(self._locks.locked[env].sum())}
