"""What the agents of a block are there for: the seam between the world and the games that are played in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.episode import Episodes
from srl_ray.envs.hide_and_seek.grab_lock import Grabbing, Locking
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.physics import Physics
from srl_ray.envs.hide_and_seek.rays import RayCaster


@dataclass(frozen=True, slots=True)
class World:
    """The state of a block's simulations, which a task reads.

    Attributes:
        episodes: Clocks, teams, who and what takes part.
        physics: Poses and velocities.
        rays: Who sees what.
        grabbing: Who holds what.
        locking: What is locked by whom.
    """

    episodes: Episodes
    physics: Physics
    rays: RayCaster
    grabbing: Grabbing
    locking: Locking


class Task(Protocol):
    """The rules of one game, for all E simulations of a block at once.

    An episode is `draw`, `begin`, then per step `prepare`, `score` and `observe`, and at its end `summary`. A block
    ends episodes at the horizon by itself.

    Attributes:
        name: Name of the block's environments.
        fields: Observation fields beyond the common ones.
    """

    name: str
    fields: Mapping[str, FieldSpec]

    def draw(self, rng: np.random.Generator) -> Layout:
        """The world of one new episode."""
        ...

    def begin(self, world: World, ids: np.ndarray) -> None:
        """Forget the last episode of the simulations `ids`, which stand in their new worlds (not yet seen by rays)."""
        ...

    def prepare(self, world: World, actions: np.ndarray) -> np.ndarray:
        """Before a step: whose action is void. Also the moment to say what is lockable, or to move things.

        Args:
            world: Before the step; `episodes.step` counts the steps done.
            actions: int64 [E, A, 5].

        Returns:
            bool [E, A]; agents that stand still, pull nothing and do not ask to lock.
        """
        ...

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        """After a step: float32 [E, A] rewards, and bool [E] episodes that the rules end here.

        Simulations that failed in this step already stand in a new world; what is said of them is ignored.
        """
        ...

    def observe(self, world: World, obs: Arrays) -> None:
        """Write `fields` into `obs` (field → [E, A, ...]) for the present moment."""
        ...

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """Numbers of the episode that ends in simulation `env` now, given its returns [A]."""
        ...
