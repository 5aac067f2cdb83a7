"""Curves are drawn from whatever a run has written so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from srl_ray import plot as plot_command
from srl_ray.core.errors import ConfigError
from srl_ray.plotting.curves import align, draw_curves, make_figure, mean_over_runs, smooth
from srl_ray.plotting.records import Records, read_records

pytestmark = pytest.mark.unit


def write(file: Path, records: list[dict[str, Any]], tail: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)


def metrics(count: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "time_unix_s": 10.0 * i,
            "env_steps": 1000 * i,
            "policy_version": 2 * i,
            "rate/env_steps_per_s": 500.0 + i,
            "train/entropy": 1.0 / (1 + i),
            "train/policy_loss": -0.1,
            "share/actor/env": 0.6,
            "share/actor/wait": 0.1,
            "staleness/mean": 0.5,
        }
        for i in range(count)
    ]


def titles(records: Records) -> list[str]:
    return [axes.get_title(loc="left") for axes in make_figure(records).axes]


def test_curves_of_a_run_become_one_picture(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", metrics())
    episode = {"length": 20, "returns": {"hider_0": 3.0, "hider_1": 5.0, "seeker_0": -4.0}, "summary": {"won": 1.0}}
    write(tmp_path / "episodes.jsonl", [{**episode, "env_steps": 100 * i} for i in range(300)])
    path = draw_curves(tmp_path)
    assert path == tmp_path / "plots" / "curves.png"
    with Image.open(path) as picture:
        assert picture.width > 1000
    assert [file.name for file in path.parent.iterdir()] == ["curves.png"]


def test_panels_follow_what_was_recorded(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", metrics())
    found = titles(read_records(tmp_path))
    assert "entropy" in found
    assert "time of actor workers (share)" in found
    assert "value loss" not in found
    assert "boxes locked" not in found
    write(
        tmp_path / "episodes.jsonl",
        [{"env_steps": i, "length": 9, "summary": {"num_box_lock": 2, "num_box_lock_prep": 1}} for i in range(50)],
    )
    assert "boxes locked" in titles(read_records(tmp_path))


def test_broken_lines_missing_keys_and_non_finite_numbers_do_no_harm(tmp_path: Path) -> None:
    records = [{"env_steps": 10, "train/entropy": float("nan")}, {"train/entropy": 3.0}, {"env_steps": 20}]
    write(tmp_path / "metrics.jsonl", records, tail='["no mapping"]\n{"env_steps": 30, "train/ent')
    write(
        tmp_path / "episodes.jsonl",
        [{"env_steps": 5, "returns": {"agent": 1.0}, "discarded": True}, {"env_steps": 6, "returns": None}],
    )
    read = read_records(tmp_path)
    assert [record["env_steps"] for record in read.metrics] == [10, 20]
    assert read.keys == {"env_steps"}
    assert len(read.episodes) == 1
    assert draw_curves(tmp_path).exists()


def test_returns_are_means_over_the_agents_of_a_team(tmp_path: Path) -> None:
    episode = {"env_steps": 7, "returns": {"hider_0": 3.0, "hider_1": 5.0, "seeker_0": -4.0, "agent": 1.0}}
    write(tmp_path / "episodes.jsonl", [episode])
    teams = read_records(tmp_path).returns_by_team()
    assert {team: (x.tolist(), y.tolist()) for team, (x, y) in teams.items()} == {
        "hider": ([7.0], [4.0]),
        "seeker": ([7.0], [-4.0]),
        "agent": ([7.0], [1.0]),
    }


def test_means_of_intervals_stand_in_where_no_episodes_were_kept(tmp_path: Path) -> None:
    record = {"return/hiders": 3.0, "return_std/hiders": 1.0, "episode/length": 9.0, "summary/num_box_lock": 2.0}
    write(tmp_path / "metrics.jsonl", [{**record, "env_steps": i} for i in range(5)])
    found = titles(read_records(tmp_path))
    assert found == ["return per episode", "episode length", "boxes locked"]


def test_rotated_episode_files_are_read_and_put_in_order(tmp_path: Path) -> None:
    for name, step in (("episodes.jsonl", 3), ("episodes.1.jsonl", 2), ("episodes.2.jsonl", 1)):
        write(tmp_path / name, [{"env_steps": step, "length": step}])
    assert read_records(tmp_path).lengths()[1].tolist() == [1, 2, 3]


def test_episodes_without_a_step_are_placed_by_their_time(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", metrics())
    write(tmp_path / "episodes.jsonl", [{"time_unix_s": 55.0, "length": 4}, {"policy_version": 7, "length": 5}])
    steps, lengths = read_records(tmp_path).lengths()
    assert dict(zip(lengths.tolist(), steps.tolist())) == {4.0: 5500.0, 5.0: 3500.0}


def test_smoothing_keeps_constants_and_length() -> None:
    np.testing.assert_allclose(smooth(np.full(30, 4.0), 7), 4.0)
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 0.0]), 3), [1.5, 1.0, 1.5])


def test_a_run_that_has_just_begun_can_be_drawn(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", [])
    assert draw_curves(tmp_path).exists()
    write(tmp_path / "metrics.jsonl", metrics(1))
    assert draw_curves(tmp_path).exists()


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        draw_curves(tmp_path / "none")
    assert plot_command.main([f"run={tmp_path}"]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_the_command_takes_the_latest_run_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "cartpole" / "a" / "metrics.jsonl", metrics())
    (tmp_path / "cartpole" / "latest").symlink_to("a")
    assert plot_command.main([f"run={tmp_path / 'cartpole'}"]) == 0
    assert capsys.readouterr().out.strip().endswith("a/plots/curves.png")


def test_the_mean_over_runs_has_a_band_of_students_t() -> None:
    mean, half_width = mean_over_runs(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
    assert mean.tolist() == [2.0, 5.0]
    np.testing.assert_allclose(half_width, [4.303 / 3**0.5, 0.0])  # standard deviation 1, three runs
    np.testing.assert_allclose(mean_over_runs(np.array([[0.0], [2.0]]))[1], 12.706)
    assert mean_over_runs(np.array([[4.0]]))[1].tolist() == [0.0]


def test_runs_of_different_length_meet_on_the_steps_they_share() -> None:
    long = (np.arange(0.0, 21.0), np.arange(0.0, 21.0))
    short = (np.array([2.0, 4.0, 6.0, 10.0]), np.array([1.0, 1.0, 3.0, 9.0]))
    x, values = align([long, short])
    assert x.tolist() == [3.0, 5.0, 7.0, 9.0]  # from 2 to 10, four bins as the short run has four points
    assert values[0].tolist() == [2.5, 4.5, 6.5, 9.0]
    assert values[1].tolist() == [1.0, 1.0, 3.0, 9.0]
    x, values = align([(np.array([0.0, 1.0, 10.0]), np.array([0.0, 2.0, 8.0])), (np.arange(11.0), np.zeros(11))])
    np.testing.assert_allclose(values[0], [1.0, 4.5, 8.0])  # an empty bin lies between its neighbours


def test_several_runs_become_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, shift in enumerate((0.0, 0.5, 1.0)):
        shifted = [{**record, "train/entropy": record["train/entropy"] + shift} for record in metrics(30 + seed)]
        write(tmp_path / f"seed_{seed}" / "metrics.jsonl", shifted)
    runs = [read_records(tmp_path / f"seed_{seed}") for seed in range(3)]
    (axes,) = make_figure(*runs, only=("entropy",)).axes
    *single, mean = axes.get_lines()
    assert len(single) == 3
    curves = np.array([line.get_ydata() for line in single])
    np.testing.assert_allclose(mean.get_ydata(), curves.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max() - np.asarray(mean.get_ydata()).max(), 4.303 * 0.5 / 3**0.5, rtol=1e-6)

    a, b, c = (str(tmp_path / f"seed_{seed}") for seed in range(3))
    for arguments in ([f"run=[{a},{b},{c}]"], [a, b, c], [f"run={a}", f"run={b},{c}"]):
        assert plot_command.main([*arguments, "only=entropy,losses"]) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / "plots" / "curves.png")
    assert plot_command.main([a, b, f"out={tmp_path / 'mine.png'}"]) == 0
    assert (tmp_path / "mine.png").exists()


def test_wrong_choices_of_the_plot_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "metrics.jsonl", metrics())
    for arguments, words in (
        (["only=entropi"], "no panel is named like that"),
        ([f"out={tmp_path / 'mine.jpg'}"], "ends in .png"),
        (["run=[a,,b]"], "run must be a path"),
    ):
        assert plot_command.main([f"run={tmp_path}", *arguments]) == 2
        assert words in capsys.readouterr().err
