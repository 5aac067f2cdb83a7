"""Promises about rewards, phases, observations, episodes and statistics."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.core.types import EpisodeRecord
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.hide_and_seek import HideAndSeekBlock, make_block
from srl_ray.envs.hide_and_seek.staging import Stage

pytestmark = pytest.mark.unit

RIGHT, UP = np.pi / 2, np.pi
HIDERS = ("hider_0", "hider_1", "hider_2")
SEEKERS = ("seeker_0", "seeker_1", "seeker_2")


@pytest.fixture(scope="module")
def stage() -> Stage:
    """Without a preparation phase."""
    return Stage(make_block(1, prep_fraction=0.0))


@pytest.fixture(scope="module")
def prepared() -> Stage:
    """The full game: 96 steps of preparation in 240."""
    return Stage(make_block(1))


def random_actions(rng: np.random.Generator, block: HideAndSeekBlock) -> np.ndarray:
    return rng.integers(0, [11, 11, 11, 2, 2], size=(block.spec.num_envs, block.spec.group.num_agents, 5))


# --- rewards --------------------------------------------------------------------------------------------------------


def test_one_seen_hider_costs_the_whole_team(stage: Stage) -> None:
    seekers = [(5.0, 5.0), (5.5, 5.5), (5.0, 5.5)]
    stage.start(hiders=[(1.0, 1.0), (2.0, 5.8), (1.0, 5.9)], seekers=seekers)  # seekers look along -y, none is there
    for name in SEEKERS:
        stage.place(name, yaw=RIGHT)
    stage.step()
    assert [stage.reward(name) for name in HIDERS] == [1, 1, 1]
    assert [stage.reward(name) for name in SEEKERS] == [-1, -1, -1]
    stage.place("seeker_1", yaw=0.0)
    stage.place("hider_0", x=5.5, y=1.0)
    stage.step()
    assert [stage.reward(name) for name in HIDERS] == [-1, -1, -1]
    assert [stage.reward(name) for name in SEEKERS] == [1, 1, 1]
    assert stage.answer.reward.sum() == 0


def test_nothing_is_rewarded_in_the_preparation(prepared: Stage) -> None:
    prepared.start(hiders=[(3.0, 1.0), (20.0, 3.0)], seekers=[(3.0, 5.0)])
    assert prepared.sees("seeker_0", "hider_0")
    for _ in range(96):
        prepared.step()
        assert (prepared.answer.reward == 0).all()
    prepared.step()
    assert [prepared.reward(name) for name in ("hider_0", "hider_1", "seeker_0")] == [-1, -10, 1]
    prepared.step(143)
    (record,) = prepared.answer.episodes
    assert record.returns == {"hider_0": -144.0, "hider_1": -1440.0, "seeker_0": 144.0}


def test_leaving_the_legal_area_costs_only_the_leaver(stage: Stage) -> None:
    for place, reward in (
        ((11.99, 3.0), 1),
        ((12.01, 3.0), -10),
        ((3.0, -5.99), 1),
        ((3.0, -6.01), -10),
    ):
        stage.start(hiders=[place, (1.0, 3.0)], seekers=[(5.0, 5.0)], boxes=[(13.0, 13.0)])
        stage.place("seeker_0", yaw=UP)
        stage.step()
        assert [stage.reward(name) for name in ("hider_0", "hider_1", "seeker_0")] == [reward, 1, -1]


@pytest.mark.parametrize("kind", ["boxes", "ramps"])
def test_an_object_outside_costs_everybody_in_the_quadrant(kind: str) -> None:
    quadrant = Stage(make_block(1, scenario="quadrant", prep_fraction=0.0))
    for x, rewards in ((5.89, [1, -1]), (5.91, [-10, -10])):
        quadrant.start(hiders=[(3.0, 3.0)], seekers=[(3.0, 1.0)], **{kind: [(x, 3.0)]})
        quadrant.step()
        assert [quadrant.reward(name) for name in ("hider_0", "seeker_0")] == rewards


# --- phases ---------------------------------------------------------------------------------------------------------


def test_seekers_are_frozen_until_the_preparation_is_over(prepared: Stage) -> None:
    prepared.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(5.0, 4.57)])
    before = prepared.pose("seeker_0").copy()
    everything = (10, 10, 10, 1, 1)
    for _ in range(96):
        prepared.step(seeker_0=everything, hider_0=(5, 6, 5, 0, 0))
        assert np.abs(prepared.pose("seeker_0") - before).max() < 1e-3
        assert prepared.held_by("seeker_0") is None
        assert not prepared.is_locked("box_0")
    assert prepared.pose("hider_0")[1] > 2.0
    prepared.step(seeker_0=everything)
    assert np.abs(prepared.pose("seeker_0") - before)[:2].max() > 0.02  # on the leash of a box it locked
    assert prepared.held_by("seeker_0") == "box_0"
    assert prepared.owner_of("box_0") == "seeker_0"


def test_frozen_seekers_can_be_pushed(prepared: Stage) -> None:
    prepared.start(hiders=[(4.0, 5.0)], seekers=[(4.6, 5.0)])
    prepared.step(6, hider_0=(10, 5, 5, 0, 0))
    assert prepared.pose("seeker_0")[0] > 5.0


def test_observed_progress_reaches_one_a_step_after_the_preparation(prepared: Stage) -> None:
    prepared.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
    seen = [prepared.observation("hider_0", "self")[9]]
    for _ in range(98):
        prepared.step()
        seen.append(prepared.observation("hider_0", "self")[9])
    np.testing.assert_allclose(seen[:97], np.arange(97) / 96.00001, rtol=1e-6)
    assert seen[96] < 1.0
    assert seen[97] == seen[98] == 1.0


@pytest.mark.parametrize(("scenario", "horizon"), [("randomwalls", 240), ("quadrant", 80)])
def test_an_episode_ends_by_truncation_after_exactly_its_horizon(scenario: str, horizon: int) -> None:
    block = make_block(2, scenario=scenario)
    rng = np.random.default_rng(0)
    answer = block.reset(seed=0)
    assert (answer.on_reset == answer.present).all()
    for _ in range(horizon - 1):
        answer = block.step(random_actions(rng, block))
        assert not answer.truncated.any()
        assert not answer.on_reset.any()
        assert answer.episodes == []
    was_present = answer.present.copy()
    answer = block.step(random_actions(rng, block))
    assert (answer.truncated == was_present).all()
    assert not answer.terminated.any()
    assert (answer.on_reset == answer.present).all()
    np.testing.assert_array_equal(answer.final_lanes, np.flatnonzero(was_present))
    assert (answer.final_obs["self"][:, 9] == 1.0).all()
    assert (answer.obs["self"][answer.present][:, 9] == 0.0).all()
    assert [record.length for record in answer.episodes] == [horizon, horizon]
    for record in answer.episodes:
        present = [name for slot, name in enumerate(block.spec.group.agent_ids) if was_present[record.env_index, slot]]
        assert list(record.returns) == list(record.lengths) == present
        assert set(record.lengths.values()) == {horizon}


def test_returns_without_penalties_are_at_most_the_rewarded_steps() -> None:
    block = make_block(8, outer_walls_probability=1.0)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    records: list[EpisodeRecord] = []
    total = np.zeros((8, 6))
    for _ in range(240):
        answer = block.step(random_actions(rng, block))
        total += answer.reward
        inside = answer.obs["self"][answer.present][:, :2]
        assert ((inside > 0) & (inside < 6)).all()  # the border is 4 m high
        records += answer.episodes
    assert len(records) == 8
    for record in records:
        assert record.summary["out_of_area_steps"] == 0
        assert all(abs(value) <= 144 for value in record.returns.values())
        for name, value in record.returns.items():
            assert value == total[record.env_index, block.spec.group.agent_ids.index(name)]


# --- observations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hiders", [1, 2, 3])
@pytest.mark.parametrize("seekers", [1, 2, 3])
def test_shapes_are_the_same_for_all_team_sizes(hiders: int, seekers: int) -> None:
    block = make_block(2, num_hiders=(hiders, hiders), num_seekers=(seekers, seekers), horizon=3)
    assert isinstance(block, EnvBlock)
    expected = {
        "self": (10,),
        "others": (5, 10),
        "boxes": (9, 15),
        "ramps": (2, 15),
        "lidar": (30,),
        "mask_others": (5,),
        "mask_boxes": (9,),
        "mask_ramps": (2,),
        "exists_others": (5,),
        "exists_boxes": (9,),
        "exists_ramps": (2,),
    }
    assert {name: spec.shape for name, spec in block.spec.group.obs.items()} == expected
    rng = np.random.default_rng(0)
    answer = block.reset(seed=0)
    for _ in range(7):
        for name, shape in expected.items():
            is_number = "_" not in name
            assert answer.obs[name].shape == (2, 6, *shape)
            assert answer.obs[name].dtype == (np.float32 if is_number else bool)
            assert np.isfinite(answer.obs[name]).all()
            assert answer.final_obs[name].shape == (len(answer.final_lanes), *shape)
        assert answer.present.sum(axis=1).tolist() == [hiders + seekers] * 2
        answer = block.step(random_actions(rng, block))


def test_the_quadrant_has_the_shapes_of_random_walls() -> None:
    quadrant, walls = make_block(1, scenario="quadrant"), make_block(1)
    assert quadrant.spec.group.obs == walls.spec.group.obs
    answer = quadrant.reset(seed=0)
    assert answer.obs["exists_boxes"][0, 0].tolist() == [True] * 2 + [False] * 7
    assert answer.obs["exists_ramps"][0, 0].tolist() == [True, False]


def test_object_rows_hold_centres_and_sizes_and_absent_ones_nothing(stage: Stage) -> None:
    sizes = [(1.65, 0.15, 0.5), (0.15, 1.65, 0.5), (0.5, 0.5, 0.5)]
    centres = [(2.0, 4.0), (4.0, 2.0), (2.0, 2.0)]
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=centres, box_sizes=sizes, ramps=[(5.0, 3.0)])
    boxes, ramps = stage.observation("seeker_0", "boxes"), stage.observation("seeker_0", "ramps")
    np.testing.assert_allclose(boxes[:3, 9:12], sizes)
    np.testing.assert_allclose(boxes[:3, :2], centres, rtol=1e-6)
    np.testing.assert_allclose(boxes[:3, 2], 0.25)
    np.testing.assert_allclose(ramps[0, :3], (5.0, 3.0, 0.25), rtol=1e-6)
    assert (boxes[3:] == 0).all()
    assert (ramps[:, 9:12] == 0).all()
    assert (ramps[1] == 0).all()


@pytest.mark.parametrize("preset", ["faithful", "default", "fast"])
def test_headings_have_unit_length_and_features_follow_the_bodies(preset: str) -> None:
    block = make_block(8, preset=preset, prep_fraction=0.0)
    rng = np.random.default_rng(0)
    answer = block.reset(seed=2)
    for step in range(40):
        if step % 4 == 0:
            actions = random_actions(rng, block)
        answer = block.step(actions)
    pose, velocity = block.physics.pose, block.physics.velocity
    for kind, bodies in (("boxes", slice(6, 15)), ("ramps", slice(15, 17))):
        rows, exists = answer.obs[kind][:, 2], answer.obs[f"exists_{kind}"][:, 2]
        np.testing.assert_allclose((rows[..., 3:5] ** 2).sum(axis=-1), exists, atol=1e-6)
        yaw = pose[:, bodies, 3][exists]
        np.testing.assert_allclose(rows[exists][:, 3:5], np.stack([np.cos(yaw), np.sin(yaw)], axis=1), atol=1e-6)
        np.testing.assert_allclose(rows[exists][:, :3], pose[:, bodies, :3][exists], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rows[exists][:, 5:9], velocity[:, bodies][exists], rtol=1e-5, atol=1e-6)
    assert np.abs(pose[:, 6:, 3]).max() > 0.3


def test_other_agents_come_in_the_order_of_the_slots_before_me(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], seekers=[(4.0, 1.0), (5.0, 1.0)])
    assert stage.observation("hider_1", "others")[:, 0].tolist() == [1.0, 0.0, 5.0, 4.0, 3.0]
    assert stage.observation("hider_1", "exists_others").tolist() == [True, False, True, True, True]
    assert stage.observation("seeker_0", "others")[:, 8].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_swapping_two_team_mates_permutes_what_others_see(stage: Stage) -> None:
    first, second = (1.0, 2.0), (3.0, 2.5)
    seen: dict[str, list[np.ndarray]] = {}
    for hiders, yaws in (([first, second], (0.3, -0.4)), ([second, first], (-0.4, 0.3))):
        stage.start(hiders=hiders, seekers=[(5.0, 4.0)], boxes=[(2.0, 1.0)])
        for slot, yaw in enumerate(yaws):
            stage.place(f"hider_{slot}", yaw=yaw)
        for agent in ("hider_0", "hider_1", "seeker_0"):
            fields = [stage.observation(agent, field) for field in ("others", "mask_others", "exists_others")]
            seen[agent] = [*seen.get(agent, []), np.column_stack(fields)]
    before, after = seen["seeker_0"]  # lists hiders 2, 1, 0, then seekers
    np.testing.assert_array_equal(after, before[[0, 2, 1, 3, 4]])
    assert (after != before).any()
    np.testing.assert_array_equal(seen["hider_0"][1], seen["hider_1"][0][[1, 2, 3, 4, 0]])
    np.testing.assert_array_equal(seen["hider_1"][1], seen["hider_0"][0][[4, 0, 1, 2, 3]])


def test_yaw_is_wrapped_but_positions_are_not(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)])
    stage.place("hider_0", yaw=7.0, x=-4.0)
    assert stage.observation("hider_0", "self")[3] == pytest.approx(7.0 - 2 * np.pi, abs=1e-6)
    assert stage.observation("hider_0", "self")[0] == -4.0


# --- determinism ----------------------------------------------------------------------------------------------------


def _trajectory(num_envs: int, threads: int, actions: np.ndarray, **settings: str) -> list[tuple]:
    block = make_block(num_envs, threads=threads, horizon=25, **settings)
    answers = [block.reset(seed=11)]
    kept = []
    for step_actions in actions:
        answer = answers[-1]
        first = {name: field[:2].copy() for name, field in answer.obs.items()}
        kept.append((first, answer.reward[:2].copy(), answer.present[:2].copy(), block.physics.pose[:2].copy()))
        answers = [block.step(step_actions[:num_envs])]
    return kept


@pytest.mark.parametrize(
    ("scenario", "preset"),
    [("randomwalls", "faithful"), ("randomwalls", "default"), ("randomwalls", "fast"), ("quadrant", "default")],
)
def test_a_seed_fixes_everything_whatever_the_block_size_and_threads(scenario: str, preset: str) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, [11, 11, 11, 2, 2], size=(40, 5, 6, 5))
    reference = _trajectory(2, 1, actions, scenario=scenario, preset=preset)
    for num_envs, threads in ((2, 1), (5, 1), (5, 2)):
        other_trajectory = _trajectory(num_envs, threads, actions, scenario=scenario, preset=preset)
        for one, other in zip(reference, other_trajectory, strict=True):
            for name, field in one[0].items():
                np.testing.assert_array_equal(field, other[0][name])
            for left, right in zip(one[1:], other[1:], strict=True):
                np.testing.assert_array_equal(left, right)


def test_environments_of_a_block_differ() -> None:
    answer = make_block(4).reset(seed=0)
    assert len({answer.obs["self"][env, 0, 0] for env in range(4)}) == 4


# --- statistics -----------------------------------------------------------------------------------------------------


def test_an_idle_episode_moves_and_locks_nothing(prepared: Stage) -> None:
    prepared.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(3.0, 3.0)], ramps=[(4.0, 1.0)])
    prepared.step(240)
    summary = prepared.answer.episodes[0].summary
    moves = [value for key, value in summary.items() if "_move" in key]
    assert len(moves) == 6
    assert max(moves) < 0.01
    assert all(value == 0 for key, value in summary.items() if "_lock" in key)
    assert (summary["num_hiders"], summary["num_seekers"], summary["num_boxes"]) == (1, 1, 1)


def test_moves_are_told_apart_by_phase_and_locks_count_states(prepared: Stage) -> None:
    world = {"hiders": [(1.0, 1.0)], "seekers": [(5.5, 5.5)], "boxes": [(1.43, 1.0)], "ramps": [(4.0, 5.0)]}
    prepared.start(**world)
    prepared.place("hider_0", yaw=RIGHT)
    drag, hold = (5, 10, 5, 1, 0), (5, 5, 5, 1, 0)
    while prepared.pose("box_0")[1] < 2.8:
        prepared.step(hider_0=drag)
    prepared.step(5, hider_0=hold)
    moved = prepared.pose("box_0")[1] - 1.0
    prepared.step(hider_0=(5, 5, 5, 0, 1))
    assert prepared.is_locked("box_0")
    prepared.step(hider_0=(5, 5, 5, 0, 0))
    prepared.step(98 - int(prepared.block.episodes.step[0]), hider_0=(5, 5, 5, 0, 0))
    prepared.step(hider_0=(5, 5, 5, 0, 1))
    prepared.step(240 - 99, hider_0=(5, 5, 5, 0, 1))
    summary = prepared.answer.episodes[0].summary
    assert summary["max_box_move_prep"] == pytest.approx(moved, abs=0.02)
    assert summary["max_box_move"] == pytest.approx(moved, abs=0.02)
    assert summary["max_box_move_main"] < 0.02
    assert (summary["num_box_lock_prep"], summary["num_box_lock"]) == (0, 1)
    assert summary["holding_fraction"] > 0.01
    assert summary["hiders_seen_fraction"] == 0.0
    assert summary["hider_return"] == -summary["seeker_return"] == 144.0


@pytest.mark.parametrize("preset", ["faithful", "default", "fast"])
def test_preparation_values_are_frozen_at_its_end_and_count_states_not_events(preset: str) -> None:
    stage = Stage(make_block(1, preset=preset, horizon=100))  # 40 steps of preparation
    world = {"hiders": [(1.0, 1.0), (5.0, 1.0)], "seekers": [(5.5, 5.5)], "boxes": [(1.45, 1.0)]}
    stage.start(**world, ramps=[(5.46, 1.0), (5.46, 0.4)])
    stage.place("hider_0", yaw=RIGHT)
    stage.place("hider_1", yaw=RIGHT)
    lock, unlock = (5, 5, 5, 0, 1), (5, 5, 5, 0, 0)
    stage.step(hider_1=lock)
    assert stage.is_locked("ramp_0")
    stage.step(hider_1=unlock)
    assert not stage.is_locked("ramp_0")
    slowly = (5, 7, 5, 1, 0)  # 36 N moves agent and cube slowly enough to stop at 2 m
    while stage.pose("box_0")[1] < 2.9:
        stage.step(hider_0=slowly)
    stage.step(44 - stage.block.snapshot(0).step, hider_0=unlock)
    dragged = stage.pose("box_0")[1] - 1.0
    assert 1.9 < dragged < 2.1
    stage.step(100 - 44, hider_0=(5, 10, 5, 0, 0), hider_1=lock)  # pushes on
    summary = stage.answer.episodes[0].summary
    assert summary["max_box_move_prep"] == pytest.approx(dragged, abs=0.01)
    assert summary["max_box_move"] >= summary["max_box_move_prep"]
    assert (summary["num_ramp_lock_prep"], summary["num_ramp_lock"]) == (0, 1)


def test_locks_at_the_end_are_told_apart_by_team(stage: Stage) -> None:
    world = {"hiders": [(1.0, 1.0)], "seekers": [(5.0, 5.0)], "boxes": [(1.0, 0.57), (3.0, 3.0), (5.0, 4.57)]}
    stage.start(**world, ramps=[(4.57, 5.0)])  # both agents face -y
    stage.place("seeker_0", yaw=-np.pi / 4)  # half way between the box and the ramp
    stage.step(240, hider_0=(5, 5, 5, 0, 1), seeker_0=(5, 5, 5, 0, 1))
    summary = stage.answer.episodes[0].summary
    assert (summary["num_box_lock"], summary["num_box_lock_hiders"], summary["num_box_lock_seekers"]) == (2, 1, 1)
    assert (summary["num_ramp_lock"], summary["num_ramp_lock_hiders"], summary["num_ramp_lock_seekers"]) == (1, 0, 1)


def test_surfing_is_counted(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.1)], seekers=[(5.0, 5.0)], boxes=[(1.0, 1.0)])
    stage.place("hider_0", z=0.65)
    stage.step(24, hider_0=(5, 5, 5, 1, 0))
    stage.step(240 - 24, hider_0=(5, 5, 5, 0, 0))
    summary = stage.answer.episodes[0].summary
    assert summary["surfing_fraction"] == pytest.approx(24 / 480)
    assert summary["raised_fraction"] == pytest.approx(0.5)


# --- drawing --------------------------------------------------------------------------------------------------------


def test_a_snapshot_tells_what_a_drawing_needs(stage: Stage) -> None:
    stage.start(hiders=[(1.0, 1.0)], seekers=[(5.0, 5.0)], boxes=[(1.43, 1.0)], ramps=[(4.0, 1.0)])
    stage.place("hider_0", yaw=RIGHT)
    stage.step(2, hider_0=(5, 5, 5, 1, 1))
    picture = stage.block.snapshot(0)
    assert picture.box_locked.tolist() == [True]
    assert picture.box_owner_teams.tolist() == [0]
    assert picture.ramp_owner_teams.tolist() == [-1]
    assert picture.agent_present.tolist() == [True, False, False, True, False, False]
    assert picture.agent_grabs.tolist() == [0, -1, -1, -1, -1, -1]
    assert picture.sees_objects.shape == (6, 2)
    assert picture.sees_objects[0].tolist() == [True, False]  # the box hides the ramp
    assert (picture.step, picture.horizon, picture.phase) == (2, 240, "main")
    assert picture.hiders_reward == 2.0
    np.testing.assert_allclose(picture.box_centres[0, :2], (1.43, 1.0), atol=1e-3)
