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
from srl_ray.plotting.stages import BEFORE, TABLE, Stage, describe, draw_stages, read_stages

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


# ------------------------------------------------------------------------------------------------------------- stages

PUBLISHED = {
    # thousand steps: hiders' return, boxes and ramps locked after the preparation; moves and surfing in this manner
    0: (29, 0.7, 0.15, 0.6, 1.2, 0.0),
    3: (40, 0.6, 0.15, 0.6, 1.2, 0.0),
    8.5: (0, 0.75, 0.2, 0.6, 1.3, 0.0),
    28: (-33, 0.7, 0.15, 0.7, 1.4, 0.0),
    33: (0, 0.9, 0.15, 0.7, 1.4, 0.0),
    60: (47, 1.4, 0.13, 0.7, 1.0, 0.0),
    87: (10, 1.8, 0.6, 2.0, 1.0, 0.001),
    92: (25, 1.9, 1.1, 1.8, 1.0, 0.001),
    110: (45, 2.1, 1.65, 0.4, 0.8, 0.001),
    150: (50, 3.0, 1.7, 0.4, 0.8, 0.002),
    200: (20, 3.0, 1.7, 0.4, 2.6, 0.06),
    250: (45, 5.0, 1.8, 0.3, 1.0, 0.01),
    280: (50, 5.2, 1.8, 0.3, 0.6, 0.0),
}
NAMES = ("num_box_lock_prep", "num_ramp_lock_prep", "max_ramp_move_main", "max_box_move_main", "surfing_fraction")


def published(until: float = 280, *, episodes: int = 6000, noise: float = 0.0, **changes: Any) -> Records:
    """A run whose curves go through the published values, and on through the later stages."""
    rng = np.random.default_rng(0)
    at = np.linspace(0, until, episodes)
    knots = np.array(list(PUBLISHED.values()))
    columns = [np.interp(at, list(PUBLISHED), knots[:, column]) for column in range(6)]
    values = {"hiders_seen_fraction": (1 - columns[0] / 144) / 2, **dict(zip(NAMES, columns[1:]))}
    for name, value in values.items():
        values[name] = value * (1 + noise * rng.standard_normal(episodes))
    values |= changes
    rows = [{"env_steps": 1000 * x, "summary": {n: float(v[i]) for n, v in values.items()}} for i, x in enumerate(at)]
    return Records(episodes=rows)


# where the lines between the published values cross the levels, thousand steps
BEGINS = {
    "chasing": 8.5,
    "forts": 39.6,
    "ramp use": 76.6,
    "ramp defence": 105.1,
    "box surfing": 168.9,
    "surf defence": 225.0,
}


def test_the_published_curve_goes_through_all_stages_in_order() -> None:
    stages = read_stages(published())
    assert [stage.name for stage in stages] == [BEFORE, *TABLE]
    for stage in stages[1:]:
        assert stage.begin / 1000 == pytest.approx(BEGINS[stage.name], abs=5)  # a bin is 4.7 thousand steps
    assert stages[0].begin == 0
    assert [stage.end for stage in stages] == [*(stage.begin for stage in stages[1:]), 280_000]


@pytest.mark.parametrize(
    ("until", "name"), [(6, BEFORE), (30, "chasing"), (70, "forts"), (95, "ramp use"), (160, "ramp defence")]
)
def test_a_run_that_stops_earlier_is_in_an_earlier_stage(until: float, name: str) -> None:
    assert read_stages(published(until))[-1].name == name


def test_noise_of_episodes_flips_no_stage() -> None:
    names = [stage.name for stage in read_stages(published(noise=0.6))]
    assert names == [BEFORE, *TABLE]


def test_a_stage_lasts_between_its_two_levels_and_a_short_dip_does_not_count() -> None:
    def names(late: float, dip_bins: int) -> list[str]:
        ramps = np.full(3000, 1.6)  # 60 bins of 50 episodes
        ramps[1000 : 1000 + 50 * dip_bins] = late
        quiet = {name: np.zeros(3000) for name in NAMES}
        seen = np.full(3000, 0.6)
        run = published(episodes=3000, **{**quiet, "num_ramp_lock_prep": ramps, "hiders_seen_fraction": seen})
        return [stage.name for stage in read_stages(run)]

    assert names(1.3, 30) == ["ramp defence"]
    assert names(0.2, 2) == ["ramp defence"]
    assert names(0.2, 20) == ["ramp defence", "chasing", "ramp defence"]


def test_locking_all_boxes_is_no_surf_defence_before_there_were_surfers() -> None:
    calm = published(surfing_fraction=np.zeros(6000))
    assert read_stages(calm)[-1].name == "ramp defence"


def test_stages_are_told_in_one_line() -> None:
    assert describe([Stage(BEFORE, 0, 5), Stage("chasing", 410_000, 600_000)]) == "stage: chasing since 410k steps"
    assert describe([Stage(BEFORE, 0, 5)]) == "stage: before chasing"
    assert describe([]) == "stage: not enough episodes to tell"
    assert read_stages(published(episodes=100)) == []
    assert read_stages(Records(episodes=[{"env_steps": 1, "summary": {"won": 1.0}}])) == []


def test_means_of_intervals_tell_stages_too() -> None:
    rows = published(episodes=100).episodes
    intervals = [{"env_steps": r["env_steps"], **{f"summary/{n}": v for n, v in r["summary"].items()}} for r in rows]
    assert [stage.name for stage in read_stages(Records(metrics=intervals))] == [BEFORE, *TABLE]


def test_the_command_draws_the_stages_of_hide_and_seek_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "game" / "episodes.jsonl", published(episodes=1200).episodes)
    assert plot_command.main([str(tmp_path / "game")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Path(line).name for line in lines[:2]] == ["curves.png", "stages.png"]
    assert lines[2].startswith("stage: surf defence since 2")
    with Image.open(tmp_path / "game" / "plots" / "stages.png") as picture:
        assert picture.width > 1000
    (tmp_path / "game" / "config.yaml").write_text("env: {id: hide_and_seek, kwargs: {scenario: quadrant}}")
    assert plot_command.main([str(tmp_path / "game"), "only=boxes"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("stage: not told for scenario=quadrant")
    write(tmp_path / "other" / "metrics.jsonl", metrics())
    assert plot_command.main([str(tmp_path / "other")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    with pytest.raises(ConfigError, match="no statistics of hide-and-seek"):
        draw_stages(tmp_path / "other")
