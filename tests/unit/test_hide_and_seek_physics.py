"""Promises about failed simulations, new worlds and staggered starts, whatever the preset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import HideAndSeekBlock, make_block, physics
from srl_ray.envs.hide_and_seek.staging import Stage
from srl_ray.envs.hide_and_seek.walls import outer_walls

pytestmark = pytest.mark.unit

PRESETS = ["faithful", "default", "fast"]


def busy_actions(rng: np.random.Generator, block: HideAndSeekBlock) -> np.ndarray:
    shape = (block.spec.num_envs, block.spec.group.num_agents)
    return rng.integers(0, [11, 11, 11, 2, 2], size=(*shape, 5))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_non_finite_simulation_never_reaches_an_observation(
    preset: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator resets such a simulation by itself and says so in its warning counters alone."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file in the working directory
    block = make_block(4, preset=preset, threads=threads)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    block.step(busy_actions(rng, block))
    discarded = []
    for poisoned in (block.physics.pose[1, 0], block.physics.velocity[1, 7], block.physics.pose[1, -1]):
        poisoned[0] = np.nan
        answer = block.step(busy_actions(rng, block))
        discarded += [(record.env_index, record.discarded) for record in answer.episodes]
        assert answer.truncated[1].any()
        assert not answer.terminated.any()
        assert (answer.on_reset[1] == answer.present[1]).all()
        assert (answer.reward[1] == 0).all()
        for name, field in {**answer.obs, **answer.final_obs}.items():
            assert np.isfinite(field).all(), name
        assert np.isfinite(block.physics.pose).all()
        assert np.isfinite(block.returns).all()
    assert discarded == [(1, True)] * 3


@pytest.mark.parametrize("preset", PRESETS)
def test_the_simulators_warning_alone_fails_a_simulation(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the simulator has reset it by itself, a blown-up simulation is finite again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(physics, "MAX_SPEED", np.inf)
    block = make_block(3, preset=preset)
    block.reset(seed=0)
    block.physics.pose[2, 8, 1] = np.nan
    failed = block.physics.step()
    assert failed.tolist() == [False, False, True]
    assert np.isfinite(block.physics.pose).all()
    assert np.isfinite(block.physics.velocity).all()
    assert not block.physics.step()[:2].any()


@pytest.mark.parametrize("name", ["hider_0", "box_1", "ramp_0"])
def test_what_passes_a_walled_border_ends_the_episode_and_what_leaves_an_open_field_does_not(name: str) -> None:
    for is_walled in (True, False):
        stage = Stage(make_block(1, prep_fraction=0.0))
        walls = outer_walls() if is_walled else ()
        stage.start(hiders=[(1, 1)], seekers=[(5, 5)], boxes=[(2, 2), (4, 4)], ramps=[(3, 3)], walls=walls)
        assert not stage.step().episodes
        stage.pose(name)[0] = 6.3
        answer = stage.step()
        assert [record.discarded for record in answer.episodes] == ([True] if is_walled else [])


def test_a_staggered_start_spreads_the_ends_of_episodes_once_and_for_all() -> None:
    block = make_block(40, horizon=12, prep_fraction=0.25)
    block.stagger_steps = 12
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    ends: list[list[int]] = [[] for _ in range(40)]
    for step in range(1, 37):
        answer = block.step(busy_actions(rng, block))
        for record in answer.episodes:
            ends[record.env_index].append(step)
            assert not record.discarded
            assert record.length == (ends[record.env_index][0] if len(ends[record.env_index]) == 1 else 12)
    first = [end[0] for end in ends]
    assert all(1 <= end <= 12 for end in first)
    assert len(set(first)) >= 8
    assert all(np.diff(end).tolist() == [12] * (len(end) - 1) for end in ends)


def test_a_block_starts_in_step_unless_told_otherwise() -> None:
    block = make_block(3, horizon=5, prep_fraction=0.2)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    counts = [len(block.step(busy_actions(rng, block)).episodes) for _ in range(10)]
    assert counts == [0, 0, 0, 0, 3] * 2


@pytest.mark.parametrize("scenario", ["randomwalls", "quadrant"])
def test_a_new_world_leaves_nothing_of_the_one_before(scenario: str) -> None:
    """An environment that has lived through other worlds stands in the same one as a new environment."""
    old, new = make_block(4, scenario=scenario), make_block(4, scenario=scenario)
    rng = np.random.default_rng(0)
    old.reset(seed=1)
    for _ in range(5):
        old.step(busy_actions(rng, old))
    first, second = old.reset(seed=2), new.reset(seed=2)
    for name, field in first.obs.items():
        np.testing.assert_array_equal(field[first.present], second.obs[name][second.present], err_msg=name)
    for sim in range(4):
        models = [block.physics.batch.get_model(sim) for block in (old, new)]
        for name in (
            "geom_pos",
            "geom_size",
            "geom_rbound",
            "geom_aabb",
            "geom_group",
            "body_inertia",
            "body_invweight0",
        ):
            np.testing.assert_array_equal(*(getattr(model, name) for model in models), err_msg=name)
