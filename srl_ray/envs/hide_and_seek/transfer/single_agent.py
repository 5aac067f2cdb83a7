"""What the transfer tasks have in common: one agent, no preparation, hide-and-seek's observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from srl_ray.core.errors import ConfigError
from srl_ray.core.types import Arrays, FieldSpec
from srl_ray.envs.hide_and_seek.config import BAR_X_SIZE, BAR_Y_SIZE, CUBE_SIZE, RAMP_SIZE, HideAndSeekConfig
from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.layout import (
    AGENT_FOOTPRINT,
    Counts,
    Layout,
    PlacementRule,
    Placer,
    draw_counts,
    draw_layout,
    uniform,
)
from srl_ray.envs.hide_and_seek.task import World
from srl_ray.envs.hide_and_seek.walls import FloorPlan

OTHER_ROWS = 5
PREPARATION_COLUMN = 9


@dataclass(kw_only=True, slots=True)
class SingleAgentConfig(HideAndSeekConfig):
    """One hider alone in a walled room; boxes and horizon are each task's own."""

    scenario: str = "empty"
    num_hiders: tuple[int, int] = (1, 1)
    num_seekers: tuple[int, int] = (0, 0)
    max_hiders: int = 1
    max_seekers: int = 0
    prep_fraction: float = 0.0
    num_elongated: tuple[int, int] | None = (0, 0)
    num_ramps: int | None = 0
    outer_walls_probability: float | None = 1.0

    @property
    def other_rows(self) -> int:
        """As many as in hide-and-seek with three against three; all empty."""
        return OTHER_ROWS


class SingleAgentTask:
    """A `Task` without rules; subclasses say what is rewarded.

    Attributes:
        config: Settings.
    """

    name = ""
    fields: Mapping[str, FieldSpec] = {}

    def __init__(self, num_envs: int, config: SingleAgentConfig) -> None:
        self.config = config
        self._nobody = np.zeros((num_envs, 1), bool)
        self._never = np.zeros(num_envs, bool)

    def draw(self, rng: np.random.Generator) -> Layout:
        return draw_layout(rng, self.config)

    def begin(self, world: World, ids: np.ndarray) -> None:
        """Nothing to forget."""

    def prepare(self, world: World, actions: np.ndarray) -> np.ndarray:
        return self._nobody

    def score(self, world: World) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def observe(self, world: World, obs: Arrays) -> None:
        obs["self"][..., PREPARATION_COLUMN] = 0.0

    def summary(self, world: World, env: int, returns: np.ndarray) -> dict[str, float]:
        return {}


# --- drawing worlds ---------------------------------------------------------------------------------------------------


class Thing(NamedTuple):
    """Something to place: its kind, full side lengths, and where it may go."""

    kind: str
    size: Sequence[float]
    rule: PlacementRule = uniform


AGENT = Thing("hiders", AGENT_FOOTPRINT)
CUBE = Thing("boxes", CUBE_SIZE)
RAMP = Thing("ramps", (RAMP_SIZE, RAMP_SIZE))
KINDS = ("hiders", "seekers", "boxes", "ramps")


def draw_layout_fields(
    dice: Dice, config: HideAndSeekConfig, draw: Callable[[], tuple[FloorPlan, Sequence[Thing]]]
) -> dict[str, Any]:
    """Draw plans until one has a place for everything; see `layout_fields`.

    Args:
        dice: Random numbers.
        config: Says when to give up.
        draw: Draws a plan and says what is to stand on it, in the order of placement.

    Raises:
        ConfigError: If `config.max_placement_tries` plans were not enough.
    """
    for _ in range(config.max_placement_tries):
        plan, things = draw()
        placer = Placer(dice, plan)
        if all(placer.place(tuple(thing.size), thing.rule) for thing in things):
            return layout_fields(plan, things, placer.centres)
    raise ConfigError(
        f"hide-and-seek found no place for {len(things)} things in {config.max_placement_tries} worlds; raise "
        "hide_and_seek.max_placement_tries"
    )


def layout_fields(plan: FloorPlan, things: Sequence[Thing], centres: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Keyword arguments of a `Layout` with the things at the given centres, and the centres of further kinds."""
    kinds = dict.fromkeys((*KINDS, *(thing.kind for thing in things)))
    places = {
        kind: np.array([centre for thing, centre in zip(things, centres, strict=True) if thing.kind == kind])
        for kind in kinds
    }
    return {
        "walls": plan.walls,
        "num_rooms": plan.num_rooms,
        "has_outer_walls": plan.has_outer_walls,
        "box_sizes": np.array([thing.size for thing in things if thing.kind == "boxes"]).reshape(-1, 3),
        "grid": plan.grid,
        **{kind: place.reshape(-1, 2) for kind, place in places.items()},
    }


def draw_boxes(dice: Dice, config: HideAndSeekConfig) -> list[Thing]:
    """The config's boxes: bars along x, bars along y, cubes."""
    counts: Counts = draw_counts(dice, config)
    sizes = [BAR_X_SIZE] * counts.bars_x + [BAR_Y_SIZE] * counts.bars_y + [CUBE_SIZE] * counts.cubes
    return [Thing("boxes", size) for size in sizes]
