"""Hide-and-seek itself: the rules that make a game of the world of boxes, ramps and walls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.config import HideAndSeekConfig
from srl_ray.envs.hide_and_seek.layout import Layout, draw_layout
from srl_ray.envs.hide_and_seek.reward import Reward
from srl_ray.envs.hide_and_seek.statistics import Statistics
from srl_ray.envs.hide_and_seek.task import World


class HideAndSeek:
    """Seekers are frozen while hiders prepare, then line of sight is rewarded. Implements `Task`.

    Attributes:
        reward: Of the step.
        statistics: Of the episode.
    """

    name = "hide_and_seek"
    fields: Mapping[str, FieldSpec] = {}

    def __init__(self, num_envs: int, config: HideAndSeekConfig) -> None:
        self.config = config
        self.reward = Reward(num_envs, config)
        self.statistics = Statistics(num_envs, config)
        self._never = np.zeros(num_envs, bool)

    def draw(self, rng: np.random.Generator) -> Layout:
        return draw_layout(rng, self.config)

    def begin(self, world: World, ids: np.ndarray) -> None:
        self.statistics.reset(ids, world.physics.pose)

    def prepare(self, world: World, actions: np.ndarray) -> np.ndarray:
        is_preparation = world.episodes.step < self.config.prep_steps
        frozen: np.ndarray = ~world.episodes.is_hider & is_preparation[:, None]
        return frozen

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        reward = self.reward.update(world.episodes, world.physics.pose, world.rays.sees)
        self.statistics.update(
            world.episodes,
            world.physics.pose,
            held=world.grabbing.held,
            locked=world.locking.locked,
            is_seen=self.reward.is_seen,
            is_agent_out=self.reward.is_agent_out,
        )
        return reward, self._never

    def observe(self, world: World, obs: Arrays) -> None:
        """The common fields say it all."""

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        return self.statistics.summary(
            env,
            world.episodes,
            world.physics.pose,
            locked=world.locking.locked,
            owner=world.locking.owner,
            returns=returns,
        )
