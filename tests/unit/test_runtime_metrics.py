"""Metrics files, the console line, episode sampling and rotation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from srl_ray.runtime.metrics import MetricsWriter, format_line, read_metrics

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def episodes_in(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_that_do_not_exist_are_absent(tmp_path: Path):
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        metrics.write({"env_steps": 10, "loss": float("nan"), "return/a": None, "rate": np.float32(0.5)})
    (record,) = read_metrics(tmp_path)
    assert record == {"env_steps": 10, "rate": 0.5, "time_unix_s": record["time_unix_s"]}


def test_every_record_is_on_disk_when_write_returns(tmp_path: Path):
    metrics = MetricsWriter(tmp_path, tensorboard=False)
    metrics.write({"env_steps": 1})
    assert len(read_metrics(tmp_path)) == 1
    metrics.close()
    metrics.close()


def test_records_beyond_the_resumed_checkpoint_are_removed(tmp_path: Path):
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        for step in (10, 20, 30):
            metrics.write({"env_steps": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 4')
    with MetricsWriter(tmp_path, tensorboard=False, resumed_env_steps=20) as metrics:
        metrics.write({"env_steps": 25})
    assert [r["env_steps"] for r in read_metrics(tmp_path)] == [10, 20, 25]


def test_the_console_line_shows_what_there_is():
    assert format_line({"env_steps": 1500}) == "1,500 env steps"
    line = format_line(
        {
            "env_steps": 1500,
            "rate/agent_steps_per_s": 2345.6,
            "rate/updates_per_s": 1.25,
            "staleness/mean": 0.5,
            "buffer/fill": 0.75,
            "return/hiders": -2.0,
            "return/seekers": 2.0,
            "restarts/actor": 1,
            "restarts/trainer": 0,
        }
    )
    assert line == (
        "1,500 env steps · 2,346 agent steps/s · 1.25 updates/s · staleness 0.50 · buffer 75% · "
        "return hiders -2 seekers 2 · restarts actor 1"
    )


def test_the_console_gets_one_line_per_record(tmp_path: Path):
    lines: list[str] = []
    with MetricsWriter(tmp_path, tensorboard=False, console=lines.append) as metrics:
        metrics.write({"env_steps": 1})
        metrics.write({"env_steps": 2})
    assert lines == ["1 env steps", "2 env steps"]


def test_few_episodes_are_all_kept(tmp_path: Path):
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        metrics.write_episodes([{"length": 5, "returns": {"agent": np.float64(1.5)}}] * 3, env_steps=9)
    lines = episodes_in(tmp_path / "episodes.jsonl")
    assert len(lines) == 3
    assert lines[0]["rate"] == 1.0
    assert lines[0]["returns"] == {"agent": 1.5}


def test_many_episodes_are_sampled_evenly_with_their_rate(tmp_path: Path):
    clock = Clock()
    with MetricsWriter(tmp_path, tensorboard=False, now=clock, episodes_per_s=100.0) as metrics:
        metrics.write_episodes([], env_steps=0)
        for _ in range(3):
            clock.s += 2.0
            metrics.write_episodes([{"length": i} for i in range(1000)], env_steps=1)
    lines = episodes_in(tmp_path / "episodes.jsonl")
    assert len(lines) <= 100 + 6 * 100
    assert len(lines) >= 6 * 100 - 100
    assert lines[-1]["rate"] == 0.2
    lengths = [line["length"] for line in lines[-200:]]
    assert lengths == list(range(0, 1000, 5))


def test_episode_files_are_rotated_and_bounded(tmp_path: Path):
    clock = Clock()
    with MetricsWriter(tmp_path, tensorboard=False, now=clock, rotate_bytes=200, keep_rotated=2) as metrics:
        for i in range(50):
            clock.s += 1.0
            metrics.write_episodes([{"length": i}], env_steps=i)
    names = sorted(p.name for p in tmp_path.glob("episodes*"))
    assert names == ["episodes.1.jsonl", "episodes.2.jsonl", "episodes.jsonl"]
    assert episodes_in(tmp_path / "episodes.1.jsonl")[-1]["length"] in (47, 48, 49)


def test_tensorboard_events_carry_the_same_names(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsWriter(tmp_path) as metrics:
        metrics.write({"env_steps": 10, "loss/policy": 0.5})
        metrics.write({"env_steps": 10, "loss/policy": 0.6})
        metrics.write({"env_steps": 20, "loss/policy": 0.25})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/policy")] == [(10, 0.5), (20, 0.25)]
