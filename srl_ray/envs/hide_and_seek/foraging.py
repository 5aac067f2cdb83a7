"""Hide-and-seek with food: hiders also eat, where no seeker sees them. A variant that the published games leave unused.

Sites of food lie on the floor and stop nothing. The published code fixes who eats what; the numbers here are our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.config import VIEW_HALF_ANGLE, HideAndSeekConfig
from srl_ray.envs.hide_and_seek.game import HideAndSeek
from srl_ray.envs.hide_and_seek.layout import Layout, draw_layout
from srl_ray.envs.hide_and_seek.physics import PARKED_GROUP
from srl_ray.envs.hide_and_seek.task import World

FOOD_DIM = 4
FOOD_HEIGHT = 0.1
"""Above the floor, of the point that must be in view, m."""


@dataclass(kw_only=True, slots=True)
class ForagingConfig(HideAndSeekConfig):
    """Hide-and-seek with food.

    Attributes:
        num_food: Sites of an episode.
        food_health: Bites that a site holds.
        food_radius: From how far a hider eats, m.
        food_reward: Of a bite, shared by the hiders of the episode.
    """

    num_food: int = 4
    food_health: int = 20
    food_radius: float = 0.5
    food_reward: float = 1.0

    def __post_init__(self) -> None:
        HideAndSeekConfig.__post_init__(self)
        for name in ("num_food", "food_health", "food_radius"):
            if getattr(self, name) <= 0:
                raise ValueError(f"hide_and_seek.{name} is {getattr(self, name)!r}; expected more than 0")


class Foraging(HideAndSeek):
    """Food is one more kind of entity, "food" [F, 4]: x, y, z and the share of its health that is left.

    After the preparation, every hider that no seeker sees takes a bite per step of every site that it saw in the
    previous observation and is near to; what the hiders bite together is shared by all of them as a reward. Whoever is
    outside the legal area has no share.

    Attributes:
        points: [E, F, 3]; where the sites are, m.
        health: [E, F]; bites left.
        sees: bool [E, A, F]; sites with a bite left in the agents' view.
        eaten: [E]; bites in this episode.
    """

    def __init__(self, num_envs: int, config: ForagingConfig) -> None:
        super().__init__(num_envs, config)
        self._food, number, flag = config.num_food, np.dtype(np.float32), np.dtype(bool)
        self._health, self._radius, self._bite_reward = config.food_health, config.food_radius, config.food_reward
        self.fields = {
            "food": FieldSpec((self._food, FOOD_DIM), number),
            "mask_food": FieldSpec((self._food,), flag),
            "exists_food": FieldSpec((self._food,), flag),
        }
        self.points = np.full((num_envs, self._food, 3), FOOD_HEIGHT)
        self.health = np.zeros((num_envs, self._food))
        self.sees = np.zeros((num_envs, config.max_agents, self._food), bool)
        self.eaten = np.zeros(num_envs)

    def draw(self, rng: np.random.Generator) -> Layout:
        return draw_layout(rng, self.config, num_food=self._food)

    def begin(self, world: World, ids: np.ndarray) -> None:
        super().begin(world, ids)
        for env in ids:
            layout = world.episodes.layouts[env]
            assert layout is not None
            count = len(layout.food)
            self.points[env, :count, :2] = layout.food
            self.health[env] = np.where(np.arange(self._food) < count, self._health, 0)
        self.eaten[ids] = 0.0

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        reward, ends = super().score(world)
        episodes, hiders = world.episodes, int(world.episodes.is_hider.sum())
        agents = world.physics.pose[:, : len(episodes.team), :3]
        is_near = np.linalg.norm(self.points[:, None] - agents[:, :, None], axis=3) <= self._radius
        is_unseen = ~np.asarray(world.rays.sees[:, hiders:].any(axis=1))[:, : len(episodes.team)]
        is_playing = (episodes.step > self.config.prep_steps)[:, None]
        eats = is_near & self.sees & (is_unseen & is_playing & episodes.is_hider)[..., None]
        bites = np.minimum(eats.sum(axis=1), self.health)
        self.health -= bites
        self.eaten += bites.sum(axis=1)
        has_share = episodes.present & episodes.is_hider
        share = self._bite_reward * bites.sum(axis=1) / np.maximum(1, has_share.sum(axis=1))
        reward += share[:, None] * (has_share & ~self.reward.is_agent_out)
        return reward, ends

    def observe(self, world: World, obs: Arrays) -> None:
        self.sees = self._in_view(world)
        is_left = self.health > 0
        rows = np.concatenate([self.points, self.health[..., None] / self._health], axis=2) * is_left[..., None]
        obs["food"][...] = rows[:, None]
        obs["mask_food"][...] = self.sees
        obs["exists_food"][...] = is_left[:, None]

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        return super().summary(world, env, returns) | {"food_eaten": float(self.eaten[env])}

    def _in_view(self, world: World) -> np.ndarray:
        """bool [E, A, F]; by the same field of view as everything else, and MuJoCo's rays."""
        physics, agents = world.physics, len(world.episodes.team)
        pose = physics.pose[:, :agents]
        offset = self.points[:, None] - pose[:, :, None, :3]  # [E, A, F, 3]
        yaw = pose[:, :, 3, None]
        ahead = offset[..., 0] * np.sin(yaw) - offset[..., 1] * np.cos(yaw)
        is_in_cone = ahead >= np.hypot(offset[..., 0], offset[..., 1]) * np.cos(VIEW_HALF_ANGLE)
        length = np.linalg.norm(offset, axis=3)
        origins = np.repeat(pose[..., :3], self._food, axis=1)
        groups = np.ones(6, np.uint8)
        groups[PARKED_GROUP] = 0
        hit, _ = physics.batch.ray(
            origins,
            (offset / length[..., None]).reshape(origins.shape),
            geomgroup=groups,
            bodyexclude=1 + np.arange(agents).repeat(self._food),
        )
        is_free = (hit < 0) | (hit > length.reshape(hit.shape))
        exists = world.episodes.present[..., None] & (self.health > 0)[:, None]
        return is_in_cone & is_free.reshape(is_in_cone.shape) & exists
