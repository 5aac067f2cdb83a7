"""Promises about the random worlds: walls, doors, counts, placement."""

from __future__ import annotations

import numpy as np
import pytest
from flood import reached_from

from srl_ray.core.errors import ConfigError
from srl_ray.envs.hide_and_seek import HideAndSeekConfig, make_block
from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.layout import Counts, Layout, draw_layout
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.walls import (
    FloorPlan,
    Wall,
    cut_door,
    occupied_columns,
    outer_walls,
    random_rooms,
    wall_height,
    wall_rectangle,
)

pytestmark = pytest.mark.unit


def free_cells(plan: FloorPlan) -> np.ndarray:
    """bool [grid, grid], indexed [x, y]."""
    columns = np.array(occupied_columns(plan))
    return (columns[:, None] >> np.arange(plan.grid)) & 1 == 0


@pytest.fixture(scope="module")
def random_worlds() -> list[Layout]:
    rng = np.random.default_rng(0)
    config = HideAndSeekConfig()
    return [draw_layout(rng, config) for _ in range(10_000)]


@pytest.fixture(scope="module")
def quadrant_worlds() -> list[Layout]:
    rng = np.random.default_rng(0)
    config = HideAndSeekConfig(scenario="quadrant", num_hiders=(2, 2), num_seekers=(2, 2))
    return [draw_layout(rng, config) for _ in range(500)]


def test_walls_are_thin_and_enclose_the_published_interior(random_worlds: list[Layout]) -> None:
    rectangles = np.array([wall_rectangle(wall) for wall in outer_walls()])
    left, right = rectangles[rectangles[:, 0] < 1, 2].min(), rectangles[rectangles[:, 2] > 5, 0].max()
    assert (left, right) == (pytest.approx(0.15), pytest.approx(5.85))
    x_min, y_min, x_max, y_max = wall_rectangle(Wall(1, 0, 0, 29))
    assert ((x_min + x_max) / 2, (y_min + y_max) / 2) == (pytest.approx(0.1), pytest.approx(3.0))
    assert ((x_max - x_min) / 2, (y_max - y_min) / 2) == (pytest.approx(0.05), pytest.approx(2.85))
    for world in random_worlds[:200]:
        for wall in world.walls:
            x_min, y_min, x_max, y_max = wall_rectangle(wall)
            assert min(x_max - x_min, y_max - y_min) == pytest.approx(0.1)
            assert wall_height(wall) == (4.0 if wall.is_outer else 0.5)


def test_counts_are_in_range_and_uniform(random_worlds: list[Layout]) -> None:
    rooms = np.bincount([world.num_rooms for world in random_worlds], minlength=5)
    assert rooms[0] == 0
    assert len(rooms) == 5
    inner = [sum(not wall.is_outer for wall in world.walls) for world in random_worlds]
    assert max(inner) == 6
    assert max(len(world.walls) for world in random_worlds) <= 10
    boxes = np.array([len(world.boxes) for world in random_worlds])
    bars = np.array([int((world.box_sizes.max(axis=1) > 1).sum()) for world in random_worlds])
    assert boxes.min() == 3
    assert boxes.max() == 9
    assert (bars >= 3).all()
    assert (bars <= boxes).all()
    assert all(len(world.ramps) == 2 for world in random_worlds)
    observed = np.bincount(boxes, minlength=10)[3:]
    chi_square = ((observed - len(boxes) / 7) ** 2 / (len(boxes) / 7)).sum()
    assert chi_square < 22.5  # 99.9 % of a chi-square with 6 degrees of freedom
    assert np.mean([world.has_outer_walls for world in random_worlds]) == pytest.approx(0.5, abs=0.015)


def test_a_door_is_70_cm_wide_and_every_room_has_one() -> None:
    dice = Dice(np.random.default_rng(1))
    gaps = []
    for _ in range(300):
        for wall in random_rooms(dice, num_rooms=4) or []:
            pieces = [] if wall.is_outer else cut_door(dice, wall, 2)
            if len(pieces) == 2:
                first, second = (wall_rectangle(piece) for piece in pieces)
                gaps.append(second[wall.axis] - first[2 + wall.axis])
    assert len(gaps) > 500
    np.testing.assert_allclose(gaps, 0.7, atol=1e-9)


def test_every_room_can_be_reached_when_the_border_is_walled(random_worlds: list[Layout]) -> None:
    walled = [world for world in random_worlds if world.has_outer_walls][:400]
    for world in walled:
        free = free_cells(FloorPlan(world.grid, world.walls))
        first = np.argwhere(free)[0]
        reached = reached_from(free, (int(first[0]), int(first[1])))
        assert (reached == free).all()


def test_nothing_overlaps_at_the_start(random_worlds: list[Layout], quadrant_worlds: list[Layout]) -> None:
    for world in random_worlds[:500] + quadrant_worlds[:200]:
        agents = np.concatenate([world.hiders, world.seekers])
        centres = np.concatenate([agents, world.boxes, world.ramps])
        sizes = np.full((len(centres), 2), 0.5)
        sizes[: len(agents)] = (0.36, 0.3)
        sizes[len(agents) : len(agents) + len(world.boxes)] = world.box_sizes[:, :2]
        rectangles = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
        walls = np.array([wall_rectangle(wall) for wall in world.walls]).reshape(-1, 4)
        everything = np.concatenate([rectangles, walls])
        for index, one in enumerate(rectangles):
            others = everything[index + 1 :]
            is_apart = (others[:, :2] >= one[2:] - 1e-9) | (others[:, 2:] <= one[:2] + 1e-9)
            assert is_apart.any(axis=1).all()


def test_contacts_at_the_start_penetrate_less_than_a_millimetre() -> None:
    block = make_block(16)
    block.reset(seed=3)
    for sim in range(16):
        data = block.physics.batch.get_data(sim)
        assert data.contact.dist.min() > -1e-3


def test_team_mates_start_together_in_random_walls(random_worlds: list[Layout]) -> None:
    for world in random_worlds[:2000]:
        for team in (world.hiders, world.seekers):
            # at most 3 cells apart per axis, plus the 0.1 m of slack inside the covered cells
            assert (np.abs(team - team[0]) <= 0.7 + 1e-9).all()


def test_quadrant_puts_boxes_in_the_room_and_seekers_outside(quadrant_worlds: list[Layout]) -> None:
    for world in quadrant_worlds:
        assert world.has_outer_walls
        assert ((world.boxes[:, 0] >= 3.0) & (world.boxes[:, 1] <= 3.0)).all()
        assert not ((world.seekers[:, 0] > 3.1) & (world.seekers[:, 1] < 3.1)).any()
    hiders = np.concatenate([world.hiders for world in quadrant_worlds])
    ramps = np.concatenate([world.ramps for world in quadrant_worlds])
    for points in (hiders, ramps):
        quadrants = (points[:, 0] > 3.1).astype(int) * 2 + (points[:, 1] > 3.1)
        assert (np.bincount(quadrants, minlength=4) > 0).all()
    inner = np.array([sum(not wall.is_outer for wall in world.walls) for world in quadrant_worlds])
    assert inner.min() >= 2
    assert inner.max() == 4


def test_hiders_can_be_kept_in_the_room() -> None:
    rng = np.random.default_rng(0)
    config = HideAndSeekConfig(scenario="quadrant", are_hiders_anywhere=False)
    hiders = np.concatenate([draw_layout(rng, config).hiders for _ in range(50)])
    assert ((hiders[:, 0] > 3.0) & (hiders[:, 1] < 3.0)).all()


def test_the_same_seed_gives_the_same_world() -> None:
    first, second = (draw_layout(np.random.default_rng(5), HideAndSeekConfig()) for _ in range(2))
    assert first.walls == second.walls
    for name in ("hiders", "seekers", "boxes", "box_sizes", "ramps"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_world_that_cannot_be_placed_is_refused_in_words() -> None:
    config = HideAndSeekConfig(max_placement_tries=5)
    with pytest.raises(ConfigError, match=r"found no place for .*60.* in 5 worlds"):
        draw_layout(np.random.default_rng(0), config, Counts(3, 3, 0, 0, 60))


def test_everybody_starts_with_yaw_zero_looking_along_minus_y() -> None:
    block = make_block(8)
    block.reset(seed=0)
    assert (block.physics.pose[..., 3] == 0).all()
    stage = Stage(make_block(1))
    stage.start(hiders=[(3.0, 3.0)], seekers=[(3.0, 5.0)], boxes=[(3.0, 1.0), (1.0, 5.0)])
    assert stage.sees("hider_0", "box_0")
    assert not stage.sees("hider_0", "seeker_0")
    assert stage.sees("seeker_0", "hider_0")


def test_wrong_settings_are_refused_with_key_and_value() -> None:
    with pytest.raises(ValueError, match=r"hide_and_seek.scenario is 'maze'"):
        HideAndSeekConfig(scenario="maze")
    with pytest.raises(ValueError, match=r"hide_and_seek.max_hiders is 2"):
        HideAndSeekConfig(max_hiders=2)
    with pytest.raises(ValueError, match=r"hide_and_seek.num_boxes is \(3, 12\)"):
        HideAndSeekConfig(num_boxes=(3, 12))


def test_team_sizes_of_an_episode_differ_between_environments() -> None:
    sizes = {
        (len(world.hiders), len(world.seekers))
        for world in (draw_layout(np.random.default_rng(seed), HideAndSeekConfig()) for seed in range(200))
    }
    assert sizes == {(h, s) for h in (1, 2, 3) for s in (1, 2, 3)}
