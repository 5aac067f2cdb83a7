"""PettingZoo environments as blocks: who is asked, who is paid, who has ended, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from srl_ray.core.errors import ConfigError, EnvironmentFault
from srl_ray.core.types import ACTION_MASK
from srl_ray.envs.config import EnvConfig
from srl_ray.envs.contract import check_block, check_contract, random_actions
from srl_ray.envs.factory import make_block
from srl_ray.envs.pettingzoo_block import PettingZooBlock, team_of
from tests.behaviour.turns_env import Turns

pytestmark = pytest.mark.unit


class Parallel:
    """The parallel API around `play(actions) → {agent: (obs, reward, terminated, truncated)}`."""

    def __init__(self, num_agents: int, obs: Any = None) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.space = obs or spaces.Box(-100.0, 100.0, (1,))
        self.received: list[dict[str, Any]] = []
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def first(self) -> dict[str, Any]:
        return {agent: np.zeros(1, np.float32) for agent in self.possible_agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t = 0
        self.seeds.append(seed)
        self.agents = list(self.possible_agents)
        observations = self.first()
        return observations, {agent: {} for agent in observations}

    def play(self, actions: dict[str, Any]) -> dict[str, tuple[Any, float, bool, bool]]:
        raise NotImplementedError

    def step(self, actions: dict[str, Any]) -> Any:
        self.received.append(actions)
        self.t += 1
        answers = self.play(actions)
        over = [agent for agent, (*_, terminated, truncated) in answers.items() if terminated or truncated]
        self.agents = [agent for agent in self.agents if agent not in over]
        observations = {agent: obs for agent, (obs, *_) in answers.items() if obs is not None}
        parts = [{agent: answer[i] for agent, answer in answers.items()} for i in (1, 2, 3)]
        return observations, *parts, {agent: {} for agent in answers}

    def close(self) -> None:
        pass


class EndOneByOne(Parallel):
    """Agent i ends at step 1, 4, 9: reward 1 per step of its own and 5 at its end, which shows no observation."""

    ENDS = (1, 4, 9)

    def __init__(self) -> None:
        super().__init__(3)

    def play(self, actions: dict[str, Any]) -> dict[str, tuple[Any, float, bool, bool]]:
        assert sorted(actions) == sorted(self.agents), "actions of exactly the agents that live"
        answers = {}
        for agent in self.agents:
            is_over = self.t == self.ENDS[int(agent[-1])]
            obs = None if is_over else np.full(1, self.t, np.float32)
            answers[agent] = (obs, 6.0 if is_over else 1.0, is_over, False)
        return answers


class Teams(Parallel):
    """Episodes of 2, 3, 4, 2 ... agents, 1 per step, 10 steps; a fifth agent comes in episode `fifth`."""

    def __init__(self, fifth: int | None = None) -> None:
        super().__init__(4)
        self.episode, self.fifth = -1, fifth

    def first(self) -> dict[str, Any]:
        self.episode += 1
        size = 5 if self.episode == self.fifth else 2 + self.episode % 3
        self.agents = [f"agent_{i}" for i in range(size)]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}

    def play(self, actions: dict[str, Any]) -> dict[str, tuple[Any, float, bool, bool]]:
        assert sorted(actions) == sorted(self.agents)
        return {agent: (np.full(1, self.t, np.float32), 1.0, False, self.t == 10) for agent in self.agents}


class Late(Parallel):
    """Agent 1 joins at step 2 and is there at the end; agent 0 ends at step 3 and comes back at step 5."""

    def __init__(self) -> None:
        super().__init__(2)

    def first(self) -> dict[str, Any]:
        self.agents = ["agent_0"]
        return {"agent_0": np.zeros(1, np.float32)}

    def play(self, actions: dict[str, Any]) -> dict[str, tuple[Any, float, bool, bool]]:
        if self.t in (2, 5):
            self.agents = ["agent_0", "agent_1"]
        obs = np.full(1, self.t, np.float32)
        return {a: (obs, 1.0, a == "agent_0" and self.t == 3, self.t == 6) for a in self.agents}


def block_of(make: Any, num_envs: int = 1, **options: Any) -> PettingZooBlock:
    return PettingZooBlock(make, num_envs, env_id="probe", **{"on_error": "stop"} | options)


def play(block: PettingZooBlock, steps: int, action: int = 1) -> list[Any]:
    """Answers, with arrays of their own."""
    answers = []
    for t in range(steps + 1):
        shape = (block.spec.num_envs, block.spec.group.num_agents, 1)
        answer = block.reset(3) if t == 0 else block.step(np.full(shape, action, np.int64))
        for name in ("present", "on_reset", "reward", "terminated", "truncated"):
            setattr(answer, name, getattr(answer, name).copy())
        answer.final_obs = {name: x.copy() for name, x in answer.final_obs.items()}
        answers.append(answer)
    return answers


def test_agents_that_end_one_by_one_have_their_own_returns_and_no_last_observation() -> None:
    answers = play(block_of(EndOneByOne), 9)
    assert [a.terminated[0].astype(int).tolist() for a in answers[1:]] == [
        [1, 0, 0], *[[0, 0, 0]] * 2, [0, 1, 0], *[[0, 0, 0]] * 4, [0, 0, 1]
    ]  # fmt: skip
    assert answers[1].present[0].tolist() == [False, True, True]
    assert all(len(a.final_lanes) == 0 for a in answers)
    assert answers[9].present.all(), "the next episode has begun"
    assert answers[9].on_reset.all()
    (record,) = answers[9].episodes
    assert record.returns == {"agent_0": 6.0, "agent_1": 9.0, "agent_2": 14.0}
    assert record.lengths == {"agent_0": 1, "agent_1": 4, "agent_2": 9}
    assert record.length == 9


def test_only_agents_with_an_observation_are_asked() -> None:
    block = block_of(Turns)
    answers = play(block, 200)
    asked = np.array([a.present[0] for a in answers[:-1]])
    assert asked.sum(1).max() == 1
    assert (asked.sum(1) == 0).mean() == pytest.approx(0.1, abs=0.01), "idle steps"
    records = [record for a in answers for record in a.episodes]
    assert len(records) == 5
    for record in records:
        assert sum(record.returns.values()) == sum(record.lengths.values()) == 36, "of 40 steps every tenth is idle"


def test_a_reward_between_turns_reaches_an_agent_that_is_not_there() -> None:
    answers = play(block_of(Turns), 2)
    assert answers[1].reward[0].tolist() == [1, 0, 0, 0], "agent 0 is paid, and not asked again"
    assert answers[1].present[0].tolist() == [False, True, False, False]


def test_absent_agents_take_no_part_in_an_episode() -> None:
    answers = play(block_of(Teams), 60)
    records = [record for a in answers for record in a.episodes]
    assert [len(record.returns) for record in records] == [2, 3, 4, 2, 3, 4]
    assert {value for record in records for value in record.returns.values()} == {10.0}
    assert sum(int(a.present.sum()) for a in answers[:-1]) == sum(sum(r.lengths.values()) for r in records)


def test_more_agents_than_declared_are_refused_by_name() -> None:
    with pytest.raises(EnvironmentFault, match=r"'agent_4', which is not in possible_agents .*'agent_3'\]"):
        play(block_of(lambda: Teams(fifth=1)), 11)


def test_agents_join_late_and_come_back() -> None:
    answers = play(block_of(Late), 6)
    assert [a.present[0].tolist() for a in answers[:6]] == [
        [True, False], [True, False], [True, True], [False, True], [False, True], [True, True]
    ]  # fmt: skip
    assert answers[2].on_reset[0].tolist() == [False, True]
    assert answers[5].on_reset[0].tolist() == [True, False]
    assert answers[3].final_lanes.tolist() == [0]
    assert answers[3].final_obs["obs"][0].tolist() == [3.0]
    assert answers[6].truncated[0].tolist() == [True, True]


def test_every_environment_has_its_own_seed_and_episode() -> None:
    envs: list[Teams] = []

    def make() -> Teams:
        envs.append(Teams())
        return envs[-1]

    block = block_of(make, num_envs=2)
    answers = play(block, 10)
    assert envs[0].seeds[0] != envs[1].seeds[0]
    assert envs[0].seeds[1:] == [None], "later episodes go on from the environment's own generator"
    assert [record.env_index for record in answers[-1].episodes] == [0, 1]


# -- faults ------------------------------------------------------------------------------------------------------------


class Broken(Teams):
    """Fails at step 4 of its first episode, in the way that is asked for."""

    failures = 0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def play(self, actions: dict[str, Any]) -> dict[str, tuple[Any, float, bool, bool]]:
        answers = super().play(actions)
        if self.t == 4 and Broken.failures == 0:
            Broken.failures += 1
            obs, reward, *flags = answers["agent_1"]
            match self.how:
                case "raise":
                    raise RuntimeError("sim diverged")
                case "nan":
                    answers["agent_1"] = (np.full(1, np.nan, np.float32), reward, *flags)
                case "inf":
                    answers["agent_1"] = (obs, float("inf"), *flags)
                case "shape":
                    answers["agent_1"] = (np.zeros(2, np.float32), reward, *flags)
                case "vanish":
                    self.agents.remove("agent_1")
                    del answers["agent_1"]
                case "reward":
                    answers["agent_1"] = (obs, "much", *flags)  # type: ignore[assignment]
        return answers


@pytest.mark.parametrize("how", ["raise", "nan", "inf"])
def test_a_fault_costs_its_environment_an_episode_and_its_sibling_nothing(how: str) -> None:
    Broken.failures = 0
    block = block_of(lambda: Broken(how), num_envs=2, on_error="restart", on_nonfinite="drop")
    answers = play(block, 14)
    cut = answers[4]
    assert cut.truncated[0].tolist() == [True, True, False, False]
    assert not cut.truncated[1].any()
    assert len(cut.final_lanes) == 0
    assert cut.on_reset[0].any()
    (discarded,) = cut.episodes
    assert discarded.discarded
    assert discarded.env_index == 0
    kept = [record for a in answers for record in a.episodes if not record.discarded]
    assert {value for record in kept for value in record.returns.values()} == {10.0}
    assert block.num_faults == 1


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("nan", "observation field 'obs' became nan .* of agent 'agent_1' at step 4"),
        ("inf", "the reward of 'agent_1' became inf at step 4"),
        ("shape", "agent 'agent_1': observation field 'obs': expected"),
        ("vanish", r"agents \['agent_1'\] left `agents` without a termination"),
        ("reward", "reward of 'agent_1': expected a number, found 'much'"),
    ],
)
def test_what_is_wrong_is_said_with_agent_and_field(how: str, text: str) -> None:
    Broken.failures = 0
    with pytest.raises(EnvironmentFault, match=text):
        play(block_of(lambda: Broken(how)), 5)


def test_an_environment_that_raises_ends_the_run_where_faults_are_not_forgiven() -> None:
    Broken.failures = 0
    with pytest.raises(EnvironmentFault, match="sim diverged"):
        play(block_of(lambda: Broken("raise"), on_error="stop"), 5)


def test_different_spaces_are_refused_with_what_to_do() -> None:
    class Unequal(Teams):
        def observation_space(self, agent: str) -> Any:
            return spaces.Box(-1.0, 1.0, (1 if agent == "agent_0" else 2,))

    with pytest.raises(
        ConfigError, match=r"observation spaces differ: Box.* of 'agent_0', Box.* of 'agent_1'.*supersuit"
    ):
        block_of(Unequal)


def test_agents_must_be_declared() -> None:
    class Undeclared(Teams):
        def __init__(self) -> None:
            super().__init__()
            self.possible_agents = []

    with pytest.raises(ConfigError, match="has no possible_agents"):
        block_of(Undeclared)


def outside() -> Any:
    class Outside(Teams):
        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0.0, 3.0, (1,))

    return Outside()


def test_the_contract_check_looks_at_every_agent() -> None:
    with pytest.raises(EnvironmentFault, match=r"agent 'agent_0': observation field 'obs': expected 0 to 3 .* found 4"):
        check_contract(EnvConfig(factory=outside))


def test_teams_are_named_after_their_agents() -> None:
    assert [team_of(a) for a in ("adversary_0", "player-2", "hider3", "walker", "7")] == [
        "adversary", "player", "hider", "walker", "agents"
    ]  # fmt: skip


# -- PettingZoo's own environments -------------------------------------------------------------------------------------


def test_a_board_game_is_played_in_turns_with_legal_moves() -> None:
    tictactoe = pytest.importorskip(
        "pettingzoo.classic.tictactoe_v3", reason="pettingzoo or pygame-ce is not installed"
    )
    block = make_block(EnvConfig(factory=tictactoe.env, envs_per_block=4))
    assert block.spec.group.obs[ACTION_MASK].shape == (9,)
    rng = np.random.default_rng(0)
    answer, records, moves = block.reset(1), [], np.zeros((4, 2), int)
    for _ in range(200):
        assert (answer.present.sum(1) == 1).all(), "one player per game is asked"
        moves += answer.present
        mask = answer.obs[ACTION_MASK].reshape(8, 9)
        mask[~answer.present.reshape(-1)] = True
        answer = block.step(random_actions(block.spec.group.action, 8, rng, mask).reshape(4, 2, 1))
        records += answer.episodes
    assert len(records) > 60
    for record in records:
        assert sum(record.returns.values()) == 0.0, json.dumps(record.returns)
        assert 5 <= record.length <= 9
        assert record.lengths["player_1"] - record.lengths["player_2"] in (0, 1)


def test_hide_and_seek_plays_the_same_through_this_block_as_through_its_own() -> None:
    pytest.importorskip("pettingzoo")
    from srl_ray.envs.hide_and_seek.block import make_block as make_native
    from srl_ray.envs.hide_and_seek.parallel import parallel_env

    settings: dict[str, Any] = {"scenario": "quadrant", "horizon": 6}
    ours = block_of(lambda: parallel_env(**settings))
    native = make_native(1, **settings)
    from srl_ray.envs.gymnasium_block import env_seed

    answer, expected = ours.reset(5), native.reset(env_seed(5, 0))
    rng = np.random.default_rng(0)
    for _ in range(15):
        np.testing.assert_array_equal(answer.present, expected.present)
        np.testing.assert_allclose(answer.reward, expected.reward, atol=1e-6)
        np.testing.assert_array_equal(answer.truncated, expected.truncated)
        for name, field in expected.obs.items():
            np.testing.assert_array_equal(answer.obs[name][answer.present], field[expected.present], err_msg=name)
        actions = random_actions(native.spec.group.action, native.spec.num_lanes, rng, None)
        actions = actions.reshape(1, native.spec.group.num_agents, -1)
        answer, expected = ours.step(actions), native.step(actions)


def test_a_block_keeps_its_own_rules() -> None:
    for make in (EndOneByOne, Turns, Teams, Late):
        check_block(block_of(make, num_envs=2), steps=50)
