"""Blueprint construction: bring a cube to every marked site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.config import CUBE_SIZE
from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.layout import Layout, middle
from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.transfer.single_agent import (
    AGENT,
    SingleAgentConfig,
    SingleAgentTask,
    Thing,
    draw_boxes,
    draw_layout_fields,
)
from srl_ray.envs.hide_and_seek.walls import empty_plan

SITE_ROWS = 4
SITE_DIM = 15
SITE_SIZE = 0.5
MIDDLE = 0.85
"""Share of the floor's width in which sites lie."""
SHARPNESS = 1.5
"""Of the smooth minimum, 1 / m."""
TOLERANCE = 0.1
"""Distance within which a box's centre and corners count as in place, m."""
CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) / 2
"""Of a rectangle, as shares of its sides."""


@dataclass(kw_only=True, slots=True)
class BlueprintConfig(SingleAgentConfig):
    """An empty room, eight cubes, one to four sites of 0.5 m.

    Attributes:
        num_sites: (min, max), uniform per episode; at most 4.
        distance_cost: Per metre of mean distance from the sites' corners to the nearest box corners, per step.
        site_reward: Per site, when all are occupied; the episode ends then.
    """

    horizon: int | None = 150
    num_boxes: tuple[int, int] | None = (8, 8)
    num_sites: tuple[int, int] = (1, 4)
    distance_cost: float = 0.05
    site_reward: float = 3.0

    def __post_init__(self) -> None:
        SingleAgentConfig.__post_init__(self)
        self.num_sites = (int(self.num_sites[0]), int(self.num_sites[1]))
        if not 1 <= self.num_sites[0] <= self.num_sites[1] <= SITE_ROWS:
            raise ValueError(f"hide_and_seek.num_sites is {self.num_sites!r}; expected a pair (min, max) in 1..4")


class Blueprint(SingleAgentTask):
    """Implements `Task`; the sites are one more kind of entity, always visible.

    Attributes:
        points: [E, 4, 5, 3]; per site its centre and its corners at half a cube's height.
        exists: bool [E, 4]; sites of the episode.
    """

    name = "blueprint"
    fields: Mapping[str, FieldSpec] = {
        "sites": FieldSpec((SITE_ROWS, SITE_DIM), np.dtype(np.float32)),
        "mask_sites": FieldSpec((SITE_ROWS,), np.dtype(bool)),
        "exists_sites": FieldSpec((SITE_ROWS,), np.dtype(bool)),
    }

    def __init__(self, num_envs: int, config: BlueprintConfig) -> None:
        super().__init__(num_envs, config)
        self._num_sites = config.num_sites
        self._distance_cost, self._site_reward = config.distance_cost, config.site_reward
        self.points = np.zeros((num_envs, SITE_ROWS, 5, 3))
        self.exists = np.zeros((num_envs, SITE_ROWS), bool)
        self._is_complete = np.zeros(num_envs, bool)

    def draw(self, rng: np.random.Generator) -> Layout:
        dice = Dice(rng)
        low, high = self._num_sites
        sites = [Thing("sites", (SITE_SIZE, SITE_SIZE), middle(MIDDLE))] * dice.integer(low, high + 1)
        things = [AGENT, *draw_boxes(dice, self.config), *sites]
        plan = empty_plan(self.config.grid_range[0])
        return Layout(**draw_layout_fields(dice, self.config, lambda: (plan, things)))

    def begin(self, world: World, ids: np.ndarray) -> None:
        self.points[ids] = 0.0
        self.exists[ids] = False
        for env in ids:
            layout = world.episodes.layouts[env]
            assert layout is not None
            count = len(layout.sites)
            self.exists[env, :count] = True
            self.points[env, :count, :, :2] = layout.sites[:, None]
            self.points[env, :count, 1:, :2] += SITE_SIZE * CORNERS
            self.points[env, :count, :, 2] = CUBE_SIZE[2] / 2

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        centres, corners = box_points(world)
        to_corners = distances(self.points[:, :, 1:].reshape(len(self.points), -1, 3), corners)  # [E, 4 sites * 4, C]
        per_site = smooth_minimum(to_corners).reshape(*self.exists.shape, 4).mean(axis=2)
        count = self.exists.sum(axis=1)
        cost = (per_site * self.exists).sum(axis=1) / count
        to_centres = distances(self.points[:, :, 0], centres).min(axis=2)
        farthest = to_corners.min(axis=2).reshape(*self.exists.shape, 4).max(axis=2)
        is_occupied = (to_centres <= TOLERANCE) & (farthest <= TOLERANCE)
        self._is_complete = (is_occupied | ~self.exists).all(axis=1)
        reward = self._site_reward * count * self._is_complete - self._distance_cost * cost
        return reward[:, None].astype(np.float32), self._is_complete

    def observe(self, world: World, obs: Arrays) -> None:
        super().observe(world, obs)
        obs["sites"][:, 0] = self.points.reshape(len(self.points), SITE_ROWS, SITE_DIM)
        obs["mask_sites"][:, 0] = obs["exists_sites"][:, 0] = self.exists

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """is_complete: whether every site has its box; num_sites."""
        return {"is_complete": float(self._is_complete[env]), "num_sites": float(self.exists[env].sum())}


def box_points(world: World) -> tuple[np.ndarray, np.ndarray]:
    """Centres [E, B, 3] of the boxes, and [E, 4 B, 3] the middles of their upright edges."""
    boxes = world.episodes.num_boxes
    pose = world.physics.pose[:, 1 : 1 + boxes]
    offsets = 2 * CORNERS * world.episodes.half_sizes[:, :boxes, None, :2]  # [E, B, 4, 2]
    cos, sin = np.cos(pose[..., 3])[..., None], np.sin(pose[..., 3])[..., None]
    corners = np.repeat(pose[:, :, None, :3], 4, axis=2)
    corners[..., 0] += offsets[..., 0] * cos - offsets[..., 1] * sin
    corners[..., 1] += offsets[..., 0] * sin + offsets[..., 1] * cos
    return pose[..., :3], corners.reshape(len(pose), -1, 3)


def distances(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[E, P, Q]; between the points [E, P, 3] and [E, Q, 3]."""
    between: np.ndarray = np.linalg.norm(points[:, :, None] - others[:, None], axis=3)
    return between


def smooth_minimum(values: np.ndarray) -> np.ndarray:
    """Over the last axis: the mean, weighted by exp(-1.5 value)."""
    weights = np.exp(-SHARPNESS * values)
    mean: np.ndarray = (values * weights).sum(axis=-1) / weights.sum(axis=-1)
    return mean
