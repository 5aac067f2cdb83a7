"""Promises about the stability of the physics and about what happens when it fails all the same."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from srl_ray.envs.hide_and_seek import HideAndSeekBlock, HideAndSeekConfig, make_block
from srl_ray.envs.hide_and_seek.model import model_xml
from srl_ray.envs.hide_and_seek.walls import wall_height, wall_rectangle

pytestmark = pytest.mark.unit


def loading_actions(rng: np.random.Generator, block: HideAndSeekBlock) -> np.ndarray:
    """Random movement, grabbing asked in 90 % and locking in 30 % of the decisions."""
    shape = (block.spec.num_envs, block.spec.group.num_agents)
    actions = np.empty((*shape, 5), np.int64)
    actions[..., :3] = rng.integers(11, size=(*shape, 3))
    actions[..., 3] = rng.random(shape) < 0.9
    actions[..., 4] = rng.random(shape) < 0.3
    return actions


@pytest.mark.parametrize("scenario", ["randomwalls", "quadrant"])
@pytest.mark.parametrize("preset", ["faithful", "default", "fast"])
def test_random_play_stays_finite_and_slow(preset: str, scenario: str) -> None:
    """The quadrant's slippery walls are the harder case: 32 x 3 episodes there, 20 in the random walls."""
    num_envs = 32 if scenario == "quadrant" else 20
    block = make_block(num_envs, preset=preset, scenario=scenario, num_hiders=(2, 3), num_seekers=(2, 3), threads=2)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    discarded = held = 0
    for step in range(240):
        if step % 4 == 0:
            actions = loading_actions(rng, block)
        answer = block.step(actions)
        discarded += sum(record.discarded for record in answer.episodes)  # non-finite, warned about or above 30 m/s
        held += (block.grabbing.held >= 0).sum()
        for name, field in answer.obs.items():
            assert np.isfinite(field).all(), name
    assert held > 500
    assert discarded == 0


def test_sparse_and_dense_solvers_agree_on_loaded_states() -> None:
    config = HideAndSeekConfig(num_hiders=(3, 3), num_seekers=(3, 3), num_boxes=(9, 9), threads=2)
    block = HideAndSeekBlock(25, config)
    block.reset(seed=1)
    rng = np.random.default_rng(1)
    batch = block.physics.batch
    model = batch.get_model(0)
    data = mujoco.MjData(model)
    worst, states = 0.0, 0
    for step in range(150):
        if step % 4 == 0:
            actions = loading_actions(rng, block)
        block.step(actions)
        if step % 3:
            continue
        for sim in range(25):
            batch.get_model(sim, model)
            velocities = []
            for jacobian in (mujoco.mjtJacobian.mjJAC_DENSE, mujoco.mjtJacobian.mjJAC_SPARSE):
                model.opt.jacobian = jacobian
                mujoco.mj_resetData(model, data)
                mujoco.mj_setState(model, data, batch.state[sim], mujoco.mjtState.mjSTATE_INTEGRATION)
                mujoco.mj_step(model, data)
                velocities.append(data.qvel.copy())
            worst = max(worst, np.abs(velocities[0] - velocities[1]).max())
            states += 1
    assert states >= 1200
    assert worst <= 1e-6


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e12, 200.0])
def test_failed_physics_ends_the_episode_as_discarded_and_starts_a_new_one(
    poison: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file in the working directory
    block = make_block(4)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    for _ in range(3):
        answer = block.step(loading_actions(rng, block))
    untouched = block.physics.pose[[0, 1, 3]].copy()
    was_present = answer.present.copy()
    block.physics.velocity[2, 7, 2] = poison  # upwards, where nothing stops it within the step
    answer = block.step(np.full((4, 6, 5), 5) * [1, 1, 1, 0, 0])
    (record,) = answer.episodes
    assert record.discarded
    assert (record.env_index, record.length) == (2, 4)
    assert (answer.truncated == (was_present & (np.arange(4) == 2)[:, None])).all()
    assert not answer.terminated.any()
    assert len(answer.final_lanes) == 0
    assert (answer.on_reset == (answer.present & (np.arange(4) == 2)[:, None])).all()
    assert (answer.reward[2] == 0).all()
    assert (answer.obs["self"][2, answer.present[2], 9] == 0).all()
    for name, field in answer.obs.items():
        assert np.isfinite(field).all(), name
    assert np.abs(block.physics.pose[[0, 1, 3]] - untouched).max() < 1.0
    for _ in range(3):
        answer = block.step(loading_actions(rng, block))
        assert answer.episodes == []


def test_environments_whose_episodes_drifted_apart_end_and_restart_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = make_block(3, horizon=10)
    rng = np.random.default_rng(0)
    block.reset(seed=0)
    for _ in range(4):
        block.step(loading_actions(rng, block))
    block.physics.velocity[1, 0, 0] = np.nan
    ends = {}
    for step in range(4, 20):
        before = {name: field.copy() for name, field in block.observation.fields.items()}
        answer = block.step(loading_actions(rng, block))
        for record in answer.episodes:
            ends.setdefault(record.env_index, []).append(step)
            others = [env for env in range(3) if env not in {r.env_index for r in answer.episodes}]
            assert (answer.obs["self"][others] != before["self"][others]).any()
            assert not answer.on_reset[others].any()
    assert ends == {0: [9, 19], 1: [4, 14], 2: [9, 19]}


def test_worlds_edited_in_place_equal_freshly_compiled_ones() -> None:
    config = HideAndSeekConfig(num_hiders=(3, 3), num_seekers=(3, 3), prep_fraction=0.0)
    block = HideAndSeekBlock(3, config)
    block.reset(seed=5)
    block.reset(seed=6)  # the second world overwrites the first
    models = []
    for layout in block.episodes.layouts:
        assert layout is not None
        spec = mujoco.MjSpec.from_string(model_xml(config, jacobian="dense", is_sleep_on=True))
        for index, wall in enumerate(layout.walls):
            x_min, y_min, x_max, y_max = wall_rectangle(wall)
            half_height = wall_height(wall) / 2
            spec.geom(f"wall_{index}").pos = ((x_min + x_max) / 2, (y_min + y_max) / 2, half_height)
            spec.geom(f"wall_{index}").size = ((x_max - x_min) / 2, (y_max - y_min) / 2, half_height)
        for index, size in enumerate(layout.box_sizes):
            spec.body(f"box_{index}").geoms[0].size = size / 2
        models.append(spec.compile())
    data = [mujoco.MjData(model) for model in models]
    for sim in range(3):
        data[sim].qpos[:] = block.physics.pose[sim].ravel()
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = loading_actions(rng, block)
        actions[..., 3:] = 0
        block.step(actions)
        for sim in range(3):
            data[sim].ctrl[:] = block.physics.control[sim].ravel()
            mujoco.mj_step(models[sim], data[sim], nstep=config.integration.substeps)
            np.testing.assert_array_equal(block.physics.pose[sim].ravel(), data[sim].qpos)


def test_sleeping_changes_nothing_to_speak_of() -> None:
    config = HideAndSeekConfig(num_hiders=(3, 3), num_seekers=(3, 3), prep_fraction=0.0)
    block = HideAndSeekBlock(2, config)
    block.reset(seed=8)
    models = [block.physics.batch.get_model(sim) for sim in range(2)]
    for model in models:
        model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    data = [mujoco.MjData(model) for model in models]
    for sim in range(2):
        data[sim].qpos[:] = block.physics.pose[sim].ravel()
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = loading_actions(rng, block)
        actions[..., 3:] = 0
        block.step(actions)
        for sim in range(2):
            data[sim].ctrl[:] = block.physics.control[sim].ravel()
            mujoco.mj_step(models[sim], data[sim], nstep=config.integration.substeps)
            np.testing.assert_allclose(block.physics.pose[sim].ravel(), data[sim].qpos, atol=1e-3)
