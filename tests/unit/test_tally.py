"""The driver's counters are exact sums, whatever dies and comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from srl_ray.core.types import EpisodeRecord
from srl_ray.runtime.tally import COUNTERS, Tally

pytestmark = pytest.mark.unit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def actor_report(index: int = 0, epoch: int = 0, seconds: dict | None = None, episodes: Any = (), **counts: int) -> Any:
    values = {**dict.fromkeys(COUNTERS, 0), **counts}
    return SimpleNamespace(index=index, epoch=epoch, seconds=seconds or {}, episodes=list(episodes), **values)


def trainer_report(version: int, updates: Any = (), rank: int = 0, epoch: int = 0, **buffer: int) -> Any:
    return SimpleNamespace(
        rank=rank,
        epoch=epoch,
        version=version,
        rows_trained_fresh=version * 10,
        rows_trained_total=version * 20,
        seconds={"update": float(version)},
        buffer=buffer,
        updates=[SimpleNamespace(version=i, metrics=metrics) for i, metrics in enumerate(updates)],
    )


def episode(returns: dict[str, float], length: int = 5, **kwargs: Any) -> Any:
    record = EpisodeRecord(0, length, returns, **kwargs)
    return SimpleNamespace(time_s=1.0, worker=0, slot=0, policy_version=3, record=record)


def test_counts_are_sums_of_deltas_per_worker_and_life() -> None:
    tally = Tally(team_of={}, now=Clock())
    tally.add_actor(actor_report(0, 0, env_steps=100))
    tally.add_actor(actor_report(1, 0, env_steps=50))
    tally.add_actor(actor_report(0, 0, env_steps=130))
    tally.add_actor(actor_report(0, 1, env_steps=20))  # replaced: its counter began anew
    assert tally.counts["env_steps"] == 200


def test_rates_cover_the_interval_only() -> None:
    clock = Clock()
    tally = Tally(team_of={}, now=clock)
    tally.add_actor(actor_report(env_steps=100, agent_steps=200))
    clock.now_s = 10.0
    assert tally.record()["rate/agent_steps_per_s"] == pytest.approx(20)
    tally.add_actor(actor_report(env_steps=150, agent_steps=300))
    clock.now_s = 15.0
    record = tally.record()
    assert record["rate/agent_steps_per_s"] == pytest.approx(20)
    assert record["rate/env_steps_per_s"] == pytest.approx(10)
    assert record["env_steps"] == 150


def test_returns_are_per_team_and_absent_until_an_episode_ends() -> None:
    tally = Tally(team_of={"h0": "hiders", "h1": "hiders", "s0": "seekers"}, now=Clock())
    assert not [key for key in tally.record() if key.startswith(("return/", "episode/"))]
    rows = tally.add_actor(
        actor_report(
            episodes=[
                episode({"h0": 2.0, "h1": 4.0, "s0": -3.0}, summary={"boxes": 3.0}),
                episode({"h0": 5.0, "s0": -5.0}, length=7, summary={"boxes": 5.0}),
                episode({"h0": 100.0}, discarded=True),
            ]
        )
    )
    record = tally.record()
    assert record["return/hiders"] == pytest.approx(4.0)
    assert record["return/seekers"] == pytest.approx(-4.0)
    assert record["episode/count"] == 2
    assert record["episode/length"] == pytest.approx(6.0)
    assert record["summary/boxes"] == pytest.approx(4.0)
    assert [row.get("discarded", False) for row in rows] == [False, False, True]


def test_one_record_per_update_when_asked() -> None:
    tally = Tally(team_of={}, now=Clock())
    tally.add_trainer(trainer_report(2, updates=[{"policy_loss": 1.0}, {"policy_loss": 3.0}], waiting=4))
    first = tally.record(only_update=0)
    second = tally.record(only_update=0)
    assert (first["policy_version"], first["train/policy_loss"]) == (1, 1.0)
    assert (second["policy_version"], second["train/policy_loss"]) == (2, 3.0)
    assert tally.updates_pending == 0


def test_staleness_is_the_mean_of_means_and_the_max_of_maxima() -> None:
    tally = Tally(team_of={}, now=Clock())
    updates = [{"staleness_mean": 0.0, "staleness_max": 1.0}, {"staleness_mean": 1.0, "staleness_max": 3.0}]
    tally.add_trainer(trainer_report(2, updates=updates))
    record = tally.record()
    assert (record["staleness/mean"], record["staleness/max"]) == (0.5, 3.0)


def test_trained_rows_are_those_of_all_ranks() -> None:
    tally = Tally(team_of={}, now=Clock())
    for rank in range(2):
        tally.add_trainer(trainer_report(3, rank=rank))
    tally.add_trainer(trainer_report(1, rank=0, epoch=1))  # the group was formed anew: its counters began anew
    record = tally.record()
    assert record["rows_trained_fresh"] == 30 + 30 + 10
    assert record["rows_trained_total"] == 2 * record["rows_trained_fresh"]


def test_shares_are_per_worker() -> None:
    clock = Clock()
    tally = Tally(team_of={}, now=clock)
    for index in range(2):
        tally.add_actor(actor_report(index, seconds={"env": 0.0}))
    tally.record()
    for index in range(2):
        tally.add_actor(actor_report(index, seconds={"env": 4.0}))
    clock.now_s = 10.0
    assert tally.record()["share/actor/env"] == pytest.approx(0.4)


def test_rewind_goes_back_to_the_checkpoint_and_counts_on_from_there() -> None:
    tally = Tally(team_of={}, now=Clock())
    tally.add_actor(actor_report(env_steps=100))
    facts = {**tally.facts(), "policy_version": 4}
    tally.add_actor(actor_report(env_steps=160))
    tally.rewind(facts)
    assert tally.counts["env_steps"] == 100
    assert tally.version == 4
    tally.add_actor(actor_report(env_steps=170))
    assert tally.counts["env_steps"] == 110


def test_processor_seconds_of_workers_are_cores() -> None:
    clock = Clock()
    tally = Tally(team_of={}, now=clock)
    tally.add_actor(actor_report(0, seconds={"env": 1.0, "processor": 4.0}))
    tally.add_actor(actor_report(1, seconds={"env": 1.0, "processor": 12.0}))
    clock.now_s = 10.0
    record = tally.record()
    assert record["cores/actor"] == pytest.approx(0.8)
    assert "share/actor/processor" not in record
