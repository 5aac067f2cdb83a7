"""Promises about how bodies move: forces, pushing, locking against pushes, ramps, standing on boxes."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.walls import Wall, outer_walls

pytestmark = pytest.mark.unit

RIGHT, FULL_RIGHT = np.pi / 2, (10, 5, 5, 0, 0)
"""Yaw that looks along +x; action that pushes along +x with full force."""


@pytest.fixture(scope="module", params=["faithful", "default", "fast"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(make_block(1, preset=request.param, prep_fraction=0.0, horizon=1000))


def test_no_action_moves_nobody(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(3.0, 3.0)])
    stage.step(10)
    before = stage.pose("hider_0").copy()
    stage.step(20)
    np.testing.assert_allclose(stage.pose("hider_0"), before, atol=1e-6)


@pytest.mark.parametrize("yaw", [0.0, 2.0])
def test_full_force_moves_along_world_x_at_the_published_speed(stage: Stage, yaw: float) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
    stage.place("hider_0", yaw=yaw)
    stage.step(10)
    stage.step(hider_0=FULL_RIGHT)
    first = {"faithful": 4.13, "default": 4.17, "fast": 4.06}[stage.block.config.preset]
    assert stage.velocity("hider_0")[0] == pytest.approx(first, abs=0.02)
    stage.step(4, hider_0=FULL_RIGHT)
    speeds = [stage.step(hider_0=FULL_RIGHT) and stage.velocity("hider_0")[0] for _ in range(8)]
    assert 7.9 < np.mean(speeds) < 8.2
    assert stage.velocity("hider_0")[1] == pytest.approx(0.0, abs=1e-6)
    assert stage.pose("hider_0")[3] == pytest.approx(yaw, abs=1e-6)


def test_top_speed_grows_with_the_force_beyond_friction(stage: Stage) -> None:
    """(F - 10 N) / 10 on each axis, a little more than that along both, where friction is shared."""
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
    for level in (1, 2, 3, 4, 5):
        stage.step(20, hider_0=(5 + level, 5, 5, 0, 0))
        speeds = [stage.step(hider_0=(5 + level, 5, 5, 0, 0)) and stage.velocity("hider_0")[0] for _ in range(8)]
        assert np.mean(speeds) == pytest.approx(1.8 * level - 1.0, abs=0.25)
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 1.0)])
    stage.step(20, hider_0=(10, 0, 5, 0, 0))
    velocity = stage.velocity("hider_0")
    assert velocity[:2] == pytest.approx((8.45, -8.45), abs=0.35)


def test_without_force_an_agent_stops_within_five_steps(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
    stage.step(20, hider_0=FULL_RIGHT)
    stage.step()
    assert stage.velocity("hider_0")[0] == pytest.approx(3.35, abs=0.15)
    stage.step(4)
    np.testing.assert_allclose(stage.velocity("hider_0"), 0.0, atol=1e-2)


def test_yaw_torque_turns_at_a_constant_rate(stage: Stage) -> None:
    for level, turn in ((10, 0.675), (6, 0.135), (0, -0.675)):
        stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
        stage.step(3, hider_0=(5, 5, level, 0, 0))
        before = stage.pose("hider_0")[3]
        stage.step(hider_0=(5, 5, level, 0, 0))
        assert stage.pose("hider_0")[3] - before == pytest.approx(turn, abs=0.01)


@pytest.mark.parametrize("yaw", [0.0, RIGHT])
def test_a_free_cube_can_be_pushed(stage: Stage, yaw: float) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(1.41, 1.0)])
    stage.place("hider_0", yaw=yaw)
    stage.step(15, hider_0=FULL_RIGHT)
    assert stage.pose("box_0")[0] > 4.41
    assert stage.pose("box_0")[2] == pytest.approx(0.25, abs=0.01)


def test_nothing_ever_tilts(stage: Stage) -> None:
    # a cube that overhangs its support by more than half would topple; an agent that runs into a bar's end would roll
    stage.start(
        hiders=[(1.0, 4.0)],
        seekers=[(5.0, 5.0)],
        boxes=[(3.0, 1.0), (3.3, 1.0), (1.9, 4.6)],
        box_sizes=[(0.5, 0.5, 0.5), (0.5, 0.5, 0.5), (0.15, 1.65, 0.5)],
        ramps=[(4.5, 4.0)],
    )
    stage.place("box_1", z=0.75)
    physics, yaws = stage.block.physics, []
    for _ in range(20):
        stage.step(hider_0=FULL_RIGHT)
        upwards = physics.batch.get_data(0).xmat[1 : 1 + physics.num_bodies, 8]  # cosine of each body's tilt
        np.testing.assert_allclose(upwards, 1.0, atol=1e-12)
        yaws.append(stage.pose("box_2")[3])
    assert np.abs(yaws).max() > 0.3
    np.testing.assert_allclose(stage.pose("box_1"), (3.3, 1.0, 0.75, 0.0), atol=1e-2)


@pytest.mark.parametrize("pushers", [1, 3])
def test_a_locked_cube_yields_millimetres_and_springs_back(stage: Stage, pushers: int) -> None:
    stage.start(hiders=[(1.0 - 0.31 * i, 1.0) for i in range(pushers)], seekers=[(5.0, 5.0)], boxes=[(1.41, 1.0)])
    names = [f"hider_{i}" for i in range(pushers)]
    for name in names:
        stage.place(name, yaw=RIGHT)
    stage.step(2, **{name: (5, 5, 5, 0, 1) for name in names})
    assert stage.is_locked("box_0")
    before = stage.pose("box_0").copy()
    furthest = 0.0
    for _ in range(10):
        stage.step(**{name: (10, 5, 5, 0, 1) for name in names})
        furthest = max(furthest, np.linalg.norm(stage.pose("box_0")[:3] - before[:3]))
    soft = 0.015 if stage.block.config.preset == "fast" else 0.01
    assert furthest < (soft if pushers == 1 else 0.025)
    stage.step(6, **{name: (0, 5, 5, 0, 1) for name in names})
    np.testing.assert_allclose(stage.pose("box_0"), before, atol=1e-3)


def test_a_locked_bar_does_not_turn_when_pushed_at_its_end(stage: Stage) -> None:
    turns = {}
    for lock in (0, 1):
        bar = {"boxes": [(1.3, 1.6)], "box_sizes": [(0.15, 1.65, 0.5)]}
        stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], **bar)
        stage.place("hider_0", yaw=RIGHT)
        stage.step(2, hider_0=(5, 5, 5, 0, lock))
        turns[lock] = max(abs(stage.step(hider_0=(10, 5, 5, 0, lock)) and stage.pose("box_0")[3]) for _ in range(6))
    assert turns[1] < 0.05 < 0.5 < turns[0]


def test_a_box_locked_in_the_air_stays_and_falls_when_unlocked(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(1.42, 1.0)])
    stage.place("hider_0", yaw=RIGHT)
    stage.place("box_0", z=0.45)
    stage.step(30, hider_0=(5, 5, 5, 0, 1))
    assert stage.is_locked("box_0")
    assert stage.pose("box_0")[2] == pytest.approx(0.45, abs=0.005)
    body = 1 + stage.block.physics.num_agents
    assert not stage.block.physics.batch.get_data(0).body_awake[body]
    stage.step(6)
    assert not stage.is_locked("box_0")
    assert stage.pose("box_0")[2] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("level", "is_enough"), [(2, False), (3, False), (4, True)])
def test_climbing_a_ramp_onto_a_locked_cube_needs_force_level_4(stage: Stage, level: int, is_enough: bool) -> None:
    # the slope rises towards -y, the cube stands behind its vertical face; a hider would unlock it from the top
    stage.start(hiders=[(2.55, 2.95)], seekers=[(3.0, 3.85)], boxes=[(3.0, 2.95)], ramps=[(3.0, 3.45)])
    stage.place("hider_0", yaw=RIGHT)
    stage.step(hider_0=(5, 5, 5, 0, 1))
    is_on_top = False
    for _ in range(15):
        stage.step(seeker_0=(5, 5 - level, 5, 0, 0), hider_0=(5, 5, 5, 0, 1))
        assert stage.is_locked("box_0")
        is_on_top |= abs(stage.pose("seeker_0")[1] - 2.95) < 0.25 and stage.pose("seeker_0")[2] > 0.63
    assert is_on_top == is_enough


def test_a_ramp_carries_over_a_low_wall_that_stops_everybody_else(stage: Stage) -> None:
    wall = [Wall(0, 10, 2, 27)]  # along x at y = 2.1
    stage.start(hiders=[(3.0, 3.2)], seekers=[(5.0, 5.0)], walls=wall)
    stage.step(15, hider_0=(5, 0, 5, 0, 0))
    assert 0.13 < stage.pose("hider_0")[1] - 2.15 < 0.2
    stage.start(hiders=[(3.0, 3.2)], seekers=[(5.0, 5.0)], ramps=[(3.0, 2.41)], walls=wall)
    stage.step(15, hider_0=(5, 0, 5, 0, 0))
    assert stage.pose("hider_0")[1] < 1.9


@pytest.mark.parametrize("scenario", ["randomwalls", "quadrant"])  # walls that hold and walls that are slippery
def test_a_ramp_does_not_carry_over_the_border(stage: Stage, scenario: str) -> None:
    walled = Stage(make_block(1, preset=stage.block.config.preset, scenario=scenario, prep_fraction=0.0))
    ahead, corner = ((3.0, 1.3), (3.0, 0.41)), ((0.8, 1.2), (0.42, 0.42))
    for (start, ramp), force in ((ahead, (5, 0, 5, 0, 0)), (ahead, (3, 0, 5, 0, 0)), (corner, (0, 0, 10, 0, 0))):
        walled.start(hiders=[start], seekers=[(5.0, 5.0)], ramps=[ramp], walls=outer_walls())
        heights = []
        for _ in range(25):
            walled.step(hider_0=force)
            heights.append(walled.pose("hider_0")[2])
            assert (walled.pose("hider_0")[:2] > 0.2).all()
        assert max(heights) < 1.0


def test_a_cube_can_be_dragged_through_a_door(stage: Stage) -> None:
    walls = [Wall(0, 10, 2, 13), Wall(0, 10, 16, 27)]  # at y = 2.1, door between x = 2.75 and 3.45
    stage.start(hiders=[(3.1, 2.6)], seekers=[(5.0, 5.0)], boxes=[(3.1, 3.05)], walls=walls)
    stage.place("hider_0", yaw=np.pi)
    stage.step(8, hider_0=(5, 2, 5, 1, 0))
    assert stage.held_by("hider_0") == "box_0"
    assert stage.pose("box_0")[1] < 1.8


def test_standing_on_a_cube_keeps_the_height_and_surfing_moves_both(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.1)], seekers=[(5.0, 5.0)], boxes=[(1.0, 1.0)])
    stage.place("hider_0", z=0.65)
    stage.step(3)
    for _ in range(20):
        stage.step()
        assert stage.pose("hider_0")[2] == pytest.approx(0.65, abs=0.01)
    before = stage.pose("box_0").copy()
    stage.step(10, hider_0=(10, 5, 5, 1, 0))
    assert stage.held_by("hider_0") == "box_0"
    assert stage.pose("box_0")[0] - before[0] > 3.0
    assert np.linalg.norm(stage.pose("hider_0")[:2] - stage.pose("box_0")[:2]) < 0.3


def test_toggling_a_lock_does_not_let_a_box_drift(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(1.42, 1.0)])
    stage.place("hider_0", yaw=RIGHT)
    before = stage.pose("box_0").copy()
    for step in range(240):
        stage.step(hider_0=(5, 5, 5, 0, step % 2))
    np.testing.assert_allclose(stage.pose("box_0"), before, atol=1e-2)
