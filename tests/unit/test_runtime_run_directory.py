"""Run directories: creation, refusal, `latest`, resume and retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from srl_ray.core.errors import CheckpointError, ConfigError
from srl_ray.runtime.config import RunConfig
from srl_ray.runtime.run_directory import RunDirectory, find_checkpoint, open_run_directory

pytestmark = pytest.mark.unit


def open_run(base: Path, **run: object) -> tuple[RunDirectory, int | None]:
    directory, checkpoint = open_run_directory(RunConfig(**run), experiment="pong", base=base)  # type: ignore[arg-type]
    return directory, None if checkpoint is None else checkpoint.state["step"]


def finished_run(path: Path, *steps: int) -> RunDirectory:
    directory = RunDirectory(path)
    for step in steps:
        directory.save_checkpoint({"step": step}, env_steps=step, keep=10)
    directory.metrics.write_text("{}\n")
    return directory


def test_a_fresh_run_gets_its_own_folder_and_latest_points_at_it(tmp_path: Path):
    first, step = open_run(tmp_path)
    second, _ = open_run(tmp_path)
    assert step is None
    assert first.path != second.path
    assert (tmp_path / "pong" / "latest").resolve() == second.path.resolve()


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path):
    finished_run(tmp_path / "mine", 5)
    with pytest.raises(ConfigError, match=r"already holds a run.*run\.resume=auto"):
        open_run(tmp_path, dir=str(tmp_path / "mine"))


def test_an_empty_folder_is_taken(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    directory, _ = open_run(tmp_path, dir=str(tmp_path / "mine"))
    assert directory.path == tmp_path / "mine"


def test_auto_continues_run_dir_from_its_newest_checkpoint(tmp_path: Path):
    finished_run(tmp_path / "mine", 5, 20)
    directory, step = open_run(tmp_path, dir=str(tmp_path / "mine"), resume="auto")
    assert directory.path == tmp_path / "mine"
    assert step == 20


def test_auto_continues_latest(tmp_path: Path):
    first, _ = open_run(tmp_path)
    finished_run(first.path, 7)
    directory, step = open_run(tmp_path, resume="auto")
    assert directory.path.resolve() == first.path.resolve()
    assert step == 7


def test_auto_without_anything_starts_afresh(tmp_path: Path):
    directory, step = open_run(tmp_path, resume="auto")
    assert step is None
    assert directory.path.is_dir()
    _, step = open_run(tmp_path, dir=str(tmp_path / "new"), resume="auto")
    assert step is None


def test_a_path_may_be_a_run_or_one_checkpoint(tmp_path: Path):
    run = finished_run(tmp_path / "old", 5, 20)
    assert open_run(tmp_path, resume=str(run.path)) == (run, 20)
    assert open_run(tmp_path, resume=str(run.checkpoint_path(5))) == (run, 5)
    moved, step = open_run(tmp_path, resume=str(run.path), dir=str(tmp_path / "new"))
    assert (moved.path, step) == (tmp_path / "new", 20)


def test_resuming_into_another_runs_folder_is_refused(tmp_path: Path):
    finished_run(tmp_path / "a", 5)
    finished_run(tmp_path / "b", 6)
    with pytest.raises(ConfigError, match="another run"):
        open_run(tmp_path, resume=str(tmp_path / "a"), dir=str(tmp_path / "b"))


def test_a_missing_path_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match="nowhere: does not exist"):
        open_run(tmp_path, resume=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)


def test_retention_keeps_the_newest_and_clears_what_killed_writers_left(tmp_path: Path):
    directory = finished_run(tmp_path / "mine", 1, 2, 3)
    (directory.checkpoints / ".step_4.999999999.tmp").mkdir()
    directory.save_checkpoint({"step": 5}, env_steps=5, keep=2)
    assert sorted(p.name for p in directory.checkpoints.iterdir()) == ["step_000000000003", "step_000000000005"]


def test_the_config_is_written_as_plain_yaml(tmp_path: Path):
    @dataclass
    class Config:
        name: str = "x"
        sizes: list[int] = field(default_factory=lambda: [1, 2])
        factory: object = Path.cwd

    directory, _ = open_run(tmp_path)
    directory.write_config(Config())
    written = yaml.safe_load((directory.path / "config.yaml").read_text())
    assert written["name"] == "x"
    assert written["sizes"] == [1, 2]
    assert "cwd" in written["factory"]
