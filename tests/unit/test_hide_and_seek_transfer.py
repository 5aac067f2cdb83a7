"""Promises of the transfer tasks: their worlds, their rewards, and that each can be completed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_contract
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.block import TASKS
from srl_ray.envs.hide_and_seek.config import BAR_X_SIZE, GRID
from srl_ray.envs.hide_and_seek.layout import Layout
from srl_ray.envs.hide_and_seek.physics import PARKED_GROUP
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.transfer import Blueprint, Counting, SequentialLock, Shelter, blueprint, counting
from srl_ray.envs.hide_and_seek.walls import FloorPlan, occupied_columns, outer_walls

pytestmark = pytest.mark.unit

TRANSFER = tuple(task for task in TASKS if task not in ("hide_and_seek", "foraging"))
IDLE = (5, 5, 5, 0, 0)
LOCK = (5, 5, 5, 0, 1)
HORIZONS = {
    "object_counting": 150,
    "lock_and_return": 120,
    "sequential_lock": 120,
    "blueprint": 150,
    "shelter": 240,
}


def towards(stage: Stage, body: str, goal: tuple[float, float], *, pull: int = 0, lock: int = 0) -> tuple[int, ...]:
    """Forces of a spring and damper that pull the hider until `body` is at the goal."""
    gap = np.asarray(goal) - stage.pose(body)[:2]
    x, y = np.clip(np.rint(12 * gap - 1.0 * stage.velocity(body)[:2]), -5, 5).astype(int)
    return 5 + int(x), 5 + int(y), 5, pull, lock


def layouts_of(task: str, seeds: int = 12) -> list[Layout]:
    block = make_block(seeds, task=task)
    block.reset(seed=5)
    return [layout for layout in block.episodes.layouts if layout is not None]


# --- every task -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TRANSFER)
def test_the_observation_is_that_of_hide_and_seek_with_empty_rows(task: str) -> None:
    theirs = make_block(1).spec.group.obs
    block = make_block(3, task=task)
    own = block.spec.group.obs
    more = {"sites", "mask_sites", "exists_sites"} if task == "blueprint" else set()
    assert set(own) == set(theirs) | more
    for name in theirs:
        if "ramps" not in name:
            assert own[name] == theirs[name], name
    assert block.spec.group.action == make_block(1).spec.group.action
    obs = block.reset(seed=0).obs
    for _ in range(2):
        for kind in ("others", *(() if task == "sequential_lock" else ("ramps",))):
            for field in (kind, f"mask_{kind}", f"exists_{kind}"):
                assert not obs[field].any(), field
        assert (obs["self"][..., 8] == 1).all()  # a hider
        assert (obs["self"][..., 9] == 0).all()  # no preparation
        obs = block.step(np.full((3, 1, 5), IDLE)).obs


@pytest.mark.parametrize("task", TRANSFER)
def test_episodes_are_cut_at_the_horizon_and_summarised(task: str) -> None:
    block = make_block(2, task=task)
    block.reset(seed=1)
    for _ in range(HORIZONS[task] - 1):
        answer = block.step(np.full((2, 1, 5), IDLE))
        assert not answer.truncated.any()
    answer = block.step(np.full((2, 1, 5), IDLE))
    assert answer.truncated.all()
    assert not answer.terminated.any()
    assert answer.on_reset.all()
    assert [record.length for record in answer.episodes] == [HORIZONS[task]] * 2
    assert all(record.summary for record in answer.episodes)


@pytest.mark.parametrize("task", TRANSFER)
def test_an_environment_plays_the_same_in_blocks_of_any_size(task: str) -> None:
    small, large = make_block(1, task=task), make_block(4, task=task)
    one, four = small.reset(seed=3), large.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(40):
        for name, field in one.obs.items():
            np.testing.assert_array_equal(field[0], four.obs[name][0])
        np.testing.assert_array_equal(one.reward[0], four.reward[0])
        actions = rng.integers(0, [11, 11, 11, 2, 2], size=(4, 1, 5))
        one, four = small.step(actions[:1]), large.step(actions)


@pytest.mark.parametrize("task", TRANSFER)
def test_a_task_keeps_the_contract_of_blocks(task: str) -> None:
    factory = "srl_ray.envs.hide_and_seek:make_block"
    check_contract(EnvConfig(factory=factory, envs_per_block=2, kwargs={"task": task, "horizon": 10}))


def test_an_unknown_task_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"task is 'shelters'; expected one of hide_and_seek, .*shelter"):
        make_block(1, task="shelters")


# --- lock and return --------------------------------------------------------------------------------------------------


def test_lock_and_return_has_six_rooms_and_one_cube() -> None:
    for layout in layouts_of("lock_and_return"):
        assert layout.num_rooms == 6
        assert layout.has_outer_walls
        assert layout.box_sizes.tolist() == [[0.5, 0.5, 0.5]]
        assert (len(layout.hiders), len(layout.seekers), len(layout.ramps)) == (1, 0, 0)


def test_locking_pays_5_and_the_way_that_was_left_and_unlocking_costs_both() -> None:
    stage = Stage(make_block(1, task="lock_and_return"))
    stage.start(hiders=[(2.0, 1.9)], boxes=[(2.0, 1.45)])
    stage.step(hider_0=LOCK)
    assert stage.is_locked("box_0")
    assert stage.reward("hider_0") == pytest.approx(5 + 0.5 * 0.45 + 1, abs=1e-3)  # + 1: still at home
    stage.step(hider_0=LOCK)
    assert stage.reward("hider_0") == pytest.approx(1, abs=1e-3)
    stage.step(hider_0=IDLE)
    assert stage.reward("hider_0") == pytest.approx(-5 - 0.5 * 0.45, abs=1e-3)


def test_each_metre_nearer_to_the_box_pays_a_half() -> None:
    stage = Stage(make_block(1, task="lock_and_return"))
    stage.start(hiders=[(2.0, 4.0)], boxes=[(2.0, 1.0)])
    total = 0.0
    for _ in range(5):
        stage.step(hider_0=(5, 2, 5, 0, 0))
        total += stage.reward("hider_0")
    way = 4.0 - stage.pose("hider_0")[1]
    assert way > 0.5
    assert total == pytest.approx(0.5 * way, abs=1e-5)


def test_a_script_locks_and_returns() -> None:
    stage = Stage(make_block(1, task="lock_and_return"))
    stage.start(hiders=[(3.0, 4.0)], boxes=[(3.0, 1.5)], walls=outer_walls())
    record = None
    while record is None:
        goal = (3.0, 4.0) if stage.is_locked("box_0") else (3.0, 1.9)
        stage.step(hider_0=towards(stage, "hider_0", goal, lock=1))
        record = next(iter(stage.answer.episodes), None)
    assert record.summary == {"num_box_lock": 1.0, "is_home": 1.0}
    assert record.returns["hider_0"] > 5 + 60


# --- sequential lock --------------------------------------------------------------------------------------------------


def test_sequential_lock_has_a_ramp_in_each_of_three_closed_rooms() -> None:
    for layout in layouts_of("sequential_lock"):
        assert (len(layout.boxes), len(layout.ramps)) == (4, 3)
        rooms = {room_of(layout, place) for place in layout.ramps}
        assert len(rooms) == 3


def room_of(layout: Layout, place: np.ndarray) -> tuple[int, int]:
    """The smallest cell that can be walked to from a place."""
    columns = occupied_columns(FloorPlan(GRID, layout.walls))
    frontier = [(int(place[0] / 0.2), int(place[1] / 0.2))]
    found = set(frontier)
    while frontier:
        x, y = frontier.pop()
        for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            is_inside = 0 <= cell[0] < GRID and 0 <= cell[1] < GRID
            if is_inside and cell not in found and not columns[cell[0]] >> cell[1] & 1:
                found.add(cell)
                frontier.append(cell)
    return min(found)


@pytest.fixture(scope="module")
def row() -> Stage:
    """Four cubes in a row below an agent that reaches one at a time."""
    return Stage(make_block(1, task="sequential_lock"))


def start_row(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.9)], boxes=[(1.0 + index, 1.45) for index in range(4)])


def stand_above(stage: Stage, index: int) -> None:
    stage.place("hider_0", x=1.0 + index)
    stage.step()  # sees the box now; asking for nothing unlocks it


def test_only_the_next_box_can_be_locked(row: Stage) -> None:
    start_row(row)
    stand_above(row, 1)
    row.step(hider_0=LOCK)
    assert not row.is_locked("box_1")
    for index in range(3):
        stand_above(row, index)
        row.step(hider_0=LOCK)
        assert row.is_locked(f"box_{index}")
        assert row.reward("hider_0") > 5


def test_a_locked_box_can_always_be_unlocked_and_is_then_the_next(row: Stage) -> None:
    start_row(row)
    for index in range(2):
        stand_above(row, index)
        row.step(hider_0=LOCK)
    row.place("hider_0", x=1.0)
    row.step(hider_0=LOCK)
    row.step()
    assert not row.is_locked("box_0")
    assert row.is_locked("box_1")
    assert row.reward("hider_0") == pytest.approx(-5 - 0.5 * 0.45, abs=1e-3)
    stand_above(row, 2)
    row.step(hider_0=LOCK)
    assert not row.is_locked("box_2")


def test_a_script_locks_all_four_and_is_paid_for_every_step_after() -> None:
    stage = Stage(make_block(1, task="sequential_lock", horizon=40))
    start_row(stage)
    task = stage.block.task
    assert isinstance(task, SequentialLock)
    for index in range(4):
        stand_above(stage, index)
        stage.step(hider_0=LOCK)
    stage.step(hider_0=LOCK)
    assert stage.reward("hider_0") == pytest.approx(1.0, abs=1e-6)
    record = None
    while record is None:
        stage.step(hider_0=LOCK)
        record = next(iter(stage.answer.episodes), None)
    assert record.summary == {"num_box_lock": 4.0}


# --- blueprint --------------------------------------------------------------------------------------------------------


def start_blueprint(stage: Stage, boxes: list[tuple[float, float]], sites: list[tuple[float, float]]) -> None:
    stage.start(hiders=[(5.5, 5.5)], boxes=boxes, sites=sites, walls=outer_walls())


def test_blueprint_has_eight_cubes_and_one_to_four_sites_in_the_middle() -> None:
    layouts = layouts_of("blueprint", 40)
    counts = set()
    for layout in layouts:
        assert layout.box_sizes.tolist() == [[0.5, 0.5, 0.5]] * 8
        assert (np.abs(layout.sites - 3.0) <= 2.35).all()  # of the 27 cells where a site can begin, the middle 22
        counts.add(len(layout.sites))
    assert counts == {1, 2, 3, 4}


def test_the_smooth_minimum_weighs_near_values_more() -> None:
    np.testing.assert_allclose(blueprint.smooth_minimum(np.array([[0.0, 1.0], [2.0, 2.0]])), [0.18242552, 2.0])


def test_a_blueprint_costs_the_distance_from_its_corners_to_box_corners() -> None:
    stage = Stage(make_block(1, task="blueprint"))
    start_blueprint(stage, [(1.0, 1.0)], [(3.0, 1.0), (4.0, 1.0)])
    stage.step()
    half = np.array([-0.25, 0.25])
    corners = np.array([(x, y) for x in half for y in half])
    cost = 0.0
    for site in ((3.0, 1.0), (4.0, 1.0)):
        for corner in corners + site:
            far = np.linalg.norm(corners + 1.0 - corner, axis=1)
            cost += (far * np.exp(-1.5 * far)).sum() / np.exp(-1.5 * far).sum() / 8
    assert stage.reward("hider_0") == pytest.approx(-0.05 * cost, abs=1e-5)


@pytest.mark.parametrize(
    ("shift", "yaw", "is_complete"),
    [(0.05, 0.0, True), (0.05, np.pi / 2, True), (0.12, 0.0, False), (0.0, np.pi / 4, False), (0.0, 0.2, True)],
)
def test_a_site_is_occupied_by_a_box_whose_centre_and_corners_are_within_10_cm(
    shift: float, yaw: float, is_complete: bool
) -> None:
    stage = Stage(make_block(1, task="blueprint"))
    start_blueprint(stage, [(3.0 + shift, 3.0)], [(3.0, 3.0)])
    stage.place("box_0", yaw=yaw)
    stage.step()
    assert bool(stage.answer.terminated[0, 0]) == is_complete
    assert (stage.reward("hider_0") > 2.9) == is_complete


def test_the_episode_ends_when_every_site_has_its_box() -> None:
    stage = Stage(make_block(1, task="blueprint"))
    start_blueprint(stage, [(2.0, 2.0), (4.0, 2.0), (3.5, 4.5)], [(2.0, 2.0), (4.0, 2.0), (3.0, 4.0)])
    stage.step()
    assert not stage.answer.terminated.any()
    start_blueprint(stage, [(2.0, 2.0), (4.0, 2.0), (3.0, 4.0)], [(2.0, 2.0), (4.0, 2.0), (3.0, 4.0)])
    stage.step()
    answer = stage.answer
    assert answer.terminated.all()
    assert not answer.truncated.any()
    assert answer.on_reset.all()
    assert answer.reward[0, 0] == pytest.approx(9.0, abs=0.1)
    np.testing.assert_allclose(answer.final_obs["sites"][0, 2, :3], [3.0, 4.0, 0.25])
    assert answer.final_obs["mask_sites"][0].tolist() == [True, True, True, False]
    assert answer.episodes[0].summary == {"is_complete": 1.0, "num_sites": 3.0}


def test_a_script_drags_a_cube_to_its_site() -> None:
    stage = Stage(make_block(1, task="blueprint"))
    start_blueprint(stage, [(2.0, 2.0)], [(2.0, 4.2)])
    stage.place("hider_0", x=2.0, y=2.45)
    record = None
    while record is None:
        stage.step(hider_0=towards(stage, "box_0", (2.0, 4.2), pull=1))
        record = next(iter(stage.answer.episodes), None)
    assert isinstance(stage.block.task, Blueprint)
    assert record.summary["is_complete"] == 1.0
    assert 5 < record.length < 100


# --- shelter ----------------------------------------------------------------------------------------------------------


def test_shelter_has_three_bars_five_cubes_and_a_cylinder_in_the_middle() -> None:
    for layout in layouts_of("shelter"):
        assert (layout.box_sizes.max(axis=1) == max(BAR_X_SIZE)).sum() == 3
        assert len(layout.boxes) == 8
        ((x, y, radius),) = layout.cylinders
        assert 0.75 <= radius <= 1.0
        assert max(abs(x - 3.0), abs(y - 3.0)) <= 1.6


def test_the_rays_that_reach_the_cylinder_are_those_of_mujoco() -> None:
    block = make_block(8, task="shelter")
    block.reset(seed=2)
    task = block.task
    assert isinstance(task, Shelter)
    rng = np.random.default_rng(0)
    cylinder = block.physics.model.geom("cylinder_0").id
    groups = np.ones(6, np.uint8)
    groups[PARKED_GROUP] = 0
    starts = np.broadcast_to(shelter_starts(), (8, 100, 3))
    centres = np.array([(*layout.cylinders[0, :2], 0.25) for layout in block.episodes.layouts if layout is not None])
    counts = set()
    for _ in range(60):
        answer = block.step(rng.integers(0, [11, 11, 11, 2, 2], size=(8, 1, 5)))
        _, geoms = block.physics.batch.ray(starts, centres[:, None] - starts, geomgroup=groups)
        expected = (geoms.reshape(8, 100) == cylinder).sum(axis=1)
        np.testing.assert_array_equal(task.rays_through, expected)
        np.testing.assert_allclose(answer.reward[:, 0], -0.001 * expected, atol=1e-7)
        counts |= set(expected.tolist())
    assert len(counts) > 10
    assert max(counts) < 100


def shelter_starts() -> np.ndarray:
    """On a square 0.202 m inside the floor's edge, 25 per side."""
    along = np.linspace(0.202, 5.798, 25)
    sides = [(a, b) for b in (0.202, 5.798) for a in along] + [(a, b) for a in (0.202, 5.798) for b in along]
    return np.array([(x, y, 0.0) for x, y in sides])


def test_a_bar_before_the_cylinder_stops_a_fan_of_rays_from_one_side() -> None:
    stage = Stage(make_block(1, task="shelter"))
    for bar_y, through in ((9.0, 100), (1.85, 81)):
        stage.start(hiders=[(9.0, 9.0)], boxes=[(3.0, bar_y)], box_sizes=[BAR_X_SIZE], cylinders=[(3.0, 3.0, 1.0)])
        stage.step()
        # the bar's inner edges, 1.075 m before the centre, stop what starts within 0.825 * 2.798 / 1.075 = 2.147 m
        assert stage.reward("hider_0") == pytest.approx(-0.001 * through, abs=1e-7)


def test_the_cylinder_hides_stops_lidar_and_stands_fast() -> None:
    stage = Stage(make_block(1, task="shelter"))
    stage.start(hiders=[(3.0, 5.0)], boxes=[(3.0, 1.0), (5.5, 1.0)], cylinders=[(3.0, 3.0, 0.9)])
    assert stage.observation("hider_0", "lidar")[[22, 23]] == pytest.approx(1.135, abs=0.05)
    assert not stage.sees("hider_0", "box_0")
    assert stage.sees("hider_0", "box_1")
    stage.step(20, hider_0=(5, 0, 5, 0, 0))
    assert stage.pose("hider_0")[1] == pytest.approx(3.0 + 0.9 + 0.15, abs=0.12)


# --- object counting --------------------------------------------------------------------------------------------------


def play_counting(directions: list[float], answer: Callable[[int], int]) -> tuple[list[float], Stage]:
    stage = Stage(make_block(1, task="object_counting"))
    stage.start(counting.make_layout(np.array(directions)))
    rewards = []
    for step in range(150):
        stage.step(hider_0=(answer(step), 9, 9, 1, 1))
        rewards.append(stage.reward("hider_0"))
        if step == 140:
            task = stage.block.task
            assert isinstance(task, Counting)
            x = np.array([stage.pose(f"box_{index}")[0] for index in range(6)])
            np.testing.assert_array_equal(np.sign(x - 3.0), directions)
            assert not any(stage.sees("hider_0", f"box_{index}") for index in range(6))
            assert task.left[0] == directions.count(1.0)
            assert stage.pose("hider_0")[:2] == pytest.approx((3.0, 5.6), abs=1e-6)
    return rewards, stage


@pytest.mark.parametrize("directions", [[1.0, -1.0, 1.0, 1.0, -1.0, 1.0], [-1.0] * 6])
def test_the_right_count_pays_one_per_step_once_all_boxes_have_gone(directions: list[float]) -> None:
    left = directions.count(1.0)
    rewards, stage = play_counting(directions, lambda step: left)
    first = rewards.index(1.0)
    assert 50 < first < 75
    assert rewards[:first] == [0.0] * first
    assert rewards[first:] == [1.0] * (150 - first)
    assert stage.answer.episodes[0].summary == {"num_left": float(left), "accuracy": 1.0}


def test_a_wrong_count_pays_nothing() -> None:
    rewards, stage = play_counting([1.0, -1.0, 1.0, 1.0, -1.0, 1.0], lambda step: 3)
    assert set(rewards) == {0.0}
    assert stage.answer.episodes[0].summary["accuracy"] == 0.0


def test_every_box_is_seen_before_it_goes() -> None:
    stage = Stage(make_block(1, task="object_counting"))
    stage.start(counting.make_layout(np.array([1.0, -1.0] * 3)))
    seen = set()
    for _ in range(70):
        stage.step()
        seen |= {index for index in range(6) if stage.sees("hider_0", f"box_{index}")}
    assert seen == set(range(6))


def test_the_sides_are_drawn_anew_and_evenly() -> None:
    layouts = layouts_of("object_counting", 200)
    lefts = [(layout.directions > 0).sum() for layout in layouts if isinstance(layout, counting.CountingLayout)]
    assert 2.7 < np.mean(lefts) < 3.3
    assert set(lefts) >= {1, 2, 3, 4, 5}
