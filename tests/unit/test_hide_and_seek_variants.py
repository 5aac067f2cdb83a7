"""Promises about the variants of the game: floor plans, placement, floor sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flood import reached_from

from srl_ray.envs.hide_and_seek import HideAndSeekBlock, HideAndSeekConfig, make_block
from srl_ray.envs.hide_and_seek.dice import Dice
from srl_ray.envs.hide_and_seek.foraging import Foraging, ForagingConfig
from srl_ray.envs.hide_and_seek.layout import Layout, Placer, centre, draw_layout, draw_plan, inside, middle, rotating
from srl_ray.envs.hide_and_seek.staging import Stage, make_layout
from srl_ray.envs.hide_and_seek.walls import (
    FloorPlan,
    Room,
    Wall,
    empty_plan,
    occupied_columns,
    outer_walls,
    three_rooms_plan,
)

pytestmark = pytest.mark.unit

RIGHT, LEFT, UP = np.pi / 2, -np.pi / 2, np.pi
PULL, LOCK, NOTHING = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1), (5, 5, 5, 0, 0)
FAR_AWAY = (5.5, 5.5)
FIXED_PLANS = ("empty", "half", "quadrant", "var_quadrant", "var_tri")


def dice(seed: int = 0) -> Dice:
    return Dice(np.random.default_rng(seed))


def plans(scenario: str, count: int = 200, **settings: object) -> list[FloorPlan]:
    config = HideAndSeekConfig(scenario=scenario, **settings)  # type: ignore[arg-type]
    source = dice()
    drawn = [draw_plan(source, config) for _ in range(count)]
    return [plan for plan in drawn if plan is not None]


def worlds(count: int, **settings: object) -> list[Layout]:
    config = HideAndSeekConfig(**settings)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    return [draw_layout(rng, config) for _ in range(count)]


def free_cells(plan: FloorPlan) -> np.ndarray:
    """bool [grid, grid], indexed [x, y]."""
    columns = np.array(occupied_columns(plan))
    return (columns[:, None] >> np.arange(plan.grid)) & 1 == 0


def inner(plan: FloorPlan) -> list[Wall]:
    return [wall for wall in plan.walls if not wall.is_outer]


# --- floor plans ------------------------------------------------------------------------------------------------------


def test_three_rooms_are_a_half_and_two_quarters_without_doors() -> None:
    source, corners, lines = dice(), set(), []
    for _ in range(300):
        plan = three_rooms_plan(source, grid=30, door_cells=0)
        first, second = inner(plan)
        lines.append((first.line, second.line))
        assert (first.start, first.end) == (0, 29)
        assert second.axis != first.axis
        assert first.line in (second.start, second.end)
        areas = np.zeros((30, 30), int)
        for number, room in enumerate(plan.rooms, start=1):
            areas[room.x_start : room.x_stop, room.y_start : room.y_stop] += number
        assert ((areas > 0) == free_cells(plan)).all()
        for number, room in enumerate(plan.rooms, start=1):
            alone = reached_from(free_cells(plan), (room.x_start, room.y_start))
            assert (alone == (areas == number)).all()
        spans = [(room.x_stop - room.x_start, room.y_stop - room.y_start) for room in plan.rooms]
        assert 28 in spans[0]
        assert 28 not in spans[1] + spans[2]
        corners.add((first.axis, second.start == 0))
    assert len(corners) == 4
    assert (min(min(lines)), max(max(lines))) == (12, 17)


@pytest.mark.parametrize(("scenario", "rooms"), [("half", 2), ("quadrant", 1), ("var_quadrant", 1), ("var_tri", 3)])
def test_doors_of_fixed_plans_connect_every_room(scenario: str, rooms: int) -> None:
    for plan in plans(scenario):
        assert len(plan.rooms) == plan.num_rooms == rooms
        free = free_cells(plan)
        assert (reached_from(free, (1, 28)) == free).all()


@pytest.mark.parametrize("scenario", FIXED_PLANS)
def test_fixed_plans_have_the_border_and_fit_the_walls_that_are_set_aside(scenario: str) -> None:
    config = HideAndSeekConfig(scenario=scenario)
    for plan in plans(scenario, 50):
        assert sum(wall.is_outer for wall in plan.walls) == 4
        assert len(plan.walls) <= config.max_walls


def test_the_empty_plan_has_no_inner_wall_and_the_half_plan_one_across_the_middle() -> None:
    assert inner(plans("empty", 1)[0]) == []
    for plan in plans("half", 100):
        built = ~free_cells(plan)[15]
        assert all((wall.axis, wall.line) == (1, 15) for wall in inner(plan))
        assert 2 <= (~built).sum() <= 3  # the door, and a single cell between it and the border
    (wall,) = inner(plans("half", 1, door_cells=0)[0])
    assert (wall.start, wall.end) == (0, 29)


def test_the_varying_quadrant_spans_3_to_6_tenths_of_the_floor() -> None:
    drawn = plans("var_quadrant", 1000)
    sizes = np.array([plan.rooms[0].y_stop for plan in drawn])
    assert (sizes.min(), sizes.max()) == (9, 17)
    assert np.bincount(sizes)[9:].min() > 70  # 1000 / 9 each
    for plan in drawn[:100]:
        size = plan.rooms[0].y_stop
        lines = {(wall.axis, wall.line) for wall in inner(plan)}
        assert lines == {(1, 30 - size), (0, size)}
        assert plan.rooms[0] == Room(31 - size, 29, 1, size)


def test_random_rooms_can_be_an_exact_number() -> None:
    config = HideAndSeekConfig(num_rooms=(6, 6), outer_walls_probability=1.0)
    for plan in plans("randomwalls", 30, num_rooms=(6, 6), outer_walls_probability=1.0):
        assert plan.num_rooms == 6
        assert len(plan.walls) <= config.max_walls == 14
        free = free_cells(plan)
        assert (reached_from(free, tuple(np.argwhere(free)[0])) == free).all()


# --- placement --------------------------------------------------------------------------------------------------------


def test_centre_and_middle_rules() -> None:
    source = dice()
    assert centre(source, 30, (3, 3)) == (13, 13)
    cells = np.array([middle(0.7)(source, 30, (3, 3)) for _ in range(2000)])
    assert (cells.min(), cells.max()) == (4, 21)  # int(27 * 0.15 + 0.7), int(27 * 0.85 - 0.7) - 1
    assert np.bincount(cells[:, 0])[4:].min() > 60  # 2000 / 18 each


def test_a_thing_in_a_room_keeps_inside_its_walls() -> None:
    source = dice()
    for _ in range(50):
        plan = three_rooms_plan(source, grid=30, door_cells=0)
        for room in plan.rooms:
            placer = Placer(source, plan)
            assert placer.place((0.5, 0.5), inside(room))
            x, y = placer.centres[0]
            assert room.x_start * 0.2 + 0.25 <= x <= room.x_stop * 0.2 - 0.25
            assert room.y_start * 0.2 + 0.25 <= y <= room.y_stop * 0.2 - 0.25
    placer = Placer(source, empty_plan(30))
    assert placer.place((0.5, 0.5), inside(Room(10, 13, 10, 13)))
    assert not placer.place((0.5, 0.5), inside(Room(10, 13, 10, 13)))  # occupied
    assert not placer.place((0.5, 0.5), inside(Room(20, 22, 10, 13)))  # too narrow


def test_rotating_over_rooms_spreads_things_evenly() -> None:
    source, rooms = dice(), (Room(1, 5, 1, 5), Room(7, 12, 1, 5), Room(15, 20, 1, 5))
    first = []
    for _ in range(100):
        rules = rotating(source, rooms, 4)
        found = [
            next(i for i, room in enumerate(rooms) if room.x_start <= rule(source, 30, (3, 3))[0] < room.x_stop)  # type: ignore[index]
            for rule in rules
        ]
        counts = np.bincount(found, minlength=3)
        assert (counts.sum(), counts.max() - counts.min()) == (4, 1)
        first.append(found[0])
    assert set(first) == {0, 1, 2}


def test_quadrant_rules_follow_the_varying_room() -> None:
    for world in worlds(100, scenario="var_quadrant"):
        size = max(wall.line for wall in world.walls if not wall.is_outer and wall.axis == 0) * 0.2
        assert (world.boxes[:, 0] > 6.0 - size).all()
        assert (world.boxes[:, 1] < size + 0.2).all()
        is_in_room = (world.seekers[:, 0] > 6.2 - size) & (world.seekers[:, 1] < size)
        assert not is_in_room.any()


# --- floor sizes ------------------------------------------------------------------------------------------------------


def test_larger_maps_scale_floor_team_radius_and_horizon() -> None:
    config = HideAndSeekConfig(map_scale=1.5)
    assert (config.grid_range, config.max_floor_size) == ((45, 45), pytest.approx(9.0))
    assert (config.team_mate_reach, HideAndSeekConfig().team_mate_reach) == (4, 3)
    assert (config.steps, config.prep_steps) == (360, 144)
    assert HideAndSeekConfig(map_scale=2.0, scenario="quadrant").steps == 160
    assert HideAndSeekConfig(map_scale=2.0, horizon=240).steps == 240
    for world in worlds(100, map_scale=1.5, num_hiders=(3, 3), num_rooms=(2, 4)):
        assert world.floor_size == pytest.approx(9.0)
        assert max(wall.end for wall in world.walls) <= 44
        assert (np.abs(world.hiders - world.hiders[0]) <= 0.9 + 1e-9).all()
    boxes = np.concatenate([world.boxes for world in worlds(100, map_scale=1.5)])
    assert boxes.max() > 8.0


def test_the_floor_can_be_drawn_per_episode() -> None:
    sizes = [world.grid for world in worlds(300, floor_size=(4.8, 6.0))]
    assert set(sizes) == set(range(24, 31))
    for world in worlds(50, floor_size=(4.0, 8.0), scenario="half"):
        things = np.concatenate([world.hiders, world.seekers, world.boxes, world.ramps])
        assert things.max() < world.floor_size
        assert max(wall.end for wall in world.walls) == world.grid - 1


@pytest.mark.parametrize("floor_size", [2.0, (6.0, 5.0), (3.0, 30.0)])
def test_impossible_floors_are_refused(floor_size: float | tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"hide_and_seek.floor_size is .*3 to 24 m"):
        HideAndSeekConfig(floor_size=floor_size)


def test_the_legal_area_is_in_proportion_to_the_floor() -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, scenario="empty", floor_size=(6.0, 9.0)))
    for grid, limit in ((30, 5.9), (45, 8.85)):
        for x, is_out in ((limit - 0.01, False), (limit + 0.01, True)):
            layout = make_layout(hiders=[(3.0, 3.0)], seekers=[(x, 5.0)], walls=[])
            stage.start(replace(layout, grid=grid))
            stage.step()
            assert (stage.reward("seeker_0") == -10.0) == is_out
            assert stage.block.snapshot(0).legal_area == pytest.approx((0.1 * grid / 30, 0.1 * grid / 30, limit, limit))
            assert stage.block.snapshot(0).floor_size == pytest.approx(grid * 0.2)


@pytest.mark.parametrize("scenario", FIXED_PLANS)
def test_every_floor_plan_can_be_played(scenario: str) -> None:
    block = make_block(2, scenario=scenario, horizon=6, map_scale=1.5)
    block.reset(seed=0)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(12):
        answer = block.step(rng.integers(0, [11, 11, 11, 2, 2], size=(2, 6, 5)))
        assert np.isfinite(answer.reward).all()
        assert np.isfinite(answer.obs["lidar"]).all()
        ended += len(answer.episodes)
    assert ended == 4


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("joint_zero_sum", (-1, -1, -1, 1, 1)),
        ("selfish", (-1, 1, 1, 1, -1)),
        ("joint_mean", (1 / 3, 1 / 3, 1 / 3, 0, 0)),
    ],
)
def test_rewards_when_one_of_two_seekers_sees_one_of_three_hiders(reward: str, expected: tuple[float, ...]) -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, reward=reward))
    stage.start(hiders=[(1.0, 4.0), (1.0, 5.5), (2.0, 5.5)], seekers=[(1.0, 5.0), (5.0, 1.0)])  # looking along -y
    stage.step()
    agents = ("hider_0", "hider_1", "hider_2", "seeker_0", "seeker_1")
    assert [stage.reward(agent) for agent in agents] == pytest.approx(list(expected))
    assert stage.reward("seeker_2") == 0.0


def test_the_penalty_replaces_every_kind_of_reward_and_the_preparation_pays_nothing() -> None:
    for reward in ("selfish", "joint_mean"):
        stage = Stage(make_block(1, prep_fraction=0.0, reward=reward))
        stage.start(hiders=[(12.5, 3.0), (3.0, 3.0)], seekers=[(3.0, 1.0)])
        stage.step()
        assert (stage.reward("hider_0"), stage.reward("hider_1")) == (-10.0, 1.0)
        prepared = Stage(make_block(1, reward=reward))
        prepared.start(hiders=[(3.0, 3.0)], seekers=[(3.0, 5.0)])
        prepared.step()
        assert prepared.reward("hider_0") == prepared.reward("seeker_0") == 0.0


# --- locks and grabs --------------------------------------------------------------------------------------------------


def around_a_cube(stage: Stage) -> None:
    """Two hiders left of a cube, a seeker right of it, all looking at it from 0.2 m."""
    stage.start(hiders=[(1.0, 0.85), (1.0, 1.22)], seekers=[(1.9, 1.0)], boxes=[(1.45, 1.0)])
    for agent, yaw in (("hider_0", RIGHT), ("hider_1", RIGHT), ("seeker_0", LEFT)):
        stage.place(agent, yaw=yaw)


def look_away(stage: Stage, *agents: str) -> None:
    for agent in agents:
        stage.place(agent, yaw=-stage.pose(agent)[3])


# what is left of a lock that hider_0 has set: after asking alone; a seeker in reach asks to unlock, the hider keeps
# asking to lock; the same without the hider in sight; a seeker locks what the hider wants free
@pytest.mark.parametrize(
    ("lock", "against_owner", "without_owner", "owner_unlocks"),
    [
        ("all_lock_team_specific", True, True, False),
        ("all_lock", False, False, False),
        ("any_lock", True, False, True),
        ("any_lock_specific", True, True, True),
    ],
)
def test_lock_types(lock: str, against_owner: bool, without_owner: bool, owner_unlocks: bool) -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, lock=lock))

    def locked_by_hider() -> None:
        around_a_cube(stage)
        look_away(stage, "hider_1", "seeker_0")
        stage.step(hider_0=LOCK)
        assert stage.owner_of("box_0") == "hider_0"
        assert stage.is_locked("box_0")
        look_away(stage, "hider_1", "seeker_0")

    locked_by_hider()
    look_away(stage, "hider_1")
    stage.step(hider_0=LOCK, seeker_0=NOTHING)
    assert stage.is_locked("box_0") == against_owner
    locked_by_hider()
    look_away(stage, "hider_0", "hider_1")
    stage.step(seeker_0=NOTHING)
    assert stage.is_locked("box_0") == without_owner
    locked_by_hider()
    look_away(stage, "hider_1")
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert stage.is_locked("box_0") == owner_unlocks
    new_owner = "seeker_0" if lock == "any_lock_specific" else "hider_0"
    assert stage.owner_of("box_0") == new_owner
    locked_by_hider()
    look_away(stage, "hider_0", "seeker_0")
    stage.step(hider_1=NOTHING)  # a team mate of the owner
    assert stage.is_locked("box_0") == (lock == "any_lock_specific")


@pytest.mark.parametrize(
    ("lock", "is_locked"),
    [("all_lock_team_specific", True), ("all_lock", False), ("any_lock", True), ("any_lock_specific", True)],
)
def test_disagreement_over_a_fresh_box(lock: str, is_locked: bool) -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, lock=lock))
    around_a_cube(stage)
    look_away(stage, "hider_1")
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert stage.is_locked("box_0") == is_locked
    assert stage.owner_of("box_0") == ("seeker_0" if is_locked else None)


def test_without_need_of_vision_reach_suffices() -> None:
    for setting, action in (("is_vision_needed_to_grab", PULL), ("is_vision_needed_to_lock", LOCK)):
        for is_needed in (True, False):
            stage = Stage(make_block(1, prep_fraction=0.0, **{setting: is_needed}))
            stage.start(hiders=[(1.0, 1.0)], seekers=[FAR_AWAY], boxes=[(1.45, 1.0), (1.0, 1.6)])
            stage.place("hider_0", yaw=LEFT)
            stage.step(hider_0=action)
            is_done = stage.held_by("hider_0") == "box_0" if action == PULL else stage.is_locked("box_0")
            assert is_done != is_needed
            assert not stage.is_locked("box_1")  # beyond 0.25 m


def test_an_exclusive_grab_goes_to_the_nearest_pair_first() -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, is_grab_exclusive=True))
    # hider_0 is 0.22 m from box_0 and 0.24 m from box_1, hider_1 is 0.20 m from box_0: it takes it, hider_0 the other
    stage.start(hiders=[(1.0, 1.0), (1.92, 1.0)], seekers=[FAR_AWAY], boxes=[(1.47, 1.0), (1.0, 0.51)])
    stage.place("hider_0", yaw=RIGHT / 2)
    stage.place("hider_1", yaw=LEFT)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") == "box_0"
    stage.step(hider_0=PULL, hider_1=PULL)
    assert (stage.held_by("hider_0"), stage.held_by("hider_1")) == ("box_1", "box_0")


# --- observations -----------------------------------------------------------------------------------------------------


def test_further_columns_tell_team_sizes_and_box_numbers() -> None:
    stage = Stage(make_block(1, is_team_size_observed=True, are_box_ids_observed=True))
    stage.start(hiders=[(1.0, 1.0), (1.0, 4.0)], seekers=[FAR_AWAY], boxes=[(3.0, 1.0), (4.0, 1.0), (5.0, 1.0)])
    own = [stage.observation(agent, "self") for agent in ("hider_0", "hider_1", "seeker_0", "seeker_1")]
    assert [row[10] for row in own] == [2, 2, 1, 0]
    assert stage.observation("seeker_0", "others").shape == (5, 10)
    boxes = stage.observation("hider_0", "boxes")
    assert boxes[:, 15].tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 0]
    assert boxes[:, 0].tolist() == pytest.approx([3, 4, 5, 0, 0, 0, 0, 0, 0])
    specs = stage.block.spec.group.obs
    assert (specs["self"].shape, specs["boxes"].shape, specs["ramps"].shape) == ((11,), (9, 16), (2, 15))


def test_compressed_lidar_keeps_near_distances_and_bounds_far_ones() -> None:
    stage = Stage(make_block(1, lidar_scale=2.0))
    stage.start(hiders=[(0.65, 3.0)], seekers=[FAR_AWAY], walls=outer_walls())
    lidar = stage.observation("hider_0", "lidar")
    assert lidar[15] == pytest.approx(2 * np.tanh(0.5 / 2), abs=1e-4)  # the wall at x = 0.15
    assert lidar[0] == pytest.approx(2 * np.tanh(5.2 / 2), abs=1e-4)  # the wall at x = 5.85
    assert stage.block.snapshot(0).lidar[0, 0] == pytest.approx(5.2, abs=1e-4)


# --- food -------------------------------------------------------------------------------------------------------------


def foraging(**settings: object) -> Stage:
    return Stage(make_block(1, task="foraging", **{"prep_fraction": 0.0, "num_food": 2, "food_health": 3, **settings}))


def start_with_food(stage: Stage, **world: object) -> None:
    """Food 0.4 m in front of hider_0 and 0.6 m in front of hider_1; nobody sees anybody."""
    layout = make_layout(**({"hiders": [(3.0, 3.0), (3.0, 1.0)], "seekers": [(5.5, 0.2)]} | world))  # type: ignore[arg-type]
    stage.start(replace(layout, food=np.array([(3.0, 2.6), (3.0, 0.4)])))


def test_food_in_reach_and_view_is_eaten_until_it_is_gone() -> None:
    stage = foraging(food_reward=0.5)
    start_with_food(stage, seekers=[(3.0, 0.1)])
    rewards = []
    for _ in range(5):
        stage.step()
        rewards.append([stage.reward(agent) for agent in ("hider_0", "hider_1", "seeker_0")])
    # a bite of one of two hiders: each gets a quarter more than for hiding
    np.testing.assert_allclose(rewards, [[1.25, 1.25, -1]] * 3 + [[1, 1, -1]] * 2)
    assert stage.observation("hider_1", "food")[:, 3].tolist() == [0, 1]
    assert stage.observation("hider_1", "exists_food").tolist() == [False, True]


def test_food_is_observed_by_line_of_sight() -> None:
    stage = foraging()
    start_with_food(stage)
    assert stage.observation("hider_0", "mask_food").tolist() == [True, False]  # hider_1 stands before the other
    assert stage.observation("hider_1", "mask_food").tolist() == [False, True]
    assert stage.observation("hider_0", "food")[0].tolist() == pytest.approx([3.0, 2.6, 0.1, 1.0])
    stage.place("hider_0", yaw=UP)
    assert stage.observation("hider_0", "mask_food").tolist() == [False, False]
    start_with_food(stage, walls=[Wall(0, 13, 12, 17)])  # at y = 2.7
    stage.step()
    assert stage.observation("hider_0", "mask_food").tolist() == [False, False]
    assert stage.block.task.health.tolist() == [[3, 3]]  # type: ignore[attr-defined]


def test_nobody_eats_while_seen_or_in_the_preparation_and_seekers_never_do() -> None:
    seen = foraging()
    start_with_food(seen, seekers=[(3.0, 5.0)], hiders=[(3.0, 3.0), (5.5, 5.5)])
    seen.step()
    assert [seen.reward(agent) for agent in ("hider_0", "hider_1", "seeker_0")] == [-1, -1, 1]
    alone = foraging()
    start_with_food(alone, seekers=[(3.0, 3.0)], hiders=[(5.5, 5.5)])
    alone.step()
    prepared = foraging(prep_fraction=0.5)
    start_with_food(prepared)
    prepared.step()
    for stage in (seen, alone, prepared):
        assert stage.block.task.health.tolist() == [[3, 3]]  # type: ignore[attr-defined]
    assert prepared.reward("hider_0") == 0


def test_food_is_placed_clear_of_everything_and_counted_per_episode() -> None:
    config = ForagingConfig(num_food=5, horizon=20, prep_fraction=0.0)
    task = Foraging(4, config)
    block = HideAndSeekBlock(4, config, task)
    block.reset(seed=0)
    for layout in block.episodes.layouts:
        assert layout is not None
        assert layout.food.shape == (5, 2)
        for box, size in zip(layout.boxes, layout.box_sizes, strict=True):
            assert (np.abs(layout.food - box) >= size[:2] / 2).any(axis=1).all()
    rng = np.random.default_rng(0)
    for _ in range(19):
        block.step(rng.integers(0, [11, 11, 11, 2, 2], size=(4, 6, 5)))
    eaten = task.eaten.sum()
    answer = block.step(rng.integers(0, [11, 11, 11, 2, 2], size=(4, 6, 5)))
    assert len(answer.episodes) == 4
    assert sum(record.summary["food_eaten"] for record in answer.episodes) >= eaten > 0
    assert (task.eaten == 0).all()
    assert (task.health == config.food_health).all()


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        ({"hiders": [(x, 1.0) for x in range(1, 5)]}, "4 hiders, but this block has room for 3; .*max_hiders"),
        ({"boxes": [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]}, "3 boxes, but this block has room for 2; .*num_boxes"),
        ({"walls": outer_walls() * 3}, "12 walls, but this block has room for .*scenario"),
    ],
)
def test_a_world_that_does_not_fit_is_refused_by_name(world: dict[str, object], complaint: str):
    block = make_block(1, scenario="quadrant")
    block.reset(seed=0)
    layout = make_layout(**{"hiders": [(1.0, 1.0)], "seekers": [(5.0, 5.0)], **world})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=complaint):
        block.start_in(0, layout)
    assert block.step(np.zeros((1, 6, 5), np.int64)).present.any()
