"""Object counting: watch boxes disappear to both sides, and remember how many went to the left.

The task is described by Baker et al. 2019, but its code was not released. Ours, too, are: that boxes leave one by one,
nearest first; the walls; that the answer is given with the force along x, which does not move the pinned agent; and
the reward. For the published protocol (frozen policy, a classifier on its memory) `Counting.left` is the label.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from srl_ray.envs.hide_and_seek.config import GRID
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.transfer.single_agent import (
    AGENT,
    CUBE,
    SingleAgentConfig,
    SingleAgentTask,
    layout_fields,
)
from srl_ray.envs.hide_and_seek.walls import FloorPlan, Wall, outer_walls

NUM_BOXES = 6
AGENT_PLACE = (3.0, 5.6)
BOX_X = 3.0
BOX_Y = tuple(0.45 + 0.55 * (NUM_BOXES - 1 - index) for index in range(NUM_BOXES))
"""The agent looks along -y; the first box is the nearest."""
WALL_LINE, GAP = 18, (11, 18)
"""Cell of the wall between agent and boxes, and the cells where its gap begins and ends."""
HIDDEN_DISTANCE = 2.3
"""From the middle; boxes stop there, where the wall hides all of them, m."""
OUT_OF_GAP = 0.8
"""From the middle, m."""


@dataclass(kw_only=True, slots=True)
class CountingConfig(SingleAgentConfig):
    """A pinned agent before a gap in a wall, and six cubes behind it.

    Attributes:
        release_steps: Steps between the departures of two boxes.
        box_speed: Of a departing box at the beginning of every step, m/s; friction takes some of it.
        answer_reward: Per step with the right answer after all boxes have disappeared.
    """

    horizon: int | None = 150
    num_boxes: tuple[int, int] | None = (NUM_BOXES, NUM_BOXES)
    release_steps: int = 10
    box_speed: float = 2.5
    answer_reward: float = 1.0

    def __post_init__(self) -> None:
        SingleAgentConfig.__post_init__(self)
        if self.box_range != (NUM_BOXES, NUM_BOXES):
            raise ValueError(f"hide_and_seek.num_boxes is {self.num_boxes!r}; object counting has {NUM_BOXES}")


@dataclass(frozen=True, slots=True, eq=False)
class CountingLayout(Layout):
    """Attributes:
    directions: [6]; per box 1 (towards +x, the agent's left) or -1.
    """

    directions: np.ndarray = field(default_factory=lambda: np.ones(NUM_BOXES))


class Counting(SingleAgentTask):
    """Implements `Task`. The level of the force along x is the answer: 0 to 6 boxes went to the agent's left.

    Attributes:
        left: int [E]; the right answer.
        is_over: bool [E]; all boxes have disappeared.
    """

    name = "object_counting"

    def __init__(self, num_envs: int, config: CountingConfig) -> None:
        super().__init__(num_envs, config)
        self._pinned = np.ones((num_envs, 1), bool)
        self._release = np.arange(NUM_BOXES) * config.release_steps
        self._speed, self._answer_reward = config.box_speed, config.answer_reward
        self._directions = np.ones((num_envs, NUM_BOXES))
        self._answer = np.zeros(num_envs, np.int64)
        self._right, self._asked = np.zeros(num_envs), np.zeros(num_envs)
        self.left = np.zeros(num_envs, np.int64)
        self.is_over = np.zeros(num_envs, bool)

    def draw(self, rng: np.random.Generator) -> CountingLayout:
        return make_layout(rng.choice([-1.0, 1.0], NUM_BOXES))

    def begin(self, world: World, ids: np.ndarray) -> None:
        for env in ids:
            layout = world.episodes.layouts[env]
            assert isinstance(layout, CountingLayout)
            self._directions[env] = layout.directions
        self.left[ids] = (self._directions[ids] > 0).sum(axis=1)
        self.is_over[ids] = False
        self._right[ids] = self._asked[ids] = 0.0

    def prepare(self, world: World, actions: np.ndarray) -> np.ndarray:
        self._answer = actions[:, 0, 0].copy()
        boxes = slice(1, 1 + NUM_BOXES)
        distance = np.abs(world.physics.pose[:, boxes, 0] - BOX_X)
        is_leaving = (world.episodes.step[:, None] >= self._release) & (distance < HIDDEN_DISTANCE)
        speed = world.physics.velocity[:, boxes, 0]
        speed[is_leaving] = (self._speed * self._directions)[is_leaving]
        return self._pinned

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        boxes = slice(1, 1 + NUM_BOXES)
        is_out = (np.abs(world.physics.pose[:, boxes, 0] - BOX_X) > OUT_OF_GAP).all(axis=1)
        self.is_over = is_out & ~world.rays.sees[:, 0, boxes].any(axis=1)
        is_right = self.is_over & (self._answer == self.left)
        self._asked += self.is_over
        self._right += is_right
        return (self._answer_reward * is_right)[:, None].astype(np.float32), self._never

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        """num_left: boxes that went left; accuracy: share of the rewarded steps with the right answer."""
        accuracy = float(self._right[env]) / max(1.0, float(self._asked[env]))
        return {"num_left": float(self.left[env]), "accuracy": accuracy}


def make_layout(directions: np.ndarray) -> CountingLayout:
    """The one world of this task, with the boxes leaving in the given directions."""
    walls = [*outer_walls(), Wall(0, WALL_LINE, 0, GAP[0]), Wall(0, WALL_LINE, GAP[1], GRID - 1)]
    centres = [AGENT_PLACE, *((BOX_X, y) for y in BOX_Y)]
    fields = layout_fields(FloorPlan(GRID, walls), [AGENT] + [CUBE] * NUM_BOXES, centres)
    return CountingLayout(**fields, directions=np.asarray(directions, float))
