"""The random world of an episode: walls, team sizes, boxes, ramps, and where everything starts. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from srl_ray.core.errors import ConfigError
from srl_ray.envs.hide_and_seek import walls as walls_module
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
    TEAM_MATE_RADIUS,
    HideAndSeekConfig,
)

PLACEMENT_TRIES = 10
AGENT_FOOTPRINT = (2 * max(x for x, _, _ in ARM_OFFSETS) + 2 * ARM_RADIUS, 2 * AGENT_RADIUS)

PlacementRule = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""Generator and footprint in cells → int [PLACEMENT_TRIES, 2], candidates for the lower-left cell."""


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
    """

    walls: list[walls_module.Wall]
    num_rooms: int
    has_outer_walls: bool
    hiders: np.ndarray
    seekers: np.ndarray
    boxes: np.ndarray
    box_sizes: np.ndarray
    ramps: np.ndarray


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of each; drawn once per episode, so that worlds that are hard to place do not thin out the numbers."""

    hiders: int
    seekers: int
    bars_x: int
    bars_y: int
    cubes: int


def draw_layout(rng: np.random.Generator, config: HideAndSeekConfig, counts: Counts | None = None) -> Layout:
    """Draw whole worlds, walls included, until one has a place for everything.

    Args:
        rng: The environment's own generator.
        config: Settings.
        counts: Fixes the numbers that are otherwise drawn from the config's ranges.

    Raises:
        ConfigError: If `config.max_placement_tries` worlds were not enough.
    """
    counts = counts or draw_counts(rng, config)
    for _ in range(config.max_placement_tries):
        layout = _try_layout(rng, config, counts)
        if layout is not None:
            return layout
    raise ConfigError(
        f"hide-and-seek found no place for {counts} and {config.ramps} ramps in {config.max_placement_tries} worlds; "
        "ask for fewer objects or raise hide_and_seek.max_placement_tries"
    )


def draw_counts(rng: np.random.Generator, config: HideAndSeekConfig) -> Counts:
    hiders = int(rng.integers(config.num_hiders[0], config.num_hiders[1] + 1))
    seekers = int(rng.integers(config.num_seekers[0], config.num_seekers[1] + 1))
    boxes = int(rng.integers(config.box_range[0], config.box_range[1] + 1))
    fewest, most = (min(limit, boxes) for limit in config.elongated_range)
    bars = int(rng.integers(fewest, most + 1))
    bars_x = int(rng.integers(bars + 1))
    return Counts(hiders, seekers, bars_x, bars - bars_x, boxes - bars)


def _try_layout(rng: np.random.Generator, config: HideAndSeekConfig, counts: Counts) -> Layout | None:
    drawn = _draw_walls(rng, config)
    if drawn is None:
        return None
    walls, num_rooms, has_outer_walls = drawn
    grid = _Grid(rng, walls)
    is_quadrant = config.scenario == "quadrant"
    hiders_rule = inside_quadrant if is_quadrant and not config.are_hiders_anywhere else uniform
    seekers_rule = outside_quadrant if is_quadrant else uniform
    boxes_rule = inside_quadrant if is_quadrant else uniform
    is_close = config.rules.are_team_mates_close
    sizes = [BAR_X_SIZE] * counts.bars_x + [BAR_Y_SIZE] * counts.bars_y + [CUBE_SIZE] * counts.cubes
    ok = (
        grid.place_team(counts.hiders, hiders_rule, is_close)
        and grid.place_team(counts.seekers, seekers_rule, is_close)
        and all(grid.place(size[:2], boxes_rule) for size in sizes)
        and all(grid.place((RAMP_SIZE, RAMP_SIZE), uniform) for _ in range(config.ramps))
    )
    if not ok:
        return None
    ends = np.cumsum([counts.hiders, counts.seekers, len(sizes)])
    hiders, seekers, boxes, ramps = np.split(np.asarray(grid.centres).reshape(-1, 2), ends)
    box_sizes = np.asarray(sizes).reshape(-1, 3)
    return Layout(walls, num_rooms, has_outer_walls, hiders, seekers, boxes, box_sizes, ramps)


def _draw_walls(
    rng: np.random.Generator, config: HideAndSeekConfig
) -> tuple[list[walls_module.Wall], int, bool] | None:
    if config.scenario == "quadrant":
        return walls_module.quadrant_walls(rng, door_dropout=config.door_dropout), 1, True
    assert config.max_rooms is not None
    assert config.outer_walls_probability is not None
    num_rooms = int(rng.integers(1, config.max_rooms + 1))
    walls = walls_module.random_rooms(rng, num_rooms=num_rooms)
    if walls is None:
        return None
    has_outer_walls = bool(rng.random() < config.outer_walls_probability)
    built = [wall for wall in walls if wall.is_outer and has_outer_walls]
    for wall in walls:
        if not wall.is_outer:
            built += walls_module.cut_door(rng, wall)
    return built, num_rooms, has_outer_walls


class _Grid:
    """Occupied cells, and the objects placed so far."""

    def __init__(self, rng: np.random.Generator, walls: list[walls_module.Wall]) -> None:
        self.rng = rng
        self.occupied = walls_module.occupied_cells(walls)
        self.centres: list[tuple[float, float]] = []
        self.last_cell = (0, 0)

    def place_team(self, size: int, rule: PlacementRule, is_close: bool) -> bool:
        if size == 0:
            return True
        if not self.place(AGENT_FOOTPRINT, rule):
            return False
        anchor = self.last_cell

        def beside(rng: np.random.Generator, cells: tuple[int, int]) -> np.ndarray:
            reach = int(np.ceil(TEAM_MATE_RADIUS / CELL - 1e-9))
            low = [max(1, a - reach) for a in anchor]
            high = [min(GRID - 1, a + reach) for a in anchor]
            return rng.integers(low, high, size=(PLACEMENT_TRIES, 2))

        return all(self.place(AGENT_FOOTPRINT, beside if is_close else rule) for _ in range(size - 1))

    def place(self, size: tuple[float, ...], rule: PlacementRule) -> bool:
        cells = (_cells(size[0]), _cells(size[1]))
        for x, y in rule(self.rng, cells):
            covered = self.occupied[x : x + cells[0], y : y + cells[1]]
            if covered.any():
                continue
            covered[...] = True
            shift_x, shift_y = self.rng.random(2)  # shares of the slack between object and covered cells
            centre_x = x * CELL + shift_x * (cells[0] * CELL - size[0]) + size[0] / 2
            centre_y = y * CELL + shift_y * (cells[1] * CELL - size[1]) + size[1] / 2
            self.centres.append((centre_x, centre_y))
            self.last_cell = (int(x), int(y))
            return True
        return False


def uniform(rng: np.random.Generator, cells: tuple[int, int]) -> np.ndarray:
    return rng.integers(1, [GRID - cells[0] - 1, GRID - cells[1] - 1], size=(PLACEMENT_TRIES, 2))


def inside_quadrant(rng: np.random.Generator, cells: tuple[int, int]) -> np.ndarray:
    half = GRID // 2
    return rng.integers([half, 1], [GRID - cells[0] - 1, half - cells[1] - 1], size=(PLACEMENT_TRIES, 2))


def outside_quadrant(rng: np.random.Generator, cells: tuple[int, int]) -> np.ndarray:
    """One candidate in each of the three other quadrants, then one of the three."""
    half = GRID // 2
    low_x, high_x = (1, half - cells[0] - 1), (half, GRID - cells[0] - 1)
    low_y, high_y = (1, half - cells[1] - 1), (half, GRID - cells[1] - 1)
    corners = np.asarray([(low_x, low_y), (low_x, high_y), (high_x, high_y)])
    chosen = corners[rng.integers(3, size=PLACEMENT_TRIES)]
    return rng.integers(chosen[..., 0], chosen[..., 1])


def _cells(length: float) -> int:
    return int(np.ceil(length / CELL - 1e-9))
