"""Shelter construction: hide a cylinder behind boxes from everything around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from srl_ray.envs.hide_and_seek.config import AGENT_RADIUS, ARM_OFFSETS, ARM_RADIUS, CELL, CYLINDER_HEIGHT
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

DIAMETER = (1.5, 2.0)
MIDDLE = 0.7
"""Share of the floor's width in which the cylinder stands."""
RAYS_PER_SIDE = 25
RAY_INSET = 1.01 * CELL
"""From the floor's edge to where the rays begin, m."""


@dataclass(kw_only=True, slots=True)
class ShelterConfig(SingleAgentConfig):
    """An empty room, eight boxes of which three are bars, one cylinder of 1.5 to 2 m.

    Attributes:
        ray_cost: Per ray that reaches the cylinder, per step.
    """

    num_cylinders: ClassVar[int] = 1

    horizon: int | None = 240
    num_boxes: tuple[int, int] | None = (8, 8)
    num_elongated: tuple[int, int] | None = (3, 3)
    ray_cost: float = 0.001


class Shelter(SingleAgentTask):
    """Implements `Task`. A hundred rays start at the floor along the walls and aim at the cylinder's centre.

    Attributes:
        rays_through: int [E]; rays that reach the cylinder, after the last step.
    """

    name = "shelter"

    def __init__(self, num_envs: int, config: ShelterConfig) -> None:
        super().__init__(num_envs, config)
        self._ray_cost = config.ray_cost
        self._starts = ray_starts(config.max_floor_size)
        self._cylinders = np.zeros((num_envs, 3))
        self.rays_through = np.zeros(num_envs, np.int64)

    def draw(self, rng: np.random.Generator) -> Layout:
        dice = Dice(rng)
        diameter = dice.between(*DIAMETER)
        cylinder = Thing("cylinders", (diameter, diameter), middle(MIDDLE))
        things = [cylinder, AGENT, *draw_boxes(dice, self.config)]
        plan = empty_plan(self.config.grid_range[0])
        fields = draw_layout_fields(dice, self.config, lambda: (plan, things))
        x, y = fields.pop("cylinders")[0]
        return Layout(**fields, cylinders=np.array([[x, y, diameter / 2]]))

    def begin(self, world: World, ids: np.ndarray) -> None:
        for env in ids:
            layout = world.episodes.layouts[env]
            assert layout is not None
            self._cylinders[env] = layout.cylinders[0]

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        x, y, radius = self._cylinders.T[..., None]
        starts = np.broadcast_to(self._starts, (len(x), *self._starts.shape))  # [E, 100, 3]
        aim = np.stack([x, y, np.full_like(x, CYLINDER_HEIGHT / 2)], axis=2)
        rays = aim - starts
        arrival = 1 - radius / np.hypot(rays[..., 0], rays[..., 1])
        is_blocked = (first_hit_of_boxes(world, starts, rays) < arrival) | (
            first_hit_of_agent(world, starts, rays) < arrival
        )
        self.rays_through = (~is_blocked).sum(axis=1)
        return (-self._ray_cost * self.rays_through)[:, None].astype(np.float32), self._never

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """rays_through: of 100, at the end."""
        return {"rays_through": float(self.rays_through[env])}


def ray_starts(floor_size: float) -> np.ndarray:
    """[100, 3]; evenly spaced on the sides of a square along the walls, corners included, on the floor."""
    along = np.linspace(RAY_INSET, floor_size - RAY_INSET, RAYS_PER_SIDE)
    low, high = np.full(RAYS_PER_SIDE, RAY_INSET), np.full(RAYS_PER_SIDE, floor_size - RAY_INSET)
    x = np.concatenate([along, along, low, high])
    y = np.concatenate([low, high, along, along])
    return np.stack([x, y, np.zeros_like(x)], axis=1)


def first_hit_of_boxes(world: World, starts: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """[E, P]; the share of a ray [E, P, 3] from its start [E, P, 3] at which it enters a box, infinite for none."""
    boxes = world.episodes.num_boxes
    pose = world.physics.pose[:, 1 : 1 + boxes]
    half = world.episodes.half_sizes[:, :boxes, None]  # [E, B, 1, 3]
    cos, sin = np.cos(pose[..., 3])[..., None], np.sin(pose[..., 3])[..., None]
    near, far = np.zeros((*pose.shape[:2], rays.shape[1])), np.full((*pose.shape[:2], rays.shape[1]), np.inf)
    for axis, (offset, ray) in enumerate(
        zip(
            _turned(starts[:, None] - pose[:, :, None, :3], cos, sin),
            _turned(rays[:, None], cos, sin),
            strict=True,
        )
    ):
        per = 1 / np.where(np.abs(ray) < 1e-12, 1e-12, ray)
        first, second = (-half[..., axis] - offset) * per, (half[..., axis] - offset) * per
        np.maximum(near, np.minimum(first, second), out=near)
        np.minimum(far, np.maximum(first, second), out=far)
    hit: np.ndarray = np.where(near <= far, near, np.inf).min(axis=1)
    return hit


def first_hit_of_agent(world: World, starts: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """[E, P]; the same for the three spheres of the agent."""
    offsets = np.array([(0.0, 0.0, 0.0), *ARM_OFFSETS])
    radii = np.array([AGENT_RADIUS] + [ARM_RADIUS] * len(ARM_OFFSETS))[:, None]
    pose = world.physics.pose[:, 0]
    cos, sin = np.cos(pose[:, 3, None]), np.sin(pose[:, 3, None])
    centres = np.stack(_turned(offsets[None], cos, -sin), axis=2) + pose[:, None, :3]
    to_centre = centres[:, :, None] - starts[:, None]  # [E, 3 spheres, P, 3]
    along = (to_centre * rays[:, None]).sum(axis=3)
    length2 = (rays * rays).sum(axis=2)[:, None]
    root = along * along - length2 * ((to_centre * to_centre).sum(axis=3) - radii * radii)
    share = (along - np.sqrt(np.maximum(root, 0.0))) / length2
    hit: np.ndarray = np.where((root >= 0) & (along >= 0), share, np.inf).min(axis=1)
    return hit


def _turned(vectors: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The components of vectors [..., 3] in a frame with the given yaw."""
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    return x * cos + y * sin, y * cos - x * sin, np.broadcast_to(z, np.broadcast_shapes(z.shape, cos.shape))
