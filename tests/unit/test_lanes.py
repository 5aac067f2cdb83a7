"""Rows and chunks follow the row conventions to the letter."""

from __future__ import annotations

import numpy as np
import pytest

from srl_ray.actors.lanes import Chunks, LaneTable, Request
from srl_ray.core.types import AgentGroup, BlockSpec, ChunkLayout, DiscreteActions, FieldSpec
from srl_ray.envs.block import BlockStep
from srl_ray.streams.inference import InferenceReply

pytestmark = pytest.mark.unit

STATE = 2


def make_spec(num_envs: int, num_agents: int = 1) -> BlockSpec:
    group = AgentGroup(
        "agents",
        tuple(f"a{i}" for i in range(num_agents)),
        {"obs": FieldSpec((), np.dtype(np.float32))},
        DiscreteActions((9,)),
    )
    return BlockSpec("fake", num_envs, group)


class Driver:
    """Feeds scripted steps; the policy's answer to an observation x is value x / 10 and state + x."""

    def __init__(self, layout: ChunkLayout, num_envs: int = 1, num_agents: int = 1) -> None:
        self.shape = (num_envs, num_agents)
        spec = make_spec(num_envs, num_agents)
        self.lanes = LaneTable(spec, layout, spec.group.action.field, STATE)
        self.version = 0
        self.grants = True
        self.chunks: list[Chunks] = []
        self.requests: list[Request] = []

    def step(self, obs=None, *, reset=None, reward=0.0, term=None, trunc=None, final=None) -> None:
        """Each argument: one entry per lane; obs None or NaN: not present. final: {lane: observation}."""
        lanes = self.shape[0] * self.shape[1]
        full = lambda x, default: np.full(lanes, default) if x is None else np.broadcast_to(np.asarray(x, float), lanes)  # noqa: E731
        observed = full(obs, np.nan).reshape(self.shape)
        final = final or {}
        step = BlockStep(
            obs={"obs": np.nan_to_num(observed).astype(np.float32)},
            present=~np.isnan(observed),
            on_reset=full(reset, 0).astype(bool).reshape(self.shape),
            reward=full(reward, 0).astype(np.float32).reshape(self.shape),
            terminated=full(term, 0).astype(bool).reshape(self.shape),
            truncated=full(trunc, 0).astype(bool).reshape(self.shape),
            final_lanes=np.array(sorted(final), np.int64),
            final_obs={"obs": np.array([final[lane] for lane in sorted(final)], np.float32)},
        )
        if self.grants:
            self.lanes.grant(np.arange(lanes), 3)
        request = self.lanes.observe(step)
        self.requests.append(request)
        self.lanes.answer(request, self.reply(request))
        chunks = self.lanes.ship()
        if chunks is not None:
            self.chunks.append(chunks)

    def reply(self, request: Request) -> InferenceReply:
        x = request.obs["obs"]
        state = np.where(request.on_reset[:, None], 0, request.state) + x[:, None]
        return InferenceReply((x[:, None] % 9).astype(np.int64), -x, x / 10, state.astype(np.float32), self.version)


def rows_of(chunk: Chunks, name: str, lane: int = 0) -> list:
    return chunk.arrays[name][:, lane].tolist()


def play_worked_example(driver: Driver, mode: str) -> None:
    """A is cut after 3 steps, B ends after 2, C begins; a0=5 a1=4 a2=3 aF=7 b0=2 b1=6 bF=9 c0=1."""
    driver.step(5, reset=1)
    driver.step(4, reward=1)
    driver.step(3, reward=2)
    if mode == "same_step":
        driver.step(2, reset=1, reward=3, trunc=1, final={0: 7})
    else:
        driver.step(None, reward=3, trunc=1, final={0: 7})
        driver.step(2, reset=1, reward=99)
    driver.step(6, reward=4)
    if mode == "same_step":
        driver.step(1, reset=1, reward=5, term=1, final={0: 9})
    else:
        driver.step(None, reward=5, term=1, final={0: 9})
        driver.step(1, reset=1, reward=99)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_worked_example_rows(mode: str) -> None:
    driver = Driver(ChunkLayout(0, 7, 1, 7))
    play_worked_example(driver, mode)
    (chunk,) = driver.chunks
    assert rows_of(chunk, "obs.obs") == [5, 4, 3, 7, 2, 6, 9, 1]
    assert rows_of(chunk, "on_reset") == [1, 0, 0, 0, 1, 0, 0, 1]
    assert rows_of(chunk, "reward") == [1, 2, 3, 0, 4, 5, 0, 0]
    assert rows_of(chunk, "truncated") == [0, 0, 0, 1, 0, 0, 0, 0]
    assert rows_of(chunk, "terminated") == [0, 0, 0, 0, 0, 0, 1, 0]
    np.testing.assert_allclose(rows_of(chunk, "value"), [0.5, 0.4, 0.3, 0.7, 0.2, 0.6, 0, 0.1], rtol=1e-6)
    assert rows_of(chunk, "policy_version") == [0, 0, 0, -1, 0, 0, -1, 0]
    assert rows_of(chunk, "action") == [[5], [4], [3], [0], [2], [6], [0], [1]]
    assert chunk.trained_rows.tolist() == [5]


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_next_chunk_begins_with_the_bootstrap_row_and_its_reward(mode: str) -> None:
    driver = Driver(ChunkLayout(0, 5, 1, 5))
    play_worked_example(driver, mode)
    driver.step(8, reward=6)
    driver.step(7, reward=7)
    first = driver.chunks[0]
    assert rows_of(first, "obs.obs") == [5, 4, 3, 7, 2, 6]
    for value in (6, 5):
        driver.step(value, reward=1)
    second = driver.chunks[1]
    assert rows_of(second, "obs.obs") == [6, 9, 1, 8, 7, 6]
    assert rows_of(second, "reward") == [5, 0, 6, 7, 1, 0]
    assert rows_of(second, "action")[0] == [6]


def test_truncated_final_row_asks_for_its_value_with_the_old_state() -> None:
    driver = Driver(ChunkLayout(0, 7, 1, 7))
    driver.step(5, reset=1)
    driver.step(2, reset=1, trunc=1, final={0: 7})
    request = driver.requests[-1]
    assert request.obs["obs"].tolist() == [2, 7]
    assert request.value_only.tolist() == [False, True]
    assert request.on_reset.tolist() == [True, False]
    assert request.state.tolist() == [[5, 5], [5, 5]]
    driver.step(3)
    assert driver.requests[-1].state.tolist() == [[2, 2]]


def test_terminated_and_truncated_together_count_as_terminated() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 2))
    driver.step(5, reset=1)
    driver.step(2, reset=1, term=1, trunc=1, final={0: 7})
    (chunk,) = driver.chunks
    assert rows_of(chunk, "terminated") == [0, 1, 0]
    assert rows_of(chunk, "truncated") == [0, 0, 0]
    assert rows_of(chunk, "value")[1] == 0


def test_missing_last_observation_is_zero_when_terminated_and_the_last_one_when_truncated() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 2), num_envs=2)
    driver.step([5, 6], reset=1)
    driver.step([1, 1], reset=1, term=[1, 0], trunc=[0, 1])
    (chunk,) = driver.chunks
    assert chunk.arrays["obs.obs"].T.tolist() == [[5, 0, 1], [6, 6, 1]]


def test_two_rows_in_the_last_step_of_a_chunk_spill_into_the_next() -> None:
    driver = Driver(ChunkLayout(0, 3, 1, 3))
    for value, reward in ((1, 0), (2, 1), (3, 1)):
        driver.step(value, reset=value == 1, reward=reward)
    driver.step(5, reset=1, reward=1, term=1, final={0: 4})  # rows 3 and 4 of a four-row chunk
    assert rows_of(driver.chunks[0], "obs.obs") == [1, 2, 3, 4]
    assert rows_of(driver.chunks[0], "reward") == [1, 1, 1, 0]
    for value in (6, 7):
        driver.step(value, reward=2)
    assert rows_of(driver.chunks[1], "obs.obs") == [4, 5, 6, 7]
    assert rows_of(driver.chunks[1], "terminated") == [1, 0, 0, 0]
    assert rows_of(driver.chunks[1], "reward") == [0, 2, 2, 0]


def test_states_are_those_before_each_segment() -> None:
    driver = Driver(ChunkLayout(0, 4, 1, 2))
    for value in range(1, 10):
        driver.step(value, reset=value == 1)
    first, second = driver.chunks
    assert first.arrays["state"][:, 0, 0].tolist() == [0, 3]  # before rows 0 (x=1) and 2 (x=3): 1 + 2
    assert second.arrays["state"][:, 0, 0].tolist() == [10, 21]  # before x=5: 1..4; before x=7: 1..6


def test_burn_in_rows_are_carried_with_their_state() -> None:
    driver = Driver(ChunkLayout(2, 4, 1, 2))
    for value in range(1, 11):
        driver.step(value, reset=value == 1)
    first, second = driver.chunks
    assert rows_of(first, "obs.obs") == [0, 0, 1, 2, 3, 4, 5]
    assert rows_of(first, "valid") == [0, 0, 1, 1, 1, 1, 1]
    assert first.arrays["state"][:, 0, 0].tolist() == [0, 0, 3]
    assert rows_of(second, "obs.obs") == [3, 4, 5, 6, 7, 8, 9]
    assert second.arrays["state"][:, 0, 0].tolist() == [3, 10, 21]


def test_absent_agents_write_nothing_and_their_reward_joins_the_last_acting_row() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 1), num_agents=2)
    nan = np.nan
    driver.step([1, 11], reset=1)
    driver.step([2, nan], reward=[1, 1])
    driver.step([3, nan], reward=[1, 2])
    driver.step([nan, 12], reward=[1, 4])
    driver.step([4, 13], reward=[5, 3])
    by_lane = {lane: chunk for chunk in driver.chunks for lane in chunk.lanes}
    assert by_lane[1].lanes.tolist() == [1]
    assert rows_of(by_lane[1], "obs.obs") == [11, 12, 13]
    assert rows_of(by_lane[1], "reward") == [7, 3, 0]
    assert rows_of(driver.chunks[0], "obs.obs") == [1, 2, 3]


def test_an_absent_agents_lane_ships_what_it_has_with_padding() -> None:
    driver = Driver(ChunkLayout(0, 4, 1, 2), num_agents=2)
    nan = np.nan
    driver.step([1, 1], reset=1)
    driver.step([2, 5], reset=[0, 1], reward=1, term=[0, 1], final={1: 9})
    driver.step([3, nan], term=[0, 1], reward=1, final={1: 8})
    driver.grants = False
    driver.step([4, nan])
    (padded,) = [chunk for chunk in driver.chunks if chunk.lanes.tolist() == [1]]
    assert rows_of(padded, "obs.obs")[:4] == [1, 9, 5, 8]
    assert rows_of(padded, "valid") == [1, 1, 1, 1, 0]
    assert padded.trained_rows.tolist() == [2]
    assert driver.lanes.take_released(3) == 0


def test_an_absent_agents_lane_with_hardly_a_row_gives_its_grant_back() -> None:
    driver = Driver(ChunkLayout(0, 40, 1, 2), num_agents=2)
    nan = np.nan
    driver.step([1, 1], reset=1)
    driver.step([2, nan], reward=1, term=[0, 1], final={1: 9})
    driver.grants = False
    driver.step([3, nan])
    assert driver.lanes.take_released(3) == 1
    assert driver.lanes.take_released(3) == 0
    assert driver.lanes.unrecorded_rows == 2
    driver.step([4, 7], reset=[0, 1])
    assert driver.lanes.ungranted().tolist() == [1]
    assert not driver.chunks


def test_oldest_version_ignores_final_and_bootstrap_rows() -> None:
    driver = Driver(ChunkLayout(0, 3, 1, 3))
    driver.version = 4
    driver.step(1, reset=1)
    driver.version = 5
    driver.step(3, reset=1, term=1, final={0: 2})
    driver.version = 9
    driver.step(4)
    assert driver.chunks[0].oldest_version.tolist() == [4]


def test_lanes_need_a_grant_for_every_chunk() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 2), num_envs=2)
    driver.grants = False
    driver.step([1, 1], reset=1)
    assert driver.lanes.ungranted().tolist() == [0, 1]
    driver.lanes.grant(np.array([0, 1]), 7)
    assert not len(driver.lanes.ungranted())
    assert driver.lanes.wanted(1) == 0
    driver.step([2, 2])
    assert driver.lanes.wanted(1) == 2
    driver.step([3, 3])
    assert driver.chunks[0].trainer_epoch.tolist() == [7, 7]
    assert driver.lanes.ungranted().tolist() == [0, 1]


def test_a_lane_without_a_grant_steps_unrecorded_until_it_comes() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 1), num_envs=2)
    driver.grants = False
    driver.step([1, 11], reset=1)
    driver.lanes.grant(np.array([0]), 0)
    driver.step([2, 12], reward=1)
    driver.step([3, 13], reset=[0, 1], reward=1, trunc=[0, 1], final={1: 99})
    assert driver.requests[-1].obs["obs"].tolist() == [3, 13]
    assert driver.lanes.ungranted().tolist() == [1, 0]
    driver.lanes.grant(np.array([1]), 0)
    driver.step([4, 14], reward=1)
    driver.step([5, 15], reward=2)
    first, second = driver.chunks
    assert first.lanes.tolist() == [0]
    assert rows_of(first, "obs.obs") == [1, 2, 3]
    assert second.lanes.tolist() == [1]
    assert rows_of(second, "obs.obs") == [13, 14, 15]
    assert rows_of(second, "reward") == [1, 2, 0]
    assert rows_of(second, "on_reset") == [1, 0, 0]
    assert second.arrays["state"][:, 0, 0].tolist() == [23, 13]  # unrecorded rows 11 and 12 still moved the state


def test_asking_again_repeats_the_question_before_it_is_acted_on() -> None:
    driver = Driver(ChunkLayout(0, 2, 1, 1), num_envs=2)
    for value in (1, 2, 3):
        driver.step([value, value], reset=value == 1)
    again = driver.lanes.ask_again(np.array([1]))
    assert again.obs["obs"].tolist() == [3]
    assert again.state.tolist() == [[3, 3]]
    driver.version = 7
    driver.lanes.answer(again, driver.reply(again))
    driver.step([4, 4])
    driver.step([5, 5])
    assert driver.chunks[-1].arrays["policy_version"][0].tolist() == [0, 7]


def test_random_play_equals_a_slow_reference() -> None:
    """Every row any lane ever writes appears in its chunks once and in order, whatever ends, appears or vanishes when,
    except for the few of absent agents that were given up and counted."""
    rng = np.random.default_rng(3)
    layout = ChunkLayout(3, 6, 1, 2)
    lanes = 6
    driver = Driver(layout, num_envs=3, num_agents=2)
    rows: list[list[tuple]] = [[] for _ in range(lanes)]
    live = np.zeros(lanes, bool)
    for _ in range(400):
        ended = live & (rng.random(lanes) < 0.15)
        is_term = rng.random(lanes) < 0.5
        starts = (~live | ended) & (rng.random(lanes) < 0.7)
        obs = np.where((live & ~ended) | starts, rng.integers(1, 1000, lanes), np.nan)
        reward = rng.integers(0, 5, lanes)
        final = {lane: int(rng.integers(1000, 2000)) for lane in np.flatnonzero(ended)}
        driver.step(obs, reset=starts, reward=reward, term=ended & is_term, trunc=ended & ~is_term, final=final)
        for lane in range(lanes):
            if live[lane] and rows[lane]:
                rows[lane][-1] = (*rows[lane][-1][:2], rows[lane][-1][2] + reward[lane])
            if ended[lane]:
                rows[lane].append((final[lane], "final", 0))
            if not np.isnan(obs[lane]):
                rows[lane].append((int(obs[lane]), "reset" if starts[lane] else "", 0))
        live = ~np.isnan(obs)
    seen: list[list[tuple]] = [[] for _ in range(lanes)]
    for chunk in driver.chunks:
        for column, lane in enumerate(chunk.lanes):
            a = {name: array[:, column] for name, array in chunk.arrays.items()}
            for t in range(layout.burn_in, layout.burn_in + layout.sample_steps):
                if a["valid"][t]:
                    flag = "final" if a["terminated"][t] | a["truncated"][t] else "reset" if a["on_reset"][t] else ""
                    seen[lane].append((int(a["obs.obs"][t]), flag, int(a["reward"][t])))
    assert sum(map(len, seen)) > 1000
    left_out = 0
    for lane in range(lanes):
        played = iter(enumerate(rows[lane]))
        places = [next(place for place, row in played if row == wanted) for wanted in seen[lane]]
        left_out += sum(after - before - 1 for before, after in zip([-1, *places], places))
    assert left_out <= driver.lanes.unrecorded_rows < 100
