"""Walls on the 30 x 30 grid: the random-rooms generator, the quadrant, and the doors (Baker et al. 2019, app. A)."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from srl_ray.envs.hide_and_seek.config import (
    CELL,
    DOOR_CELLS,
    GRID,
    INNER_WALL_HEIGHT,
    OUTER_WALL_HEIGHT,
    WALL_THICKNESS,
)

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


def outer_walls() -> list[Wall]:
    last = GRID - 1
    return [Wall(axis, line, 0, last, is_outer=True) for axis in (0, 1) for line in (0, last)]


def random_rooms(rng: np.random.Generator, *, num_rooms: int) -> list[Wall] | None:
    """Outer walls and `num_rooms - 1` inner walls without doors, or None after ten fruitless beginnings."""
    for _ in range(WALL_TRIES):
        walls = outer_walls()
        while len(walls) < num_rooms + 3:
            wall = _propose_wall(rng, walls)
            if wall is None:
                break
            _register(walls, wall)
            walls.append(wall)
        else:
            return walls
    return None


def _propose_wall(rng: np.random.Generator, walls: list[Wall]) -> Wall | None:
    for _ in range(WALL_TRIES):
        first = walls[int(rng.integers(len(walls)))]
        accepted = []
        for second in walls:
            if second is first or second.axis != first.axis or second.line == first.line:
                continue
            line = first.start + int(rng.integers(1, first.end - first.start))
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
            return accepted[int(rng.integers(len(accepted)))]
    return None


def _register(walls: list[Wall], new: Wall) -> None:
    for wall in walls:
        if wall.axis == new.axis:
            continue
        for own, other in ((wall, new), (new, wall)):
            for cell, side in ((other.start, UPPER), (other.end, LOWER)):
                if own.touches(other.line, cell) and other.line not in own.junctions[side]:
                    insort(own.junctions[side], other.line)


def quadrant_walls(rng: np.random.Generator, *, door_dropout: float) -> list[Wall]:
    """The border and the two walls around the room x >= 15, y <= 15, with their doors already cut."""
    half, last = GRID // 2, GRID - 1
    inner = [Wall(1, half, 0, half), Wall(0, half, half, last)]
    solid = int(rng.integers(2)) if rng.random() < door_dropout else -1
    walls = outer_walls()
    for index, wall in enumerate(inner):
        walls += [wall] if index == solid else cut_door(rng, wall)
    return walls


def cut_door(rng: np.random.Generator, wall: Wall) -> list[Wall]:
    """The pieces of an inner wall around one door, which never spans a junction; the wall itself if it is too short."""
    cells = sorted({*wall.junctions[LOWER], *wall.junctions[UPPER]})
    stretches = [(a, b) for a, b in pairwise(cells) if b - a >= DOOR_CELLS + 1]
    if not stretches:
        return [wall]
    begin, end = stretches[int(rng.integers(len(stretches)))]
    door = begin + 1 + int(rng.integers(end - begin - DOOR_CELLS))
    pieces = ((wall.start, door - 1), (door + DOOR_CELLS, wall.end))
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


def wall_height(wall: Wall) -> float:
    return OUTER_WALL_HEIGHT if wall.is_outer else INNER_WALL_HEIGHT


def occupied_cells(walls: list[Wall]) -> np.ndarray:
    """bool [GRID, GRID], indexed [x, y]: cells that hold a wall."""
    grid = np.zeros((GRID, GRID), bool)
    for wall in walls:
        along = slice(wall.start, wall.end + 1)
        if wall.axis == 0:
            grid[along, wall.line] = True
        else:
            grid[wall.line, along] = True
    return grid
