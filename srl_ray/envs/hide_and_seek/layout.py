"""The random world of an episode: walls, team sizes, boxes, ramps, and where everything starts. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from srl_ray.core.errors import ConfigError
from srl_ray.envs.hide_and_seek.config import (
    AGENT_RADIUS,
    ARM_OFFSETS,
    ARM_RADIUS,
    BAR_X_SIZE,
    BAR_Y_SIZE,
    CELL,
    CUBE_SIZE,
    GRID,
    RAMP_SIZE,
    HideAndSeekConfig,
)
from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.walls import (
    FloorPlan,
    Room,
    Wall,
    empty_plan,
    half_plan,
    occupied_columns,
    quadrant_plan,
    random_rooms_plan,
    three_rooms_plan,
)

PLACEMENT_TRIES = 10
AGENT_FOOTPRINT = (2 * max(x for x, _, _ in ARM_OFFSETS) + 2 * ARM_RADIUS, 2 * AGENT_RADIUS)

Cells = tuple[int, int]
PlacementRule = Callable[[Dice, int, Cells], Cells | None]
"""Dice, cells along the floor, footprint in cells → a candidate for the footprint's lower-left cell, None where
the rule leaves no space for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Everything random at the start of an episode. Everything starts at rest, on the floor, with yaw 0.

    Attributes:
        walls: The built walls, doors cut.
        num_rooms: Rooms drawn.
        has_outer_walls: Whether the border is walled.
        hiders: [h, 2] centres.
        seekers: [s, 2] centres.
        boxes: [b, 2] centres; bars along x first, then bars along y, then cubes.
        box_sizes: [b, 3] full side lengths.
        ramps: [r, 2] centres of the bounding cubes.
        grid: Cells along a side of the floor.
        cylinders: [c, 3] x, y and radius of upright cylinders that stand in the way.
        food: [f, 2] sites of food.
        sites: [s, 2] centres of construction sites.
    """

    walls: list[Wall]
    num_rooms: int
    has_outer_walls: bool
    hiders: np.ndarray
    seekers: np.ndarray
    boxes: np.ndarray
    box_sizes: np.ndarray
    ramps: np.ndarray
    grid: int = GRID
    cylinders: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    food: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    sites: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def floor_size(self) -> float:
        """Side of the floor, m."""
        return self.grid * CELL


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of each; drawn once per episode, so that worlds that are hard to place do not thin out the numbers."""

    hiders: int
    seekers: int
    bars_x: int
    bars_y: int
    cubes: int


def draw_layout(
    rng: np.random.Generator, config: HideAndSeekConfig, counts: Counts | None = None, *, num_food: int = 0
) -> Layout:
    """Draw whole worlds, walls included, until one has a place for everything.

    Args:
        rng: The environment's own generator.
        config: Settings.
        counts: Fixes the numbers that are otherwise drawn from the config's ranges.
        num_food: Sites of food.

    Raises:
        ConfigError: If `config.max_placement_tries` worlds were not enough.
    """
    dice = Dice(rng)
    counts = counts or draw_counts(dice, config)
    for _ in range(config.max_placement_tries):
        layout = _try_layout(dice, config, counts, num_food)
        if layout is not None:
            return layout
    raise ConfigError(
        f"hide-and-seek found no place for {counts} and {config.ramps} ramps in {config.max_placement_tries} worlds; "
        "ask for fewer objects or raise hide_and_seek.max_placement_tries"
    )


def draw_counts(dice: Dice, config: HideAndSeekConfig) -> Counts:
    hiders, seekers, boxes = (
        dice.integer(low, high + 1) for low, high in (config.num_hiders, config.num_seekers, config.box_range)
    )
    fewest, most = (min(limit, boxes) for limit in config.elongated_range)
    bars = dice.integer(fewest, most + 1)
    bars_x = dice.integer(0, bars + 1)
    return Counts(hiders, seekers, bars_x, bars - bars_x, boxes - bars)


def draw_plan(dice: Dice, config: HideAndSeekConfig) -> FloorPlan | None:
    """Floor and walls of the config's scenario; None if the random-rooms generator gave up."""
    low, high = config.grid_range
    grid = dice.integer(low, high + 1) if low < high else low
    doors = config.door_cells
    match config.scenario:
        case "empty":
            return empty_plan(grid)
        case "half":
            return half_plan(dice, grid=grid, door_cells=doors)
        case "quadrant":
            dropout = config.door_dropout
            return quadrant_plan(dice, grid=grid, size=grid // 2, door_cells=doors, door_dropout=dropout)
        case "var_quadrant":
            size, dropout = int(grid * dice.between(0.3, 0.6)), config.door_dropout
            return quadrant_plan(dice, grid=grid, size=size, door_cells=doors, door_dropout=dropout)
        case "var_tri":
            return three_rooms_plan(dice, grid=grid, door_cells=doors)
        case "randomwalls":
            assert config.outer_walls_probability is not None
            fewest, most = config.room_range
            return random_rooms_plan(
                dice,
                grid=grid,
                num_rooms=dice.integer(fewest, most + 1),
                outer_walls_probability=config.outer_walls_probability,
                door_cells=doors,
            )
    raise AssertionError(f"no floor plan for {config.scenario}")


def _try_layout(dice: Dice, config: HideAndSeekConfig, counts: Counts, num_food: int) -> Layout | None:
    plan = draw_plan(dice, config)
    if plan is None:
        return None
    placer = Placer(dice, plan)
    hiders_rule: PlacementRule = uniform
    seekers_rule: PlacementRule = uniform
    boxes_rule: PlacementRule = uniform
    if config.rules.is_quadrant:
        size = plan.rooms[0].y_stop
        boxes_rule, seekers_rule = inside_quadrant(size), outside_quadrant(size)
        hiders_rule = uniform if config.are_hiders_anywhere else boxes_rule
    reach = config.team_mate_reach
    sizes = [BAR_X_SIZE] * counts.bars_x + [BAR_Y_SIZE] * counts.bars_y + [CUBE_SIZE] * counts.cubes
    ok = (
        placer.place_team(counts.hiders, hiders_rule, reach)
        and placer.place_team(counts.seekers, seekers_rule, reach)
        and all(placer.place(size, boxes_rule) for size in sizes)
        and all(placer.place((RAMP_SIZE, RAMP_SIZE), uniform) for _ in range(config.ramps))
        and all(placer.place((CELL, CELL), uniform) for _ in range(num_food))
    )
    if not ok:
        return None
    centres = np.array(placer.centres)
    agents, things = counts.hiders + counts.seekers, counts.hiders + counts.seekers + len(sizes)
    return Layout(
        walls=plan.walls,
        num_rooms=plan.num_rooms,
        has_outer_walls=plan.has_outer_walls,
        hiders=centres[: counts.hiders],
        seekers=centres[counts.hiders : agents],
        boxes=centres[agents:things],
        box_sizes=np.array(sizes).reshape(-1, 3),
        ramps=centres[things : things + config.ramps],
        grid=plan.grid,
        food=centres[things + config.ramps :],
    )


class Placer:
    """Puts one thing after another on the free cells of a floor plan.

    Attributes:
        centres: (x, y) of what has been placed, in order, m.
    """

    def __init__(self, dice: Dice, plan: FloorPlan) -> None:
        self.centres: list[tuple[float, float]] = []
        self._dice = dice
        self._grid = plan.grid
        self._columns = occupied_columns(plan)
        self._last_cell = (0, 0)

    def place(self, size: tuple[float, ...], rule: PlacementRule) -> bool:
        """Place a thing of the full side lengths (x, y, ...); False after ten candidates that something occupies."""
        cells = (_cells(size[0]), _cells(size[1]))
        for _ in range(PLACEMENT_TRIES):
            candidate = rule(self._dice, self._grid, cells)
            if candidate is None:
                continue
            x, y = candidate
            covered = slice(x, x + cells[0])
            mask = ((1 << cells[1]) - 1) << y
            columns = self._columns[covered]
            if any(column & mask for column in columns):
                continue
            self._columns[covered] = [column | mask for column in columns]
            share = self._dice.share  # of the slack between the thing and the covered cells
            centre_x = x * CELL + share() * (cells[0] * CELL - size[0]) + size[0] / 2
            centre_y = y * CELL + share() * (cells[1] * CELL - size[1]) + size[1] / 2
            self.centres.append((centre_x, centre_y))
            self._last_cell = candidate
            return True
        return False

    def place_team(self, size: int, rule: PlacementRule, reach: int | None) -> bool:
        """Place agents, the others within `reach` cells of the first per axis if that is given."""
        for index in range(size):
            if not self.place(AGENT_FOOTPRINT, rule):
                return False
            if index == 0 and reach is not None:
                rule = beside(self._last_cell, reach)
        return True


# --- placement rules -------------------------------------------------------------------------------------------------


def uniform(dice: Dice, grid: int, cells: Cells) -> Cells | None:
    """Anywhere off the border."""
    return _draw(dice, (1, 1), (grid - cells[0] - 1, grid - cells[1] - 1))


def centre(dice: Dice, grid: int, cells: Cells) -> Cells | None:
    """In the middle of the floor."""
    return (grid - cells[0]) // 2, (grid - cells[1]) // 2


def middle(fraction: float) -> PlacementRule:
    """Uniform in the middle `fraction` of the floor."""

    def rule(dice: Dice, grid: int, cells: Cells) -> Cells | None:
        spare_x, spare_y = grid - cells[0], grid - cells[1]
        low = (int(spare_x * (1 - fraction) / 2 + fraction), int(spare_y * (1 - fraction) / 2 + fraction))
        stop = (int(spare_x * (1 + fraction) / 2 - fraction), int(spare_y * (1 + fraction) / 2 - fraction))
        return _draw(dice, low, stop)

    return rule


def inside(room: Room) -> PlacementRule:
    """Uniform in one room."""

    def rule(dice: Dice, grid: int, cells: Cells) -> Cells | None:
        stop = (room.x_stop - cells[0] + 1, room.y_stop - cells[1] + 1)
        return _draw(dice, (room.x_start, room.y_start), stop)

    return rule


def rotating(dice: Dice, rooms: Sequence[Room], count: int) -> list[PlacementRule]:
    """One rule for each of `count` things, so that the rooms' numbers of things differ by at most one.

    The order of the rooms is random.
    """
    order = sorted(rooms, key=lambda _: dice.share())
    return [inside(order[index % len(order)]) for index in range(count)]


def beside(cell: Cells, reach: int) -> PlacementRule:
    """Within `reach` cells of another thing's cell, per axis."""

    def rule(dice: Dice, grid: int, cells: Cells) -> Cells | None:
        x, y = cell
        low = (max(1, x - reach), max(1, y - reach))
        return _draw(dice, low, (min(grid - 1, x + reach), min(grid - 1, y + reach)))

    return rule


def inside_quadrant(size: int) -> PlacementRule:
    """In the room of `size` cells at large x and small y."""

    def rule(dice: Dice, grid: int, cells: Cells) -> Cells | None:
        return _draw(dice, (grid - size, 1), (grid - cells[0] - 1, size - cells[1] - 1))

    return rule


def outside_quadrant(size: int) -> PlacementRule:
    """In one of the three other parts of the floor, each as likely as the others."""

    def rule(dice: Dice, grid: int, cells: Cells) -> Cells | None:
        left, right = (1, grid - size - cells[0] - 1), (grid - size, grid - cells[0] - 1)
        lower, upper = (1, size - cells[1] - 1), (size, grid - cells[1] - 1)
        x, y = ((left, lower), (left, upper), (right, upper))[dice.integer(0, 3)]
        return _draw(dice, (x[0], y[0]), (x[1], y[1]))

    return rule


def _draw(dice: Dice, low: Cells, stop: Cells) -> Cells | None:
    if low[0] >= stop[0] or low[1] >= stop[1]:
        return None
    return dice.integer(low[0], stop[0]), dice.integer(low[1], stop[1])


def _cells(length: float) -> int:
    return ceil(length / CELL - 1e-9)
