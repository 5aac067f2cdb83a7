"""The benchmark command: intervals, tasks, the results file and its tables. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from srl_ray.benchmark import results, suites
from srl_ray.benchmark.__main__ import main
from srl_ray.benchmark.intervals import estimate, ratio
from srl_ray.benchmark.limits import PARTS, _rate
from srl_ray.benchmark.tasks import NAMES, task_config, task_overrides
from srl_ray.config import compose
from srl_ray.core.errors import ConfigError

pytestmark = pytest.mark.unit

RATES = {
    "env_steps_per_s": 0.0,
    "agent_steps_per_s": 200.0,
    "fresh_rows_per_s": 100.0,
    "rows_per_s": 100.0,
    "startup_s": 7.0,
    "cores": 1.9,
    "peak_mib": 1000.0,
    "staleness": 1.0,
}


def entry(suite: str, variant: str, **values: float) -> results.Measurement:
    return results.Measurement(suite, "cartpole", variant, values, "abc", "2 cores", 0.0)


def test_estimate_of_equal_values_has_no_width():
    assert (estimate([3.0] * 5).low, estimate([3.0] * 5).median, estimate([3.0] * 5).high) == (3.0, 3.0, 3.0)


def test_estimate_covers_the_median_of_the_distribution_in_about_95_of_100_cases():
    rng = np.random.default_rng(0)
    samples = rng.normal(10.0, 1.0, size=(100, 25))
    covered = sum(found.low <= 10.0 <= found.high for found in (estimate(sample, seed=1) for sample in samples))
    assert 88 <= covered <= 100


def test_ratio_of_two_groups():
    found = ratio([200.0, 220.0, 240.0], [100.0, 110.0, 120.0])
    assert found.median == 2.0
    assert found.low < 2.0 < found.high
    assert found.low >= 200 / 120
    assert found.high <= 240 / 100


@pytest.mark.parametrize("task", NAMES)
def test_tasks_are_equal_in_rows_per_update(task: str):
    config = task_config(task)
    rows = config.trainers.batch_chunks * config.actors.sample_steps
    if task == "hide_and_seek":
        assert rows == 48 * 80
    else:
        assert rows == (8192 if task.endswith("-wide") else 2048)
        assert rows // config.algorithm.minibatches == 512
        assert config.actors.count * config.env.envs_per_block == (64 if task.endswith("-wide") else 16)


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no task 'cartpol'; there are cartpole"):
        task_overrides("cartpol")


@pytest.mark.parametrize("task", ["cartpole", "hide_and_seek"])
def test_every_ablation_composes_and_keeps_the_number_of_environments(task: str):
    environments = set()
    for extra in suites.ABLATION.values():
        config = compose(suites.variant_overrides(task_overrides(task), extra))
        environments.add(config.env.envs_per_block * config.actors.ring_size)
    assert environments <= {TASK_ENVIRONMENTS[task], 16}


TASK_ENVIRONMENTS = {"cartpole": 16, "hide_and_seek": 8}


@pytest.mark.parametrize("part", PARTS)
def test_each_limit_is_a_rate(part: str):
    assert _rate(part, "cartpole", 0.02) > 100.0


def test_the_limit_adds_times_and_the_table_shows_the_share(tmp_path: Path):
    out, page = tmp_path / "results.json", tmp_path / "page.md"
    results.append(out, entry("limits", "bare", environment=400.0, inference=800.0, update=800.0, limit=200.0))
    results.append(out, entry("throughput", "srl_ray", **RATES))
    page.write_text("before\n<!-- throughput -->\nold\n<!-- /throughput -->\nafter\n")
    assert results.write_tables(page, results.load(out)) == ["throughput"]
    text = page.read_text()
    assert "| cartpole | srl_ray | 200 (one run) | 100 (one run) | 50% |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert results.write_tables(page, results.load(out)) == ["throughput"]
    assert page.read_text() == text


def test_mistakes_are_said_before_anything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["throughputs"]) == 2
    assert main(["throughput", "tasks=cartpol", f"out={tmp_path}/r.json"]) == 2
    assert main(["tables", f"write={tmp_path}/none.md"]) == 2
    assert "there is no such page" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()
