"""The benchmark command: intervals, tasks, the results file and its tables. Nothing is timed here."""

from __future__ import annotations

import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from srl_ray.benchmark import figures, peers, results, suites
from srl_ray.benchmark.__main__ import main
from srl_ray.benchmark.intervals import estimate, ratio
from srl_ray.benchmark.limits import PARTS, _rate
from srl_ray.benchmark.tasks import COMMON, NAMES, task_config, task_overrides
from srl_ray.benchmark.training import Finished, run_watched, steady_state
from srl_ray.config import compose
from srl_ray.core.errors import ConfigError, SrlError

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
    assert (estimate([3.0] * 5).low, estimate([3.0] * 5).center, estimate([3.0] * 5).high) == (3.0, 3.0, 3.0)


def test_estimate_covers_the_median_of_the_distribution_in_about_95_of_100_cases():
    rng = np.random.default_rng(0)
    samples = rng.normal(10.0, 1.0, size=(100, 25))
    covered = sum(found.low <= 10.0 <= found.high for found in (estimate(sample, seed=1) for sample in samples))
    assert 88 <= covered <= 100


def test_ratio_of_two_groups():
    found = ratio([200.0, 220.0, 240.0], [100.0, 110.0, 120.0])
    assert found.center == 2.0
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


def test_the_figure_of_a_suite_shows_every_variant_and_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entries = [entry("limits", "bare", limit=200.0)]
    entries += [
        entry("ablation", name, fresh_rows_per_s=rate + i) for name, rate in (("a", 100), ("b", 50)) for i in (0, 2)
    ]
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, out: drawn.append(figure))
    figures.draw_suite(entries, "ablation", tmp_path / "x.png")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [bar.get_width() for bar in axes.patches] == [101, 51]
    assert axes.lines[-1].get_xdata() == [200.0, 200.0]
    assert figures.draw_suite(entries, "peers", tmp_path / "x.png") is None


def test_mistakes_are_said_before_anything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["throughputs"]) == 2
    assert main(["throughput", "tasks=cartpol", f"out={tmp_path}/r.json"]) == 2
    assert main(["tables", f"write={tmp_path}/none.md"]) == 2
    assert "there is no such page" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


# ---------------------------------------------------------------------------------------------------------------- peers


def test_progress_lines_are_found_among_other_output():
    output = "\n".join(
        [
            "a library's warning",
            '{"time_unix_s": 1.5, "env_steps": 2048}',
            '42%|####      |{"time_unix_s": 2.5, "env_steps": 4096} and more',
            '{"time_unix_s": 3.5, "env_',
            '{"other": 1}',
        ]
    )
    assert peers.progress(output) == [
        {"time_unix_s": 1.5, "env_steps": 2048},
        {"time_unix_s": 2.5, "env_steps": 4096},
    ]


def finished(status: int | None = 0) -> Finished:
    process = run_watched([sys.executable, "-c", ""], limit_s=60.0)
    return Finished(["train"], status, "the end of its output", process.watch, begin_unix_s=90.0)


def test_the_steady_state_begins_five_seconds_after_the_first_update():
    times = [(100.0, 10), (104.9, 20), (105.0, 1000), (107.0, 1500), (109.0, 3000)]
    steady = steady_state([{"time_unix_s": t, "env_steps": n} for t, n in times], finished(), at_least_s=3.9)
    assert steady.startup_s == 10.0
    assert steady.rate("env_steps") == 500.0


@pytest.mark.parametrize("status", [0, 1, None])
def test_a_run_that_failed_or_was_too_short_has_no_steady_state(status: int | None):
    last = 105.0 if status == 0 else 200.0
    records = [{"time_unix_s": 100.0}, {"time_unix_s": 105.0}, {"time_unix_s": last}][: 2 if status == 0 else 3]
    with pytest.raises(SrlError, match="the end of its output"):
        steady_state(records, finished(status), at_least_s=0.0)


def test_a_steady_state_that_is_too_short_is_refused():
    records = [{"time_unix_s": t} for t in (100.0, 105.0, 106.0)]
    with pytest.raises(SrlError, match=r"after 3 updates, 2 of them in 1\.0 s of steady state"):
        steady_state(records, finished(), at_least_s=2.0)


def test_a_run_beyond_its_time_is_ended_with_its_descendants(tmp_path: Path):
    pid_file = tmp_path / "pid"
    script = (
        "import subprocess, time; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); print('begun', flush=True); time.sleep(60)"
    )
    begin = time.monotonic()
    ended = run_watched([sys.executable, "-c", script], limit_s=2.0)
    assert (ended.status, ended.output) == (None, "begun\n")
    assert time.monotonic() - begin < 30.0
    child = int(pid_file.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_peer_without_sense_for_a_task_is_skipped_with_a_reason():
    assert "no vector environment" in str(peers.reason_to_skip("cleanrl_native", "cheetah-wide"))
    assert "of this project" in str(peers.reason_to_skip("sb3", "hide_and_seek"))
    assert peers.reason_to_skip("ours", "hide_and_seek") is None
    assert peers.reason_to_skip("cleanrl_native", "pong") is None


def test_an_unknown_peer_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]):
    assert main(["peers", "peers=sb2"]) == 2
    assert "no peer 'sb2'; there are ours, cleanrl_envpool" in capsys.readouterr().err


@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_has_a_script_and_pinned_requirements(name: str):
    folder = peers.FOLDER / peers.PEERS[name].folder
    compile((folder / "train.py").read_text(), "train.py", "exec")
    requirements = (folder / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in requirements
    assert all("==" in line for line in requirements)


def test_peers_train_with_the_numbers_of_the_tasks():
    shared = runpy.run_path(str(peers.FOLDER / "protocol.py"))
    names = {
        "actors.sample_steps": "ROLLOUT",
        "algorithm.discount": "DISCOUNT",
        "algorithm.gae_lambda": "GAE_LAMBDA",
        "algorithm.clip_eps": "CLIP_EPS",
        "algorithm.learning_rate": "LEARNING_RATE",
        "algorithm.entropy_cost": "ENTROPY_COST",
        "algorithm.value_cost": "VALUE_COST",
        "algorithm.max_grad_norm": "MAX_GRAD_NORM",
    }
    ours = dict(item.split("=") for item in COMMON)
    assert {key: float(ours[key]) for key in names} == {key: shared[name] for key, name in names.items()}
    assert task_config("pong").policy.hidden == [shared["CNN_FEATURES"]]
    assert tuple(task_config("cheetah").policy.hidden) == shared["HIDDEN"]
    assert task_config("pong").env.id == shared["ENV_IDS"]["pong"]


def test_a_virtual_environment_is_made_once_per_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scripts, venvs, commands = tmp_path / "scripts", tmp_path / "venvs", []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[1:])
        (venvs / "sb3").mkdir(parents=True, exist_ok=True)
        is_wrong = "pip" in command and "wrong" in requirements.read_text()
        return subprocess.CompletedProcess(command, int(is_wrong), "no such package")

    monkeypatch.setattr(peers, "FOLDER", scripts)
    monkeypatch.setattr(subprocess, "run", run)
    (scripts / "sb3").mkdir(parents=True)
    requirements = scripts / "sb3" / "requirements.txt"
    requirements.write_text("right")
    assert peers.prepare("sb3", venvs) == venvs / "sb3" / "bin" / "python"
    assert commands == [
        ["-m", "venv", str(venvs / "sb3")],
        ["-m", "pip", "install", "--quiet", "--requirement", str(requirements)],
    ]
    peers.prepare("sb3", venvs)
    assert len(commands) == 2
    requirements.write_text("wrong")
    for calls in (4, 6):  # what was not completed is made again
        with pytest.raises(SrlError, match="no such package"):
            peers.prepare("sb3", venvs)
        assert len(commands) == calls


def test_the_table_of_peers_compares_ours_with_each(tmp_path: Path):
    measured = {"startup_s": 7.0, "cores": 1.9, "peak_mib": 1000.0}
    entries = [
        entry("limits", "bare", environment=400.0, inference=800.0, update=800.0, limit=400.0),
        entry("peers", "ours", **RATES),
        entry("peers", "sb3", fresh_rows_per_s=50.0, **measured),
    ]
    page = tmp_path / "page.md"
    page.write_text("<!-- peers -->\n<!-- /peers -->\n")
    assert results.write_tables(page, entries) == ["peers"]
    text = page.read_text()
    assert "| cartpole | ours | 100 (one run) | – | 25% | 7.0 | 1.90 | 1,000 | 1 |" in text
    assert "| cartpole | sb3 | 50 (one run) | 2.00 [2.00, 2.00] | 12% | 7.0 | 1.90 | 1,000 | 1 |" in text


def test_a_peer_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measure(name: str, task: str, *, seconds: float, venvs: Path) -> dict[str, float]:
        if name == "rllib_ppo":
            raise SrlError("it fell over")
        return {"fresh_rows_per_s": 50.0, "startup_s": 7.0, "cores": 1.9, "peak_mib": 1000.0}

    monkeypatch.setattr(peers, "measure_peer", measure)
    monkeypatch.setattr(peers, "prepare", lambda name, venvs: Path("python"))
    out = tmp_path / "results.json"
    assert main(["peers", "tasks=cartpole", "peers=rllib_ppo,sb3", "repeats=2", f"out={out}"]) == 1
    assert [found.variant for found in results.load(out)] == ["sb3", "sb3"]
    assert "1/2 cartpole rllib_ppo: it fell over" in capsys.readouterr().err
