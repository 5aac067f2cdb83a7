"""Floor plans on a grid of 0.2 m cells: the random-rooms generator, the fixed plans, and the doors.

Baker et al. 2019, appendix A, describe random rooms and the quadrant; the other plans are those of their released code.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from srl_ray.envs.hide_and_seek.config import (
    CELL,
    GRID,
    INNER_WALL_HEIGHT,
    OUTER_WALL_HEIGHT,
    WALL_THICKNESS,
)
from srl_ray.envs.hide_and_seek.dice import Dice

MIN_ROOM_CELLS = 6
WALL_TRIES = 10
LOWER, UPPER = 0, 1


@dataclass(slots=True)
class Wall:
    """A straight wall through the centres of grid cells.

    Attributes:
        axis: Direction along which it runs, 0 (x) or 1 (y).
        line: Cell index on the other axis.
        start: First cell on `axis`.
        end: Last cell on `axis`, larger than `start`.
        is_outer: Whether it is part of the floor's border.
        junctions: Sorted cells on `axis` where other walls end on this one, on its lower (left) and upper (right) side;
            both ends always count.
    """

    axis: int
    line: int
    start: int
    end: int
    is_outer: bool = False
    junctions: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        for side in self.junctions:
            for cell in (self.start, self.end):
                if cell not in side:
                    insort(side, cell)

    def touches(self, line: int, cell: int) -> bool:
        """Whether the point `cell` of a perpendicular wall's line lies on this wall."""
        return cell == self.line and self.start <= line <= self.end


class Room(NamedTuple):
    """The cells x_start <= x < x_stop, y_start <= y < y_stop between walls."""

    x_start: int
    x_stop: int
    y_start: int
    y_stop: int


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """What is built on a square floor before anything is placed on it.

    Attributes:
        grid: Cells along a side of the floor.
        walls: The built walls, doors cut.
        num_rooms: Rooms drawn.
        rooms: Their cells, in the fixed plans; random rooms are not listed.
    """

    grid: int
    walls: list[Wall]
    num_rooms: int = 1
    rooms: tuple[Room, ...] = ()

    @property
    def has_outer_walls(self) -> bool:
        return any(wall.is_outer for wall in self.walls)


def outer_walls(grid: int = GRID) -> list[Wall]:
    last = grid - 1
    return [Wall(axis, line, 0, last, is_outer=True) for axis in (0, 1) for line in (0, last)]


def empty_plan(grid: int) -> FloorPlan:
    """The border and nothing else."""
    return FloorPlan(grid, outer_walls(grid), rooms=(Room(1, grid - 1, 1, grid - 1),))


def half_plan(dice: Dice, *, grid: int, door_cells: int) -> FloorPlan:
    """A wall across the middle, at x = half the floor."""
    half, last = grid // 2, grid - 1
    walls = outer_walls(grid) + cut_door(dice, Wall(1, half, 0, last), door_cells)
    return FloorPlan(grid, walls, 2, (Room(1, half, 1, last), Room(half + 1, last, 1, last)))


def quadrant_plan(dice: Dice, *, grid: int, size: int, door_cells: int, door_dropout: float) -> FloorPlan:
    """A square room of `size` cells at large x and small y, between two walls.

    Args:
        dice: Random numbers.
        grid: Cells along a side of the floor.
        size: Cells between the border and the walls' lines.
        door_cells: Cells of each wall's door, 0 for none.
        door_dropout: Probability that one of the two walls has no door.
    """
    left, last = grid - size, grid - 1
    solid = dice.integer(0, 2) if dice.share() < door_dropout else -1
    walls = outer_walls(grid)
    for index, wall in enumerate((Wall(1, left, 0, size), Wall(0, size, left, last))):
        walls += cut_door(dice, wall, 0 if index == solid else door_cells)
    return FloorPlan(grid, walls, rooms=(Room(left + 1, last, 1, size),))


def three_rooms_plan(dice: Dice, *, grid: int, door_cells: int) -> FloorPlan:
    """A wall across the floor near its middle and a second one from there to the border: half a floor, two quarters.

    The half comes first among the rooms.
    """
    axis, is_upper = dice.integer(0, 2), dice.share() < 0.5
    line, cell = (int(grid * dice.between(0.4, 0.6)) for _ in range(2))
    last = grid - 1
    first = Wall(axis, line, 0, last)
    second = Wall(1 - axis, cell, line, last) if is_upper else Wall(1 - axis, cell, 0, line)
    walls = outer_walls(grid)
    _register([first], second)
    for wall in (first, second):
        walls += cut_door(dice, wall, door_cells)
    lower, upper = (1, line), (line + 1, last)
    near, far = (lower, upper) if is_upper else (upper, lower)
    rooms = []
    for along, across in (((1, last), near), ((1, cell), far), ((cell + 1, last), far)):
        x, y = (along, across) if axis == 0 else (across, along)
        rooms.append(Room(*x, *y))
    return FloorPlan(grid, walls, 3, tuple(rooms))


def random_rooms_plan(
    dice: Dice, *, grid: int, num_rooms: int, outer_walls_probability: float, door_cells: int
) -> FloorPlan | None:
    """`num_rooms` rooms with a door in every inner wall, the border walled or not; None if the generator gave up."""
    walls = random_rooms(dice, num_rooms=num_rooms, grid=grid)
    if walls is None:
        return None
    has_outer_walls = dice.share() < outer_walls_probability
    built = [wall for wall in walls if wall.is_outer and has_outer_walls]
    for wall in walls:
        if not wall.is_outer:
            built += cut_door(dice, wall, door_cells)
    return FloorPlan(grid, built, num_rooms)


def random_rooms(dice: Dice, *, num_rooms: int, grid: int = GRID) -> list[Wall] | None:
    """Outer walls and `num_rooms - 1` inner walls without doors, or None after ten fruitless beginnings."""
    for _ in range(WALL_TRIES):
        walls = outer_walls(grid)
        while len(walls) < num_rooms + 3:
            wall = _propose_wall(dice, walls)
            if wall is None:
                break
            _register(walls, wall)
            walls.append(wall)
        else:
            return walls
    return None


def _propose_wall(dice: Dice, walls: list[Wall]) -> Wall | None:
    for _ in range(WALL_TRIES):
        first = walls[dice.integer(0, len(walls))]
        accepted = []
        for second in walls:
            if second is first or second.axis != first.axis or second.line == first.line:
                continue
            line = first.start + dice.integer(1, first.end - first.start)
            start, end = sorted((first.line, second.line))
            is_on_second = second.start <= line <= second.end
            junctions = first.junctions[UPPER if second.line > first.line else LOWER]
            is_roomy = all(abs(line - cell) > MIN_ROOM_CELLS for cell in junctions)
            is_free = not any(
                other.axis == first.axis and start < other.line < end and other.start < line < other.end
                for other in walls
            )
            if is_on_second and is_roomy and is_free:
                accepted.append(Wall(1 - first.axis, line, start, end))
        if accepted:
            return accepted[dice.integer(0, len(accepted))]
    return None


def _register(walls: list[Wall], new: Wall) -> None:
    for wall in walls:
        if wall.axis == new.axis:
            continue
        for own, other in ((wall, new), (new, wall)):
            for cell, side in ((other.start, UPPER), (other.end, LOWER)):
                if own.touches(other.line, cell) and other.line not in own.junctions[side]:
                    insort(own.junctions[side], other.line)


def cut_door(dice: Dice, wall: Wall, door_cells: int) -> list[Wall]:
    """The pieces of an inner wall around one door, which never spans a junction.

    The wall itself if it is too short or `door_cells` is 0.
    """
    if door_cells == 0:
        return [wall]
    cells = sorted({*wall.junctions[LOWER], *wall.junctions[UPPER]})
    stretches = [(a, b) for a, b in pairwise(cells) if b - a >= door_cells + 1]
    if not stretches:
        return [wall]
    begin, end = stretches[dice.integer(0, len(stretches))]
    door = begin + 1 + dice.integer(0, end - begin - door_cells)
    pieces = ((wall.start, door - 1), (door + door_cells, wall.end))
    return [Wall(wall.axis, wall.line, a, b) for a, b in pieces if b > a]


def wall_rectangle(wall: Wall) -> tuple[float, float, float, float]:
    """(x_min, y_min, x_max, y_max) in metres.

    A wall begins half a thickness past the centre of its first cell and ends as much before that of its last, so that
    perpendicular walls abut without overlapping.
    """
    half = WALL_THICKNESS / 2
    low, high = (wall.start + 0.5) * CELL + half, (wall.end + 0.5) * CELL - half
    centre = (wall.line + 0.5) * CELL
    if wall.axis == 0:
        return low, centre - half, high, centre + half
    return centre - half, low, centre + half, high


def wall_shapes(walls: list[Wall]) -> tuple[np.ndarray, np.ndarray]:
    """Rectangles [W, 4] as of `wall_rectangle`, and heights [W], m."""
    rectangles = np.array([wall_rectangle(wall) for wall in walls]).reshape(-1, 4)
    return rectangles, np.array([wall_height(wall) for wall in walls])


def wall_height(wall: Wall) -> float:
    return OUTER_WALL_HEIGHT if wall.is_outer else INNER_WALL_HEIGHT


def occupied_columns(plan: FloorPlan) -> list[int]:
    """Per cell in x an integer whose bit y tells whether the cell (x, y) holds a wall."""
    columns = [0] * plan.grid
    for wall in plan.walls:
        if wall.axis == 0:
            for x in range(wall.start, wall.end + 1):
                columns[x] |= 1 << wall.line
        else:
            columns[wall.line] |= (1 << (wall.end + 1)) - (1 << wall.start)
    return columns
