"""Environments that raise, never start, hang or give NaN: the cause is said, the run recovers or ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.training import Training

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


def test_an_environment_that_never_starts_ends_the_run_with_its_own_words(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    """C07."""
    (tmp_path / "broken_env.py").write_text("def make():\n    raise RuntimeError('licence server not reachable')\n")
    training = train("env.factory=broken_env:make", "experiment=cartpole", "env.id=''")
    assert training.wait(120) == 1
    assert "licence server not reachable" in "\n".join(training.lines[-30:])
    training.assert_nothing_is_left()


def test_a_hanging_environment_is_replaced(train: Callable[..., Training], tmp_path: Path) -> None:
    (tmp_path / "hanging_env.py").write_text(
        """
import pathlib, time, gymnasium
class Hanging(gymnasium.Wrapper):
    def step(self, action):
        flag = pathlib.Path(__file__).with_name("hung")
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps > 300 and not flag.exists():
            flag.touch()
            time.sleep(3600)
        return super().step(action)
def make():
    return Hanging(gymnasium.make("CartPole-v1"))
"""
    )
    training = train(
        "env.factory=hanging_env:make",
        "experiment=cartpole",
        "env.id=''",
        "env.step_timeout_s=3",
        "stop.env_steps=12000",
    )
    assert training.wait(150) == 0, training.text
    assert "env.step_timeout_s=3" in training.text
    assert training.records()[-1]["restarts/actor"] == 1
    training.assert_nothing_is_left()


def test_an_environment_that_raises_now_and_then(train: Callable[..., Training], tmp_path: Path) -> None:
    """C06: with env.on_error=restart the run goes on and counts, with stop it ends; the two run side by side."""
    (tmp_path / "raising_env.py").write_text(
        """
import json, gymnasium, numpy as np
rng = np.random.default_rng(0)
class Raising(gymnasium.Wrapper):
    def __init__(self, env, trace):
        super().__init__(env)
        self.trace = trace
    def step(self, action):
        if rng.random() < 0.002:
            with open(self.trace, "a") as file:
                file.write(json.dumps("raised") + "\\n")
            raise ValueError("sim diverged")
        return super().step(action)
def make(trace):
    return Raising(gymnasium.make("CartPole-v1"), trace)
"""
    )
    traces = {on_error: tmp_path / f"raised_{on_error}.jsonl" for on_error in ("restart", "stop")}
    restarting, stopping = (
        train(
            "env.factory=raising_env:make",
            "experiment=cartpole",
            "env.id=''",
            f"env.kwargs.trace={traces[on_error]}",
            f"env.on_error={on_error}",
            "stop.env_steps=8000",
            name=on_error,
        )
        for on_error in ("restart", "stop")
    )
    assert stopping.wait(150) == 1
    tail = "\n".join(stopping.lines[-30:])
    assert "ValueError" in tail
    assert "sim diverged" in tail
    assert len(traces["stop"].read_text().splitlines()) == 1
    stopping.assert_nothing_is_left()

    assert restarting.wait(150) == 0, restarting.text
    raised = len(traces["restart"].read_text().splitlines())
    counted = restarting.records()[-1]["lost/discarded_episodes"]
    assert 0 < counted <= raised <= counted + 2  # one or two may fall after the last report
    restarting.assert_nothing_is_left()
