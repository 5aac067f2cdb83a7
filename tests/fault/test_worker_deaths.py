"""kill -9 of any worker: the run goes on, everything is counted, nothing is left at the end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.fault.training import Training

pytestmark = [pytest.mark.fault, pytest.mark.timeout(420)]


def test_killed_workers_are_replaced_and_the_run_reaches_its_goal(train: Callable[..., Training]) -> None:
    training = train(
        "+experiment=cartpole",
        "actors.count=2",
        "actors.inference=remote",
        "policy_workers.count=1",
        "trainers.count=2",
        "trainers.batch_chunks=16",
        "run.checkpoint_interval_s=3",
        "stop.env_steps=10000000",
    )
    training.wait_for(lambda: training.env_steps() > 3000, 120, "3000 env steps")
    training.wait_for(lambda: len(list(training.run_dir.glob("checkpoints/step_*"))) > 1, 30, "second checkpoint")
    victims = {
        "ActorWorker": "actor",
        "PolicyWorker": "policy_worker",
        "ParameterService": "service",
        "TrainerWorker": "trainer",
    }
    for worker, role in victims.items():
        before = set(training.workers(worker))
        victim = training.workers(worker)[0]
        victim.send_signal(signal.SIGKILL)
        took_s = training.wait_for(
            lambda r=role: f"{r} 0 is back" in training.text or f"{r} 1 is back" in training.text, 60, f"new {role}"
        )
        at = training.env_steps()
        more_s = training.wait_for(lambda a=at: training.env_steps() > a + 2000, 60, f"steps after the new {role}")
        print(f"{worker}: back after {took_s:.1f} s, 2000 env steps later after {more_s:.1f} s more")
        assert set(training.workers(worker)) != before
    training.send(signal.SIGTERM)
    assert training.wait(60) == 143
    last = training.records()[-1]
    print({k: v for k, v in last.items() if k.split("/")[0] in ("restarts", "buffer", "lost")})
    assert {last[f"restarts/{role}"] for role in victims.values()} == {1}
    assert last["buffer/accepted"] == sum(last[f"buffer/{k}"] for k in ("finished", "expired", "waiting", "lost"))
    steps = [record["env_steps"] for record in training.records()]
    assert steps == sorted(steps)
    print(f"nothing left after {training.assert_nothing_is_left():.1f} s")
