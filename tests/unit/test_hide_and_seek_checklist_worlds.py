"""Promises about the distribution of the random worlds, and that the simulations hold what was drawn."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import HideAndSeekConfig, make_block
from srl_ray.envs.hide_and_seek.layout import Layout, draw_layout

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def worlds() -> list[Layout]:
    rng, config = np.random.default_rng(0), HideAndSeekConfig()
    return [draw_layout(rng, config) for _ in range(4000)]


def chi_square(values: np.ndarray, low: int, high: int) -> float:
    """Of integers against the uniform distribution on low..high."""
    expected = len(values) / (high - low + 1)
    return float(((np.bincount(values - low, minlength=high - low + 1) - expected) ** 2).sum() / expected)


def test_bars_are_uniform_among_the_boxes_and_so_are_their_directions(worlds: list[Layout]) -> None:
    boxes = np.array([len(world.boxes) for world in worlds])
    bars = np.array([(world.box_sizes.max(axis=1) > 1).sum() for world in worlds])
    bars_x = np.array([(world.box_sizes[:, 0] > 1).sum() for world in worlds])
    of_boxes = sum(chi_square(bars[boxes == count], 3, count) for count in range(4, 10))
    assert of_boxes < 46.8  # 99.9 % with 1 + 2 + ... + 6 = 21 degrees of freedom
    of_bars = sum(chi_square(bars_x[bars == count], 0, count) for count in range(3, 10))
    assert of_bars < 76.1  # 99.9 % with 3 + 4 + ... + 9 = 42 degrees of freedom


def test_all_team_sizes_are_equally_likely(worlds: list[Layout]) -> None:
    sizes = np.array([3 * (len(world.hiders) - 1) + len(world.seekers) - 1 for world in worlds])
    assert chi_square(sizes, 0, 8) < 26.1  # 99.9 % with 8 degrees of freedom


def test_numbers_of_rooms_are_nearly_equally_likely(worlds: list[Layout]) -> None:
    """Nearly: worlds with more rooms fail more often to place everything and are drawn again, rooms included."""
    shares = np.bincount([world.num_rooms for world in worlds], minlength=5)[1:] / len(worlds)
    np.testing.assert_allclose(shares, 0.25, atol=0.04)


@pytest.mark.parametrize("scenario", ["randomwalls", "quadrant"])
def test_simulations_hold_the_drawn_walls_and_touch_nothing_at_the_start(scenario: str) -> None:
    block = make_block(8, scenario=scenario)
    block.reset(seed=0)
    block.reset(seed=1)  # over the worlds before
    physics = block.physics
    for env, layout in enumerate(block.episodes.layouts):
        assert layout is not None
        model = physics.batch.get_model(env)
        built = [model.geom(f"wall_{index}") for index in range(len(layout.walls))]
        heights = [2 * geom.size[2] for geom in built]
        np.testing.assert_allclose(heights, [4.0 if wall.is_outer else 0.5 for wall in layout.walls])
        np.testing.assert_allclose([geom.pos[2] for geom in built], np.array(heights) / 2)
        np.testing.assert_allclose([2 * geom.size[:2].min() for geom in built], 0.1)
        for wall, geom in zip(layout.walls, built, strict=True):
            assert geom.pos[1 - wall.axis] == pytest.approx((wall.line + 0.5) * 0.2)
            assert geom.pos[wall.axis] == pytest.approx((wall.start + wall.end + 1) * 0.1)
            assert 2 * geom.size[wall.axis] == pytest.approx((wall.end - wall.start) * 0.2 - 0.1)
        assert physics.batch.get_data(env).contact.dist.min() > -1e-3
