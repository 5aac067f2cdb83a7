"""Experiments reach what they are for, started and evaluated as a user does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import srl_ray
from srl_ray import evaluate

pytestmark = [pytest.mark.learning, pytest.mark.timeout(400)]

QUIET = ["run.plots=false", "run.video=false", "run.tensorboard=false", "run.log_interval_s=5"]


def train_and_evaluate(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """Numbers of 100 evaluation episodes of the last checkpoint."""
    begin = time.monotonic()
    result = srl_ray.run([*overrides, *QUIET, f"run.dir={tmp_path / 'run'}", "cluster.address=local"])
    out = tmp_path / "evaluation.json"
    assert result.exit_status == 0
    assert evaluate.main([f"checkpoint={result.checkpoint}", "episodes=100", f"out={out}"]) == 0
    numbers: dict[str, Any] = json.loads(out.read_text())
    spread = numbers["return"]
    print(
        f"{overrides[0]}: {spread['mean']:.2f} ± {spread['std']:.2f} after {result.env_steps:,} env steps and "
        f"{result.seconds:.0f} s of training ({time.monotonic() - begin:.0f} s with start and evaluation)"
    )
    return numbers


def test_the_pole_is_balanced(tmp_path: Path) -> None:
    numbers = train_and_evaluate(tmp_path, "experiment=cartpole", "run.seed=1")
    assert numbers["num_episodes"] == 100
    assert numbers["return"]["mean"] >= 475


def test_a_cue_is_remembered_across_chunks_and_segments(tmp_path: Path) -> None:
    """The cue is shown once and needed across segment and chunk borders; without memory half the answers are right."""
    numbers = train_and_evaluate(tmp_path, "experiment=memory_cue", "run.seed=1")
    assert numbers["length"]["min"] > 8, "the cue and its use lie apart"
    assert numbers["return"]["mean"] > 0.95


def test_the_pole_is_balanced_from_experience_that_is_some_updates_old(tmp_path: Path) -> None:
    numbers = train_and_evaluate(tmp_path, "experiment=cartpole_appo", "run.seed=1")
    assert numbers["return"]["mean"] >= 450
