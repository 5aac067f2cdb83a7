"""Worlds and scenes of your own, for tests, pictures and lessons.

stage = Stage(make_block(1, prep_fraction=0.0))
stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(1.0, 0.6)])
stage.step(3, hider_0=(5, 10, 5, 1, 0))  # drag the box towards +y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from srl_ray.envs.block import BlockStep
from srl_ray.envs.hide_and_seek.block import NO_ACTION, HideAndSeekBlock
from srl_ray.envs.hide_and_seek.config import CUBE_SIZE
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.walls import Wall

Point = tuple[float, float]


class Stage:
    """One environment of a block, addressed by names: "hider_0", "seeker_2", "box_8", "ramp_1".

    Everybody without an action stands still. The other environments of the block stand still too.
    """

    def __init__(self, block: HideAndSeekBlock, env_index: int = 0, *, seed: int = 0) -> None:
        self.block = block
        self.env_index = env_index
        config = block.config
        names = list(block.spec.group.agent_ids)
        names += [f"box_{index}" for index in range(config.box_range[1])]
        names += [f"ramp_{index}" for index in range(config.ramps)]
        self._bodies = {name: index for index, name in enumerate(names)}
        self.answer = block.reset(seed)

    def start(self, layout: Layout | None = None, **world: Any) -> None:
        """Begin an episode in a layout, or in one that `make_layout` makes from keyword arguments."""
        self.block.start_in(self.env_index, make_layout(**world) if layout is None else layout)

    def place(
        self,
        name: str,
        *,
        x: float | None = None,
        y: float | None = None,
        z: float | None = None,
        yaw: float | None = None,
        is_noticed: bool = True,
    ) -> None:
        """Put a body elsewhere; do so right after `start`, before anything sleeps.

        With `is_noticed` false the sights stay those from before.
        """
        for axis, value in enumerate((x, y, z, yaw)):
            if value is not None:
                self.pose(name)[axis] = value
        if is_noticed:
            self.block.refresh()

    def step(self, count: int = 1, **actions: Sequence[int]) -> BlockStep:
        """Step with constant actions (x force, y force, yaw torque, pull, lock) by agent name; the last answer."""
        rows = np.tile(NO_ACTION, (self.block.spec.num_envs, self.block.spec.group.num_agents, 1))
        for name, action in actions.items():
            rows[self.env_index, self._bodies[name]] = action
        for _ in range(count):
            self.answer = self.block.step(rows)
        return self.answer

    def pose(self, name: str) -> np.ndarray:
        """Live x, y, z, yaw."""
        pose: np.ndarray = self.block.physics.pose[self.env_index, self._bodies[name]]
        return pose

    def velocity(self, name: str) -> np.ndarray:
        velocity: np.ndarray = self.block.physics.velocity[self.env_index, self._bodies[name]]
        return velocity

    def sees(self, viewer: str, target: str) -> bool:
        return bool(self.block.rays.sees[self.env_index, self._bodies[viewer], self._bodies[target]])

    def held_by(self, agent: str) -> str | None:
        held = int(self.block.grabbing.held[self.env_index, self._bodies[agent]])
        return None if held < 0 else list(self._bodies)[self.block.spec.group.num_agents + held]

    def is_locked(self, name: str) -> bool:
        return bool(self.block.locking.locked[self.env_index, self._object(name)])

    def owner_of(self, name: str) -> str | None:
        owner = int(self.block.locking.owner[self.env_index, self._object(name)])
        return None if owner < 0 else self.block.spec.group.agent_ids[owner]

    def observation(self, agent: str, field: str) -> np.ndarray:
        """A copy of one field of one agent's observation."""
        rows = self.block.observation.fields[field]
        return np.array(rows[self.env_index, self._bodies[agent]])

    def reward(self, agent: str) -> float:
        return float(self.answer.reward[self.env_index, self._bodies[agent]])

    def _object(self, name: str) -> int:
        return self._bodies[name] - self.block.spec.group.num_agents


def make_layout(
    *,
    hiders: Sequence[Point],
    seekers: Sequence[Point] = (),
    boxes: Sequence[Point] = (),
    box_sizes: Sequence[tuple[float, float, float]] | None = None,
    ramps: Sequence[Point] = (),
    walls: Sequence[Wall] = (),
    cylinders: Sequence[tuple[float, float, float]] = (),
    sites: Sequence[Point] = (),
) -> Layout:
    """A world with everything at the given places, on the floor, with yaw 0.

    Args:
        hiders: Centres, at least one.
        seekers: Centres, at least one in hide-and-seek.
        boxes: Centres.
        box_sizes: Full side lengths per box; cubes by default.
        ramps: Centres of the bounding cubes.
        walls: E.g. `outer_walls()` or `[Wall(axis, line, start, end)]` in grid cells.
        cylinders: x, y, radius; as many as the config has.
        sites: Centres.
    """
    sizes = [CUBE_SIZE] * len(boxes) if box_sizes is None else list(box_sizes)
    return Layout(
        walls=list(walls),
        num_rooms=1,
        has_outer_walls=any(wall.is_outer for wall in walls),
        hiders=_points(hiders),
        seekers=_points(seekers),
        boxes=_points(boxes),
        box_sizes=np.asarray(sizes, float).reshape(-1, 3),
        ramps=_points(ramps),
        cylinders=np.asarray(cylinders, float).reshape(-1, 3),
        sites=_points(sites),
    )


def _points(points: Sequence[Point]) -> np.ndarray:
    return np.asarray(points, float).reshape(-1, 2)
