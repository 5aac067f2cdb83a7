"""Promises about grabbing and locking."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.walls import Wall

pytestmark = pytest.mark.unit

FAR_AWAY = (5.5, 5.5)
RIGHT, LEFT, UP = np.pi / 2, -np.pi / 2, np.pi
PULL, LOCK, NOTHING = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1), (5, 5, 5, 0, 0)


@pytest.fixture(scope="module", params=["faithful", "default", "fast"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(make_block(1, preset=request.param, prep_fraction=0.0))


def beside_a_cube(stage: Stage, distance: float, **world: object) -> None:
    """hider_0 looks along +x at a cube whose surface is `distance` from its centre."""
    stage.start(hiders=[(1.0, 1.0)], seekers=[FAR_AWAY], boxes=[(1.25 + distance, 1.0)], **world)
    stage.place("hider_0", yaw=RIGHT)


@pytest.mark.parametrize(("distance", "is_held"), [(0.16, True), (0.249, True), (0.26, False)])
def test_a_grab_reaches_25_cm_from_centre_to_surface(stage: Stage, distance: float, is_held: bool) -> None:
    beside_a_cube(stage, distance)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") == ("box_0" if is_held else None)


def test_what_is_not_seen_cannot_be_grabbed(stage: Stage) -> None:
    beside_a_cube(stage, 0.2)
    stage.place("hider_0", yaw=LEFT)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") is None
    wall = [Wall(1, 5, 2, 27)]  # at x = 1.1, between the two
    stage.start(hiders=[(0.92, 1.0)], seekers=[FAR_AWAY], boxes=[(1.405, 1.0)], walls=wall)
    stage.place("hider_0", yaw=RIGHT)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") is None


def test_a_grab_goes_by_what_was_seen_in_the_previous_observation(stage: Stage) -> None:
    beside_a_cube(stage, 0.2)
    stage.place("hider_0", yaw=LEFT, is_noticed=False)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") == "box_0"
    beside_a_cube(stage, 0.2)
    stage.place("hider_0", yaw=LEFT)
    stage.place("hider_0", yaw=RIGHT, is_noticed=False)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") is None


@pytest.mark.parametrize("kind", ["boxes", "ramps"])
def test_taking_hold_moves_nothing(stage: Stage, kind: str) -> None:
    objects = {"boxes": [(1.45, 1.1)], "ramps": [(1.46, 0.9)]}
    stage.start(hiders=[(1.0, 1.0)], seekers=[FAR_AWAY], **{kind: objects[kind]})
    stage.place("hider_0", yaw=RIGHT - 0.3)
    target = "box_0" if kind == "boxes" else "ramp_0"
    stage.place(target, yaw=0.1)
    stage.step(10)
    before = stage.block.physics.pose.copy()
    stage.step(5, hider_0=PULL)
    assert stage.held_by("hider_0") == target
    np.testing.assert_allclose(stage.block.physics.pose, before, atol=1e-4)


def test_dragging_keeps_the_relative_pose_and_letting_go_frees(stage: Stage) -> None:
    beside_a_cube(stage, 0.2)
    stage.step(3, hider_0=PULL)
    before = stage.pose("box_0") - stage.pose("hider_0")
    errors = []
    for _ in range(10):
        stage.step(hider_0=(0, 5, 5, 1, 0))
        assert stage.held_by("hider_0") == "box_0"
        hider, box = stage.pose("hider_0"), stage.pose("box_0")
        turn = hider[3] - RIGHT
        offset = box[:2] - hider[:2]
        back = [
            offset[0] * np.cos(turn) + offset[1] * np.sin(turn),
            offset[1] * np.cos(turn) - offset[0] * np.sin(turn),
        ]
        errors.append(np.linalg.norm(back - before[:2]))
    assert stage.velocity("box_0")[0] < -6.0
    assert max(errors) < 0.002
    stage.step(hider_0=(0, 5, 5, 0, 0))
    assert stage.held_by("hider_0") is None
    gap = stage.pose("box_0")[0] - stage.pose("hider_0")[0]
    stage.step(3, hider_0=(0, 5, 5, 0, 0))
    assert stage.pose("box_0")[0] - stage.pose("hider_0")[0] > gap + 0.05


def test_the_nearest_candidate_is_taken(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[FAR_AWAY], boxes=[(1.48, 1.2), (1.44, 0.68)])
    stage.place("hider_0", yaw=RIGHT)
    stage.step(hider_0=PULL)
    assert stage.held_by("hider_0") == "box_1"


def test_two_agents_may_hold_one_box(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0), (1.9, 1.0)], seekers=[FAR_AWAY], boxes=[(1.45, 1.0)])
    stage.place("hider_0", yaw=RIGHT)
    stage.place("hider_1", yaw=LEFT)
    before = stage.pose("box_0")[1]
    stage.step(5, hider_0=(5, 10, 5, 1, 0), hider_1=(5, 10, 5, 1, 0))
    assert stage.held_by("hider_0") == stage.held_by("hider_1") == "box_0"
    assert stage.pose("box_0")[1] > before + 1.5


def test_a_held_locked_box_stays_and_tethers_its_holder(stage: Stage) -> None:
    beside_a_cube(stage, 0.2)
    before = stage.pose("box_0").copy()
    stage.step(2, hider_0=(5, 5, 5, 1, 1))
    stage.step(10, hider_0=(0, 5, 5, 1, 1))
    assert np.linalg.norm(stage.pose("box_0")[:3] - before[:3]) < 0.01
    assert stage.pose("hider_0")[0] > 0.9


def around_a_cube(stage: Stage, *, hiders: int, seekers: int) -> None:
    """Hiders left of a cube, seekers right of it, all looking at it from 0.2 m."""
    stage.start(
        hiders=[(1.0, 0.85 + 0.37 * i) for i in range(hiders)],
        seekers=[(1.9, 0.85 + 0.37 * i) for i in range(seekers)],
        boxes=[(1.45, 1.0)],
    )
    for i in range(hiders):
        stage.place(f"hider_{i}", yaw=RIGHT)
    for i in range(seekers):
        stage.place(f"seeker_{i}", yaw=LEFT)


@pytest.mark.parametrize("seeker_action", [NOTHING, LOCK])
def test_only_the_owners_team_can_unlock(stage: Stage, seeker_action: tuple[int, ...]) -> None:
    stage.start(hiders=[(1.0, 1.0), (5.0, 5.0)], seekers=[(1.9, 1.0)], boxes=[(1.45, 1.0)])
    stage.place("hider_0", yaw=RIGHT)
    stage.place("seeker_0", yaw=LEFT)
    stage.step(hider_0=LOCK)
    assert stage.owner_of("box_0") == "hider_0"
    stage.step(3, hider_0=LOCK, seeker_0=seeker_action)
    assert stage.is_locked("box_0")
    # the owner looks away, so that nobody of its team can address the box: the seeker still cannot unlock it
    stage.place("hider_0", yaw=LEFT)
    stage.step(3, seeker_0=seeker_action)
    assert stage.is_locked("box_0")
    assert stage.owner_of("box_0") == "hider_0"


def test_a_team_mate_in_reach_and_view_unlocks(stage: Stage) -> None:
    for x, yaw, is_freed in ((1.9, LEFT, True), (1.9, RIGHT, False), (1.98, LEFT, False)):
        stage.start(hiders=[(1.0, 1.0), (x, 1.0)], seekers=[FAR_AWAY], boxes=[(1.45, 1.0)])
        stage.place("hider_0", yaw=RIGHT)
        stage.place("hider_1", yaw=RIGHT)
        stage.step(hider_0=LOCK)
        assert stage.is_locked("box_0")
        stage.place("hider_1", yaw=yaw)
        stage.step(hider_0=LOCK, hider_1=NOTHING)
        assert stage.is_locked("box_0") != is_freed


def test_team_mates_veto_a_lock_and_opponents_do_not(stage: Stage) -> None:
    around_a_cube(stage, hiders=2, seekers=1)
    stage.step(hider_0=LOCK, hider_1=NOTHING, seeker_0=NOTHING)
    assert not stage.is_locked("box_0")
    around_a_cube(stage, hiders=1, seekers=1)
    stage.step(hider_0=LOCK, seeker_0=NOTHING)
    assert stage.owner_of("box_0") == "hider_0"
    around_a_cube(stage, hiders=1, seekers=1)
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert stage.owner_of("box_0") == "seeker_0"


def test_a_team_that_owned_an_object_vetoes_the_other_teams_lock(stage: Stage) -> None:
    around_a_cube(stage, hiders=1, seekers=1)
    stage.step(hider_0=LOCK)
    stage.step(hider_0=NOTHING)
    assert not stage.is_locked("box_0")
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert not stage.is_locked("box_0")
    stage.place("hider_0", yaw=LEFT)
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert stage.owner_of("box_0") == "seeker_0"


def test_the_originals_first_owner_can_be_brought_back() -> None:
    stage = Stage(make_block(1, prep_fraction=0.0, do_hiders_own_unlocked=True))
    around_a_cube(stage, hiders=1, seekers=1)
    stage.step(hider_0=NOTHING, seeker_0=LOCK)
    assert not stage.is_locked("box_0")
    around_a_cube(stage, hiders=1, seekers=1)
    stage.step(hider_0=LOCK, seeker_0=NOTHING)
    assert stage.owner_of("box_0") == "hider_0"


def test_ties_among_lockers_are_decided_evenly(stage: Stage) -> None:
    owners = []
    for _ in range(60):
        around_a_cube(stage, hiders=2, seekers=1)
        stage.step(hider_0=LOCK, hider_1=LOCK)
        owners.append(stage.owner_of("box_0"))
    assert 15 < owners.count("hider_0") < 45
    assert set(owners) == {"hider_0", "hider_1"}


def test_lock_columns_tell_me_my_team_and_anyone_apart(stage: Stage) -> None:
    around_a_cube(stage, hiders=2, seekers=1)
    stage.step(hider_0=LOCK, hider_1=LOCK)
    owner = stage.owner_of("box_0")
    mate = {"hider_0": "hider_1", "hider_1": "hider_0"}[str(owner)]
    assert stage.observation(str(owner), "boxes")[0, 12:].tolist() == [1, 1, 1]
    assert stage.observation(mate, "boxes")[0, 12:].tolist() == [0, 1, 1]
    assert stage.observation("seeker_0", "boxes")[0, 12:].tolist() == [0, 0, 1]


def test_ramps_can_be_locked_in_random_walls_but_not_in_the_quadrant(stage: Stage) -> None:
    quadrant = Stage(make_block(1, scenario="quadrant", prep_fraction=0.0))
    for each, is_lockable in ((stage, True), (quadrant, False)):
        each.start(hiders=[(1.0, 1.0)], seekers=[FAR_AWAY], ramps=[(1.45, 1.0)])
        each.place("hider_0", yaw=RIGHT)
        each.step(hider_0=LOCK)
        assert each.is_locked("ramp_0") == is_lockable
        each.step(hider_0=PULL)
        assert each.held_by("hider_0") == "ramp_0"
