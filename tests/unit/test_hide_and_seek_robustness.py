"""Promises about the stability of the physics and about what happens when it fails all the same."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from srl_ray.core.types import EpisodeRecord
from srl_ray.envs.hide_and_seek import HideAndSeekBlock, HideAndSeekConfig, make_block
from srl_ray.envs.hide_and_seek.layout import draw_layout
from srl_ray.envs.hide_and_seek.model import model_xml
from srl_ray.envs.hide_and_seek.walls import wall_height, wall_rectangle

pytestmark = pytest.mark.unit

PRESETS = ("faithful", "default", "fast")


def loading_actions(rng: np.random.Generator, block: HideAndSeekBlock) -> np.ndarray:
    """Random movement, grabbing asked in 90 % and locking in 30 % of the decisions."""
    shape = (block.spec.num_envs, block.spec.group.num_agents)
    actions = np.empty((*shape, 5), np.int64)
    actions[..., :3] = rng.integers(11, size=(*shape, 3))
    actions[..., 3] = rng.random(shape) < 0.9
    actions[..., 4] = rng.random(shape) < 0.3
    return actions


@pytest.mark.parametrize("scenario", ["randomwalls", "quadrant"])
@pytest.mark.parametrize("preset", PRESETS)
def test_random_play_stays_finite_slow_and_inside_the_border(preset: str, scenario: str) -> None:
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
        discarded += sum(record.discarded for record in answer.episodes)  # see Physics.step
        held += (block.grabbing.held >= 0).sum()
        for name, field in answer.obs.items():
            assert np.isfinite(field).all(), name
        is_walled = np.array([layout is not None and layout.has_outer_walls for layout in block.episodes.layouts])
        places = answer.obs["self"][..., :2][answer.present & is_walled[:, None]]
        assert ((places > 0.1) & (places < 5.9)).all()
    assert held > 500
    assert discarded == 0


@pytest.mark.parametrize("preset", ["default", "fast"])  # one for each integrator
def test_sparse_and_dense_solvers_agree_on_loaded_states(preset: str) -> None:
    config = HideAndSeekConfig(preset=preset, num_hiders=(3, 3), num_seekers=(3, 3), num_boxes=(9, 9), threads=2)
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


def test_a_warning_alone_discards_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = make_block(3)
    block.reset(seed=0)
    physics, states = block.physics, []
    step = physics.step

    def step_with_a_bad_control() -> np.ndarray:
        physics.control[1, 0, 0] = np.nan  # MuJoCo warns and goes on without it
        failed = step()
        states.append(np.abs(physics.velocity).max())
        return failed

    monkeypatch.setattr(physics, "step", step_with_a_bad_control)
    answer = block.step(np.full((3, 6, 5), 5) * [1, 1, 1, 0, 0])
    assert states[0] < 1.0
    assert [(record.env_index, record.discarded) for record in answer.episodes] == [(1, True)]
    assert answer.truncated.any(axis=1).tolist() == [False, True, False]


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


@pytest.mark.parametrize("preset", PRESETS)
def test_worlds_edited_in_place_equal_freshly_compiled_ones(preset: str) -> None:
    config = HideAndSeekConfig(preset=preset, num_hiders=(3, 3), num_seekers=(3, 3), prep_fraction=0.0)
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


@pytest.mark.parametrize("preset", PRESETS)
def test_each_environment_of_a_block_equals_one_that_is_alone(preset: str) -> None:
    rng = np.random.default_rng(2)
    layouts = [draw_layout(rng, HideAndSeekConfig()) for _ in range(16)]
    alone = make_block(1, preset=preset, prep_fraction=0.0)
    alone.reset(seed=0)
    blocks = [make_block(16, preset=preset, prep_fraction=0.0, threads=threads) for threads in (1, 2)]
    actions = np.stack([loading_actions(rng, blocks[0]) for _ in range(5)])
    actions[:, :, 3:, 4] = 0  # draws decide between lockers, and each environment draws from a stream of its own
    for block in blocks:
        block.reset(seed=1)
        for env, layout in enumerate(layouts):
            block.start_in(env, layout)
        for step in range(20):
            block.step(actions[step // 4])
    for env, layout in enumerate(layouts):
        alone.start_in(0, layout)
        for step in range(20):
            answer = alone.step(actions[step // 4, env : env + 1])
        for block in blocks:
            np.testing.assert_array_equal(block.physics.pose[env], alone.physics.pose[0])
            for name in ("self", "others", "lidar", "mask_others", "mask_boxes", "mask_ramps"):
                left, right = block.observation.fields[name][env], answer.obs[name][0]
                np.testing.assert_array_equal(left[answer.present[0]], right[answer.present[0]], name)
    assert (blocks[0].grabbing.held >= 0).any()
    assert blocks[0].locking.locked.any()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_padded_world_equals_one_of_exactly_those_present(preset: str) -> None:
    """Bit for bit in most worlds; in some the solver stops an iteration earlier or later, which is worth 1e-10."""
    rng = np.random.default_rng(4)
    padded = make_block(1, preset=preset, prep_fraction=0.0)
    padded.reset(seed=0)
    differences, held = [], 0
    for hiders, seekers in ((1, 1), (1, 3), (2, 1), (2, 2), (3, 2)):
        layout = draw_layout(rng, HideAndSeekConfig(num_hiders=(hiders, hiders), num_seekers=(seekers, seekers)))
        boxes = len(layout.boxes)
        exact = make_block(
            1,
            preset=preset,
            prep_fraction=0.0,
            num_hiders=(hiders, hiders),
            num_seekers=(seekers, seekers),
            max_hiders=hiders,
            max_seekers=seekers,
            num_boxes=(boxes, boxes),
        )
        exact.reset(seed=0)
        agents = [*range(hiders), *range(3, 3 + seekers)]
        bodies = [*agents, *range(6, 6 + boxes), 15, 16]
        for block in (padded, exact):
            block.start_in(0, layout)
        for step in range(20):
            if step % 4 == 0:
                actions = loading_actions(rng, padded)
                actions[:, 3:, 4] = 0
            padded.step(actions)
            exact.step(actions[:, agents])
            held += (exact.grabbing.held >= 0).sum()
        differences.append(np.abs(padded.physics.pose[0, bodies] - exact.physics.pose[0]).max())
    assert held > 10
    assert max(differences) < 1e-8
    assert differences.count(0.0) >= 3


def play(preset: str, *, is_sleep_on: bool, num_envs: int, steps: int) -> tuple[np.ndarray, list[EpisodeRecord]]:
    """Poses [steps, E, N, 4] and the finished episodes of loading play, equal but for sleep."""
    block = make_block(num_envs, preset=preset, prep_fraction=0.0, horizon=steps, threads=2)
    if not is_sleep_on:
        block.physics.batch.expand("opt.enableflags")[...] &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    block.reset(seed=3)
    rng = np.random.default_rng(0)
    poses = []
    for step in range(steps):
        if step % 4 == 0:
            actions = loading_actions(rng, block)
        answer = block.step(actions)
        poses.append(block.physics.pose.copy())
    return np.array(poses), answer.episodes


@pytest.mark.parametrize("preset", PRESETS)
def test_sleeping_changes_nothing_to_speak_of(preset: str) -> None:
    """What sleeps stops settling into the floor, by micrometres; in some worlds chaos magnifies that."""
    asleep, awake = (play(preset, is_sleep_on=is_on, num_envs=32, steps=21)[0] for is_on in (True, False))
    difference = np.abs(asleep - awake)[..., :3].max(axis=(2, 3))
    assert difference[19].max() > 0.0  # something slept
    assert (difference[4] < 1e-3).mean() > 0.9
    assert np.median(difference[19]) < 1e-4
    assert (difference[19] < 1e-3).mean() > 0.7


def test_sleeping_keeps_the_behaviour_statistics() -> None:
    records = [play("default", is_sleep_on=is_on, num_envs=32, steps=60)[1] for is_on in (True, False)]
    for key in records[0][0].summary:
        asleep, awake = (np.array([record.summary[key] for record in each]) for each in records)
        standard_error = (asleep - awake).std(ddof=1) / np.sqrt(len(awake))
        assert abs((asleep - awake).mean()) <= 3.5 * standard_error + 1e-4, key
