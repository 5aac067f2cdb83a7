"""Promises of the other faces of hide-and-seek: PettingZoo, Gymnasium, and a loop of one's own."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from srl_ray.core.types import Arrays, EpisodeRecord
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.factory import make_block as make_any_block
from srl_ray.envs.hide_and_seek import make_block
from srl_ray.envs.hide_and_seek.gymnasium_env import IDS, SingleAgentEnv

pytestmark = pytest.mark.unit


def fail_in_step(block: Any, step: int, env: int = 0) -> None:
    """Have one simulation of a block move at 100 m/s in a step to come."""
    physics_step: Callable[[], np.ndarray] = block.physics.step
    steps = iter(range(10_000))

    def failing() -> np.ndarray:
        failed = physics_step()
        failed[env] |= next(steps) == step
        return failed

    block.physics.step = failing


# --- a loop of one's own ----------------------------------------------------------------------------------------------


def test_the_package_needs_neither_ray_nor_torch() -> None:
    code = (
        "import sys, srl_ray.envs.hide_and_seek, srl_ray.envs.hide_and_seek.gymnasium_env\n"
        "assert not {'ray', 'torch', 'hydra', 'omegaconf'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_environment_of_hide_and_seek_plays_the_same_in_blocks_of_any_size() -> None:
    small, large = make_block(1, horizon=12), make_block(3, horizon=12)
    one, three = small.reset(seed=7), large.reset(seed=7)
    rng = np.random.default_rng(0)
    records: list[list[EpisodeRecord]] = [[], []]
    for _ in range(30):
        np.testing.assert_array_equal(one.present[0], three.present[0])
        for name, field in one.obs.items():
            np.testing.assert_array_equal(field[0][one.present[0]], three.obs[name][0][one.present[0]])
        actions = rng.integers(0, [11, 11, 11, 2, 2], size=(3, 6, 5))
        one, three = small.step(actions[:1]), large.step(actions)
        for seen, answer in zip(records, (one, three)):
            seen += [record for record in answer.episodes if record.env_index == 0]
    assert records[0] == records[1]
    assert len(records[0]) == 2


@pytest.mark.parametrize("section", ["Use it anywhere", "Transfer suite"])
def test_the_examples_of_the_page_run(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hide_and_seek.md").read_text(encoding="utf-8")
    text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        if "parallel_env" in example:
            pytest.importorskip("pettingzoo", reason="pettingzoo is an optional extra")
        exec(example, {})
    assert capsys.readouterr().out


# --- PettingZoo -------------------------------------------------------------------------------------------------------


def make_parallel(**settings: Any) -> Any:
    pytest.importorskip("pettingzoo", reason="pettingzoo is an optional extra")
    from srl_ray.envs.hide_and_seek.parallel import parallel_env

    return parallel_env(**settings)


@pytest.mark.parametrize("scenario", ["quadrant", "randomwalls"])
def test_pettingzoos_own_test_passes_without_a_warning(scenario: str) -> None:
    env = make_parallel(scenario=scenario, num_hiders=(3, 3), num_seekers=(3, 3), horizon=40)
    from pettingzoo.test import parallel_api_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=100)


def test_pettingzoos_own_test_passes_with_changing_teams() -> None:
    env = make_parallel(horizon=20)
    from pettingzoo.test import parallel_api_test

    with warnings.catch_warnings():  # it expects every possible agent to have played when an episode is over
        warnings.filterwarnings("ignore", message="No agents present but not all possible_agents")
        warnings.filterwarnings("error", message="Live agent|Agent was given")
        parallel_api_test(env, num_cycles=100)


def test_pettingzoos_own_seed_test_passes() -> None:
    make_parallel()
    from pettingzoo.test import parallel_seed_test

    parallel_seed_test(lambda: make_parallel(horizon=50), num_cycles=60)


def test_parallel_environments_play_as_environment_0_of_a_block() -> None:
    env, block = make_parallel(horizon=15), make_block(2, horizon=15)
    agents = env.possible_agents
    assert agents == ["hider_0", "hider_1", "hider_2", "seeker_0", "seeker_1", "seeker_2"]
    observations, infos = env.reset(seed=11)
    answer = block.reset(seed=11)
    rng = np.random.default_rng(0)
    teams = set()
    for _ in range(8):
        present = [agent for slot, agent in enumerate(agents) if answer.present[0, slot]]
        teams.add(tuple(present))
        assert env.agents == present
        assert set(observations) == set(infos) == set(present)
        while env.agents:
            assert all(observations[agent] in env.observation_space(agent) for agent in present)
            for slot, agent in enumerate(agents):
                if agent in present:
                    assert_equal(observations[agent], {name: field[0, slot] for name, field in answer.obs.items()})
            actions = rng.integers(0, [11, 11, 11, 2, 2], size=(2, 6, 5))
            answer = block.step(actions)
            observations, rewards, terminations, truncations, infos = env.step(
                {agent: actions[0, agents.index(agent)] for agent in env.agents}
            )
            for agent in present:
                slot = agents.index(agent)
                assert rewards[agent] == answer.reward[0, slot]
                assert truncations[agent] == answer.truncated[0, slot]
                assert not terminations[agent]
        rows = np.nonzero(answer.final_lanes < 6)[0]
        for row, agent in zip(rows, present, strict=True):
            assert_equal(observations[agent], {name: field[row] for name, field in answer.final_obs.items()})
        (record,) = (record for record in answer.episodes if record.env_index == 0)
        assert all(infos[agent]["summary"] == record.summary for agent in present)
        observations, infos = env.reset()
    assert len(teams) > 3


def assert_equal(observation: Arrays, row: Arrays) -> None:
    assert set(observation) == set(row)
    for name, value in observation.items():
        np.testing.assert_array_equal(value, row[name], err_msg=name)


def test_a_reset_in_the_middle_begins_the_next_episode_and_a_seed_the_first() -> None:
    env = make_parallel(horizon=30)
    first, _ = env.reset(seed=4)
    env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    second, _ = env.reset()
    assert not np.array_equal(first["hider_0"]["self"], second["hider_0"]["self"])
    again, _ = env.reset(seed=4)
    assert_equal(again["hider_0"], first["hider_0"])


def test_a_failed_simulation_is_truncated_and_told_and_the_next_episode_is_sound() -> None:
    env = make_parallel(horizon=30)
    env.reset(seed=4)
    fail_in_step(env.block, 3)
    for step in range(4):
        agents = env.agents
        before = env._last
        observations, rewards, _, truncations, infos = env.step({agent: np.array([5, 5, 5, 0, 0]) for agent in agents})
        assert all(truncations.values()) == (step == 3)
    assert env.agents == []
    assert all(infos[agent] == {"discarded": True} for agent in agents)
    assert set(rewards.values()) == {0.0}
    for agent in agents:
        assert_equal(observations[agent], before[agent])
    env.reset()
    assert env.agents


def test_pictures_come_in_rgb_array_and_other_modes_are_refused() -> None:
    env = make_parallel(render_mode="rgb_array", scenario="quadrant")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert len(np.unique(picture)) > 20
    with pytest.raises(ValueError, match="render_mode is 'human'"):
        make_parallel(render_mode="human")


# --- Gymnasium --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_own_check_passes(env_id: str) -> None:
    env = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space m.*imum value is .*infinity")
        check_env(env)


@pytest.mark.parametrize("env_id", ["srl_ray/LockAndReturn-v0", "srl_ray/Blueprint-v0"])
def test_gymnasium_environments_play_as_environments_of_a_block(env_id: str) -> None:
    env = gymnasium.make(env_id, horizon=12)
    envs = gymnasium.make_vec(env_id, num_envs=3, horizon=12)
    block = make_block(3, task=IDS[env_id], horizon=12)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, _ = env.reset(seed=2)
    observations, _ = envs.reset(seed=2)
    answer = block.reset(seed=2)
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(30):
        rows = {name: field[:, 0] for name, field in answer.obs.items()}
        assert_equal(observations, rows)
        assert_equal(observation, {name: field[0] for name, field in rows.items()})
        assert observations in envs.observation_space
        actions = rng.integers(0, [11, 11, 11, 2, 2], size=(3, 5))
        answer = block.step(actions[:, None])
        observation, reward, terminated, truncated, info = env.step(actions[0])
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        np.testing.assert_array_equal(rewards, answer.reward[:, 0])
        np.testing.assert_array_equal(terminations, answer.terminated[:, 0])
        np.testing.assert_array_equal(truncations, answer.truncated[:, 0])
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        if terminated or truncated:
            ends += 1
            last = {name: field[0] for name, field in answer.final_obs.items()}
            assert_equal(observation, last)
            assert_equal(infos["final_obs"][0], last)
            assert info["summary"] == answer.episodes[0].summary
            assert {key: infos["final_info"]["summary"][key][0] for key in info["summary"]} == info["summary"]
            observation, _ = env.reset()
    assert ends == 2


def test_a_failed_simulation_of_a_vector_is_truncated_with_its_last_observation() -> None:
    envs: Any = gymnasium.make_vec("srl_ray/Shelter-v0", num_envs=2)
    before, _ = envs.reset(seed=1)
    fail_in_step(envs.block, 0, env=1)
    observations, _, _, truncations, infos = envs.step(np.full((2, 5), 5))
    assert truncations.tolist() == [False, True]
    assert_equal(infos["final_obs"][1], {name: field[1] for name, field in before.items()})
    assert infos["final_info"]["discarded"][1]
    assert not np.array_equal(observations["boxes"][1], before["boxes"][1])


def test_a_game_of_several_agents_is_no_gymnasium_environment() -> None:
    with pytest.raises(ValueError, match=r"hide_and_seek has 6 agents.*parallel_env"):
        SingleAgentEnv(task="hide_and_seek")


def test_ids_are_known_after_importing_the_package_or_by_naming_it() -> None:
    code = (
        "import gymnasium\n"
        "env = gymnasium.make('srl_ray.envs.hide_and_seek:srl_ray/Blueprint-v0', horizon=5)\n"
        "assert env.reset(seed=0)[0]['sites'].shape == (4, 15)\n"
        "assert 'srl_ray/LockAndReturn-v0' in gymnasium.registry\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_factory_makes_the_tasks_by_their_keyword() -> None:
    block = make_any_block(EnvConfig(id="hide_and_seek", kwargs={"task": "shelter"}), 2)
    assert block.spec.env_id == "shelter"
    assert block.spec.group.agent_ids == ("hider_0",)


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_the_factory_takes_the_gymnasium_ids_too(vectorization: str) -> None:
    config = EnvConfig(id="srl_ray/Blueprint-v0", vectorization=vectorization, kwargs={"horizon": 5})
    block, own = make_any_block(config, 2), make_block(2, task="blueprint", horizon=5)
    assert set(block.spec.group.obs) == set(own.spec.group.obs)
    block.reset(seed=3)
    lengths = []
    for _ in range(10):
        answer = block.step(np.full((2, 1, 5), 5))
        lengths += [record.length for record in answer.episodes]
        if answer.episodes:
            assert len(answer.final_lanes) == 2
            assert answer.final_obs["mask_sites"].any()
    assert lengths == [5] * 4
    block.close()
