"""Signals write a checkpoint and leave nothing; the same command goes on from there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from srl_ray.runtime.checkpoint import list_checkpoints, read_facts
from tests.fault.training import Training

pytestmark = [pytest.mark.fault, pytest.mark.timeout(420)]


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "plasma" in path.name or "ray" in path.name}


def test_sigterm_writes_a_checkpoint_and_resume_continues_the_schedule(train: Callable[..., Training]) -> None:
    """C15: counters, learning rate and step axis go on where they were."""
    memory_before = shared_memory()
    command = (
        "+experiment=cartpole",
        "stop.env_steps=40000",
        "algorithm.learning_rate=1e-3",
        "run.checkpoint_interval_s=60",
    )
    first = train(*command)
    first.wait_for(lambda: first.env_steps() > 8000, 120, "8000 env steps")
    first.send(signal.SIGTERM)
    wrote_s = first.wait_for(lambda: len(list_checkpoints(first.run_dir / "checkpoints")) > 1, 10, "checkpoint")
    assert first.wait(30) == 143
    left_s = first.assert_nothing_is_left()
    print(f"SIGTERM: checkpoint after {wrote_s:.1f} s, nothing left {left_s:.1f} s after the end")
    assert wrote_s < 3
    assert shared_memory() <= memory_before
    saved = read_facts(list_checkpoints(first.run_dir / "checkpoints")[0])
    steps_before = [record["env_steps"] for record in first.records()]

    second = train(*command, "run.resume=auto")
    assert second.wait(240) == 0, second.text
    records = second.records()
    steps = [record["env_steps"] for record in records]
    assert steps == sorted(set(steps))
    after = [record for record in records if record["env_steps"] > saved["env_steps"]]
    assert 40000 <= steps[-1] < 60000
    assert len(steps) > len(steps_before)
    before = saved["env_steps"]
    for record in after:
        if "train/learning_rate" in record and record["env_steps"] < 40000:
            newest, oldest = (1e-3 * (1 - steps / 40000) for steps in (record["env_steps"], before))
            assert newest - 1.5e-4 < record["train/learning_rate"] < oldest + 1.5e-4
        before = record["env_steps"]
    versions = [record["policy_version"] for record in after]
    assert min(versions) > saved["policy_version"]
    assert "resumed from" in second.text


def test_ctrl_c_ends_with_130_and_a_second_one_at_once(train: Callable[..., Training]) -> None:
    training, impatient = train("+experiment=cartpole"), train("+experiment=cartpole", name="impatient")
    training.wait_for(lambda: training.env_steps() > 1000, 120, "1000 env steps")
    training.send(signal.SIGINT)
    assert training.wait(30) == 130
    assert len(list_checkpoints(training.run_dir / "checkpoints")) > 1
    training.assert_nothing_is_left()

    impatient.wait_for(lambda: impatient.env_steps() > 1000, 120, "1000 env steps")
    impatient.send(signal.SIGINT)
    impatient.send(signal.SIGINT)
    assert impatient.wait(5) == 130
    impatient.assert_nothing_is_left()


def test_a_run_directory_is_not_overwritten(train: Callable[..., Training], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    training = train("+experiment=cartpole")
    assert training.wait(20) == 2
    assert "run.resume=auto" in training.text
    assert not [p for p in training.tree() if "raylet" in p.name()]


def test_a_killed_driver_takes_its_workers_with_it(train: Callable[..., Training]) -> None:
    training = train("+experiment=cartpole")
    training.wait_for(lambda: training.env_steps() > 1000, 120, "1000 env steps")
    assert training.workers("ActorWorker")
    training.send(signal.SIGKILL)
    training.process.wait(5)
    ours = ("ActorWorker", "TrainerWorker", "ParameterService")
    deadline = time.monotonic() + 15
    while any(training.workers(worker) for worker in ours):
        assert time.monotonic() < deadline, [p.cmdline() for p in training.tree()]
        time.sleep(0.1)
    # Ray's own agents notice after a minute that their node is gone; the fixture ends them
